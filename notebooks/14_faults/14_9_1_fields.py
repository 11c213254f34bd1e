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
# # 14.9.1 Read a batch, or say which field cannot be read
#
# The checks of this chapter take tensors in one layout. What comes from a sick run may be anything: arrays of the
# wrong shape, masks of floats, log-probabilities that are NaN. This section turns a mapping into tensors that
# checks can use, and says of every field that it cannot use which one it is, at which row and column, and what
# would be allowed.
#
# **Time** 15 min. **Assumes** [14.4](14_4_truncation.ipynb), [14.9.0](14_9_0_batch.ipynb). **Afterwards you can** read
# a batch field by field so that a NaN or a wrong shape becomes a line with its place, and no exception.

# %%
#@save batch_fields
from difflib import get_close_matches

import torch

from agentrl.cut_faults import CALL_FIELDS

# %% [markdown]
# ## What a batch may hold
#
# The names are those of the checks' arguments, so that a check finds its inputs by itself. The book's layout
# has T tokens and T−1 columns, column t speaking of token t+1. Padding may be left or right.

# %%
#@save
BATCH_FIELDS = {
    'tokens': {
        'ids': 'token ids', 'owner': 'who wrote each (OWNER of 5.2, -1: padding)',
        'turn': 'call number, -1: none', 'attention_mask': '0 on padding',
        'position_ids': 'from 0 at the first token of a text', 'given_ids': 'prompts and responses, side by side',
    },
    'columns': {
        'action_mask': '1 where the predicted token is trained', 'advantages': 'also one a row',
        'logp': "the engine's log-prob, 0 where it did not sample", 'ref_logp': 'of the reference policy',
        'train_logp': "the trainer's log-prob before the update",
        'rewards': 'token rewards as the environment paid them', 'values': 'of the critic',
        'returns': 'what the critic is fitted to; without a critic, rewards to go',
        'weights': 'token importance weights', 'token_weights': 'from effective_weights (14.7)',
    },
    'rows': {
        'reward': 'of the episode', 'group': 'a code for each prompt', 'episode': 'a code for each episode',
        'truncated': 'cut by a limit that the agent does not see',
        'final_value': "the critic's value after the cut",
        'sequence_weights': 'importance weights of rows',
    },
    'lists': {
        'errors': 'None, or what went wrong, a row', 'retries': 'how often a row was tried again',
        'sampled_ids': 'ids that the engine returned, a row', 'contexts': 'ids it was given, a call of a row',
        'key': 'what names a row in every run', 'rerun_key': 'the keys of rerun_ids',
    },
    'others': {
        'calls': 'a table with a line a call (14.4)', 'rerun_ids': 'ids of a second run with the same seed',
        'gamma': 'discount', 'lam': 'of GAE', 'loss_agg': 'token_mean, ... (6.2)',
        'sequence_kind': 'sum or mean (14.6)', 'weight_cap': 'upper clip of sequence weights',
        'same_weights': 'are train_logp and logp of the same weights?',
        'estimator': 'grpo, rloo, gae, ... (14.9.0)', 'precision': 'relative rounding of the numbers, by their dtype',
    },
}
ALL_FIELDS = tuple(name for names in BATCH_FIELDS.values() for name in names)
MASKS_OF_01 = ('action_mask', 'attention_mask', 'truncated')
LABELS = ('group', 'episode')

# %% [markdown]
# ## Reading it, or refusing to
#
# A sick run is the most likely one to hold a NaN, so no input may cost the report. Shapes, masks and numbers are
# looked at first; a field that cannot be used is a red line, with its name, the place and what is allowed,
# and the checks that need it say so. Other unknown names are listed in the report and ignored, with a guess
# where one looks like a slip.

# %%
#@save
class UnusableField(ValueError):
    """A field that no check can use: what is wrong, and the first row and column at which it shows."""

    def __init__(self, message, place=()):
        super().__init__(message)
        self.row, self.column = (*place, None, None)[:2]


