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
# # 0.3 Keep what was trained, under a key of its configuration and its code
#
# Most sections of this book need the same few trained policies, and training one takes from half a minute
# to several. So a trained thing is kept on disk. Two dangers come with that. A *stale* result was made by
# code that has changed since; a *damaged* one was half written, or spoiled on disk. Here is a cache that
# recognises both: an empty cache, or a broken one, changes only the time that a notebook takes.
#
# The work is done by joblib's `Memory`, a well-kept memoiser, and by `filelock`. What we add is a key that
# knows about code, and a checksum.
#
# **Time** 20 min. **Assumes** no other section. **Afterwards you can** keep the result of a slow function
# on disk, and say which edits of code or damage to a file make it run again.

# %%
#@save cache
import ast
import functools
import hashlib
import inspect
import io
import os
import pickle
import re
import textwrap
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import joblib
from filelock import FileLock
from joblib.func_inspect import get_func_code
from joblib.memory import FileSystemStoreBackend

# %% [markdown]
# What is kept lies in one folder of the repository, which git ignores. To forget everything, delete it.

# %%
#@save
def cache_dir():
    """The folder of kept results: `$AGENTRL_CACHE`, or .cache/ in the repository. Deleting it costs time."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_CACHE') or '.cache')


# %% [markdown]
# ## The key: what the code does, not how it is explained
#
# A result belongs to the code that made it. If we hashed the text of a file, every corrected comment would
# throw away an hour of training; so we hash what Python makes of the text. The syntax tree has no comments,
# and we take out the docstrings. (`ast.dump` would write the tree differently in different versions of
# Python, over fields that are empty; so we write it ourselves.)

# %%
#@save
def tree_text(node):
    """A syntax tree as text, without its empty fields."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f'{type(node).__name__}({", ".join(f"{name}={tree_text(value)}" for name, value in fields)})'
    return f'[{", ".join(map(tree_text, node))}]' if isinstance(node, list) else repr(node)


@functools.cache
def code_statements(source):
    """The top-level statements of Python source as text, whatever its comments, docstrings and layout."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return [tree_text(statement) for statement in tree.body]


# %%
plain = 'def double(x):\n    return 2 * x'
explained = 'def double(x):  # twice\n    """Return twice x."""\n\n    return (2 * x)'
different = 'def double(x):\n    return x * 2'
print('explained:', code_statements(plain) == code_statements(explained))
print('different:', code_statements(plain) == code_statements(different))

# %% [markdown]
# The key must also cover the modules that the code imports, and those that they import. Only imports
# outside of functions count. An import inside a function is how this book says "needed for show": a
# trajectory imports its colours only when it is drawn, so a new colour does not retrain a policy.

# %%
#@save
def outside_functions(node):
    """All nodes of a syntax tree that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def imported_modules(source):
    """Names of the agentrl modules that Python source imports outside of functions."""
    names = []
    for node in outside_functions(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f'{node.module}.{alias.name}' for alias in node.names]
    return sorted({f'{name}.'.split('.')[1] for name in names if name.split('.')[0] == 'agentrl'})


# %%
print(imported_modules('''
import math
from agentrl.tasks import Task, make_tasks
if True:
    import agentrl.model

def show(trajectory):
    from agentrl.display import tokens_html
'''))

# %% [markdown]
# `code_version` follows the imports to the end and hashes all statements that it meets, with the version of
# torch, whose kernels do the arithmetic. (What follows a `+` in that version names the build, say for the
# CPU, and is dropped.) Two modules do not count when others import them: this one, since how a result is kept
# does not change it, and the list of experiments (section 9.3), since a new one leaves the old ones as they
# were.

# %%
#@save
def module_source(name):
    """The source of agentrl/<name>.py."""
    path = Path(files('agentrl')) / f'{name}.py'
    if not path.exists():
        known = ', '.join(sorted(file.stem for file in path.parent.glob('[a-z]*.py')))
        raise ValueError(f'agentrl has no module {name!r}; it has: {known}. Import names by module, as in '
                         '`from agentrl.tasks import Task`; modules are made by `make export`')
    return path.read_text(encoding='utf-8')


DECIDES_NOTHING = ('cache', 'arms')                     # one keeps results, the other names and stores them


def code_version(*module_names):
    """Twelve hex digits of SHA-256 over agentrl modules, what they import from agentrl, and torch."""
    sources, queue = {}, [name.removeprefix('agentrl.') for name in module_names]
    while queue:
        name = queue.pop()
        if name not in sources:
            sources[name] = module_source(name)
            queue += [new for new in imported_modules(sources[name]) if new not in DECIDES_NOTHING]
    code = [(name, code_statements(sources[name])) for name in sorted(sources)]
    return hashlib.sha256(repr((version('torch').split('+')[0], code)).encode()).hexdigest()[:12]


# %%
print('digits:', len(code_version('cache')))
print('as a module of the package:', code_version('cache') == code_version('agentrl.cache'))
try:
    code_version('trianing')
except ValueError as error:
    print(str(error).split(';')[0])

