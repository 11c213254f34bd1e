# Made by tools/export.py from notebooks/09_grpo/09_1_group_advantages.py. Do not edit: change it there, then `make export`.
# Body: 600e12308f7338bd
"""9.1 Judge an episode by its siblings."""

import torch

from agentrl.gradient import keep_only

# 09_grpo/09_1_group_advantages, cell 4
NO_SPREAD = 1e-9


# 09_grpo/09_1_group_advantages, cell 5
def check_groups(rewards, group_size):
    """Raise ValueError unless rewards [B] are finite and B is a multiple of group_size >= 2."""
    if group_size < 2:
        raise ValueError(f'group_size is {group_size}; allowed: 2 or more, one episode has no sibling')
    if rewards.dim() != 1 or len(rewards) % group_size:
        raise ValueError(f'rewards have shape {list(rewards.shape)}; allowed is [B] with B a multiple of '
                         f'group_size {group_size}, the episodes of a group side by side')
    if not rewards.isfinite().all():
        row = (~rewards.isfinite()).nonzero()[0].item()
        raise ValueError(f'reward {rewards[row].item()} in row {row}; rewards must be finite')


# 09_grpo/09_1_group_advantages, cell 6
def group_advantages(rewards, group_size, std_normalize=True):
    """Advantages [B], float64, of rewards [B] in contiguous groups (GRPO, Shao et al. 2024).

    r minus the group's mean, divided if std_normalize by the group's sample standard deviation (ddof 1, with
    nothing added). A group whose rewards lie within NO_SPREAD of each other gets exactly 0. A group_size
    below 2 or one that does not divide B, or a reward that is not finite, raises ValueError.
    """
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    check_groups(rewards, group_size)
    groups = rewards.reshape(-1, group_size)  # [B/G, G]
    spread = (groups.amax(1) - groups.amin(1) >= NO_SPREAD)[:, None]  # [B/G, 1], bool
    centred = keep_only(groups - groups.mean(1, keepdim=True), spread)
    if std_normalize:
        centred = centred / groups.std(1, keepdim=True).masked_fill(~spread, 1.0)
    return centred.reshape(-1)


# 09_grpo/09_1_group_advantages, cell 15
def compute_advantages(batch, cfg):
    """Token-level group advantages [B, T-1]: the episode's where action_mask is set, 0 elsewhere.

    batch: 'reward' [B] and 'action_mask' [B, T-1], the rows of a group contiguous. cfg: group_size,
    std_normalize. ValueError as in group_advantages, or if the two disagree about B.
    """
    reward, mask = batch['reward'], batch['action_mask']
    if len(reward) != len(mask):
        raise ValueError(f'{len(reward)} rewards, {len(mask)} rows of action_mask; both must be B')
    advantages = group_advantages(reward, cfg.group_size, cfg.std_normalize)  # [B]
    return keep_only(advantages[:, None].expand(mask.shape), mask)
