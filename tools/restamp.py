"""Give stored runs the version of code that has changed without changing any result, after a sample was made again.

    python -m tools.restamp --why "rewards: a field that is 0 by default"
    python -m tools.restamp --why "..." --draw 4 --study grpo --before HEAD~3

Of every study whose version has moved, `--draw` runs are made again and compared with the stored rows: counts to the
last digit, sums of many products to 1e-6. A run that differs may only have been stored on another processor, which
rounds otherwise. So it is made once more, here, by the code of the commit `--before`, and then every digit has to be
equal. If one is not, no table is written: the code has changed a result, and its runs have to be made again
(`make sweep`). Otherwise the rows get the new version, and figures/restamps.csv a line for each study: date, what
changed, versions before and after, how many runs were made again, and to what they were equal. The credit lab (section
7.6) is treated as a study whose runs are tasks, and the results in figures/weights are made again as well.
"""

import csv
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from agentrl.arms import TABLES, Study, check_study, read_runs, run_tables, runs_path
from agentrl.cache import write_kept
from agentrl.credit_lab import lab_path, lab_task
from agentrl.pieces import digest
from agentrl.versions import code_version
from tools import weights
from tools.notebooks import ROOT
from tools.sweep import choose_studies, run_name
from tools.sweep_check import as_stored, column_differs, differences, make_again, stored_runs

LEDGER = ROOT / "figures" / "restamps.csv"
LAB = "credit_lab"


@dataclass(frozen=True)
class Stamped:
    """A line of the ledger but for its date and reason: what got another version, and what was made again."""

    study: str
    before: str
    after: str
    made_again: int
    stored: int
    result: str


def versions_by_arm(study: Study) -> dict[str, set[str]]:
    """{arm: versions of its stored rows, in all tables}."""
    found = {}
    for table in TABLES:
        for arm, rows in read_runs(study, table).groupby("arm"):
            found.setdefault(arm, set()).update(rows["version"])
    return found


def mixed(study: Study) -> list[str]:
    """A line for each arm whose rows were made by several codes: no sample can tell which of them is right."""
    return [
        f"{study.name}: arm={arm!r} has rows of versions {', '.join(sorted(some))}; make those of older code again "
        f'first: make sweep ARGS="--study {study.name}"'
        for arm, some in versions_by_arm(study).items()
        if len(some) > 1
    ]


def moved(study: Study) -> dict[str, str]:
    """{arm: version of its code} of the arms whose stored rows bear another one."""
    found = {arm: study.version(arm) for arm in versions_by_arm(study) if arm in study.arms}
    return {arm: version for arm, version in found.items() if versions_by_arm(study)[arm] != {version}}


def restamped(text: str, versions: dict[str, str]) -> str:
    """A stored table's text with these versions for these arms; all else stays to the letter."""
    header, *lines = text.splitlines(keepends=True)
    column = header.split(",").index("version")
    for n, line in enumerate(lines):
        row = next(csv.reader([line]))
        if row[0] in versions:
            lines[n] = line.replace(f",{row[column]},", f",{versions[row[0]]},", 1)
    return header + "".join(lines)


def draw_runs(study: Study, arms: list[str], n: int) -> list:
    """`n` stored runs of these arms, drawn at random."""
    runs = stored_runs(study, arms)
    return [(study, run) for run in random.sample(runs, min(n, len(runs)))]


MAKE_HERE = """
import json, sys
from agentrl.arms import run_tables
from agentrl.launch import finished_runs
from tools.runs import studies

if __name__ == "__main__":
    made, known = [], {study.name: study for study in studies()}
    for name, runs in json.load(sys.stdin).items():
        for run, result in finished_runs(known[name], [tuple(run) for run in runs], int(sys.argv[1])):
            made.append([name, run, result if isinstance(result, str) else run_tables(result)])
    print(json.dumps(made))
"""


