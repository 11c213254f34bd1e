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
# # 13.6 Wait for a quota, and do not wait for a mistake
#
# Agents act in sandboxes, and whoever rents out sandboxes has limits: so many requests, so many processors in
# all. A refusal of that kind goes away by itself; a wrong key does not. A run that takes the first for the
# second throws away a sample, and with it the whole group that the sample belongs to. We start a real server
# with a quota, sort its answers, wait between tries with growing, jittered pauses, and count the groups that
# survive. Then we count the open sockets of a client that is made anew for each try.
#
# The facts are those of pull requests 2588, 2545 and 2800 of radixark/miles (2026): eight retries, pauses of
# at most 30 seconds, one client a process, and the arithmetic of lost groups.
#
# **Time** 25 min. **Assumes** [13.0](13_0_a_server_for_the_agent.ipynb). **Afterwards you can** tell a
# refusal that will pass from one that will not, and compute how many retries keep a whole group.

# %%
#@save quotas
import asyncio
import re
import selectors
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import psutil
import tenacity
import torch
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from agentrl.environment import check_count
from agentrl.serving import LocalServer

# %% [markdown]
# ## The books of a sandbox service
#
# An order names a key, an image and what it needs. The service refuses in two very different ways. What is
# wrong with the *order* stays wrong: a bad key, an unknown image, one sandbox larger than all that there is.
# What is wrong with the *moment* passes: too many requests just now, or a total that is used up until
# somebody else hands his sandbox back. Note that both ways have a text with "limit exceeded" in it.

# %%
#@save
class SandboxQuota:
    """What a sandbox service keeps: limits on totals, open sandboxes, and how many requests it throttles."""

    def __init__(self, cpu=16, memory=64, disk=100, throttle=0, images=('python',), key='secret'):
        totals = {'CPU': cpu, 'memory': memory, 'disk': disk}
        self.limits = {name: check_count(name, limit, least=0) for name, limit in totals.items()}
        self.throttle = check_count('throttle', throttle, least=0)
        self.images, self.key, self.open, self.requests = images, key, {}, 0

    def create(self, order):
        """(status, text) for an order (dict: key, image, CPU, memory, disk); the text of a 201 is its id."""
        self.requests += 1
        if order.get('key') != self.key:
            return 401, 'invalid API key'
        if order.get('image') not in self.images:
            return 400, f"unknown image {order.get('image')!r}; there are {', '.join(self.images)}"
        if self.throttle:
            self.throttle -= 1
            return 429, 'Too many requests'
        for name, limit in self.limits.items():
            asked, used = order.get(name, 1), sum(other.get(name, 1) for other in self.open.values())
            if asked > limit > 0:
                return 400, f'{name} limit exceeded: asked for {asked}, limit {limit}'
            if used + asked > limit:
                return 403, f'Total {name} limit exceeded: {used} of {limit} in use'
        self.open[str(self.requests)] = order
        return 201, str(self.requests)


# %% [markdown]
# ## Behind a real socket
#
# FastAPI turns this into HTTP, and the server of section 13.0 answers on the loopback address, on a port that
# the system chooses. It goes when the `with` block ends, and in any case after `lifetime` seconds.

# %%
#@save
def quota_app(quota):
    """The web application of a SandboxQuota: POST /sandboxes, DELETE /sandboxes/{id}."""
    app = FastAPI()

    @app.post('/sandboxes')
    async def create(order: dict):
        status, text = quota.create(order)
        return JSONResponse({'id': text} if status == 201 else {'error': text}, status)

    @app.delete('/sandboxes/{sandbox}')
    async def delete(sandbox: str):
        return JSONResponse({}, 200 if quota.open.pop(sandbox, None) else 404)

    return app


@contextmanager
def serve_quota(quota, lifetime=900.0):
    """Serve a SandboxQuota on a free loopback port, at most `lifetime` seconds; gives the URL."""
    with LocalServer(quota_app(quota), lifetime) as server:
        yield server.root


# %%
import pandas as pd

