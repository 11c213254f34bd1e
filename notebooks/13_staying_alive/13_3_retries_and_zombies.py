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
# # 13.3 A retry makes a zombie
#
# A client that gives up on a generation and asks again does not move the first request: it makes a second
# one. If the server does not notice that somebody has gone, the first goes on decoding, for nobody: a
# *zombie*. The public repair of a big agent run (pull request 2588 of radixark/miles, August 2026) found
# about 1,000 requests on the engine for 128 live samples. Here we make zombies with the real client library,
# count them by the engine's own counters, and ask a queue model whether the client's time limits alone lead
# to the big run's figures.
#
# **Time** 20 min. **Assumes** [13.0](13_0_a_server_for_the_agent.ipynb). **Afterwards you can** count the
# requests that decode for nobody, and choose retries and a time limit that fit the length of a turn.

# %%
#@save zombies
import heapq
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import add

from openai import APITimeoutError, OpenAI

from agentrl.environment import check_count
from agentrl.serving import engine_metrics, serve_agent, wait_until

# %% [markdown]
# ## Clients and servers
#
# One second of ours stands for 1,000 of theirs: a time limit of 0.6 s for their 600 s, and 3.6 s for their
# hour. The library's pause before it tries again, half a second and then one, less up to a quarter, cannot be
# set and stays as it is; it changes how long an arm takes and none of the counts.

# %%
#@save
CLIENTS = {
    'short limit, 2 retries': {'timeout': 0.6, 'max_retries': 2},
    'short limit, 0 retries': {'timeout': 0.6, 'max_retries': 0},
    'long limit, 0 retries': {'timeout': 3.6, 'max_retries': 0},
}
SERVERS = {'decodes on': False, 'notices': True}                                  # notices_disconnect

# %% [markdown]
# ## The settings of the library
#
# Here are the library's own defaults beside the big run's figures, among them what the repair set in its
# evaluation script instead.

# %%
from openai import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT

from agentrl.plotting import book_results

print('defaults:', DEFAULT_TIMEOUT.read, 's,', DEFAULT_MAX_RETRIES, 'retries')
book_results('PR 2588', 'zombie_decode')[['arm', 'metric', 'value']]

# %% [markdown]
# ## An experiment without a race
#
# Each of eight live samples has a short turn, then a long one. For the short turn every client is patient,
# since an answer that comes in time is the same under any limit. Before the long turn the engine is *held*:
# it takes requests and decodes nothing. The impatient clients therefore all give up, as often as their
# settings say, however fast the machine is. Only when the last of them has gone (or, with the long limit,
# when all have asked) does the engine decode on. So all counts below are exact.

# %%
#@save
def ask_turn(client, sample, n_tokens, **more):
    """The answer to a sample's turn of up to `n_tokens` tokens; None if the client gave up."""
    messages = [{'role': 'user', 'content': 'please fix the function f .'}]
    try:
        return client.chat.completions.create(model='tiny-agent', messages=messages, max_tokens=n_tokens,
                                              seed=sample, **more)
    except APITimeoutError:
        return None


def metrics_of(server):
    """The engine's counters, read inside the server's loop."""
    return server.call(engine_metrics, server.engine)


def is_idle(counts):
    """Nothing runs and nothing waits, in one reading of the counters."""
    return counts['running'] + counts['waiting'] == 0


# %%
#@save
def play_long_turns(client, server, samples, n_tokens):
    """Ask for all samples' long turns on a held engine, then let it decode; how many were answered."""
    before = metrics_of(server)['started']
    server.call(server.engine.hold)
    with ThreadPoolExecutor(samples) as pool:
        turns = [pool.submit(ask_turn, client, sample, n_tokens, extra_body={'ignore_eos': True})
                 for sample in range(samples)]
        if client.timeout < 1:
            wait_until(lambda: all(turn.done() for turn in turns), 'the clients to give up')
            gone = metrics_of(server)['started'] - before
            wait_until(lambda: metrics_of(server)['left'] == gone, 'the server to see that they left')
        else:
            wait_until(lambda: metrics_of(server)['started'] == before + samples, 'all samples to ask')
        server.call(server.engine.hold, False)
        answers = [turn.result(timeout=30) for turn in turns]
    wait_until(lambda: is_idle(metrics_of(server)), 'the engine to end')
    return sum(answer is not None for answer in answers)


