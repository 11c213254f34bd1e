"""Find and read the book's notebooks: the percent `.py` is the source, its `.ipynb` holds the outputs."""

from __future__ import annotations

import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its import takes a second, also of those who only want a path
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
FORMAT = "py:percent"
# Where outputs are stored or compared: no progress bars, one thread a kernel, figures inline.
KERNEL_ENV = {
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def find_notebooks(root: Path = ROOT, suffix: str = ".py") -> list[Path]:
    """Every notebook under `root/notebooks`, in the order of the book (sorted path)."""
    base = root / "notebooks"
    found = {path.relative_to(base).as_posix(): path for path in base.rglob(f"*{suffix}")}
    return [found[name] for name in sorted(found) if "/." not in f"/{name}"]


def section(path: Path, root: Path = ROOT) -> str:
    """`05_trajectories/05_2_episodes` for the notebook at `path`."""
    return path.relative_to(root / "notebooks").with_suffix("").as_posix()


@cache
def parse(text: str) -> NotebookNode:
    import jupytext

    return jupytext.reads(text, fmt=FORMAT)


def read_source(path: Path) -> NotebookNode:
    """The notebook in a percent `.py`, for the caller to change; the same text is parsed once only."""
    return deepcopy(parse(path.read_text(encoding="utf-8")))


def code_cells(notebook: NotebookNode) -> list[tuple[int, str]]:
    """(number, source) of each code cell; the number is the one that Jupyter shows, `In [number]`."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    return list(enumerate(sources, start=1))


def title(notebook: NotebookNode) -> str:
    """The first `# ` heading."""
    for cell in notebook.cells:
        for line in cell.source.splitlines():
            if cell.cell_type == "markdown" and line.startswith("# "):
                return line[2:].strip()
    return ""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` in one step, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)
