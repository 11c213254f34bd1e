import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.environment import EditBudgetEnv
from agentrl.episodes import OWNER, Episode, collate, length_buckets, make_trajectory, pad_rows, take_rows
from agentrl.rewards import make_reward
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

TASK = make_tasks("all")[1]
TOK = build_tokenizer(make_tasks("all"))


def played(*calls, max_turns=6, max_len=256):
    episode = Episode(EditBudgetEnv(), TASK, TOK, max_turns, max_len)
    for call in calls:
        ids = TOK.encode(f"<call> {call} </call>")
        episode.act(ids, [-0.5 - n for n in range(len(ids))])
    return episode


def test_owners_turns_and_mask_of_a_short_episode():
    traj = make_trajectory(played("test", "submit"))
    words = TOK.decode([traj.ids[0].item(), *traj.ids[7:].tolist()])
    assert words == "<bos> <call> test </call> <obs> visible tests fail </obs> <call> submit </call>"
    expected = [0] + [1] * 6 + [2] * 3 + [0] + [3] * 3 + [0] + [2] * 3
    assert traj.owner.tolist() == expected
    assert traj.turn.tolist() == [-1] * 7 + [0] * 8 + [1] * 3
    assert traj.action_mask.tolist() == [code == OWNER["policy"] for code in expected[1:]]
    assert traj.logp[traj.action_mask].tolist() == [-0.5, -1.5, -2.5] * 2
    assert traj.logp[~traj.action_mask].abs().sum() == 0


def test_rewards_add_up_and_numbers_are_of_double_precision():
    env = EditBudgetEnv(reward=make_reward(step_penalty=0.25))
    episode = Episode(env, TASK, TOK, 6, 256)
    assert episode.reward == 0
    for call in ("read", "edit fix_boundary", "submit"):
        ids = TOK.encode(f"<call> {call} </call>")
        episode.act(ids, [-0.1] * len(ids))
    traj = make_trajectory(episode)
    assert traj.reward == 0.25 and traj.info["hidden_pass"] and traj.tok is TOK
    assert episode.actions == ["<call> read </call>", "<call> edit fix_boundary </call>", "<call> submit </call>"]
    batch = collate([traj], TOK.pad_id)
    assert traj.logp.dtype == batch["logp"].dtype == batch["reward"].dtype == torch.float64
    assert traj.logp[traj.action_mask].unique().tolist() == [-0.1]


def test_all_rows_of_a_record_are_of_one_length_and_only_calls_have_log_probabilities():
    episode = played("read", "test")
    assert len(episode.ids) == len(episode.owner) == len(episode.turn) == len(episode.logp)
    assert all(logp == 0 or who == OWNER["policy"] for logp, who in zip(episode.logp, episode.owner, strict=True))
    assert not episode.done


def test_the_shortest_context_holds_the_prompt_and_one_call():
    assert not played(max_len=13).done


def test_the_token_that_ends_a_call_is_an_action():
    traj = make_trajectory(played("read", "submit"))
    ends = traj.ids[1:] == TOK.call_end_id
    assert ends.sum() == 2 and traj.action_mask[ends].all()


def test_sampled_ids_are_kept_as_they_are():
    episode = Episode(EditBudgetEnv(), TASK, TOK, 6, 256)
    rubbish = TOK.encode("read <obs> <pad> edit </call>")
    episode.act(rubbish, [0.0] * 5)
    assert episode.ids[7:12] == rubbish and episode.info["n_invalid"] == 1


@pytest.mark.parametrize("slack, kept, done", [(-1, False, True), (0, True, True), (5, True, True), (6, True, False)])
def test_edge_of_the_context(slack, kept, done):
    full = len(played("read").ids)
    episode = played("read", max_len=full + slack)
    assert (len(episode.ids) == full) is kept and episode.done is done
    assert episode.info["stop"] == ("context" if done else None) and not episode.info["submitted"]
    assert len(episode.ids) <= full + slack


