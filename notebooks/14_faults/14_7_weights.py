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
# # 14.7 Ask for how much each token counts
#
# A loss is a weighted sum of token losses, whatever its code looks like. Instead of reading the code one can
# ask it for the weights: they are its gradient with respect to the token losses. Three exhibits that are hard
# to see in code are plain in their weights: a denominator that counts what was dropped, a weight that depends
# on how the batch was cut for memory, and an episode that counts as often as it has samples.
#
# **Time** 10 min. **Assumes** [6.2](../06_policy_gradient/06_2_loss_aggregation.ipynb),
# [14.1](14_1_masks.ipynb), [14.5](14_5_groups.ipynb). **Afterwards you can** ask any loss for its token
# weights, and find in them dropped tokens, the size of a micro-batch, or repeated votes.

# %%
#@save weight_faults
import torch

from agentrl.aggregation import loss_weights
from agentrl.group_faults import members, row_advantages
from agentrl.mask_faults import Finding, first_place

# %% [markdown]
# ## The question
#
# `effective_weights` hands an aggregation its token losses, piece by piece as a trainer would, and returns
# the gradient of the sum. It works for any function of (token losses, mask); wrap yours.


# %%
#@save
def effective_weights(aggregation, mask, pieces=None):
    """Weight [B, T-1] of each token in aggregation(losses, mask), summed over pieces (lists of rows)."""
    losses = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    total = sum(aggregation(losses[rows], mask[rows]) for rows in (pieces or [list(range(len(mask)))]))
    return torch.autograd.grad(total, losses)[0]


# %%
def token_mean(losses, mask):
    """WRONG in pieces, right for a whole batch: the mean over the kept tokens at hand."""
    return (losses * mask).sum() / mask.sum()


mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.float64)
weights = effective_weights(token_mean, mask)
print('as 11ths:', (weights * 11).round(decimals=2).tolist())
print('equal to ours:', bool(torch.allclose(weights, loss_weights(mask, 'token_mean'))))

# %% [markdown]
# ## Exhibit: the denominator that counts the dropped
#
# **Symptom.** The gradient shrinks on steps with many truncated episodes, in proportion to their tokens.
# **Reported** in TRL, issue 6369: with truncated completions masked, the numerator left their tokens out
# and the denominator, taken earlier, did not. Its example: 30 tokens, 5 of them in a truncated completion.
# **The wrong version** takes the count before the rows are dropped.

# %%
all_kept = torch.zeros(3, 15, dtype=torch.float64)
for row, n in enumerate((15, 10, 5)):
    all_kept[row, :n] = 1
truncated = torch.tensor([False, False, True])
kept = all_kept * ~truncated[:, None]  # the last row is dropped
n_items = all_kept.sum()  # WRONG: counted too early

wrong = effective_weights(lambda losses, mask: (losses * mask).sum() / n_items, kept)
right = loss_weights(kept, 'token_mean')
print(f'weights add up to {wrong.sum():.3f}, ours to {right.sum():.3f}')

# %% [markdown]
# ## Exhibit: the gradient that knows the size of your memory
#
# **Symptom.** Halving the micro-batch, to make a run fit, changes its results. **Reported** in many places;
# verl's issue 3741 asks it for a mode that sums each row, adds up the rows and divides by the width of the
# tensor at hand, so that number of rows and padding of a *piece* decide. 6.2 shows the cure (weights of the
# whole batch, made before it is cut); here are four rows as one piece, two pieces, and two others.


# %%
def sum_over_width(losses, mask):
    """WRONG, for comparison: the sum over all rows at hand, over the width of the tensor at hand."""
    width = int(mask.any(0).sum())  # pieces are padded to their longest row
    return (losses * mask).sum() / width


# %%
import pandas as pd

cuts = {
    'one piece': [[0, 1, 2, 3]],
    'two': [[0, 1], [2, 3]],
    'two others': [[0, 2], [1, 3]],
    'four': [[0], [1], [2], [3]],
}
table = {}
for name, pieces in cuts.items():
    for label, rule in (('token mean of a piece', token_mean), ('sum over width', sum_over_width)):
        table[label, name] = effective_weights(rule, mask, pieces)[:, 0].tolist()
whole = loss_weights(mask, 'token_mean')
for name, pieces in cuts.items():
    table['ours', name] = torch.cat([whole[rows][:, 0] for rows in pieces])[
        torch.tensor(sum(pieces, [])).argsort()
    ].tolist()
pd.DataFrame(table, index=[f'row {n}' for n in range(4)]).T.round(3)

# %% [markdown]
# Each entry is the weight of a row's first token. Alone in its piece, the one token of row 1 weighs 1, five
# times as much as a token of the long row 2; side by side they weigh the same. (That the weights of several
# pieces add up to more than 1 is a factor, which a trainer may divide out; the differences stay.) Ours does not
# move. **The check** compares weights with those of a named aggregation (6.2), and tells a
# common factor, such as a wrong denominator, from weights that differ among tokens.