GOOD = {'key': 'secret', 'image': 'python', 'CPU': 8}
orders = {
    'too early': GOOD, 'again': GOOD, 'a second': GOOD, 'a third': GOOD,
    'wrong key': GOOD | {'key': 'sercet'}, 'wrong image': GOOD | {'image': 'pyhton'},
    'larger than all': GOOD | {'CPU': 32}, 'too much memory': GOOD | {'CPU': 0, 'memory': 63},
}
answers = []
with serve_quota(SandboxQuota(cpu=16, throttle=1)) as url, httpx.Client(base_url=url, timeout=60) as client:
    for name, order in orders.items():
        answer = client.post('/sandboxes', json=order)
        answers.append((name, answer.status_code, answer.json().get('error', 'started')))
answers = pd.DataFrame(answers, columns=['order', 'status', 'text'])
answers

# %% [markdown]
# ## Which of these will pass?
#
# The status alone does not say: 403 is a used-up total here and a missing permission elsewhere, 400 is a
# wrong image, and *one* sandbox too large is worded almost like a total that is full. So the rule reads the
# text too, and asks for the word "total". A bad key is fatal whatever else the text says. Anything of the
# 500s is the server's own trouble, and passes.

# %%
#@save
QUOTA_TEXT = re.compile(r'too many requests|total (cpu|memory|disk) limit exceeded', re.IGNORECASE)


def classify_answer(status, text):
    """An HTTP answer is 'ok', 'transient' (quota, throttling, server in trouble) or 'fatal' (order, key)."""
    if 200 <= status < 300:
        return 'ok'
    if status != 401 and (status == 429 or status >= 500 or QUOTA_TEXT.search(text)):
        return 'transient'
    return 'fatal'


# %%
answers.assign(verdict=[classify_answer(status, text) for status, text in answers[['status', 'text']].values])

# %% [markdown]
# A client turns the verdict into an exception of one of two classes. It has a timeout, always: no answer at
# all is trouble of the server's and passes. An answer that nobody can read is not worth a second try.

# %%
#@save
class TransientRefusal(RuntimeError):
    """Refused for the moment: worth another try."""


class FatalRefusal(RuntimeError):
    """Refused for good: another try gets the same answer."""


def create_sandbox(client, order):
    """The id of a new sandbox from an httpx.Client; TransientRefusal or FatalRefusal with the answer."""
    try:
        answer = client.post('/sandboxes', json=order)
        verdict = classify_answer(answer.status_code, answer.text)
        if verdict == 'ok':
            return answer.json()['id']
    except httpx.UnsupportedProtocol as error:
        raise FatalRefusal(f'{client.base_url} is no address; give http://host:port') from error
    except httpx.TransportError as error:
        raise TransientRefusal(f'no answer ({type(error).__name__})') from error
    except (ValueError, KeyError, TypeError) as error:
        raise FatalRefusal(f'HTTP {answer.status_code} without an id: {answer.text[:80]!r}') from error
    kind = TransientRefusal if verdict == 'transient' else FatalRefusal
    raise kind(f'HTTP {answer.status_code}: {answer.text[:120]}')


# %% [markdown]
# ## How long to wait
#
# After the $a$-th failure in a row wait
#
# $$w_a = \min(30,\ 2 \cdot 2^{a-1}) \cdot U, \qquad U \sim \mathrm{Uniform}(0.5, 1.5)$$
#
# seconds. The growth gives the service time, the cap keeps a sample from sleeping through a free moment, and
# the jitter keeps those that were refused together from coming back together (Brooker 2015). `tenacity` has
# the growth and the cap; the factor $U$ comes from a generator that is passed in.

# %%
#@save
MAX_WAIT, MAX_RETRIES = 30.0, 8
plain_wait = tenacity.wait_exponential(multiplier=2, max=MAX_WAIT)


def jittered_wait(generator):
    """A tenacity wait: min(30, 2·2^(a-1)) seconds after attempt a, times U(0.5, 1.5) from `generator`."""
    def wait(state):
        return plain_wait(state) * (0.5 + torch.rand((), generator=generator, dtype=torch.float64).item())

    return wait


# %%
class State:
    """All that a wait looks at."""

    def __init__(self, attempt_number):
        self.attempt_number = attempt_number


wait = jittered_wait(torch.Generator().manual_seed(0))
draws = {a: [wait(State(a)) for _ in range(1000)] for a in range(1, 9)}
waits = pd.DataFrame({a: {'formula': min(30, 2 * 2 ** (a - 1)), 'without jitter': plain_wait(State(a)),
                          'least of 1000': min(w), 'mean': sum(w) / 1000, 'greatest': max(w)}
                      for a, w in draws.items()})
