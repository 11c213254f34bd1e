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
# # 13.9 Bring a real model to the gym
#
# Everything so far was played by TinyAgent. The same episodes can be played by any model behind an
# OpenAI-compatible server, on your machine or elsewhere: `python -m tools.evaluate_api` needs a base URL, a
# model's name and a key. This section builds what stands behind that command and tests it on servers that
# answer, that never answer, that die in the middle and that send rubbish. What is at stake is the score: an
# episode that was lost on the line says nothing about the model.
#
# **Time** 15 min. **Assumes** [13.4](13_4_a_call_cut_by_the_limit.ipynb). **Afterwards you can** evaluate a
# model behind an API, and report its pass rate with an interval, apart from episodes lost on the line.

# %%
#@save api_evaluation
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

# %% [markdown]
# ## What a real model must be told
#
# TinyAgent has the rules of the gym in its weights. A chat model reads them in a system message, and the
# tools in their JSON schemas (section 13.0).

# %%
#@save
SYSTEM_PROMPT = {'role': 'system', 'content': ' '.join([
    'You repair a small Python function that has one bug. Make exactly one tool call in each turn.',
    'read shows the source: words are separated by spaces, brackets are left out, and end closes a block.',
    'edit applies one of five named edits. fix_comparison turns > into >= or < into <=, or back.',
    'fix_boundary lets the loop end one element later or earlier. fix_operator turns += into -= or back.',
    'fix_init lets the variable start at 0 instead of 1 or back. fix_return moves return out of the loop',
    'or into it. You have one edit, so read first. test runs the visible tests. submit ends the episode,',
    'and hidden tests judge the source as it then is. There are six turns in all; an episode that does not',
    'submit fails.'])}

# %%
#@save
@dataclass(frozen=True)
class Record:
    """An episode of an evaluation: which, whether it passed (None: errored), why it ended, turns, tokens."""
    task: str
    sample: int
    passed: bool | None
    stop: str
    turns: int = 0
    tokens: int = 0


# %% [markdown]
# ## One episode, bounded
#
# An episode ends in one of three ways. *Scored*: the model submitted, or ran into a limit of its own, its
# turns, its context or its tokens; those are failures, since a limit belongs to the task. *Errored*: the
# episode took longer than its limit on the wall clock, the connection was lost, the server answered with
# rubbish or an error; nobody knows what would have been. *Fatal*: a wrong key, an unknown model, no
# permission; the next episode would meet the same, so the whole run ends at once with the server's message.
#
# The client has no retries and the episode's time limit: section 13.3 showed why. A refusal for too many
# requests (429) is not waited for either: lower `concurrency` if it shows among the errored.

# %%
#@save
FATAL = (AuthenticationError, PermissionDeniedError, NotFoundError)


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


# %% [markdown]
# ## All episodes
#
# A semaphore holds back what is beyond `concurrency`; an episode's clock starts when it is let in. Settings
# are checked before anything is sent.

# %%
#@save
def check_evaluation(model, samples, concurrency, episode_seconds):
    """ValueError that names the first setting that cannot be."""
    check_count('samples', samples), check_count('concurrency', concurrency)
    if not isinstance(episode_seconds, int | float) or not 0 < episode_seconds < float('inf'):
        raise ValueError(f'episode_seconds={episode_seconds!r} must be a positive number of seconds')
    if not model:
        raise ValueError('model is empty; give the name under which the server knows it')


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


# %% [markdown]
# ## The score
#
# k of n scored episodes passed. The interval is Wilson's (1927) for a share, which stays sensible at 0 and at
# n. A record that is delivered twice counts once: an episode is a task and a sample's number. Two different
# records of one episode are an error in whatever collected them.

# %%
#@save
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


def score_text(score):
    """The score in a line, and one more for each reason of errors."""
    n = score['scored']
    share = f"{score['passed'] / n:.3f} ({score['low']:.3f} to {score['high']:.3f})" if n else 'no score'
    n_errored = sum(score['errored'].values())
    lines = [f"{score['passed']} of {n} scored episodes passed: {share}; {n_errored} errored"]
    return '\n'.join(lines + [f'  {count} errored: {why}' for why, count in sorted(score['errored'].items())])