def made_before(commit: str, runs: dict[str, list], jobs: int) -> dict[tuple, dict]:
    """{(study, run): tables} of runs, {study: runs}, made on this machine by the code of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            env = {**os.environ, "PYTHONPATH": str(tree), "AGENTRL_CACHE": str(tree / ".cache"), "TQDM_DISABLE": "1"}
            command = [sys.executable, "-c", MAKE_HERE, str(jobs)]
            done = subprocess.run(
                command, cwd=tree, env=env, input=json.dumps(runs), stdout=subprocess.PIPE, text=True, check=True
            )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    return {(name, tuple(run)): tables for name, run, tables in json.loads(done.stdout.splitlines()[-1])}


def compare_runs(runs: list, before: str, jobs: int) -> tuple[list[str], dict[str, str]]:
    """(what differs, {study: to what its runs were equal}) of stored runs, (study, run), that are made again."""
    made, known = make_again(runs, jobs), {study.name: study for study, _ in runs}
    unlike = {
        (name, run): result
        for (name, run), result in made.items()
        if isinstance(result, str) or differences(known[name], run, result, strict=True)
    }
    here = {}
    if unlike:
        typer.echo(f"{len(unlike)} of {len(made)} runs are not what is stored; they are made by the code of {before}")
        asked = {name: [run for one, run in unlike if one == name] for name, _ in unlike}
        here = made_before(before, asked, jobs)
    wrong = [
        f"{name}: {run_name(run)}: another result than that of {before}"
        for (name, run), result in unlike.items()
        if isinstance(result, str) or json.dumps(run_tables(result)) != json.dumps(here[name, run])
    ]
    counts = {name: [(name, run) in unlike for one, run in made if one == name] for name in known}
    return wrong, {
        name: f"{some.count(False)} equal to what is stored, {some.count(True)} to what {before} gives here"
        for name, some in counts.items()
    }


def check_lab(n: int) -> list[str]:
    """Measure `n` tasks of the credit lab again; what differs from its stored rows."""
    stored, wrong = pd.read_csv(lab_path()), []
    for task in tqdm(random.sample(sorted(stored["task"].unique()), n), desc=LAB):
        again = as_stored(lab_task(int(task)), float_format="%.5g")
        rows = stored[stored["task"] == task].reset_index(drop=True)
        columns = [c for c in again if len(again) != len(rows) or column_differs(c, again[c], rows[c], close=1e-4)]
        wrong += [f"{LAB}: task {task}: {', '.join(columns)}"] if columns else []
    return wrong


def check_base() -> list[str]:
    """What differs if the RL base, from which all runs start, is made again; if nothing, it is kept for them."""
    if "base" not in weights.stale():
        return []
    what, result = weights.made_again("base")
    if "DIFFERS" in what:
        return [f"figures/weights: base: {what}"]
    weights.keep("base", result)
    return []


def write_ledger(why: str, lines: list[Stamped]) -> None:
    """Append the lines to figures/restamps.csv."""
    today = datetime.date.today().isoformat()
    rows = pd.DataFrame([{"date": today, "why": why} | asdict(line) for line in lines])
    old = [pd.read_csv(LEDGER)] if LEDGER.exists() else []
    write_kept(LEDGER, pd.concat([*old, rows]).to_csv(index=False, lineterminator="\n").encode())


def restamp_study(study: Study, made_again: int, result: str) -> Stamped:
    """Give the rows of a study's moved arms the version of the code."""
    versions, before = moved(study), versions_by_arm(study)
    for table in TABLES:
        if (path := runs_path(study, table)).exists():
            write_kept(path, restamped(path.read_text(encoding="utf-8"), versions).encode())
    old = digest(" ".join(sorted(version for arm in versions for version in before[arm])))
    new = digest(" ".join(sorted(versions.values())))
    return Stamped(study.name, old, new, made_again, len(stored_runs(study, list(versions))), result)


def restamp_lab(made_again: int) -> Stamped:
    """Give the credit lab's rows the version of its code."""
    stored, new = pd.read_csv(lab_path(), dtype=str, keep_default_na=False), code_version(lab_task)
    (old,) = set(stored["version"])
    write_kept(lab_path(), lab_path().read_text(encoding="utf-8").replace(f",{old}\n", f",{new}\n").encode())
    return Stamped(LAB, old, new, made_again, stored["task"].nunique(), f"{made_again} equal to what is stored")


def main(
    why: Annotated[str, typer.Option(help="What changed, in a few words, for the ledger.")],
    study: Annotated[list[str] | None, typer.Option(help="A study; may be repeated; default: all.")] = None,
    draw: Annotated[int, typer.Option(min=1, help="Runs of each study to make again.")] = 2,
    before: Annotated[str, typer.Option(help="The commit whose code made the stored runs.")] = "HEAD",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
) -> None:
    """Restamp stored runs after a change that should be neutral; exit status 1 if one run is not what is stored."""
    try:
        chosen = [one for one in choose_studies(study) if moved(one)]
        for one in chosen:
            check_study(one)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    lab = study is None and set(pd.read_csv(lab_path())["version"]) != {code_version(lab_task)}
    wrong = [line for one in chosen for line in mixed(one)] or check_base()
    runs = {one.name: draw_runs(one, list(moved(one)), draw) for one in chosen}
    equal_to = {}
    if not wrong:
        wrong, equal_to = compare_runs([pair for pairs in runs.values() for pair in pairs], before, jobs)
        wrong += check_lab(1) if lab else []
    results = {}
    if study is None and not wrong:
        results = {name: weights.made_again(name) for name in tqdm(weights.stale(), desc="weights")}
        wrong = [f"figures/weights: {name}: {what}" for name, (what, _) in results.items() if "DIFFERS" in what]
    if wrong:
        typer.echo("\n".join([*wrong, "nothing was restamped: this code does not give what is stored"]), err=True)
        raise typer.Exit(1)
    for name, (_, result) in results.items():
        weights.keep(name, result)
    lines = [restamp_study(one, len(runs[one.name]), equal_to[one.name]) for one in chosen] + (
        [restamp_lab(1)] if lab else []
    )
    if lines:
        write_ledger(why, lines)
    for line in lines:
        typer.echo(f"{line.study}: {line.stored} runs restamped, {line.made_again} made again: {line.result}")
    done = f"{len(lines)} studies and {len(results)} files of weights restamped"
    typer.echo(done if lines or results else "all stored runs bear the version of this code")


if __name__ == "__main__":
    typer.run(main)
