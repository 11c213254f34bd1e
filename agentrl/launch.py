# Made by tools/export.py from notebooks/13_staying_alive/13_8_fail_at_the_start.py. Do not edit: change it there, then `make export`.
# Body: b9c7eee157835f73
"""13.8 Fail at the start, not after a quarter of an hour."""

import difflib
import os
import queue
import re
import socket
import threading
from dataclasses import dataclass, fields
from unittest.mock import patch

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from agentrl.arms import train_and_label, worker_pool
from agentrl.environment import check_count
from agentrl.episodes import MAX_CALL_TOKENS

# 13_staying_alive/13_8_fail_at_the_start, cell 3
ADDRESS = re.compile(r'(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})', re.ASCII)


# 13_staying_alive/13_8_fail_at_the_start, cell 3
def parse_address(address):
    """(host, port) of 'host:port' or 'ray://host:port'; ValueError for anything else."""
    match = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if not match or not 0 < int(match[2]) < 65536:
        raise ValueError(f'address={address!r} must be host:port or ray://host:port, port 1 to 65535')
    return match[1].strip('[]'), int(match[2])


# 13_staying_alive/13_8_fail_at_the_start, cell 3
def check_reachable(address, seconds=3.0):
    """`address` if it accepts a TCP connection within `seconds`, else a ValueError with the reason."""
    place, answers = parse_address(address), queue.Queue()

    def connect():
        try:
            socket.create_connection(place, timeout=seconds).close()
            answers.put(None)
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        error = answers.get(timeout=seconds)
    except queue.Empty:
        error = TimeoutError()
    if error is not None:
        reasons = {ConnectionRefusedError: 'nobody listens there',
                   TimeoutError: f'no answer within {seconds:g} s',
                   socket.gaierror: 'no such host'}
        raise ValueError(f'address={address!r} cannot be reached: {reasons.get(type(error), str(error))}; '
                         'start the cluster there, or give no address to run on this machine')
    return address


# 13_staying_alive/13_8_fail_at_the_start, cell 5
def check_eval_interval(value):
    """`value` if it is a whole number >= 0 (0: never), else a ValueError."""
    return check_count('eval_interval (steps between evaluations, 0 for never)', value, least=0)


# 13_staying_alive/13_8_fail_at_the_start, cell 5
def evaluation_due(step, eval_interval):
    """Is an evaluation due after this step (0-based)?"""
    return check_eval_interval(eval_interval) > 0 and (step + 1) % eval_interval == 0


# 13_staying_alive/13_8_fail_at_the_start, cell 7
def check_token_limits(turn_tokens, session_tokens, window):
    """ValueError unless 1 <= turn_tokens <= session_tokens <= window (tokens the model reads)."""
    given = {'turn_tokens': turn_tokens, 'session_tokens': session_tokens, 'window': window}
    for name, value in given.items():
        check_count(name, value)
    for (small, low), (large, high) in zip(list(given.items())[:-1], list(given.items())[1:], strict=True):
        if low > high:
            raise ValueError(f'{small}={low} is more than {large}={high}; allowed is '
                             'turn_tokens <= session_tokens <= window')


# 13_staying_alive/13_8_fail_at_the_start, cell 9
@dataclass(frozen=True)
class LaunchSettings:
    """What a launcher was asked for; made by `launch_settings`, which checks it."""
    arms: tuple
    seeds: tuple
    bases: tuple = (0,)
    jobs: int = 2
    address: str | None = None
    eval_interval: int = 0
    turn_tokens: int = MAX_CALL_TOKENS
    session_tokens: int = 256
    window: int = 256


REQUIRED = ('arms', 'seeds')


