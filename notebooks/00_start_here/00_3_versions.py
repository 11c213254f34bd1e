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
# # 0.3.1 Code versions: hash the definitions that decide a result
#
# A version of a stored result should miss nothing: if a function changes on which the result depends, the version has
# to change, or a stale number passes for a fresh one. It should also demand nothing: a function that moved to
# another file or a new experiment must leave it as it is. This section computes a version that does both. It starts
# at the function that makes the result and follows the code, definition by definition, as pieces of section 0.3.
#
# **Time** 20 min. **Assumes** [0.3](00_3_code_pieces.ipynb). **Afterwards you can** say which edits of a code base
# make a stored result out of date, and compute a version that notices just those.

# %%
#@save versions
import ast
import functools
import inspect
import json
import linecache
import re
import sys
import textwrap
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from agentrl.pieces import (
    DEFINITIONS,
    EVERY_FIELD,
    Piece,
    digest,
    global_names,
    imported_names,
    make_piece,
    root_name,
)

# %% [markdown]
# ## What a module defines
#
# A `Space` is the top level of a module: which statements define or change a name, and what is imported. A
# module is read from its file. A notebook is read from the cells that ran, so that an edited cell counts at
# once: there, cells that export nothing add only definitions and imports.

# %%
#@save
def bound_names(node):
    """Names of a module that a statement at its top level defines or changes."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Expr):                                      # TABLE.update(...), register(TABLE)
        return [] if isinstance(node.value, ast.Constant) else sorted(global_names(node))
    targets = getattr(node, 'targets', [getattr(node, 'target', None)])
    leaves = [leaf for target in targets if target for leaf in getattr(target, 'elts', [target])]
    inside = [part for block in ('body', 'orelse', 'finalbody') for part in getattr(node, block, [])]
    return [root_name(leaf) for leaf in leaves] + [name for part in inside for name in bound_names(part)]

# %%
#@save
@dataclass(eq=False)
class Space:
    """The top level of a module: {name: statements}, {name: full name of an import}, names of tables of arms."""
    module: str
    definitions: dict = field(default_factory=dict)
    imports: dict = field(default_factory=dict)
    tables: set = field(default_factory=set)

    def add(self, node):
        """Take in a statement; a definition or a plain assignment replaces what its name meant before."""
        self.imports |= imported_names(node)
        plain = isinstance(node, DEFINITIONS) or any(isinstance(one, ast.Name | ast.Tuple)
                                                     for one in getattr(node, 'targets', []))
        for name in bound_names(node):
            self.definitions[name] = ([] if plain else self.definitions.get(name, [])) + [node]
        value = getattr(node, 'value', None)
        if isinstance(value, ast.Call) and root_name(value) == 'Study' and len(value.args) > 1:
            self.tables.add(root_name(value.args[1]))

# %%
#@save
@functools.cache
def read_space(source, module):
    """The Space of a module's source."""
    space = Space(module)
    for node in ast.parse(source).body:
        space.add(node)
    return space

# %%
#@save
@functools.lru_cache(maxsize=8)
def read_cells(cells):
    """The Space of a notebook's cells that ran; of cells that export nothing only definitions and imports."""
    space = Space('__main__')
    for cell in cells:
        try:
            body = ast.parse(cell).body
        except SyntaxError:                                             # a magic, or a cell that did not run
            continue
        exports = re.match(r'#\s?@save\b', cell)
        for node in body:
            if exports or isinstance(node, (*DEFINITIONS, ast.Assign, ast.Import, ast.ImportFrom)):
                space.add(node)
    return space

# %%
#@save
def module_source(name):
    """The source of agentrl/<name>.py, or of a module in one of its folders, `folder.name`."""
    path = Path(files('agentrl')) / f'{name.replace(".", "/")}.py'
    if not path.exists():
        raise ValueError(f'agentrl has no module {name!r}; modules are made by `make export`')
    return path.read_text(encoding='utf-8')


def is_module(name):
    return (Path(files('agentrl')) / f'{name.replace(".", "/")}.py').exists()

# %%
space = read_space(module_source('rewards'), 'rewards')
print('defines:', *sorted(space.definitions))

# %% [markdown]
# ## Follow the names
#
# `find` goes to where a full name is defined, and `resolve` asks first what a name means in its own module. What
# other packages define is not followed: their versions are pinned.

# %%
#@save
def home_of(name):
    """The module in which `agentrl.name` is defined, as the package's front door has it; None if unknown."""
    homes = read_space(module_source('__init__'), '__init__').definitions['_HOME'][0].value
    return ast.literal_eval(homes).get(name)

