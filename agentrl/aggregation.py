# Made by tools/export.py from notebooks/06_policy_gradient/06_2_loss_aggregation.py. Do not edit: change it there, then `make export`.
# Body: ec7cd2de2a9ef032
"""6.2 Give every token its weight before splitting the batch."""

import torch

from agentrl.gradient import keep_only

# 06_policy_gradient/06_2_loss_aggregation, cell 3
AGGREGATIONS = ('token_mean', 'seq_mean_token_mean', 'seq_mean_token_sum')


# 06_policy_gradient/06_2_loss_aggregation, cell 4
def loss_weights(mask, mode):
    """Weights [B, T-1], 0 where mask [B, T-1] is 0, such that loss = (weights * per_token_loss).sum().

    token_mean (DAPO, Yu et al. 2025): 1 / kept tokens. seq_mean_token_mean (GRPO, Shao et al. 2024):
    1 / (kept rows * kept tokens of the row). seq_mean_token_sum (after Dr. GRPO, Liu et al. 2025):
    1 / kept rows, those with a kept token. ValueError for another mode, or a mask that has not two dimensions.
    """
    if mask.dim() != 2:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: [B, T-1], a row per episode')
    keep = mask.bool().to(torch.float64)  # [B, T-1]
    lengths = keep.sum(1, keepdim=True)  # [B, 1]
    rows = (lengths > 0).sum().clamp(min=1)
    if mode == 'token_mean':
        return keep / lengths.sum().clamp(min=1)
    if mode == 'seq_mean_token_mean':
        return keep / (lengths.clamp(min=1) * rows)
    if mode == 'seq_mean_token_sum':
        return keep / rows
    raise ValueError(f'loss aggregation {mode!r} is unknown; allowed: {", ".join(AGGREGATIONS)}')


# 06_policy_gradient/06_2_loss_aggregation, cell 6
def aggregate(x, mask, mode):
    """One scalar from x [B, T-1] over the kept positions of mask [B, T-1]; modes as in loss_weights."""
    return (loss_weights(mask, mode) * keep_only(x, mask)).sum()
