# Made by tools/export.py from notebooks/08_ppo/08_3_whitening.py. Do not edit: change it there, then `make export`.
# Body: 2f4800bbe2e9860c
"""8.3 Whiten the advantages, and know whose mean you subtract."""

import torch

from agentrl.gradient import keep_only


# 08_ppo/08_3_whitening, cell 3
def check_whiten(x, mask):
    """ValueError unless x and mask have one shape and the kept values of x are finite."""
    if x.shape != mask.shape:
        raise ValueError(f'x has shape {list(x.shape)}, mask {list(mask.shape)}; they must be equal')
    bad = (~x.isfinite() & mask.bool()).nonzero()
    if len(bad):
        at = bad[0].tolist()
        raise ValueError(f'x is {x[tuple(at)].item()} at the kept position {at}; kept values must be finite')


# 08_ppo/08_3_whitening, cell 4
def masked_whiten(x, mask, eps=1e-8):
    """x, shifted and scaled to mean 0 and sample standard deviation 1 over the kept positions, 0 elsewhere.

    x, mask: the same shape, such as [B, T-1]. Exactly 0 everywhere if fewer than two positions are kept or
    all kept values lie within eps of each other. A kept value that is not finite raises ValueError.
    """
    check_whiten(x, mask)
    kept = x[mask.bool()]  # [N]
    if len(kept) < 2 or kept.max() - kept.min() <= eps:
        return torch.zeros_like(x)
    return keep_only((x - kept.mean()) / kept.std(), mask)
