"""Run every check of the book, go on after a failure, and end with a list.

    python -m tools.check                    all of them
    python -m tools.check notebooks figures  these
    python -m tools.check --changed          what has changed since it last passed, but for slow and browser tests

With --changed a test file or a notebook is run if a definition that it reaches has changed, a file that it reads, or
the versions of packages (tools/depends.py). Notebooks whose stored runs were made by other code are named and not run:
they would train for hours (`make restamp`, `make sweep`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from agentrl.cache import cache_dir
from tools.depends import check_key, notebook_code, notebook_key, reached_by, studies_in
from tools.execute import up_to_date
from tools.figures import differences, made, stage
from tools.notebooks import KERNEL_ENV, ROOT, find_notebooks, write_atomically
from tools.restamp import moved
from tools.runs import studies

# Stored outputs were made with hash seed 0; another one here shows that they do not depend on it.
ENV = {**os.environ, **KERNEL_ENV, "PYTHONHASHSEED": "1"}
Counts = tuple[int, int]  # passed, failed


def python(*arguments: str, env: dict[str, str] = ENV) -> int:
    """Run this Python with `arguments` at the root of the book."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env).returncode


def run_module(*arguments: str, env: dict[str, str] = ENV) -> Counts:
    """A command that succeeds or fails as a whole."""
    return (1, 0) if python("-m", *arguments, env=env) == 0 else (0, 1)


@dataclass(frozen=True)
class Report:
    """What a run of pytest says: its exit status, how many tests passed and failed, files with a failure."""

    code: int
    passed: int
    failed: int
    files: set[str]


