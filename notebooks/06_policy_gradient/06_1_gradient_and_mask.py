# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6.1 Train on the tokens that the policy chose
#
# An agent's episode is one long row of tokens, but two writers took turns at it. The policy wrote the calls;
# the environment wrote the answers, and a template wrote the marks between them. This section shows, on a
# problem small enough to sum over every possible episode, that the policy gradient contains the policy's
# tokens and no other. Leave one of them out (the end of a call is the usual victim) or let one of the
# environment's in, and you follow the gradient of something else. We will see what that something is.
#
# **Time** 15 min. **Assumes** no other section. **Afterwards you can** write the policy gradient of an
# episode with observations, check it by a sum over all episodes, and say what a wrong mask trains.

# %%
#@save gradient
import torch

# %% [markdown]
# ## Why observations drop out
#
# Write an episode as actions and observations, $\tau = (a_1, o_1, a_2, o_2, \dots)$, and its history before
# step $k$ as $h_k$. Its probability is a product of two kinds of factors,
#
# $$p_\theta(\tau) = \prod_k \pi_\theta(a_k \mid h_k)\; P(o_k \mid h_k, a_k).$$
#
# We want the gradient of the expected reward $J(\theta) = \sum_\tau p_\theta(\tau) R(\tau)$. With
# $\nabla p = p\,\nabla \log p$ it is an expectation over episodes (Williams 1992; Sutton et al. 2000):
#
# $$\nabla J = \mathbb{E}_\tau\Big[R(\tau) \sum_k \nabla \log \pi_\theta(a_k \mid h_k)\Big].$$
#
# The logarithm turned the product into a sum, and $P$, the environment, does not depend on $\theta$: its
# terms have gradient zero and are gone. That the *model* could also assign a probability to $o_k$ is beside
# the point: nobody sampled $o_k$ from it.

# %% [markdown]
# ## A problem with eight episodes
#
# The policy writes a token, the environment answers with one, the policy writes a second: three tokens, each
# 0 or 1, so eight episodes in all. The answer to token 0 is a fair coin; the answer to token 1 is 0 nine
# times in ten. An episode earns 1 when its last token repeats the observation.

# %%
EPISODES = torch.cartesian_prod(*3 * [torch.arange(2)])  # [8, 3]: action, observation, action
ENVIRONMENT = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)  # P(observation | first action)
env_prob = ENVIRONMENT[EPISODES[:, 0], EPISODES[:, 1]]  # [8]
reward = (EPISODES[:, 2] == EPISODES[:, 1]).double()  # [8]
MASK = torch.tensor([1, 0, 1], dtype=torch.float64)  # the policy's two positions

# %% [markdown]
# The "language model" has three numbers: a bias, a weight on the previous token and a weight on the
# position. Like a transformer it gives a probability to *every* position, the environment's as well, and it
# uses the same parameters for all of them. This sharing is what makes a wrong mask harmful: what is learned
# at one position moves the others.

# %%
import pandas as pd
import torch.nn.functional as F
from torch.autograd.functional import jacobian


def token_log_probs(theta, tokens):
    last = F.pad(tokens[:, :-1], (1, 0)).double()  # [N, 3], 0 before the first
    logit_of_1 = theta[0] + theta[1] * last + theta[2] * torch.arange(3)  # [N, 3]
    return F.logsigmoid(torch.where(tokens == 1, logit_of_1, -logit_of_1))  # [N, 3]


theta = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
torch.exp(token_log_probs(theta, EPISODES[[0, 3, 7]])).round(decimals=3)  # of 000, 011, 111

# %% [markdown]
# The parameters are (0, 1, 0), so the model repeats a 1 with probability 0.731 and is undecided after a 0.
# Now the probability of each episode: the policy's two factors from the model, the middle one from the
# environment.

# %%
def episode_probs(theta):
    return env_prob * torch.exp((token_log_probs(theta, EPISODES) * MASK).sum(1))  # [8]