# %%
#@save
def check_token_weights(token_weights, action_mask, loss_agg, tolerance=1e-4):
    """Weights [B, T-1] are those of 6.2 for the whole batch under loss_agg, or a Finding."""
    right = loss_weights(action_mask, loss_agg)
    keep = right > 0
    ratio = token_weights[keep] / right[keep]
    stray = (token_weights != 0) & ~keep
    if stray.any():
        return Finding(
            'dropped tokens have weight', f'{int(stray.sum())} tokens outside the mask', **first_place(stray)
        )
    if not len(ratio) or (ratio - 1).abs().max() < tolerance:
        return None
    place = first_place(keep & ((token_weights / right.where(keep, 1.0) - 1).abs() >= tolerance))
    if ratio.max() - ratio.min() < tolerance * ratio.max().abs():
        return Finding(
            'the denominator is not the kept tokens',
            f'all weights are {ratio[0]:.4g} times those of {loss_agg}',
            **place,
        )
    return Finding(
        'weights depend on the split',
        f'from {ratio.min():.3g} to {ratio.max():.3g} times those of {loss_agg} for the whole batch',
        **place,
    )


# %%
from agentrl.aggregation import AGGREGATIONS

print('6369:', check_token_weights(wrong, kept, 'token_mean'))
print(
    '3741:',
    check_token_weights(effective_weights(sum_over_width, mask, cuts['two']), mask, 'seq_mean_token_sum'),
)
for mode in AGGREGATIONS:
    ours = effective_weights(lambda losses, m, mode=mode: (losses * loss_weights(m, mode)).sum(), mask)
    print('ours:', check_token_weights(ours, mask, mode) or 'nothing found')

# %% [markdown]
# ## Exhibit: the episode that votes as often as it speaks
#
# **Symptom.** As soon as each call becomes a training sample of its own (12.4 does so when contexts
# change), long episodes take over: the baseline sinks toward theirs, and answers get longer or shorter for
# no reason in the reward. **The mechanism**: baseline and averages run over samples, and an episode of ten
# calls is ten of them. Two episodes of one task: one passed in 2 calls, the other failed in 10. **The wrong
# version** compares samples.

# %%
from agentrl.advantages import group_advantages

calls, verdict = [2, 10], torch.tensor([1.0, 0.0], dtype=torch.float64)
episode = torch.tensor(sum(([n] * k for n, k in enumerate(calls)), []))  # [12], of each sample
by_sample = verdict[episode] - verdict[episode].mean()  # WRONG
by_episode = group_advantages(verdict, 2, std_normalize=False)[episode]  # ours: compare, then hand out
for name, a in (('wrong', by_sample), ('ours', by_episode)):
    print(f'{name}: pass {a[0]:.3f}, fail {a[-1]:.3f}')

# %% [markdown]
# The pass is praised with 0.833 where 0.5 is right, the failure blamed with −0.167. The loss has the same
# trap: a mean over samples gives the failed episode ten twelfths of the weight. A weight for each sample of
# one over the number of its siblings gives each episode its one vote.


# %%
#@save
def episode_votes(episode):
    """Weights [B] of samples such that each episode ([B], codes) counts once and all add up to 1."""
    _, code, count = torch.unique(episode, return_inverse=True, return_counts=True)
    return (1.0 / (count.double() * len(count)))[code]


# %%
votes = episode_votes(episode)
for name, w in (('mean over samples', torch.full((12,), 1 / 12)), ('one vote each', votes)):
    print(f'{name}: ', [round(w[episode == n].sum().item(), 3) for n in (0, 1)])

# %% [markdown]
# **The check** looks at the baseline: within a group, the advantages of *episodes* average to 0, whatever the
# number of their samples. Where samples of one episode differ (call-level credit) it has no opinion.


# %%
#@save
def check_fan_out(advantages, group, episode, action_mask=None):
    """Advantages ([B] or [B, T-1]) of each group average to 0 over its episodes ([B]), or a Finding."""
    row_wise = row_advantages(advantages, action_mask)
    for rows in members(group, (~row_wise.isnan()).tolist()):
        mine = {int(episode[n]): [] for n in rows}
        for n in rows.tolist():
            mine[int(episode[n])].append(float(row_wise[n]))
        if any(max(a) - min(a) > 1e-6 for a in mine.values()) or len(mine) == len(rows):
            continue
        over_episodes, scale = sum(a[0] for a in mine.values()) / len(mine), float(row_wise[rows].abs().max())
        if abs(over_episodes) > 1e-3 * max(1.0, scale):
            return Finding(
                'episodes count as often as they have samples',
                f'{len(mine)} episodes with '
                f'{min(map(len, mine.values()))} to {max(map(len, mine.values()))} samples average to '
                f'{over_episodes:.3f} over episodes, {abs(float(row_wise[rows].mean())):.3f} over samples',
                int(rows[0]),
            )
    return None


# %%
one_group = torch.zeros(12)
print('wrong:', check_fan_out(by_sample, one_group, episode))
print('ours:', check_fan_out(by_episode, one_group, episode) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# A denominator of 30 where 25 tokens are kept makes weights that add up to 0.833. Cut into pieces, a short
# row's token changed its weight, while ours stayed 0.091 in every cut. Two calls against ten turned an
# advantage of 0.5 into 0.833, and a mean over samples gave the long episode 0.833 of the votes.
#
# **Try it.** Wrap your own trainer's loss for `effective_weights` and call it with two different `pieces`. Do
# the weights move? Do they add up to 1?