print(waits.round(1).to_string())
print('eight waits together, without jitter:', sum(plain_wait(State(a)) for a in range(1, 9)), 's')

# %% [markdown]
# ## A clock that jumps
#
# Two and a half minutes of waiting are two and a half minutes too many for a notebook or a test. An asyncio
# loop asks two things of the outside: what time it is, and to sleep until its next timer. Ours answers the
# second by moving the first. Everything else (tasks, queues, `asyncio.sleep`, tenacity) stays as it is. If no
# timer is left and no task can run, an ordinary loop would sleep for ever; this one says so.

# %%
#@save
class JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, move the clock `now` there."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError('all tasks wait for each other, and no timer is set: nothing will ever happen')
        self.now += 0.0 if events else max(timeout, 0.0)
        return events


def run_virtual(coroutine):
    """The result of a coroutine, run on a clock that starts at 0 and jumps, in a thread of its own."""
    selector = JumpingSelector()

    def new_loop():
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now
        return loop

    def run():
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(coroutine)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


# %%
async def sleeper(name, seconds, log):
    """Sleep, then note who woke up and when."""
    await asyncio.sleep(seconds)
    log.append((name, asyncio.get_running_loop().time()))


async def three():
    """Three sleepers at once."""
    log = []
    await asyncio.gather(sleeper('a', 3600, log), sleeper('b', 60, log), sleeper('c', 60.5, log))
    return log


async def stuck():
    """Wait for something that nobody will put there."""
    await asyncio.Queue().get()


print(run_virtual(three()))
try:
    run_virtual(stuck())
except RuntimeError as error:
    print(error)

# %% [markdown]
# ## Try again, within a budget
#
# Eight retries, then it is over, and the error says how long was waited and what the last answer was. A fatal
# refusal goes through at once. The request itself is made by a blocking client, so no virtual time passes
# meanwhile and the order of requests is the same in every run; with a real clock one would use
# `httpx.AsyncClient`.

# %%
#@save
class QuotaGaveUp(RuntimeError):
    """A refusal that did not pass within the budget of retries."""


async def create_patiently(client, order, wait, n_retries=MAX_RETRIES):
    """`create_sandbox`, tried again after a TransientRefusal up to n_retries times; else QuotaGaveUp."""
    def give_up(state):
        last = state.outcome.exception()
        raise QuotaGaveUp(f'gave up after {state.attempt_number} attempts and {state.idle_for:.0f} s of '
                          f'waiting; last answer: {last}') from last

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(TransientRefusal), wait=wait, sleep=asyncio.sleep,
        stop=tenacity.stop_after_attempt(1 + check_count('n_retries', n_retries, least=0)),
        retry_error_callback=give_up)

    async def attempt():
        return create_sandbox(client, order)

    return await retrying(attempt)


# %% [markdown]
# Four services: one that throttles three times, one whose quota never clears, one with another key, and one
# that accepts the connection and never answers (its timeout is real, and short here).

# %%
import socket


def outcome(client, quota, order=GOOD):
    """How a patient order ends, and how many requests that took."""
    try:
        result = 'sandbox ' + run_virtual(create_patiently(client, order, jittered_wait(rng)))
    except (QuotaGaveUp, FatalRefusal) as error:
        result = f'{type(error).__name__}: {error}'
    return f'{quota.requests if quota else "?"} requests; {result}'


rng = torch.Generator().manual_seed(0)
quotas = {'throttles thrice': SandboxQuota(throttle=3), 'never clears': SandboxQuota(cpu=0),
          'another key': SandboxQuota(key='other')}
for name, quota in quotas.items():
    with serve_quota(quota) as url, httpx.Client(base_url=url, timeout=60) as client:
        print(f'{name:17}', outcome(client, quota))
with socket.socket() as mute:
    mute.bind(('127.0.0.1', 0))
    mute.listen(16)
    with httpx.Client(base_url=f'http://127.0.0.1:{mute.getsockname()[1]}', timeout=0.05) as client:
        print(f'{"never answers":17}', outcome(client, None))

