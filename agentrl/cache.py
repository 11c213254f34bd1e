# Made by tools/export.py from notebooks/00_start_here/00_3_cache.py. Do not edit: change it there, then `make export`.
# Body: 0599e89dcb2bd526
"""0.3 Keep what was trained, under a key of its configuration and its code."""

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


# 00_start_here/00_3_cache, cell 2
def cache_dir():
    """The folder of kept results: `$AGENTRL_CACHE`, or .cache/ in the repository. Deleting it costs time."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_CACHE') or '.cache')


# 00_start_here/00_3_cache, cell 3
def tree_text(node):
    """A syntax tree as text, without its empty fields."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f'{type(node).__name__}({", ".join(f"{name}={tree_text(value)}" for name, value in fields)})'
    return f'[{", ".join(map(tree_text, node))}]' if isinstance(node, list) else repr(node)


# 00_start_here/00_3_cache, cell 3
@functools.cache
def code_statements(source):
    """The top-level statements of Python source as text, whatever its comments, docstrings and layout."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return [tree_text(statement) for statement in tree.body]


# 00_start_here/00_3_cache, cell 5
def outside_functions(node):
    """All nodes of a syntax tree that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


# 00_start_here/00_3_cache, cell 5
def imported_modules(source):
    """Names of the agentrl modules that Python source imports outside of functions."""
    names = []
    for node in outside_functions(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f'{node.module}.{alias.name}' for alias in node.names]
    return sorted({f'{name}.'.split('.')[1] for name in names if name.split('.')[0] == 'agentrl'})


# 00_start_here/00_3_cache, cell 7
def module_source(name):
    """The source of agentrl/<name>.py."""
    path = Path(files('agentrl')) / f'{name}.py'
    if not path.exists():
        known = ', '.join(sorted(file.stem for file in path.parent.glob('[a-z]*.py')))
        raise ValueError(f'agentrl has no module {name!r}; it has: {known}. Import names by module, as in '
                         '`from agentrl.tasks import Task`; modules are made by `make export`')
    return path.read_text(encoding='utf-8')


DECIDES_NOTHING = ('cache', 'arms')                     # one keeps results, the other names and stores them


# 00_start_here/00_3_cache, cell 7
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


# 00_start_here/00_3_cache, cell 11
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


# 00_start_here/00_3_cache, cell 12
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


# 00_start_here/00_3_cache, cell 14
class PlainPickler(pickle.Pickler):
    """Refuses tensors, whose pickles differ between processes."""

    def reducer_override(self, part):
        kind = type(part)
        if kind.__module__.startswith('torch') and kind.__name__ in ('Tensor', 'Parameter', 'Generator'):
            raise ValueError(f'a kept function was given a {kind.__name__}; give it what that is made from '
                             '(a seed, a name, a configuration)')
        return NotImplemented


# 00_start_here/00_3_cache, cell 14
def argument_key(function, args, kwargs):
    """The same text for the same arguments, however they are given."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    PlainPickler(io.BytesIO()).dump(dict(bound.arguments))
    return joblib.hash(dict(bound.arguments))


# 00_start_here/00_3_cache, cell 16
def make_bytes(key, function, args, kwargs):
    """What is really kept: the function's result, pickled. (joblib looks at the key alone.)"""
    return pickle.dumps(function(*args, **kwargs))


# 00_start_here/00_3_cache, cell 17
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
