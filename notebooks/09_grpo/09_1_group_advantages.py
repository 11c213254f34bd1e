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
# # 9.1 Judge an episode by its siblings
#
# How good is a reward of 1? It depends on the task: on an easy one everybody gets it. GRPO (Shao et al.
# 2024) samples a *group* of episodes of the same task and uses the group's mean as the baseline, so no
# critic is needed. It also divides by the group's standard deviation. We compute both by hand, see which
# groups teach nothing, how rounding errors could make them teach nonsense, and what the division hides: the
# size of a penalty.
#
# **Time** 15 min. **Assumes** [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb). **Afterwards you
# can** compute the advantages of a group, say which groups teach nothing, and give the factor by which a
# deviation scales them.

# %%
#@save advantages
import torch

from agentrl.gradient import check_kept, check_switch, keep_only, same_within

# %% [markdown]
# ## One group by hand
#
# Eight episodes of one task, one of which passed. The mean is 1/8. The standard deviation here is the
# *sample* one, with $G - 1 = 7$ in the denominator: the squares add up to $(7/8)^2 + 7\,(1/8)^2 = 7/8$,
# divided by 7 that is 1/8, so the deviation is $\sqrt{1/8} = 0.3536$. The advantage of the one that passed
# is $0.875 / 0.3536 = 2.4749$, that of the others $-0.125 / 0.3536 = -0.3536$.

# %%
def advantages_in_loops(rewards, group_size, std_normalize=True):
    result = []
    for first in range(0, len(rewards), group_size):
        group = rewards[first:first + group_size]
        mean = sum(group) / group_size
        centred = [r - mean for r in group]
        std = (sum(c * c for c in centred) / (group_size - 1)) ** 0.5
        if max(group) - min(group) < 1e-9:
            result += [0.0] * group_size
        else:
            result += [c / std if std_normalize else c for c in centred]
    return result


one_pass = [1.0] + 7 * [0.0]
print([round(a, 4) for a in advantages_in_loops(one_pass, 8)])

# %% [markdown]
# ## A group without spread
#
# If all eight got the same reward there is nothing to compare: the advantage must be exactly zero. The
# formula says 0/0, which is NaN; the usual cure is to add a small number to the denominator. It does not
# help against the more devious case, in which the rewards are equal on paper and differ in the last bit. A
# penalty of 0.05 on six calls is 0.3 whether it is multiplied or added up call by call, but not for a
# computer.

# %%
multiplied = -0.05 * 6
added = 0.0
for _ in range(6):
    added -= 0.05
pair = [multiplied, added]
mean = sum(pair) / 2
std = sum((r - mean) ** 2 for r in pair) ** 0.5
print('the two rewards:', pair)
print('difference:', f'{abs(multiplied - added):.1e}')
print('naive advantages:', [round((r - mean) / std, 3) for r in pair], ' ours:', advantages_in_loops(pair, 2))

# %% [markdown]
# A naive division blows a difference of the last bit up to the size of a real success (the two do not even
# add up to zero: the mean was rounded to one of them). Therefore a spread of at most $10^{-9}$ counts as none,
# and more where rewards are large or were computed in single precision: that is `same_within` of section 6.1.
# Rewards in this book are sums of a few cents, so that no true difference is that small. What cannot be
# meant is refused: groups of one, a batch that does not divide into groups, a reward that is not a number.

# %%
#@save
def check_groups(rewards, group_size):
    """Raise ValueError unless rewards [B] are finite and B is a multiple of group_size >= 2."""
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 2:
        raise ValueError(f'group_size is {group_size}; allowed: 2 or more, one episode has no sibling')
    if rewards.dim() != 1 or not len(rewards) or len(rewards) % group_size:
        raise ValueError(f'rewards have shape {list(rewards.shape)}; allowed is [B] with B a multiple of '
                         f'group_size {group_size}, the episodes of a group side by side')
    if not rewards.isfinite().all():
        row = (~rewards.isfinite()).nonzero()[0].item()
        raise ValueError(f'reward {rewards[row].item()} in row {row}; rewards must be finite')