# %%
#@save
def find(full_name):
    """(Space, name) of what `agentrl.module.name` names, (None, full name) if another package has it."""
    top, *parts = full_name.split('.')
    if top != 'agentrl':
        return None, full_name
    for n in range(len(parts), 0, -1):
        if is_module(module := '.'.join(parts[:n])):
            space = read_space(module_source(module), module)
            return resolve(space, '.'.join(parts[n:])) if parts[n:] else (space, '')
    return find(f'agentrl.{home_of(parts[0])}.{".".join(parts)}') if parts and home_of(parts[0]) else None

# %%
#@save
def resolve(space, name, imports=()):
    """`find` for a name, perhaps dotted, that code in a Space uses; None for built-in names and local ones."""
    root, *rest = name.split('.')
    known = space.imports | dict(imports)
    if root in space.definitions and root not in dict(imports):
        return (space, root) if not rest else None
    if root in known and (not rest or known[root].split('.')[0] == 'agentrl'):
        return find('.'.join([known[root], *rest]))
    return None

# %% [markdown]
# Three kinds of code count in parts. The table of arms of a study (section 9.3) counts by its entries. A function
# that a decorator of its module enters in a table counts like an entry. A dataclass counts without its fields that
# have defaults, each of which is a piece of its own. The check of a frozen dataclass does not count at all: it
# can refuse values and change none.

# %%
#@save
def entries(node):
    """[(key, value)] of a statement that fills a table with literal keys; [] for any other statement."""
    value, targets = getattr(node, 'value', None), getattr(node, 'targets', [getattr(node, 'target', None)])
    if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys):
        return [(key.value, one) for key, one in zip(value.keys, value.values)]
    if isinstance(targets[0], ast.Subscript) and isinstance(targets[0].slice, ast.Constant):
        return [(targets[0].slice.value, value)]
    return []

# %%
#@save
def registered(space, name):
    """Pieces for the functions whose decorator, a function of the same module, may enter them in table `name`."""
    for function, (node, *_) in space.definitions.items():
        for one in getattr(node, 'decorator_list', []):
            maker = space.definitions.get(root_name(one), [None])[0]
            if isinstance(maker, DEFINITIONS) and name in global_names(maker):
                key = one.args[0].value if isinstance(one, ast.Call) and one.args and isinstance(
                    one.args[0], ast.Constant) else ''
                yield Piece('', frozenset({function}), frozenset(), key=key)

# %%
#@save
def is_dataclass(node):
    """Is a statement the definition of a dataclass?"""
    return isinstance(node, ast.ClassDef) and [root_name(one) for one in node.decorator_list] == ['dataclass']


def fields_apart(node):
    """A dataclass without the fields that have defaults and, if frozen, its check; and these fields."""
    apart = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value]
    frozen = 'frozen=True' in ast.unparse(node.decorator_list[0])
    rest = [part for part in node.body if part not in apart and not (
        frozen and getattr(part, 'name', '') == '__post_init__' and '__setattr__' not in ast.unparse(part))]
    names = {name: getattr(node, name) for name in node._fields}
    return type(node)(**names | {'body': rest or [ast.Pass()]}), apart

# %%
#@save
@functools.cache
def pieces_of(space, name, whole=False):
    """The Pieces behind a name of a Space; all of it for the name ''."""
    if not name:
        return [Piece('', frozenset(space.definitions), frozenset())]
    pieces = [] if whole else list(registered(space, name))
    for node in space.definitions[name]:
        if not whole and is_dataclass(node):
            node, apart = fields_apart(node)
            pieces += [make_piece(ast.unparse(one), key=one.target.id) for one in apart]
        if not whole and name in space.tables and (known := entries(node)):
            pieces += [make_piece(ast.unparse(value), key=key) for key, value in known]
        else:
            pieces.append(make_piece(ast.unparse(node), whole))
    return pieces

# %% [markdown]
# `reach` collects all that a function uses, directly or through others. New code brings new words, and new
# words may bring in fields and entries, so it goes on until nothing is added. Modules that only keep or draw
# results are left out.

# %%
#@save
DECIDES_NOTHING = ('pieces', 'versions', 'cache', 'plotting', 'display')    # modules that keep or draw results


@functools.cache
def targets_of(space, piece, whole=False):
    """{name: (Space, name)} of what a Piece uses and what counts."""
    found = {name: resolve(space, name, piece.imports) for name in piece.uses}
    return {name: one for name, one in found.items()
            if one and (whole or one[0] is None or one[0].module not in DECIDES_NOTHING)}

