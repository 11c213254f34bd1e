import pandas as pd
import pytest
import torch

from agentrl.arms import GRPO, SEEDS, read_runs
from agentrl.base import make_rl_base
from agentrl.context import CONTEXTS
from agentrl.context_study import CONTEXT, CONTEXT_ARMS, cross_evaluate, train_context
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate

COUNTS = ["episodes", "passes", "submits", "calls"]


def stored(study, table, arm):
    frame = read_runs(study, table)
    return frame[(frame["arm"] == arm) & (frame["base"] == 0)]


def test_arms_name_contexts_and_have_versions_of_their_own():
    assert {settings["context"] for settings in CONTEXT_ARMS.values() if settings} <= set(CONTEXTS)
    versions = [CONTEXT.version(arm) for arm in CONTEXT_ARMS]
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize("arm", CONTEXT_ARMS)
def test_each_run_is_evaluated_under_every_context(arm):
    rows = stored(CONTEXT, "heldout", arm)
    assert set(rows["seed"]) >= set(SEEDS)
    pairs = {(seed, name) for seed in rows["seed"] for name in CONTEXTS}
    assert pairs == set(zip(rows["seed"], rows["evaluated"])) and len(pairs) == len(rows)
    assert (rows["episodes"] == 160).all()


@pytest.mark.parametrize("arm", CONTEXT_ARMS)
def test_stored_rows_add_up(arm):
    rows = stored(CONTEXT, "heldout", arm)
    assert (rows["passes"] <= rows["submits"]).all() and (rows["submits"] <= rows["episodes"]).all()
    assert (rows["calls"] <= 6 * rows["episodes"]).all()
    assert (rows["pass_rate"] * rows["episodes"] - rows["passes"]).abs().max() < 1e-9
    assert (rows["tokens_new"] <= rows["tokens_read"]).all()
    history = stored(CONTEXT, "history", arm)
    assert set(zip(history["seed"], history["step"])) == {(seed, step) for seed in rows["seed"] for step in range(40)}


def test_the_full_arm_is_the_default_run():
    ours = stored(CONTEXT, "heldout", "full").query("evaluated == 'full'")
    default = stored(GRPO, "heldout", "default")
    shared = [column for column in default if column not in ("arm", "version")]
    pd.testing.assert_frame_equal(
        ours[shared].reset_index(drop=True), default[shared].reset_index(drop=True), check_exact=True
    )
    assert (ours["tokens_new"] < ours["tokens_read"]).all()


def test_cut_into_calls_the_first_step_samples_what_the_default_samples():
    ours, default = stored(CONTEXT, "history", "full, by calls"), stored(GRPO, "history", "default")
    first = [frame.query("step == 0").sort_values("seed")[COUNTS].values.tolist() for frame in (ours, default)]
    assert first[0] == first[1]


def test_a_stored_run_is_what_the_code_gives():
    again = pd.DataFrame(train_context("keep 1", seed=0, steps=2)["history"])
    rows = stored(CONTEXT, "history", "keep 1").query("seed == 0 and step < 2")
    assert again[COUNTS].values.tolist() == rows[COUNTS].values.tolist()


def test_cross_evaluation_asks_every_context_with_the_same_luck(monkeypatch):
    monkeypatch.setattr("agentrl.context_study.EVALUATION", {"seed": 7, "samples": 1})
    tok = build_tokenizer(make_tasks("all"))
    rows = cross_evaluate(make_rl_base(tok))
    assert [row["evaluated"] for row in rows] == list(CONTEXTS)
    default = evaluate(make_rl_base(tok), make_tasks("heldout"), tok, 1, torch.Generator().manual_seed(7), RLConfig())
    assert rows[0].items() >= default.items()
