import torch

from agentrl.player import (
    CONTEXTS,
    call_rows,
    contexts_html,
    explore_episode,
    explore_tokens,
    lucky_group,
    player_html,
    players,
    said,
    tokens_so_far,
    turn_credit,
    values_of,
)


def test_two_players_meet_the_same_names_with_the_same_luck():
    base, trained = lucky_group("RL base", 0), lucky_group("default", 0)
    for one, other in zip(base, trained, strict=True):
        prompt = (one.owner == 1) & (one.turn == -1)
        assert one.ids[prompt].tolist() == other.ids[(other.owner == 1) & (other.turn == -1)].tolist()
    assert len({tuple(traj.ids[traj.turn == -1].tolist()) for traj in base}) > 1
    assert sum(traj.reward for traj in trained) > sum(traj.reward for traj in base)


def test_the_last_call_is_credited_with_the_verdict_minus_its_value():
    for name in ("RL base", "turn GAE"):
        player, traj = players()[name], lucky_group(name, 0)[2]
        last = traj.info["hidden_pass"] - player.cost - values_of(traj, player.critic)[-1][0]
        assert torch.isclose(turn_credit(traj, player)[-1], last)
        assert len(turn_credit(traj, player)) == traj.info["n_turns"]


def test_a_ratio_in_the_record_is_one_only_if_nothing_was_left_out():
    for context, same in (("full", True), ("keep 1", False)):
        group = lucky_group("RL base", 0, context)
        rows = call_rows("RL base", "RL base", group[5], group, 3)
        assert (abs(rows["ratio: in the record"] - 1) < 1e-9).all() == same
        assert (abs(rows["ratio: RL base"] - 1) < 1e-9).all()  # in the context that the call saw


def test_the_group_advantage_compares_with_the_same_group():
    group = lucky_group("RL base", 0)
    found = [call_rows("RL base", "default", traj, group, 0)["A, group"][0] for traj in group]
    assert abs(sum(found)) < 1e-9 and max(found) > 0
    assert {traj.reward for traj, a in zip(group, found, strict=True) if a > 0} == {1.0}


def test_moving_the_call_the_context_or_the_player_changes_the_page():
    explorer, seen = explore_episode(), []
    for name, value in (("call", 2), ("context", "keep 1"), ("right", "turn GAE"), ("episode", 6), ("task", 7)):
        seen.append(explorer.picture.value)
        explorer.controls[name].value = value
    assert len({*seen, explorer.picture.value}) == 6
    assert explorer.picture.value == player_html("RL base", "turn GAE", 7, "keep 1", 6, 2)
    explorer.controls["call"].value = 5  # an episode that has ended shows its last call
    assert "(the last one)" in explorer.picture.value


def test_a_call_is_shown_behind_each_context():
    page = contexts_html("RL base", 0, 5, 3)
    assert all(f"<b>{name}</b>" in page for name in CONTEXTS)
    assert page.count("trained on</span>") == 1  # one legend


def test_tokens_appear_one_by_one_and_the_end_is_told():
    traj = lucky_group("default", 0)[0]
    assert f"1 of {len(traj.ids)} tokens; ..." in tokens_so_far(tokens=1)
    assert "the hidden tests pass" in tokens_so_far(tokens=len(traj.ids)) == tokens_so_far(tokens=500)
    explorer = explore_tokens(tokens=3)
    before = explorer.picture.value
    explorer.controls["tokens"].value = 4
    assert before != explorer.picture.value == tokens_so_far(tokens=4)
    assert said(traj, 0) == "read"
