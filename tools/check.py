"""Run every check of the book, go on after a failure, and end with a list.

python -m tools.check                    all of them
python -m tools.check notebooks figures  these
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from tools.figures import differences, made, stage
from tools.notebooks import KERNEL_ENV, ROOT

# Stored outputs were made with hash seed 0; another one here shows that they do not depend on it.
ENV = {**os.environ, **KERNEL_ENV, "PYTHONHASHSEED": "1"}
Counts = tuple[int, int]  # passed, failed


def python(*arguments: str, env: dict[str, str] = ENV) -> int:
    """Run this Python with `arguments` at the root of the book."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env).returncode


def run_module(*arguments: str, env: dict[str, str] = ENV) -> Counts:
    """A command that succeeds or fails as a whole."""
    return (1, 0) if python("-m", *arguments, env=env) == 0 else (0, 1)


def run_pytest(*arguments: str, env: dict[str, str]) -> Counts:
    """Pytest on two workers; a run without tests is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = python("-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *arguments, env=env)
        suites = ElementTree.parse(report).getroot().iter("testsuite") if report.exists() else []
        suites = [suite.attrib for suite in suites]
    tests, failures, errors, skipped = (
        sum(int(suite[key]) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return tests - failed - skipped, failed or int(code != 0)


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
        # One thread: two wait for each other where the processor is shared.
        "caches": lambda: run_module("tools.warm", env={**os.environ, "OMP_NUM_THREADS": "1"}),
        # Kernels that start at the same time may choose the same port: the tests that start some share a worker.
        "unit": lambda: run_pytest("--dist=loadgroup", "tests", env={**ENV, "MPLBACKEND": "Agg"}),
        "notebooks": lambda: run_pytest(*notebooks, env=draw),
        "figures": lambda: run_figures(remade),
    }


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Steps to run; default: all.")] = None,
) -> None:
    """Run the checks; exit with 1 if any failed."""
    with tempfile.TemporaryDirectory() as folder:
        steps = make_steps(stage(Path(folder)))
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
