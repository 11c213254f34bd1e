# Made by tools/export.py from notebooks/14_faults/14_5_groups.py. Do not edit: change it there, then `make export`.
# Body: 69b34634e9938d74
"""14.5 Compare only with what was measured."""

import torch

from agentrl.mask_faults import Finding


# 14_faults/14_5_groups, cell 2
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


# 14_faults/14_5_groups, cell 5
def row_advantages(advantages, action_mask=None):
    """One advantage a row, [B]: as given, or of each row's first kept token (nan where there is none)."""
    if advantages.dim() == 1:
        return advantages.double()
    keep = action_mask.bool()
    first = advantages.double().gather(1, keep.int().argmax(1, keepdim=True))[:, 0]
    return first.masked_fill(~keep.any(1), float('nan'))


# 14_faults/14_5_groups, cell 5
def members(group, healthy):
    """Row numbers of the healthy rows of each group, in order of first appearance: list of tensors."""
    codes = [int(g) for g in group]
    return [
        torch.tensor([n for n, g in enumerate(codes) if g == code and healthy[n]], dtype=torch.long)
        for code in dict.fromkeys(codes)
    ]


# 14_faults/14_5_groups, cell 5
def is_healthy(errors, n):
    """True for each of n rows whose entry in errors is None; all True if errors is None."""
    return [True] * n if errors is None else [error is None for error in errors]


# 14_faults/14_5_groups, cell 6
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


# 14_faults/14_5_groups, cell 10
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
