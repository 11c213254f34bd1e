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


def cache_dir():
    """The folder of kept results: `$AGENTRL_CACHE`, or .cache/ in the repository. Deleting it costs only time."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_CACHE') or '.cache')


def code_statements(source):
    """The top-level statements of Python source as text that does not depend on comments, docstrings and layout."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return [ast.dump(statement) for statement in tree.body]


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


def module_source(name):
    """The source of agentrl/<name>.py."""
    path = Path(files('agentrl')) / f'{name}.py'
    if not path.exists():
        known = ', '.join(sorted(file.stem for file in path.parent.glob('[a-z]*.py')))
        raise ValueError(f'agentrl has no module {name!r}; it has: {known}. Import names by module, as in '
                         '`from agentrl.tasks import Task`; modules are made by `make export`')
    return path.read_text(encoding='utf-8')


def code_version(module_name):
    """Twelve hex digits of SHA-256 over the code of an agentrl module, of all that it imports from agentrl, and torch's version."""
    sources, queue = {}, [module_name]
    while queue:
        name = queue.pop()
        if name not in sources:
            sources[name] = module_source(name)
            queue += imported_modules(sources[name])
    code = [(name, code_statements(sources[name])) for name in sorted(sources)]
    return hashlib.sha256(repr((version('torch'), code)).encode()).hexdigest()[:12]


class CheckedStore(FileSystemStoreBackend):
    """joblib's folder on disk; what it holds is used only if the SHA-256 written beside it is right."""

    def dump_item(self, call_id, item, verbose=1):
        super().dump_item(call_id, item, verbose)
        path = Path(self.location, *call_id, 'output.pkl')
        if path.exists():                                               # on a full disk joblib warns and writes nothing
            path.with_suffix('.sha256').write_text(hashlib.sha256(path.read_bytes()).hexdigest())

    def contains_item(self, call_id):
        path = Path(self.location, *call_id, 'output.pkl')
        digest = path.with_suffix('.sha256')
        if not path.exists():
            return False
        if digest.exists() and digest.read_bytes() == hashlib.sha256(path.read_bytes()).hexdigest().encode():
            return True
        warnings.warn(f'the kept result of {Path(self.location).name} is damaged; it is made again', stacklevel=2)
        return False

    def get_cached_func_code(self, call_id):
        """The code of `make_bytes`, always unchanged: our key knows about code, joblib's own check is not needed."""
        code, _, line = get_func_code(make_bytes)
        return f'# first line: {line}\n{code}'


joblib.register_store_backend('checked', CheckedStore)


def notebook_edits(function, module_name):
    """Statements of the function and of its notebook's exporting cells that agentrl/<module_name>.py lacks; [] for a module's function."""
    if function.__module__ != '__main__':
        return []
    cells = [cell for cell in function.__globals__.get('In', []) if re.match(r'#\s?@save\b', cell)]
    edits = set()
    for source in [textwrap.dedent(inspect.getsource(function)), *cells]:
        try:
            edits |= set(code_statements(source))
        except SyntaxError:                                             # a cell that did not run
            continue
    known = code_statements(module_source(module_name))
    return sorted(edit for edit in edits.difference(known) if not edit.startswith('Import'))


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


def make_bytes(key, function, args, kwargs):
    """What is really kept: the function's result, pickled. (joblib looks at the key alone.)"""
    return pickle.dumps(function(*args, **kwargs))


def cached(module_name):
    """Decorator: keep results on disk under the function's name, its arguments and the code of an agentrl module.

    A changed module (or notebook) gives a new key. A damaged file is made again with a warning. The version is that of the
    code when the function was defined. Raises ValueError for an unknown module and for arguments that hold tensors.
    """
    code = code_version(module_name)

    def decorate(function):
        name = re.sub(r'[^\w.]', '_', f'{module_name}.{function.__qualname__}')

        @functools.wraps(function)
        def fetch(*args, **kwargs):
            arguments = argument_key(function, args, kwargs)
            key = joblib.hash((arguments, code, notebook_edits(function, module_name)))
            memory = joblib.Memory(cache_dir() / name, backend='checked', compress=3, verbose=0)
            kept = memory.cache(make_bytes, ignore=['function', 'args', 'kwargs'])
            with FileLock(cache_dir() / name / f'{key}.lock'):
                return pickle.loads(kept(key, function, args, kwargs))

        return fetch
    return decorate