# %% [markdown]
# ## What one aborted sample costs
#
# Group advantages (section 9.1) compare eight samples of one task. Where an incomplete group is dropped, as
# in the public run, one aborted sample takes its seven siblings with it. If samples abort independently with
# probability $p$, a group of $n$ survives with probability
#
# $$S = (1 - p)^n .$$

# %%
#@save
def group_survival(p, n=8):
    """Chance (1-p)^n that a group has no aborted sample, if each is aborted independently with chance p."""
    if not 0 <= p <= 1:
        raise ValueError(f'p={p!r} must be a probability, from 0 to 1')
    return (1 - p) ** check_count('n', n)


def lost_groups(errors, n=8):
    """{group: its first error} of the groups of n samples that hold one; errors: a text or None a sample."""
    if len(errors) % check_count('n', n):
        raise ValueError(f'{len(errors)} samples are no whole number of groups of n={n}')
    groups = [errors[first:first + n] for first in range(0, len(errors), n)]
    return {number: next(filter(None, group)) for number, group in enumerate(groups) if any(group)}


# %%
rng = torch.Generator().manual_seed(0)
losses = []
for p in (0.001, 0.01, 0.02, 0.05, 0.1, 0.2):
    drawn = torch.rand(5000 * 8, generator=rng, dtype=torch.float64) < p
    lost = lost_groups(['aborted' if one else None for one in drawn.tolist()])
    losses.append({'p': p, 'formula': group_survival(p), 'simulated': 1 - len(lost) / 5000})
losses = pd.DataFrame(losses)
losses.round(4)

# %% [markdown]
# Aborts of 5% lose a third of the groups, and all that was decoded for them. So is it worth while to wait?
#
# ## A rollout step against a quota
#
# Twelve groups of eight start within a minute. Each sample needs a sandbox with one processor for 20 to 60
# seconds, and the service has 48 processors in all, for 96 samples. Time is virtual; the server, its quota
# and each request are real. Besides eight retries with and without jitter we try two and four: how long must
# one be ready to wait?

# %%
#@save
async def play_sample(client, order, start, hold, wait, n_retries):
    """Arrive at `start`, hold a sandbox for `hold` seconds: None, or the error that aborted the sample."""
    await asyncio.sleep(start)
    try:
        sandbox = await create_patiently(client, order, wait, n_retries)
    except (QuotaGaveUp, FatalRefusal) as error:
        return str(error)
    await asyncio.sleep(hold)
    with suppress(httpx.TransportError):                                # the episode is played all the same
        client.delete(f'/sandboxes/{sandbox}')


async def play_samples(client, order, times, wait, n_retries):
    """Play samples at once, times [(start, hold), ...]: errors (or None), seconds until the last ended."""
    samples = (play_sample(client, order, *pair, wait, n_retries) for pair in times)
    errors = await asyncio.gather(*samples)
    return errors, asyncio.get_running_loop().time()


# %%
RULES = {'quota is fatal': (0, True), '2 retries': (2, True), '4 retries': (4, True),
         '8 retries': (8, True), '8 retries, no jitter': (8, False)}


def rollout(rule, seed):
    """One rollout step of twelve groups under a rule: what became of it."""
    n_retries, jitter = RULES[rule]
    rng, quota = torch.Generator().manual_seed(seed), SandboxQuota(cpu=48, memory=999, disk=999)
    times = torch.rand(96, 2, generator=rng, dtype=torch.float64)                 # start and duration of each
    times = (times * torch.tensor([60, 40]) + torch.tensor([0, 20])).tolist()
    with serve_quota(quota) as url, httpx.Client(base_url=url, timeout=60) as client:
        wait = jittered_wait(rng) if jitter else plain_wait
        errors, seconds = run_virtual(play_samples(client, GOOD | {'CPU': 1}, times, wait, n_retries))
    aborted, lost = sum(error is not None for error in errors), lost_groups(errors)
    return {'rule': rule, 'seed': seed, 'aborted': aborted, 'groups left': 12 - len(lost), 'of': 12,
            'by the formula': 12 * group_survival(aborted / 96), 'requests': quota.requests,
            'virtual seconds': round(seconds), 'report': [f'group {k} lost: {v}' for k, v in lost.items()]}


results = pd.DataFrame([rollout(rule, seed) for rule in RULES for seed in (0, 1, 2)])
results.drop(columns='report').round(2)

