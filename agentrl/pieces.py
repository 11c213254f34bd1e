# Made by tools/export.py from notebooks/00_start_here/00_3_code_pieces.py. Do not edit: change it there, then `make export`.
# Body: 182e44807e8cf7aa
"""0.3 What a definition says: code as pieces that can be compared."""

import ast
import functools
import hashlib
import re
import symtable
from dataclasses import dataclass


# 00_start_here/00_3_code_pieces, cell 2
def tree_text(node):
    """A syntax tree as text, without its empty fields: the same text in every version of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f'{type(node).__name__}({", ".join(f"{name}={tree_text(value)}" for name, value in fields)})'
    return f'[{", ".join(map(tree_text, node))}]' if isinstance(node, list) else repr(node)


# 00_start_here/00_3_code_pieces, cell 3
def digest(text):
    """Twelve hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# 00_start_here/00_3_code_pieces, cell 5
def root_name(node):
    """`a` of the expressions a, a.b, a[0] and a(...).b; None if there is no name at the root."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


# 00_start_here/00_3_code_pieces, cell 6
def imported_names(node):
    """{name: full name} of what a statement imports; empty if it imports nothing."""
    if isinstance(node, ast.ImportFrom):
        return {one.asname or one.name: f'{node.module}.{one.name}' for one in node.names}
    if isinstance(node, ast.Import):
        return {one.asname or one.name.split('.')[0]: one.name if one.asname else one.name.split('.')[0]
                for one in node.names}
    return {}


# 00_start_here/00_3_code_pieces, cell 7
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
KEEPS = ('cached',)                                                     # a decorator that only keeps results
SHOWS = re.compile('_repr_.*_')                                         # methods by which Jupyter shows a value


# 00_start_here/00_3_code_pieces, cell 7
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


# 00_start_here/00_3_code_pieces, cell 9
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


# 00_start_here/00_3_code_pieces, cell 11
EVERY_FIELD = {'asdict', 'astuple', 'fields', 'vars', '__dict__'}       # they use all fields, and name none


# 00_start_here/00_3_code_pieces, cell 11
def words_in(node):
    """Attributes, names of arguments and whole strings in a tree: what may name a field or an entry of a table."""
    words = set()
    for part in ast.walk(node):
        words |= {getattr(part, 'attr', None), getattr(part, 'arg', None)}
        words |= {part.value} if isinstance(part, ast.Constant) and isinstance(part.value, str) else set()
        words |= {part.id} & EVERY_FIELD if isinstance(part, ast.Name) else set()
    return words - {None}


# 00_start_here/00_3_code_pieces, cell 12
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


# 00_start_here/00_3_code_pieces, cell 13
@functools.cache
def make_piece(source, whole=False, key=''):
    """The Piece of a statement or expression."""
    trim = OnlyCode(whole)
    node = trim.visit(ast.parse(source).body[0])
    dotted = {text for part in ast.walk(node) if isinstance(part, ast.Attribute)
              and re.fullmatch(r'[\w.]+', text := ast.unparse(part))}
    return Piece(tree_text(node), frozenset(global_names(node) | set(trim.imports) | dotted),
                 frozenset(words_in(node)), tuple(trim.imports.items()), key)
