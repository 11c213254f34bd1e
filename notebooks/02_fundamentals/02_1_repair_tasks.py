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
# # 2.1 Make thirty repair tasks whose answer must be read
#
# An agent can only learn to *look* if looking pays. This section builds the tasks of the whole book: thirty
# little Python functions with one bug each. The agent may apply one of five named edits. We will see that
# each edit undoes one bug, that the best edit chosen without looking repairs one held-out function in five,
# and that everything an agent needs stands in the 23 to 29 words that `read` shows.
#
# **Time** 15 min. **Assumes** no other section. **Afterwards you can** read a broken function, name the one
# edit that repairs it, and compute what the best blind guess would pass.

# %%
#@save tasks
import ast
import keyword
import re
from builtins import __dict__ as _BUILTINS
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

# %% [markdown]
# ## One bug, one edit
#
# A bug and its repair are the same move made twice, so each edit is written as a *toggle* on the syntax tree:
# `>` becomes `>=` and `>=` becomes `>`. A tree is the right place for it. Replacing text would also hit names
# and comments.

# %%
#@save
_OTHER = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
          ast.Add: ast.Sub, ast.Sub: ast.Add}


def _nodes(tree, kind):
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def toggle_comparison(tree):
    """`>` <-> `>=` and `<` <-> `<=` in the first comparison."""
    compare = _nodes(tree, ast.Compare)[0]
    compare.ops = [_OTHER[type(compare.ops[0])]()]


def toggle_operator(tree):
    """`+=` <-> `-=`."""
    update = _nodes(tree, ast.AugAssign)[0]
    update.op = _OTHER[type(update.op)]()


def toggle_init(tree):
    """Start at 0 <-> start at 1."""
    start = _nodes(tree, ast.Assign)[0].value
    start.value = 1 - start.value


# %% [markdown]
# Two edits move more than one symbol: the loop's bound, and the place of the `return`.

# %%
#@save
def toggle_boundary(tree):
    """`range(len(a))` <-> `range(len(a) - 1)`."""
    call = _nodes(tree, ast.For)[0].iter
    bound = call.args[0]
    if isinstance(bound, ast.BinOp):
        call.args = [bound.left]
    else:
        call.args = [ast.BinOp(bound, ast.Sub(), ast.Constant(1))]


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

# %% [markdown]
# ## Names do not matter
#
# The names in a function are drawn afresh for every episode, otherwise the agent would learn names by heart.
# Behaviour does not depend on them, so we work on a *canonical* form in which names are numbered in order of
# appearance. It makes edits and test verdicts cacheable: a thousand renamed copies are one program. Renaming
# goes by words, which is safe as long as a program holds no strings, attributes, comments or keyword
# arguments and does not ask for names; any other program is its own canonical form.

# %%
#@save
_WORD = re.compile(r'\b[A-Za-z_]\w*')
_KEEP = set(keyword.kwlist) | set(keyword.softkwlist) | set(_BUILTINS)
_NOT_PLAIN = re.compile(r'''['"#.\\]  |  [^\x00-\x7f]  |  [(,] \s* \w+ \s* = (?!=)  |  __
                            | \b (import|match|exit|quit|locals|globals|vars|dir|eval|exec) \b''', re.VERBOSE)


def rename(source, names):
    """Replace each word that is a key of `names` by its value."""
    return _WORD.sub(lambda match: names.get(match[0], match[0]), source)


@lru_cache(maxsize=4096)
def canonical_source(source):
    """Number the names in order of appearance: the new source, and the map from new names to old ones."""
    if _NOT_PLAIN.search(source):
        return source, {}
    words = dict.fromkeys(word for word in _WORD.findall(source) if word not in _KEEP)
    return (rename(source, {word: f'v{n}' for n, word in enumerate(words)}),
            {f'v{n}': w for n, w in enumerate(words)})


# %%
canonical, names = canonical_source('def total(a): return len(a) + size')
print(canonical)
print(names)
assert rename(canonical, names) == 'def total(a): return len(a) + size'

# %% [markdown]
# `apply_op` edits the canonical form once, remembers the result, and puts the names back.

# %%
#@save
@lru_cache(maxsize=1024)
def _edited(source, op):
    tree = ast.parse(source)
    try:
        EDIT_OPS[op](tree)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f'{op} has no place to act in this source:\n{source}') from error
    return ast.unparse(ast.fix_missing_locations(tree))


def apply_op(source, op):
    """The source after the named edit; ValueError for an unknown edit or a source it cannot act on."""
    if op not in EDIT_OPS:
        raise ValueError(f'op={op!r} is not an edit; choose one of {", ".join(EDIT_OPS)}')
    canonical, names = canonical_source(source)
    return rename(_edited(canonical, op), names)


# %%
right = """
def f(a, k):
    s = 0
    for i in range(len(a)):
        if a[i] > k:
            s += a[i]
    return s
""".strip()
for op in EDIT_OPS:
    print(f'--- {op}\n{apply_op(right, op)}')
    assert apply_op(apply_op(right, op), op) == right

# %% [markdown]
# ## A grid of six functions and five bugs
#
# Every function has the same frame and differs in a condition and a value. That is on purpose. With thirty
# unrelated functions a small policy learns by heart which function wants which edit and fails on new ones; on
# a grid, the only thing that tells the bug on all functions is the bug itself.

# %%
#@save
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


