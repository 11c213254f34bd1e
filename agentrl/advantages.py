# Made by tools/export.py from notebooks/09_grpo/09_1_group_advantages.py. Do not edit: change it there, then `make export`.
# Body: abcc098261234fea
"""9.1 Judge an episode by its siblings."""

import torch

from agentrl.gradient import check_kept, check_switch, keep_only, same_within


# 09_grpo/09_1_group_advantages, cell 4
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


# 09_grpo/09_1_group_advantages, cell 5
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


# 09_grpo/09_1_group_advantages, cell 14
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


# 09_grpo/09_1_group_advantages, cell 16
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