# %%
records = [Record('a', 0, True, 'submit'), Record('a', 1, False, 'submit'), Record('b', 0, None, 'timeout'),
           Record('a', 0, True, 'submit')]
print(score_text(score_records(records)))
print(score_records(records)['duplicates'], 'duplicate')
print(score_text(score_records([records[2]])))

# %% [markdown]
# ## TinyAgent as the real model
#
# Ten held-out tasks, two episodes of each, over HTTP. The server drops the system message, since TinyAgent's
# template has no place for one. Requests carry no seed, because not every server knows the field; so the
# tokens depend on the order in which requests arrive, and here we let one episode play after another.

# %%
from agentrl.base import make_rl_base
from agentrl.serving import run_async, serve_agent
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
policy = make_rl_base(tok)
with serve_agent(policy, tok) as server:
    records = run_async(evaluate_api(server.url, 'tiny-agent', 'none', samples=2, concurrency=1))
score = score_records(records)
print(score_text(score))
print(Counter(record.stop for record in records))

# %% [markdown]
# ## Servers that fail
#
# Four servers: one takes requests and never answers, one closes the connection in the middle of its answer,
# one sends a web page with status 200, and one leaves out `finish_reason`. From the library's point of view
# the third is not even an error: it hands the page on as text.

# %%
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response

from agentrl.serving import LocalServer, piece


def app_that_answers(answer):
    """A server that gives the same answer to every chat request."""
    app = FastAPI()

    @app.post('/v1/chat/completions')
    def chat():
        return answer()

    return app


choice = {'index': 0, 'message': {'role': 'assistant', 'content': 'done'}, 'finish_reason': None}
apps = {'dies in the middle': lambda: Response('{"id": ', headers={'content-length': '500'}),
        'sends a web page': lambda: HTMLResponse('<html> please wait </html>'),
        'leaves out finish_reason': lambda: JSONResponse(piece(
            1, 'completion', choices=[choice], usage={'completion_tokens': 1, 'total_tokens': 9}))}
with serve_agent(policy, tok) as server:
    server.call(server.engine.hold)
    silent = run_async(evaluate_api(server.url, 'tiny-agent', 'none', concurrency=10, episode_seconds=0.5))
print('never answers:', score_text(score_records(silent)))
for name, answer in apps.items():
    with LocalServer(app_that_answers(answer)) as server:
        records = run_async(evaluate_api(server.url, 'any', 'none', episode_seconds=20.0))
    print(f'{name}:', score_text(score_records(records)))

# %% [markdown]
# Nothing was scored, so nothing counts against the model. A wrong key is another matter: no episode could
# come back, and the run ends at the first.

# %%
refusal = JSONResponse({'error': {'message': 'no such key', 'code': 'invalid_api_key'}}, status_code=401)
with LocalServer(app_that_answers(lambda: refusal)) as server:
    try:
        run_async(evaluate_api(server.url, 'any', 'wrong'))
    except AuthenticationError as error:
        print(error.status_code, error.body['message'])
for settings in ({'samples': 0}, {'concurrency': -1}, {'episode_seconds': float('nan')}):
    try:
        run_async(evaluate_api('http://127.0.0.1:1/v1', 'any', 'none', **settings))
    except ValueError as error:
        print(error)

# %% [markdown]
# ## What was seen
#
# TinyAgent's RL base, played like any model over HTTP, passed 3 of 20 held-out episodes, a share of 0.150
# with an interval from 0.052 to 0.360. Four servers that fail in four ways gave 10 errored episodes each and
# no score, and none of them held the run up. A wrong key ended it at once, with the server's own words.
#
# **Try it.** With a key and a model of your own, or a server on your machine:
# `python -m tools.evaluate_api --base-url URL --model NAME --key-env OPENAI_API_KEY --samples 4`. Then take
# the sentence about `read` out of `SYSTEM_PROMPT`.
