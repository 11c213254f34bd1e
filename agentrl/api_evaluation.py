# Made by tools/export.py from notebooks/13_staying_alive/13_9_a_real_model_in_the_gym.py. Do not edit: change it there, then `make export`.
# Body: 900784d803ed5b30
"""13.9 Bring a real model to the gym."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from openai import (
    APIError,
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from scipy.stats import binomtest

from agentrl.cut_calls import play_chat
from agentrl.environment import EditBudgetEnv, check_count
from agentrl.serving import TOOL_SCHEMAS
from agentrl.tasks import make_tasks

# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 2
SYSTEM_PROMPT = {'role': 'system', 'content': ' '.join([
    'You repair a small Python function that has one bug. Make exactly one tool call in each turn.',
    'read shows the source: words are separated by spaces, brackets are left out, and end closes a block.',
    'edit applies one of five named edits. fix_comparison turns > into >= or < into <=, or back.',
    'fix_boundary lets the loop end one element later or earlier. fix_operator turns += into -= or back.',
    'fix_init lets the variable start at 0 instead of 1 or back. fix_return moves return out of the loop',
    'or into it. You have one edit, so read first. test runs the visible tests. submit ends the episode,',
    'and hidden tests judge the source as it then is. There are six turns in all; an episode that does not',
    'submit fails.'])}


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 3
@dataclass(frozen=True)
class Record:
    """An episode of an evaluation: which, whether it passed (None: errored), why it ended, turns, tokens."""
    task: str
    sample: int
    passed: bool | None
    stop: str
    turns: int = 0
    tokens: int = 0


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 4
FATAL = (AuthenticationError, PermissionDeniedError, NotFoundError)


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 4
async def play_record(ask, task, sample, episode_seconds):
    """The Record of an episode that is played with `await ask(messages)` in at most `episode_seconds`."""
    def errored(why):
        return Record(task.name, sample, None, why)

    try:
        async with asyncio.timeout(episode_seconds):
            info, turns = await play_chat(ask, EditBudgetEnv(), task, system=[SYSTEM_PROMPT])
    except (TimeoutError, APITimeoutError):
        return errored('timeout')
    except FATAL:
        raise
    except BadRequestError as error:
        if error.code != 'context_length_exceeded' and 'context length' not in error.message:
            return errored(f'refused: {error.message}'[:120])
        return Record(task.name, sample, False, 'context')
    except (APIError, ValueError) as error:
        return errored(f'{type(error).__name__}: {error}'[:120])
    return Record(task.name, sample, info['hidden_pass'], info['stop'], len(turns),
                  sum(turn.written for turn in turns))


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 5
def check_evaluation(model, samples, concurrency, episode_seconds):
    """ValueError that names the first setting that cannot be."""
    check_count('samples', samples), check_count('concurrency', concurrency)
    if not isinstance(episode_seconds, int | float) or not 0 < episode_seconds < float('inf'):
        raise ValueError(f'episode_seconds={episode_seconds!r} must be a positive number of seconds')
    if not model:
        raise ValueError('model is empty; give the name under which the server knows it')


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 5
async def evaluate_api(base_url, model, key, tasks='heldout', samples=1, concurrency=8, episode_seconds=600.0,
                       done=lambda record: None):
    """Records of `samples` episodes of every task, played by a model behind an OpenAI-compatible server."""
    check_evaluation(model, samples, concurrency, episode_seconds)
    places = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=episode_seconds) as client:
        def ask(messages):
            return client.chat.completions.create(model=model, messages=messages, tools=TOOL_SCHEMAS)

        async def play(task, sample):
            async with places:
                record = await play_record(ask, task, sample, episode_seconds)
            done(record)
            return record

        try:
            async with asyncio.TaskGroup() as group:
                playing = [group.create_task(play(task, sample)) for task in make_tasks(tasks)
                           for sample in range(samples)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None                # fatal; the others have been cancelled
    return [task.result() for task in playing]


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 6
def score_records(records):
    """k passed of n scored with a 95% Wilson interval, errored by reason, duplicates; each episode once."""
    episodes = {}
    for record in records:
        if episodes.setdefault((record.task, record.sample), record) != record:
            raise ValueError(f'two different records of task {record.task!r}, sample {record.sample}')
    scored = [record.passed for record in episodes.values() if record.passed is not None]
    k, n = sum(scored), len(scored)
    low, high = binomtest(k, n).proportion_ci(method='wilson') if n else (float('nan'), float('nan'))
    errored = Counter(record.stop for record in episodes.values() if record.passed is None)
    return {'passed': k, 'scored': n, 'low': low, 'high': high, 'errored': dict(errored),
            'duplicates': len(records) - len(episodes)}


# 13_staying_alive/13_9_a_real_model_in_the_gym, cell 6
def score_text(score):
    """The score in a line, and one more for each reason of errors."""
    n = score['scored']
    share = f"{score['passed'] / n:.3f} ({score['low']:.3f} to {score['high']:.3f})" if n else 'no score'
    n_errored = sum(score['errored'].values())
    lines = [f"{score['passed']} of {n} scored episodes passed: {share}; {n_errored} errored"]
    return '\n'.join(lines + [f'  {count} errored: {why}' for why, count in sorted(score['errored'].items())])