# %% [markdown]
# ## The group advantage
#
# The tensor version does the same for all groups at once. Nothing is added to the deviation: that would
# shrink the advantages a little, the more the smaller the spread. (Common implementations add 1e-6 or 1e-4;
# this is where ours departs from them.)

# %%
#@save
def group_advantages(rewards, group_size, std_normalize=True):
    """Advantages [B], float64, of rewards [B] in contiguous groups (GRPO, Shao et al. 2024).

    r minus the group's mean, divided if std_normalize by the group's sample standard deviation (ddof 1, with
    nothing added). A group whose rewards differ by rounding only (same_within, in their own type) gets exactly
    0. ValueError for a group_size below 2 or one that does not divide B, a reward that is not finite, and a
    std_normalize that is neither True nor False.
    """
    dtype = rewards.dtype if isinstance(rewards, torch.Tensor) else torch.float64
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    check_groups(rewards, group_size)
    check_switch('std_normalize', std_normalize)
    groups = rewards.reshape(-1, group_size)  # [B/G, G]
    equal = same_within(groups.amin(1), groups.amax(1), dtype)[:, None]  # [B/G, 1], bool
    centred = (groups - groups.mean(1, keepdim=True)).masked_fill(equal, 0.0)
    if std_normalize:
        centred = centred / groups.std(1, keepdim=True).masked_fill(equal, 1.0)
    return centred.reshape(-1)


# %% [markdown]
# Four groups: one pass in eight, none, all, and a group that failed at the same price, half of it multiplied
# and half of it added up. Then the double loop and the tensors on random groups of several sizes.

# %%
groups = [one_pass, 8 * [0.0], 8 * [1.0], 4 * pair]
rewards = torch.tensor(groups, dtype=torch.float64).reshape(-1)  # [32]
advantages = group_advantages(rewards, 8).reshape(4, 8)
for name, row in zip(('one pass', 'no pass', 'all pass', 'last bit'), advantages.tolist()):
    print(f'{name}:', [round(a, 4) for a in row])

# %%
generator = torch.Generator().manual_seed(0)
for size in (2, 3, 8):
    random = torch.randint(3, (20 * size,), generator=generator) * 0.25  # ties are common
    for std_normalize in (True, False):
        loops = torch.tensor(advantages_in_loops(random.tolist(), size, std_normalize), dtype=torch.float64)
        worst = (group_advantages(random, size, std_normalize) - loops).abs().max().item()
        print(f'groups of {size}, std_normalize {std_normalize!s:5}: agree {worst < 1e-12}')

# %% [markdown]
# And the refusals, each with what was given and what is allowed.

# %%
for bad, size in (([1.0, 0.0, 1.0], 2), ([1.0, 0.0], 1), ([1.0, float('nan')], 2)):
    try:
        group_advantages(bad, size)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## Which groups teach
#
# With 0/1 rewards a group is described by its number of passes. Division by the deviation makes the squares
# of the advantages add up to $G - 1 = 7$ in *every* group with spread: one pass in eight pushes with the
# same total as four in eight. Without it the total is $k(8-k)/8$, so that a half-solved task weighs more.
# Liu et al. 2025 call the first a bias toward tasks that are nearly always or nearly never solved, and drop
# the division (Dr. GRPO).

# %%
import pandas as pd

table = []
for k in range(9):
    rewards = k * [1.0] + (8 - k) * [0.0]
    a, plain = group_advantages(rewards, 8), group_advantages(rewards, 8, std_normalize=False)
    table.append([a.max().item(), a.min().item(), (a**2).sum().item(), (plain**2).sum().item()])
columns = ['A of a pass', 'A of a fail', 'sum of squares', 'sum of squares, no division']
pd.DataFrame(table, columns=columns).rename_axis('passes').round(4)

