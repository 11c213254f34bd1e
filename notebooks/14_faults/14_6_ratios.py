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
# # 14.6 Say which ratio you mean
#
# An importance weight repairs the difference between the policy that sampled and the one that is trained.
# It is a product of token ratios, and there lies its difficulty: a product of a hundred numbers that are
# nearly 1 need not be nearly 1. Two exhibits: a weight whose name does not say whether logarithms were
# added or averaged, and a clip which makes a gradient where importance sampling says that there is none.
# 13.1 measures the second in training; here are the arithmetic and the checks.
#
# **Time** 10 min. **Assumes** [8.1](../08_ppo/08_1_clipped_update.ipynb), [14.1](14_1_masks.ipynb).
# **Afterwards you can** tell a mean from a sum of log-ratios in a dump, and predict under which clip a dead
# token keeps its gradient.

# %%
#@save ratio_faults
from agentrl.gradient import keep_only
from agentrl.mask_faults import Finding, first_place

# %% [markdown]
# ## Exhibit: two weights under one name
#
# **Symptom.** With a sequence-level correction the mean weight is far from 1 although engine and trainer
# agree to two digits a token, and long episodes hardly train. **Reported** in TRL, issue 5814, as a fault:
# a sum of log-ratios where a mean was expected. The maintainers answered that the sum is the true ratio of
# the two sequence probabilities and the mean another object (GSPO's, Zheng et al. 2025), so nothing is
# wrong with either, but they must not be taken for each other. We side with the answer: name it.

# %%
#@save
SEQUENCE_RATIOS = {
    'sum': lambda log_ratio, mask: keep_only(log_ratio, mask).sum(1).exp(),
    'mean': lambda log_ratio, mask: (
        keep_only(log_ratio, mask).sum(1) / mask.bool().sum(1).clamp(min=1)
    ).exp(),
}

# %%
import pandas as pd
import torch

table = {}
for n in (1, 10, 100, 1000):
    gap = torch.full((1, n), 0.012, dtype=torch.float64)  # nats a token
    table[n] = {kind: ratio(gap, gap > 0).item() for kind, ratio in SEQUENCE_RATIOS.items()}
pd.DataFrame(table).rename_axis('log-ratios', axis=0).rename_axis('tokens', axis=1).round(3)

# %% [markdown]
# A gap of 0.012 nats a token between engine and trainer, the figure of a run in TRL's issue 4772, makes
# 1.012 averaged for every length, and 3.32 summed over 100 tokens. A cap of 2 or 3 cuts the sum of *all*
# long episodes and never touches the mean. What the choice does to a batch: log-ratios without any bias,
# 0.05 of noise a token, and the effective share of the samples, $(\sum w)^2 / (n \sum w^2)$.

# %%
rng = torch.Generator().manual_seed(0)
rows = []
for n in (10, 100, 1000):
    noise = 0.05 * torch.randn(2000, n, generator=rng, dtype=torch.float64)
    for kind, ratio in SEQUENCE_RATIOS.items():
        w = ratio(noise, torch.ones_like(noise))
        rows.append([
            n,
            kind,
            w.median().item(),
            w.quantile(0.99).item(),
            (w.sum() ** 2 / (len(w) * (w**2).sum())).item(),
        ])
pd.DataFrame(rows, columns=['tokens', 'log-ratios', 'median w', '99% of w below', 'effective share']).round(2)

# %% [markdown]
# **The check** takes the weights that your trainer used and the kind that you believe in, and says if they
# are the other one. A cap is allowed for.


# %%
#@save
def check_sequence_ratio(
    sequence_weights, sequence_kind, train_logp, logp, action_mask, weight_cap=float('inf')
):
    """Weights [B] are the ratio that sequence_kind, 'sum' or 'mean', names, or a Finding."""
    if sequence_kind not in SEQUENCE_RATIOS:
        raise ValueError(
            f'sequence_kind={sequence_kind!r} is not known; choose one of {", ".join(SEQUENCE_RATIOS)}'
        )
    used = action_mask.bool().any(1)
    wrong = {}
    for kind, ratio in SEQUENCE_RATIOS.items():
        should = ratio(train_logp - logp, action_mask).clamp(max=weight_cap)
        wrong[kind] = used & ((sequence_weights - should).abs() > 1e-3 * should.clamp(min=1.0))
    if not wrong[sequence_kind].any():
        return None
    other = next(kind for kind in SEQUENCE_RATIOS if kind != sequence_kind)
    row = first_place(wrong[sequence_kind])['row']
    match = 'a ' + other + ' of log-ratios' if not wrong[other].any() else 'neither a sum nor a mean'
    return Finding(
        'sequence weights of another kind',
        f'called {sequence_kind}, they are {match}; the first that differs is '
        f'{sequence_weights[row]:.4g} for {int(action_mask[row].bool().sum())} tokens',
        row,
    )


