# Made by tools/export.py from notebooks/14_faults/14_7_weights.py. Do not edit: change it there, then `make export`.
# Body: c255daf352a1c0e0
"""14.7 Ask for how much each token counts."""

import torch

from agentrl.aggregation import loss_weights
from agentrl.group_faults import members, row_advantages
from agentrl.mask_faults import Finding, first_place


# 14_faults/14_7_weights, cell 2
def effective_weights(aggregation, mask, pieces=None):
    """Weight [B, T-1] of each token in aggregation(losses, mask), summed over pieces (lists of rows)."""
    losses = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    total = sum(aggregation(losses[rows], mask[rows]) for rows in (pieces or [list(range(len(mask)))]))
    return torch.autograd.grad(total, losses)[0]


# 14_faults/14_7_weights, cell 7
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


# 14_faults/14_7_weights, cell 10
def episode_votes(episode):
    """Weights [B] of samples such that each episode ([B], codes) counts once and all add up to 1."""
    _, code, count = torch.unique(episode, return_inverse=True, return_counts=True)
    return (1.0 / (count.double() * len(count)))[code]


# 14_faults/14_7_weights, cell 12
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
