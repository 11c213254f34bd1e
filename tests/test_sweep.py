"""The launcher: what it refuses, and what is left of a sweep that is killed."""

import builtins
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from typer.testing import CliRunner

from agentrl import arms
from agentrl.arms import Study, read_runs
from tools import sweep
from tools.notebooks import ROOT

RUNS = [("fine", 0, 0), ("fine", 0, 1), ("slow", 0, 0), ("slow", 0, 1)]

# A stub study: it counts the runs it begins in a file, and can be told to wait, fail, or kill itself.
STUB = """
import os, signal, sys, time
from pathlib import Path
from agentrl import arms
from agentrl.arms import Study
from tools import sweep

FOLDER = Path({folder!r})

def train(arm, seed, base):
    (FOLDER / f"begun-{{arm}}-{{seed}}").touch()
    deadline = time.monotonic() + 250
    while (FOLDER / f"hold-{{arm}}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if (FOLDER / f"fail-{{arm}}-{{seed}}").exists():
        raise RuntimeError("told to fail")
    history = [{{"step": step, "reward": (seed + step) / 7}} for step in range(3)]
    return {{"heldout": {{"pass_rate": (seed + 1) / 3, "name": arm}}, "history": history}}

STUDY = Study("stub", {{"fine": {{}}, "slow": {{"clip": 0.3}}}}, train)
OTHER = Study("other", {{"default": {{}}}}, train)

def install():
    arms.runs_path = lambda study, table: FOLDER / f"{{study.name}}_{{table}}.csv"
    sweep.studies = lambda: [STUDY, OTHER]
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """The stub study in a module of its own; its tables go to the temporary folder."""
    (tmp_path / "stub_study.py").write_text(STUB.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stub_study", raising=False)
    import stub_study

    monkeypatch.setattr(arms, "runs_path", lambda study, table: tmp_path / f"{study.name}_{table}.csv")
    monkeypatch.setattr(sweep, "studies", lambda: [stub_study.STUDY, stub_study.OTHER])
    yield stub_study
    del sys.modules["stub_study"]


def run(*options, jobs=1):
    """The command, in this process."""
    app = sweep.typer.Typer()
    app.command()(sweep.main)
    result = CliRunner().invoke(app, ["--jobs", str(jobs), *options], env={"TQDM_DISABLE": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


SWEEP = ("--study", "stub", "--seeds", "0-1")


def tables(study):
    return {name: read_runs(study, name) for name in ("heldout", "history")}


def whole(stub, tmp_path, monkeypatch):
    """The tables of a sweep that nothing interrupts, made in another folder."""
    with monkeypatch.context() as other:
        other.setattr(arms, "runs_path", lambda study, table: tmp_path / "whole" / f"{table}.csv")
        assert run(*SWEEP)[0] == 0
        return tables(stub.STUDY)


def same(a, b):
    for name in a:
        pd.testing.assert_frame_equal(a[name], b[name], check_exact=True)
    return True


def stored(stub):
    return {tuple(row) for row in read_runs(stub.STUDY, "heldout")[arms.KEY].values.tolist()}


def test_it_says_what_is_missing_runs_it_and_has_nothing_to_do_then(stub):
    code, said = run(*SWEEP, "--missing")
    assert code == 1 and "stub: 4 of 4 runs are missing\n  fine, base 0: seeds 0-1\n" in said and not stored(stub)
    code, said = run(*SWEEP)
    assert code == 0 and "done; 0 runs are missing" in said and stored(stub) == set(RUNS)
    code, said = run(*SWEEP)
    assert code == 0 and "stub: 0 of 4 runs are missing" in said and "done" not in said
    code, said = run("--study", "stub", "--seeds", "0-2", "--bases", "0,1", "--arms", "fine", "--missing")
    assert "4 of 6 runs are missing\n  fine, base 0: seeds 2\n  fine, base 1: seeds 0-2" in said


def test_all_studies_are_run_by_default_and_arms_choose_among_them(stub):
    assert "other: 1 of 1 runs" in run("--seeds", "0", "--missing")[1]
    said = run("--seeds", "0", "--arms", "default", "--missing")[1]
    assert "other" in said and "stub" not in said


def test_an_arm_that_two_studies_have_or_that_is_named_twice_is_run_once(stub, monkeypatch):
    other = Study("other", {"fine": {}}, stub.train)
    monkeypatch.setattr(sweep, "studies", lambda: [stub.STUDY, other])
    said = run("--seeds", "0", "--missing")[1]
    assert "stub: 2 of 2 runs" in said and "other: 1 of 1 runs are missing\n  fine, base 0: seeds 0\n" in said
    assert "stub: 1 of 1 runs" in run("--seeds", "0", "--arms", "fine", "--arms", "fine", "--missing")[1]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--seeds", "x"], ["seeds='x'"]),
        (["--seeds", "0", "--arms", "fien"], ["arm='fien'", "did you mean 'fine'"]),
        (["--seeds", "0", "--study", "stbu"], ["study='stbu'", "did you mean 'stub'"]),
        (["--seeds", "0", "--jobs", "0"], ["jobs=0"]),
        (["--seeds", "0", "--bases", "-1"], ["bases='-1'"]),
        (["--seeds", "0", "--address", "127.0.0.1:1"], ["address='127.0.0.1:1' cannot be reached"]),
        (["--seeds", "1-0", "--jobs", "-1", "--arms", "x"], ["3 to put right", "seeds", "jobs", "arm='x'"]),
        ([], ["--seeds"]),
    ],
    ids=str,
)
def test_bad_options_are_named_before_anything_starts(stub, tmp_path, options, words):
    code, said = run(*options)
    assert code == 2 and all(word in said for word in words)
    assert not list(tmp_path.glob("begun-*")) and not list(tmp_path.glob("*.csv"))


def test_a_failed_run_is_listed_and_does_not_stop_the_others(stub, tmp_path, monkeypatch):
    (tmp_path / "fail-fine-1").touch()
    code, said = run(*SWEEP)
    assert code == 1 and "FAILED stub: arm='fine' base=0 seed=1: RuntimeError: told to fail" in said
    assert "done; 1 runs are missing" in said and stored(stub) == set(RUNS) - {("fine", 0, 1)}
    (tmp_path / "fail-fine-1").unlink()
    code, said = run(*SWEEP)
    assert code == 0 and "1 of 4 runs are missing" in said
    assert same(tables(stub.STUDY), whole(stub, tmp_path, monkeypatch))


def test_rows_of_older_code_are_made_again(stub, monkeypatch):
    assert run(*SWEEP)[0] == 0
    older = read_runs(stub.STUDY, "heldout")
    monkeypatch.setattr(arms, "code_version", lambda *_: "newer code")
    code, said = run(*SWEEP)
    newer = read_runs(stub.STUDY, "heldout")
    assert "4 of 4 runs are missing" in said and len(newer) == 4 and not set(older["version"]) & set(newer["version"])


@pytest.mark.parametrize("when", ["while writing", "at the rename"])
@pytest.mark.parametrize("table", ["history", "heldout"])
def test_a_full_disk_stops_the_sweep_and_leaves_whole_rows_only(stub, tmp_path, monkeypatch, when, table):
    """The third run meets a full disk; what was stored before stays, and the same command goes on."""
    full = OSError(errno.ENOSPC, "No space left on device")
    count, to_csv, replace = [0], pd.DataFrame.to_csv, os.replace

    def write(frame, path, **options):
        count[0] += table in Path(path).name
        if count[0] == 3 and table in Path(path).name and when == "while writing":
            Path(path).write_text("arm,base,se")
            raise full
        return to_csv(frame, path, **options)

    def rename(source, target):
        if count[0] == 3 and table in Path(target).name and when == "at the rename":
            raise full
        return replace(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(pd.DataFrame, "to_csv", write)
        broken.setattr(arms.os, "replace", rename)
        code, said = run(*SWEEP)
    assert code == 1 and "No space left on device" in said and "2 runs are missing, the same command" in said
    assert stored(stub) == set(RUNS[:2])
    assert run(*SWEEP)[0] == 0
    assert same(tables(stub.STUDY), whole(stub, tmp_path, monkeypatch))


def test_ctrl_c_says_what_is_missing(stub, monkeypatch):
    finished = sweep.finished_runs

    def interrupted(*arguments):
        for n, one in enumerate(finished(*arguments)):
            if n == 2:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(sweep, "finished_runs", interrupted)
    code, said = run(*SWEEP)
    assert code == 130 and "interrupted; 2 runs are missing, the same command makes them" in said
    assert stored(stub) == set(RUNS[:2])


def wait_for(condition, what):
    """A bounded wait for something that another process does."""
    deadline = time.monotonic() + 250
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def start_sweep(tmp_path, *options):
    """The command in a process of its own, two workers."""
    code = "import stub_study; stub_study.install(); from tools import sweep; sweep.typer.run(sweep.main)"
    paths = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *SWEEP, "--jobs", "2", *options],
        env={**os.environ, "PYTHONPATH": paths, "TQDM_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_killed_parent_loses_only_the_runs_under_way(stub, tmp_path, monkeypatch):
    """SIGKILL while both runs of `slow` are under way; the workers go too, and a resume ends as if never killed."""
    (tmp_path / "hold-slow").touch()
    with start_sweep(tmp_path) as process:
        wait_for(lambda: len(stored(stub)) == 2 and len(list(tmp_path.glob("begun-slow-*"))) == 2, "two stored runs")
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        os.kill(process.pid, signal.SIGKILL)
    (tmp_path / "hold-slow").unlink()
    gone, alive = psutil.wait_procs(workers, timeout=250)
    for worker in alive:
        worker.kill()
    assert alive == []
    assert stored(stub) == set(RUNS[:2])
    code, said = run(*SWEEP)
    assert code == 0 and "2 of 4 runs are missing\n  slow, base 0: seeds 0-1" in said
    assert same(tables(stub.STUDY), whole(stub, tmp_path, monkeypatch))


@pytest.mark.slow
def test_a_worker_that_has_not_begun_a_task_ends_with_its_parent_too(stub, tmp_path):
    """One run for two workers: the idle one would wait for five minutes."""
    (tmp_path / "hold-slow").touch()
    with start_sweep(tmp_path, "--arms", "slow", "--seeds", "0") as process:
        wait_for(lambda: (tmp_path / "begun-slow-0").exists(), "the run to begin")
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(workers, timeout=100)
    for worker in alive:
        worker.kill()
    assert len(workers) >= 2 and alive == []


def test_a_damaged_table_stops_the_sweep_before_anything_is_made(stub, tmp_path):
    assert run(*SWEEP)[0] == 0
    path = tmp_path / "stub_heldout.csv"
    path.write_text(path.read_text().replace(",0,1,", ",0,x,"))
    before = path.read_bytes()
    code, said = run("--study", "stub", "--seeds", "0-5")
    assert code == 2 and "stub_heldout.csv, line 3: seed='x' is no whole number" in said
    assert path.read_bytes() == before and len(list(tmp_path.glob("begun-*"))) == 4


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(stub, tmp_path, monkeypatch):
    """SIGKILL of one worker while both are busy: the runs under way are made again, and all are stored."""
    (tmp_path / "hold-slow").touch()
    with start_sweep(tmp_path) as process:
        wait_for(lambda: len(list(tmp_path.glob("begun-slow-*"))) == 2, "two runs under way")
        workers = [one for one in psutil.Process(process.pid).children() if "--process-name" in " ".join(one.cmdline())]
        workers[0].kill()
        (tmp_path / "hold-slow").unlink()
        said, _ = process.communicate(timeout=250)
    assert process.returncode == 0 and "done; 0 runs are missing" in said
    assert stored(stub) == set(RUNS) and same(tables(stub.STUDY), whole(stub, tmp_path, monkeypatch))


def test_an_address_without_ray_names_the_extra(stub, monkeypatch):
    import_ = builtins.__import__

    def no_ray(name, *rest):
        if name.split(".")[0] == "ray":
            raise ImportError("No module named 'ray'")
        return import_(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_ray)
    monkeypatch.setattr("agentrl.launch.check_reachable", lambda address: address)
    code, said = run(*SWEEP, "--address", "127.0.0.1:6379")
    assert code == 1 and "[cluster]" in said and "4 runs are missing" in said and not stored(stub)


def test_a_head_that_accepts_and_never_speaks_is_given_up():
    class Mute:
        @staticmethod
        def init(**_):
            time.sleep(60)

    with pytest.raises(ValueError, match="no Ray cluster that can be joined: no answer within 0.1 s"):
        sweep.join_cluster(Mute, "127.0.0.1:6379", seconds=0.1)


def test_ray_is_not_imported_without_an_address():
    code = "import sys; import tools.sweep; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_two_workers_of_a_local_ray_runtime_give_the_same_tables(stub, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra [cluster] is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    address = context.address_info["address"]
    monkeypatch.setattr(sweep, "join_cluster", lambda module, where: None)
    try:
        code, said = run(*SWEEP, "--address", address, jobs=2)
    finally:
        ray.shutdown()
    assert code == 0 and stored(stub) == set(RUNS), said
    assert same(tables(stub.STUDY), whole(stub, tmp_path, monkeypatch))


def test_numbers_are_said_as_ranges():
    assert sweep.say_numbers([7, 0, 2, 1]) == "0-2, 7" and sweep.say_numbers([3]) == "3"


def test_studies_of_the_book_have_names_of_their_own():
    from tools.runs import studies

    names = [study.name for study in studies()]
    assert len(set(names)) == len(names) and all(isinstance(study, Study) for study in studies())
