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
# # 8.1 Stop each token after a bounded step
#
# Sampling episodes is the expensive part, so we should like more than one update from each batch. After the
# first update, however, the batch was sampled by an *older* policy. PPO (Schulman et al. 2017) corrects for
# that with a probability ratio and takes away a token's gradient once its ratio has moved far enough in the
# direction that the advantage asks for. We work through the four cases by hand, find the places where the
# gradient is exactly zero, see what the clip does not prevent, and why the temperature belongs to the
# log-probability.
#
# **Time** 15 min. **Assumes** [6.2](../06_policy_gradient/06_2_loss_aggregation.ipynb). **Afterwards you
# can** say for any ratio and advantage whether the clipped loss has a gradient, and name what the clip does
# not bound.

# %%
#@save ppo
import torch

from agentrl.gradient import check_kept, keep_only, masked_mean

# %% [markdown]
# ## Four cases by hand
#
# For one token, with $r = \pi_\theta(a \mid h) / \pi_{\text{old}}(a \mid h)$ and advantage $A$, PPO
# maximises
#
# $$\min\big(r A,\ \operatorname{clip}(r,\, 1 - \epsilon,\, 1 + \epsilon)\, A\big).$$
#
# In plain `if`s: a token with positive advantage stops counting above $1 + \epsilon$, one with negative
# advantage below $1 - \epsilon$. On the other side nothing is cut: a token that moved the *wrong* way keeps
# its full gradient and can come back.

# %%
def surrogate_by_cases(ratio, advantage, clip):
    if advantage > 0 and ratio > 1 + clip:
        return (1 + clip) * advantage
    if advantage < 0 and ratio < 1 - clip:
        return (1 - clip) * advantage
    return ratio * advantage


for advantage in (1.0, -1.0):
    values = [round(surrogate_by_cases(ratio, advantage, 0.2), 3) for ratio in (0.5, 0.9, 1.0, 1.1, 1.5)]
    print(f'A = {advantage:+.0f}: ratio 0.5, 0.9, 1.0, 1.1, 1.5 ->', values)

# %% [markdown]
# ## The ratio
#
# The ratio is computed from two log-probabilities, one taken when the token was sampled and one now.
# Positions that are masked out hold padding and must not enter, whatever is there, since an infinity that is
# multiplied by zero afterwards leaves NaN in the gradient. A kept log-ratio is held between −20 and 20, so
# that the exponential stays finite; one that is not a number is refused, since its token
# would lose its gradient without a word. The bound departs from the paper in a single case, a token with *negative*
# advantage that has become $e^{20}$ times more likely: it gets no gradient here, and a run in which this
# happens has other worries.

# %%
#@save
MAX_LOG_RATIO = 20.0


