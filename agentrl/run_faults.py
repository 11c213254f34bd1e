# Made by tools/export.py from notebooks/14_faults/14_8_runs.py. Do not edit: change it there, then `make export`.
# Body: 7ec0c94b08325d61
"""14.8 Lose no episode, and be able to play it again."""

import random
import re

from agentrl.mask_faults import Finding

# 14_faults/14_8_runs, cell 3
NOISE = ('', '"', '{', '}', '\\', '\n', '\x00', '<', '9', 'é', '[]')


# 14_faults/14_8_runs, cell 3
def mangle(text, rng):
    """A string near `text`, cut, and with parts replaced or inserted; rng: a random.Random."""
    letters = list(text[:rng.randint(0, len(text))] if rng.random() < 0.5 else text)
    for _ in range(rng.randint(0, 4)):
        at = rng.randint(0, len(letters))
        letters[at:at + rng.randint(0, 2)] = rng.choice(NOISE)
    return ''.join(letters)


# 14_faults/14_8_runs, cell 3
def check_parser(parse, examples, n=500, seed=0):
    """`parse` answers any string without raising, tried on n mangled `examples`, or a Finding."""
    rng, raised = random.Random(seed), []
    for _ in range(n):
        text = mangle(rng.choice(examples), rng)
        try:
            parse(text)
        except Exception as error:
            raised.append((type(error).__name__, text))
    if not raised:
        return None
    kinds = ', '.join(sorted({name for name, _ in raised}))
    return Finding('malformed calls kill the rollout',
                   f'{len(raised)} of {n} strings raised {kinds}; {raised[0][0]} on {raised[0][1]!r}')


# 14_faults/14_8_runs, cell 5
PARSER_ERRORS = re.compile(
    r'JSONDecodeError|Expecting .* delimiter|Unterminated string|KeyError|TypeError|ValidationError'
    r'|SyntaxError|invalid arguments|malformed',
    re.IGNORECASE,
)


# 14_faults/14_8_runs, cell 5
def check_lost_rollouts(errors):
    """No row was lost to an error in reading what the policy wrote (errors: a list), or a Finding."""
    lost = [n for n, error in enumerate(errors) if error is not None and PARSER_ERRORS.search(str(error))]
    if not lost:
        return None
    return Finding(
        'malformed calls kill the rollout',
        f'{len(lost)} of {len(errors)} rows; the first says {str(errors[lost[0]])[:60]!r}',
        lost[0],
    )


# 14_faults/14_8_runs, cell 9
def check_rerun(ids, key, rerun_ids, rerun_key):
    """Rows of two runs, ids [B, T] with B distinct keys, agree key by key, or a Finding.

    Columns are compared up to the narrower of the two widths: pad both runs to one width to compare all.
    """
    keys, again = [str(k) for k in key], {str(k): row for row, k in enumerate(rerun_key)}
    if len(set(keys)) < len(keys) or set(keys) != set(again):
        raise ValueError(
            f'key and rerun_key must hold the same, distinct keys; given {len(keys)} and {len(again)}, '
            f'{len(set(keys) & set(again))} of them in both'
        )
    other, width = rerun_ids[[again[k] for k in keys]], min(ids.shape[1], rerun_ids.shape[1])
    differs = ids[:, :width] != other[:, :width]
    if not differs.any():
        return None
    row, column = differs.nonzero()[0].tolist()
    return Finding(
        'the same seed gives other tokens',
        f'{int(differs.any(1).sum())} of {len(ids)} rows; the first parts at token '
        f'{column}: {int(ids[row, column])}, then {int(other[row, column])}',
        row,
        max(column - 1, 0),
    )


# 14_faults/14_8_runs, cell 11
WAIT_AND_RETRY = re.compile(
    r'\b(429|503)\b|too many requests|rate.?limit|limit exceeded|quota|throttl|temporarily'
    r'|try again|overloaded',
    re.IGNORECASE,
)


# 14_faults/14_8_runs, cell 11
def check_quota_errors(errors, retries):
    """No row that was told to wait was given up without a retry (errors, retries: lists), or a Finding."""
    lost = [
        n
        for n, (error, tries) in enumerate(zip(errors, retries, strict=True))
        if error is not None and not int(tries) and WAIT_AND_RETRY.search(str(error))
    ]
    if not lost:
        return None
    return Finding(
        'a quota message was taken as fatal',
        f'{len(lost)} of {len(errors)} rows were given up at the first '
        f'attempt; the first says {str(errors[lost[0]])[:60]!r}',
        lost[0],
    )
