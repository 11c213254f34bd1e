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
# # 0.3 Code versions: hash the definitions that decide a result
#
# A training run takes minutes, so this book stores what runs gave, beside a text that says which code made
# them. Such a *version* should miss nothing: if a function changes on which a result depends, the version has
# to change, or a stale number passes for a fresh one. It should also demand nothing: a corrected comment, a
# function that moved to another file or a new experiment must leave it as it is, or hours of training are
# thrown away for no reason. This section computes a version that does both. It starts at the function
# that makes the result and follows the code, definition by definition.
#
# **Time** 20 min. **Assumes** no other section. **Afterwards you can** say which edits of a code base make a
# stored result out of date, and compute a version that notices just those.

# %%
#@save versions
import ast
import functools
import hashlib
import inspect
import json
import re
import symtable
import sys
import textwrap
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

# %% [markdown]
# ## What the code does, not how it is explained
#
# If we hashed the text of a file, every corrected comment would count. So we hash what Python makes of the
# text. The syntax tree has no comments and no layout. (`ast.dump` writes fields that are empty in some
# versions of Python and absent in others, so we write the tree ourselves.)

# %%
#@save
def tree_text(node):
    """A syntax tree as text, without its empty fields: the same text in every version of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f'{type(node).__name__}({", ".join(f"{name}={tree_text(value)}" for name, value in fields)})'
    return f'[{", ".join(map(tree_text, node))}]' if isinstance(node, list) else repr(node)

# %%
#@save
def digest(text):
    """Twelve hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]

# %%
plain = ast.parse('def double(x):\n    return 2 * x')
laid_out = ast.parse('def double(x):  # twice\n\n    return (2 * x)')
different = ast.parse('def double(x):\n    return x * 2')
print('laid out otherwise:', tree_text(plain) == tree_text(laid_out))
print('another product:', tree_text(plain) == tree_text(different))

# %% [markdown]
# Parts of a definition decide no result either, and are taken out of its tree: docstrings, the methods by
# which Jupyter shows a value, and the decorator `cached` of section 0.4, which keeps a result and does not change
# it. An import from `agentrl` inside a function is set aside. What it names is followed later, and where
# that stands does not matter.

