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
# # 0.4 A cache for trained policies: a key of configuration and code, and a checksum
#
# Most sections of this book need the same few trained policies, and training one takes from half a minute
# to several. So a trained thing is kept on disk. Two dangers come with that. A *stale* result was made by
# code that has changed since. A *damaged* one was half written, or spoiled on disk. Here is a cache that
# recognises both: an empty cache, or a broken one, changes only the time that a notebook takes.
#
# The key is built on the version of section 0.3.1. What is kept is arrays and JSON and no pickle, since reading a
# pickle executes whatever stands in it, and a file that came from somebody else should not.
#
# **Time** 15 min. **Assumes** [0.3.1](00_3_versions.ipynb). **Afterwards you can** keep the result of a slow
# function on disk, and say which edits of code or damage to a file make it run again.

# %%
#@save cache
import functools
import hashlib
import inspect
import io
import json
import os
import re
import warnings
import zipfile
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from agentrl.pieces import digest
from agentrl.versions import code_version, notebook_cells

# %% [markdown]
# What is kept lies in one folder of the repository, which git ignores. To forget everything, delete it. A few
# results are needed by many pages and come with the book, in a second folder: the policy that training starts from,
# its critics, and the agents that pages play with. `make weights` makes those again and compares.

# %%
#@save
def cache_dir():
    """The folder of kept results: `$AGENTRL_CACHE`, or .cache/ in the repository. Deleting it costs time."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_CACHE') or '.cache')


# %%
#@save
def weights_dir():
    """The folder of results that come with the book: `$AGENTRL_WEIGHTS`, or figures/weights."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_WEIGHTS') or 'figures/weights')


# %% [markdown]
# ## The key: code and arguments
#
# Arguments should be a *configuration*: names, numbers, frozen dataclasses. A tensor is refused. Of a dataclass
# only the fields that depart from their defaults count, so that a new field leaves every old key as it was. (A
# default itself counts as code, by section 0.3.1.)

# %%
#@save
def describe(value, name='an argument'):
    """An argument as lists, dicts, texts and numbers; ValueError for what has no such description."""
    if is_dataclass(value):
        changed = {one.name: getattr(value, one.name) for one in fields(value)
                   if getattr(value, one.name) != one.default}
        return {'class': type(value).__name__} | {key: describe(part, key) for key, part in changed.items()}
    if isinstance(value, list | tuple):
        return [describe(part, name) for part in value]
    if isinstance(value, dict):
        return {str(key): describe(part, key) for key, part in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f'{name}: a kept function was given a {type(value).__name__}; give it what that is made '
                     'from (a seed, a name, a configuration)')


# %%
#@save
def parts_of(value):
    """A value and all values inside it."""
    inside = [getattr(value, one.name) for one in fields(value)] if is_dataclass(value) else (
        list(value.values()) + list(value) if isinstance(value, dict) else
        value if isinstance(value, list | tuple) else [])
    return [value, *(part for one in inside for part in parts_of(one))]


# %%
#@save
def result_key(function, arguments, cells=None):
    """Twelve hex digits for a function's name and code, and the values of its arguments, {name: value}."""
    said = json.dumps(describe(arguments), sort_keys=True)
    parts = parts_of(arguments)
    words = {part for part in parts if isinstance(part, str)}
    classes = {type(part) for part in parts if is_dataclass(part)}
    classes = sorted(classes, key=lambda one: one.__name__)
    return digest(json.dumps([function.__qualname__, said, code_version(function, words, cells, classes)]))


# %%
def train(arm, seed=0):
    return f'{arm}, seed {seed}'


print('the same key for another seed:', result_key(train, {'arm': 'default', 'seed': 0})
      == result_key(train, {'arm': 'default', 'seed': 1}))
try:
    result_key(train, {'arm': torch.zeros(2)})
except ValueError as error:
    print(error)

# %% [markdown]
# ## The file: arrays, JSON and a checksum
#
# A result is nested dicts, lists and numbers with tensors in them. `take_apart` turns it into a description
# and a list of arrays, and `put_together` turns these back.

