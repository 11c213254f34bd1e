"""A session budget: what is thrown away, counted token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode, make_trajectory
from agentrl.model import TinyAgent
from agentrl.sampling import rollout_batch
from agentrl.session_budget import (
    session_budget_check,
    session_cost,
    trajectory_turns,
    turns_by_count,
    turns_by_usage,
)
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

pytestmark = pytest.mark.timeout(60)
TOK = build_tokenizer(make_tasks("all"))


@st.composite
def episodes(draw):
    """Turns (written, total): each adds what is read and what is written."""
    turns, total = [], 0
    for read, written in draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=7)):
        total += read + written
        turns.append((written, total))
    return turns


def token_by_token(turns, budget):
    """Tokens that the policy wrote behind the budget, one at a time."""
    places = [place for written, total in turns for place in range(total - written + 1, total + 1)]
    return len(places), sum(place > budget for place in places)


@given(episodes(), st.integers(1, 150), st.integers(0, 40))
def test_the_cost_is_that_of_counting_tokens(turns, budget, reserve):
    for played in (turns, turns_by_usage(turns, budget, reserve), turns_by_count(turns, budget, 6)):
        cost = session_cost(turns, played, budget)
        assert (cost["written"], cost["thrown"]) == token_by_token(played, budget)
        assert played == turns[: len(played)] and cost["whole"] == (played == turns and turns[-1][1] <= budget)


@given(episodes(), st.integers(1, 150))
def test_who_counts_and_who_reserves_enough_throw_nothing_away(turns, budget):
    assert session_cost(turns, turns_by_count(turns, budget, 6), budget)["thrown"] == 0
    first, reserve = turns[0][1], 36  # the largest turn that `episodes` draws
    assert session_cost(turns, turns_by_usage(turns, budget, reserve), budget)["thrown"] == 0 or first > budget


@given(episodes(), st.integers(1, 150))
def test_a_loop_without_reserve_keeps_what_collection_keeps(turns, budget):
    late = session_cost(turns, turns_by_usage(turns, budget, 0), budget)
    all_of_it = session_cost(turns, turns, budget)
    assert late["whole"] == all_of_it["whole"] and late["thrown"] <= all_of_it["thrown"]
    assert late["written"] - late["thrown"] == all_of_it["written"] - all_of_it["thrown"]


@given(episodes(), st.integers(1, 150), st.integers(0, 40))
def test_the_check_of_the_loop_is_the_rule_of_the_table(turns, budget, reserve):
    enough = session_budget_check(budget, reserve)

    class Usage:
        def __init__(self, total):
            self.total = total

    played = []
    for turn in turns:
        played.append(turn)
        if enough(Usage(turn[1])):
            break
    assert played == turns_by_usage(turns, budget, reserve)


@pytest.mark.parametrize("name, wrong", [("budget", (0, 0)), ("budget", (2.5, 0)), ("reserve", (48, -1))])
def test_absurd_settings_are_named(name, wrong):
    with pytest.raises(ValueError, match=name):
        session_budget_check(*wrong)


def test_turns_of_a_trajectory_by_hand():
    episode = Episode(EditBudgetEnv(), make_tasks("all")[1], TOK, max_turns=6, max_len=256)
    lengths = []
    for call in ("read", "edit fix_boundary", "submit"):
        ids = TOK.encode(f"<call> {call} </call>")
        lengths.append((len(ids), len(episode.ids) + len(ids)))
        episode.act(ids, [0.0] * len(ids))
    assert trajectory_turns(make_trajectory(episode)) == lengths


def test_turns_of_sampled_trajectories_hold_all_tokens_of_the_policy():
    model, tasks = TinyAgent(len(TOK), n_layers=1, d=32), make_tasks("train")[:4]
    rng = torch.Generator().manual_seed(0)
    for traj in rollout_batch(model, [EditBudgetEnv() for _ in tasks], tasks, TOK, 6, 1.0, rng):
        turns = trajectory_turns(traj)
        assert len(turns) == traj.info["n_turns"] and sum(n for n, _ in turns) == int(traj.action_mask.sum())
        assert turns[-1][1] == len(traj.ids)