def pytest_report(*arguments: str, env: dict[str, str]) -> Report:
    """Pytest on two workers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.xml"
        options = ["-q", "-n", "2", "-o", "junit_family=xunit1", f"--junitxml={path}"]
        code = python("-m", "pytest", *options, *arguments, env=env)
        suites = list(ElementTree.parse(path).getroot().iter("testsuite")) if path.exists() else []
    tests, failures, errors, skipped = (
        sum(int(suite.attrib[key]) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    cases = [case for suite in suites for case in suite.iter("testcase")]
    bad = {
        str(case.get("file")) for case in cases if case.find("failure") is not None or case.find("error") is not None
    }
    return Report(code, tests - failures - errors - skipped, failures + errors, bad)


def run_pytest(*arguments: str, env: dict[str, str]) -> Counts:
    """Tests passed and failed; a run without tests is a failure."""
    report = pytest_report(*arguments, env=env)
    return report.passed, report.failed or int(report.code != 0)


def run_figures(remade: Path) -> Counts:
    """The figures and tables that the notebooks just made, beside the committed ones."""
    found = differences(ROOT / "figures", remade)
    print("\n".join(found) or "figures and tables are those that the notebooks make")
    return max(0, len(made(remade)) - len(found)), len(found)


def make_steps(remade: Path) -> dict[str, Callable[[], Counts]]:
    """Every step, in order."""
    draw = {**ENV, "AGENTRL_FIGURES": str(remade)}
    notebooks = ["--dist=loadscope", "notebooks"]
    return {
        "fresh": lambda: run_module("tools.export", "--check"),
        "style": lambda: run_module("ruff", "check", "."),
        "unit": lambda: run_pytest("tests", env={**ENV, "MPLBACKEND": "Agg"}),
        "notebooks": lambda: run_pytest(*notebooks, env=draw),
        "figures": lambda: run_figures(remade),
    }


# What has changed


def checked() -> dict[str, str]:
    """{file: key} of the test files and notebooks that have passed, each with the key of its last time."""
    try:
        return json.loads((cache_dir() / "checked.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def run_and_remember(report: Report, keys: dict[str, str]) -> Counts:
    """The counts of a report on files, {file: key}; those that passed are remembered."""
    if report.code in (0, 1, 5):  # all passed, some failed, nothing to run; else it was interrupted
        passed = {file: key for file, key in keys.items() if file not in report.files}
        write_atomically(cache_dir() / "checked.json", json.dumps(checked() | passed, indent=1))
    return report.passed, report.failed or int(report.code not in (0, 5))


def run_notebooks(keys: dict[str, str], remade: Path) -> Counts:
    """Compare notebooks and the figures that they make with what is stored; those that pass are remembered."""
    report = pytest_report("--dist=loadscope", *keys, env={**ENV, "AGENTRL_FIGURES": str(remade)})
    wrong = [line for line in differences(ROOT / "figures", remade) if "no notebook makes it" not in line]
    print("\n".join(wrong))
    passed, failed = run_and_remember(report, {} if wrong else keys)
    return passed, failed + len(wrong)


def stale_studies() -> set[str]:
    """Studies with stored runs of other code."""
    return {study.name for study in studies() if moved(study)}


def changed_files() -> tuple[dict[str, str], dict[str, str]]:
    """({test file: key}, {notebook: key}) of what has changed since it last passed."""
    tests = {path: check_key(path) for path in sorted((ROOT / "tests").glob("test_*.py"))}
    books = {path: notebook_key(path) for path in find_notebooks()}
    books = {path.with_suffix(".ipynb"): key for path, key in books.items() if up_to_date(path, key) is None}
    found = ({path.relative_to(ROOT).as_posix(): key for path, key in some.items()} for some in (tests, books))
    tests, books = ({file: key for file, key in some.items() if checked().get(file) != key} for some in found)
    return tests, books


def wait_for_runs(notebooks: dict[str, str]) -> dict[str, str]:
    """The notebooks that can be compared; those whose stored runs were made by other code are named."""
    stale, ready = stale_studies(), {}
    for file, key in notebooks.items():
        code = notebook_code((ROOT / file).with_suffix(".py"))
        if waits_for := studies_in(code, reached_by(code)) & stale:
            print(f"  not run, runs of {', '.join(sorted(waits_for))} were made by other code: {file}")
        else:
            ready[file] = key
    if len(ready) < len(notebooks):
        print("  `make restamp` if the change is neutral, else `make sweep`")
    return ready


def make_changed_steps(remade: Path) -> dict[str, Callable[[], Counts]]:
    """The steps of --changed; what has nothing to do is left out."""
    tests, notebooks = changed_files()
    print(f"changed since they last passed: {len(tests)} test files, {len(notebooks)} notebooks")
    ready = wait_for_runs(notebooks)
    quick = ("-m", "not slow and not browser")
    steps = {name: step for name, step in make_steps(remade).items() if name in ("fresh", "style")}
    if tests:
        env = {**ENV, "MPLBACKEND": "Agg"}
        steps["tests"] = lambda: run_and_remember(pytest_report(*quick, *tests, env=env), tests)
    return steps | ({"notebooks": lambda: run_notebooks(ready, remade)} if ready else {})


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Steps to run; default: all.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what has changed since it last passed.")] = False,
) -> None:
    """Run the checks; exit with 1 if any failed."""
    with tempfile.TemporaryDirectory() as folder:
        remade = stage(Path(folder))
        steps = make_changed_steps(remade) if changed else make_steps(remade)
        if unknown := [name for name in only or [] if name not in steps]:
            raise typer.BadParameter(f"no step {', '.join(unknown)}; there are: {', '.join(steps)}")
        results, lines = {}, []
        for name in only or steps:
            print(f"\n== {name}", flush=True)
            started = time.monotonic()
            passed, failed = results[name] = steps[name]()
            minutes = (time.monotonic() - started) / 60
            lines.append(f"{name:<10} {minutes:5.1f} min  {passed:5d} passed  {failed:5d} failed")
            print(lines[-1], flush=True)
    print("\n== summary", *lines, sep="\n")
    if bad := [name for name, (_, failed) in results.items() if failed]:
        print(f"Failed: {', '.join(bad)}. Run one again with `python -m tools.check {bad[0]}`.")
    passed, failed = (sum(column) for column in zip(*results.values(), strict=True))
    print(f"{passed} passed, {failed} failed")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