def expected_reward(theta):
    return (episode_probs(theta) * reward).sum()


p = episode_probs(theta)
table = pd.DataFrame(EPISODES.numpy(), columns=['action', 'observation', 'action 2'])
table.assign(probability=p.numpy().round(4), reward=reward.numpy())

# %%
print('sum of the probabilities', round(p.sum().item(), 6))
print('expected reward         ', round(expected_reward(theta).item(), 4))
print('by hand                 ', round(0.3 * 0.7311 + 0.7 * 0.5, 4), '(a 1 is observed 3 times in 10)')

# %% [markdown]
# ## Four ways to the gradient
#
# First, no theory: let autograd differentiate the sum over the eight episodes, and check it against finite
# differences. Then the formula above. `score` holds, for each episode, the gradient of the summed
# log-probabilities under a mask; weighted by probability and reward it is the expectation that a sampler
# would estimate. Last, the same with the mask off, as if all three tokens had been the policy's.

# %%
def score(mask):
    return jacobian(lambda th: (token_log_probs(th, EPISODES) * mask).sum(1), theta)  # [8, 3]


def finite_differences(f, x, h=1e-5):
    steps = h * torch.eye(len(x), dtype=torch.float64)
    return torch.stack([(f(x + d) - f(x - d)) / (2 * h) for d in steps])


exact = jacobian(expected_reward, theta)  # [3]
masked = (p * reward) @ score(MASK)
unmasked = (p * reward) @ score(torch.ones(3, dtype=torch.float64))
rows = {'autograd of J': exact, 'finite differences': finite_differences(expected_reward, theta),
        'masked estimator': masked, 'mask off': unmasked}
pd.DataFrame({k: v.numpy() for k, v in rows.items()}, index=['bias', 'last', 'position']).T.round(4)

# %% [markdown]
# Three rows agree and the fourth does not; it even disagrees about a sign. Its surplus is the
# reward-weighted gradient of the model's prediction of the observation, so it is fair to ask what a model
# trained this way learns about its environment. Not the truth: it learns the truth *tilted by reward*.

# %%
print('masked = exact:', torch.allclose(masked, exact, rtol=0, atol=1e-12))
cosine = F.cosine_similarity(unmasked, exact, dim=0).item()
print('cosine of the unmasked gradient with the exact one:', round(cosine, 3))

# %% [markdown]
# ## What the missing mask trains
#
# Take the observation alone. The environment answers "pass" one time in ten; episodes with "pass" earn 0.9
# on average and the others 0.2. The surplus term climbs $\mathbb{E}[R \log q(o)]$ in the model's prediction
# $q$, whose maximum is $q(o) \propto P(o)\,\mathbb{E}[R \mid o]$: the products are 0.18 and 0.09, so $q$
# should end at 2/3 and 1/3. Gradient ascent finds the same.

# %%
truth = torch.tensor([0.9, 0.1], dtype=torch.float64)  # P(fail), P(pass)
mean_reward = torch.tensor([0.2, 0.9], dtype=torch.float64)
z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
for _ in range(300):
    (slope,) = torch.autograd.grad((truth * mean_reward * torch.log_softmax(z, 0)).sum(), z)
    z = (z + slope).detach().requires_grad_()
print('products                                 ', (truth * mean_reward).numpy().round(2))
print('the environment says pass with probability', truth[1].item())
print('the model comes to believe               ', round(torch.softmax(z, 0)[1].item(), 3))

# %% [markdown]
# The model becomes an optimist: it expects the answers that came with reward. In an agent the same weights
# choose the next call, so such beliefs are not a private matter. (Masking an observation does not hide it:
# later calls still read it, and gradient still flows through that reading. It only stops being a target.)
#
# ## The estimator as code
#
# In a batch, the positions that are masked out hold whatever the padding left there: a log-probability of
# $-\infty$, a product that overflowed. Multiplying by a 0/1 mask does not remove these, since
# $0 \cdot \infty$ is NaN. Therefore nothing is multiplied: a dropped position is *replaced* by zero, and its
# gradient is exactly zero. A mask of another shape is refused: a single row of it would stretch over all rows
# of `x`, and the mean would divide by the kept positions of that one row.