# %%
print(*results.loc[results['rule'] == '2 retries', 'report'].iloc[0][:2], sep='\n')

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import save_figure, use_style

use_style()
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
grid = [n / 400 for n in range(101)]
left.plot(grid, [group_survival(p) for p in grid], color='#0072B2')
left.plot(losses['p'], losses['simulated'], 'o', color='#D55E00')
left.annotate('$(1-p)^8$, and 5000 drawn groups (dots)', (0.06, 0.68), color='#333333', fontsize='small')
left.set(xlabel='chance p that a sample is aborted', ylabel='share of groups that survive', ylim=(0, 1.02),
         xlim=(0, 0.25))
for place, rule in enumerate(RULES):
    groups = results.loc[results['rule'] == rule, 'groups left']
    right.plot(groups, [place + shift for shift in (-0.15, 0, 0.15)], 'o', color='#0072B2', clip_on=False)
right.set(yticks=range(len(RULES)), yticklabels=list(RULES), xlim=(0, 12), ylim=(len(RULES) - 0.5, -0.5),
          xlabel='groups left of 12 (three draws of arrivals and durations)')
fig.suptitle('Figure 13.6  A quota that is waited for costs time; one that is not costs groups')
save_figure(fig, '13_6_quota_groups', results.drop(columns='report'))

# %% [markdown]
# ## One client a process
#
# A client keeps its connections open for the next request. Made anew for each try, and kept by the sandbox
# object that it was made for, it keeps a socket, which is an open file, a try. A process usually may have
# 1024. psutil counts those of ours that lead to the server.

# %%
#@save
def sockets_to(url):
    """Number of open sockets of this process that lead to the port of `url`, counted by psutil."""
    port = httpx.URL(url).port
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process().net_connections('tcp'))


# %%
def sockets_after(tries, shared):
    """Open sockets after so many tries against a quota that is full, with one client or one a try."""
    with serve_quota(SandboxQuota(cpu=0)) as url:
        clients = [httpx.Client(base_url=url, timeout=60) for _ in range(1 if shared else tries)]
        for n in range(tries):
            try:
                create_sandbox(clients[0 if shared else n], GOOD)
            except TransientRefusal:
                pass
        count = sockets_to(url)
        for client in clients:
            client.close()
        return count


pd.DataFrame({f'tries: {tries}': {'one client a process': sockets_after(tries, True),
                                 'one client a try': sockets_after(tries, False)} for tries in (1, 9, 36)})

# %% [markdown]
# ## What was seen
#
# Status and text together say whether an answer will pass. In these eight answers the status would have been
# enough, because our service answers 403 where a total is used up. In the public run the status was not: there
# a used-up total arrives as a validation error, which the client makes of a 400, the status of a wrong order
# as well. So its repair had to match the text, and `classify_answer` reads the text whatever the status. Three draws of arrivals, 96
# samples in 12 groups for 48 processors:
#
# | rule | groups left of 12 | virtual seconds |
# |---|---|---|
# | a quota is fatal | 0, 1, 2 | 115, 115, 117 |
# | two retries | 2, 4, 3 | 115, 123, 117 |
# | four retries | 5, 11, 10 | 130, 126, 117 |
# | eight retries | 12, 12, 12 | 138, 134, 134 |
# | eight retries, no jitter | 12, 12, 12 | 149, 139, 135 |
#
# The public run's direction shows, with its own numbers: eight retries keep every group, for about a sixth
# more time. What counts is how long the budget lasts beside the life of a sandbox, 20 to 60 seconds here:
# two waits last 6 seconds on average, four 30, eight 150. Jitter helped a little on each draw; the arrivals
# are spread already, so there is no herd to break up, and three draws do not settle it. A group's survival
# is $(1 - p)^8$ where aborts are independent: 0.6634 at 5%, 0.6692 of 5000 drawn groups; in the rollouts,
# where aborts come in clumps, the formula is within two groups of the count. A quota that never clears is
# given up after nine attempts, by name. And after 36 tries one client holds 1 socket, a client a try 36.
#
# **Advice.** Read the text of a refusal, not only its status. Retry what will pass, for longer than a sandbox
# lives; report the group that was lost and why; make one client a process.
#
# **Try it.** Give the service 40 processors: which rules still keep all groups? Then let all samples start
# in the same second, and compare the two rules with eight retries again.
