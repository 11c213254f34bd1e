"""Execute notebooks from their `.py` source in fresh kernels and store the outputs in the `.ipynb` beside it.

    python -m tools.execute                          all notebooks
    python -m tools.execute notebooks/09_grpo/*.py   these
    python -m tools.execute --figures                those that write figures or tables

A notebook is executed again only if its source, a definition of `agentrl` that it uses, or its inputs changed.
Nothing is stored when a cell fails: figures, too, are drawn into a temporary folder first.
"""

import ast
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import nbformat
import psutil
import typer
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from tqdm import tqdm
from traitlets.config import Config

from tools.depends import notebook_code, notebook_key
from tools.figures import made, stage
from tools.kernels import fork_kernels, on_files
from tools.notebooks import (
    KERNEL_ENV,
    ROOT,
    code_cells,
    find_notebooks,
    read_source,
    section,
    write_atomically,
)

FIRST_CELL = 120  # seconds; a kernel that hangs does so at its start
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGETS = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")


class Failure(Exception):
    """A notebook that could not be executed: which cell, and why."""


@dataclass(frozen=True)
class Run:
    """What one execution took and wrote."""

    seconds: float
    megabytes: float
    figures: list[str]


# One notebook


def prepare(path: Path) -> NotebookNode:
    """The notebook in `path` without outputs; its cell ids depend on the cells alone."""
    notebook, seen = read_source(path), Counter()
    for cell in notebook.cells:
        content = f"{cell.cell_type}\n{cell.source}"
        seen[content] += 1
        cell.id = hashlib.sha256(f"{content}\n{seen[content]}".encode()).hexdigest()[:8]
    metadata = {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": KERNELSPEC}
    notebook.metadata = nbformat.from_dict(metadata)
    return notebook


def clean(notebook: NotebookNode) -> NotebookNode:
    """Remove what differs between runs or machines: versions, widget state, timing."""
    notebook.metadata.get("language_info", {}).pop("version", None)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        tags = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        cell.metadata = nbformat.from_dict(tags)
        for output in cell.get("outputs", []):
            for kind in WIDGETS:
                output.get("data", {}).pop(kind, None)
    return notebook


def failure_text(path: Path, cell: int, error: Exception) -> str:
    """Notebook, cell and error in words."""
    where = f"{path.parent.name}/{path.name}, cell {cell}"
    if isinstance(error, CellExecutionError):
        trace = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback).strip()
        return f"{where}: {error.ename}: {error.evalue}\n{trace}"
    reason = (str(error).strip() or "no reply").splitlines()[0]
    return f"{where}: {type(error).__name__}: {reason}"


def execute_once(path: Path, env: dict, timeout: float, done: Callable[[float], None]) -> NotebookNode:
    """Run the notebook at `path` in a fresh kernel; `done` is told the kernel's MB after each code cell."""
    notebook, finished, deadline = prepare(path), [], time.monotonic() + timeout

    def limit(cell: NotebookNode) -> float:
        left = deadline - time.monotonic()
        return max(1, left if finished else min(left, FIRST_CELL))

    def after_cell(**_) -> None:
        finished.append(psutil.Process(client.km.provisioner.pid).memory_info().rss / 2**20)
        done(finished[-1])

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as channels:
        client = NotebookClient(
            notebook,
            kernel_name=KERNELSPEC["name"],
            config=Config(KernelManager=on_files(Path(channels))),
            resources={"metadata": {"path": str(path.parent)}},
            extra_arguments=["--log-level=CRITICAL"],
            record_timing=False,
            store_widget_state=True,  # else nbclient fails where a widget shows output; `clean` removes it
            coalesce_streams=True,
            timeout_func=limit,
            startup_timeout=FIRST_CELL,
            iopub_timeout=30,
            raise_on_iopub_timeout=True,
            on_cell_executed=after_cell,
        )
        client.execute(env=env)
    return notebook


def execute(path: Path, drawn: Path, timeout: float, on_cell: Callable) -> tuple[NotebookNode, float]:
    """Run the notebook at `path`, drawing into `drawn`; return it and the MB that its kernel took.

    A kernel that dies or hangs before its first cell is done gets one more try.
    """
    folders = {"AGENTRL_FIGURES": str(drawn), "IPYTHONDIR": str(drawn / ".ipython")}
    env = {**os.environ, **KERNEL_ENV, **folders}
    sizes: list[float] = []

    def done(megabytes: float) -> None:
        sizes.append(megabytes)
        on_cell()

    for attempt in (1, 2):
        try:
            return clean(execute_once(path, env, timeout, done)), max(sizes, default=0)
        except CellExecutionError as error:
            raise Failure(failure_text(path, len(sizes), error)) from error
        except (RuntimeError, TimeoutError) as error:  # the kernel died, or did not answer in time
            if sizes or attempt == 2:
                raise Failure(failure_text(path, len(sizes) + 1, error)) from error


