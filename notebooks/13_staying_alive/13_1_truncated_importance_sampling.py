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
# # 13.1 Weigh old samples, and do not lift the small weights
#
# A large run keeps two copies of its policy: a fast one that samples and the one that is trained. They are
# never quite equal, since the sampling copy is some updates old and its arithmetic is another. Importance
# sampling repairs the difference by a weight on each token. A public run of a very large agent collapsed twice
# with a harmless-looking departure, *no weight below 0.5*, and lived on without it. Here are the weights, the
# quantities to watch, and a softmax of twelve actions in which the whole matter can be computed exactly.
# [Section 13.1.2](13_1_what_the_lower_clip_does.ipynb) then does it to the agent of this book.
#
# **Time** 20 min. **Assumes** [8.1](../08_ppo/08_1_clipped_update.ipynb). **Afterwards you can** compute
# weights with and without a floor, and say what each does to a token that the policy has given up.

# %%
#@save tis
import math

import torch

from agentrl.gradient import check_kept, keep_only, masked_mean
from agentrl.ppo import check_shapes

# %% [markdown]
# ## What the weight is for
#
# The gradient that we want is an expectation over the policy $\pi$ that is being trained. The samples come from
# the rollout policy $\mu$. Multiplying each token by
#
# $$r = \frac{\pi_{\text{train}}(a \mid h)}{\mu_{\text{rollout}}(a \mid h)}$$
#
# turns one expectation into the other. This is *not* the ratio of section 8.1: PPO's compares the policy after
# an update with the policy before it, while $r$ compares the policy before the update with whoever sampled. So
# PPO's clip never sees $r$. The weight is a number, without gradient, and multiplies the clipped loss.

# %%
#@save
def importance_ratio(log_ratio, mask):
    """r = exp(train - rollout log-probability) [B, T-1], detached; 0 where mask is not set.

    A log-ratio that is not a number, where mask is set, raises ValueError.
    """
    kept = keep_only(log_ratio.detach(), mask)
    if kept.isnan().any():
        row, column = kept.isnan().nonzero()[0].tolist()
        raise ValueError(f'the log-ratio in row {row}, column {column} is not a number; both policies must '
                         'give a log-probability for every token that the mask keeps')
    return keep_only(kept.exp(), mask)

# %%
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import to_rgb

from agentrl.plotting import arm_color, save_figure, save_table, spread_labels, use_style

train = torch.tensor([[0.30, 0.98, 0.02, 1e-13, 0.5]], dtype=torch.float64)          # [1, 5]
rollout = torch.tensor([[0.30, 0.49, 0.04, 0.98, 0.5]], dtype=torch.float64)
mask = torch.tensor([[1, 1, 1, 1, 0]])
log_ratio = (train / rollout).log()
print('log-ratio', [round(x, 3) for x in log_ratio[0].tolist()])
print('ratio    ', [float(f'{r:.4g}') for r in importance_ratio(log_ratio, mask)[0].tolist()])

# %% [markdown]
# The fourth token is of the kind that matters here: the sampling copy was almost certain of it, 0.98, and the
# trained copy has come to find it impossible. Its weight is $10^{-13}$. It says: a policy that never writes
# this token has nothing to learn from it.
#
# ## Truncated importance sampling, and a floor
#
# A ratio has no upper bound, and one token with a weight of 100 drowns a batch. *Truncated* importance sampling
# (Ionides 2008; for language models Yao et al. 2025) takes $w = \min(r, C)$, some bias for much less variance;
# here $C = 2$. Nothing is gained by cutting from below, since small weights add no variance. Yet a clip is
# easily written with two ends, and the public run's was, at 0.5 and 2.

# %%
#@save
def clipped_weights(log_ratio, mask, low=0.0, high=2.0):
    """w = clamp(r, low, high) [B, T-1], 0 where mask is not set; low=0 is truncated IS (Ionides 2008)."""
    check_band(low, high)
    return keep_only(importance_ratio(log_ratio, mask).clamp(low, high), mask)


def check_band(low, high):
    """ValueError unless 0 <= low <= 1 <= high: a weight of 1 must be possible where policies agree."""
    if not 0 <= low <= 1 <= high:
        raise ValueError(f'low={low}, high={high}: allowed is 0 <= low <= 1 <= high')

