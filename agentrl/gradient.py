# Made by tools/export.py from notebooks/06_policy_gradient/06_1_gradient_and_mask.py. Do not edit: change it there, then `make export`.
# Body: b363a705c946cd60
"""6.1 Train on the tokens that the policy chose."""


# 06_policy_gradient/06_1_gradient_and_mask, cell 9
def keep_only(x, mask):
    """x where mask is set, elsewhere exactly 0 with gradient 0, even where x is inf or NaN."""
    return x.masked_fill(~mask.bool(), 0.0)


# 06_policy_gradient/06_1_gradient_and_mask, cell 11
def masked_mean(x, mask):
    """Mean of x over the kept positions, as a scalar; 0 where nothing is kept."""
    return keep_only(x, mask).sum() / mask.bool().sum().clamp(min=1)


# 06_policy_gradient/06_1_gradient_and_mask, cell 13
def reinforce_loss(logp, advantages, mask):
    """REINFORCE (Williams 1992) as a loss, token mean: -masked_mean(advantages * logp).

    logp, mask: [B, T-1]. advantages: [B, T-1], or [B] to give every token of a row the same; no gradient
    flows into them. Any other shape raises ValueError.
    """
    if advantages.shape == logp.shape[:1]:
        advantages = advantages[:, None].expand_as(logp)
    if advantages.shape != logp.shape:
        per_token, per_row = list(logp.shape), list(logp.shape[:1])
        raise ValueError(f'advantages have shape {list(advantages.shape)}; '
                         f'allowed: {per_token} (one a token) or {per_row} (one a row)')
    return -masked_mean(keep_only(advantages.detach(), mask) * logp, mask)