# %% [markdown]
# ## Damage: what a pickle notices
#
# Python's pickles carry no checksum. Take a file that holds the number 0.762 and flip, one after the other,
# each of the 64 bits of that number. How often does reading fail, as it should?

# %%
import struct

stored = pickle.dumps(0.762)
start = stored.index(struct.pack('>d', 0.762))
noticed, other = 0, 0
for bit in range(64):
    damaged = bytearray(stored)
    damaged[start + bit // 8] ^= 1 << bit % 8
    try:
        other += pickle.loads(damaged) != 0.762
    except Exception:
        noticed += 1
print(f'noticed: {noticed} of 64; another number: {other}')

# %% [markdown]
# Never: each gives another number, without a word. joblib can compress what it writes, and zlib's format
# ends with a checksum; that catches flipped bits. But a reader that has got what it wanted does not read on
# to the checksum. After a power failure, the end of a file may be zeros: try every length of that, on a
# list of 60 numbers.

# %%
import tempfile

value = [i / 7 for i in range(60)]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, 'value.pkl')
    joblib.dump(value, path, compress=3)
    whole, outcomes = path.read_bytes(), {'fails': 0, 'right value': 0, 'wrong value': 0}
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
        try:
            outcomes['right value' if joblib.load(path) == value else 'wrong value'] += 1
        except Exception:
            outcomes['fails'] += 1
print('a wrong value is possible:', outcomes['wrong value'] > 0)

# %% [markdown]
# So we add a layer: beside each result lies its SHA-256, and a result whose digest does not match counts as
# absent. It is checked *before* anything is unpickled. joblib itself writes to a temporary file and renames
# it; a process that is killed in between leaves either no result or one without its digest.

# %%
#@save
class CheckedStore(FileSystemStoreBackend):
    """joblib's folder on disk; what it holds is used only if the SHA-256 written beside it is right."""

    def dump_item(self, call_id, item, verbose=1):
        super().dump_item(call_id, item, verbose)
        path = Path(self.location, *call_id, 'output.pkl')
        if path.exists():                               # on a full disk joblib warns and writes nothing
            path.with_suffix('.sha256').write_text(hashlib.sha256(path.read_bytes()).hexdigest())

    def contains_item(self, call_id):
        path = Path(self.location, *call_id, 'output.pkl')
        digest = path.with_suffix('.sha256')
        if not path.exists():
            return False
        found = hashlib.sha256(path.read_bytes()).hexdigest().encode()
        if digest.exists() and digest.read_bytes() == found:
            return True
        name = Path(self.location).name
        warnings.warn(f'the kept result of {name} is damaged; it is made again', stacklevel=2)
        return False

    def get_cached_func_code(self, call_id):
        """The code of `make_bytes`, so always unchanged: our key knows about code, joblib need not check."""
        code, _, line = get_func_code(make_bytes)
        return f'# first line: {line}\n{code}'


joblib.register_store_backend('checked', CheckedStore)

# %% [markdown]
# ## In a notebook, code can be newer than its module
#
# You will change a function in a notebook and run it, and expect to see the change, not a result that the
# unchanged module once gave. IPython keeps the cells that ran in `In`. So, for a function that was defined
# in a notebook, the key also holds every statement of its exporting cells that the module made from them
# does not have.

# %%
#@save
def notebook_edits(cells):
    """Statements in a notebook's exporting cells that the module made from it lacks; [] if not edited."""
    marks = [re.match(r'#\s?@save\b *(\w*)', cell) for cell in cells]
    names = [mark[1] for mark in marks if mark and mark[1]]
    known = code_statements(module_source(names[0])) if names else []
    edits = set()
    for cell in (cell for cell, mark in zip(cells, marks, strict=True) if mark):
        try:
            edits |= set(code_statements(cell))
        except SyntaxError:                                     # a cell that did not run
            continue
    return sorted(edit for edit in edits.difference(known) if not edit.startswith('Import'))


# %%
cells = globals()['In']
print('this notebook:', len(notebook_edits(cells)), 'edits')
one_more = '#@save\ndef cache_dir():\n    return Path.home()'
print('with one more cell:', len(notebook_edits([*cells, one_more])), 'edit')

# %% [markdown]
# ## All together
#
# The arguments are part of the key, so they should be a *configuration*: names, numbers, frozen
# dataclasses. A tensor is refused: pickled, it holds its address in memory, so its key would be another one
# in each process and nothing would ever be found.

# %%
#@save
class PlainPickler(pickle.Pickler):
    """Refuses tensors, whose pickles differ between processes."""

    def reducer_override(self, part):
        kind = type(part)
        if kind.__module__.startswith('torch') and kind.__name__ in ('Tensor', 'Parameter', 'Generator'):
            raise ValueError(f'a kept function was given a {kind.__name__}; give it what that is made from '
                             '(a seed, a name, a configuration)')
        return NotImplemented