def run_zombie_arm(policy, tok, server, client, samples=8, n_tokens=12):
    """One arm: the engine's counters at its end, the share of decoding for nobody, samples answered."""
    with (serve_agent(policy, tok, slots=samples, notices_disconnect=SERVERS[server]) as running,
          OpenAI(base_url=running.url, api_key='none', **CLIENTS[client]) as asking):
        for sample in range(samples):
            ask_turn(asking.with_options(timeout=30, max_retries=0), sample, 6)
        answered = play_long_turns(asking, running, samples, n_tokens)
        counts = metrics_of(running)
    return {'server': server, 'client': client, 'live': samples, **counts, 'answered': answered,
            'wasted': counts['tokens_for_nobody'] / counts['tokens']}


# %%
import pandas as pd

from agentrl.base import make_rl_base
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
policy = make_rl_base(tok)
table = pd.DataFrame([run_zombie_arm(policy, tok, server, client)
                      for server in SERVERS for client in CLIENTS])
columns = ['server', 'client', 'live', 'peak', 'started', 'retries', 'cancelled', 'unused', 'answered']
table[columns]

# %% [markdown]
# `peak` is the largest number of requests on the engine at a time, for eight live samples. `started` includes
# the eight short turns. With retries and a server that decodes on, every sample has three requests there, and
# none of them has a reader. Without retries it has one, which has no reader either: `max_retries=0` stops the
# multiplication, not the zombies. What stops those is a server that notices, or a limit that fits the turn.
# Only the latter brings answers.

# %%
shown = ['server', 'client', 'tokens', 'tokens_for_nobody', 'wasted']
table[shown].round({'wasted': 3})

# %% [markdown]
# A share of nought for a server that notices is the best case: here no token of a long turn was written
# before the client left. A real server that cancels after 600 s has decoded for 600 s, and that work is lost
# too. How much a short limit costs there is a question about rates, not about mechanism; for it we need a
# model of the queue.
#
# ## A model of the queue
#
# The assumptions, all of them:
#
# 1. 128 samples are alive at all times. Each asks for a generation; when it has the answer it works with its
#    tools for 30 s and asks again. When its last attempt fails, another sample takes its place at once.
# 2. The engine decodes `capacity` mean generations a second, shared equally by all requests on it.
# 3. Lengths of generations are lognormal with mean 1 and log deviation `sigma`. A retry is as long as the
#    first try.
# 4. The client gives up after `timeout` and tries again up to `retries` times, after 0.5 s, then 1 s.
#
# Since all requests progress equally, one number suffices: the work `served` to each request present since
# the beginning. A request that comes at `served` and has length L ends when `served` has grown by L.

# %%
#@save
@dataclass(frozen=True)
class QueueConfig:
    """The queue model: time in seconds, work in mean generations; all are checked."""
    capacity: float
    timeout: float = 600.0
    retries: int = 2
    notices: bool = False
    sigma: float = 1.0
    samples: int = 128
    tool_seconds: float = 30.0

    def __post_init__(self):
        check_count('retries', self.retries, least=0), check_count('samples', self.samples)
        for name in ('capacity', 'timeout'):
            if not 0 < getattr(self, name) < float('inf'):
                raise ValueError(f'{name}={getattr(self, name)!r} must be a positive number')
        for name in ('sigma', 'tool_seconds'):
            if not 0 <= getattr(self, name) < float('inf'):
                raise ValueError(f'{name}={getattr(self, name)!r} must be a number >= 0')


