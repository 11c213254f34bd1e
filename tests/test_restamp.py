"""A version may be moved without a result: only after a sample was made again, and never if one run differs."""

import pandas as pd
import pytest
from typer.testing import CliRunner

from agentrl import arms
from agentrl.arms import Study, read_runs, store_run
from agentrl.versions import code_version
from tools import restamp, sweep, sweep_check, weights

RATE = {"rate": 1.0, "before": 1.0}


def train(arm, seed, base):
    history = [{"step": step, "reward": RATE["rate"] * (seed + step) / 7} for step in range(3)]
    return {"heldout": {"passes": seed, "pass_rate": RATE["rate"] * seed / 3}, "history": history}


def before_of(runs):
    """What the code before gives on this machine: RATE["before"] instead of RATE["rate"]."""
    rate = RATE["rate"]
    RATE["rate"] = RATE["before"]
    made = {(name, run): arms.run_tables(train(*run[::2], 0)) for name, some in runs.items() for run in some}
    RATE["rate"] = rate
    return made


STUDY = Study("stub", {"fine": {}, "with, comma": {"clip": 0.3}}, train)
REASON = ("--why", "another layout")


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Six stored runs of a stub study; set code["version"] to pretend that its code has changed."""
    said = {"version": "a"}
    monkeypatch.setattr(arms, "code_version", lambda *_: said["version"])
    monkeypatch.setattr(restamp, "code_version", lambda function: code_version(function))
    monkeypatch.setattr(arms, "runs_path", lambda study, table: tmp_path / f"{study.name}_{table}.csv")
    monkeypatch.setattr(restamp, "runs_path", arms.runs_path)
    monkeypatch.setattr(restamp, "LEDGER", tmp_path / "restamps.csv")
    monkeypatch.setattr(sweep, "studies", lambda: [STUDY])
    monkeypatch.setattr(weights, "stale", lambda: [])
    made = []
    monkeypatch.setattr(restamp, "made_before", lambda commit, runs, jobs: before_of(runs))
    monkeypatch.setattr(
        sweep_check, "finished_runs", lambda study, runs, jobs: [made.append(r) or (r, train(*r[::2], 0)) for r in runs]
    )
    monkeypatch.setattr(restamp, "lab_path", lambda: tmp_path / "lab.csv")
    (tmp_path / "lab.csv").write_text(f"task,version\n0,{code_version(restamp.lab_task)}\n")
    for arm in STUDY.arms:
        for seed in range(3):
            store_run(STUDY, arm, 0, seed, train(arm, seed, 0))
    return said | {"made": made, "set": lambda version: said.update(version=version)}


def run(*options):
    app = restamp.typer.Typer()
    app.command()(restamp.main)
    result = CliRunner().invoke(app, options, env={"TQDM_DISABLE": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_neutral_change_moves_the_versions_and_nothing_else(code, tmp_path):
    before = {table: read_runs(STUDY, table) for table in ("heldout", "history")}
    code["set"]("b")
    status, said = run(*REASON)
    assert (
        status == 0
        and "stub: 6 runs restamped, 2 made again: 2 equal to what is stored, 0 to what HEAD gives here" in said
    )
    for table, old in before.items():
        new = read_runs(STUDY, table)
        assert (new["version"] == new["arm"].map(STUDY.version)).all()
        pd.testing.assert_frame_equal(new.drop(columns="version"), old.drop(columns="version"), check_exact=True)
    (line,) = pd.read_csv(tmp_path / "restamps.csv").to_dict("records")
    assert (line["study"], line["why"], line["made_again"], line["stored"]) == ("stub", "another layout", 2, 6)
    assert len(set(code["made"])) == 2
    assert run(*REASON) == (0, "all stored runs bear the version of this code\n")


def test_one_difference_and_nothing_is_restamped(code, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    code["set"]("b")
    monkeypatch.setitem(RATE, "rate", 1 + 1e-5)
    status, said = run(*REASON, "--draw", "6")
    assert status == 1 and "nothing was restamped" in said
    assert "stub: arm='with, comma' base=0 seed=1: another result than that of HEAD" in said
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")} == before


def test_runs_that_another_processor_stored_are_compared_with_the_code_before_on_this_one(code, tmp_path, monkeypatch):
    code["set"]("b")
    monkeypatch.setitem(RATE, "rate", 1 + 1e-5)
    monkeypatch.setitem(RATE, "before", 1 + 1e-5)
    status, said = run(*REASON, "--draw", "6", "--before", "abc")
    assert status == 0 and "equal to what is stored" in said and "to what abc gives here" in said
    assert read_runs(STUDY, "heldout")["version"].nunique() == len(STUDY.arms)
    (line,) = pd.read_csv(tmp_path / "restamps.csv").to_dict("records")
    assert line["result"].endswith("to what abc gives here") and not line["result"].startswith("6 ")


def test_rows_of_several_codes_are_refused(code, tmp_path):
    code["set"]("b")
    store_run(STUDY, "fine", 0, 1, train("fine", 1, 0))
    code["set"]("c")
    status, said = run(*REASON)
    assert status == 1 and "arm='fine' has rows of versions" in said and "make the older ones" not in said
    assert code["made"] == []


def test_a_reason_is_asked_for_and_unknown_studies_are_named(code):
    assert run()[0] == 2
    status, said = run(*REASON, "--study", "stbu")
    assert status == 2 and "stbu" in said


def test_the_ledger_of_the_book_names_versions_dates_and_counts():
    ledger = pd.read_csv(restamp.ROOT / "figures" / "restamps.csv")
    assert list(ledger) == ["date", "why", "study", "before", "after", "made_again", "stored", "result"]
    assert (ledger["made_again"] >= 1).all() and ledger["result"].str.contains("equal to what is stored").all()
