from pathlib import Path

import pandas as pd
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from agentrl import arms
from agentrl.arms import ARMS, GRPO, KEY, Study, arm_config, read_runs, run_study, store_run
from agentrl.base import make_rl_base
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl
from tools.runs import studies

RUN = {"heldout": {"pass_rate": 0.1}, "history": [{"step": 0, "pass_rate": 1 / 3}, {"step": 1, "pass_rate": 0.2}]}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "runs_path", lambda study, table: tmp_path / "data" / f"{table}.csv")
    return tmp_path / "data"


def test_every_arm_is_a_valid_configuration():
    assert arm_config("default") == RLConfig()
    for arm in ARMS:
        assert arm_config(arm, seed=3).seed == 3
    with pytest.raises(ValueError, match="penalty 0.05"):
        arm_config("penalty 0.5")


def test_versions_tell_arms_and_bases_apart():
    versions = [GRPO.version(arm) for arm in ARMS]
    assert len(set(versions)) == len(versions) and GRPO.version("default") == GRPO.version("default")
    with pytest.raises(ValueError, match="'grpo'.*penalty 0.05"):
        GRPO.version("penalty 0.5")


def test_a_version_changes_with_settings_and_code():
    def version(settings, modules=("training", "base")):
        return Study("a study", {"arm": settings}, print, modules).version("arm")

    assert version({"clip": 0.2}) == version({"clip": 0.2}) != version({"clip": 0.3})
    assert version({}) != version({}, ("training",))


def test_rows_are_replaced_not_doubled_and_floats_survive(store):
    for base, seed in ((0, 1), (0, 0), (1, 1), (0, 1)):
        store_run(GRPO, "default", base, seed, RUN)
    heldout, history = read_runs(GRPO, "heldout"), read_runs(GRPO, "history")
    assert heldout[["base", "seed"]].values.tolist() == [[0, 0], [0, 1], [1, 1]] and len(history) == 6
    assert history["pass_rate"][0] == 1 / 3 and list(history["step"]) == [0, 1] * 3
    assert sorted(path.suffix for path in store.iterdir() if path.suffix != ".lock") == [".csv", ".csv"]


def test_a_run_may_be_evaluated_in_several_ways(store):
    rows = [{"evaluated": "full", "pass_rate": 0.5}, {"evaluated": "masked", "pass_rate": 0.25}]
    for _ in range(2):
        store_run(GRPO, "default", 0, 0, RUN | {"heldout": rows})
    assert list(read_runs(GRPO, "heldout")["evaluated"]) == ["full", "masked"]


def test_a_run_interrupted_between_the_tables_does_not_count_as_stored(store, monkeypatch):
    replaced, replace = [], arms.os.replace

    def killed(source, target):
        if replaced:
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(arms.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store_run(GRPO, "default", 0, 0, RUN)
    monkeypatch.setattr(arms.os, "replace", replace)
    monkeypatch.setattr(arms, "train_and_label", lambda train, arm, base, seed: (arm, base, seed, RUN))
    heldout, history = run_study(GRPO, ["default"], seeds=(0,), jobs=1)
    assert len(heldout) == 1 and len(history) == 2


def test_only_what_is_missing_or_old_is_trained(store, monkeypatch):
    trained = []

    def fake(train, *run):
        trained.append(run)
        return *run, RUN

    monkeypatch.setattr(arms, "train_and_label", fake)
    store_run(GRPO, "default", 0, 0, RUN)
    heldout, history = run_study(GRPO, ["default", "penalty 0.3"], seeds=(0, 1), jobs=1)
    assert sorted(trained) == [("default", 0, 1), ("penalty 0.3", 0, 0), ("penalty 0.3", 0, 1)]
    assert len(heldout) == 4 and len(history) == 8
    trained.clear()
    run_study(GRPO, ["default"], seeds=(0,), bases=(0, 1), jobs=1)
    assert trained == [("default", 1, 0)]
    trained.clear()
    monkeypatch.setattr(arms, "code_of", lambda modules: "another code")
    run_study(GRPO, ["default"], seeds=(0,), jobs=1)
    assert trained == [("default", 0, 0)]


def test_an_arm_added_in_the_section_itself_is_trained(tmp_path, monkeypatch):
    """A worker cannot import what stands in a notebook: it has to travel with the task."""
    monkeypatch.setenv("AGENTRL_FIGURES", str(tmp_path))
    cells = [new_code_cell(text) for text in (Path(arms.__file__).read_text(encoding="utf-8"), EXTRA_CELL)]
    done = NotebookClient(new_notebook(cells=cells), timeout=200, kernel_name="python3").execute()
    assert [out["text"] for out in done.cells[1].outputs if out.get("name") == "stdout"] == ["[4, 4]\n"]


EXTRA_CELL = """
def quick(arm, seed, base_seed=0):
    return {"heldout": ARMS[arm], "history": [{"step": 0}]}


ARMS["mine"] = {"group_size": 4}
heldout, history = run_study(Study("mine", ARMS, quick, ("training",)), ["mine"], (0, 1))
print(heldout["group_size"].tolist())
"""


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_stored_runs_are_of_this_code(study):
    """If this fails, the code behind the stored runs has changed: `make figures` trains them again."""
    heldout, history, tasks = (read_runs(study, table) for table in ("heldout", "history", "tasks"))
    for table in (heldout, history, tasks):
        stale = {tuple(row) for *row, version in table[[*KEY, "version"]].values if version != study.version(row[0])}
        assert not stale
    if len(tasks):  # each evaluation, task by task
        passes = tasks.groupby([*KEY, "evaluation"], sort=False)["passes"].sum()
        assert passes.tolist() == heldout["passes"].tolist()
    wanted = {(arm, 0, seed) for arm in study.arms for seed in study.seeds}
    assert wanted <= {tuple(row) for row in heldout[KEY].values}
    if len(history):  # whole, and of one length in an arm
        steps = history.groupby(KEY)["step"].agg(list)
        assert (steps == steps.map(lambda run: list(range(len(run))))).all()
        assert steps.map(len).groupby("arm").nunique().eq(1).all()


@pytest.mark.parametrize("arm", ["penalty 0.05", "max_turns 3"])
def test_a_stored_run_is_what_the_code_gives(arm):
    """Two steps of training, trained again, equal to the stored ones in every digit (rounding-free columns)."""
    tok = build_tokenizer(make_tasks("all"))
    again = pd.DataFrame(train_rl(make_rl_base(tok), make_tasks("train"), tok, arm_config(arm, seed=1), steps=2))
    history = read_runs(GRPO, "history")
    run = (history[KEY] == [arm, 0, 1]).all(axis=1)
    stored = history[run & (history["step"] < 2)].reset_index(drop=True)
    exact = [c for c in again if c not in ("grad_norm", "clip_fraction")]
    pd.testing.assert_frame_equal(again[exact], stored[exact], check_exact=True)
    assert torch.allclose(torch.tensor(again["grad_norm"]), torch.tensor(stored["grad_norm"]), atol=1e-6)
