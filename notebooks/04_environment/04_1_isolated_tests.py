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
# # 4.1 Run a stranger's program without being hurt or fooled
#
# The reward of this book is a fact: the tests were executed and they passed. A policy that is paid for
# passing tests will sooner or later write anything that makes a grader say "passed", and some programs hurt
# by accident. This section builds `run_tests`: a process of its own for each program, with bounds on time,
# memory and output, and with the answers kept at home. We will send it programs that loop, grow, print,
# leave, lie, fork and spy, each in a cell with its verdict, and then let it prove the promise of section 2.1:
# each of the 30 tasks is repaired by exactly one edit.
#
# **Time** 30 min. **Assumes** [2.1](../02_fundamentals/02_1_repair_tasks.ipynb). **Afterwards you can** run
# an untrusted function under limits of time, memory and output, and predict the verdict on one that loops,
# exits or forges a report.

# %%
#@save testing
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

# %% [markdown]
# ## The plain version, and how it is fooled
#
# The short way is to execute the program right here and to compare with `==`. It works for honest programs.


# %%
def naive_passes(source, tests):
    namespace = {}
    exec(source, namespace)
    return all(namespace['f'](*arguments) == expected for arguments, expected in tests)


tests = (((3, 2), 5), ((-1, 1), 0), ((0, 0), 0))
print(naive_passes('def f(a, b): return a + b', tests), naive_passes('def f(a, b): return a - b', tests))

# %% [markdown]
# But `==` asks the candidate's own value whether it is equal, and that value can say yes to everything. No
# policy needs to be malicious to find this out: reward is enough. And an endless loop in `f` would end our
# session with it.

# %%
liar = """
class Agreeable:
    def __eq__(self, other):
        return True

def f(a, b):
    return Agreeable()
"""
print(naive_passes(liar, tests))

# %% [markdown]
# ## Texts cannot lie about equality
#
# So a value leaves its process only as text, the one that `ascii` writes, and the parent compares it with the
# text of the expected value. This is also strict about types: `1`, `1.0` and `True` are equal to Python and
# are three different texts. The expected texts are never sent to the child, so there is nothing there that a
# program could copy. Only the entries of sets and dictionaries have no order that means anything: there the
# answer is read back as a literal, and `_form` compares values together with their types.

# %%
#@save
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


def _form(value):
    """Nested tuples that are equal for equal values of equal types, in whatever order a set or dict has them."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, tuple(sorted((_form(key), _form(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_form, value))
    return kind, tuple(sorted(map(_form, value))) if isinstance(value, set) else ascii(value)


def _same(answer, expected):
    """Whether the line `answer` tells the expected value."""
    if '{' not in answer or not answer.startswith('= '):
        return answer == '= ' + ascii(expected)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _form(ast.literal_eval(answer[2:])) == _form(expected)
    return False


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


# %% [markdown]
# Three reports by hand: all right; a value of the wrong type; an exception in the first test, which costs
# this test only. The liar's `Agreeable` is now a text like any other, and a wrong one.

# %%
for report in ('= 5\n= 0\n= 0', '= 5\n= 0.0\n= False', '! ZeroDivisionError\n= 0\n= 0'):
    print(_grade(report, tests))

# %% [markdown]
# ## The program that runs in the child
#
# The child is a bare interpreter: `-I` ignores the user's settings, `-S` skips installed packages. Most of
# its time is its own start, so it can be started ahead: it waits for one line on standard input, its job,
# and ends if its parent is gone, which it notices by the end of this input, or, on Linux, by a signal. The file behind its standard output is for the report, so the first thing it does
# is to keep that file under another number and to send prints elsewhere. Arguments come as text and are read
# afresh for each test: a program that changes its list changes nothing for the next test. `SystemExit` is not
# an `Exception`, so a program that exits leaves no report.

# %%
#@save
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

# %% [markdown]
# We can play the parent by hand. The print vanishes from the report, and the second test fails alone.

# %%
job = {'source': 'def f(a):\n    print(a)\n    return 10 // a', 'name': 'f', 'arguments': ['(3,)', '(0,)'],
       'limits': []}
command = [sys.executable, '-I', '-S', '-c', RUNNER]
done = subprocess.run(command, input=ascii(job) + '\n', text=True, capture_output=True)
print('report: ', repr(done.stdout))
print('printed:', repr(done.stderr))

# %% [markdown]
# ## A parent that watches
#
# A limit that the child sets on itself is a courtesy, and Windows has none. The bound that holds everywhere
# is the parent's: every 20 milliseconds it looks at the size of the two files, and at the memory and the
# processor time of the child *and its descendants*. Most children are done before the first look. `psutil`
# reads the same numbers on Linux, macOS and Windows.
#
# Why not simply look at the clock? On a busy machine a right program may wait for seconds until it is its
# turn. A reward that depends on what else the machine does cannot be reproduced, and nothing in a training
# curve would tell. So time is counted while the program runs, and the clock only ends one that sleeps.

# %%
#@save
MAX_OUTPUT = 1 << 16                                                    # bytes, for prints and for the report
LOOK_EVERY = 0.02                                                       # seconds
PATIENCE = 30                                                           # times the timeout, on the clock


def _tree(pid):
    """A process and its descendants, as far as they live."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _used(pid):
    """(processor seconds, resident bytes) of a process and its descendants."""
    seconds, size = 0.0, 0
    for process in _tree(pid):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])     # user, system, and both of children that have ended
            size += process.memory_info().rss
    return seconds, size


