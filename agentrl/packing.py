# Made by tools/export.py from notebooks/03_model/03_3_packed_rows.py. Do not edit: change it there, then `make export`.
# Body: 5109ab8bd93af861
"""3.3 Pack rows of equal length and compute no padding."""

import torch
import torch.nn.functional as F

from agentrl.model import (
    check_ids,
    check_positive,
    merge_heads,
    selected_log_probs,
    sequence_log_probs,
    split_heads,
)


# 03_model/03_3_packed_rows, cell 3
def pack(length):
    """Order [B] of rows by length, and for each length that occurs (how many rows, length)."""
    order = length.argsort(stable=True)
    lengths, n_rows = length[order].unique_consecutive(return_counts=True)
    return order, list(zip(n_rows.tolist(), lengths.tolist(), strict=True))


# 03_model/03_3_packed_rows, cell 5
def attend_in_rows(shapes, n_heads):
    """Causal attention of packed rows: q, k, v [N, d], the rows of each of `shapes` end to end."""
    def attend_equal(shape, *qkv):
        q, k, v = (split_heads(x.unflatten(0, shape), n_heads) for x in qkv)      # [rows, H, length, d/H]
        return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)).flatten(0, 1)

    def attend(q, k, v):
        pieces = (x.split([rows * length for rows, length in shapes]) for x in (q, k, v))
        return torch.cat([attend_equal(*piece) for piece in zip(shapes, *pieces, strict=True)])

    return attend


# 03_model/03_3_packed_rows, cell 6
def hidden_where(model, ids, length, where):
    """What the head reads at the positions set in `where`: hidden [M, d], and the row and column [M] of each.

    ids, where [B, T]; length [B]. ValueError if `where` is set on padding, and for other shapes.
    """
    if ids.dim() != 2 or where.shape != ids.shape or length.shape != ids.shape[:1]:
        raise ValueError(f'ids, where, length: shapes {[list(x.shape) for x in (ids, where, length)]}; allowed: '
                         '[B, T], [B, T], [B]')
    if len(length) and not 0 <= int(length.min()) <= int(length.max()) <= ids.shape[1]:
        raise ValueError(f'length goes from {length.min()} to {length.max()}; rows of ids have {ids.shape[1]} tokens')
    order, shapes = pack(length)
    inside = torch.arange(ids.shape[1]) < length[order, None]                     # [B, T]
    chosen = where[order]                                                         # [B, T]
    if (chosen & ~inside).any():
        raise ValueError(f'{int((chosen & ~inside).sum())} positions are chosen behind the end of their row; '
                         'compare `where` with `length`')
    check_ids(model, ids[order][inside], ids.shape[1])
    attend, position = attend_in_rows(shapes, model.n_heads), inside.nonzero()[:, 1]
    x = model.tokens(ids[order][inside]) + model.positions(position)              # [N, d]
    for block in model.blocks[:-1]:
        x = block(x, attend)
    x = model.blocks[-1](x, attend, keep=chosen[inside].nonzero()[:, 0])          # [M, d]
    row, column = chosen.nonzero(as_tuple=True)
    return model.norm(x), order[row], column


# 03_model/03_3_packed_rows, cell 7
def padded_log_probs(model, ids, length, mask, temperature=1.0):
    """sequence_log_probs where mask is set, 0 elsewhere: ids [B, T], length [B], mask [B, T-1] -> [B, T-1]."""
    if mask.shape != ids[:, 1:].shape:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: {list(ids[:, 1:].shape)}, one column less than ids')
    return sequence_log_probs(model, ids, temperature).where(mask.bool(), 0.0)


# 03_model/03_3_packed_rows, cell 7
def action_log_probs(model, ids, length, mask, temperature=1.0):
    """The same as padded_log_probs, without computing anything else."""
    check_positive('temperature', temperature)
    hidden, row, column = hidden_where(model, ids[:, :-1], length - 1, mask.bool())
    logp = selected_log_probs(model.head(hidden) / temperature, ids[row, column + 1])          # [M]
    return logp.new_zeros(mask.shape).index_put((row, column), logp)