def test_too_short_a_context_and_acting_after_the_end():
    with pytest.raises(ValueError, match="max_len=12.*at least 13"):
        played(max_len=12)
    with pytest.raises(RuntimeError, match="submit"):
        played("submit", "read")


def test_nothing_is_appended_after_the_last_call():
    assert played("read", max_turns=1).ids[-1] == TOK.call_end_id


CALLS = (["submit"], ["read", "submit"], ["test", "test", "submit"], ["read"])
TRAJS = [make_trajectory(played(*calls)) for calls in CALLS]


@given(st.permutations(range(4)), st.integers(1, 4))
def test_batches_hold_what_their_rows_hold(order, size):
    batch = collate([TRAJS[n] for n in order], TOK.pad_id)
    seen = []
    for rows in length_buckets(batch["length"], size):
        piece = take_rows(batch, rows)
        assert piece["ids"].shape[1] == piece["length"].max()
        for b, row in enumerate(rows.tolist()):
            traj, n = TRAJS[order[row]], int(piece["length"][b])
            seen.append(order[row])
            assert torch.equal(piece["ids"][b, :n], traj.ids) and (piece["ids"][b, n:] == TOK.pad_id).all()
            assert torch.equal(piece["action_mask"][b, : n - 1], traj.action_mask)
            assert not piece["action_mask"][b, n - 1 :].any()
            assert (piece["owner"][b, n:] == -1).all() and piece["reward"][b] == traj.reward
            assert torch.equal(piece["owner"][b, :n], traj.owner) and torch.equal(piece["turn"][b, :n], traj.turn)
            assert (piece["turn"][b, n:] == -1).all() and (piece["logp"][b, n - 1 :] == 0).all()
            assert torch.equal(piece["logp"][b, : n - 1], traj.logp)
            assert piece["logp"].shape == piece["action_mask"].shape == (len(rows), piece["ids"].shape[1] - 1)
    assert sorted(seen) == [0, 1, 2, 3]


def test_pad_rows_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="row of 3.*width=2"):
        pad_rows([torch.zeros(3)], 2, 0)


def test_buckets_hold_32_rows_and_keep_the_order_of_equal_lengths():
    buckets = length_buckets(torch.tensor([7] * 70))
    assert [bucket.tolist() for bucket in buckets] == [list(range(32)), list(range(32, 64)), list(range(64, 70))]


def test_a_trajectory_shows_itself():
    html, text = TRAJS[1]._repr_html_(), repr(TRAJS[1])
    assert "submit" in html and "submit" in text and "0x" not in html + text


def start():
    return Episode(EditBudgetEnv(), make_tasks("train")[0], TOK, 6, 256)


@pytest.mark.parametrize(
    ("ids", "logps", "message"),
    [
        (3, [0.0, 0.0], "3 ids, call_logp 2"),
        (2, [0.0] * 3, "2 ids, call_logp 3"),
        (0, [], "0 ids"),
        (2, [0.0, math.nan], "NaN"),
    ],
)
def test_a_call_of_another_length_than_its_log_probabilities_is_refused_and_leaves_no_trace(ids, logps, message):
    episode = start()
    before = (list(episode.ids), list(episode.logp), list(episode.actions), dict(episode.info))
    with pytest.raises(ValueError, match=message):
        episode.act(TOK.encode("<call> read </call>")[:ids], logps)
    with pytest.raises(ValueError, match=r"ids \[-1\]"):
        episode.act([-1], [0.0])
    assert before == (episode.ids, episode.logp, episode.actions, episode.info)


def test_an_empty_batch_is_refused():
    batch = collate([make_trajectory(start())], TOK.pad_id)
    for wrong, name in (
        (lambda: collate([], 0), "trajs"),
        (lambda: pad_rows([], 3, 0), "rows"),
        (lambda: take_rows(batch, []), "rows"),
    ):
        with pytest.raises(ValueError, match=f"{name} is empty"):
            wrong()
    with pytest.raises(ValueError, match="size=0"):
        length_buckets(batch["length"], 0)
