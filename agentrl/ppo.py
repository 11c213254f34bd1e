# Made by tools/export.py from notebooks/08_ppo/08_1_clipped_update.py. Do not edit: change it there, then `make export`.
# Body: 6d7dfb48c2a2de94
"""8.1 Stop each token after a bounded step."""

import torch

from agentrl.gradient import check_kept, keep_only, masked_mean

# 08_ppo/08_1_clipped_update, cell 3
MAX_LOG_RATIO = 20.0


# 08_ppo/08_1_clipped_update, cell 4
def check_shapes(**arrays):
    """ValueError unless all of the named arrays have one shape [B, T-1]."""
    shapes = {name: list(x.shape) for name, x in arrays.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        raise ValueError(f'{", ".join(shapes)}: shapes {list(shapes.values())}; all must be [B, T-1]')


# 08_ppo/08_1_clipped_update, cell 4
def probability_ratio(logp, old_logp, mask):
    """pi / pi_old [B, T-1], finite (log-ratio within ±MAX_LOG_RATIO); 1 without gradient where mask is 0.

    ValueError for shapes that differ, and for a kept log-ratio that is not a number.
    """
    check_shapes(logp=logp, old_logp=old_logp, mask=mask)
    log_ratio = keep_only(logp - old_logp.detach(), mask)
    if log_ratio.isnan().any():
        check_kept(mask, logp=logp, old_logp=old_logp)
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


# 08_ppo/08_1_clipped_update, cell 6
def check_clip(clip):
    """ValueError unless clip is a number above 0 (infinity: no clip)."""
    if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0:
        raise ValueError(f'clip={clip!r} must be > 0; use float("inf") for no clip')


# 08_ppo/08_1_clipped_update, cell 7
def clipped_loss(logp, old_logp, advantages, weights, clip=0.2):
    """PPO's clipped loss (Schulman et al. 2017): -(weights * min(r A, clip(r, 1-clip, 1+clip) A)).sum().

    All arrays [B, T-1]; weights from loss_weights of the whole minibatch, in the rows at hand; a position of
    weight 0 is ignored, whatever the others hold there. ValueError for shapes that differ, a clip not above 0,
    and kept values that are not finite.
    """
    check_shapes(logp=logp, old_logp=old_logp, advantages=advantages, weights=weights)
    check_clip(clip)
    ratio = probability_ratio(logp, old_logp, weights)
    kept = keep_only(advantages, weights).detach()
    loss = -(weights * torch.minimum(ratio * kept, ratio.clamp(1 - clip, 1 + clip) * kept)).sum()
    if not loss.isfinite():
        check_kept(weights, advantages=advantages, weights=weights)
    return loss


# 08_ppo/08_1_clipped_update, cell 11
def clip_fraction(logp, old_logp, advantages, mask, clip=0.2):
    """Share of the kept tokens [B, T-1] whose gradient the clip sets to zero: a scalar without gradient.

    0 where nothing is kept. ValueError as in clipped_loss.
    """
    check_shapes(logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    check_clip(clip)
    if not keep_only(advantages, mask).sum().isfinite():
        check_kept(mask, advantages=advantages)
    ratio = probability_ratio(logp, old_logp, mask).detach()
    up = (advantages > 0) & (ratio > 1 + clip)
    down = (advantages < 0) & (ratio < 1 - clip)
    return masked_mean((up | down).to(torch.float64), mask)