# %%
#@save
class Queue:
    """The state of the model: `active` holds a sample for each request with a reader, None for a zombie."""
    def __init__(self, cfg, seed):
        self.cfg, self.rng, self.ids = cfg, random.Random(seed), itertools.count()
        self.now, self.served, self.active, self.zombies = 0.0, 0.0, {}, 0
        self.ends, self.events, self.sizes = [], [], {}                           # two heaps
        self.counts = dict.fromkeys(('started', 'duplicates', 'answers', 'lost', 'useful'), 0)
        for sample in range(cfg.samples):
            self.plan(self.rng.random() * cfg.tool_seconds, self.ask, sample)
    def plan(self, delay, do, *args):
        heapq.heappush(self.events, (self.now + delay, next(self.ids), do, args))
    def ask(self, sample, size=None, tries=0):
        """A new request, or a retry of one of `size`."""
        request = next(self.ids)
        if size is None:
            size = self.rng.lognormvariate(-self.cfg.sigma ** 2 / 2, self.cfg.sigma)
        self.active[request], self.sizes[request] = sample, size
        heapq.heappush(self.ends, (self.served + size, request))
        self.plan(self.cfg.timeout, self.give_up, request, size, tries)
        self.counts['started'] += 1
        self.counts['duplicates'] += tries > 0
    def give_up(self, request, size, tries):
        """The client's time limit, if the request is still there."""
        if (sample := self.active.get(request)) is None:
            return
        if self.cfg.notices:
            del self.active[request]
        else:
            self.active[request] = None
            self.zombies += 1
        if tries < self.cfg.retries:
            self.plan(0.5 * 2 ** tries, self.ask, sample, size, tries + 1)
        else:
            self.counts['lost'] += 1
            self.ask(sample)


# %%
#@save
def advance(queue, until):
    """Go to the next event, at most to `until`; returns the seconds that passed."""
    while queue.ends and queue.ends[0][1] not in queue.active:
        heapq.heappop(queue.ends)                                                 # cancelled
    rate = queue.cfg.capacity / max(1, len(queue.active))
    end = queue.now + (queue.ends[0][0] - queue.served) / rate if queue.ends else float('inf')
    event = queue.events[0][0] if queue.events else float('inf')
    step = min(end, event, until) - queue.now
    queue.now, queue.served = queue.now + step, queue.served + step * rate * bool(queue.active)
    return step, end <= min(event, until), event <= until


def happen(queue, ended, event):
    """Let the next thing happen: the end of a request, or else an event."""
    if ended:
        request = heapq.heappop(queue.ends)[1]
        sample = queue.active.pop(request)
        if sample is not None:
            queue.counts['answers'] += 1
            queue.counts['useful'] += queue.sizes[request]
            queue.plan(queue.cfg.tool_seconds, queue.ask, sample)
        queue.zombies -= sample is None
    elif event:
        _, _, do, args = heapq.heappop(queue.events)
        do(*args)


# %%
#@save
def queue_hours(cfg, hours=24, seed=0):
    """A row an hour: mean requests on the engine, counts, shares of decoding for nobody and never read."""
    queue, rows = Queue(cfg, seed), []
    for hour in range(hours):
        before, area, zombies, busy = dict(queue.counts), 0.0, 0.0, 0.0
        while queue.now < (hour + 1) * 3600:
            n, dead = len(queue.active), queue.zombies
            step, ended, event = advance(queue, (hour + 1) * 3600)
            area, busy, zombies = area + n * step, busy + step * bool(n), zombies + step * dead / max(1, n)
            happen(queue, ended, event)
        counts = {name: count - before[name] for name, count in queue.counts.items()}
        rows.append({'hour': hour + 1, 'active': area / 3600, 'wasted': zombies / max(busy, 1e-9), **counts,
                     'unread': 1 - counts.pop('useful') / max(cfg.capacity * busy, 1e-9)})
    return rows


# %% [markdown]
# By hand: one sample whose generation takes 10 s alone on the engine, a limit of 4 s, two retries. The first
# attempt is left at 4 s, the second comes at 4.5 s and is left at 8.5 s, the third comes at 9.5 s. Until then
# the first has got 4.5 s alone and 5 s of a half share: 7 of its 10 s. Three requests share the engine now.

# %%
toy = Queue(QueueConfig(capacity=0.1, timeout=4.0, sigma=0.0, samples=1, tool_seconds=0.0), seed=0)
for _ in range(6):
    _, ended, event = advance(toy, until=16.0)
    happen(toy, ended, event)
    print(f'{toy.now:5.1f} s: {len(toy.active)} on the engine, {toy.zombies} of them zombies; '
          f'the first has got {toy.served if toy.served < 1 else 1:.2f}')

