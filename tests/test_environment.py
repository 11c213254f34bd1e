import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.environment import (
    BugFixEnv,
    EditBudgetEnv,
    LoggedEnv,
    check_count,
    log_by_step,
    make_env,
    parse_call,
    random_task,
)
from agentrl.rewards import make_reward
from agentrl.tasks import EDIT_OPS, apply_op, compact_source, make_tasks, randomize_names
from agentrl.tokenizer import CALL, CALL_END, build_tokenizer
from agentrl.training import RLConfig

TASK = make_tasks("all")[1]  # needs fix_boundary
TOK = build_tokenizer(make_tasks("all"))
NOTHING = dict.fromkeys(("n_turns", "n_invalid", "n_reads", "n_tests", "n_edits"), 0)


def play(env, *calls):
    """Make calls; returns rewards and the last step's (observation, terminated, truncated, info)."""
    env.reset(options={"task": TASK})
    steps = [env.step(f"{CALL} {call} {CALL_END}") for call in calls]
    return [step[1] for step in steps], steps[-1][:1] + steps[-1][2:]


def test_gymnasium_accepts_it():
    for env in (BugFixEnv(), EditBudgetEnv(max_turns=3), LoggedEnv(EditBudgetEnv(), [])):
        assert isinstance(env, gym.Env)
        check_env(env.unwrapped, skip_render_check=True)


def test_what_each_tool_answers_and_counts():
    env = BugFixEnv()
    issue, before = env.reset(options={"task": TASK})
    assert issue == TASK.issue and before == {"submitted": False, "hidden_pass": False, "stop": None, **NOTHING}
    answers = []
    for call in ("read", "test", "edit fix_boundary", "read", "test", "raed", "edit", "edit fix_init"):
        observation, _, _, _, info = env.step(f"{CALL} {call} {CALL_END}")
        answers.append(observation)
        env.budget += 1
    repaired = apply_op(TASK.source, "fix_boundary")
    source, fixed = compact_source(TASK.source), compact_source(repaired)
    assert answers[:4] == [source, "visible tests fail", "applied", fixed]
    assert answers[4:] == ["visible tests pass", "error malformed call", "error malformed call", "applied"]
    assert env.source == apply_op(repaired, "fix_init")
    assert {name: info[name] for name in NOTHING} == {
        "n_turns": 8, "n_invalid": 2, "n_reads": 2, "n_tests": 2, "n_edits": 2
    }  # fmt: skip
    assert env.step(f"{CALL} submit {CALL_END}")[0] == ""


def test_the_right_repair_is_paid_once():
    rewards, (_, terminated, truncated, info) = play(EditBudgetEnv(), "read", "edit fix_boundary", "test", "submit")
    assert rewards == [0, 0, 0, 1] and terminated and not truncated
    assert info == {
        "submitted": True,
        "hidden_pass": True,
        "stop": "submit",
        "n_turns": 4,
        "n_invalid": 0,
        "n_reads": 1,
        "n_tests": 1,
        "n_edits": 1,
    }


def test_a_repair_that_is_not_submitted_earns_nothing():
    rewards, (_, terminated, truncated, info) = play(EditBudgetEnv(max_turns=2), "edit fix_boundary", "test")
    assert rewards == [0, 0] and truncated and not terminated
    assert info["stop"] == "turn_budget" and not info["submitted"] and not info["hidden_pass"]


def test_submitting_on_the_last_turn_terminates():
    _, (_, terminated, truncated, _) = play(EditBudgetEnv(max_turns=1), "submit")
    assert terminated and not truncated


def test_edit_budget():
    env = EditBudgetEnv(max_edits=1)
    _, (observation, _, _, info) = play(env, "edit fix_init", "edit fix_init")
    assert observation == "error no edits left" and info["n_edits"] == 1 and info["n_invalid"] == 0
    rewards, _ = play(BugFixEnv(), "edit fix_init", "edit fix_init", "edit fix_boundary", "submit")
    assert rewards[-1] == 1
    rewards, _ = play(EditBudgetEnv(max_edits=0), "edit fix_boundary", "submit")
    assert rewards[-1] == 0


def test_step_penalty_and_visible_reward():
    rewards, _ = play(EditBudgetEnv(reward=make_reward(step_penalty=0.25, invalid_penalty=0.5)), "raed", "submit")
    assert rewards == [-0.75, -0.25]
    assert play(EditBudgetEnv(reward="visible"), "submit")[0] == [0.0]


WORDS = st.lists(st.sampled_from(TOK.itos), max_size=8).map(" ".join)


@settings(max_examples=300)
@given(st.lists(st.one_of(st.text(), WORDS), min_size=1, max_size=12))
def test_any_string_costs_one_turn_and_never_raises(actions):
    env = EditBudgetEnv(max_turns=len(actions))
    env.reset(options={"task": TASK})
    for n, action in enumerate(actions, 1):
        observation, reward, terminated, truncated, info = env.step(action)
        TOK.encode(observation)
        assert env.observation_space.contains(observation) and info["n_turns"] == n
        assert info["n_invalid"] + info["n_reads"] + info["n_tests"] + info["n_edits"] + info["submitted"] <= n
        if parse_call(action)[0] == "invalid":
            assert observation == "error malformed call" and reward == 0
        assert (terminated, truncated) == (info["submitted"], not info["submitted"] and n == len(actions))
        if terminated:
            break


