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
# # 0.3 What a definition says: code as pieces that can be compared
#
# A training run takes minutes, so this book stores what runs gave, beside a text that says which code made
# them. Section 0.3.1 computes that text. This section prepares it: it takes a definition and says what in it
# decides a result, which other names it uses, and which words in it may name a setting. A corrected comment
# must change none of that, or hours of training would be thrown away for no reason.
#
# **Time** 10 min. **Assumes** no other section. **Afterwards you can** compare two functions by what they do and
# not by their layout, and list what a function takes from its module.

# %%
#@save pieces
import ast
import functools
import hashlib
import re
import symtable
from dataclasses import dataclass

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
# uses, and the words in it: attributes, names of arguments and whole strings. Words matter because a field of a
# configuration and an experiment in a table are used by name. A new field of a dataclass with a default decides
# nothing until some code says its name, and a new experiment decides nothing for the others. Such pieces have a
# `key`, and count only if their key is among the words.

# %%
#@save
EVERY_FIELD = {'asdict', 'astuple', 'fields', 'vars', '__dict__'}       # they use all fields, and name none


def words_in(node):
    """Attributes, names of arguments and whole strings in a tree: what may name a field or an entry of a table."""
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
# ## What was seen
#
# A comment, a docstring and another layout leave the text of a piece as it was, and a swapped product changes it. The
# symbol table told the names that a function takes from its module from its own variables.
#
# **Try it.** Give `make_piece` a function with a nested function that uses a global name, and look at `uses`. Then
# give the outer function a variable of that name.
