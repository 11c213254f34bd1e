# Made by tools/export.py from notebooks/13_staying_alive/13_3_retries_and_zombies.py. Do not edit: change it there, then `make export`.
# Body: eef4989a31b5bac0
"""13.3 A retry makes a zombie."""

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

# 13_staying_alive/13_3_retries_and_zombies, cell 2
CLIENTS = {
    'short limit, 2 retries': {'timeout': 0.6, 'max_retries': 2},
    'short limit, 0 retries': {'timeout': 0.6, 'max_retries': 0},
    'long limit, 0 retries': {'timeout': 3.6, 'max_retries': 0},
}
SERVERS = {'decodes on': False, 'notices': True}                                  # notices_disconnect


# 13_staying_alive/13_3_retries_and_zombies, cell 4
def ask_turn(client, sample, n_tokens, **more):
    """The answer to a sample's turn of up to `n_tokens` tokens; None if the client gave up."""
    messages = [{'role': 'user', 'content': 'please fix the function f .'}]
    try:
        return client.chat.completions.create(model='tiny-agent', messages=messages, max_tokens=n_tokens,
                                              seed=sample, **more)
    except APITimeoutError:
        return None


# 13_staying_alive/13_3_retries_and_zombies, cell 4
def metrics_of(server):
    """The engine's counters, read inside the server's loop."""
    return server.call(engine_metrics, server.engine)


# 13_staying_alive/13_3_retries_and_zombies, cell 4
def is_idle(counts):
    """Nothing runs and nothing waits, in one reading of the counters."""
    return counts['running'] + counts['waiting'] == 0


# 13_staying_alive/13_3_retries_and_zombies, cell 5
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


# 13_staying_alive/13_3_retries_and_zombies, cell 5
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


# 13_staying_alive/13_3_retries_and_zombies, cell 8
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


# 13_staying_alive/13_3_retries_and_zombies, cell 9
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


# 13_staying_alive/13_3_retries_and_zombies, cell 10
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


# 13_staying_alive/13_3_retries_and_zombies, cell 10
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


# 13_staying_alive/13_3_retries_and_zombies, cell 11
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


# 13_staying_alive/13_3_retries_and_zombies, cell 13
def queue_means(cfg, seed=0, hours=30, first=12):
    """Means over the hours from `first` on, when the queue has settled."""
    rows = queue_hours(cfg, hours, seed)[first:]
    return {name: reduce(add, (row[name] for row in rows), 0.0) / len(rows)
            for name in rows[0] if name != 'hour'}


# 13_staying_alive/13_3_retries_and_zombies, cell 13
def fit_capacity(active, low=0.2, high=0.3, steps=6, **settings):
    """The capacity between low and high at which `active` requests are on the engine, by bisection."""
    for _ in range(steps):
        middle = (low + high) / 2
        crowded = queue_means(QueueConfig(middle, **settings))['active'] > active
        low, high = (middle, high) if crowded else (low, middle)
    return (low + high) / 2