# %%
#@save
def reach(roots, words=(), whole=False):
    """{(Space, name): Pieces} of all that the roots use, directly or not, where `words` are among what is said.

    A field, or an entry of a table of arms, counts if its name or key is among the words.
    """
    words = frozenset(words)
    while True:
        reached, queue = {}, list(roots)
        while queue:
            place = queue.pop()
            if place[0] is None or place in reached:
                continue
            pieces = [piece for piece in pieces_of(*place, whole)
                      if not piece.key or piece.key in words or words & EVERY_FIELD]
            reached[place] = pieces
            queue += [one for piece in pieces for one in targets_of(place[0], piece, whole).values()]
        said = words.union(*(piece.words for pieces in reached.values() for piece in pieces))
        if said == words:
            return reached
        words = said

# %% [markdown]
# ## The version
#
# A line for each piece says its text and what each of its names means, by the text behind it. The lines hold no
# name of a module. A definition that moves to another module, and a module that gets another name, leave them as
# they are.

# %%
#@save
def code_lines(reached, whole=False):
    """A line for each Piece: its text, and what the names in it mean; the same wherever a definition stands."""
    texts = {place: digest(json.dumps(sorted(piece.text for piece in pieces)))
             for place, pieces in reached.items()}
    lines = set()
    for (space, _), pieces in reached.items():
        for piece in pieces:
            meant = {name: one[1] if one[0] is None else texts[one]
                     for name, one in targets_of(space, piece, whole).items()}
            lines.add(json.dumps([piece.text, meant], sort_keys=True))
    return sorted(lines)

# %%
#@save
def place_of(thing, cells=()):
    """(Space, name) of a function or class; `cells`: those of the notebook, if one defines it."""
    thing = inspect.unwrap(thing)
    name, module = thing.__qualname__, thing.__module__
    if module == '__main__' and cells:
        space = read_cells(tuple(cells))
    elif module.startswith('agentrl.'):
        space = read_space(module_source(module[8:]), module[8:])
    else:
        space = read_space(inspect.getsource(sys.modules[module]), module)
    if '<locals>' in name:                                              # it stands inside another function
        inner = Space(space.module, dict(space.definitions), space.imports, space.tables)
        inner.add(ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0])
        space, name = inner, thing.__name__
    return space, name


# %%
#@save
def notebook_cells(function):
    """The cells that ran in the notebook that defines a function; () outside of one.

    They are IPython's list `In`, which grows. A runner that keeps no history leaves what tracebacks would show.
    """
    function = inspect.unwrap(function)
    cells = getattr(function, '__globals__', {}).get('In')
    if not cells or len(cells) > 1:
        return cells or ()
    folder = Path(function.__code__.co_filename).parent
    return tuple(''.join(kept[2]) for name, kept in linecache.cache.items() if Path(name).parent == folder)


# %%
#@save
def code_version(function, words=(), cells=None, classes=()):
    """Twelve hex digits for all code that decides what a function gives: its own, what that uses, and torch.

    `words`: names and strings in its arguments; `classes`: dataclasses among them. `cells`: those of its notebook,
    where the function has travelled to another process and no longer knows them.
    """
    cells = notebook_cells(function) if cells is None else cells
    lines = code_lines(reach([place_of(one, cells) for one in (function, *classes)], words))
    return digest(json.dumps([version('torch').split('+')[0], lines]))


# %% [markdown]
# ## At work
#
# A small program stands in for training. The cells below define parts of it again, as a reader would who
# edits a notebook, and print whether the version moved.

# %%
RATE = 0.5


@dataclass(frozen=True)
class Settings:
    steps: int = 10


def weigh(steps):
    return RATE * steps


def pretend_to_train(settings):
    return weigh(settings.steps)


def version_now():
    return code_version(pretend_to_train, classes=(Settings,))


first = version_now()


# %%
def weigh(steps):                                       # a comment, a docstring and other layout
    """Steps, weighed."""
    return (RATE *
            steps)


print('moved by a docstring:', version_now() != first)


# %%
@dataclass(frozen=True)
class Settings:
    steps: int = 10
    patience: int = 3                                   # a new field that no code uses yet


print('moved by a new field:', version_now() != first)

# %%
RATE = 0.6
print('moved by another constant:', version_now() != first)

# %%
RATE = 0.5


@dataclass(frozen=True)
class Settings:
    steps: int = 11
    patience: int = 3


print('moved by another default:', version_now() != first)

# %% [markdown]
# ## What was seen
#
# The version of a function covers its own text and that of everything that it uses, also through imports
# inside functions. A docstring and a new field left it alone. A constant two definitions away and the default
# of a field that is used each moved it.
#
# **Try it.** Change `pretend_to_train` so that it adds `settings.patience`, and run its cell and the cell of
# `version_now() != first` again. From then on the default of `patience` counts, too.