def argument_key(function, args, kwargs):
    """The same text for the same arguments, however they are given."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    PlainPickler(io.BytesIO()).dump(dict(bound.arguments))
    return joblib.hash(dict(bound.arguments))


# %%
import torch


def train(arm, seed=0):
    return f'{arm}, seed {seed}'


print(argument_key(train, ('default',), {}) == argument_key(train, (), {'seed': 0, 'arm': 'default'}))
try:
    argument_key(train, (torch.zeros(2),), {})
except ValueError as error:
    print(error)

# %% [markdown]
# `cached` decorates a function with the names of the modules whose code makes the result; the function's
# own code counts too. All code is looked at when the function is defined, as it was when it was loaded. A
# lock for each key makes a second process wait for the first one and then read what it wrote. Results
# travel as pickled bytes even on the first call, so each call gives a fresh object, and changing one
# changes nothing for the next.

# %%
#@save
def make_bytes(key, function, args, kwargs):
    """What is really kept: the function's result, pickled. (joblib looks at the key alone.)"""
    return pickle.dumps(function(*args, **kwargs))


# %%
#@save
def cached(*module_names):
    """Decorator: keep results on disk under a function's name, code, arguments, and the code of modules.

    A change in any of them gives a new key. A damaged file is made again with a warning. ValueError for an
    unknown module and, when called, for arguments that hold tensors.
    """
    modules_code = code_version(*module_names)

    def decorate(function):
        name = re.sub(r'[^\w.]', '_', f'{module_names[0].removeprefix("agentrl.")}.{function.__qualname__}')
        code = (modules_code, code_statements(textwrap.dedent(inspect.getsource(function))))
        cells = function.__globals__.get('In', [])              # a notebook's list, which grows as cells run

        @functools.wraps(function)
        def fetch(*args, **kwargs):
            key = joblib.hash((argument_key(function, args, kwargs), code, notebook_edits(cells)))
            memory = joblib.Memory(cache_dir() / name, backend='checked', compress=3, verbose=0)
            kept = memory.cache(make_bytes, ignore=['function', 'args', 'kwargs'])
            with FileLock(cache_dir() / name / f'{key}.lock'):
                return pickle.loads(kept(key, function, args, kwargs))

        return fetch
    return decorate


# %% [markdown]
# A stand-in for training, in a cache of its own. It counts how often it really runs.

# %%
scratch = tempfile.TemporaryDirectory()
os.environ['AGENTRL_CACHE'] = scratch.name
runs = []

# %%
@cached('cache')
def train_slowly(arm, seed=0):
    """Pretend to train."""
    runs.append((arm, seed))
    return {'arm': arm, 'weights': torch.full((3,), seed + 0.5, dtype=torch.float64)}


first = train_slowly('default')
second = train_slowly(arm='default', seed=0)
other = train_slowly('default', 1)
print('really run for:', runs)
print('equal:', torch.equal(first['weights'], second['weights']))
print('one object:', first['weights'] is second['weights'])

# %% [markdown]
# Now damage. The file of the first result is cut in half; the next call warns, trains again, and the one
# after that reads quietly.

# %%
def damage(change):
    """Change every kept file with `change`, call twice, print warnings and the number of runs."""
    for path in Path(scratch.name).rglob('output.pkl'):
        path.write_bytes(change(path.read_bytes()))
    before = len(runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        right = [torch.equal(train_slowly('default')['weights'], first['weights']) for _ in range(2)]
    print(f'right: {right}, runs: {len(runs) - before}', *(f'\n  {warning.message}' for warning in caught))


damage(lambda content: content[:len(content) // 2])
damage(lambda content: content[:-1])
damage(lambda content: content[:-20] + bytes(20))
damage(lambda content: content)

# %% [markdown]
# Two at once: both ask for a result that nobody has. One trains, the other waits and reads.

# %%
from concurrent.futures import ThreadPoolExecutor

before = len(runs)
with ThreadPoolExecutor(2) as pool:
    pair = list(pool.map(train_slowly, ['mixture', 'mixture']))
print('results:', len(pair), '  runs:', len(runs) - before)

# %% [markdown]
# And an interruption: nothing is kept of a run that did not finish, and the lock is free again.

# %%
interrupt = True


@cached('cache')
def train_and_stop():
    if interrupt:
        raise KeyboardInterrupt
    return 'trained'


try:
    train_and_stop()
except KeyboardInterrupt:
    print('interrupted')
interrupt = False
print(train_and_stop())

# %%
scratch.cleanup()
del os.environ['AGENTRL_CACHE']

# %% [markdown]
# ## What was seen
#
# Comments and docstrings leave the key alone; a swapped factor changes it. A plain pickle noticed none of
# 64 flipped bits and a compressed one can still give a wrong value; with a digest beside it, all three
# kinds of damage were noticed, each cost one run and one warning, and an untouched file cost none. Two
# callers at once cost one run. Old results stay until you delete the cache folder.
#
# **Try it.** Run all cells but the last. Change `seed + 0.5` and run the cell of `train_slowly` again: `runs`
# grows. Then change only its docstring: nothing is added. Set `interrupt` to True and call
# `train_and_stop()`, whose result has been kept: what happens?