# %%
#@save
def keep_only(x, mask):
    """x where mask is set, elsewhere exactly 0 with gradient 0, even where x is inf or NaN.

    ValueError for a mask of another shape.
    """
    if mask.shape != x.shape:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: {list(x.shape)}, that of the values')
    return x.masked_fill(~mask.bool(), 0.0)


# %%
x = torch.tensor([[1.0, 2.0, torch.inf], [4.0, torch.nan, torch.nan]], dtype=torch.float64)  # [2, 3]
mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.float64)
print('replaced  ', keep_only(x, mask).tolist())
print('multiplied', (x * mask).tolist())

# %% [markdown]
# The mean then divides by the number of kept positions, not by the size of the tensor. A batch in which
# nothing is kept (every episode dropped, say) has mean 0, so that a training step on it does nothing instead
# of writing NaN into every weight. The three kept numbers are 1, 2 and 4.

# %%
#@save
def masked_mean(x, mask):
    """Mean of x over the kept positions, as a scalar; 0 where nothing is kept."""
    return keep_only(x, mask).sum() / mask.bool().sum().clamp(min=1)


# %%
print('mean of 1, 2 and 4:', round(masked_mean(x, mask).item(), 4))
print('nothing kept:      ', masked_mean(x, torch.zeros_like(mask)).item())

# %% [markdown]
# The loss is the negative of what we want to climb, averaged over the kept *tokens* of the batch. The
# formula above sums over the tokens of an episode; the mean over tokens differs from it by the number of
# tokens an episode, a choice with consequences that 6.2 takes up. An advantage a row, `[B]`, serves all
# tokens of that row; one a token, `[B, T-1]`, is used as it is. Nothing else is accepted, because a square
# batch would broadcast the wrong way in silence. One kept number that is not finite would write NaN into every
# weight, so the loss is refused then, and `check_kept` names the place.

# %%
#@save
def check_kept(mask, **arrays):
    """ValueError if one of the named arrays, of the shape of mask, is not finite where mask is set."""
    for name, x in arrays.items():
        bad = (~x.isfinite() & mask.bool()).nonzero()
        if len(bad):
            at = bad[0].tolist()
            raise ValueError(f'{name} is {x[tuple(at)].item()} at the kept position {at}; kept values must be '
                             'finite: find what made it, or drop the position from the mask')


# %%
#@save
def reinforce_loss(logp, advantages, mask):
    """REINFORCE (Williams 1992) as a loss, token mean: -masked_mean(advantages * logp).

    logp, mask: [B, T-1]. advantages: [B, T-1], or [B] to give every token of a row the same; no gradient
    flows into them. ValueError for any other shape, and for kept values that are not finite.
    """
    if advantages.shape == logp.shape[:1]:
        advantages = advantages[:, None].expand_as(logp)
    if advantages.shape != logp.shape:
        per_token, per_row = list(logp.shape), list(logp.shape[:1])
        raise ValueError(f'advantages have shape {list(advantages.shape)}; '
                         f'allowed: {per_token} (one a token) or {per_row} (one a row)')
    loss = -masked_mean(keep_only(advantages.detach(), mask) * logp, mask)
    if not loss.isfinite():
        check_kept(mask, logp=logp, advantages=advantages)
    return loss


# %% [markdown]
# Two rows, five kept tokens. Row 0 has advantage 1 and row 1 has advantage −0.5, so each kept
# log-probability gets the gradient −A/5: −0.2 in the first row, 0.1 in the second. The dropped ones get
# exactly 0, including those whose log-probability is minus infinity.

