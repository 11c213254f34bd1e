"""Episodes that end at a malformed call: any string, who ended it and why, and counts that add up."""

import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.base import make_rl_base
from agentrl.environment import EditBudgetEnv, LoggedEnv, make_env, parse_call
from agentrl.rewards import make_reward
from agentrl.sampling import sample_groups
from agentrl.tasks import EDIT_OPS, make_tasks
from agentrl.tokenizer import CALL, CALL_END, build_tokenizer
from agentrl.tool_errors import EarlyStopEnv, error_stats, make_early_stop_env, refused_calls, stop_counts
from agentrl.training import RLConfig

TASK = make_tasks("all")[1]  # needs fix_boundary
TOK = build_tokenizer(make_tasks("all"))
GOOD = ["read", "test", "submit", *(f"edit {op}" for op in EDIT_OPS)]
CALLS = st.sampled_from([f"{CALL} {call} {CALL_END}" for call in GOOD])
WORDS = st.lists(st.sampled_from(TOK.itos), max_size=8).map(" ".join)
ACTIONS = st.lists(st.one_of(st.text(), WORDS, CALLS), min_size=1, max_size=10)


def play(env, *calls):
    """Make calls; returns the last step's (observation, reward, terminated, truncated, info)."""
    env.reset(options={"task": TASK})
    return [env.step(f"{CALL} {call} {CALL_END}") for call in calls][-1]


def test_gymnasium_accepts_it():
    for env in (EarlyStopEnv(EditBudgetEnv()), EarlyStopEnv(EditBudgetEnv(max_turns=3), max_invalid=3)):
        with pytest.warns(UserWarning, match="different from the unwrapped"):  # a wrapper: its only remark
            check_env(env, skip_render_check=True)


@settings(max_examples=300)
@given(ACTIONS, st.integers(1, 4), st.integers(1, 8))
def test_any_string_ends_at_the_last_allowed_bad_call_and_never_raises(actions, max_invalid, max_turns):
    """Brute force: walk through the strings and predict when and why the episode ends."""
    env = EarlyStopEnv(EditBudgetEnv(max_turns), max_invalid)
    env.reset(options={"task": TASK})
    bad = 0
    for n, action in enumerate(actions, 1):
        observation, _, terminated, truncated, info = env.step(action)
        bad += parse_call(action)[0] == "invalid"
        submitted = parse_call(action)[0] == "submit"
        expected = "invalid" if bad == max_invalid else "submit" if submitted else None
        expected = expected or ("turn_budget" if n == max_turns else None)
        assert info["stop"] == expected and info["n_invalid"] == bad and info["n_turns"] == n
        assert terminated == (expected in ("invalid", "submit")) and truncated == (expected == "turn_budget")
        assert info["submitted"] == submitted and env.observation_space.contains(observation)
        if expected:
            with pytest.raises(RuntimeError, match=expected):
                env.step(action)
            break


def test_a_bad_call_on_the_last_turn_is_the_agents_own_end():
    *_, terminated, truncated, info = play(EarlyStopEnv(EditBudgetEnv(max_turns=2)), "read", "raed")
    assert (terminated, truncated, info["stop"]) == (True, False, "invalid")
    *_, terminated, truncated, info = play(EarlyStopEnv(EditBudgetEnv(max_turns=2), 2), "read", "raed")
    assert (terminated, truncated, info["stop"]) == (False, True, "turn_budget")


def test_a_refused_edit_is_no_bad_call():
    *_, info = play(EarlyStopEnv(EditBudgetEnv()), "edit fix_init", "edit fix_init", "edit fix_init", "read")
    assert info["stop"] is None and refused_calls(info) == 2
    *_, info = play(EditBudgetEnv(), "raed", "read", "test", "edit fix_init", "submit")
    assert refused_calls(info) == 0


def test_the_bad_call_pays_its_price_and_nothing_follows():
    env = EarlyStopEnv(EditBudgetEnv(reward=make_reward(step_penalty=0.25, invalid_penalty=0.5)))
    _, reward, *_, info = play(env, "edit fix_boundary", "sbumit")
    assert reward == -0.75 and not info["submitted"] and not info["hidden_pass"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_wrong_limits(wrong):
    with pytest.raises(ValueError, match="max_invalid"):
        EarlyStopEnv(EditBudgetEnv(), wrong)


def test_a_log_around_it_counts_each_episode_once():
    log = []
    env = LoggedEnv(EarlyStopEnv(EditBudgetEnv(max_turns=2)), log)
    for calls in (["raed"], ["read", "raed"], ["read", "read"], ["submit"]):
        play(env, *calls)
    assert [info["stop"] for info in log] == ["invalid", "invalid", "turn_budget", "submit"]


@pytest.fixture(scope="module")
def pair():
    """Episodes of the base on common uniforms, with the rule and without."""
    policy, cfg = make_rl_base(TOK), RLConfig(group_size=2)
    return [
        sample_groups(policy, make_tasks("train"), TOK, cfg, torch.Generator().manual_seed(3), factory)
        for factory in (make_env, make_early_stop_env)
    ]


def test_common_uniforms_differ_from_the_first_bad_call_on(pair):
    for free, stopped in zip(*pair, strict=True):
        n = len(stopped.ids)
        assert torch.equal(free.ids[:n], stopped.ids)
        assert torch.allclose(free.logp[: n - 1], stopped.logp, rtol=0, atol=1e-12)
        assert (free.info["n_invalid"] > 0) == (stopped.info["stop"] == "invalid") == (stopped.info["n_invalid"] == 1)
        assert free.info["n_invalid"] or len(free.ids) == n
    assert any(traj.info["n_invalid"] for traj in pair[0])


def test_error_stats_and_stops_add_up(pair):
    free, stopped = map(error_stats, pair)
    assert free["wrong"] == stopped["wrong"] == stop_counts(pair[1])["invalid"] > 0
    assert stopped["their_pass"] == 0 and stop_counts(pair[0])["invalid"] == 0
    lost = free["overall_pass"] - stopped["overall_pass"]
    assert lost == pytest.approx(free["episodes_with_error"] * free["their_pass"])
    assert stopped["policy_tokens_per_episode"] < free["policy_tokens_per_episode"]
    for trajs in pair:
        assert sum(stop_counts(trajs).values()) == len(trajs) == error_stats(trajs)["episodes"]


def test_stop_counts_refuses_what_has_not_ended(pair):
    running = [traj for traj in pair[0][:2]]
    running[0] = type("Running", (), {"info": {"stop": None}})()
    with pytest.raises(ValueError, match="stop=None.*turn_budget"):
        stop_counts(running)


def test_no_error_has_no_pass_rate():
    good = type("Good", (), {"info": {"n_invalid": 0, "hidden_pass": True}, "action_mask": torch.ones(3)})()
    stats = error_stats([good])
    assert stats["their_pass"] != stats["their_pass"] and stats["overall_pass"] == 1
