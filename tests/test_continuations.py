"""Copies are exact and independent; continuations are unbiased, and the same whoever reads them."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.base import make_rl_base
from agentrl.continuations import (
    SharedReader,
    call_advantages,
    continuation_returns,
    continue_episodes,
    copy_episode,
    mean_and_error,
    snapshots,
)
from agentrl.environment import EditBudgetEnv, LoggedEnv
from agentrl.episodes import Episode
from agentrl.model import TinyAgent, sequence_log_probs
from agentrl.rewards import make_reward
from agentrl.sampling import PlainReader, rollout_batch
from agentrl.tasks import EDIT_OPS, make_tasks
from agentrl.tokenizer import build_tokenizer

TASKS = make_tasks()
TOK = build_tokenizer(TASKS)
MODEL = TinyAgent(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32)
CALLS = ["read", "test", "edit", "submit", *(f"edit {op}" for op in EDIT_OPS)]
PARTS = ("ids", "owner", "turn", "logp", "actions", "reward", "done", "info")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def start(task=1, max_turns=6, **costs):
    return Episode(EditBudgetEnv(reward=make_reward(**costs)), TASKS[task], TOK, max_turns, 256)


def act(episode, *calls):
    for call in calls:
        if not episode.done:
            ids = TOK.encode(f"<call> {call} </call>")
            episode.act(ids, [-0.5] * len(ids))
    return episode


def all_of(episode):
    env = episode.env
    return [getattr(episode, part) for part in PARTS] + [env.source, env.info, env.budget, env.task]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(CALLS), max_size=4), st.lists(st.sampled_from(CALLS), max_size=4))
def test_a_copy_goes_on_like_a_deep_copy_and_leaves_the_original_alone(before, after):
    original = act(start(), *before)
    as_it_was = copy.deepcopy(all_of(original))
    assert all_of(act(copy_episode(original), *after)) == all_of(act(copy.deepcopy(original), *after))
    assert all_of(original) == as_it_was


def test_a_wrapped_environment_is_refused():
    log = []
    episode = Episode(LoggedEnv(EditBudgetEnv(), log), TASKS[0], TOK, 6, 256)
    with pytest.raises(ValueError, match="LoggedEnv.*unwrapped"):
        copy_episode(episode)


def test_snapshots_lead_to_the_recorded_end():
    trajs = rollout_batch(MODEL, [EditBudgetEnv() for _ in range(6)], TASKS[:6], TOK, 4, 1.0, seeded())
    for task, traj in zip(TASKS, trajs, strict=False):
        cuts = snapshots(traj, EditBudgetEnv(), task, 4)
        assert len(cuts) == traj.info["n_turns"] + 1 and cuts[-1].done and not any(cut.done for cut in cuts[:-1])
        for k, cut in enumerate(cuts):
            assert len(cut.actions) == k and traj.ids.tolist()[: len(cut.ids)] == cut.ids
            calls = [traj.ids[(traj.turn == j) & (traj.owner == 2)].tolist() for j in range(k, len(cuts) - 1)]
            twin = copy_episode(cut)
            for ids in calls:
                twin.act(ids, [0.0] * len(ids))
            assert twin.ids == traj.ids.tolist() and twin.info == traj.info
    with pytest.raises(ValueError, match="other tokens"):
        snapshots(trajs[0], EditBudgetEnv(), TASKS[6], 4)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(range(5)), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 99))
def test_the_shared_reader_samples_what_the_plain_one_does(which, n, seed):
    pool = [start(), act(start(2), "read"), act(start(), "test", "read"), act(start(), "submit"), act(start(), "test")]
    starts = [pool[number] for number in which]
    ends = [continue_episodes(MODEL, starts, n, seeded(seed), reader=reader) for reader in (PlainReader, SharedReader)]
    for plain, shared in zip(*ends, strict=True):
        assert len(plain) == len(shared) == n
        for a, b in zip(plain, shared, strict=True):
            assert a.ids == b.ids and a.done and b.done
            assert a.logp == pytest.approx(b.logp, abs=1e-12)


def test_rows_that_have_read_the_same_are_read_once():
    reader, sizes = SharedReader(MODEL, 5), []
    for new in ({n: [1, 2, 3] for n in range(5)}, {0: [4], 1: [4], 2: [5], 3: [5], 4: [4]}, {0: [6], 2: [6], 4: [7]}):
        logits = reader.next_logits(new)
        sizes.append(len(reader.cache.lengths))
        assert logits.shape == (len(new), len(TOK))
    assert sizes == [1, 2, 3]
    expected = MODEL(torch.tensor([[1, 2, 3, 4, 6], [1, 2, 3, 5, 6], [1, 2, 3, 4, 7]]))[:, -1]
    torch.testing.assert_close(logits, expected.detach(), rtol=0, atol=1e-12)


def test_an_ended_start_stays_as_it_is():
    ended = act(start(), "edit fix_boundary", "submit")
    [(twin, other)] = continue_episodes(MODEL, [ended], 2, seeded())
    assert all_of(twin) == all_of(other) == all_of(ended) and twin is not ended
    assert continuation_returns([ended], [[twin, other]]).tolist() == [[0.0, 0.0]]


def test_returns_are_what_came_after_the_start():
    begin = act(start(step_penalty=0.05), "read", "edit fix_boundary")
    ends = [act(copy_episode(begin), *calls) for calls in (["submit"], ["test", "submit"], ["edit", "test"])]
    returns = continuation_returns([begin], [ends])
    assert returns.dtype == torch.float64
    assert returns.tolist() == [pytest.approx([0.95, 0.9, -0.1])]


def test_the_mean_over_continuations_is_the_value():
    policy = make_rl_base(TOK)
    for before in (["edit fix_boundary"], ["read", "edit fix_boundary"], ["read", "edit fix_boundary", "test"]):
        begin = act(start(max_turns=len(before) + 1), *before)
        submit = TOK.encode("<call> submit </call>")
        row = torch.tensor([begin.ids + submit])
        exact = sequence_log_probs(policy, row)[0, -len(submit) :].sum().exp().item()  # one call is left
        mean, error = mean_and_error(continuation_returns([begin], continue_episodes(policy, [begin], 1000, seeded())))
        assert abs(mean.item() - exact) < 4 * (exact * (1 - exact) / 1000) ** 0.5
        assert error.item() == pytest.approx((mean.item() * (1 - mean.item()) / 999) ** 0.5)


def test_mean_and_error_by_hand():
    mean, error = mean_and_error(torch.tensor([[0.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64))
    assert mean.tolist() == [0.5, 2.0] and error.tolist() == pytest.approx([(1 / 3) ** 0.5 / 2, 0.0])
    with pytest.raises(ValueError, match="2 or more"):
        mean_and_error(torch.zeros(3, 1))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=6))
def test_advantages_of_an_episode_add_up(calls):
    rewards, values = torch.tensor(calls, dtype=torch.float64).T
    advantages = call_advantages(rewards, torch.cat([values, torch.zeros(1, dtype=torch.float64)]))
    assert advantages.sum().item() == pytest.approx(rewards.sum().item() - values[0].item(), abs=1e-9)
    assert advantages[-1].item() == pytest.approx(rewards[-1].item() - values[-1].item(), abs=1e-9)


def test_one_value_is_not_stretched_over_the_calls():
    with pytest.raises(ValueError, match=r"rewards have shape \[1\], values \[4\]"):
        call_advantages(torch.zeros(1), torch.zeros(4))


def test_no_continuation_is_refused():
    with pytest.raises(ValueError, match="n=0 must be"):
        continue_episodes(None, [], 0, None)
