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
# # 14.8 Lose no episode, and be able to play it again
#
# Some faults are not in a formula but in the plumbing around it. A model writes broken arguments and the
# rollout dies of it. A run is repeated with the same seed and is another run. A server says "later" and the
# client hears "never". Each loses information that the trainer needed, and each leaves a trace that can be
# tested for.
#
# **Time** 15 min. **Assumes** [4.3](../04_environment/04_3_bugfix_env.ipynb), [14.1](14_1_masks.ipynb).
# **Afterwards you can** fuzz the parser of an agent loop, compare a rollout in two orders, and check that a
# quota message is retried.

# %%
#@save run_faults
import random
import re

from agentrl.mask_faults import Finding

# %% [markdown]
# ## Exhibit: the argument that killed the rollout
#
# **Symptom.** A quarter of the rollouts of a young policy is missing, and the mean reward, taken over the
# survivors, looks better than the policy is. **Reported** in verifiers, pull request 1763: tool arguments
# went through `json.loads` unguarded, and about 25% of the rollouts (4 of 16 in one run) died of a
# `JSONDecodeError`. **The wrong version** trusts its input.

# %%
BROKEN = ('{"path": "notes"}', '{"path": "no', '["path"]', '')
import json


def parse_arguments(text):
    """WRONG, for comparison: a parser that raises what the policy provokes."""
    return json.loads(text)['path']


for text in BROKEN:
    try:
        print(repr(text), '->', parse_arguments(text))
    except Exception as error:
        print(repr(text), '->', type(error).__name__, '(rollout lost)')

# %% [markdown]
# **The right version** is `parse_call` of 4.3: *any* string gets an answer, and a bad one costs a turn. The
# policy sees the error and may do better; the sample stays, with the reward it earned. **The check** is a
# small fuzzer for your parser: it feeds valid text and what is left of it after cuts, swaps and insertions.


# %%
#@save
NOISE = ('', '"', '{', '}', '\\', '\n', '\x00', '<', '9', 'é', '[]')


def mangle(text, rng):
    """A string near `text`, cut, and with parts replaced or inserted; rng: a random.Random."""
    letters = list(text[:rng.randint(0, len(text))] if rng.random() < 0.5 else text)
    for _ in range(rng.randint(0, 4)):
        at = rng.randint(0, len(letters))
        letters[at:at + rng.randint(0, 2)] = rng.choice(NOISE)
    return ''.join(letters)


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


# %%
from agentrl.environment import parse_call

print('wrong:', check_parser(parse_arguments, ['{"path": "notes"}']))
good_calls = ['<call> edit fix_boundary </call>', '<call> read </call>']
print('ours:', check_parser(parse_call, good_calls) or 'nothing found')

# %% [markdown]
# In a batch that is already written, the trace is an error message of a parser. `check_lost_rollouts` reads
# the `errors` of the rows, a list with `None` or what went wrong.

# %%
#@save
PARSER_ERRORS = re.compile(
    r'JSONDecodeError|Expecting .* delimiter|Unterminated string|KeyError|TypeError|ValidationError'
    r'|SyntaxError|invalid arguments|malformed',
    re.IGNORECASE,
)


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


# %%
errors = [None, "JSONDecodeError: Expecting ',' delimiter: line 1 column 184", None, None]
print('wrong:', check_lost_rollouts(errors))
print('ours:', check_lost_rollouts([None] * 4) or 'nothing found')

# %% [markdown]
# ## Exhibit: the seed that was not enough
#
# **Symptom.** The same seed, the same code, another run; a bug seen at step 60 cannot be seen again.
# **Reported** in verl, issue 3126: large differences between runs despite the seed. The discussion there
# names several causes, among them a seed that reached the shuffling of data but not the sampling of tokens.
# One cause can be shown on a page: *one* generator for a whole batch, from which the rows help themselves
# in turn. Who finishes first changes what the others get, so a row depends on its neighbours and on its
# place among them.

# %%
import torch

