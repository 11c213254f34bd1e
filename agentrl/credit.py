# Made by tools/export.py from notebooks/07_advantages/07_1_returns_and_gae.py. Do not edit: change it there, then `make export`.
# Body: 93bddcc1ff09b1c0
"""7.1 Skip what the policy did not write, and never decay across it."""

import torch

from agentrl.gradient import check_kept, keep_only


# 07_advantages/07_1_returns_and_gae, cell 2
def outcome_rewards(verdict, mask):
    """Rewards [B, T-1], float64: verdict [B] at the last kept position of each row of mask [B, T-1], else 0.

    ValueError for another shape, a verdict that is not finite, or one other than 0 in a row that keeps nothing.
    """
    verdict, keep = torch.as_tensor(verdict, dtype=torch.float64), mask.bool()
    if mask.dim() != 2:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: [B, T-1], a row per episode')
    if verdict.shape != keep.shape[:1]:
        raise ValueError(f'verdict has shape {list(verdict.shape)}; '
                         f'allowed: {list(keep.shape[:1])}, one a row of mask')
    if (lost := (verdict != 0) & ~keep.any(1)).any():
        row = lost.nonzero()[0].item()
        raise ValueError(f'verdict {verdict[row].item()} in row {row}, where mask keeps no token; '
                         'leave this row out or make its verdict 0')
    if (bad := ~verdict.isfinite()).any():
        row = bad.nonzero()[0].item()
        raise ValueError(f'verdict {verdict[row].item()} in row {row}; verdicts must be finite')
    last = keep & (keep.cumsum(1) == keep.sum(1, keepdim=True))  # [B, T-1]
    return keep_only(verdict[:, None].expand(keep.shape), last)


# 07_advantages/07_1_returns_and_gae, cell 5
def check_rewards(rewards, mask):
    """ValueError unless rewards and mask have one shape [B, T-1], and rewards are finite and 0 outside mask."""
    if rewards.shape != mask.shape or mask.dim() != 2:
        raise ValueError(f'rewards have shape {list(rewards.shape)}, mask {list(mask.shape)}; '
                         'both must be [B, T-1]')
    stray = ((rewards != 0) & ~mask.bool()).nonzero()
    if len(stray):
        row, column = stray[0].tolist()
        raise ValueError(f'reward {rewards[row, column].item()} in row {row}, column {column}, where mask is '
                         'not set: it would be lost. Put it in the column of the last policy token of the '
                         'call that earned it (column t speaks of token t+1)')
    check_kept(mask, rewards=rewards)


# 07_advantages/07_1_returns_and_gae, cell 6
def returns_to_go(rewards, mask):
    """Sum of the rewards [B, T-1] from each kept position to the end of its row, 0 elsewhere.

    Not discounted. ValueError for rewards where mask is not set, or that are not finite.
    """
    check_rewards(rewards, mask)
    return keep_only(rewards.flip(1).cumsum(1).flip(1), mask)


# 07_advantages/07_1_returns_and_gae, cell 9
def gae_advantages(rewards, values, mask, gamma, lam):
    """Advantages and returns, [B, T-1] each, by GAE over the kept positions (Schulman et al. 2016).

    rewards, values, mask: [B, T-1]; values[:, t] before token t+1 is written. Other positions are skipped,
    never decayed across, and get 0. The value after a row's last kept position is 0; to bootstrap a
    truncated row add gamma * V to its last reward. Returns are advantages + values. No gradient flows.
    Whole numbers count as float64. ValueError for rewards where mask is not set, other shapes, kept numbers
    that are not finite, gamma or lam outside [0, 1].
    """
    check_gae(rewards, values, mask, gamma, lam)
    check_kept(mask, values=values)
    rewards, values = (x if x.is_floating_point() else x.double() for x in (rewards, values))
    values, keep = values.detach().to(torch.promote_types(values.dtype, rewards.dtype)), mask.bool()
    advantages, advantage, next_value = torch.zeros_like(values), *values.new_zeros(2, len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]  # [B]
        advantage = torch.where(keep[:, t], delta + gamma * lam * advantage, advantage)
        next_value = torch.where(keep[:, t], values[:, t], next_value)
        advantages[:, t] = advantage
    return keep_only(advantages, keep), keep_only(advantages + values, keep)


# 07_advantages/07_1_returns_and_gae, cell 10
def check_gae(rewards, values, mask, gamma, lam):
    """ValueError as gae_advantages promises."""
    check_rewards(rewards, mask)
    if values.shape != mask.shape:
        raise ValueError(f'values have shape {list(values.shape)}; allowed: {list(mask.shape)}, as mask')
    for name, value in (('gamma', gamma), ('lam', lam)):
        if not 0 <= value <= 1:
            raise ValueError(f'{name}={value}; allowed: from 0 to 1')