# %%
#@save
def root_name(node):
    """`a` of the expressions a, a.b, a[0] and a(...).b; None if there is no name at the root."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None

# %%
#@save
def imported_names(node):
    """{name: full name} of what a statement imports; empty if it imports nothing."""
    if isinstance(node, ast.ImportFrom):
        return {one.asname or one.name: f'{node.module}.{one.name}' for one in node.names}
    if isinstance(node, ast.Import):
        return {one.asname or one.name.split('.')[0]: one.name if one.asname else one.name.split('.')[0]
                for one in node.names}
    return {}

# %%
#@save
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
KEEPS = ('cached',)                                                     # a decorator that only keeps results
SHOWS = re.compile('_repr_.*_')                                         # methods by which Jupyter shows a value


class OnlyCode(ast.NodeTransformer):
    """Takes docstrings out of a tree, and what keeps or shows results; sets imports from agentrl aside."""

    def __init__(self, whole=False):
        self.whole, self.imports = whole, {}

    def visit_definition(self, node):
        body = node.body[ast.get_docstring(node, clean=False) is not None:]
        if not self.whole:
            body = [part for part in body if not (isinstance(part, DEFINITIONS) and SHOWS.fullmatch(part.name))]
            node.decorator_list = [one for one in node.decorator_list if root_name(one) not in KEEPS]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_import(self, node):
        names = imported_names(node)
        if not any(full.split('.')[0] == 'agentrl' for full in names.values()):
            return node
        self.imports |= names
        return ast.Pass()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_definition
    visit_Import = visit_ImportFrom = visit_import

# %%
source = '''
@cached
def train(cfg):
    """Train a policy."""
    from agentrl.training import train_rl
    return train_rl(cfg)
'''
trim = OnlyCode()
print(ast.unparse(trim.visit(ast.parse(source).body[0])))
print(trim.imports)

# %% [markdown]
# ## Which names does a definition use?
#
# Python's own symbol table answers: it knows the local variables of every function, so that what is left over
# must come from the module.

# %%
#@save
def global_names(node):
    """Names that a statement takes from its module, also deep inside functions."""
    found = set()

    def look(table, top):
        found.update(symbol.get_name() for symbol in table.get_symbols()
                     if (symbol.is_referenced() if top else symbol.is_global()))
        for child in table.get_children():
            look(child, False)

    look(symtable.symtable(ast.unparse(node), 'statement', 'exec'), True)
    return found

# %%
print(sorted(global_names(ast.parse('''
def total(rows, scale=SCALE):
    return sum(weigh(row) for row in rows) * scale
'''))))

# %% [markdown]
# A *piece* is code that counts as one: a function, a class, an assignment. It has a text, the names that it
# uses, and the words in it: attributes, keywords and whole strings. Words matter because a field of a
# configuration and an experiment in a table are used by name. A new field of a dataclass with a default decides
# nothing until some code says its name, and a new experiment decides nothing for the others. Such pieces have a
# `key`, and count only if their key is among the words.

# %%
#@save
EVERY_FIELD = {'asdict', 'astuple', 'fields', 'vars', '__dict__'}       # they use all fields, and name none


def words_in(node):
    """Attributes, keywords and whole strings in a tree: what may name a field or an entry of a table."""
    words = set()
    for part in ast.walk(node):
        words |= {getattr(part, 'attr', None), getattr(part, 'arg', None)}
        words |= {part.value} if isinstance(part, ast.Constant) and isinstance(part.value, str) else set()
        words |= {part.id} & EVERY_FIELD if isinstance(part, ast.Name) else set()
    return words - {None}

# %%
#@save
@dataclass(frozen=True)
class Piece:
    """Code that counts as one: its text, the names that it uses, the words in it.

    `key` is the word without which it does not count: a field's name, an entry's key; '' if it always does.
    """
    text: str
    uses: frozenset
    words: frozenset
    imports: tuple = ()
    key: str = ''

# %%
#@save
@functools.cache
def make_piece(source, whole=False, key=''):
    """The Piece of a statement or expression."""
    trim = OnlyCode(whole)
    node = trim.visit(ast.parse(source).body[0])
    dotted = {text for part in ast.walk(node) if isinstance(part, ast.Attribute)
              and re.fullmatch(r'[\w.]+', text := ast.unparse(part))}
    return Piece(tree_text(node), frozenset(global_names(node) | set(trim.imports) | dotted),
                 frozenset(words_in(node)), tuple(trim.imports.items()), key)

# %%
piece = make_piece('def step_reward(cfg): return -cfg.step_penalty * check(cfg)')
print('uses:', sorted(piece.uses), '  words:', sorted(piece.words))

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
DECIDES_NOTHING = ('versions', 'cache', 'plotting', 'display')          # modules that keep or draw results


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
def place_of(function, cells=None):
    """(Space, name) of a function or class; `cells`: those of the notebook that defines it."""
    function = inspect.unwrap(function)
    name, module = function.__qualname__, function.__module__
    cells = cells if cells is not None else getattr(function, '__globals__', {}).get('In')
    if module == '__main__' and cells:
        space = read_cells(tuple(cells))
    elif module.startswith('agentrl.'):
        space = read_space(module_source(module[8:]), module[8:])
    else:
        space = read_space(inspect.getsource(sys.modules[module]), module)
    if '<locals>' in name:                                              # it stands inside another function
        inner = Space(space.module, dict(space.definitions), space.imports, space.tables)
        inner.add(ast.parse(textwrap.dedent(inspect.getsource(function))).body[0])
        space, name = inner, function.__name__
    return space, name

# %%
#@save
def code_version(function, words=(), cells=None, classes=()):
    """Twelve hex digits for all code that decides what a function gives: its own and what that uses, and torch.

    `words`: names and strings in its arguments; `classes`: dataclasses among them.
    """
    roots = [place_of(function, cells), *(place_of(one, cells) for one in classes)]
    lines = code_lines(reach(roots, frozenset(words)))
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
