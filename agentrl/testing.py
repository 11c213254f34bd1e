# Made by tools/export.py from notebooks/04_environment/04_1_isolated_tests.py. Do not edit: change it there, then `make export`.
# Body: 068bc2466f7f6e5b
"""4.1 Run a stranger's program without being hurt or fooled."""

import ast
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import psutil

from agentrl.tasks import canonical_source


# 04_environment/04_1_isolated_tests, cell 4
@dataclass(frozen=True)
class Verdict:
    """What the tests say.

    `reason` is 'passed', 'failed', 'error: NAME', 'timeout', 'memory', 'output' or 'exit';
    'failed' and 'error' speak of the first test that did not pass; 'exit' is an end without a report.
    """
    passed: bool
    n_passed: int
    n_tests: int
    reason: str


# 04_environment/04_1_isolated_tests, cell 4
def _grade(report, tests):
    """The verdict on the child's report: a line `= value` or `! error` for each test."""
    answers = report.split('\n')
    if len(answers) != len(tests):
        return Verdict(False, 0, len(tests), 'exit')
    right = [answer == '= ' + ascii(expected) for answer, (_, expected) in zip(answers, tests, strict=True)]
    first = answers[right.index(False)] if not all(right) else ''
    name = first[2:42] if first.startswith('! ') and first[2:42].isidentifier() else ''
    reason = 'passed' if all(right) else f'error: {name}' if name else 'failed'
    return Verdict(all(right), sum(right), len(tests), reason)


# 04_environment/04_1_isolated_tests, cell 6
RUNNER = """
import os, sys

def attempt(action):                        # one line: what a call gave
    try:
        return '= ' + ascii(action())
    except MemoryError:
        os._exit(3)                         # a number that the parent knows
    except Exception as error:
        return '! ' + type(error).__name__

me, report = os.getpid(), os.dup(1)         # keep the report's file,
os.dup2(2, 1)                               # and send prints to the other one
job = eval(sys.stdin.read())                # a dict, written by the parent
try:
    import resource                         # a second fence, where the system has one
    for name, size in job['limits']:
        resource.setrlimit(getattr(resource, name), (size, size))
except (ImportError, AttributeError, OSError, ValueError):
    pass                                    # the parent watches everywhere

space = {'__name__': 'candidate', 'exit': sys.exit, 'quit': sys.exit}
start = attempt(lambda: exec(job['source'], space))
answers = [attempt(lambda: space[job['name']](*eval(arguments))) if start == '= None' else start
           for arguments in job['arguments']]
attempt(lambda: print(end='', flush=True))
if os.getpid() == me:                       # a forked copy has no say
    os.write(report, '\\n'.join(answers).encode())
os._exit(0)                                 # waits for no thread
"""


# 04_environment/04_1_isolated_tests, cell 8
MAX_OUTPUT = 1 << 16                                                    # bytes, for prints and for the report
LOOK_EVERY = 0.02                                                       # seconds
PATIENCE = 30                                                           # times the timeout, on the clock


# 04_environment/04_1_isolated_tests, cell 8
def _tree(pid):
    """A process and its descendants, as far as they live."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


# 04_environment/04_1_isolated_tests, cell 8
def _used(pid):
    """(processor seconds, resident bytes) of a process and its descendants."""
    seconds, size = 0.0, 0
    for process in _tree(pid):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])     # user, system, and both of children that have ended
            size += process.memory_info().rss
    return seconds, size


# 04_environment/04_1_isolated_tests, cell 9
def _watch(process, files, timeout, memory_mb):
    """Wait for the child's end; the name of the limit it broke, or None."""
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY)
        if any(os.fstat(file.fileno()).st_size > MAX_OUTPUT for file in files):
            return 'output'
        if process.returncode is not None:
            return 'memory' if process.returncode == 3 else None
        seconds, size = _used(process.pid)
        if size > memory_mb << 20:
            return 'memory'
        if seconds > timeout or time.monotonic() > deadline:
            return 'timeout'


# 04_environment/04_1_isolated_tests, cell 9
def _kill_tree(process):
    """End the child and all that it started."""
    tree = _tree(process.pid) if process.poll() is None else []
    if hasattr(os, 'killpg'):                                           # reaches orphans too
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for member in tree:
        with suppress(psutil.Error):
            member.kill()
    process.wait()