def store(path: Path, timeout: float, on_cell: Callable[[], None], root: Path = ROOT) -> Run:
    """Execute the notebook at `path`; write its `.ipynb` and its figures if every cell succeeded."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        drawn = stage(Path(temporary), root / "figures")
        notebook, megabytes = execute(path, drawn, timeout, on_cell)
        figures = {name: file.read_bytes() for name, file in made(drawn).items()}
    for name, content in figures.items():
        write_atomically(root / "figures" / name, content)
    write_atomically(path.with_suffix(".ipynb"), nbformat.writes(notebook).rstrip("\n") + "\n")
    return Run(time.monotonic() - started, megabytes, list(figures))


# What need not be done again


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def record_of(path: Path, root: Path = ROOT) -> Path:
    """Where the last execution of a notebook is remembered."""
    folder = Path(os.environ.get("AGENTRL_CACHE", root / ".cache"))
    return folder / "executed" / f"{section(path, root).replace('/', '.')}.json"


def remember(path: Path, key: str, figures: list[str], root: Path = ROOT) -> None:
    files = [path.with_suffix(".ipynb"), *(root / "figures" / name for name in figures)]
    hashes = {file.relative_to(root).as_posix(): digest(file.read_bytes()) for file in files}
    write_atomically(record_of(path, root), json.dumps({"key": key, "files": hashes}, indent=1))


def up_to_date(path: Path, key: str, root: Path = ROOT) -> list[str] | None:
    """The files that the last execution wrote, if nothing changed since; else None."""
    try:
        record = json.loads(record_of(path, root).read_text(encoding="utf-8"))
        same = all(digest((root / name).read_bytes()) == found for name, found in record["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return list(record["files"]) if same and record["key"] == key else None


def writes_figures(path: Path) -> bool:
    """Whether a cell of the notebook calls `save_figure` or `save_table`."""
    calls = [node.func for node in ast.walk(ast.parse(notebook_code(path))) if isinstance(node, ast.Call)]
    return any(getattr(call, "id", getattr(call, "attr", "")) in {"save_figure", "save_table"} for call in calls)


# The command


def main(
    notebooks: Annotated[list[Path] | None, typer.Argument(help="Notebooks; default: all.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Only those that write figures.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Execute even what is up to date.")] = False,
    jobs: Annotated[int, typer.Option(help="Kernels at a time.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that one notebook may take.")] = 300,
) -> None:
    """Execute notebooks and store their outputs."""
    paths = [path.resolve().with_suffix(".py") for path in notebooks or find_notebooks()]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise typer.BadParameter(f"no such notebook: {', '.join(missing)}")
    paths = [path for path in dict.fromkeys(paths) if not figures or writes_figures(path)]
    keys = {path: notebook_key(path) for path in paths}
    fresh = {path: files for path in paths if not force and (files := up_to_date(path, keys[path])) is not None}
    todo = [path for path in paths if path not in fresh]

    lines = {path: [f"up to date  {name}" for name in files] for path, files in fresh.items()}
    failed = {}
    total = sum(len(code_cells(read_source(path))) for path in todo)
    quiet = 0.5 if sys.stderr.isatty() else 20
    bar = tqdm(total=total, unit="cell", mininterval=quiet, disable=not todo)
    with contextlib.ExitStack() as stack:
        if len(todo) > 2 and sys.platform == "linux":
            stack.callback(fork_kernels(KERNEL_ENV))
        stack.enter_context(bar)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        runs = {pool.submit(store, path, timeout, bar.update): path for path in todo}
        for run in as_completed(runs):
            path = runs[run]
            try:
                result = run.result()
            except Failure as error:
                failed[path] = error
                bar.write(f"FAILED {error}", file=sys.stderr)
                continue
            remember(path, keys[path], result.figures)
            name = path.with_suffix(".ipynb").relative_to(ROOT).as_posix()
            lines[path] = [f"wrote       {name}  ({result.seconds:.0f} s, {result.megabytes:.0f} MB)"]
            lines[path] += [f"wrote       figures/{figure}" for figure in result.figures]
    for path in paths:
        print("\n".join(lines.get(path, [f"FAILED      {path.relative_to(ROOT).as_posix()}"])))
    done = len(todo) - len(failed)
    print(f"{len(paths)} notebooks: {done} executed, {len(fresh)} up to date, {len(failed)} failed")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
