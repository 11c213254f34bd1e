# Made by tools/export.py from notebooks/07_advantages/07_3_turn_advantages.py. Do not edit: change it there, then `make export`.
# Body: e47bf47e259b8f6e
"""7.3 Let one call be one step."""

import torch
import torch.nn.functional as F

from agentrl.credit import check_gae, gae_advantages
from agentrl.gradient import keep_only


# 07_advantages/07_3_turn_advantages, cell 3
def call_starts(mask, turn_ids):
    """True at the first kept column of each call: mask, turn_ids [B, T-1] -> bool [B, T-1].

    ValueError for other shapes, turns that are no whole numbers, and for kept columns whose turn is negative or
    falls within a row.
    """
    if turn_ids.is_floating_point() or turn_ids.dtype == torch.bool:
        raise ValueError(f'turn_ids are {turn_ids.dtype}; allowed: whole numbers, such as torch.long')
    if turn_ids.shape != mask.shape:
        raise ValueError(f'turn_ids have shape {list(turn_ids.shape)}; allowed: {list(mask.shape)}, as mask. '
                         "Of a batch, take batch['turn'][:, 1:]")
    turn = turn_ids.masked_fill(~mask.bool(), -1)  # [B, T-1]
    before = F.pad(turn.cummax(1).values[:, :-1], (1, 0), value=-1)
    if (wrong := mask.bool() & ((turn < 0) | (turn < before))).any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(f'turn {turn[row, column].item()} at the kept column {column} of row {row}, after '
                         f'turn {before[row, column].item()}; turns must be 0 or more and must not fall')
    return turn > before


# 07_advantages/07_3_turn_advantages, cell 5
def turn_advantages(rewards, values, mask, turn_ids, gamma, lam):
    """Advantages and returns, [B, T-1] each, by GAE (Schulman et al. 2016) with one call as one step.

    rewards, values, mask, turn_ids: [B, T-1]. A call's reward is the sum over its kept tokens, its value that
    of its first kept token; all of them get its advantage, and its return, advantage + value. Other positions
    get 0. gamma and lam count calls. No gradient flows. ValueError as in gae_advantages and call_starts.
    """
    check_gae(rewards, values, mask, gamma, lam)
    starts = call_starts(mask, turn_ids)  # [B, T-1]
    call = (starts.cumsum(1) - 1).clamp(min=0)  # [B, T-1], place of the call among the kept ones of its row
    rewards, values = (x if x.is_floating_point() else x.double() for x in (rewards, values))

    def by_call(x):
        return x.new_zeros(len(x), int(call.max()) + 1).scatter_add(1, call, x)  # [B, K]

    grid = by_call(rewards), by_call(keep_only(values, starts)), by_call(starts.long())
    return tuple(keep_only(x.gather(1, call), mask) for x in gae_advantages(*grid, gamma, lam))