# 04_environment/04_1_isolated_tests, cell 10
_ENVIRONMENT = {name: os.environ[name] for name in ('SYSTEMROOT',) if name in os.environ}


# 04_environment/04_1_isolated_tests, cell 10
def _run_child(job, timeout, memory_mb):
    """(limit that was broken or None, report) of one child."""
    with (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
          tempfile.TemporaryFile() as orders, tempfile.TemporaryFile() as report,
          tempfile.TemporaryFile() as printed):
        orders.write(ascii(job).encode())
        orders.seek(0)
        process = subprocess.Popen([sys.executable, '-I', '-S', '-c', RUNNER], stdin=orders, stdout=report,
                                   stderr=printed, cwd=folder, env=_ENVIRONMENT, start_new_session=True)
        try:
            broken = _watch(process, (report, printed), timeout, memory_mb)
        finally:
            _kill_tree(process)
        report.seek(0)
        return broken, report.read(MAX_OUTPUT).decode('ascii', 'replace')


# 04_environment/04_1_isolated_tests, cell 11
MAX_SOURCE = 20_000                                                     # characters


# 04_environment/04_1_isolated_tests, cell 11
@lru_cache(maxsize=4096)
def _prepare(source):
    """(program, name of its last function), or (None, reason) if there is nothing to run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, f'error: {type(error).__name__}'
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not names:
        return None, 'error: no function'
    with suppress(ValueError, RecursionError):                          # else it stays as it is
        source = ast.unparse(tree)
    return source, names[-1]


# 04_environment/04_1_isolated_tests, cell 13
@lru_cache(maxsize=256)
def _read_tests(text):
    """The tests in `text`; ValueError if they are not pairs of literals."""
    try:
        tests = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        tests = ()
    if not (isinstance(tests, tuple) and tests and all(
            isinstance(test, tuple) and len(test) == 2 and isinstance(test[0], tuple) for test in tests)):
        raise ValueError(f'tests={text} is not allowed; give a non-empty tuple of pairs (tuple of arguments, '
                         'expected value), all literals, for example (((1, 2), 3),)')
    return tests


# 04_environment/04_1_isolated_tests, cell 13
@lru_cache(maxsize=8192)
def _execute(program, name, tests_text, timeout, memory_mb):
    """The verdict on a program that has a function `name`; a child is run for each new combination."""
    tests = _read_tests(tests_text)
    limits = [('RLIMIT_FSIZE', MAX_OUTPUT + 1), ('RLIMIT_CPU', math.ceil(4 * timeout) + 10),
              ('RLIMIT_AS', memory_mb << 20)]
    job = {'source': program, 'name': name, 'arguments': [ascii(arguments) for arguments, _ in tests],
           'limits': limits}
    broken, report = _run_child(job, timeout, memory_mb)
    return Verdict(False, 0, len(tests), broken) if broken else _grade(report, tests)


# 04_environment/04_1_isolated_tests, cell 14
def run_tests(source, tests, timeout=2.0, memory_mb=256):
    """Execute the tests on the last function of `source` in a process of its own; returns a `Verdict`.

    `tests` is a tuple of pairs (tuple of arguments, expected value), all literals. Values are compared by
    their text, so True is not 1. `timeout` is in seconds of processor time for all tests together; PATIENCE
    times as much on the clock ends a program that sleeps. Whatever the source does, it gets a verdict, never
    an exception; ValueError and TypeError speak of the parameters. Memoised on the canonical source.
    """
    if not isinstance(source, str):
        raise TypeError(f'source={source!r} is a {type(source).__name__}; give the program as a string')
    if not (0 < timeout <= 3600 and isinstance(memory_mb, int) and 32 <= memory_mb <= 65536):
        raise ValueError(f'timeout={timeout!r}, memory_mb={memory_mb!r}: allowed are seconds in (0, 3600] '
                         'and a whole number of megabytes from 32 to 65536')
    text = ascii(tests)
    n_tests = len(_read_tests(text))
    if len(source) > MAX_SOURCE:
        return Verdict(False, 0, n_tests, 'error: source too long')
    program, name = _prepare(canonical_source(source)[0])
    return _execute(program, name, text, timeout, memory_mb) if program else Verdict(False, 0, n_tests, name)
