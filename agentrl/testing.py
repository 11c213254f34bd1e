# Made by tools/export.py from notebooks/04_environment/04_1_isolated_tests.py. Do not edit: change it there, then `make export`.
# Body: 339663df7b2c530b
"""4.1 Run a stranger's program without being hurt or fooled."""

import ast
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from contextlib import ExitStack, contextmanager, suppress
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
def _form(value):
    """Nested tuples that are equal for equal values of equal types, in whatever order a set or dict has them."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, tuple(sorted((_form(key), _form(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_form, value))
    return kind, tuple(sorted(map(_form, value))) if isinstance(value, set) else ascii(value)


# 04_environment/04_1_isolated_tests, cell 4
def _same(answer, expected):
    """Whether the line `answer` tells the expected value."""
    if '{' not in answer or not answer.startswith('= '):
        return answer == '= ' + ascii(expected)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _form(ast.literal_eval(answer[2:])) == _form(expected)
    return False


# 04_environment/04_1_isolated_tests, cell 4
def _grade(report, tests):
    """The verdict on the child's report: `memory`, or a line `= value` or `! error` for each test."""
    answers = report.split('\n')
    if report == 'memory' or len(answers) != len(tests):
        return Verdict(False, 0, len(tests), 'memory' if report == 'memory' else 'exit')
    right = [_same(answer, expected) for answer, (_, expected) in zip(answers, tests, strict=True)]
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
        finish('memory')
    except Exception as error:
        return '! ' + type(error).__name__

def finish(text):
    if os.getpid() != me:                   # a forked copy has no say
        os._exit(0)
    data = text.encode()
    os._exit(os.write(report, data) != len(data))       # waits for no thread; 1 on a full disk

me, report = os.getpid(), os.dup(1)         # keep the report's file,
os.dup2(2, 1)                               # and send prints to the other one
try:
    import ctypes                           # Linux: be killed (9) when the parent dies (option 1)
    ctypes.CDLL(None).prctl(1, 9)
    import resource                         # a second fence, where the system has one
except (ImportError, AttributeError, OSError, TypeError):
    resource = None                         # the parent watches everywhere

line = sys.stdin.readline()                 # a dict, written by the parent
if not line:
    os._exit(0)                             # the parent has no job for us any more
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
job = eval(line)
for name, size in job['limits']:
    try:
        resource.setrlimit(getattr(resource, name), (size, size))
    except (AttributeError, OSError, ValueError):
        pass

space = {'__name__': 'candidate', 'exit': sys.exit, 'quit': sys.exit}
start = attempt(lambda: exec(job['source'], space))
answers = [attempt(lambda: space[job['name']](*eval(arguments))) if start == '= None' else start
           for arguments in job['arguments']]
attempt(lambda: print(end='', flush=True))
finish('\\n'.join(answers))
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
@contextmanager
def _end_of(process):
    """A function that waits for the process's end, some seconds at most, and returns as soon as it comes."""
    if not hasattr(os, 'pidfd_open'):                                   # not Linux: a thread waits for us
        waiter = threading.Thread(target=process.wait, daemon=True)
        waiter.start()
        yield waiter.join
        return
    end, poll = os.pidfd_open(process.pid), select.poll()
    poll.register(end, select.POLLIN)
    try:
        yield lambda seconds: poll.poll(1000 * seconds)
    finally:
        os.close(end)