# %% [markdown]
# ## What is fitted, and what is predicted
#
# The time limit, the retries and the 128 samples are the big run's. The spread of lengths and the 30 s are
# our choice. One number is *fitted*: the capacity, such that on average 1,000 requests are on the engine. The
# duplicates an hour and the wasted share are then predictions. Requests that share the engine equally make
# the second an easy one: 128 readers among 1,000 requests leave 872 zombies. We fit by bisection, on one
# seed, and read the results from five others.

# %%
#@save
def queue_means(cfg, seed=0, hours=30, first=12):
    """Means over the hours from `first` on, when the queue has settled."""
    rows = queue_hours(cfg, hours, seed)[first:]
    return {name: reduce(add, (row[name] for row in rows), 0.0) / len(rows)
            for name in rows[0] if name != 'hour'}


def fit_capacity(active, low=0.2, high=0.3, steps=6, **settings):
    """The capacity between low and high at which `active` requests are on the engine, by bisection."""
    for _ in range(steps):
        middle = (low + high) / 2
        crowded = queue_means(QueueConfig(middle, **settings))['active'] > active
        low, high = (middle, high) if crowded else (low, middle)
    return (low + high) / 2


# %%
from agentrl.plotting import beside_book, save_table, side_by_side

capacity = fit_capacity(1000)
print(f'fitted: {capacity * 3600:.0f} mean generations an hour; '
      f'128 samples without zombies need {128 / capacity:.0f} s for one')
ours = pd.DataFrame([{'arm': 'sdk retries', 'seed': seed} | queue_means(QueueConfig(capacity), seed)
                     for seed in range(1, 6)])
ours = ours.assign(engine_requests=ours['active'], active_samples=128, duplicates_per_hour=ours['duplicates'],
                   wasted_capacity_low=ours['wasted'], wasted_capacity_high=ours['wasted'])
compared = beside_book(ours, 'PR 2588', 'zombie_decode')
save_table(compared, '13_3_zombie_decode')
side_by_side(compared)

# %% [markdown]
# The book's duplicates need no fit at all. Once nearly every attempt fails, each of 128 samples makes an
# attempt every 600 s, and two of three are retries: $128 \cdot 6 \cdot 2/3 = 512$ an hour. How much does the
# rest owe to our choice of `sigma`? We fit again with less spread and with more.

# %%
rows = []
for sigma in (0.5, 1.0, 1.5):
    fitted = capacity if sigma == 1.0 else fit_capacity(1000, sigma=sigma)
    rows.append({'sigma': sigma, 'capacity an hour': fitted * 3600}
                | queue_means(QueueConfig(fitted, sigma=sigma), seed=1))
pd.DataFrame(rows)[['sigma', 'capacity an hour', 'active', 'duplicates', 'wasted', 'answers']].round(2)

# %% [markdown]
# The duplicates hardly depend on it. The crowd does: with a spread of 0.5 the capacity fitted on one
# seed gives 692 requests on another, and 0.81 wasted, and the answers an hour go from 0.44 to 109. So
# close to its limit a queue is not settled by one number.

# %% [markdown]
# ## The same engine with other clients and servers
#
# Nothing is fitted from here on: the same capacity, the six arms of the experiment, with the hour's limit as
# in the repair. `wasted` is the share of decoding for clients who have gone, `unread` the share of all
# decoding whose answer nobody got. The second also counts what was decoded before a client left.

# %%
LIMITS = {'short limit, 2 retries': (600, 2), 'short limit, 0 retries': (600, 0),
          'long limit, 0 retries': (3600, 0)}
hours = pd.DataFrame([
    {'server': server, 'client': client} | row
    for server, notices in SERVERS.items() for client, (timeout, retries) in LIMITS.items()
    for row in queue_hours(QueueConfig(capacity, timeout, retries, notices), hours=30, seed=1)])
