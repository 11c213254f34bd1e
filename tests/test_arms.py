from pathlib import Path

import pandas as pd
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from agentrl import arms
from agentrl.arms import (
    ARMS,
    GRPO,
    KEY,
    DamagedTable,
    Study,
    arm_config,
    check_study,
    read_runs,
    run_study,
    store_run,
)
from agentrl.base import make_rl_base
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl
from tools.notebooks import ROOT
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


def train(arm, seed=0, base=0):
    return RUN


def other_train(arm, seed=0, base=0):
    return RUN | {"heldout": {"pass_rate": 0.3}}


def test_a_version_changes_with_settings_and_code():
    def version(settings, function=train):
        return Study("a study", {"arm": settings}, function).version("arm")

    assert version({"clip": 0.2}) == version({"clip": 0.2}) != version({"clip": 0.3})
    assert version({}) != version({}, other_train)


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
    monkeypatch.setattr(arms, "code_version", lambda *_: "another code")
    run_study(GRPO, ["default"], seeds=(0,), jobs=1)
    assert trained == [("default", 0, 0)]


def test_an_arm_added_in_the_section_itself_is_trained(tmp_path, monkeypatch):
    """A worker cannot import what stands in a notebook: it has to travel with the task."""
    monkeypatch.setenv("AGENTRL_FIGURES", str(tmp_path))
    module = f"#@save arms\n{Path(arms.__file__).read_text(encoding='utf-8')}"
    cells = [new_code_cell(text) for text in (module, EXTRA_CELL)]
    done = NotebookClient(new_notebook(cells=cells), timeout=200, kernel_name="python3").execute()
    assert [out["text"] for out in done.cells[1].outputs if out.get("name") == "stdout"] == ["[4, 4]\n"]
    stored = {path.name for path in (tmp_path / "data").glob("*.csv")}
    assert stored == {"mine_heldout.csv", "mine_history.csv"}
    assert not list((ROOT / "figures" / "data").glob("mine_*"))


EXTRA_CELL = """
def quick(arm, seed, base_seed=0):
    return {"heldout": ARMS[arm], "history": [{"step": 0}]}


ARMS["mine"] = {"group_size": 4}
heldout, history = run_study(Study("mine", ARMS, quick), ["mine"], (0, 1))
print(heldout["group_size"].tolist())
"""


# Damage


@pytest.fixture
def tables(store):
    """Stored tables of three runs, with counts by task."""
    task = {"task": "a/b", "episodes": 2, "passes": 1}
    for seed in range(3):
        store_run(GRPO, "penalty 0.05, no std", 0, seed, RUN | {"heldout": {"pass_rate": 0.1, "by_task": [task]}})
    return store


DAMAGES = {  # table, what happens to its text, line and words of the error
    "a seed that is no number": ("heldout", lambda text: text.replace(",0,1,", ",0,x,"), 3, "seed='x' is no whole"),
    "a doubled row": ("heldout", lambda text: text + text.splitlines()[-1] + "\n", 5, "the row of line 4 once more"),
    "a doubled step": ("history", lambda text: text.replace(",1,0.2\n", ",0,0.2\n", 1), 3, "the row of line 2"),
    "half a row": ("history", lambda text: text[: text.rindex(",")] + "\n", 7, "5 fields, the header has 6"),
    "half a number": ("history", lambda text: text[:-2], 7, "ends within a line"),
    "one more column": ("tasks", lambda text: text.replace("\n", ",1\n").replace(",1\n", "\n", 1), 2, "fields"),
    "conflict markers": ("heldout", lambda text: text + "<<<<<<< ours\n", 5, "1 fields"),
    "an empty file": ("heldout", lambda text: "", 1, "the header has no arm, base, seed, version"),
    "a header alone that is another": ("tasks", lambda text: "a,b\n", 1, "the header has no arm"),
    "two columns of one name": ("history", lambda text: text.replace("pass_rate", "step"), 1, "two columns"),
    "no version": ("heldout", lambda text: text.replace(GRPO.version("penalty 0.05, no std"), "", 1), 2, "version is"),
}


@pytest.mark.parametrize("table, change, line, words", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_table_is_named_with_line_and_remedy(tables, monkeypatch, table, change, line, words):
    path = tables / f"{table}.csv"
    path.write_text(change(path.read_text()))
    before = {file: file.read_bytes() for file in tables.iterdir()}
    monkeypatch.setattr(arms, "train_and_label", lambda *_: pytest.fail("something was trained"))
    for use in (lambda: read_runs(GRPO, table), lambda: run_study(GRPO, ["penalty 0.05, no std"], range(5), jobs=1)):
        with pytest.raises(DamagedTable, match=f"{table}.csv, line {line}: .*{words}") as error:
            use()
        assert "git restore" in str(error.value)
    assert {file: file.read_bytes() for file in tables.iterdir()} == before


@pytest.mark.parametrize("table", ["history", "tasks"])
@pytest.mark.parametrize("change", ["deleted rows", "cut"])
def test_a_run_without_its_history_or_counts_is_named(tables, table, change):
    lines = (tables / f"{table}.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if ",0,1," not in line] if change == "deleted rows" else lines[:-1]
    (tables / f"{table}.csv").write_text("".join(kept))
    if table == "history" and change == "cut":
        kept[1] = kept[1].replace(",0,0.3", ",1,0.3")
        (tables / f"{table}.csv").write_text("".join(kept[:2] + kept[3:]))
    with pytest.raises(DamagedTable, match=f"{table}.csv, line .*(no rows of|the steps of) arm='penalty 0.05, no std'"):
        run_study(GRPO, ["penalty 0.05, no std"], range(3), jobs=1)


def test_a_study_without_history_is_whole(store):
    store_run(GRPO, "default", 0, 0, RUN | {"history": []})
    assert not (store / "history.csv").exists() and len(run_study(GRPO, ["default"], (0,), jobs=1)[0]) == 1


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_stored_runs_are_of_this_code(study):
    """If this fails, the code behind the stored runs has changed: `make restamp` if it should be neutral."""
    check_study(study)
    heldout, history, tasks = (read_runs(study, table) for table in ("heldout", "history", "tasks"))
    for table in (heldout, history, tasks):
        versions = {arm: study.version(arm) for arm in table["arm"].unique()}
        assert (table["version"] == table["arm"].map(versions)).all()
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