# %%
#@save
def take_apart(value, arrays):
    """A result as what JSON can say, its tensors appended to `arrays`; TypeError for what has no such form."""
    if isinstance(value, torch.Tensor):
        arrays.append(value.detach().numpy())
        return {'tensor': len(arrays) - 1}
    if isinstance(value, dict):
        return {'dict': [[key, take_apart(part, arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [take_apart(part, arrays) for part in value]}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f'a {type(value).__name__} cannot be kept; a result is made of dicts, lists, tuples, '
                    'texts, numbers and tensors')


# %%
#@save
def put_together(said, arrays):
    """The result that `take_apart` described."""
    if not isinstance(said, dict):
        return said
    (kind, content), = said.items()
    if kind == 'tensor':
        return torch.from_numpy(arrays[content])
    if kind == 'dict':
        return {key: put_together(part, arrays) for key, part in content}
    return {'list': list, 'tuple': tuple}[kind](put_together(part, arrays) for part in content)


# %%
arrays = []
print(take_apart({'weights': torch.zeros(3), 'history': [{'step': 0, 'reward': 0.5}]}, arrays))
print(arrays)

# %% [markdown]
# Does a file of arrays notice that it was damaged? Take one that holds the number 0.762 and flip, one after the
# other, each of the 64 bits of that number.

# %%
import struct

number = struct.pack('<d', 0.762)
file = io.BytesIO()
np.save(file, np.array(0.762))
stored = file.getvalue()
other = 0
for bit in range(64):
    damaged = bytearray(stored)
    damaged[stored.index(number) + bit // 8] ^= 1 << bit % 8
    other += float(np.load(io.BytesIO(bytes(damaged)))) != 0.762
print(f'read as another number without an error: {other} of 64')

# %% [markdown]
# It does not. So a kept file begins with the SHA-256 of all that follows, and counts as absent if that is wrong.
# The key stands inside, too: a file that was put under another name is not taken for what it is not.

# %%
#@save
def kept_bytes(key, result):
    """A result under its key as the bytes of a file: SHA-256, then a NumPy archive of its arrays and its JSON."""
    arrays = []
    said = json.dumps({'key': key, 'result': take_apart(result, arrays)}).encode()
    file = io.BytesIO()
    np.savez(file, said=np.frombuffer(said, np.uint8), **{f'a{n}': one for n, one in enumerate(arrays)})
    return hashlib.sha256(file.getvalue()).digest() + file.getvalue()


# %%
#@save
def open_kept(content, key):
    """[result] of a kept file's bytes; [] if they are damaged, of another key, or no such file at all."""
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        return []
    try:
        archive = np.load(io.BytesIO(content[32:]), allow_pickle=False)
        said = json.loads(archive['said'].tobytes())
        arrays = [archive[f'a{n}'] for n in range(len(archive.files) - 1)]
        return [put_together(said['result'], arrays)] if said['key'] == key else []
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        return []


# %%
#@save
def read_kept(path, key):
    """`open_kept` of a file, with a warning if nothing in it can be used; [] if there is no file."""
    if not path.exists():
        return []
    found = open_kept(path.read_bytes(), key)
    if not found:
        warnings.warn(f'the kept result {path.name} is damaged; it is made again', stacklevel=3)
    return found


# %%
#@save
def write_kept(path, content):
    """Write a file in one step, so that nobody reads half of it."""
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    part.write_bytes(content)
    os.replace(part, path)


# %% [markdown]
# ## All together
#
# `cached` decorates a function. A lock for each key makes a second process wait for the first one and then read what
# it wrote. A folder that cannot be written, or a full disk, costs a warning and the time to make the result again. What
# is made is made on one thread: the matrices of this book are so small that a second one mostly waits, and where the
# processor is shared it waits long.

# %%
#@save
@contextmanager
def one_thread():
    """Let torch use one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# %%
#@save
def lock_for(path):
    """A lock between processes for whoever makes the file at `path`; none where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_suffix('.lock')).acquire()
    except OSError:
        return nullcontext()


# %%
#@save
def make_and_keep(path, key, make):
    """The result of make(), read if another process has just made it, else made and written to `path`."""
    with lock_for(path):
        if path.exists() and (found := open_kept(path.read_bytes(), key)):
            return found[0]
        with one_thread():
            content = kept_bytes(key, make())
        try:
            write_kept(path, content)
        except OSError as error:
            warnings.warn(f'{path.name} could not be kept: {error}', stacklevel=3)
        return open_kept(content, key)[0]


# %%
#@save
def cached(function):
    """Decorator: keep results on disk under a function's name, its code with all that it uses, and its arguments.

    A change in any of them gives a new key. A damaged file is made again with a warning. Each call gives a
    fresh object. `key(...)` of the decorated function is the key of a call. ValueError for arguments, TypeError
    for results that have no plain description.
    """
    name = re.sub(r'[^\w.]', '_', function.__qualname__)
    cells = notebook_cells(function)                            # a list, which grows as cells run

    def key(*args, **kwargs):
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return result_key(function, dict(bound.arguments), cells)

    @functools.wraps(function)
    def fetch(*args, **kwargs):
        this = key(*args, **kwargs)
        path = cache_dir() / name / f'{this}.kept'
        found = read_kept(weights_dir() / f'{name}-{this}.kept', this) or read_kept(path, this)
        return found[0] if found else make_and_keep(path, this, lambda: function(*args, **kwargs))

    fetch.key = key
    return fetch


# %% [markdown]
# A stand-in for training, in a cache of its own. It counts how often it really runs.

# %%
import tempfile

scratch = tempfile.TemporaryDirectory()
os.environ['AGENTRL_CACHE'] = scratch.name
runs = []


# %%
@cached
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
# Now damage. The kept files are cut in half. The next call warns and trains again, and the one after that reads
# quietly.

# %%
def damage(change):
    """Change every kept file with `change`, call twice, print warnings and the number of runs."""
    for path in Path(scratch.name).rglob('*.kept'):
        path.write_bytes(change(path.read_bytes()))
    before = len(runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        right = [torch.equal(train_slowly('default')['weights'], first['weights']) for _ in range(2)]
    print(f'right: {right}, runs: {len(runs) - before}, warnings: {len(caught)}')


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
interrupt = [True]


@cached
def train_and_stop():
    if interrupt:
        raise KeyboardInterrupt
    return 'trained'


try:
    train_and_stop()
except KeyboardInterrupt:
    print('interrupted')
interrupt.clear()
print(train_and_stop())

# %%
scratch.cleanup()
del os.environ['AGENTRL_CACHE']

# %% [markdown]
# ## What was seen
#
# A file of arrays reads each of 64 flipped bits as another number without an error. With a digest in front, all three
# kinds of damage were noticed, each cost one run and one warning, and an untouched file cost none. Two
# callers at once cost one run. Old results stay until you delete the cache folder.
#
# **Try it.** Run all cells but the last. Change `seed + 0.5` and run the cell of `train_slowly` again: `runs`
# grows. Then change only its docstring: nothing is added.