def right_source(template):
    """The correct function of a template, with the names `a`, `k`, `s`, `i`."""
    condition, value = TEMPLATES[template]
    return (f'def f(a, k):\n    s = 0\n    for i in range(len(a)):\n'
            f'        if {condition}:\n            s += {value}\n    return s')


# %% [markdown]
# ## Tests, visible and hidden
#
# A test is a pair: arguments, and the value that the correct function gives. The hidden inputs hold a zero,
# ties, the threshold 3 itself and a non-positive last element, because a bug that no input touches is no bug.
# The agent's `test` tool runs only the visible ones. Passing those is good evidence and no proof: there is no
# zero among them, so a wrong comparison with 0 slips through. Section 4.1 counts what they catch.

# %%
#@save
K = 3
HIDDEN_INPUTS = ([6, 1, -3], [3, 0, 5, 2], [4, 4, 1, 3], [2, 5, 2, 6, 7], [7], [-2, 3, 3, -1, 4])
VISIBLE_INPUTS = ([5, 3, 1], [2, 4, 6])


def make_tests(source, inputs):
    """Pairs ((numbers, k), value), numbers a tuple, with the values of the given correct function."""
    namespace = {}
    exec(source, namespace)                                             # our right_source, never a candidate
    return tuple(((tuple(xs), K), namespace['f'](xs, K)) for xs in inputs)


# %%
print(make_tests(right_source('sum_above'), VISIBLE_INPUTS))

# %%
#@save
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


# %% [markdown]
# ## Thirty tasks
#
# Five words of the issue are the same for all; the sixth is the function's name. Here each task has a fixed
# name of its own, and so the name gives the edit away. `randomize_names` draws all names anew. Section 9.4
# shows what an agent does with the leak if one forgets.

# %%
#@save
NAME_POOL = tuple('abcdefghijklmnopqrstuvwxyz') + ('mu', 'nu', 'xi', 'pi', 'rho', 'tau', 'phi', 'psi')
_FUNCTION_NAMES = [name for name in NAME_POOL if name not in 'akis']    # thirty


def make_issue(function_name):
    """The six words of a prompt."""
    return f'please fix the function {function_name} .'


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


# %%
for split in ('all', 'train', 'heldout'):
    tasks = make_tasks(split)
    print(f'{split:8}', len(tasks), {op: sum(task.edit == op for task in tasks) for op in EDIT_OPS})

# %% [markdown]
# The best an agent can do on the held-out tasks without reading is one edit for all of them: two of ten,
# 0.200.

# %%
#@save
def randomize_names(task, rng):
    """The same task with all five names drawn from `NAME_POOL` by the torch.Generator `rng`."""
    picks = torch.randperm(len(NAME_POOL), generator=rng)[:5].tolist()
    fresh = [NAME_POOL[pick] for pick in picks]
    canonical, names = canonical_source(task.source)
    return replace(task, source=rename(canonical, dict(zip(names, fresh, strict=True))),
                   issue=make_issue(fresh[0]))


# %%
task = make_tasks()[6]
rng = torch.Generator().manual_seed(0)
print(task.name, '|', task.issue)
print(task.source)
fresh = randomize_names(task, rng)
print('---', fresh.issue)
print(fresh.source)

# %% [markdown]
# ## What `read` shows
#
# A policy of some 150 thousand parameters should not spend its life on brackets. `compact_source` drops the
# signature, brackets and commas and closes each block with the word `end`, so that the place of the `return`
# stays visible.

# %%
#@save
_SYMBOL = re.compile(r'\w+|[-+*<>=]=?|:')


def compact_source(source):
    """The words that `read` shows: no signature, no brackets, `end` where a block closes."""
    words, depth = [], 1
    for line in source.splitlines()[1:]:
        indent = (len(line) - len(line.lstrip())) // 4
        words += ['end'] * (depth - indent) + _SYMBOL.findall(line)
        depth = indent + line.endswith(':')
    return ' '.join(words + ['end'] * (depth - 1))


# %%
for op in EDIT_OPS:
    print(f'{op:15}', compact_source(apply_op(right, op)))
lengths = [len(compact_source(task.source).split()) for task in make_tasks()]
print('words:', min(lengths), 'to', max(lengths))

# %% [markdown]
# ## A perfect reader
#
# Does a view of at most 29 words still determine the edit? We write the rule down that a perfect reader would
# use and try it on all tasks, with fresh names each.

# %%
#@save
def infer_op(source):
    """The edit that repairs `source`, found by looking at it; None if it looks right."""
    view = compact_source(source)
    signs = {'fix_comparison': r'[<>]=', 'fix_boundary': r'- 1 :', 'fix_operator': r'-=',
             'fix_init': r'^\w+ = 1', 'fix_return': r'return \w+ end$'}
    return next((op for op, sign in signs.items() if re.search(sign, view)), None)


# %%
hits = [infer_op(randomize_names(task, rng).source) == task.edit for task in make_tasks()]
print(sum(hits), 'of', len(hits), 'tasks told by reading; a right function gives', infer_op(right))

# %% [markdown]
# ## What was seen
#
# Five toggles make and repair all bugs of a grid of 30 tasks; 20 are for training and 10 held out, two an
# edit, so the best blind edit repairs 2 of 10. A view of 23 to 29 words tells the right edit on all 30.
# Section 4.1 executes the tests and shows that exactly one edit passes them.
#
# **Try it.** Remove `0` from the hidden inputs, run `make export`, and look at section 4.1 again: which two
# bugs are bugs no longer? Write a sixth toggle, say the first `a[i]` to `i`, apply it to `right`, and write a
# sign for it as in `infer_op`.
