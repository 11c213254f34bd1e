import ast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tasks import (
    EDIT_OPS,
    NAME_POOL,
    apply_op,
    canonical_source,
    compact_source,
    infer_op,
    make_tasks,
    randomize_names,
    rename,
)

TASKS = make_tasks("all")


def run(source, args):
    namespace = {}
    exec(source, namespace)
    return next(v for k, v in namespace.items() if k != "__builtins__")(*args)


def passes(source, tests):
    return all(run(source, (list(xs), k)) == value for (xs, k), value in tests)


def test_splits():
    train, heldout = make_tasks("train"), make_tasks("heldout")
    assert (len(TASKS), len(train), len(heldout)) == (30, 20, 10)
    assert {t.name for t in train} | {t.name for t in heldout} == {t.name for t in TASKS}
    for op in EDIT_OPS:
        assert sum(t.edit == op for t in train) == 4 and sum(t.edit == op for t in heldout) == 2
    with pytest.raises(ValueError, match="'all', 'train' or 'heldout'"):
        make_tasks("test")


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_exactly_one_edit_repairs(task):
    assert not passes(task.source, task.hidden_tests)
    assert [op for op in EDIT_OPS if passes(apply_op(task.source, op), task.hidden_tests)] == [task.edit]
    assert infer_op(task.source) == task.edit and infer_op(apply_op(task.source, task.edit)) is None


@given(st.integers(0, 29), st.integers(0, 2**31))
def test_renaming_keeps_behaviour(n, seed):
    task = TASKS[n]
    fresh = randomize_names(task, torch.Generator().manual_seed(seed))
    assert canonical_source(fresh.source)[0] == canonical_source(task.source)[0]
    for (xs, k), _ in task.hidden_tests:
        assert run(fresh.source, (list(xs), k)) == run(task.source, (list(xs), k))
    assert fresh.issue.split()[-2] in NAME_POOL and f"def {fresh.issue.split()[-2]}(" in fresh.source
    assert infer_op(fresh.source) == task.edit


@given(st.integers(0, 29), st.lists(st.sampled_from(list(EDIT_OPS)), max_size=4))
def test_edits_are_toggles_that_commute_with_renaming(n, ops):
    source = TASKS[n].source
    for op in ops:
        source = apply_op(source, op)
    canonical, names = canonical_source(source)
    for op in EDIT_OPS:
        assert apply_op(apply_op(source, op), op) == source
        assert rename(apply_op(canonical, op), names) == apply_op(source, op)


@pytest.mark.parametrize(
    "source",
    [
        "def f(a): return sorted(a, reverse=True)",
        "def f(a): return a.count(1)",
        "def f(a): return 'a'",
        "import os\ndef f(a): return os",
        "def f(a): return locals()",
        "def f(a): return a  # a",
        "def f(ä): return ä",
    ],
)
def test_programs_that_renaming_could_change_are_left_alone(source):
    assert canonical_source(source) == (source, {})


def test_unknown_edit_and_wrong_source():
    with pytest.raises(ValueError, match="fix_comparison"):
        apply_op(TASKS[0].source, "fix_all")
    with pytest.raises(ValueError, match="no place to act"):
        apply_op("def f(a):\n    return a", "fix_operator")


def test_compact_source_is_short_and_shows_the_return():
    for task in TASKS:
        words = compact_source(task.source).split()
        assert 23 <= len(words) <= 29
        assert words.count("end") == 2
        ast.parse(task.source)
    inside = compact_source(next(t for t in TASKS if t.edit == "fix_return").source)
    assert inside.split()[-1] == "end"