# %%
def weights_by_cases(log_ratio, mask, low, high):
    """One token at a time."""
    rows = []
    for x_row, mask_row in zip(log_ratio.tolist(), mask.tolist(), strict=True):
        ratios = [math.exp(x) for x in x_row]
        rows.append([(low if r < low else high if r > high else r) if keep else 0.0
                     for r, keep in zip(ratios, mask_row, strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


rng = torch.Generator().manual_seed(0)
x = 3 * torch.randn(6, 8, generator=rng, dtype=torch.float64)                        # [B, T-1]
keep = torch.rand(6, 8, generator=rng) < 0.7
for low in (0.0, 0.5):
    agree = torch.allclose(clipped_weights(x, keep, low), weights_by_cases(x, keep, low, 2.0))
    print(f'low {low}: the cases agree: {agree}; four tokens',
          [float(f'{w:.3g}') for w in clipped_weights(log_ratio, mask, low)[0, :4].tolist()])

# %% [markdown]
# The fourth weight has gone from $10^{-13}$ to 0.5, and with it a gradient appears where importance sampling
# says that there is none. Two more rules will be of use. *IcePop* (Ling Team 2025) drops a token whose ratio
# lies outside the band instead of clipping it. And to find out which half of the floor does the harm,
# `floored_where` applies it to some tokens only: those with a negative advantage, or those with a positive
# one.

# %%
#@save
def icepop_weights(log_ratio, mask, low=0.5, high=2.0):
    """w = r where low <= r <= high, else 0: [B, T-1] (IcePop, Ling Team 2025)."""
    check_band(low, high)
    ratio = importance_ratio(log_ratio, mask)
    return keep_only(ratio, (ratio >= low) & (ratio <= high))


def floored_where(log_ratio, mask, where, low=0.5, high=2.0):
    """Weights with the lower clip only at the positions set in `where` [B, T-1]; min(r, high) elsewhere."""
    return torch.where(where, clipped_weights(log_ratio, mask, low, high),
                       clipped_weights(log_ratio, mask, 0.0, high))

# %%
advantage = torch.tensor([[-1.0, -1.0, 1.0, -1.0, 1.0]], dtype=torch.float64)
rules = {'low 0.5': clipped_weights(log_ratio, mask, low=0.5), 'low 0': clipped_weights(log_ratio, mask),
         'IcePop': icepop_weights(log_ratio, mask),
         'floor where A < 0': floored_where(log_ratio, mask, advantage < 0),
         'floor where A > 0': floored_where(log_ratio, mask, advantage > 0)}
tokens = [f'r = {float(f"{r:.2g}")}, A = {a:+.0f}'
          for r, a in zip(importance_ratio(log_ratio, mask)[0, :4].tolist(), advantage[0].tolist())]
pd.DataFrame({name: [f'{w:.2g}' for w in weights[0, :4].tolist()] for name, weights in rules.items()},
             index=tokens).T

# %% [markdown]
# ## A ratio for a token or for a sequence
#
# The ratio that is exact for a whole sequence is the product over its tokens, the *summed* log-ratio. Small
# differences add up, so some take the geometric mean instead, the *averaged* log-ratio, which is no importance
# ratio of anything but stays tame. The two are often confused under the name "sequence level". Both are given
# as log-ratios, so that any of the rules above can follow. Take a difference of 0.012 a token, over 100 tokens:

# %%
#@save
def averaged_log_ratio(log_ratio, mask):
    """Each token gets its row's mean log-ratio (the ratio's geometric mean): [B, T-1], 0 outside the mask."""
    total = keep_only(log_ratio, mask).sum(1, keepdim=True)                       # [B, 1]
    mean = total / mask.bool().sum(1, keepdim=True).clamp(min=1)
    return keep_only(mean.expand(mask.shape), mask)


def summed_log_ratio(log_ratio, mask):
    """Each token gets its row's summed log-ratio (the ratio of whole sequences): [B, T-1], 0 outside."""
    total = keep_only(log_ratio, mask).sum(1, keepdim=True)                       # [B, 1]
    return keep_only(total.expand(mask.shape), mask)

# %%
small, hundred = torch.full((1, 100), 0.012, dtype=torch.float64), torch.ones(1, 100)
for name, one_a_row in (('a token', small), ('summed', summed_log_ratio(small, hundred)),
                        ('averaged', averaged_log_ratio(small, hundred))):
    r, w = importance_ratio(one_a_row, hundred)[0, 0].item(), clipped_weights(one_a_row, hundred)[0, 0].item()
    print(f'{name:8} ratio {r:.3f}, weight {w:.3f}')

# %% [markdown]
# ## What to watch
#
# Runs of this kind log a *train–rollout KL*: with $x = \log r$, the mean of $e^x - 1 - x$ over the sampled
# tokens (the estimator k3 of Schulman 2020). It is never negative and its mean is
# $\mathrm{KL}(\mu \,\|\, \pi)$ exactly; $x$ is held within ±20. For a token that has become impossible it
# grows only like $-x$: the fourth token, with a ratio of $10^{-13}$, adds no more than 29.

# %%
#@save
MAX_KL_LOG_RATIO = 20.0


def kl_terms(log_ratio, mask):
    """e^x - 1 - x of the log-ratio x [B, T-1], x within +-MAX_KL_LOG_RATIO (k3, Schulman 2020), 0 outside.

    Over tokens that the rollout policy sampled their mean estimates KL(rollout || train).
    """
    check_kept(mask, log_ratio=log_ratio)
    x = keep_only(log_ratio.detach(), mask).clamp(-MAX_KL_LOG_RATIO, MAX_KL_LOG_RATIO)
    return x.expm1() - x


def effective_sample_size(weights, mask):
    """(sum w)^2 / (n sum w^2) over the n kept tokens (Kong 1992): 1 if all are equal, nan if all are 0."""
    check_kept(mask, weights=weights)
    if (keep_only(weights, mask) < 0).any():
        raise ValueError(f'weights go down to {keep_only(weights, mask).min().item()}; allowed: 0 or more')
    kept = keep_only(weights, mask)
    return kept.sum() ** 2 / (mask.bool().sum() * (kept ** 2).sum())

# %%
print('terms', [round(v, 3) for v in kl_terms(log_ratio, mask)[0].tolist()])
p, q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
estimate = (p * kl_terms((q / p).log()[None], torch.ones(1, 3))[0]).sum()
print(f'expected under the sampler {estimate:.6f}, KL(p || q) {(p * (p / q).log()).sum():.6f}')
for weights in ([1.0, 1.0, 1.0, 1.0], [2.0, 0.1, 0.1, 0.1]):
    w = torch.tensor([weights], dtype=torch.float64)
    print('weights', weights, f'effective sample size {effective_sample_size(w, torch.ones(1, 4)):.3f}')

# %% [markdown]
# (The fourth term is held at 19, by $x \ge -20$.) Means hide what a few tokens do, so the other metrics ask
# about the tokens with $r < 0.5$: how many they are, how small the smallest ratio is, and what they *carry*:
# their share of $\sum |wA|$, and the norm of their gradient against that of the whole.

# %%
#@save
def ratio_metrics(log_ratio, weights, advantages, mask, low=0.5, high=2.0):
    """What the ratios of a batch look like, as floats; all arrays [B, T-1].

    kl: mean of kl_terms. below, above: shares of tokens with r < low, r > high. min_log_ratio. ess: effective
    sample size of the weights. signal_below: share of sum |w A| on tokens with r < low, nan if it is all 0.
    ValueError if nothing is kept, for shapes that differ, and for kept numbers that are not finite.
    """
    check_shapes(log_ratio=log_ratio, weights=weights, advantages=advantages, mask=mask)
    if not mask.bool().any():
        raise ValueError('mask keeps nothing; ratio metrics need one kept token or more')
    check_band(low, high)
    check_kept(mask, log_ratio=log_ratio, weights=weights, advantages=advantages)
    ratio, signal = importance_ratio(log_ratio, mask), keep_only((weights * advantages).abs(), mask)
    below = mask.bool() & (ratio < low)
    return {
        'kl': masked_mean(kl_terms(log_ratio, mask), mask).item(),
        'below': masked_mean(below.double(), mask).item(),
        'above': masked_mean((ratio > high).double(), mask).item(),
        'min_log_ratio': log_ratio[mask.bool()].min().item(),
        'ess': effective_sample_size(weights, mask).item(),
        'signal_below': (signal[below].sum() / signal.sum()).item(),
    }

# %%
on_four = {name: ratio_metrics(log_ratio, weights, advantage, mask)
           for name, weights in rules.items() if name in ('low 0.5', 'low 0')}
pd.DataFrame(on_four).round(3)

# %%
#@save
def gradient_share(logp, coefficients, below, parameters):
    """Norm of the gradient of (coefficients * logp).sum() over `below` only, against that of the whole.

    logp [B, T-1] with its graph, which is kept; coefficients, below [B, T-1]; nan if the whole is 0. It is a
    ratio of norms: over 1 where the rest pulls the other way.
    """
    def norm(values):
        gradients = torch.autograd.grad((values * logp).sum(), parameters, retain_graph=True)
        return torch.stack([gradient.norm() for gradient in gradients]).norm().item()

    whole = norm(coefficients)
    if whole == 0:
        return float('nan')
    return norm(keep_only(coefficients, below)) / whole if below.any() else 0.0

# %%
z = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
logp = torch.stack([z[0], z[1]])[None]                                               # [1, 2]
pull, low_one = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([[True, False]])
print('3 against hypot(3, 4):', round(gradient_share(logp, pull, low_one, [z]), 3))

# %% [markdown]
# ## Twelve actions, exactly
#
# Now the mechanism alone. A softmax over twelve actions; the sampler, fixed, takes action 0 with $\mu_0 =
# 0.98$; action 0 is bad, $A_0 = -1$, and nothing else has an advantage. We follow the *expected* gradient
# under $\mu$, so there is no noise, with SGD and a step of 1: $z \leftarrow z + \mu_0\, w(r)\, A_0\, (e_0 -
# p)$. Let
# $x = \log r$ for action 0 and $c = \mu_0 \cdot 12/11$. Once $p_0$ is small:
#
# | rule | motion of $x$ | end |
# |---|---|---|
# | no weight | $\dot x = -c$ | falls for ever |
# | low 0.5 | $\dot x = -c/2$ | falls for ever, half as fast |
# | low 0 | $\dot x = -c\,e^x$ | $x \approx -\log(ct)$: the gradient dies with the ratio |
# | IcePop | $\dot x = 0$ below $\log 0.5$ | stops at the first ratio under 0.5 |

# %%
#@save
TOY_RULES = {
    'no weight': lambda r: 1.0,
    'low 0.5': lambda r: min(max(r, 0.5), 2.0),
    'low 0': lambda r: min(r, 2.0),
    'IcePop': lambda r: r if 0.5 <= r <= 2.0 else 0.0,
}


def run_toy(rule, advantage=-1.0, start=0.0, steps=200, mu=0.98, n_actions=12, lr=1.0):
    """Log-ratio x of action 0 before each step, and after the last [steps + 1]; gradient norm a step [steps].

    Behaviour: mu on action 0, the rest even; the learner's first log-ratio is `start`. Only action 0 has an
    advantage. A step follows the expected gradient exactly: z <- z + lr mu w(r) A (e0 - p).
    """
    p = torch.full((n_actions,), (1 - mu * math.exp(start)) / (n_actions - 1), dtype=torch.float64)
    p[0] = mu * math.exp(start)
    z, e0 = p.log(), torch.eye(n_actions, dtype=torch.float64)[0]
    xs, norms = [start], []
    for _ in range(steps):
        gradient = mu * TOY_RULES[rule](math.exp(xs[-1])) * advantage * (e0 - z.softmax(0))
        z = z + lr * gradient
        xs.append(z.log_softmax(0)[0].item() - math.log(mu))
        norms.append(gradient.norm().item())
    return torch.tensor(xs, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)

# %%
runs = {rule: run_toy(rule) for rule in TOY_RULES}
c = 0.98 * 12 / 11
toy = pd.DataFrame([
    {'rule': rule, 'x at step 200': x[-1].item(), 'slope of the last 50': (x[-1] - x[-51]).item() / 50,
     'slope by formula': {'no weight': -c, 'low 0.5': -c / 2, 'low 0': -math.log(200 / 150) / 50, 'IcePop': 0.0}[rule],
     'gradient norm': norms[-1].item()} for rule, (x, norms) in runs.items()])
save_table(toy, '13_1_toy')
toy.round(4)

# %% [markdown]
# (The formula of low 0 is that of the end. While $p_0$ is still near 1 little moves, some sixty steps
# are lost, and at step 200 its slope is still −0.0087 instead of −0.0058.)
#
# The floor is not a small correction. It differs from having *no weight at all* only in that everything takes
# twice as long, and after 200 steps it has pushed a token, on which both policies should long have agreed to be
# silent, down by a factor of $e^{77}$. The logits move as far, and in a network they belong to shared weights.
#
# ## The other side of the coin
#
# A weight that goes out with the ratio goes out for good news, too. Let action 0 be *good*, $A_0 = +1$, and let
# the trained policy have lost it: $x = -10$. How many steps until the ratio is back above 0.5?

# %%
repairs = {rule: run_toy(rule, advantage=1.0, start=-10.0, steps=1000)[0] for rule in TOY_RULES}
log_half = math.log(0.5)
back = pd.DataFrame([
    {'rule': rule, 'steps until r > 0.5': str(int((x > log_half).nonzero()[0])) if (x > log_half).any()
     else 'over 1000', 'x at step 1000': x[-1].item()} for rule, x in repairs.items()])
save_table(back, '13_1_repair')
back.round(3)

# %% [markdown]
# Low 0 needs over 1000 steps and IcePop never comes back. Importance sampling is right about this as well: an
# action that the policy does not take any more cannot teach it anything, so long as $\mu$ does not change. In a
# real run it changes, the sampler soon is the policy that lost the action, and what is lost must be found again
# by sampling. To stop the push is also to stop the repair.

# %%
def draw_toy(ax, curves, title):
    """x against the step, a line a rule."""
    for rule, x in curves.items():
        ax.plot(x, color=arm_color(rule))
        ax.annotate(rule, (len(x) - 1, x[-1]), xytext=(6, 0), textcoords='offset points', va='center',
                    fontsize='small', color=[0.65 * part for part in to_rgb(arm_color(rule))], label='line end')
    ax.axhline(log_half, color='#888888', linewidth=0.8)
    ax.set(xlabel='step', title=title, xlim=(0, len(x) - 1))
    spread_labels(ax)


use_style(dashes=True)
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6))
draw_toy(axes[0], {rule: x.numpy() for rule, (x, _) in runs.items()}, 'a bad action, from agreement')
draw_toy(axes[1], {rule: x[:41].numpy() for rule, x in repairs.items()}, 'a good action, lost')
axes[0].set_ylabel('x = log(train / rollout), nats')
fig.suptitle('Figure 13.1a  The log-ratio of action 0 under four rules (thin: a ratio of 0.5)')
drawn = [{'question': question, 'rule': rule, 'step': n, 'x': value}
         for question, curves in (('bad action', {rule: x for rule, (x, _) in runs.items()}),
                                  ('lost good action', {rule: x[:41] for rule, x in repairs.items()}))
         for rule, x in curves.items() for n, value in enumerate(x.tolist())]
save_figure(fig, '13_1_twelve_actions', pd.DataFrame(drawn))

# %% [markdown]
# ## What was seen
#
# A token that the trained policy gave up weighs nothing under truncated importance sampling and 0.5 under a
# lower clip of 0.5. In the exact toy this means a log-ratio of −77.2269 after 200 steps instead of −5.0103,
# with a gradient norm that is still 0.5118 instead of 0.0068; without any weight it is −158.8552, and IcePop
# stops at −0.7738. The reverse holds for repairs: 10 steps without a weight, 21 with the floor, over 1000
# with low 0, never with IcePop. And a log-ratio of 0.012 a token is a ratio of 3.320 for a sequence of 100
# tokens when summed, 1.012 when averaged.
#
# The weights follow the public pull request 2588 of radixark/miles and the report on it, which set the lower
# clip from 0.5 to 0 and kept the upper one at 2.
#
# **Try it.** Give the toy a less certain sampler, `mu` of 0.5, or start it at $x = -2$. Then ask at which
# lower clip between 0 and 0.5 the toy stops running away, and why there is none.