settled = hours[hours['hour'] > 12].groupby(['server', 'client'], sort=False)
means = settled[['active', 'started', 'duplicates', 'answers', 'lost', 'wasted', 'unread']].mean()
means.round({'active': 0, 'started': 0, 'duplicates': 0, 'answers': 0, 'lost': 0, 'wasted': 2, 'unread': 2})

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import save_figure, spread_labels, use_style

use_style()
INK = dict(zip(CLIENTS, ('#D55E00', '#CC79A7', '#0072B2'), strict=True))
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(1, 1.25))
places = range(len(table))[::-1]
ends = table.assign(**{'decoded for nobody': table['unused'] - table['cancelled']})
for name, color in {'answered': '#009E73', 'cancelled': '#BBBBBB', 'decoded for nobody': '#D55E00'}.items():
    left.barh(places, ends[name], color=color, height=0.6)                        # one kind of end an arm
    for place, n in zip(places, ends[name], strict=True):
        left.annotate(f'{n} {name}' if n else '', (n, place), xytext=(4, 0), textcoords='offset points',
                      va='center', fontsize='small')
left.set_yticks(places, [f'{row.server}:\n{row.client}' for row in table.itertuples()])
left.set(xlabel='generations for 8 long turns', xlim=(0, 38), title='real client, real server')
for client, rows in hours[hours['server'] == 'decodes on'].groupby('client', sort=False):
    right.plot(rows['hour'], rows['active'], color=INK[client])
    right.annotate(client, (30, rows['active'].iloc[-1]), xytext=(6, 0), textcoords='offset points',
                   va='center', fontsize='small', label='line end')
right.axhline(1000, color='#888888', linestyle='--', linewidth=1)
right.annotate('the big run: 1,000', (1, 1000), xytext=(2, 4), textcoords='offset points', fontsize='small')
right.set(xlabel='hour', ylabel='requests on the engine', xlim=(1, 30), ylim=(0, None),
          title='queue model, server decodes on, 128 live samples')
spread_labels(right)
fig.suptitle('Figure 13.3  Zombies, counted and modelled')
save_table(table.round(6), '13_3_zombie_counts')
save_figure(fig, '13_3_zombies', hours)

# %% [markdown]
# ## What was seen
#
# With retries and a server that decodes on, 8 live samples had 24 requests on the engine, none of them with a
# reader in the end, and a share of 0.917 of all decoding was for nobody. Without retries it was 8 requests
# for 8 samples, and still 0.787. A server that notices decodes nothing for nobody, but cancels 24 requests
# and answers none; a limit that fits the turn has all 8 answered.
#
# | finding of the big run | queue model here | verdict |
# |---|---|---|
# | about 1,000 requests for 128 live samples | 992 (922 to 1,060) | fitted |
# | some 500 duplicates an hour | 503 (501 to 504); 473 to 511 for other spreads of length | agrees, and tests little |
# | 85 to 90% of decoding wasted | 0.869 (0.861 to 0.878); 0.81 to 0.87 for other spreads | follows from the 1,000 |
#
# (Means of five seeds with their 95% t interval.)
#
# The second row tests little, since 512 follows from the time limit and the retries once nearly every attempt
# fails, and hardly depends on the capacity. The third restates the first: 128 readers among the requests. Nor
# is the queue settled after twelve hours: run for a hundred, its crowd still grows, so its level depends on
# when one looks. And it answers far fewer turns than a run that makes its training steps needs. So no row is a
# verdict: the model shows that such figures *can* arise in this way.
#
# On the engine so fitted, `max_retries=0` alone leaves 735 requests, 83% of decoding for nobody and 85
# answers an hour. The hour's limit gives 769 answers. A server that notices ends the zombies, yet with the
# short limit and retries it throws away 74% of its work. With the short limit and no retries it gives most
# answers of all, 881, but 342 turns an hour are lost, and those are the long ones. How fast the big run's
# queue grew we do not know, so only averages after twelve hours are compared.
#
# Advice: no retries for generations; a time limit at least as long as the episode may take; and a server that
# looks whether somebody is still there.
#
# **Try it.** Set `tool_seconds=300.0` and keep the capacity: does the queue still fill? Or fit the capacity
# for `retries=5` and look at the duplicates.