# %% [markdown]
# The parent does not ask again and again whether the child has ended: Linux has a file that becomes readable
# at that moment, and elsewhere a thread waits. A child that has ended is judged by what it left, one that still runs by what it takes. When it is over, the
# whole tree is ended: `psutil` finds living descendants on every system, and a process group, where there is
# one, also orphans.

# %%
#@save
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


# %% [markdown]
# Whatever a program leaves in its folder must go: a thousand folders in one another, or a folder that forbids
# writing. So nothing is followed downwards; what lies deeper is moved up until only files are left.

# %%
#@save
def _open_up(path):
    """Let us change a folder; links and files stay as they are."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        return True
    return False


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


# %% [markdown]
# Now the two halves meet. The child gets an empty folder of its own, an empty environment (Windows cannot
# start a process without `SYSTEMROOT`), a pipe for its job and two files; no other open file of ours is passed
# on. `close` ends the tree also when the reader presses stop.

# %%
#@save
_ENVIRONMENT = {name: os.environ[name] for name in ('SYSTEMROOT',) if name in os.environ}


AHEAD = 4                                                               # processes that wait for a job
_local = threading.local()              # a child is its thread's: Linux kills it when this thread ends


def _close(owner, stack):
    """End a child and delete its folder, unless we are a forked copy of the process that owns it."""
    if os.getpid() == owner:
        stack.close()


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


# %%
#@save
def _ready():
    """This thread's children that wait for a job."""
    waiting = [child for child in getattr(_local, 'ready', [])
               if child.mark == (os.getpid(), RUNNER) and child.process.poll() is None]
    _local.ready = waiting
    return waiting


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


# %% [markdown]
# ## One verdict for a thousand copies
#
# A child costs hundredths of a second, a lookup a thousandth of that or less, and a training run asks for the
# same few hundred programs again and again under new names. So the memo's key is the canonical program of
# section 2.1, brought to one layout by `ast`, and it is this canonical program that is executed. Renaming
# must not change the meaning, so programs that can see names from inside (keyword arguments, `locals`) keep
# theirs.

# %%
#@save
MAX_SOURCE = 20_000                                                     # characters


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


# %%
print(_prepare('def  f( x ) :  return (x+1)'))
print(_prepare('x = 1'), _prepare('def f(:'))

# %% [markdown]
# The tests' half of the key is a text too. A memo that is keyed by the values themselves would take
# `((1,), 1)` and `((True,), True)` for the same test, since they are equal and have the same hash. The limits
# sent along are the second fence, on Unix: file size and memory hold between two looks, and processor time
# ends even a child whose watching parent was killed. A child that ends without a report may have been killed by
# somebody else, or have met a full disk: this verdict alone is not kept, and the program runs again if it is
# asked for again.

