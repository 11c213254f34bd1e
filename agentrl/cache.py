# Made by tools/export.py from notebooks/00_start_here/00_4_cache.py. Do not edit: change it there, then `make export`.
# Body: 5eddef3db5ed62e5
"""0.4 A cache for trained policies: a key of configuration and code, and a checksum."""

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


# 00_start_here/00_4_cache, cell 2
def cache_dir():
    """The folder of kept results: `$AGENTRL_CACHE`, or .cache/ in the repository. Deleting it costs time."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_CACHE') or '.cache')


# 00_start_here/00_4_cache, cell 3
def weights_dir():
    """The folder of results that come with the book: `$AGENTRL_WEIGHTS`, or figures/weights."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_WEIGHTS') or 'figures/weights')


# 00_start_here/00_4_cache, cell 4
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


# 00_start_here/00_4_cache, cell 5
def parts_of(value):
    """A value and all values inside it."""
    inside = [getattr(value, one.name) for one in fields(value)] if is_dataclass(value) else (
        list(value.values()) + list(value) if isinstance(value, dict) else
        value if isinstance(value, list | tuple) else [])
    return [value, *(part for one in inside for part in parts_of(one))]


# 00_start_here/00_4_cache, cell 6
def result_key(function, arguments, cells=None):
    """Twelve hex digits for a function's name and code, and the values of its arguments, {name: value}."""
    said = json.dumps(describe(arguments), sort_keys=True)
    parts = parts_of(arguments)
    words = {part for part in parts if isinstance(part, str)}
    classes = {type(part) for part in parts if is_dataclass(part)}
    classes = sorted(classes, key=lambda one: one.__name__)
    return digest(json.dumps([function.__qualname__, said, code_version(function, words, cells, classes)]))


# 00_start_here/00_4_cache, cell 8
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


# 00_start_here/00_4_cache, cell 9
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


# 00_start_here/00_4_cache, cell 12
def kept_bytes(key, result):
    """A result under its key as the bytes of a file: SHA-256, then a NumPy archive of its arrays and its JSON."""
    arrays = []
    said = json.dumps({'key': key, 'result': take_apart(result, arrays)}).encode()
    file = io.BytesIO()
    np.savez(file, said=np.frombuffer(said, np.uint8), **{f'a{n}': one for n, one in enumerate(arrays)})
    return hashlib.sha256(file.getvalue()).digest() + file.getvalue()


# 00_start_here/00_4_cache, cell 13
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


# 00_start_here/00_4_cache, cell 14
def read_kept(path, key):
    """`open_kept` of a file, with a warning if nothing in it can be used; [] if there is no file."""
    if not path.exists():
        return []
    found = open_kept(path.read_bytes(), key)
    if not found:
        warnings.warn(f'the kept result {path.name} is damaged; it is made again', stacklevel=3)
    return found


# 00_start_here/00_4_cache, cell 15
def write_kept(path, content):
    """Write a file in one step, so that nobody reads half of it."""
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    part.write_bytes(content)
    os.replace(part, path)


# 00_start_here/00_4_cache, cell 16
@contextmanager
def one_thread():
    """Let torch use one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# 00_start_here/00_4_cache, cell 17
def lock_for(path):
    """A lock between processes for whoever makes the file at `path`; none where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_suffix('.lock')).acquire()
    except OSError:
        return nullcontext()


# 00_start_here/00_4_cache, cell 18
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


# 00_start_here/00_4_cache, cell 19
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
