# Made by tools/export.py from notebooks/02_fundamentals/02_1_repair_tasks.py. Do not edit: change it there, then `make export`.
# Body: ebdca6dfdbd78285
"""2.1 Make thirty repair tasks whose answer must be read."""

import ast
import keyword
import re
from builtins import __dict__ as _BUILTINS
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

# 02_fundamentals/02_1_repair_tasks, cell 2
_OTHER = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
          ast.Add: ast.Sub, ast.Sub: ast.Add}


# 02_fundamentals/02_1_repair_tasks, cell 2
def _nodes(tree, kind):
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


# 02_fundamentals/02_1_repair_tasks, cell 2
def toggle_comparison(tree):
    """`>` <-> `>=` and `<` <-> `<=` in the first comparison."""
    compare = _nodes(tree, ast.Compare)[0]
    compare.ops = [_OTHER[type(compare.ops[0])]()]


# 02_fundamentals/02_1_repair_tasks, cell 2
def toggle_operator(tree):
    """`+=` <-> `-=`."""
    update = _nodes(tree, ast.AugAssign)[0]
    update.op = _OTHER[type(update.op)]()


# 02_fundamentals/02_1_repair_tasks, cell 2
def toggle_init(tree):
    """Start at 0 <-> start at 1."""
    start = _nodes(tree, ast.Assign)[0].value
    start.value = 1 - start.value


# 02_fundamentals/02_1_repair_tasks, cell 3
def toggle_boundary(tree):
    """`range(len(a))` <-> `range(len(a) - 1)`."""
    call = _nodes(tree, ast.For)[0].iter
    bound = call.args[0]
    if isinstance(bound, ast.BinOp):
        call.args = [bound.left]
    else:
        call.args = [ast.BinOp(bound, ast.Sub(), ast.Constant(1))]


# 02_fundamentals/02_1_repair_tasks, cell 3
def toggle_return(tree):
    """`return` after the loop <-> `return` inside it."""
    body, loop = tree.body[0].body, _nodes(tree, ast.For)[0]
    source, target = (body, loop.body) if isinstance(body[-1], ast.Return) else (loop.body, body)
    target.append(source.pop())


EDIT_OPS = {
    'fix_comparison': toggle_comparison,
    'fix_boundary': toggle_boundary,
    'fix_operator': toggle_operator,
    'fix_init': toggle_init,
    'fix_return': toggle_return,
}


# 02_fundamentals/02_1_repair_tasks, cell 4
_WORD = re.compile(r'\b[A-Za-z_]\w*')
_KEEP = set(keyword.kwlist) | set(keyword.softkwlist) | set(_BUILTINS)
_NOT_PLAIN = re.compile(r'''['"#.\\]  |  [^\x00-\x7f]  |  [(,] \s* \w+ \s* = (?!=)  |  __
                            | \b (import|match|exit|quit|locals|globals|vars|dir|eval|exec) \b''', re.VERBOSE)


# 02_fundamentals/02_1_repair_tasks, cell 4
def rename(source, names):
    """Replace each word that is a key of `names` by its value."""
    return _WORD.sub(lambda match: names.get(match[0], match[0]), source)


# 02_fundamentals/02_1_repair_tasks, cell 4
@lru_cache(maxsize=4096)
def canonical_source(source):
    """Number the names in order of appearance: the new source, and the map from new names to old ones."""
    if _NOT_PLAIN.search(source):
        return source, {}
    words = dict.fromkeys(word for word in _WORD.findall(source) if word not in _KEEP)
    return (rename(source, {word: f'v{n}' for n, word in enumerate(words)}),
            {f'v{n}': w for n, w in enumerate(words)})


# 02_fundamentals/02_1_repair_tasks, cell 6
@lru_cache(maxsize=1024)
def _edited(source, op):
    tree = ast.parse(source)
    try:
        EDIT_OPS[op](tree)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f'{op} has no place to act in this source:\n{source}') from error
    return ast.unparse(ast.fix_missing_locations(tree))


# 02_fundamentals/02_1_repair_tasks, cell 6
def apply_op(source, op):
    """The source after the named edit; ValueError for an unknown edit or a source it cannot act on."""
    if op not in EDIT_OPS:
        raise ValueError(f'op={op!r} is not an edit; choose one of {", ".join(EDIT_OPS)}')
    canonical, names = canonical_source(source)
    return rename(_edited(canonical, op), names)


# 02_fundamentals/02_1_repair_tasks, cell 8
TEMPLATES = {
    'count_positive': ('a[i] > 0', '1'),
    'sum_above': ('a[i] > k', 'a[i]'),
    'count_below': ('a[i] < k', '1'),
    'sum_below': ('a[i] < k', 'a[i]'),
    'squares_above': ('a[i] > k', 'a[i] * a[i]'),
    'index_sum': ('a[i] > 0', 'i'),
}
HELD_OUT = {'fix_comparison': (0, 3), 'fix_boundary': (1, 4), 'fix_operator': (2, 5), 'fix_init': (3, 5),
            'fix_return': (0, 4)}                                       # template rows never trained on