# %%
mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
engine, trainer = (keep_only(-torch.rand(2, 4, generator=rng, dtype=torch.float64), mask) for _ in range(2))
weights = {kind: ratio(trainer - engine, mask) for kind, ratio in SEQUENCE_RATIOS.items()}
for kind in SEQUENCE_RATIOS:
    print(
        f'called mean, is {kind}:',
        check_sequence_ratio(weights[kind], 'mean', trainer, engine, mask) or 'nothing found',
    )

# %% [markdown]
# ## Exhibit: the clip that wakes the dead
#
# **Symptom.** The divergence between trainer and engine is flat for dozens of steps, then grows many times
# over on tokens that are almost certain; answers get longer, truncation follows, reward goes. **Reported**
# in miles, pull request 2588, after a run that died this way twice; its lower clip of 0.5 was set to 0.
# **The wrong version** has one more argument in `clamp`.

# %%
log_ratio = torch.tensor([0.5, 0.0, -0.5, -1.0, -5.0, -30.0], dtype=torch.float64)
r = log_ratio.exp()
table = pd.DataFrame({
    'ratio': r,
    'wrong: clamp(r, 0.5, 2)': r.clamp(0.5, 2.0),
    'right: min(r, 2)': r.clamp(max=2.0),
})
table.set_axis([f'{x:g}' for x in log_ratio.tolist()]).rename_axis('log-ratio').map('{:.3g}'.format)

# %% [markdown]
# A ratio of e⁻³⁰ says: the trained policy would not write this token any more, so its gradient is nothing.
# The floor says: half. If the advantage is negative, the token is pushed down although it is gone already,
# and this has no end. The smallest model that shows it: two actions, one logit x for the bad one, sampled
# by an old policy that always takes it, advantage −1, step size 1. The loss's gradient pushes x by −w(1−p).


# %%
def push(weight, steps=200):
    """The logit of an action that an old policy keeps sampling and that is always punished."""
    x, path = torch.zeros((), dtype=torch.float64), []
    for _ in range(steps):
        p = torch.sigmoid(x)
        x = x - weight(p) * (1 - p)  # old probability 1, so r = p
        path.append(x.item())
    return path


paths = {'floor 0.5': push(lambda r: r.clamp(0.5, 2.0)), 'no floor': push(lambda r: r.clamp(max=2.0))}
pd.DataFrame(paths).iloc[[0, 9, 49, 99, 199]].set_axis([1, 10, 50, 100, 200]).rename_axis('step').round(2)

# %% [markdown]
# With the floor the logit falls at constant speed for ever. In a network, where logits share parameters,
# the push has to go somewhere. Without it the push dies with the ratio. (The other side of the coin: with
# no floor a token that has become good again is not found again either. 13.1 has both sides, and IcePop.)
#
# **The right version** of the PPO ratio is 8.1's, which has no floor and is clipped on one side only by the
# `min`. **The check** for weights: truncation lowers a weight and never raises one above the ratio.


# %%
#@save
def check_lower_clip(weights, train_logp, logp, action_mask):
    """No token weight [B, T-1] exceeds its ratio exp(train_logp - logp) on kept tokens, or a Finding."""
    ratio = keep_only(train_logp - logp, action_mask).exp()
    raised = action_mask.bool() & (weights > ratio * 1.001 + 1e-6)
    if not raised.any():
        return None
    place = first_place(raised & (ratio == ratio[raised].min()))
    return Finding(
        'a lower clip revives collapsed ratios',
        f'{int(raised.sum())} of {int(action_mask.bool().sum())} kept tokens '
        f'weigh more than their ratio; the smallest ratio {ratio[place["row"], place["column"]]:.2g} became '
        f'{weights[place["row"], place["column"]]:.3g}',
        **place,
    )


# %%
from agentrl.ppo import probability_ratio

old = torch.zeros(1, 6, dtype=torch.float64)
keep = torch.ones(1, 6, dtype=torch.bool)
ratio = probability_ratio(log_ratio[None], old, keep)  # of 8.1, held within e^±20
for name, weights in (('floor 0.5', ratio.clamp(0.5, 2.0)), ('no floor', ratio.clamp(max=2.0))):
    print(f'{name}:', check_lower_clip(weights, log_ratio[None], old, keep) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# The same gap of 0.012 nats is 1.012 as a mean and 3.32 as a sum over 100 tokens, and unbiased noise of 0.05 a
# token leaves 0.08 of the samples effective in sums over 1000 tokens. Both weights go by the name of sequence
# ratio; the check tells them apart. A floor of 0.5 lets a ratio of e⁻³⁰ weigh one half, and drove a logit to
# −98.82 in 200 steps at constant speed; without it the logit slowed down by itself at −5.25.
#
# **Try it.** Give `push` IcePop's weight (0 outside of 0.5 to 2): where does the logit stop? Then print the
# mean weight of your own trainer against the length of the episode.
