# Made by tools/export.py from notebooks/08_ppo/08_1_clipped_update.py. Do not edit: change it there, then `make export`.
# Body: 3cf109b0460f50dc
"""8.1 Stop each token after a bounded step."""

import torch

from agentrl.gradient import keep_only, masked_mean

# 08_ppo/08_1_clipped_update, cell 3
MAX_LOG_RATIO = 20.0


# 08_ppo/08_1_clipped_update, cell 4
def probability_ratio(logp, old_logp, mask):
    """pi / pi_old [B, T-1], finite (log-ratio within ±MAX_LOG_RATIO); 1 without gradient where mask is 0."""
    log_ratio = keep_only(logp - old_logp.detach(), mask)
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


# 08_ppo/08_1_clipped_update, cell 6
def clipped_loss(logp, old_logp, advantages, weights, clip=0.2):
    """PPO's clipped loss (Schulman et al. 2017): -(weights * min(r A, clip(r, 1-clip, 1+clip) A)).sum().

    All arrays [B, T-1]; weights from loss_weights of the whole minibatch, in the rows at hand; a position of
    weight 0 is ignored, whatever the others hold there. Shapes that differ raise ValueError.
    """
    shapes = [list(x.shape) for x in (logp, old_logp, advantages, weights)]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f'logp, old_logp, advantages, weights: shapes {shapes}; all must be [B, T-1]')
    ratio = probability_ratio(logp, old_logp, weights)
    advantages = keep_only(advantages, weights).detach()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(weights * surrogate).sum()


# 08_ppo/08_1_clipped_update, cell 10
def clip_fraction(logp, old_logp, advantages, mask, clip=0.2):
    """Share of the kept tokens [B, T-1] whose gradient the clip sets to zero: a scalar without gradient."""
    ratio = probability_ratio(logp, old_logp, mask).detach()
    up = (advantages > 0) & (ratio > 1 + clip)
    down = (advantages < 0) & (ratio < 1 - clip)
    return masked_mean((up | down).to(torch.float64), mask)