# 13_staying_alive/13_8_fail_at_the_start, cell 9
def parse_numbers(name, text):
    """'0-3,7' -> (0, 1, 2, 3, 7); whole numbers or ranges of them, at most 1000; ValueError names `name`."""
    numbers = []
    for part in str(text).replace(' ', '').split(','):
        match = re.fullmatch(r'(\d{1,6})(?:-(\d{1,6}))?', part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + 1000:
            raise ValueError(f'{name}={text!r}: {part!r} is no number and no range; '
                             'give for example 0-9 or 0,1,5')
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


# 13_staying_alive/13_8_fail_at_the_start, cell 10
def problem(check, *values):
    """What a check says against values: [] or [its error]."""
    try:
        check(*values)
    except ValueError as error:
        return [str(error)]
    return []


# 13_staying_alive/13_8_fail_at_the_start, cell 10
def nearest(name, value, known):
    """[] if a value is known, else a message that names what is, or the closest of it."""
    if value in known:
        return []
    close = difflib.get_close_matches(str(value), list(known), n=1)
    hint = f'did you mean {close[0]!r}?' if close else f'choose from {", ".join(known)}'
    return [f'{name}={value!r} is not known; {hint}']


# 13_staying_alive/13_8_fail_at_the_start, cell 11
def launch_problems(given, known_arms):
    """Everything that is wrong with the settings in the dict `given`: a list of texts. Starts nothing."""
    allowed = [one.name for one in fields(LaunchSettings)]
    found = [text for name in given for text in nearest('setting', name, allowed)]
    found += [f'{name} is required; give at least one' for name in REQUIRED if not given.get(name)]
    lists = {name: given.get(name) or () for name in ('arms', 'seeds', 'bases')}
    no_list = [name for name, some in lists.items() if not isinstance(some, list | tuple | range)]
    found += [f'{name}={lists.pop(name)!r} must be a list' for name in no_list]
    found += [text for arm in lists.get('arms', ()) for text in nearest('arm', arm, known_arms)]
    for name in ('seeds', 'bases'):
        for number in lists.get(name, ()):
            found += problem(check_count, name, number, 0)
    found += problem(check_count, 'jobs', given.get('jobs', 2))
    found += problem(check_eval_interval, given.get('eval_interval', 0))
    default = {name: getattr(LaunchSettings, name) for name in ('turn_tokens', 'session_tokens', 'window')}
    found += problem(lambda: check_token_limits(**{name: given.get(name, default[name]) for name in default}))
    if given.get('address') is not None:
        found += problem(check_reachable, given['address'])
    return found


# 13_staying_alive/13_8_fail_at_the_start, cell 11
def launch_settings(given, known_arms):
    """LaunchSettings from a dict; a ValueError lists all that is wrong, before anything has started."""
    if found := launch_problems(given, known_arms):
        raise ValueError('\n- '.join([f'nothing was started, {len(found)} to put right:', *found]))
    tuples = {name: tuple(given[name]) for name in ('arms', 'seeds', 'bases') if name in given}
    return LaunchSettings(**{**given, **tuples})


# 13_staying_alive/13_8_fail_at_the_start, cell 13
def worker_was_killed(error):
    """Does this error of joblib's say that a worker process is gone? (Ray has classes of its own.)"""
    return isinstance(error, TerminatedWorkerError) or type(error).__module__.startswith('ray.')


# 13_staying_alive/13_8_fail_at_the_start, cell 13
def start_workers(study, runs, jobs):
    """Yield (arm, base, seed, run or error text) as runs end, in worker processes of joblib's backend.

    Ray's backend gives nothing back before all have ended, so it gets a batch of `jobs` runs at a time.
    """
    tasks = [joblib.delayed(train_and_label)(study.train, *run) for run in runs]
    with patch.dict(os.environ, TQDM_DISABLE='1'):                      # one bar for all, none from workers
        if joblib.parallel.get_active_backend()[0].supports_return_generator:
            yield from worker_pool(jobs, pre_dispatch='n_jobs', batch_size=1)(tasks)
        else:
            for first in range(0, len(tasks), jobs):
                yield from joblib.Parallel(jobs, batch_size=1)(tasks[first:first + jobs])


# 13_staying_alive/13_8_fail_at_the_start, cell 14
def run_alone(study, run):
    """(arm, base, seed, result) of one run in a worker of its own; a text if that is killed."""
    try:
        return list(start_workers(study, [run], 2))[0]
    except Exception as error:
        if not worker_was_killed(error):
            raise
        return *run, 'its worker process was killed, also when it ran alone (out of memory?)'


# 13_staying_alive/13_8_fail_at_the_start, cell 14
def finished_runs(study, runs, jobs):
    """Yield ((arm, base, seed), result) of runs as they end; result: what train gave, or an error as text."""
    left = list(runs)
    while left:
        try:
            for *run, result in start_workers(study, list(left), jobs):
                left.remove(tuple(run))
                yield tuple(run), result
        except Exception as error:
            if not worker_was_killed(error):
                raise
            suspects, left = left[:jobs], left[jobs:]
            for *run, result in map(run_alone, [study] * len(suspects), suspects):
                yield tuple(run), result