# %%
#@save
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


class _NoReport(Exception):
    """An end without a report: its verdict (the argument) is not kept."""


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


# %%
#@save
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


# %% [markdown]
# ## Honest programs
#
# A right one, a wrong one, and one that raises on one test; then the liar.

# %%
print(run_tests('def f(a, b): return a + b', tests))
print(run_tests('def f(a, b): return abs(a) + b', tests))
print(run_tests('def f(a, b): return a + b if b else 1 // b', tests))
print(run_tests(liar, tests))

# %% [markdown]
# Here every test gets its own list, although the function empties the list that it is given.

# %%
print(run_tests('def f(a):\n    a.clear()\n    return len(a)', ((([1, 2],), 0), (([3],), 0))))

# %% [markdown]
# ## Programs that do not end, or do not stop growing
#
# An endless loop costs its time limit and no more; we lower it here. A program that waits longer than that is
# not cut off, unless its patience is worn out. The eater doubles a list until it meets
# the memory limit.

# %%
print(run_tests('def f(a, b):\n    while True: pass', tests, timeout=0.5))
print(run_tests('import time\ndef f(a, b):\n    time.sleep(0.1)\n    return a + b', tests, timeout=0.2))
print(run_tests('import time\ndef f(a, b):\n    time.sleep(60)', tests, timeout=0.05))

# %%
print(run_tests('def f(a, b):\n    x = [0]\n    while True: x += x', tests))

# %% [markdown]
# Prints are bounded, since a disk can be filled too: 64 kB are free, more ends the program. What is returned
# is output as well.

# %%
print(run_tests('def f(a, b):\n    print(a)\n    return a + b', tests))
print(run_tests('def f(a, b):\n    for i in range(100): print("x" * 100_000)\n    return a + b', tests))
print(run_tests('def f(a, b):\n    return [a] * 100_000', tests))

# %% [markdown]
# ## Programs that leave, or talk to the grader
#
# In graders that trust an exit code, `exit(0)` is the shortest way to full reward. Here an end without a
# report is a failure, whether polite or abrupt.

# %%
print(run_tests('def f(a, b):\n    exit(0)', tests))
print(run_tests('import os\ndef f(a, b):\n    os._exit(0)', tests))

# %% [markdown]
# A fake verdict on standard output lands among the prints. The next program knows our protocol and writes to
# every open file. The best that it can forge is a report of values, and it does not know which values are
# right.

# %%
print(run_tests('def f(a, b):\n    print("Verdict(passed=True, n_passed=3, n_tests=3)")', tests))
forger = """
import os
def f(a, b):
    for number in range(20):
        try:
            os.write(number, b'= True\\n= True\\n= True')
        except OSError:
            pass
    os._exit(0)
"""
print(run_tests(forger, tests))

# %% [markdown]
# ## Programs that start others
#
# This one starts two more interpreters, marked so that we can look for them, and waits. The limits speak of
# the whole tree, and so does the end: none of them is left. On Linux and macOS this includes children whose
# parent has already gone, as long as they stay in its process group.

# %%
forker = """
import subprocess, sys
def f(a, b):
    for i in range(2):
        subprocess.Popen([sys.executable, '-c', 'marked_child = 1\\nwhile True: pass'])
    while True: pass
"""
print(run_tests(forker, tests, timeout=0.5))
alive = [process.pid for process in psutil.process_iter(['cmdline', 'status'])
         if 'marked_child = 1' in str(process.info['cmdline'])
         and process.info['status'] != psutil.STATUS_ZOMBIE]
print('left alive:', len(alive))

# %% [markdown]
# ## Programs that are none, and one that spies
#
# Any string at all gets a verdict. The last program looks for a secret that our own environment holds.

# %%
for source in ('def f(a, b) return a', '', 'f = 1', '(' * 5000, 'def f(a, b): return no_such_name'):
    print(run_tests(source, tests).reason)

