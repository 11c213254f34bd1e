"""Cuts: calls at their limit and rows at their clock, red when mistaken, green as ours."""

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.credit import gae_advantages
from agentrl.cut_faults import act_or_cut, check_cut_calls, check_timeouts
from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks


def calls(**columns):
    base = {"row": [3, 4], "finish_reason": ["stop", "length"], "tokens": [3, 6], "limit": [6, 6]}
    return base | {"executed": [True, False], "invalid": [True, False]} | columns


def test_a_cut_call_that_is_nothing_is_green():
    assert check_cut_calls(calls()) is None and check_cut_calls(pd.DataFrame(calls())) is None


@pytest.mark.parametrize("reason", ["length", "tool_calls"])
@pytest.mark.parametrize("field, fault", [("executed", "executed"), ("invalid", "scored as malformed")])
def test_a_cut_call_that_counts_is_red_whatever_its_label(reason, field, fault):
    found = check_cut_calls(calls(**{field: [False, True]}, finish_reason=["stop", reason]))
    assert found.fault == f"a cut call was {fault}" and found.row == 4
    assert ("another finish_reason" in found.evidence) == (reason != "length")


def test_rows_are_optional_and_lengths_must_agree():
    without = {name: value for name, value in calls(executed=[False, True]).items() if name != "row"}
    assert check_cut_calls(without).row is None
    with pytest.raises(ValueError):
        check_cut_calls(calls(tokens=[1]))


def test_a_cut_ends_the_episode_with_its_own_reason():
    env = EditBudgetEnv()
    env.reset(options={"task": make_tasks()[1]})
    observation, reward, terminated, truncated, info = act_or_cut(env, "<call> edit", "length")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["stop"] == "length" and info["n_invalid"] == info["n_edits"] == 0
    env.reset(options={"task": make_tasks()[1]})
    assert act_or_cut(env, "<call> edit", "stop")[4]["n_invalid"] == 1


@settings(max_examples=40)
@given(st.integers(0, 999), st.floats(0.5, 1.0))
def test_bootstrap_is_green_and_its_absence_red(seed, gamma):
    rng = torch.Generator().manual_seed(seed)
    rewards, values = (torch.rand(3, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    rewards, final, cut = rewards * mask, torch.tensor([2.0, 3.0, 4.0]).double(), torch.tensor([True, False, True])
    bonus = torch.zeros_like(rewards)
    bonus[0, 3], bonus[2, 0] = gamma * 2, gamma * 4
    right = gae_advantages(rewards + bonus, values, mask, gamma, 0.9)[1]
    wrong = gae_advantages(rewards, values, mask, gamma, 0.9)[1]
    assert check_timeouts(right, rewards, mask, cut, final, gamma) is None
    found = check_timeouts(wrong, rewards, mask, cut, final, gamma)
    assert found.fault == "timeouts treated as terminations" and found.row == 0 and "2 of 2" in found.evidence
    assert check_timeouts(wrong, rewards, mask, ~cut & cut, final, gamma) is None
    assert check_timeouts(right + 1, rewards, mask, cut, final, gamma).fault == "wrong bootstrap after a cut"
