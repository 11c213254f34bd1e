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
# # 14.5 Compare only with what was measured
#
# A group's mean is the baseline of all its members and its deviation their unit. One number that does not
# belong there spoils all the others: a deviation that is nothing but rounding error, or a reward that is no
# reward but the mark of a broken container. Two exhibits, both visible in the advantages alone.
#
# **Time** 10 min. **Assumes** [7.4](../07_advantages/07_4_step_groups.ipynb),
# [9.1](../09_grpo/09_1_group_advantages.ipynb), [14.1](14_1_masks.ipynb). **Afterwards you can** bound the
# largest advantage that a group can have, and detect rounding noise or errored episodes in a baseline.

# %%
#@save group_faults
import torch

from agentrl.mask_faults import Finding

# %% [markdown]
# ## Exhibit: the spread that was rounding
#
# **Symptom.** Once in a while a step has a huge loss and gradient norm; the largest advantage is in the
# thousands. **Reported** in NeMo-RL, pull request 4161: with a leave-one-out baseline and normalised
# rewards, the deviation of each sample's *siblings* was computed in single precision as the root of
# $\mathrm{E}[x^2] - \mathrm{E}[x]^2$. When seven siblings agree at 0.35, that is not 0 but the rounding of
# 0.35, and it passes a guard that asks for more than 0. (Rewards of 0 and 1 cancel exactly, so a test with
# those finds nothing.) 9.1 met the same residue in another coat: equal penalties that were added up in
# different ways.


# %%
#@save
def leave_one_out_advantages(rewards):
    """WRONG, for comparison: rewards [G] minus the siblings' mean, over their single-precision spread."""
    x, n, result = torch.as_tensor(rewards, dtype=torch.float32), len(rewards) - 1, []
    for i in range(n + 1):
        total, squares = torch.zeros(2)  # float32, as x is
        for j in range(n + 1):
            if j != i:
                total, squares = total + x[j], squares + x[j] * x[j]
        std = (squares / n - (total / n) * (total / n)).clamp(min=0).sqrt()
        centred = x[i] - total / n
        result.append(centred / std if std > 0 else centred)
    return torch.stack(result).double()


# %%
from agentrl.advantages import group_advantages

for odd, others in ((1.0, 0.0), (0.95, 0.35)):
    group = torch.tensor([odd] + 7 * [others], dtype=torch.float64)
    wrong, ours = leave_one_out_advantages(group), group_advantages(group, 8)
    largest = f'wrong {wrong.abs().max():.1f}, ours {ours.abs().max():.4f}'
    print(f'one {odd} among {others}: largest advantage {largest}')

# %% [markdown]
# Why can ours never be large? For $G$ numbers, no member is more than $\sqrt{G-1}$ of the group's
# (population) deviations away from the mean, $(G-1)/\sqrt{G}$ of its sample deviations (Samuelson 1968):
# 2.65 and 2.47 for $G = 8$. An advantage that is only centred is at most the range of the rewards. Whatever
# exceeds both was divided by something that is not the spread of this group. We try to beat the bound with
# random groups.

# %%
rng = torch.Generator().manual_seed(0)
draws = torch.rand(20_000, 8, generator=rng, dtype=torch.float64) ** 6  # most are near 0
largest = group_advantages(draws.reshape(-1), 8).abs().max().item()
print('largest of 160000 advantages:', round(largest, 3), ' bound:', round(7 / 8**0.5, 3))

# %% [markdown]
# **The check** has two halves: a group without spread has advantages of 0, and no advantage exceeds the
# bound. It takes groups of any size, in any order, and a row's advantage as one number or one a token.


# %%
#@save
def row_advantages(advantages, action_mask=None):
    """One advantage a row, [B]: as given, or of each row's first kept token (nan where there is none)."""
    if advantages.dim() == 1:
        return advantages.double()
    keep = action_mask.bool()
    first = advantages.double().gather(1, keep.int().argmax(1, keepdim=True))[:, 0]
    return first.masked_fill(~keep.any(1), float('nan'))


def members(group, healthy):
    """Row numbers of the healthy rows of each group, in order of first appearance: list of tensors."""
    codes = [int(g) for g in group]
    return [
        torch.tensor([n for n, g in enumerate(codes) if g == code and healthy[n]], dtype=torch.long)
        for code in dict.fromkeys(codes)
    ]


def is_healthy(errors, n):
    """True for each of n rows whose entry in errors is None; all True if errors is None."""
    return [True] * n if errors is None else [error is None for error in errors]


# %%
#@save
def check_group_spread(advantages, reward, group, action_mask=None, errors=None, tiny=1e-6):
    """Advantages ([B] or [B, T-1]) are possible in groups with these rewards [B], or a Finding."""
    tokens = advantages if advantages.dim() == 2 else advantages[:, None]
    size = (tokens if action_mask is None else tokens.where(action_mask.bool(), 0.0)).abs().amax(1)  # [B]
    for rows in members(group, is_healthy(errors, len(reward))):
        if not len(rows):
            continue
        spread, largest = float(reward[rows].max() - reward[rows].min()), float(size[rows].max())
        row = int(rows[size[rows].argmax()])
        bound = ([int(g) for g in group].count(int(group[row])) - 1) ** 0.5
        if spread <= tiny * max(1.0, float(reward[rows].abs().max())):
            if largest > 1e-3:
                return Finding(
                    'rounding blown up to an advantage',
                    f'the rewards of a group of {len(rows)} differ by '
                    f'{spread:.1g}, an advantage is {largest:.4g}',
                    row,
                )
        elif largest > max(bound, spread) * 1.001:
            return Finding(
                'rounding blown up to an advantage',
                f'{largest:.4g} in a group of {len(rows)} with rewards '
                f'{spread:.3g} apart; the largest possible is {max(bound, spread):.3g}',
                row,
            )
    return None


