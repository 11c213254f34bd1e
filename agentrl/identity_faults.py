# Made by tools/export.py from notebooks/14_faults/14_3_identity.py. Do not edit: change it there, then `make export`.
# Body: 87e2d562f9bc1906
"""14.3 Train each token once, as it was sampled, where it was sampled."""

import torch

from agentrl.mask_faults import Finding, first_place


# 14_faults/14_3_identity, cell 3
def check_rows(name, given, ids):
    """ValueError unless `given` has an entry for each row of ids [B, T]."""
    if len(given) != len(ids):
        raise ValueError(f'{name} has {len(given)} entries; allowed: {len(ids)}, one a row of ids')


# 14_faults/14_3_identity, cell 3
def check_token_ids(ids, action_mask, sampled_ids):
    """Kept tokens of ids [B, T] are sampled_ids, the engine's list of ids for each row, or a Finding."""
    check_rows('sampled_ids', sampled_ids, ids)
    for row, engine in enumerate(sampled_ids):
        columns = action_mask[row].bool().nonzero()[:, 0]
        trained, engine = ids[row, columns + 1].tolist(), [int(n) for n in engine]
        if not trained or trained == engine:  # a dropped row trains nothing
            continue
        first = next(
            (n for n, pair in enumerate(zip(trained, engine, strict=False)) if pair[0] != pair[1]),
            min(len(trained), len(engine)),
        )
        column = int(columns[min(first, len(columns) - 1)])
        return Finding(
            'trained ids are not the sampled ones',
            f'{len(engine)} tokens were sampled, {len(trained)} are trained; they part at number '
            f'{first + 1}: sampled {engine[first : first + 3]}, trained {trained[first : first + 3]}',
            row,
            column,
        )
    return None


# 14_faults/14_3_identity, cell 7
def call_columns(action_mask):
    """First columns of the runs of kept tokens of one row's mask [T-1]: list of ints."""
    keep = action_mask.bool()
    before = torch.cat([keep.new_zeros(1), keep[:-1]])
    return (keep & ~before).nonzero()[:, 0].tolist()


# 14_faults/14_3_identity, cell 7
def check_call_contexts(ids, action_mask, contexts, attention_mask=None):
    """Before each call, ids [B, T] are what the engine was given, or a Finding.

    A call is a run of kept tokens. contexts: for each row a list with the ids given for each of its calls.
    attention_mask [B, T] says where left padding ends.
    """
    check_rows('contexts', contexts, ids)
    for row, given in enumerate(contexts):
        starts = call_columns(action_mask[row])
        first = 0 if attention_mask is None else int(attention_mask[row].bool().int().argmax())
        if starts and len(starts) != len(given):
            return Finding(
                'calls and contexts do not match',
                f'{len(starts)} runs of kept tokens, {len(given)} contexts',
                row,
                starts[0],
            )
        for call, (column, context) in enumerate(zip(starts, given, strict=False)):
            trained, context = ids[row, first : column + 1].tolist(), [int(n) for n in context]
            if trained != context:
                return Finding(
                    'trained in another context than sampled',
                    f'call {call} was sampled after '
                    f'{len(context)} tokens and is trained after {len(trained)}',
                    row,
                    column,
                )
    return None


# 14_faults/14_3_identity, cell 9
def check_first_ratio(train_logp, logp, action_mask, same_weights, max_gap=1.0, share=1e-3):
    """Trainer and engine, of the same weights, agree on kept tokens [B, T-1] within max_gap, or a Finding.

    A `share` of them may be further apart; in a batch of fewer than 1 / share tokens none may.
    """
    if not same_weights:
        return None
    gap = (train_logp - logp).abs().where(action_mask.bool(), 0.0)
    wrong = gap > max_gap
    if int(wrong.sum()) <= share * int(action_mask.bool().sum()):
        return None
    return Finding(
        'trainer and engine disagree before any update',
        f'{int(wrong.sum())} of {int(action_mask.bool().sum())} kept tokens differ by more than {max_gap:g} '
        f'nats, the worst by {gap.max():.3g}',
        **first_place(wrong),
    )


# 14_faults/14_3_identity, cell 11
def prefix_codes(ids, episode):
    """Codes [B, T] that agree where an episode's ids [B, T] agree up to and with that token, and nowhere else.

    Column by column, the pairs (code so far, next id) are numbered. That is exact, and linear in T.
    """
    code = torch.unique(torch.as_tensor(episode), return_inverse=True)[1]  # [B]
    codes = torch.empty(ids.shape, dtype=torch.int32)
    numbered = torch.unique(ids, return_inverse=True)[1]  # ids as 0, 1, ..., so that a pair fits into an int64
    many = int(numbered.max()) + 1 if numbered.numel() else 1
    for t in range(ids.shape[1]):
        code = torch.unique(code * many + numbered[:, t], return_inverse=True)[1]
        codes[:, t] = code
    return codes


# 14_faults/14_3_identity, cell 11
def train_shared_once(ids, action_mask, episode, trainable):
    """The mask without tokens that an earlier trainable row of the episode trains: bool [B, T-1]."""
    mask = action_mask.bool() & trainable.bool()[:, None]
    codes, rows = prefix_codes(ids, episode)[:, 1:].long(), torch.arange(len(ids))[:, None]  # [B, T-1]
    for column in range(mask.shape[1]):
        keep = mask[:, column]
        first = rows.new_full((len(ids),), len(ids))
        first.scatter_reduce_(0, codes[keep, column], rows[keep, 0], 'amin')  # who trains each code first
        mask[:, column] = keep & (first[codes[:, column]] == rows[:, 0])
    return mask


# 14_faults/14_3_identity, cell 13
def check_trained_once(ids, action_mask, episode):
    """No token is kept after the same ids [B, T] in two rows of one episode ([B]), or a Finding."""
    once = train_shared_once(ids, action_mask, episode, torch.ones(len(ids), dtype=torch.bool))
    twice = action_mask.bool() & ~once
    if not twice.any():
        return None
    return Finding(
        'tokens are trained more than once',
        f'{int(twice.sum())} of {int(action_mask.bool().sum())} kept tokens '
        'are already trained in an earlier row of their episode',
        **first_place(twice),
    )