# 02_fundamentals/02_1_repair_tasks, cell 8
def right_source(template):
    """The correct function of a template, with the names `a`, `k`, `s`, `i`."""
    condition, value = TEMPLATES[template]
    return (f'def f(a, k):\n    s = 0\n    for i in range(len(a)):\n'
            f'        if {condition}:\n            s += {value}\n    return s')


# 02_fundamentals/02_1_repair_tasks, cell 9
K = 3
HIDDEN_INPUTS = ([6, 1, -3], [3, 0, 5, 2], [4, 4, 1, 3], [2, 5, 2, 6, 7], [7], [-2, 3, 3, -1, 4])
VISIBLE_INPUTS = ([5, 3, 1], [2, 4, 6])


# 02_fundamentals/02_1_repair_tasks, cell 9
def make_tests(source, inputs):
    """Pairs ((numbers, k), value), numbers a tuple, with the values of the given correct function."""
    namespace = {}
    exec(source, namespace)                                             # our right_source, never a candidate
    return tuple(((tuple(xs), K), namespace['f'](xs, K)) for xs in inputs)


# 02_fundamentals/02_1_repair_tasks, cell 11
@dataclass(frozen=True)
class Task:
    """A function with one bug: its issue (the prompt), source, the one edit that repairs it, and tests."""
    name: str
    issue: str
    source: str
    edit: str
    visible_tests: tuple
    hidden_tests: tuple
    single_turn: bool = False                                           # graded after one call (section 12.6)


# 02_fundamentals/02_1_repair_tasks, cell 12
NAME_POOL = tuple('abcdefghijklmnopqrstuvwxyz') + ('mu', 'nu', 'xi', 'pi', 'rho', 'tau', 'phi', 'psi')
_FUNCTION_NAMES = [name for name in NAME_POOL if name not in 'akis']    # thirty


# 02_fundamentals/02_1_repair_tasks, cell 12
def make_issue(function_name):
    """The six words of a prompt."""
    return f'please fix the function {function_name} .'


# 02_fundamentals/02_1_repair_tasks, cell 12
def make_tasks(split='all'):
    """The 30 tasks, the 20 to train on, or the 10 held out: four and two an edit."""
    if split not in ('all', 'train', 'heldout'):
        raise ValueError(f"split={split!r} is not known; choose 'all', 'train' or 'heldout'")
    tasks = []
    for template in TEMPLATES:
        for edit in EDIT_OPS:
            name, good = _FUNCTION_NAMES[len(tasks)], right_source(template)
            tasks.append(Task(
                name=f'{template}/{edit}', issue=make_issue(name), edit=edit,
                source=rename(apply_op(good, edit), {'f': name}),
                visible_tests=make_tests(good, VISIBLE_INPUTS), hidden_tests=make_tests(good, HIDDEN_INPUTS)))
    held_out = {f'{list(TEMPLATES)[row]}/{edit}' for edit, rows in HELD_OUT.items() for row in rows}
    return [task for task in tasks if split == 'all' or (task.name in held_out) == (split == 'heldout')]


# 02_fundamentals/02_1_repair_tasks, cell 14
def randomize_names(task, rng):
    """The same task with all five names drawn from `NAME_POOL` by the torch.Generator `rng`."""
    picks = torch.randperm(len(NAME_POOL), generator=rng)[:5].tolist()
    fresh = [NAME_POOL[pick] for pick in picks]
    canonical, names = canonical_source(task.source)
    return replace(task, source=rename(canonical, dict(zip(names, fresh, strict=True))),
                   issue=make_issue(fresh[0]))


# 02_fundamentals/02_1_repair_tasks, cell 16
_SYMBOL = re.compile(r'\w+|[-+*<>=]=?|:')


# 02_fundamentals/02_1_repair_tasks, cell 16
def compact_source(source):
    """The words that `read` shows: no signature, no brackets, `end` where a block closes."""
    words, depth = [], 1
    for line in source.splitlines()[1:]:
        indent = (len(line) - len(line.lstrip())) // 4
        words += ['end'] * (depth - indent) + _SYMBOL.findall(line)
        depth = indent + line.endswith(':')
    return ' '.join(words + ['end'] * (depth - 1))


# 02_fundamentals/02_1_repair_tasks, cell 18
def infer_op(source):
    """The edit that repairs `source`, found by looking at it; None if it looks right."""
    view = compact_source(source)
    signs = {'fix_comparison': r'[<>]=', 'fix_boundary': r'- 1 :', 'fix_operator': r'-=',
             'fix_init': r'^\w+ = 1', 'fix_return': r'return \w+ end$'}
    return next((op for op, sign in signs.items() if re.search(sign, view)), None)
