# Made by tools/export.py from notebooks/08_ppo/08_3_whitening.py. Do not edit: change it there, then `make export`.
# Body: 98a3ada07717340f
"""8.3 Whiten the advantages, and know whose mean you subtract."""

import torch

from agentrl.gradient import check_kept, keep_only, same_within


# 08_ppo/08_3_whitening, cell 3
def check_whiten(x, mask):
    """ValueError unless x and mask have one shape, x is of a floating type and finite where it is kept."""
    if x.shape != mask.shape:
        raise ValueError(f'x has shape {list(x.shape)}, mask {list(mask.shape)}; they must be equal')
    if not x.is_floating_point():
        raise ValueError(f'x is {x.dtype}; allowed: numbers with a fraction, such as x.double()')
    check_kept(mask, x=x)


# 08_ppo/08_3_whitening, cell 4
def masked_whiten(x, mask, eps=1e-8):
    """x, shifted and scaled to mean 0 and sample standard deviation 1 over the kept positions, 0 elsewhere.

    x, mask: the same shape, such as [B, T-1]. Exactly 0 everywhere if fewer than two positions are kept or
    all kept values lie within eps of each other, as `same_within` measures it. ValueError for a kept value that
    is not finite, for a type without fractions, and for an eps that is negative or infinite.
    """
    check_whiten(x, mask)
    if not 0 <= eps < float('inf'):
        raise ValueError(f'eps={eps} must be a finite number >= 0')
    kept = x[mask.bool()]  # [N]
    if len(kept) < 2 or same_within(kept.min(), kept.max(), x.dtype, eps):
        return torch.zeros_like(x)
    return keep_only((x - kept.mean()) / kept.std(), mask)
