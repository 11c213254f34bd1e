"""Stored runs are what the code gives: some are made again from the base, others each time."""

import os
import random

import pandas as pd
import pytest

from agentrl.arms import GRPO, KEY, TABLES, read_runs
from tools import sweep_check
from tools.runs import studies
from tools.sweep_check import check, differences, parting, stored_runs

LAGGED = ("lower_clip", "clip_knobs")  # their counts are of a policy of 16 steps ago and do not show when a run parts
DRAW = int.from_bytes(os.urandom(4), "big")


def stored_result(run):
    """A run as its stored rows say it, as if it had just been made."""
    rows = {name: read_runs(GRPO, name) for name in TABLES}
    rows = {name: table[(table[KEY] == list(run)).all(axis=1)] for name, table in rows.items()}
    rows = {name: table.drop(columns=[*KEY, "version"]).to_dict("records") for name, table in rows.items()}
    (heldout,) = rows["heldout"]
    tasks = [{name: value for name, value in row.items() if name != "evaluation"} for row in rows["tasks"]]
    return {"history": rows["history"], "heldout": heldout | {"by_task": tasks}}


@pytest.mark.slow
@pytest.mark.parametrize("n", range(2))
def test_a_run_drawn_at_random_is_what_is_stored(n):
    """Of any study, from the base that comes with the book (another base takes a minute to train)."""
    rng = random.Random(DRAW + n)
    study = rng.choice([study for study in studies() if study.name not in LAGGED])
    run = rng.choice([run for run in stored_runs(study) if run[1] == 0 and "edits" not in study.arms[run[0]]])
    assert check([(study, run)], jobs=1) == [], f"draw {DRAW + n}"


def test_a_digit_that_differs_is_found():
    run = ("default", 0, 1)
    assert differences(GRPO, run, stored_result(run)) == []
    for table, column, change in (
        ("history", "passes", 1),
        ("history", "reward", 1e-15),
        ("history", "grad_norm", 1e-2),
    ):
        result = stored_result(run)
        result[table][7][column] += change
        assert differences(GRPO, run, result) == [f"{table}: {column}"]
    close = stored_result(run)
    close["history"][7]["grad_norm"] += 1e-9  # another processor's last digits
    assert differences(GRPO, run, close) == []
    for change, says in ((lambda r: r["history"].pop(), "history: 39 rows, stored are 40"),
                         (lambda r: r["heldout"]["by_task"][3].update(tests=99), "tasks: tests"),
                         (lambda r: r["heldout"].update(pass_rate=0.5), "heldout: pass_rate")):  # fmt: skip
        result = stored_result(run)
        change(result)
        assert differences(GRPO, run, result) == [says]


def test_a_run_of_another_processor_may_part_late_and_not_early():
    run = ("default", 0, 1)
    late = stored_result(run)
    late["history"][25]["passes"] += 1
    late["history"][39]["grad_norm"] += 1.0
    late["heldout"]["passes"] += 1
    assert parting(GRPO, run, late) == 25 and differences(GRPO, run, late) == []
    assert differences(GRPO, run, late, strict=True) == ["history: passes, grad_norm", "heldout: passes"]
    early = stored_result(run)
    early["history"][5]["passes"] += 1
    assert parting(GRPO, run, early) is None and differences(GRPO, run, early) == ["history: passes"]
    end = stored_result(run)  # a run that has not parted has to end in the stored counts
    end["history"][39]["grad_norm"] += 1.0
    assert differences(GRPO, run, end) == []
    end["heldout"]["passes"] += 1
    assert differences(GRPO, run, end) == ["heldout: passes"]


def test_what_differs_and_what_fails_is_said_with_arm_and_seed(monkeypatch):
    runs = [("default", 0, 0), ("default", 0, 1), ("default", 0, 2)]
    results = [stored_result(runs[0]), "ValueError: no", stored_result(runs[0])]
    monkeypatch.setattr(sweep_check, "finished_runs", lambda study, todo, jobs: zip(todo, results))
    failed, other = check([(GRPO, run) for run in runs], jobs=1)[:2]
    assert failed == "grpo: arm='default' base=0 seed=1: FAILED: ValueError: no"
    assert other.startswith("grpo: arm='default' base=0 seed=2: history: ")


def test_the_command(monkeypatch, capsys):
    from typer.testing import CliRunner

    app = sweep_check.typer.Typer()
    app.command()(sweep_check.main)
    chosen = []
    monkeypatch.setattr(sweep_check, "check", lambda runs, jobs: chosen.extend(runs) or [])
    result = CliRunner().invoke(app, ["--study", "grpo", "--arms", "default", "--draw", "2"])
    assert result.exit_code == 0 and "2 runs are what is stored" in result.output and len(chosen) == 2
    assert {run[0] for _, run in chosen} == {"default"}
    assert CliRunner().invoke(app, ["--study", "gpro"]).exit_code == 2
    chosen.clear()
    wrong = CliRunner().invoke(app, ["--study", "grpo", "--arms", "default", "--arms", "defaults"])
    assert wrong.exit_code == 2 and "did you mean 'default'" in wrong.output and chosen == []
    monkeypatch.setattr(sweep_check, "check", lambda runs, jobs: ["grpo: differs"])
    assert CliRunner().invoke(app, ["--study", "grpo", "--draw", "1"]).exit_code == 1


def test_rows_read_back_are_rows_as_stored():
    rows = [{"a": 1 / 3, "b": 2, "c": float("nan")}]
    assert sweep_check.as_stored(rows).equals(pd.DataFrame(rows))