# %%
chosen = torch.tensor([[0.5, 0.1, 0.5, 0.25], [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
logp = chosen.log().requires_grad_()  # [2, 4]
mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
loss = reinforce_loss(logp, torch.tensor([1.0, -0.5], dtype=torch.float64), mask)
by_hand = -(sum(logp[0, t].item() for t in (0, 2, 3)) - 0.5 * sum(logp[1, t].item() for t in (0, 1))) / 5
loss.backward()
print('loss', round(loss.item(), 4), ' by hand', round(by_hand, 4))
print((logp.grad + 0.0).round(decimals=4))

# %% [markdown]
# Does the loss estimate the gradient that we enumerated? Draw 20,000 episodes of the small problem, each by
# one uniform number against the cumulated probabilities. Every episode has two kept tokens, so the negative
# gradient of the token mean, times 2, should be the exact gradient up to sampling noise.

# %%
uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
drawn = torch.searchsorted(p.cumsum(0), uniform).clamp(max=7)  # [20000]
parameters = theta.clone().requires_grad_()
loss = reinforce_loss(token_log_probs(parameters, EPISODES[drawn]), reward[drawn], MASK.expand(20_000, 3))
(slope,) = torch.autograd.grad(loss, parameters)
print('exact  ', exact.numpy().round(2))
print('sampled', (-2 * slope).numpy().round(2))

# %% [markdown]
# ## Equal up to rounding
#
# Rewards and returns are sums, and two sums of the same terms may differ in the last digits. Sections 7.4, 8.3
# and 9.1 divide by the spread of such numbers, so they must know when there is none. How much rounding can do
# depends on the size of the numbers and on their type: at $10^7$ neighbours in double precision are
# $2 \cdot 10^{-9}$ apart, in single precision a whole unit. Numbers below 1 are taken as sums of terms of size
# 1, because 1 − 5 · 0.2 leaves a rounding error of the 1 and not of the 0. Whether they divide at all is a switch
# there; a text such as `'False'` would turn it on, so it is refused.

# %%
#@save
NO_SPREAD = 1e-9


def same_within(low, high, dtype, share=NO_SPREAD):
    """True where low <= high differ by no more than `share`, or 16 eps of dtype if that is more, of their size.

    The size is the larger of 1, |low| and |high|; dtype is the one in which the numbers were computed.
    """
    if dtype.is_floating_point:
        share = max(share, 16 * torch.finfo(dtype).eps)
    return high - low <= share * torch.maximum(low.abs(), high.abs()).clamp(min=1)


def check_switch(name, value):
    """ValueError unless value is True or False: the text 'False', say, counts as true."""
    if not isinstance(value, bool):
        raise ValueError(f'{name}={value!r} must be True or False')


# %%
for low, high, dtype in ((1 - 5 * 0.2, 1 - 0.2 - 0.2 - 0.2 - 0.2 - 0.2, torch.float64), (0.30, 0.35, torch.float64),
                         (1e7, 1e7 + 2e-9, torch.float64), (1e7, 1e7 + 1, torch.float32)):
    pair = (torch.tensor(x, dtype=torch.float64) for x in (low, high))
    print(f'{high - low:7.1e} at {high:8.1e} in {str(dtype)[6:]}:',
          'rounding' if same_within(*pair, dtype) else 'a difference')

# %% [markdown]
# ## The end of a call is an action
#
# The mark that closes a call looks like template, and a mask that drops it runs without complaint. But the
# policy sampled it: after every word it could have stopped or gone on. A toy: the policy stops with
# probability $q$ at each place and may write two tokens at most. The episodes are `E`, `w E` and `w w`; only
# one word followed by a stop earns reward, so $J = (1-q)\,q$. With $q = 0.2$ and $\theta$ the logit of $q$,
# the slope is $(1-2q)\,q(1-q) = 0.6 \cdot 0.16 = 0.096$.

# %%
is_end = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)  # E, w E, w w
present = torch.tensor([[1, 0], [1, 1], [1, 1]], dtype=torch.float64)
earned = torch.tensor([0, 1, 0], dtype=torch.float64)


def slope_of_end(logit, mask):
    """Expected estimator for the logit of the end token, by enumeration."""
    logit = logit.detach().requires_grad_()
    logp = F.logsigmoid(torch.where(is_end, logit, -logit))  # [3, 2]
    prob = torch.exp((logp * present).sum(1)).detach()  # [3]
    return torch.autograd.grad((prob * earned * (logp * mask).sum(1)).sum(), logit)[0]


start = torch.log(torch.tensor(0.2 / 0.8, dtype=torch.float64))
print('end token kept   ', round(slope_of_end(start, present).item(), 4))
print('end token dropped', round(slope_of_end(start, present * ~is_end).item(), 4))

# %% [markdown]
# The sign is wrong. The rewarded episode contains a word, which is reinforced, and a stop, which is not; so
# success itself teaches the policy not to stop. Follow both for a while, with step size 10. The first goes
# to the best $q$, 0.5; the second ends with calls that run into the length limit.

# %%
history = {}
for name, mask in (('kept', present), ('dropped', present * ~is_end)):
    logit, qs = start, []
    for _ in range(101):
        qs.append(round(torch.sigmoid(logit).item(), 3))
        logit = logit + 10 * slope_of_end(logit, mask)
    history[name] = qs
pd.DataFrame(history).iloc[[0, 1, 5, 10, 100]].rename_axis('step')

# %% [markdown]
# ## A baseline changes the noise, not the mean
#
# Subtract a number $b$ from every reward. The gradient stays what it was because
# $\mathbb{E}[\nabla \log \pi] = \nabla \sum \pi = \nabla 1 = 0$. What changes is the variance of a
# one-episode estimate (here summed over the three parameters). The mean reward is the usual choice; the best
# constant is $\mathbb{E}[R\,|g|^2] / \mathbb{E}[|g|^2]$ with $g$ the score (the baseline is Williams's,
# 1992; the optimum is derived by Greensmith et al. 2004). In the last column the same baselines with the
# mask off.

# %%
def mean_and_variance(baseline, mask):
    g = (reward - baseline)[:, None] * score(mask)  # [8, 3]
    mean = p @ g
    return mean, (p @ (g - mean) ** 2).sum().item()


size = (score(MASK) ** 2).sum(1)  # [8]
best = ((p * reward) @ size / (p @ size)).item()
baselines = {'none': 0.0, 'mean reward': expected_reward(theta).item(), 'best constant': best, 'bad': 2.0}
rows = []
for name, b in baselines.items():
    mean, variance = mean_and_variance(b, MASK)
    off, _ = mean_and_variance(b, torch.ones(3, dtype=torch.float64))
    rows.append([name, b, mean[1].item(), variance, off[1].item()])
columns = ['baseline', 'b', 'mean gradient (last)', 'variance', 'mean gradient (last), mask off']
pd.DataFrame(rows, columns=columns).round(4)

# %% [markdown]
# The mean gradient of the weight on the last token is the same in every row. With the mask off it moves with
# the baseline, because the environment's tokens were not drawn from the model and their scores do not
# average to zero: one more sign that the unmasked quantity is not the gradient of anything we asked for.

# %% [markdown]
# ## What was seen
#
# Summed over all eight episodes, the estimator on the policy's tokens equals the exact gradient; with the
# observation let in, its cosine with the exact one falls to 0.906 and one of three signs flips, and a
# prediction trained by that surplus settles at 0.333 where the truth is 0.1. Dropping the end-of-call token
# turned a slope of 0.096 into −0.032. A baseline left the mean alone and cut the variance from 0.509 to
# 0.3215 (mean reward) or 0.2771 (best constant); a bad one raised it to 4.0819.
#
# **Try it.** Set `theta[1] = -2.197`, which makes the model predict its environment exactly. The last column
# of the last table then stops moving with the baseline. Is it right, too? Put `theta[1]` back to 1 and make
# every reward 1: which row of the first gradient table is not zero, and why is it zero at −2.197?