# %% [markdown]
# Groups without spread teach nothing, and they are common at both ends. With pass probability $p$ the share
# of such groups is $p^8 + (1-p)^8$.

# %%
for p in (0.05, 0.15, 0.5, 0.85, 0.95):
    print(f'pass probability {p:.2f}: share of groups of 8 without spread {p**8 + (1 - p) ** 8:.3f}')

# %% [markdown]
# ## What the division hides
#
# Let every call cost $c$ and let all eight episodes fail: the rewards are $-c$ times the number of calls.
# The deviation is proportional to $c$ as well, so $c$ cancels. A penalty of 0.05 then pushes toward short
# episodes exactly as hard as one of 0.3; in a policy that fails most of its groups, a small price for a call
# acts like a large one. Without the division the price is felt as set.

# %%
calls = torch.tensor([6, 3, 4, 2, 5, 6, 1, 6], dtype=torch.float64)
passed = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
rows = {}
for verdict, name in ((0 * passed, 'all fail'), (passed, 'first passes')):
    for std_normalize in (True, False):
        for c in (0.05, 0.3):
            a = group_advantages(verdict - c * calls, 8, std_normalize)
            rows[name, 'divided' if std_normalize else 'not divided', c] = (a + 0.0).numpy().round(2)
index = pd.MultiIndex.from_tuples(rows, names=['group', 'deviation', 'penalty'])
pd.DataFrame(list(rows.values()), index=index, columns=[f'{int(k)} calls' for k in calls])

# %% [markdown]
# The first two rows are equal, the next two differ by a factor of six. In the group with a success the
# division hides less, since the deviation then comes from the verdict too: at 0.05 the six-call success has
# a large positive advantage, at 0.3 a small one, and giving up after one call is judged better.
#
# ## The baseline that leaves you out
#
# The mean contains the episode's own reward, so it is not independent of it, as a baseline should be (6.1).
# The cure is to compare with the mean of the *others* (RLOO, Ahmadian et al. 2024). Both differ by a
# constant factor: $r_i - \tfrac{1}{G-1}\sum_{j \ne i} r_j = \tfrac{G}{G-1}(r_i - \bar r)$.

# %%
rewards = torch.tensor([1.0, 0.0, 0.5, -0.3], dtype=torch.float64)
others = (rewards.sum() - rewards) / 3  # [4]
centred = group_advantages(rewards, 4, std_normalize=False)
print('r - mean of the others:', [round(a, 4) for a in (rewards - others).tolist()])
print('4/3 of the advantage:  ', [round(a, 4) for a in (4 / 3 * centred).tolist()])

# %% [markdown]
# What the factor means for the expected gradient can be enumerated. A policy with one logit passes with
# probability $p = 0.3$; the exact slope of its pass rate is $p(1-p) = 0.21$. Sum over all $2^G$ groups.

# %%
def expected_slope(group_size, std_normalize, p=0.3):
    groups = torch.cartesian_prod(*group_size * [torch.tensor([0.0, 1.0], dtype=torch.float64)])  # [2^G, G]
    prob = torch.where(groups == 1, p, 1 - p).prod(1)  # [2^G]
    a = group_advantages(groups.reshape(-1), group_size, std_normalize).reshape(groups.shape)
    return (prob * (a * (groups - p)).mean(1)).sum().item()


table = {}
for G in (2, 4, 8):
    mean = expected_slope(G, std_normalize=False)
    table[G] = [0.3 * 0.7, mean, G / (G - 1) * mean, expected_slope(G, std_normalize=True)]
rows = ['exact', 'minus the mean', 'leave one out', 'minus the mean, divided']
pd.DataFrame(table, index=rows).rename_axis(columns='group size').round(5)