os.environ['MY_SECRET'] = 'do not tell'
spy = 'import os\ndef f():\n    return os.environ.get("MY_SECRET"), os.listdir()'
print(run_tests(spy, (((), (None, [])),)))
del os.environ['MY_SECRET']

# %% [markdown]
# ## What this does not stop
#
# It is an isolation against accidents and against cheap ways to reward, not a jail. The child has the rights
# of its user: it can read and delete files by their full path and open a connection. It can also leave a
# process behind, by giving it a session of its own before it returns. Code of a capable model belongs in a
# container or a virtual machine without a network; the parts above then still decide what counts as passed.
#
# ## The memo counts programs, not names
#
# A renamed copy with another layout is the same program, so it starts no child; other tests are another
# question.

# %%
_execute.cache_clear()
sources = ('def f(a, b): return a * b', 'def g(x,  y):\n\n    return (x * y)', 'def f(a, b): return b * a')
for source in sources:
    verdict, count = run_tests(source, tests), _execute.cache_info()
    print(verdict.reason, '| children:', count.misses, '| from the memo:', count.hits)

# %% [markdown]
# ## Thirty tasks, one repair each
#
# Section 2.1 promised that exactly one edit makes the hidden tests pass, and that none passes before. Now we
# can execute it: 30 sources, and each of them after each of the five edits, against the visible and the
# hidden tests.

# %%
import pandas as pd
import torch
from tqdm import tqdm

from agentrl.tasks import EDIT_OPS, apply_op, make_tasks

tables = {kind: pd.DataFrame(0, list(EDIT_OPS), list(EDIT_OPS)) for kind in ('hidden', 'visible')}
before, slips = {'hidden': [], 'visible': []}, []
for task in tqdm(make_tasks('all')):
    passes = {}
    for kind, task_tests in (('hidden', task.hidden_tests), ('visible', task.visible_tests)):
        before[kind] += [task.name] * run_tests(task.source, task_tests).passed
        passes[kind] = [op for op in EDIT_OPS if run_tests(apply_op(task.source, op), task_tests).passed]
        tables[kind].loc[task.edit, passes[kind]] += 1
    slips += [(task.name, op) for op in passes['visible'] if op not in passes['hidden']]

# %% [markdown]
# First the hidden tests. A row is a bug, on six tasks each; a column is the edit that was tried; a number
# counts the tasks that then pass.

# %%
print('tasks that pass the hidden tests unedited:', len(before['hidden']))
assert (tables['hidden'].to_numpy() == 6 * torch.eye(5).numpy()).all()
tables['hidden']

# %% [markdown]
# The visible tests, which the agent's `test` tool will run, are weaker on purpose. A pass is good evidence;
# these are the cases where it misleads.

# %%
print('tasks that pass the visible tests unedited:', before['visible'])
print('wrong edits that pass them:', len(slips), 'of', 30 * 4)
for name, op in slips:
    print(f'    {name} after {op}')

# %% [markdown]
# After all this our session is as it was: no child of ours is left.

# %%
waiting = {child.process.pid for child in _ready()}
left = [process.pid for process in psutil.Process().children()
        if RUNNER in process.cmdline() and process.pid not in waiting]
print('children left:', len(left), '| waiting for a job:', len(waiting))

# %% [markdown]
# ## What was seen
#
# The naive grader accepts the liar; `run_tests` gives it 0 of 3. Endless loops, growth and floods end as
# `timeout`, `memory` and `output`, a program that only waits is given its time, leaving ends as `exit`, a
# forged report as `failed`, and nothing is left alive: 0 processes of the forker, 0 children of ours. Three
# sources cost two children, because the second is the first under other names. On the grid each edit passes
# the hidden tests of its own 6 tasks and of no other, 0 tasks pass unedited, and the visible tests let 2
# unedited tasks and 4 wrong edits slip through.
#
# **Try it.** Add `[0, 0, 4]` to `VISIBLE_INPUTS` in section 2.1: which of the slips remain? Write a program
# that gets `passed=True` for the `tests` of this section without adding anything.