@given(st.sampled_from(["read", "test", "submit", *(f"edit {op}" for op in EDIT_OPS)]), st.data())
def test_one_word_more_or_less_is_malformed(call, data):
    words = [CALL, *call.split(), CALL_END]
    place = data.draw(st.integers(0, len(words) - 1))
    assert parse_call(" ".join(words))[0] == call.split()[0]
    assert parse_call(" ".join(words[:place] + words[place + 1 :]))[0] == "invalid"
    assert parse_call(" ".join(words[:place] + ["end"] + words[place:]))[0] == "invalid"


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL} edit nonsense {CALL_END}",
        f"<obs> edit fix_init {CALL_END}",
        f"{CALL} edit fix_init <obs>",
        f"{CALL} read <obs>",
        f"<obs> read {CALL_END}",
        f"{CALL} edit {CALL_END}",
        f"{CALL} fix_init {CALL_END}",
    ],
)
def test_markers_tool_and_operation_must_all_be_right(text):
    assert parse_call(text) == ("invalid", None)


def test_after_the_end():
    env = EditBudgetEnv()
    play(env, "submit")
    with pytest.raises(RuntimeError, match="submit.*reset"):
        env.step(f"{CALL} read {CALL_END}")
    with pytest.raises(RuntimeError, match=r"\(never reset\)"):
        EditBudgetEnv().step(f"{CALL} read {CALL_END}")


def test_seeded_reset_draws_the_same_task():
    first, second = BugFixEnv(), BugFixEnv()
    assert first.reset(seed=5) == second.reset(seed=5) and first.source == second.source
    assert {first.reset(seed=seed)[0] for seed in range(20)} != {first.reset(seed=5)[0]}


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"max_turns": 0}, "max_turns=0"),
        ({"max_turns": 2.5}, "max_turns=2.5"),
        ({"max_edits": -1}, "max_edits=-1"),
        ({"reward": "hiden"}, "'hiden'.*hidden, visible"),
    ],
)
def test_wrong_parameters(wrong, message):
    with pytest.raises(ValueError, match=message):
        EditBudgetEnv(**wrong)


def test_cut_is_a_truncation_with_a_known_reason():
    env = EditBudgetEnv()
    env.reset(options={"task": TASK})
    assert env.cut("context")["stop"] == "context" and not env.info["submitted"]
    with pytest.raises(ValueError, match="turn_budget"):
        env.cut("bored")


def test_a_cut_is_for_the_context_unless_said_otherwise():
    log = []
    env = LoggedEnv(EditBudgetEnv(), log)
    for stop, cut in (("context", env.cut), ("context", env.unwrapped.cut), ("length", lambda: env.cut("length"))):
        env.reset(options={"task": TASK})
        assert cut()["stop"] == env.unwrapped.info["stop"] == stop
    assert [info["stop"] for info in log] == ["context", "length"]


def test_defaults_are_six_turns_the_hidden_tests_and_one_edit_where_edits_are_limited():
    assert (BugFixEnv().max_turns, BugFixEnv().max_edits) == (6, math.inf)
    assert (EditBudgetEnv().max_turns, EditBudgetEnv().max_edits) == (6, 1)
    for env in (BugFixEnv(), EditBudgetEnv()):
        assert play(env, "submit")[0] == [0] and play(env, "edit fix_boundary", "submit")[0] == [0, 1]


def test_reset_takes_the_turns_of_its_options_and_else_those_of_the_environment():
    env = BugFixEnv(max_turns=3)
    for options, turns in (({"max_turns": 2}, 2), ({}, 3), (None, 3)):
        env.reset(seed=0, options=options)
        assert env.budget == turns
    with pytest.raises(ValueError, match="^max_turns=0 must"):
        env.reset(options={"task": TASK, "max_turns": 0})


def test_a_random_task_is_any_train_task_under_names_of_the_same_generator():
    tasks = make_tasks("train")
    for seed in range(30):
        drawn, again = random_task(np.random.default_rng(seed)), np.random.default_rng(seed)
        names = torch.Generator().manual_seed(int(again.integers(2**31)))
        assert drawn == randomize_names(tasks[int(again.integers(len(tasks)))], names)


def test_an_environment_has_all_six_numbers_of_its_configuration():
    cfg = RLConfig(max_turns=3, max_edits=0, step_penalty=0.25, wrong_submit=-2.0, invalid_penalty=0.5)
    rewards, (observation, *_) = play(make_env(cfg), "raed", "edit fix_boundary")
    assert rewards == [-0.75, -0.25] and observation == "error no edits left"
    rewards, (_, terminated, _, _) = play(make_env(cfg), "read", "read", "submit")
    assert rewards == [-0.25, -0.25, -2.25] and terminated
    assert play(make_env(cfg), "read", "read", "read")[1][2]  # truncated
    asked = []
    reward = make_env(RLConfig(reward="visible")).reward
    assert reward("submit", lambda kind: asked.append(kind) or True) == 1.0 and asked == ["visible"]


def test_a_count_is_a_whole_number_and_at_least_one_unless_said_otherwise():
    assert check_count("n", 1) == 1 and check_count("n", 0, least=0) == 0
    for value, least in ((0, 1), (-1, 0), (1.0, 1), (True, 1), ("1", 1), (None, 1)):
        with pytest.raises(ValueError, match=f"^n={value!r} must be a whole number >= {least}"):
            check_count("n", value, least)


def test_log_by_step():
    log = []
    env = LoggedEnv(make_env(RLConfig(max_turns=2)), log)
    play(env, "submit")
    play(env, "read", "read")
    env.reset(options={"task": TASK})
    env.cut("context")
    steps = log_by_step([{"episodes": 2}, {"episodes": 1}], log)
    assert [[info["stop"] for info in infos] for infos in steps] == [["submit", "turn_budget"], ["context"]]
    with pytest.raises(ValueError, match="counts 2 episodes but the log holds 3"):
        log_by_step([{"episodes": 2}], log)