# %%
from functools import reduce
from operator import add

group = torch.tensor([0.95] + 7 * [0.35], dtype=torch.float64)
same = torch.zeros(8)  # all in group 0
added = reduce(add, 6 * [-0.05])  # `sum` rounds differently from Python 3.12 on
equal = torch.tensor([-0.05 * 6, added] * 4, dtype=torch.float64)
naive = (equal - equal.mean()) / equal.std()
print('leave one out:', check_group_spread(leave_one_out_advantages(group), group, same))
print('equal rewards:', check_group_spread(naive, equal, same))
for rewards in (group, equal):
    print('ours:', check_group_spread(group_advantages(rewards, 8), rewards, same) or 'nothing found')

# %% [markdown]
# ## Exhibit: the broken container that got a mark
#
# **Symptom.** On days with infrastructure trouble, reward falls *and* mediocre behaviour is reinforced.
# **The mechanism**: a sample that ended with an error is given reward 0 and stays in its group. It lowers
# the baseline, so that all others look better than they were, and it is punished for something that it did
# not do. prime-rl's pull request 2590 lets a group go on with its healthy members instead, each compared
# with those alone. Eight siblings of which two died; two of the rest passed.

# %%
import pandas as pd

from agentrl.step_groups import step_advantages

passed = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
errors = [None] * 6 + ['container lost', 'container lost']
healthy = torch.tensor(is_healthy(errors, 8))
wrong = group_advantages(passed, 8)  # WRONG: an error counts as 0
right = torch.zeros(8, dtype=torch.float64)
right[healthy] = step_advantages(passed[healthy], [0] * int(healthy.sum()))  # groups of any size, from 7.4
pd.DataFrame({'wrong': wrong, 'right': right}, index=['pass'] * 2 + ['fail'] * 4 + ['error'] * 2).T.round(3)

# %% [markdown]
# The errors are pushed away like failures, and every pass is worth 1.62 where 1.29 was earned. If all healthy
# siblings fail, nothing is learned; if all pass, the wrong version praises them for having had a container:

# %%
lucky = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0], dtype=torch.float64)
right_lucky = torch.zeros(8, dtype=torch.float64)
right_lucky[healthy] = step_advantages(lucky[healthy], [0] * 6)
print('wrong:', [round(a, 3) for a in group_advantages(lucky, 8).tolist()])
print('right:', [round(a, 3) for a in right_lucky.tolist()])

# %% [markdown]
# **The check.** Errored rows train nothing, and the healthy ones of a group average to 0, as they do exactly
# when the baseline is *their* mean.


# %%
#@save
def check_errored_rows(advantages, group, errors, action_mask=None):
    """Rows that ended with an error are out of the loss and out of their group's baseline, or a Finding."""
    healthy = is_healthy(errors, len(group))
    if all(healthy):
        return None
    row_wise = row_advantages(advantages, action_mask).nan_to_num(0.0)
    trained = [n for n, ok in enumerate(healthy) if not ok and abs(float(row_wise[n])) > 1e-6]
    if trained:
        return Finding(
            'an errored sample was given a reward',
            f'{len(trained)} of {healthy.count(False)} errored rows are '
            f'trained, the first with advantage {row_wise[trained[0]]:.3g}',
            trained[0],
        )
    for rows in members(group, healthy):
        if len(rows) and abs(mean := float(row_wise[rows].mean())) > 1e-3 * max(
            1.0, float(row_wise[rows].abs().max())
        ):
            return Finding(
                'an errored sample is in the baseline',
                f'the {len(rows)} healthy rows of a group average to {mean:.3g}, not to 0',
                int(rows[0]),
            )
    return None


# %%
masked = torch.where(healthy, wrong, 0.0)  # half a repair
for name, advantages in (('wrong', wrong), ('masked only', masked), ('right', right)):
    print(f'{name}:', check_errored_rows(advantages, same, errors) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# Seven equal rewards of 0.35 and one of 0.95 made an advantage of 4013.2 out of single-precision rounding,
# which is the factor that the report names; rewards of 1 and 0 gave 1.0, so a test with those finds
# nothing. Ours is 2.4749, the largest that a group of eight can have, and none of 160000 random advantages
# exceeded it. Two errored siblings counted as 0 raised a pass from 1.291 to 1.62, and praised six equal
# passes with 0.54. Masking the errors without taking them out of the baseline is half a repair, and the
# check says so.
#
# **Try it.** Where is the limit of the first check? Make a batch-normalised advantage (one deviation for the
# whole batch, 8.3) of groups with one rare success. It exceeds both bounds, and nothing was rounded: is the
# check right to be red?