# %% [markdown]
# The group mean shrinks the gradient by $(G-1)/G$, the same for all tasks, so it merely changes the step
# size. Division by the deviation rescales each task by its own factor, which is another objective. We use it
# as the default, because GRPO does, and keep it a setting.
#
# ## From episodes to tokens
#
# The verdict belongs to the whole episode, so each of its kept tokens gets the episode's advantage; all
# other positions get zero. `compute_advantages` takes the batch as it was collated, with the episodes of a
# group side by side.
#
# An episode whose mask keeps nothing is not trained on. It must not judge its siblings either: its reward would
# shift their mean, and the advantages that are trained would no longer add up to zero. So the others are
# compared among themselves.

# %%
#@save
def compare_kept(rewards, kept, cfg):
    """Group advantages [B] of the kept episodes among themselves; 0 for the others and for one left alone.

    ValueError unless rewards and kept are both [B], and the rewards of kept episodes are finite.
    """
    if rewards.dim() != 1 or not len(rewards) or kept.shape != rewards.shape:
        raise ValueError(f'rewards have shape {list(rewards.shape)}, kept {list(kept.shape)}; both must be [B]')
    check_kept(kept, rewards=rewards)
    advantages = torch.zeros_like(rewards)
    for rows in torch.arange(len(rewards)).split(cfg.group_size):
        rows = rows[kept[rows]]
        if len(rows) > 1:
            advantages[rows] = group_advantages(rewards[rows], len(rows), cfg.std_normalize)
    return advantages


# %%
from types import SimpleNamespace

three = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
kept = torch.tensor([True, True, True, False])  # the last episode was cut off, say
settings = SimpleNamespace(group_size=4, std_normalize=False)
print('all four:     ', group_advantages(three, 4, std_normalize=False).tolist())
print('without a row:', [round(a, 4) for a in compare_kept(three, kept, settings).tolist()])


# %%
#@save
def compute_advantages(batch, cfg):
    """Token-level group advantages [B, T-1]: the episode's where action_mask is set, 0 elsewhere.

    batch: 'reward' [B] and 'action_mask' [B, T-1], the rows of a group contiguous. cfg: group_size,
    std_normalize. Rows without a kept token are left out of the comparison. ValueError as in group_advantages,
    or if the two disagree about B.
    """
    reward, mask = batch['reward'], batch['action_mask']
    if len(reward) != len(mask) or mask.dim() != 2:
        raise ValueError(f'{len(reward)} rewards, {len(mask)} rows of action_mask, of shape {list(mask.shape)}; '
                         'both must be B, and action_mask [B, T-1]')
    advantages, kept = group_advantages(reward, cfg.group_size, cfg.std_normalize), mask.bool().any(1)  # [B]
    if not kept.all():
        advantages = compare_kept(torch.as_tensor(reward, dtype=torch.float64), kept, cfg)
    return keep_only(advantages[:, None].expand(mask.shape), mask)


# %%
mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)  # [4, 4]
batch = {'reward': torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), 'action_mask': mask}
compute_advantages(batch, SimpleNamespace(group_size=2, std_normalize=True)).round(decimals=4)

# %% [markdown]
# The second group has no spread: its rows are zero, and they stay in the denominator of the loss. They were
# kept, they just had nothing to say.

# %% [markdown]
# ## What was seen
#
# One pass in eight has advantage 2.4749 against −0.3536; all-pass and all-fail groups get exactly 0, also
# where the naive formula made advantages of 0 and 1 from a difference of 5.6e-17. With division, the squares
# add up to 7 in every group with spread; without, to between 0.875 and 2. In the group where all failed,
# penalties of 0.05 and 0.3 gave the same advantages with the division and ones six times as large without
# it. At pass probability 0.15 a share of 0.272 of the groups of eight teaches nothing.
#
# **Try it.** Add a constant to all rewards of a group, then multiply them by 10: what changes with the
# division, what without? Give `expected_slope` another `p`: for which tasks does the division magnify the
# slope most?