# %%
#@save
def check_shapes(**arrays):
    """ValueError unless all of the named arrays have one shape [B, T-1]."""
    shapes = {name: list(x.shape) for name, x in arrays.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        raise ValueError(f'{", ".join(shapes)}: shapes {list(shapes.values())}; all must be [B, T-1]')


def probability_ratio(logp, old_logp, mask):
    """pi / pi_old [B, T-1], finite (log-ratio within ±MAX_LOG_RATIO); 1 without gradient where mask is 0.

    ValueError for shapes that differ, and for a kept log-ratio that is not a number.
    """
    check_shapes(logp=logp, old_logp=old_logp, mask=mask)
    log_ratio = keep_only(logp - old_logp.detach(), mask)
    if log_ratio.isnan().any():
        check_kept(mask, logp=logp, old_logp=old_logp)
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


# %% [markdown]
# From 0.2 to 0.3 is a ratio of 1.5, from 0.5 to 0.25 one of 0.5; the third position is dropped and counts as
# unchanged; the last goes from $10^{-300}$ to 1, a ratio of $10^{300}$ that is held at $e^{20}$.

# %%
old = torch.tensor([[0.2, 0.5, 0.0, 1e-300]], dtype=torch.float64).log()  # [1, 4]
new = torch.tensor([[0.3, 0.25, 0.7, 1.0]], dtype=torch.float64).log()
ratio = probability_ratio(new, old, torch.tensor([[1, 1, 0, 1]]))
print('ratio    ', [round(x, 3) for x in ratio[0, :3].tolist()], '...')
print('log-ratio', [round(x, 3) for x in ratio[0].log().tolist()])

# %% [markdown]
# ## The loss
#
# The loss takes *weights* in place of a mask: those of 6.2, computed once on the minibatch. So a training
# loop may hand over any rows of the minibatch and add up the gradients, and the choice of the mean stays in
# one place. Advantages and old log-probabilities are numbers here, not functions of the parameters, and are
# detached. All four arrays must have the same shape: an advantage a row has to be spread over its tokens
# first.

# %%
#@save
def check_clip(clip):
    """ValueError unless clip is a number above 0 (infinity: no clip)."""
    if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0:
        raise ValueError(f'clip={clip!r} must be > 0; use float("inf") for no clip')


# %%
#@save
def clipped_loss(logp, old_logp, advantages, weights, clip=0.2):
    """PPO's clipped loss (Schulman et al. 2017): -(weights * min(r A, clip(r, 1-clip, 1+clip) A)).sum().

    All arrays [B, T-1]; weights from loss_weights of the whole minibatch, in the rows at hand; a position of
    weight 0 is ignored, whatever the others hold there. ValueError for shapes that differ, a clip not above 0,
    and kept values that are not finite.
    """
    check_shapes(logp=logp, old_logp=old_logp, advantages=advantages, weights=weights)
    check_clip(clip)
    ratio = probability_ratio(logp, old_logp, weights)
    kept = keep_only(advantages, weights).detach()
    loss = -(weights * torch.minimum(ratio * kept, ratio.clamp(1 - clip, 1 + clip) * kept)).sum()
    if not loss.isfinite():
        check_kept(weights, advantages=advantages, weights=weights)
    return loss


# %% [markdown]
# Where is the gradient zero? Differentiate with respect to the log-probability; away from the clip it is
# $-rA$, the loss having the opposite sign. The two cells on the far side, and only they, are exactly zero.

# %%
import pandas as pd

from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.gradient import reinforce_loss

ratios = torch.tensor([0.5, 0.9, 1.0, 1.1, 1.5], dtype=torch.float64)
table = {}
for advantage in (1.0, -1.0):
    logp = ratios.log()[None].requires_grad_()  # [1, 5], old log-probabilities 0
    ones = torch.ones_like(logp)
    clipped_loss(logp, torch.zeros_like(logp), advantage * ones, ones).backward()
    table[f'A = {advantage:+.0f}'] = (logp.grad[0] + 0.0).numpy().round(3)
pd.DataFrame(table, index=pd.Index(ratios.tolist(), name='ratio')).T

# %% [markdown]
# On a random batch, with all three means, the vectorised loss agrees with the cases in a double loop, and
# the losses of single rows add up to the loss of the batch.

# %%
generator = torch.Generator().manual_seed(0)
shape = (6, 5)
logp, old_logp, advantages = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
mask = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.6
for mode in AGGREGATIONS:
    w = loss_weights(mask, mode)
    loop = 0.0
    for b, t in mask.nonzero().tolist():
        ratio, advantage = (logp[b, t] - old_logp[b, t]).exp().item(), advantages[b, t].item()
        loop -= w[b, t].item() * surrogate_by_cases(ratio, advantage, 0.2)
    loss = clipped_loss(logp, old_logp, advantages, w).item()
    by_row = sum(clipped_loss(logp[[b]], old_logp[[b]], advantages[[b]], w[[b]]).item() for b in range(6))
    print(f'{mode:20} {loss:7.4f}  loop {loop:7.4f}  rows {by_row:7.4f}  '
          f'agree {max(abs(loss - loop), abs(loss - by_row)) < 1e-12}')

# %% [markdown]
# ## The first update is REINFORCE
#
# Before any update the old policy is the current one, all ratios are 1, and
# $\nabla r = r \nabla \log \pi = \nabla \log \pi$. The gradient is that of 6.1, clip or no clip; with a
# single update a batch, PPO's clip never acts. The *value* of the loss is another: it is minus the mean
# advantage, and says nothing about learning.

# %%
logits = torch.randn(6, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
chosen = torch.randint(4, (6, 5, 1), generator=generator)
logp = torch.log_softmax(logits, -1).gather(-1, chosen)[..., 0]  # [6, 5]
ppo = clipped_loss(logp, logp.detach(), advantages, loss_weights(mask, 'token_mean'))
plain = reinforce_loss(logp, advantages, mask)
g_ppo, g_plain = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ppo, plain))
print('gradients differ by less than 1e-12:', ((g_ppo - g_plain).abs().max() < 1e-12).item())
print('values:', round(ppo.item(), 4), 'and', round(plain.item(), 4))
print('minus the mean advantage:', round(-masked_mean(advantages, mask).item(), 4))

