# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3.3 Pack rows of equal length and compute no padding
#
# Episodes of one batch differ in length by a factor of ten. Padded to the longest, more than half of what
# the network multiplies is filling. And of the rest, training wants the log-probabilities of the policy's own
# tokens only, three in ten. This section computes those and nothing else, and shows that they are the same
# numbers. Section 9.5 measures what it saves.
#
# **Time** 5 min. **Assumes** [3.2](03_2_tiny_agent.ipynb). **Afterwards you can** put rows of different
# lengths through the network without filling, and count the operations that this saves.

# %%
#@save packing
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

# %% [markdown]
# ## How much is filling?
#
# Take eight rows as they come out of a rollout. Their tokens fill a third of the rectangle around them.

# %%
length = torch.tensor([17, 10, 62, 17, 112, 10, 17, 44])
print('tokens', int(length.sum()), 'of', len(length) * int(length.max()))

# %% [markdown]
# ## Rows of equal length stand side by side
#
# Everything in a transformer except attention acts on each token alone, so tokens of all rows can lie end to
# end, [N, d], without a gap. Attention needs to know where a row begins. If rows are sorted by length, those
# of equal length form a rectangle as they lie: cutting it out and looking at it as [rows, length, d] moves no
# number. There are many of them, because calls and answers come in a few lengths.

# %%
#@save
def pack(length):
    """Order [B] of rows by length, and for each length that occurs (how many rows, length)."""
    order = length.argsort(stable=True)
    lengths, n_rows = length[order].unique_consecutive(return_counts=True)
    return order, list(zip(n_rows.tolist(), lengths.tolist(), strict=True))


# %%
order, shapes = pack(length)
print('order', order.tolist(), '\nshapes', shapes)

# %%
#@save
def attend_in_rows(shapes, n_heads):
    """Causal attention of packed rows: q, k, v [N, d], the rows of each of `shapes` end to end."""
    def attend_equal(shape, *qkv):
        q, k, v = (split_heads(x.unflatten(0, shape), n_heads) for x in qkv)      # [rows, H, length, d/H]
        return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)).flatten(0, 1)

    def attend(q, k, v):
        pieces = (x.split([rows * length for rows, length in shapes]) for x in (q, k, v))
        return torch.cat([attend_equal(*piece) for piece in zip(shapes, *pieces, strict=True)])

    return attend


# %% [markdown]
# ## Only what is asked for
#
# `hidden_where` runs the network over packed rows up to its head and returns what it finds at chosen
# positions, and where each stood. All blocks but the last need every token, since later tokens look at them.
# The last one goes on with the chosen tokens alone, and so does the head, which multiplies by the whole
# vocabulary.

# %%
#@save
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


# %% [markdown]
# ## The log-probabilities of actions
#
# First as section 3.2 has it, over the padded batch; then packed. Column t of the mask speaks of token t+1.
# The last token of a row is never an input, so every row that is read is one token shorter.

# %%
#@save
def padded_log_probs(model, ids, length, mask, temperature=1.0):
    """sequence_log_probs where mask is set, 0 elsewhere: ids [B, T], length [B], mask [B, T-1] -> [B, T-1]."""
    if mask.shape != ids[:, 1:].shape:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: {list(ids[:, 1:].shape)}, one column less than ids')
    return sequence_log_probs(model, ids, temperature).where(mask.bool(), 0.0)


def action_log_probs(model, ids, length, mask, temperature=1.0):
    """The same as padded_log_probs, without computing anything else."""
    check_positive('temperature', temperature)
    hidden, row, column = hidden_where(model, ids[:, :-1], length - 1, mask.bool())
    logp = selected_log_probs(model.head(hidden) / temperature, ids[row, column + 1])          # [M]
    return logp.new_zeros(mask.shape).index_put((row, column), logp)


# %% [markdown]
# ## The same numbers
#
# A random model, the eight rows from above, three in ten positions chosen at random.

# %%
from agentrl.model import TinyAgent

rng = torch.Generator().manual_seed(0)
model = TinyAgent(vocab_size=20)
ids = torch.randint(20, (8, 112), generator=rng)
inside = torch.arange(1, 112) < length[:, None]                                   # [8, 111]
mask = inside & (torch.rand(8, 111, generator=rng) < 0.3)
packed = action_log_probs(model, ids, length, mask)
padded = padded_log_probs(model, ids, length, mask)
print('values agree:', bool((packed - padded).abs().max() < 1e-12))


def gradient(logp):
    """The gradient of the sum of logp in all parameters, as one vector."""
    parts = torch.autograd.grad(logp.sum(), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


print('gradients agree:', bool((gradient(packed) - gradient(padded)).abs().max() < 1e-10))

# %% [markdown]
# ## Less work, counted
#
# Times depend on the machine, multiplications do not. PyTorch can count those of all matrix products. (On the
# CPU its counter leaves out attention itself, which would favour packing once more: its work grows with the
# square of a row's length.)

# %%
import pandas as pd
from torch.utils.flop_counter import FlopCounterMode


def count(function):
    """Millions of floating-point operations of a call's matrix products, attention left out."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops() / 1e6


work = {'padded': count(lambda: padded_log_probs(model, ids, length, mask)),
        'packed': count(lambda: action_log_probs(model, ids, length, mask))}
pd.DataFrame({'million operations': work}).round(1)

# %% [markdown]
# ## What was seen
#
# Eight rows that fill a third of their rectangle. Packed by length, and with the last block and the head
# run at the chosen positions only, they give the same log-probabilities to within 1e-12 and the same
# gradients, for a quarter of the operations.
#
# **Try it.** Give all eight rows a length of their own. What changes in the number of operations, and what in
# the number of calls of attention?