NEXT = torch.tensor(
    [[0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [0.2, 0.4, 0.4]], dtype=torch.float64
)  # token 0 ends a row


def sample_shared(starts, generator):
    """WRONG, for comparison: all rows draw from one generator, a token each a round."""
    rows = [[start] for start in starts]
    while running := [row for row in rows if row[-1] != 0]:
        for row in running:
            row.append(int(torch.multinomial(NEXT[row[-1]], 1, generator=generator)))
    return rows


for order in ([1, 2, 1], [2, 1, 1]):
    print(order, '->', sample_shared(order, torch.Generator().manual_seed(0)))

# %% [markdown]
# **The right version** is 5.3's: every episode owns a row of uniforms, and token n uses the n-th of them. The
# row belongs to the *episode*, so it moves with it. We let four real episodes run in two orders and compare.

# %%
from agentrl.base import make_rl_base
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode, pad_rows
from agentrl.sampling import CachedReader, run_episodes
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
policy = make_rl_base(tok)
noise = torch.rand(4, policy.max_len, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def play(order):
    """Ids [4, T] of the first four tasks' episodes, run in this order, each on its own uniforms."""
    episodes = [Episode(EditBudgetEnv(), make_tasks()[n], tok, 6, policy.max_len) for n in order]
    run_episodes(CachedReader(policy, len(order)), episodes, 1.0, noise[order])
    return pad_rows([torch.tensor(episode.ids) for episode in episodes], policy.max_len, tok.pad_id)


# %% [markdown]
# **The check** needs two dumps that should hold the same episodes, and a key for each row: the task's name, a
# prompt hash, whatever stays with the episode. It compares row by row whatever their order.


# %%
#@save
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


# %%
orders = [0, 1, 2, 3], [3, 1, 0, 2]
print('ours:', check_rerun(play(orders[0]), orders[0], play(orders[1]), orders[1]) or 'nothing found')
starts, names = ([1, 2, 1], [2, 1, 1]), (['a', 'b', 'c'], ['b', 'a', 'c'])
dumps = [sample_shared(order, torch.Generator().manual_seed(0)) for order in starts]
width = max(len(row) for rows in dumps for row in rows)
padded = [torch.tensor([row + [0] * (width - len(row)) for row in rows]) for rows in dumps]
print('wrong:', check_rerun(padded[0], names[0], padded[1], names[1]))

# %% [markdown]
# ## Exhibit: the "later" that was heard as "never"
#
# **Symptom.** Under load whole groups vanish: one sample hits a quota, is declared dead, and takes its
# siblings along. **Reported** in miles, pull request 2588, among the levers of its repair: a sandbox quota
# message was taken as fatal although waiting would have cured it. 13.6 has the server, the back-off and the
# arithmetic of groups. **The wrong version** knows a list of messages that may be retried and takes all
# others for fatal.

# %%
#@save
WAIT_AND_RETRY = re.compile(
    r'\b(429|503)\b|too many requests|rate.?limit|limit exceeded|quota|throttl|temporarily'
    r'|try again|overloaded',
    re.IGNORECASE,
)


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


# %%
def may_retry(message):
    """WRONG, for comparison: a list of what may be retried, written before the quota was met."""
    return any(known in message for known in ('timeout', 'connection reset'))


messages = [None, 'Total memory limit exceeded', 'connection reset by peer', 'invalid credentials']
tries = [0 if message is None or not may_retry(message) else 3 for message in messages]
patient = [0, 3, 3, 0]  # waits for quotas, not for credentials
for name, retries in (('wrong', tries), ('patient', patient)):
    print(f'{name}: retries {retries}:', check_quota_errors(messages, retries) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# A parser with `json.loads` raised three kinds of exceptions on mangled text; the gym's answered everything.
# Of three rows that share a generator two were other rows in another order; four episodes with uniforms of
# their own were the same in both. A memory limit that asked for patience was given up at the first attempt,
# and the check did not mistake bad credentials for it.
#
# **Try it.** Fuzz the parser of your own agent loop with `check_parser`. Then dump the same prompts twice, in
# two orders, and see what `check_rerun` says of your sampler.
