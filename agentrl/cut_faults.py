# Made by tools/export.py from notebooks/14_faults/14_4_truncation.py. Do not edit: change it there, then `make export`.
# Body: 010d7fbb95116a27
"""14.4 A cut is neither a call nor an end."""

from agentrl.mask_faults import Finding, first_place


# 14_faults/14_4_truncation, cell 4
def act_or_cut(env, text, finish_reason):
    """One step of an environment of 4.3, or, for a call that was cut at its limit, the end of the episode."""
    if finish_reason == 'length':
        return '', 0.0, False, True, env.get_wrapper_attr('cut')('length')
    return env.step(text)


# 14_faults/14_4_truncation, cell 6
CALL_FIELDS = ('finish_reason', 'tokens', 'limit', 'executed', 'invalid')


# 14_faults/14_4_truncation, cell 6
def check_cut_calls(calls):
    """Calls cut at their limit are neither executed nor counted as malformed, or a Finding.

    calls: a mapping of CALL_FIELDS (and 'row') to sequences, one entry a call; a DataFrame will do.
    """
    lines = list(zip(*(list(calls[name]) for name in CALL_FIELDS), strict=True))
    rows = list(calls['row']) if 'row' in calls else [None] * len(lines)
    cut = [reason == 'length' or tokens >= limit for reason, tokens, limit, *_ in lines]
    relabelled = sum(c and line[0] != 'length' for c, line in zip(cut, lines, strict=True))
    note = f'; {relabelled} of them say another finish_reason' if relabelled else ''
    for field, fault in ((3, 'a cut call was executed'), (4, 'a cut call was scored as malformed')):
        wrong = [n for n, line in enumerate(lines) if cut[n] and line[field]]
        if wrong:
            row = rows[wrong[0]]
            return Finding(
                fault, f'{len(wrong)} of {sum(cut)} cut calls{note}', None if row is None else int(row)
            )
    return None


# 14_faults/14_4_truncation, cell 9
def check_timeouts(returns, rewards, action_mask, truncated, final_value, gamma):
    """Last returns [B, T-1] of rows marked truncated [B] include gamma * final_value [B], or a Finding.

    rewards [B, T-1] as the environment paid them. final_value: the critic's, of the state after the cut.
    """
    keep = action_mask.bool()
    last = keep & (keep.cumsum(1) == keep.sum(1, keepdim=True))  # [B, T-1]
    found, paid = (x.masked_fill(~last, 0.0).sum(1) for x in (returns, rewards))  # [B]
    bonus = gamma * final_value
    tolerance = 1e-3 * bonus.abs().clamp(min=1.0)
    cut = truncated.bool() & keep.any(1)
    wrong = cut & ((found - paid - bonus).abs() > tolerance)
    if not wrong.any():
        return None
    forgot = int((wrong & ((found - paid).abs() <= tolerance)).sum())
    row = first_place(wrong)['row']
    fault = 'timeouts treated as terminations' if forgot else 'wrong bootstrap after a cut'
    return Finding(
        fault,
        f'{int(wrong.sum())} of {int(cut.sum())} truncated rows, {forgot} without any bootstrap; the first '
        f'ends with {found[row]:.3g}, expected {(paid + bonus)[row]:.3g}',
        row,
    )
