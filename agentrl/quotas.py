# Made by tools/export.py from notebooks/13_staying_alive/13_6_quotas_and_backoff.py. Do not edit: change it there, then `make export`.
# Body: 80823dffa53a9ad4
"""13.6 Wait for a quota, and do not wait for a mistake."""

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


# 13_staying_alive/13_6_quotas_and_backoff, cell 2
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 3
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 3
@contextmanager
def serve_quota(quota, lifetime=900.0):
    """Serve a SandboxQuota on a free loopback port, at most `lifetime` seconds; gives the URL."""
    with LocalServer(quota_app(quota), lifetime) as server:
        yield server.root


# 13_staying_alive/13_6_quotas_and_backoff, cell 5
QUOTA_TEXT = re.compile(r'too many requests|total (cpu|memory|disk) limit exceeded', re.IGNORECASE)


# 13_staying_alive/13_6_quotas_and_backoff, cell 5
def classify_answer(status, text):
    """An HTTP answer is 'ok', 'transient' (quota, throttling, server in trouble) or 'fatal' (order, key)."""
    if 200 <= status < 300:
        return 'ok'
    if status != 401 and (status == 429 or status >= 500 or QUOTA_TEXT.search(text)):
        return 'transient'
    return 'fatal'


# 13_staying_alive/13_6_quotas_and_backoff, cell 7
class TransientRefusal(RuntimeError):
    """Refused for the moment: worth another try."""


# 13_staying_alive/13_6_quotas_and_backoff, cell 7
class FatalRefusal(RuntimeError):
    """Refused for good: another try gets the same answer."""


# 13_staying_alive/13_6_quotas_and_backoff, cell 7
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 8
MAX_WAIT, MAX_RETRIES = 30.0, 8
plain_wait = tenacity.wait_exponential(multiplier=2, max=MAX_WAIT)


# 13_staying_alive/13_6_quotas_and_backoff, cell 8
def jittered_wait(generator):
    """A tenacity wait: min(30, 2·2^(a-1)) seconds after attempt a, times U(0.5, 1.5) from `generator`."""
    def wait(state):
        return plain_wait(state) * (0.5 + torch.rand((), generator=generator, dtype=torch.float64).item())

    return wait


# 13_staying_alive/13_6_quotas_and_backoff, cell 10
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 10
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 12
class QuotaGaveUp(RuntimeError):
    """A refusal that did not pass within the budget of retries."""


# 13_staying_alive/13_6_quotas_and_backoff, cell 12
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 14
def group_survival(p, n=8):
    """Chance (1-p)^n that a group has no aborted sample, if each is aborted independently with chance p."""
    if not 0 <= p <= 1:
        raise ValueError(f'p={p!r} must be a probability, from 0 to 1')
    return (1 - p) ** check_count('n', n)


# 13_staying_alive/13_6_quotas_and_backoff, cell 14
def lost_groups(errors, n=8):
    """{group: its first error} of the groups of n samples that hold one; errors: a text or None a sample."""
    if len(errors) % check_count('n', n):
        raise ValueError(f'{len(errors)} samples are no whole number of groups of n={n}')
    groups = [errors[first:first + n] for first in range(0, len(errors), n)]
    return {number: next(filter(None, group)) for number, group in enumerate(groups) if any(group)}


# 13_staying_alive/13_6_quotas_and_backoff, cell 16
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


# 13_staying_alive/13_6_quotas_and_backoff, cell 16
async def play_samples(client, order, times, wait, n_retries):
    """Play samples at once, times [(start, hold), ...]: errors (or None), seconds until the last ended."""
    samples = (play_sample(client, order, *pair, wait, n_retries) for pair in times)
    errors = await asyncio.gather(*samples)
    return errors, asyncio.get_running_loop().time()


# 13_staying_alive/13_6_quotas_and_backoff, cell 20
def sockets_to(url):
    """Number of open sockets of this process that lead to the port of `url`, counted by psutil."""
    port = httpx.URL(url).port
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process().net_connections('tcp'))
