# Made by tools/export.py from notebooks/06_policy_gradient/06_1_gradient_and_mask.py. Do not edit: change it there, then `make export`.
# Body: ec5844d6bc83f046
"""6.1 Train on the tokens that the policy chose."""

import torch


# 06_policy_gradient/06_1_gradient_and_mask, cell 9
def keep_only(x, mask):
    """x where mask is set, elsewhere exactly 0 with gradient 0, even where x is inf or NaN.

    ValueError for a mask of another shape.
    """
    if mask.shape != x.shape:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: {list(x.shape)}, that of the values')
    return x.masked_fill(~mask.bool(), 0.0)


# 06_policy_gradient/06_1_gradient_and_mask, cell 11
def masked_mean(x, mask):
    """Mean of x over the kept positions, as a scalar; 0 where nothing is kept."""
    return keep_only(x, mask).sum() / mask.bool().sum().clamp(min=1)


# 06_policy_gradient/06_1_gradient_and_mask, cell 13
def check_kept(mask, **arrays):
    """ValueError if one of the named arrays, of the shape of mask, is not finite where mask is set."""
    for name, x in arrays.items():
        bad = (~x.isfinite() & mask.bool()).nonzero()
        if len(bad):
            at = bad[0].tolist()
            raise ValueError(f'{name} is {x[tuple(at)].item()} at the kept position {at}; kept values must be '
                             'finite: find what made it, or drop the position from the mask')


# 06_policy_gradient/06_1_gradient_and_mask, cell 14
def reinforce_loss(logp, advantages, mask):
    """REINFORCE (Williams 1992) as a loss, token mean: -masked_mean(advantages * logp).

    logp, mask: [B, T-1]. advantages: [B, T-1], or [B] to give every token of a row the same; no gradient
    flows into them. ValueError for any other shape, and for kept values that are not finite.
    """
    if advantages.shape == logp.shape[:1]:
        advantages = advantages[:, None].expand_as(logp)
    if advantages.shape != logp.shape:
        per_token, per_row = list(logp.shape), list(logp.shape[:1])
        raise ValueError(f'advantages have shape {list(advantages.shape)}; '
                         f'allowed: {per_token} (one a token) or {per_row} (one a row)')
    loss = -masked_mean(keep_only(advantages.detach(), mask) * logp, mask)
    if not loss.isfinite():
        check_kept(mask, logp=logp, advantages=advantages)
    return loss


# 06_policy_gradient/06_1_gradient_and_mask, cell 17
NO_SPREAD = 1e-9


# 06_policy_gradient/06_1_gradient_and_mask, cell 17
def same_within(low, high, dtype, share=NO_SPREAD):
    """True where low <= high differ by no more than `share`, or 16 eps of dtype if that is more, of their size.

    The size is the larger of 1, |low| and |high|; dtype is the one in which the numbers were computed.
    """
    if dtype.is_floating_point:
        share = max(share, 16 * torch.finfo(dtype).eps)
    return high - low <= share * torch.maximum(low.abs(), high.abs()).clamp(min=1)


# 06_policy_gradient/06_1_gradient_and_mask, cell 17
def check_switch(name, value):
    """ValueError unless value is True or False: the text 'False', say, counts as true."""
    if not isinstance(value, bool):
        raise ValueError(f'{name}={value!r} must be True or False')