# %%
#@save
def shape_of(name, ids_shape, kind):
    """The shape that a field must have, given that of ids (or of action_mask, plus a column)."""
    n_rows, width = ids_shape
    return {'tokens': (n_rows, width), 'columns': (n_rows, width - 1), 'rows': (n_rows,)}[kind]


# %%
#@save
def plain_tensor(name, value):
    """An array, list or jagged tensor as a tensor on the CPU, jagged rows padded with 0 at the right."""
    try:
        if torch.is_tensor(value) and value.is_nested:
            return torch.nn.utils.rnn.pad_sequence([row.detach().cpu() for row in value.unbind()], True)
        tensor = torch.as_tensor(value).detach().cpu()
    except Exception as error:
        raise UnusableField(f'{name} is not an array: {error}') from error
    if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
        raise UnusableField(f'{name} is {tensor.dtype}, {tensor.layout}; allowed: dense real numbers')
    return tensor


# %%
#@save
def read_field(name, value, shape, others=()):
    """One array as a tensor of this shape, or one of `others`; UnusableField for anything else."""
    tensor = plain_tensor(name, value)
    if tuple(tensor.shape) not in (shape, *others):
        allowed = ' or '.join(str(list(s)) for s in (shape, *others))
        raise UnusableField(f'{name} has shape {list(tensor.shape)}; allowed: {allowed}')
    if name not in MASKS_OF_01:
        return tensor
    if (strange := (tensor != 0) & (tensor != 1)).any():
        at = strange.nonzero()[0].tolist()
        raise UnusableField(
            f'{name} holds {tensor[tuple(at)].item()} at {at}; a mask holds 0 and 1 (or False and True)', at
        )
    return tensor.bool()


# %%
#@save
def check_finite(name, tensor, where):
    """UnusableField unless `tensor` is finite where `where` is set."""
    bad = ~tensor.isfinite() & where
    if bad.any():
        at = bad.nonzero()[0].tolist()
        raise UnusableField(
            f'{name} is {tensor[tuple(at)].item()} at {at} and {int(bad.sum())} places in all; what is used must be '
            'finite. If this row failed, say so in errors', at
        )


# %%
#@save
def codes(labels):
    """Labels of any kind, one a row, as numbers."""
    labels = [str(label) for label in (labels.tolist() if hasattr(labels, 'tolist') else labels)]
    number = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    return [number[label] for label in labels]


# %%
#@save
def read_one(name, kind, value, read):
    """A field as checks take it, given those already read; UnusableField says why it cannot be."""
    mask = read['action_mask']  # bool [B, T-1]
    ids_shape = (mask.shape[0], mask.shape[1] + 1)
    if kind == 'lists' and name != 'rerun_key' and len(value) != len(mask):
        raise UnusableField(f'{name} has {len(value)} entries; allowed: {len(mask)}, one a row')
    if name == 'loss_agg':
        return str(value).replace('-', '_')  # verl writes token-mean
    if name == 'rerun_ids':
        return plain_tensor(name, value)
    needed = CALL_FIELDS
    if name == 'calls' and (missing := [field for field in needed if field not in value]):
        raise UnusableField(f'calls lacks {", ".join(missing)}; it needs {", ".join(needed)}, and may have row')
    if kind not in ('tokens', 'columns', 'rows'):
        return value
    others = [ids_shape[:1]] if name == 'advantages' else []
    tensor = read_field(name, codes(value) if name in LABELS else value, shape_of(name, ids_shape, kind), others)
    if not tensor.is_floating_point():
        whole = name in LABELS or kind == 'tokens' or name in MASKS_OF_01
        return tensor if whole else tensor.double()
    healthy = torch.tensor([error is None for error in read.get('errors', [None] * len(mask))], dtype=torch.bool)
    where = healthy if tensor.dim() == 1 else healthy[:, None]
    check_finite(name, tensor, mask & where if tensor.shape == mask.shape else where)
    return tensor.double().nan_to_num(0.0, 0.0, 0.0)