# %% [markdown]
# ## Where the clip bites
#
# A useful number in a training log is the share of tokens whose gradient the clip took away. Counting every
# ratio outside $[1-\epsilon, 1+\epsilon]$, as is often done, counts tokens that moved the wrong way and
# still train. Ours counts the bites. Of the four tokens below three are out of range, and one is clipped.

# %%
#@save
def clip_fraction(logp, old_logp, advantages, mask, clip=0.2):
    """Share of the kept tokens [B, T-1] whose gradient the clip sets to zero: a scalar without gradient.

    0 where nothing is kept. ValueError as in clipped_loss.
    """
    check_shapes(logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    check_clip(clip)
    if not keep_only(advantages, mask).sum().isfinite():
        check_kept(mask, advantages=advantages)
    ratio = probability_ratio(logp, old_logp, mask).detach()
    up = (advantages > 0) & (ratio > 1 + clip)
    down = (advantages < 0) & (ratio < 1 - clip)
    return masked_mean((up | down).to(torch.float64), mask)


# %%
ratio = torch.tensor([[1.5, 1.5, 1.1, 0.5]], dtype=torch.float64)
signs = torch.tensor([[1.0, -1.0, 1.0, 1.0]], dtype=torch.float64)
all_kept = torch.ones_like(ratio)
print('bites      ', clip_fraction(ratio.log(), torch.zeros_like(ratio), signs, all_kept).item())
print('out of range', masked_mean(((ratio - 1).abs() > 0.2).double(), all_kept).item())

# %% [markdown]
# ## The picture
#
# Both objectives as functions of the ratio. The thick part has slope zero: there the token has done enough.

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
grid = [i / 40 for i in range(81)]
curves = {sign: [surrogate_by_cases(r, sign, 0.2) for r in grid] for sign in (1, -1)}
fig, ax = plt.subplots()
styles = ((1, SPARE_COLORS[0], (1.2, 2), (1.22, 0.9)), (-1, SPARE_COLORS[1], (0, 0.8), (0.02, -1.15)))
for sign, colour, flat, label in styles:
    ax.plot([0, 2], [0, 2 * sign], color=colour, linewidth=1, linestyle=':')
    ax.plot(grid, curves[sign], color=colour)
    ax.plot(flat, [(1 + 0.2 * sign) * sign] * 2, color=colour, linewidth=5)
    ax.text(*label, f'A = {sign:+d}: no gradient here'.replace('-', '−'), color=colour)
ax.text(1.5, 1.72, 'without the clip', ha='right', color='#333333', fontsize='small')
ax.set(xlabel='ratio of new to old probability', ylabel='objective for one token', xlim=(0, 2),
       xticks=(0, 0.5, 0.8, 1, 1.2, 1.5, 2))
table = pd.DataFrame({'ratio': grid, 'A = +1': curves[1], 'A = -1': curves[-1]})
save_figure(fig, '08_1_clipped_objective', table)

# %% [markdown]
# ## What the clip does not do
#
# It is no fence around the policy. It removes the gradient of a token *after* the token has crossed the
# line, it does not undo the step that crossed, and other tokens that share the parameters go on pushing. A
# policy of three actions shows it: uniform at first, action 0 was taken, its advantage is 1, and we update
# on this one sample again and again.

# %%
def ratios_on_one_sample(optimiser, clip, steps=12):
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    old = torch.log_softmax(logits, 0)[None, :1].detach()  # [1, 1]
    opt, one, path = optimiser([logits]), torch.ones_like(old), []
    for _ in range(steps + 1):
        logp = torch.log_softmax(logits, 0)[None, :1]  # [1, 1]
        path.append(round((logp - old).exp().item(), 3))
        opt.zero_grad()
        clipped_loss(logp, old, one, one, clip).backward()
        opt.step()
    return path


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def adam(params):
    return torch.optim.Adam(params, lr=0.03, eps=1e-5)


paths = {'SGD, no clip': ratios_on_one_sample(sgd, 1e9), 'SGD, clip 0.2': ratios_on_one_sample(sgd, 0.2),
         'Adam, clip 0.2': ratios_on_one_sample(adam, 0.2)}
pd.DataFrame(paths).rename_axis('step').iloc[::2].T

# %% [markdown]
# Without the clip the ratio climbs on. With SGD and the clip it stops at the first value beyond 1.2. With
# Adam it does not even stop: the gradient is zero, but the optimiser's running mean of earlier gradients is
# not, and it keeps moving the token. A few updates a batch, a small step and a bound on the gradient's norm
# do the rest of the work.
#
# ## The temperature is part of the policy
#
# The ratio compares two descriptions of one token, so both must describe the distribution that was sampled
# from. If sampling divides the logits by a temperature, scoring has to do the same. Leave it out, and the
# ratios are wrong before the first update; some tokens are clipped although nobody has moved.

# %%
z = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
tau = 0.5
sampled = torch.log_softmax(z / tau, 0)[None]  # [1, 3], what the sampler stores
positive, kept = torch.ones_like(sampled), torch.ones_like(sampled)
rows = []
for temperature in (1.0, tau):
    scored = torch.log_softmax(z / temperature, 0)[None]
    bites = clip_fraction(scored, sampled, positive, kept).item()
    rows.append([temperature, *(scored - sampled).exp()[0].tolist(), bites])
columns = ['scored at', 'ratio of token 0', 'of token 1', 'of token 2', 'clip fraction, A = 1']
pd.DataFrame(rows, columns=columns).round(3)

# %% [markdown]
# ## Padding may hold anything
#
# A last check on the promise about dropped positions. They get infinities, NaN and a log-probability of
# 5000; loss and gradient must not notice.

# %%
logp = torch.tensor([[-1.0, -0.5, -torch.inf, 5000.0], [-0.2, torch.nan, -torch.inf, torch.inf]],
                    dtype=torch.float64, requires_grad=True)  # [2, 4]
old_logp = torch.tensor([[-1.1, -0.5, -torch.inf, 0.0], [-0.3, 0.0, 0.0, -torch.inf]], dtype=torch.float64)
advantages = torch.tensor([[1.0, 1.0, torch.nan, 1.0], [-1.0, -1.0, torch.inf, 1.0]], dtype=torch.float64)
mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
loss = clipped_loss(logp, old_logp, advantages, loss_weights(mask, 'token_mean'))
loss.backward()
print('loss', round(loss.item(), 4))
print((logp.grad + 0.0).round(decimals=4))

# %% [markdown]
# ## What was seen
#
# In a grid of five ratios and two signs the gradient is exactly zero in two cells: ratio 1.5 with A = +1 and
# ratio 0.5 with A = −1. At ratio 1 it is REINFORCE's. On one sample, twelve updates without the clip took
# the ratio to 1.942; with the clip SGD stopped at 1.216 and Adam went on to 1.399. Scored at the wrong
# temperature, the ratios were 0.767, 2.086 and 5.671 before any update, and two of three tokens were
# clipped.
#
# **Try it.** Change `clip` to 0.1 in the one-sample experiment: how far past the line do SGD and Adam get?
# Then set `tau = 2`: on which side of 1 do the wrong ratios lie now?
