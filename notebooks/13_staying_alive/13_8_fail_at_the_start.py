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
# # 13.8 Fail at the start, not after a quarter of an hour
#
# A run on many machines takes minutes to come up. If the address of the cluster is wrong, or a limit on
# tokens is larger than the model's window, it should not take those minutes to say so. In this section a
# launcher checks all that can be known before the first worker starts, in one go and each by its name. Then
# the part that no check can do: workers that fail or are killed while they run. The launcher is the book's
# own, `python -m tools.sweep`, which runs the arms of chapters 9 to 13 over as many seeds as one likes.
#
# The silent hang and the checks are those of pull request 2588 of radixark/miles (2026).
#
# **Time** 25 min. **Assumes** [9.3](../09_grpo/09_3_arms.ipynb). **Afterwards you can** report every
# mistake in a launch's settings at once, and resume a sweep after a worker was killed.

# %%
#@save launch
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

# %%
from agentrl.plotting import book_results

book_results('PR 2588', 'launch')[['arm', 'metric', 'value']]

# %% [markdown]
# ## An address that nobody answers at
#
# A connection to a machine that does not exist is not refused. The system repeats its request for two
# minutes or more, and a library around it may do that several times. One TCP connection with a bound of our
# own settles the question. The look-up of the name is bounded too: it has no timeout in Python, so it runs
# in a thread that we do not wait for.

# %%
#@save
ADDRESS = re.compile(r'(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})', re.ASCII)


def parse_address(address):
    """(host, port) of 'host:port' or 'ray://host:port'; ValueError for anything else."""
    match = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if not match or not 0 < int(match[2]) < 65536:
        raise ValueError(f'address={address!r} must be host:port or ray://host:port, port 1 to 65535')
    return match[1].strip('[]'), int(match[2])


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


# %% [markdown]
# Four places on this machine: one where somebody listens, one where nobody does, and one whose queue of
# connections is full, so that it answers nothing at all, which is how a machine behind a closed firewall
# looks. And a text that is no address.

# %%
def listener(backlog):
    """A socket that listens on a free loopback port."""
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen(backlog)
    return server, server.getsockname()


def fill_up(place, n=4):
    """Connections that nobody accepts, until the queue is full."""
    waiting = [socket.socket() for _ in range(n)]
    for client in waiting:
        client.setblocking(False)
        client.connect_ex(place)
    return waiting


def verdict(place):
    """What the check says of a place, without its port, which differs in each run."""
    try:
        return check_reachable(place, seconds=0.3) and 'reachable'
    except ValueError as error:
        return str(error).split(': ', 1)[1] if 'reached' in str(error) else str(error)


(good, open_place), (closed, closed_place), (full, full_place) = listener(8), listener(8), listener(0)
closed.close()
waiting = fill_up(full_place)
for name, place in {'listens': open_place, 'closed': closed_place, 'full': full_place}.items():
    print(f'{name:8}', verdict('{}:{}'.format(*place)))
print('no port ', verdict('head-node'))
for one in (good, full, *waiting):
    one.close()

# %% [markdown]
# ## A number that means "off"
#
# How often should a run be evaluated? `None`, 0, −1 and "never" are all in use for *not at all*, and each
# breaks something different: `step % 0` fails in the first step, `step % -1` is 0, so that −1 evaluates in
# *every* step. Here it is a whole number, and 0 is off.

# %%
#@save
def check_eval_interval(value):
    """`value` if it is a whole number >= 0 (0: never), else a ValueError."""
    return check_count('eval_interval (steps between evaluations, 0 for never)', value, least=0)


def evaluation_due(step, eval_interval):
    """Is an evaluation due after this step (0-based)?"""
    return check_eval_interval(eval_interval) > 0 and (step + 1) % eval_interval == 0


# %%
print('steps that are followed by an evaluation, of 10:')
for interval in (0, 1, 4):
    print(f'  interval {interval}:', [step for step in range(10) if evaluation_due(step, interval)])
print('  `step % -1 == 0` would say:', [step for step in range(10) if step % -1 == 0])

# %% [markdown]
# ## Limits that fit into each other
#
# A turn has to fit into a session, and a session into the model's window: that is arithmetic, and needs no GPU.
# In the public run the limits went from 16384 a turn in a session of 131072 to 8192 in 65536. No window is
# named there, and the old session ran, so no check on windows would have helped: the session length is what
# context parallelism divides, and so what decides the memory of activations on each rank. The two settings
# serve here as numbers, against an invented window of 65536 tokens.