# %%
#@save
def read_mask(batch):
    """action_mask as bool [B, T-1]; UnusableField if there is none that can be used."""
    if batch.get('action_mask') is None:
        raise UnusableField(
            'a batch needs action_mask [B, T-1]; give it, or a batch of TRL or verl (from_trl, from_verl); '
            f'given: {", ".join(map(str, list(batch)[:20])) or "nothing"}'
        )
    mask = plain_tensor('action_mask', batch['action_mask'])
    if mask.dim() != 2 or not mask.numel():
        raise UnusableField(f'action_mask has shape {list(mask.shape)}; allowed: [B, T-1], neither of them 0')
    return read_field('action_mask', mask, tuple(mask.shape))


# %%
#@save
def read_batch(batch):
    """Known fields of a mapping in the book's layout, as checks take them; unknown names; problems by field.

    A problem is an UnusableField. Without a mask nothing else can be read.
    """
    kinds = {name: kind for kind, names in BATCH_FIELDS.items() for name in names}
    unknown = [str(name) for name in batch if name not in kinds]
    read, problems = {}, {}
    try:
        read['action_mask'] = read_mask(batch)
    except UnusableField as error:
        return {}, unknown, {'action_mask': error}
    for name in sorted(kinds, key=lambda name: name != 'errors'):  # what failed need not be finite
        if name in read or batch.get(name) is None:
            continue
        try:
            read[name] = read_one(name, kinds[name], batch[name], read)
        except UnusableField as error:
            problems[name] = error
        except Exception as error:
            problems[name] = UnusableField(f'{name} cannot be read: {type(error).__name__}: {error}')
    return read, unknown, problems


def with_guess(name, known=ALL_FIELDS):
    """An unknown name, with the field that it may be meant for."""
    close = get_close_matches(name, known, n=1, cutoff=0.85)
    return f'{name} (did you mean {close[0]}?)' if close else name


# %%
for bad in (
    {'action_mask': [[0, -1]]},
    {'action_mask': [[0, 1]], 'reward': [1.0, 2.0]},
    {'action_mask': [[1, 1]], 'logp': [[-0.5, float('nan')]]},
    {'ids': [[1, 2]]},
):
    print(*read_batch(bad)[2].values())
print(with_guess('adventages'))

# %% [markdown]
# ## How finely the numbers are rounded
#
# Tolerances follow the numbers. A value in bfloat16 has 8 bits, so that two correct ways to compute an advantage
# may differ in its third digit. The dtype says so, or, where a dump was converted before it was stored, the digits do.

# %%
#@save
HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


# %%
#@save
def rounding_of(fields):
    """Relative rounding of the coarsest log-probs, values, weights or advantages, by dtype or by their digits."""
    worst = 1e-6
    for name in ('advantages', 'logp', 'train_logp', 'values', 'weights', 'returns'):
        x = fields.get(name)
        if torch.is_tensor(x) and x.is_floating_point() and not x.is_nested and x.layout == torch.strided:
            x = x.detach().flatten()[:: max(1, x.numel() // 200_000)].cpu()  # a sample is enough
            x = x[x != 0]
            for dtype, eps in HALF.items():
                if x.dtype == dtype or x.unique().numel() > 8 and (x.to(dtype).to(x.dtype) == x).all():
                    worst = max(worst, eps)
    return worst

# %%
x = torch.linspace(-3, -0.1, 50, dtype=torch.float64)[:, None]
for dtype in (torch.float64, torch.bfloat16, torch.float16):
    print(f'{str(dtype):15}', f'{rounding_of({"logp": x.to(dtype).double()}):.1g}')

# %% [markdown]
# ## What was seen
#
# Four batches with a fault each gave four lines that name the field, the place and what is allowed. A misspelt name was
# listed with the field that it may be meant for. Numbers that had once been in bfloat16 or float16 were recognised by
# their digits although they came as float64.
#
# **Try it.** Give `read_batch` a mask of floats, and then one with a value of 0.5. Which of them is refused, and where?
