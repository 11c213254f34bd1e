import pandas as pd
import pytest
import torch

from agentrl import arms
from agentrl.arms import ARMS, arm_config, arm_results, read_runs, run_version, store_run
from agentrl.base import make_rl_base
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl

RUN = {"heldout": {"pass_rate": 0.1}, "history": [{"step": 0, "pass_rate": 1 / 3}, {"step": 1, "pass_rate": 0.2}]}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "runs_path", lambda name: tmp_path / "data" / f"{name}.csv")
    return tmp_path / "data"


def test_every_arm_is_a_valid_configuration():
    assert arm_config("default") == RLConfig()
    for arm in ARMS:
        assert arm_config(arm, seed=3).seed == 3
    with pytest.raises(ValueError, match="penalty 0.05"):
        arm_config("penalty 0.5")


def test_versions_tell_arms_and_bases_apart():
    versions = [run_version(arm) for arm in ARMS]
    assert len(set(versions)) == len(versions) and run_version("default") == run_version("default")


def test_rows_are_replaced_not_doubled_and_floats_survive(store):
    for seed in (1, 0, 1):
        store_run("default", seed, RUN)
    heldout, history = read_runs("heldout"), read_runs("history")
    assert list(heldout["seed"]) == [0, 1] and len(history) == 4
    assert history["pass_rate"][0] == 1 / 3
    assert sorted(path.suffix for path in store.iterdir() if path.suffix != ".lock") == [".csv", ".csv"]


def test_a_run_interrupted_between_the_tables_does_not_count_as_stored(store, monkeypatch):
    replaced, replace = [], arms.os.replace

    def killed(source, target):
        if replaced:
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(arms.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store_run("default", 0, RUN)
    monkeypatch.setattr(arms.os, "replace", replace)
    monkeypatch.setattr(arms, "train_and_label", lambda arm, seed: (arm, seed, RUN))
    heldout, history = arm_results(["default"], seeds=(0,), jobs=1)
    assert len(heldout) == 1 and len(history) == 2


def test_only_what_is_missing_or_old_is_trained(store, monkeypatch):
    trained = []

    def fake(arm, seed):
        trained.append((arm, seed))
        return arm, seed, RUN

    monkeypatch.setattr(arms, "train_and_label", fake)
    store_run("default", 0, RUN)
    heldout, history = arm_results(["default", "penalty 0.3"], seeds=(0, 1), jobs=1)
    assert sorted(trained) == [("default", 1), ("penalty 0.3", 0), ("penalty 0.3", 1)]
    assert len(heldout) == 4 and len(history) == 8
    trained.clear()
    monkeypatch.setattr(arms, "run_version", lambda arm: "another code")
    arm_results(["default"], seeds=(0,), jobs=1)
    assert trained == [("default", 0)]


def test_stored_runs_are_of_this_code():
    """If this fails, the code behind the stored runs has changed: `make figures` trains them again."""
    heldout, history = read_runs("heldout"), read_runs("history")
    for table in (heldout, history):
        stale = {
            (arm, seed)
            for arm, seed, version in zip(table["arm"], table["seed"], table["version"], strict=True)
            if version != run_version(arm)
        }
        assert not stale
    assert {(arm, seed) for arm in ARMS for seed in (0, 1, 2)} <= set(zip(heldout["arm"], heldout["seed"], strict=True))
    assert (history.groupby(["arm", "seed"]).size() == arms.STEPS).all()


@pytest.mark.parametrize("arm", ["penalty 0.05", "max_turns 3"])
def test_a_stored_run_is_what_the_code_gives(arm):
    """Two steps of training, trained again, equal to the stored ones in every digit (rounding-free columns)."""
    tok = build_tokenizer(make_tasks("all"))
    again = pd.DataFrame(train_rl(make_rl_base(tok), make_tasks("train"), tok, arm_config(arm, seed=1), steps=2))
    history = read_runs("history")
    stored = history[(history["arm"] == arm) & (history["seed"] == 1) & (history["step"] < 2)].reset_index(drop=True)
    exact = [c for c in again if c not in ("grad_norm", "clip_fraction")]
    pd.testing.assert_frame_equal(again[exact], stored[exact], check_exact=True)
    assert torch.allclose(torch.tensor(again["grad_norm"]), torch.tensor(stored["grad_norm"]), atol=1e-6)