# %%
#@save
def check_token_limits(turn_tokens, session_tokens, window):
    """ValueError unless 1 <= turn_tokens <= session_tokens <= window (tokens the model reads)."""
    given = {'turn_tokens': turn_tokens, 'session_tokens': session_tokens, 'window': window}
    for name, value in given.items():
        check_count(name, value)
    for (small, low), (large, high) in zip(list(given.items())[:-1], list(given.items())[1:], strict=True):
        if low > high:
            raise ValueError(f'{small}={low} is more than {large}={high}; allowed is '
                             'turn_tokens <= session_tokens <= window')


# %%
levers = book_results('PR 2588', 'levers').pivot(index='arm', columns='metric', values='value')
levers = levers.loc[['before', 'after'], ['rollout_max_response_len', 'max_seq_len']].astype(int)
for arm, turn, session in levers.itertuples():
    try:
        check_token_limits(turn, session, window=65536)
        print(f'{arm}: {turn} in {session} fits into 65536')
    except ValueError as error:
        print(f'{arm}: {error}')

# %% [markdown]
# ## All that is wrong, at once
#
# Whoever starts a run and has three mistakes in it should be told three, not one in each of three attempts.
# So the checks are gathered: names that are not known (with the nearest that is), required settings that are
# not there, and each value. An address is tried last, since it alone takes time.

# %%
#@save
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


# %%
#@save
def problem(check, *values):
    """What a check says against values: [] or [its error]."""
    try:
        check(*values)
    except ValueError as error:
        return [str(error)]
    return []


def nearest(name, value, known):
    """[] if a value is known, else a message that names what is, or the closest of it."""
    if value in known:
        return []
    close = difflib.get_close_matches(str(value), list(known), n=1)
    hint = f'did you mean {close[0]!r}?' if close else f'choose from {", ".join(known)}'
    return [f'{name}={value!r} is not known; {hint}']


# %%
#@save
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


def launch_settings(given, known_arms):
    """LaunchSettings from a dict; a ValueError lists all that is wrong, before anything has started."""
    if found := launch_problems(given, known_arms):
        raise ValueError('\n- '.join([f'nothing was started, {len(found)} to put right:', *found]))
    tuples = {name: tuple(given[name]) for name in ('arms', 'seeds', 'bases') if name in given}
    return LaunchSettings(**{**given, **tuples})


# %%
from agentrl.arms import ARMS

wrong = {'arms': ['default', 'penalty 0.5'], 'jobs': 0, 'eval_interval': -1, 'turn_tokens': 512,
         'sedes': [0, 1], 'address': '127.0.0.1:70000'}
try:
    launch_settings(wrong, ARMS)
except ValueError as error:
    print(error)
print(launch_settings({'arms': ['default'], 'seeds': parse_numbers('seeds', '0-3,7')}, ARMS))

# %% [markdown]
# ## What no check can see
#
# Some runs fail while they run, and some workers are killed: by the system when memory is short, by somebody
# who needs the machine. Four rules: an error in one run is a result like another, reported with arm and
# seed; a run is stored by the parent as soon as it ends; if a worker is killed, the runs that were under way,
# which no one can tell from the killer, are tried once more, each alone, and who dies alone is the culprit;
# and a worker ends when its parent is gone (`worker_pool`, section 9.3), so that a killed launcher leaves nobody
# who computes for nobody.

# %%
#@save
def worker_was_killed(error):
    """Does this error of joblib's say that a worker process is gone? (Ray has classes of its own.)"""
    return isinstance(error, TerminatedWorkerError) or type(error).__module__.startswith('ray.')


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


# %%
#@save
def run_alone(study, run):
    """(arm, base, seed, result) of one run in a worker of its own; a text if that is killed."""
    try:
        return list(start_workers(study, [run], 2))[0]
    except Exception as error:
        if not worker_was_killed(error):
            raise
        return *run, 'its worker process was killed, also when it ran alone (out of memory?)'


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


# %% [markdown]
# A study to break: nine runs that give a number, except that one raises an error and one kills its own
# worker, as the system would. Tables go to a temporary folder.

# %%
import signal
import tempfile
from pathlib import Path

from agentrl.arms import Study, missing_runs, read_runs, store_run

BROKEN = {'fails': {'seed': 1}, 'is killed': {'seed': 2}}


