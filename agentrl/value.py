# Made by tools/export.py from notebooks/08_ppo/08_2_value_loss.py. Do not edit: change it there, then `make export`.
# Body: 1060d21f1f91bd37
"""8.2 Bound the critic's step, or not."""

import torch

from agentrl.gradient import check_kept, keep_only, masked_mean
from agentrl.ppo import check_clip, check_shapes


# 08_ppo/08_2_value_loss, cell 3
def check_value_loss(values, old_values, returns, mask, clip):
    """ValueError unless the four arrays have one shape and clip is positive (infinity: no clip)."""
    check_shapes(values=values, old_values=old_values, returns=returns, mask=mask)
    check_clip(clip)


# 08_ppo/08_2_value_loss, cell 4
def value_loss(values, old_values, returns, mask, clip):
    """Clipped value loss of PPO (OpenAI baselines' ppo2, Dhariwal et al. 2017), a scalar.

    Half the mean over mask of max((V - G)^2, (V_clip - G)^2), V_clip = V_old + (V - V_old) held to ±clip.
    All arrays [B, T-1]; 0 if nothing is kept. clip is in units of return; infinity gives the squared error.
    No gradient flows into old_values and returns. ValueError for shapes that differ, a clip not above 0, and
    kept values that are not finite.
    """
    check_value_loss(values, old_values, returns, mask, clip)
    values, old, target = (keep_only(x, mask) for x in (values, old_values.detach(), returns.detach()))
    clipped = old + (values - old).clamp(-clip, clip)
    loss = masked_mean(torch.maximum((values - target) ** 2, (clipped - target) ** 2), mask) / 2
    if not loss.isfinite():
        check_kept(mask, values=values, old_values=old_values, returns=returns)
    return loss