# 04_environment/04_1_isolated_tests, cell 9
def _watch(process, files, timeout, memory_mb, before):
    """Wait for the child's end; the name of the limit it broke, or None. `before` are seconds it has used."""
    deadline = time.monotonic() + PATIENCE * timeout
    with _end_of(process) as wait:
        while True:
            wait(LOOK_EVERY)
            if any(os.fstat(file.fileno()).st_size > MAX_OUTPUT for file in files):
                return 'output'
            if process.poll() is not None:
                return 'exit' if process.returncode else None
            seconds, size = _used(process.pid)
            if size > memory_mb << 20:
                return 'memory'
            if seconds - before > timeout or time.monotonic() > deadline:
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
def _open_up(path):
    """Let us change a folder; links and files stay as they are."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        return True
    return False


# 04_environment/04_1_isolated_tests, cell 10
def _remove(folder):
    """Delete a folder and all in it; what the system does not let us delete stays."""
    with suppress(OSError):
        _open_up(folder)
        count = 0
        while names := os.listdir(folder):
            for path in (os.path.join(folder, name) for name in names):
                if not _open_up(path):
                    os.unlink(path)
                    continue
                for inner in (os.path.join(path, name) for name in os.listdir(path)):
                    _open_up(inner)
                    count += 1
                    os.rename(inner, os.path.join(folder, f'.moved {count} {time.monotonic_ns()}'))
                os.rmdir(path)
        os.rmdir(folder)


# 04_environment/04_1_isolated_tests, cell 11
_ENVIRONMENT = {name: os.environ[name] for name in ('SYSTEMROOT',) if name in os.environ}


AHEAD = 4                                                               # processes that wait for a job
_local = threading.local()              # a child is its thread's: Linux kills it when this thread ends


# 04_environment/04_1_isolated_tests, cell 11
def _close(owner, stack):
    """End a child and delete its folder, unless we are a forked copy of the process that owns it."""
    if os.getpid() == owner:
        stack.close()


# 04_environment/04_1_isolated_tests, cell 11
class _Child:
    """A process that waits for its job, with a folder and files of its own; it serves one program."""

    def __init__(self):
        with ExitStack() as stack:
            folder = tempfile.mkdtemp()
            stack.callback(_remove, folder)
            self.files = self.report, printed = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            self.process = subprocess.Popen([sys.executable, '-I', '-S', '-c', RUNNER], stdin=subprocess.PIPE,
                                            stdout=self.report, stderr=printed, cwd=folder, env=_ENVIRONMENT,
                                            start_new_session=True)
            stack.callback(_kill_tree, self.process)
            stack.callback(self.process.stdin.close)
            self.mark = os.getpid(), RUNNER
            self.close = weakref.finalize(self, _close, os.getpid(), stack.pop_all())

    def send(self, job):
        """Hand the job over; processor seconds that the child has used before."""
        seconds = 0.0
        with suppress(psutil.Error):
            seconds = sum(psutil.Process(self.process.pid).cpu_times()[:2])
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(ascii(job).encode() + b'\n')
        return seconds


# 04_environment/04_1_isolated_tests, cell 12
def _ready():
    """This thread's children that wait for a job."""
    waiting = [child for child in getattr(_local, 'ready', [])
               if child.mark == (os.getpid(), RUNNER) and child.process.poll() is None]
    _local.ready = waiting
    return waiting


# 04_environment/04_1_isolated_tests, cell 12
def _run_child(job, timeout, memory_mb):
    """(limit that was broken or None, report) of one child."""
    waiting = _ready()
    child = waiting.pop(0) if waiting else _Child()
    try:
        before = child.send(job)
        with suppress(OSError):                         # no room to prepare is no fault of this program
            waiting += [_Child() for _ in range(len(waiting), AHEAD)]
        broken = _watch(child.process, child.files, timeout, memory_mb, before)
        child.report.seek(0)
        return broken, child.report.read(MAX_OUTPUT).decode('ascii', 'replace')
    finally:
        child.close()


# 04_environment/04_1_isolated_tests, cell 13
MAX_SOURCE = 20_000                                                     # characters


# 04_environment/04_1_isolated_tests, cell 13
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


# 04_environment/04_1_isolated_tests, cell 15
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


# 04_environment/04_1_isolated_tests, cell 15
class _NoReport(Exception):
    """An end without a report: its verdict (the argument) is not kept."""


# 04_environment/04_1_isolated_tests, cell 15
@lru_cache(maxsize=8192)
def _execute(program, name, tests_text, timeout, memory_mb):
    """The verdict on a program that has a function `name`; a child is run for each new combination."""
    tests = _read_tests(tests_text)
    limits = [('RLIMIT_FSIZE', MAX_OUTPUT + 1), ('RLIMIT_CPU', math.ceil(4 * timeout) + 10),
              ('RLIMIT_AS', memory_mb << 20)]
    job = {'source': program, 'name': name, 'arguments': [ascii(arguments) for arguments, _ in tests],
           'limits': limits}
    broken, report = _run_child(job, timeout, memory_mb)
    verdict = Verdict(False, 0, len(tests), broken) if broken else _grade(report, tests)
    if verdict.reason == 'exit':                                        # perhaps not the program's doing
        raise _NoReport(verdict)
    return verdict


# 04_environment/04_1_isolated_tests, cell 16
def run_tests(source, tests, timeout=2.0, memory_mb=256):
    """Execute the tests on the last function of `source` in a process of its own; returns a `Verdict`.

    `tests` is a tuple of pairs (tuple of arguments, expected value), all literals. Values are compared by
    their text, so True is not 1, and only the order of a set's or dict's entries does not matter. `timeout` is in seconds of processor time for all tests together; PATIENCE
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
    if not program:
        return Verdict(False, 0, n_tests, name)
    try:
        return _execute(program, name, text, timeout, memory_mb)
    except _NoReport as end:
        return end.args[0]