def train(arm, seed, base):
    """A run of no time at all, unless its arm and seed are broken."""
    if Path(broken_flag).exists() and BROKEN.get(arm, {}).get('seed') == seed:
        if arm == 'fails':
            raise ZeroDivisionError('no episode was kept')
        os.kill(os.getpid(), signal.SIGKILL)
    return {'heldout': {'pass_rate': (seed + 1) / 3}, 'history': [{'step': 0, 'reward': seed / 7}]}


folder = tempfile.TemporaryDirectory()
broken_flag = f'{folder.name}/broken'
DEMO = Study('demo', {'fine': {}, 'fails': {}, 'is killed': {}}, train)

# %%
def sweep(place, seeds=(0, 1, 2)):
    """Run what is missing in a folder and store it: the failures."""
    with patch('agentrl.arms.runs_path', lambda study, table: Path(folder.name, place, f'{table}.csv')):
        runs = missing_runs(DEMO, DEMO.arms, seeds)
        ended = dict(finished_runs(DEMO, runs, jobs=2))
        failed = {run: result for run, result in ended.items() if isinstance(result, str)}
        for run in sorted(ended.keys() - failed.keys()):
            store_run(DEMO, *run, ended[run])
        return len(runs), failed, read_runs(DEMO, 'heldout')


Path(broken_flag).touch()
asked, failed, stored = sweep('first')
print(f'{asked} asked for, {len(stored)} stored, {len(failed)} failed:')
for (arm, base, seed), text in sorted(failed.items()):
    print(f'  arm={arm!r} base={base} seed={seed}: {text}')

# %% [markdown]
# Now both causes are removed, and the same call goes on where it was. The table must be that of a sweep
# which was never interrupted, to the last digit.

# %%
Path(broken_flag).unlink()
asked, failed, resumed = sweep('first')
_, _, whole = sweep('second')
print(f'{asked} asked for, {len(failed)} failed; equal to an uninterrupted sweep: {resumed.equals(whole)}')
folder.cleanup()
resumed.drop(columns='version').round(3)

# %% [markdown]
# ## The launcher
#
# `tools/sweep.py` joins these parts to a command line. It says what is missing, shows progress and the time
# left, stores each run as it ends, and goes on after a kill. With an address it uses the workers of a Ray
# cluster through joblib; without, processes of this machine. (The book's runs have no evaluation in between
# and one limit of tokens, so it has no options for `eval_interval` and the limits; those checks are for
# launchers that have.) Here it is asked for things that it must refuse, and then for a list only.

# %%
import subprocess
import sys
from importlib.resources import files


def command(*options):
    """Exit status and what the launcher prints."""
    done = subprocess.run([sys.executable, '-m', 'tools.sweep', *options], cwd=Path(files('agentrl')).parent,
                          capture_output=True, text=True, timeout=100)
    return f'exit status {done.returncode}\n{done.stderr}{done.stdout}'


print(command('--study', 'grpo', '--arms', 'penalty 0.5', '--seeds', '0-x', '--address', '127.0.0.1:1'))
print(command('--study', 'grpo', '--arms', 'default', '--seeds', '0-2', '--bases', '0,99', '--missing'))

# %% [markdown]
# ## What was seen
#
# Seven mistakes in one set of settings were told in one answer, before anything had started. A machine that
# does not answer was given up after 0.3 seconds here, 3 by default, where the public run hung for 15.0
# minutes without a word. There the head had chosen an address of its own by a default prefix, one that other
# machines could not reach; to try it from the head itself, as `check_reachable` does, would have passed. So a
# test of reach belongs on the workers, and the lesson of that run is another: no silent default for an
# address. (Our launcher's `address=None` means this machine alone, and it says so; 127.0.0.1 and 0.0.0.0 pass
# its check, too, and no worker elsewhere can use them.) The token check knows of a model's window only, not of
# memory, which was that run's reason to halve its session. Of nine runs seven were stored although one failed and one killed its worker; both
# were named with arm and seed. The resumed table was equal to an uninterrupted one. The public run's
# direction (check first, with a bound, by name) is a matter of construction here, not of measurement.
#
# **Advice.** Refuse at the start what can be known at the start, all of it at once. Give every wait a bound.
# Let the parent store each result as it comes, and let nothing that one run does end another.
#
# **Try it.** Kill the launcher with `kill -9` while it trains, start it again, and see what it says is
# missing. Then let `train` above kill its worker for two of the nine runs.
