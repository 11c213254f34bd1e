"""States are equal when the environment is, whatever its names; step advantages against loops and by hand."""

import math
from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.environment import BugFixEnv, EditBudgetEnv
from agentrl.episodes import Episode, make_trajectory
from agentrl.step_groups import call_texts, state_key, step_advantages, step_group_advantages, visited_states
from agentrl.tasks import EDIT_OPS, make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer

TASKS = make_tasks()
TOK = build_tokenizer(TASKS)
CALLS = ["read", "test", "nonsense", *(f"edit {op}" for op in EDIT_OPS)]
histories = st.lists(st.sampled_from(CALLS), max_size=4).map(lambda calls: [*calls, "submit"])


def states(task, calls, max_turns=6, env=None):
    return visited_states(env or EditBudgetEnv(), task, [f"<call> {call} </call>" for call in calls], max_turns)


def plain_states(task, calls, max_turns=6):
    """All that the environment knows, written out; comparable between histories of one draw of names."""
    env, seen, found = EditBudgetEnv(), (), []
    env.reset(options={"task": task, "max_turns": max_turns})
    for call in calls:
        found.append((env.source, env.info["n_edits"], env.info["n_turns"], seen))
        seen += (env.step(f"<call> {call} </call>")[0],)
    return found


@settings(max_examples=60)
@given(histories, histories, st.integers(0, 29), st.integers(0, 10**6))
def test_keys_agree_exactly_where_the_environments_do(one, other, task, seed):
    rng = torch.Generator().manual_seed(seed)
    keys = states(randomize_names(TASKS[task], rng), one), states(randomize_names(TASKS[task], rng), other)
    plain = plain_states(TASKS[task], one), plain_states(TASKS[task], other)
    for key, state in zip(keys[0], plain[0], strict=True):
        assert [key == k for k in keys[1]] == [state == s for s in plain[1]]


def test_tasks_budgets_and_edits_left_are_told_apart():
    keys = {states(task, ["read", "submit"])[1] for task in TASKS}
    assert len(keys) == len(TASKS)
    assert states(TASKS[0], ["submit"], max_turns=5) != states(TASKS[0], ["submit"], max_turns=6)
    assert states(TASKS[0], ["submit"], env=BugFixEnv()) != states(TASKS[0], ["submit"])


def test_the_texts_of_a_trajectory_are_its_calls():
    episode = Episode(EditBudgetEnv(), TASKS[1], TOK, 6, 256)
    for call in ("read", "edit fix_boundary", "submit"):
        ids = TOK.encode(f"<call> {call} </call>")
        episode.act(ids, [0.0] * len(ids))
    assert call_texts(make_trajectory(episode)) == episode.actions
    env = EditBudgetEnv()
    assert (
        states(TASKS[1], ["read", "edit fix_boundary", "submit"])[0]
        == visited_states(env, TASKS[1], call_texts(make_trajectory(episode)), 6)[0]
    )
    env.reset(options={"task": TASKS[1], "max_turns": 6})
    assert state_key(env, []) == states(TASKS[1], ["submit"])[0]


def loops(returns, keys, std_normalize):
    result = []
    for mine, key in zip(returns, keys, strict=True):
        group = [r for r, k in zip(returns, keys, strict=True) if k == key]
        mean = math.fsum(group) / len(group)
        if max(group) - min(group) < 1e-9:
            result.append(0.0)
            continue
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (len(group) - 1))
        result.append((mine - mean) / (std if std_normalize else 1))
    return result


@given(st.lists(st.tuples(st.integers(-20, 20), st.sampled_from("abcdef")), max_size=30), st.booleans())
def test_agrees_with_loops(calls, std_normalize):
    returns, keys = [r / 20 for r, _ in calls], [key for _, key in calls]
    assert step_advantages(returns, keys, std_normalize).tolist() == pytest.approx(
        loops(returns, keys, std_normalize), abs=1e-9
    )


def test_nobody_to_compare_with_and_nothing_to_tell_apart_give_exactly_zero():
    penalty = [-0.05 * 6, reduce(add, 6 * [-0.05]), 1.0]  # the first two differ in the last bit only
    for std_normalize in (True, False):
        assert step_advantages(penalty, ["a", "a", "b"], std_normalize).tolist() == [0.0, 0.0, 0.0]
    by_hand = step_advantages([1.0, 0.0, 0.0], ["a", "b", "a"])
    assert by_hand.dtype == torch.float64
    assert by_hand.tolist() == pytest.approx([0.5 / math.sqrt(0.5), 0.0, -0.5 / math.sqrt(0.5)])
    assert step_advantages([], []).tolist() == []
    with pytest.raises(ValueError, match=r"\[2\].*\[3\]"):
        step_advantages([1.0, 0.0], ["a", "a", "b"])


def test_tokens_get_the_number_of_their_call():
    turn = torch.tensor([[-1, -1, 0, 0, 0, 1], [-1, 0, 0, -1, -1, -1], [-1, -1, 0, 1, 2, 2]])
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)
    episode, step = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).double()
    both = step_group_advantages(episode, step, turn, mask, weight=10.0)
    expected = [[0, 2, 2, 0, 3], [5, 5, 0, 0, 0], [0, 7, 8, 9, 9]]
    torch.testing.assert_close(both, torch.tensor(expected).double())
    assert torch.equal(step_group_advantages(episode, step, turn, mask, weight=0.0), episode[:, None] * mask)
    for wrong in ({"step": step[1:]}, {"weight": -1.0}):
        with pytest.raises(ValueError, match="step advantages"):
            step_group_advantages(**{"episode": episode, "step": step, "turn": turn, "mask": mask} | wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_return_that_is_not_finite_is_named(bad):
    with pytest.raises(ValueError, match=f"return of call 1 is {bad}"):
        step_advantages([1, bad, 0, 1], ["a"] * 4)


def test_equal_is_measured_against_size_and_type():
    large = [1e7, math.nextafter(1e7, math.inf), 1e7, 1e7]
    single = torch.tensor([0.35, 0.35, 0.35, 0.35], dtype=torch.float32)
    single[0] = torch.nextafter(single[0], torch.tensor(1.0))
    for returns in (large, single):
        assert step_advantages(returns, ["a"] * 4).tolist() == [0.0] * 4


def test_what_does_not_fit_together_is_refused():
    turn, mask, step = torch.tensor([[-1, 0, 0]]), torch.ones(1, 2), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\[2\], \[1, 3\], \[1, 2\]"):
        step_group_advantages(torch.zeros(2), step, turn, mask)
    for weight in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"weight {weight}"):
            step_group_advantages(torch.zeros(1), step, turn, mask, weight)
