"""What the head of a notebook promises, and what the notebook itself says of it.

    python -m tools.heads            one line a notebook: stated and estimated time, what it assumes, what is wrong

A head is the last paragraph of the first cell: **Time** .. min. **Assumes** links. **Afterwards you can** ...
"""

import ast
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nbformat import NotebookNode

from tools.export import public_names, read_modules, used_modules
from tools.notebooks import ROOT, code_cells, find_notebooks, read_source, title

WORDS_A_MINUTE, LINES_A_MINUTE, STEP = 200, 15, 5
TOOLS = {"plotting", "pieces", "versions", "cache", "exercises"}  # used everywhere, and read when they are wanted
LINK = re.compile(r"\[([\d.]+)\]\(([^)\s]+\.ipynb)\)")
LIST = r"no other section|\[.+?\)(?:(?:, | to )\[.+?\))*"
FORM = re.compile(rf"\*\*Time\*\* (\d+) min\. \*\*Assumes\*\* ({LIST})\. \*\*Afterwards you can\*\* ([^*]+\.)")


@dataclass(frozen=True)
class Head:
    """Minutes, links as (number, address), pairs of links that are joined by "to", and the promise."""

    minutes: int
    links: list[tuple[str, str]]
    ranges: list[tuple[str, str]]
    can: str


def last_paragraph(notebook: NotebookNode) -> str:
    """The last paragraph of the first cell, as one line."""
    return " ".join(notebook.cells[0].source.strip().split("\n\n")[-1].split())


def read_head(notebook: NotebookNode) -> Head | None:
    """The head, or None where the last paragraph of the first cell is none."""
    if not (found := FORM.fullmatch(last_paragraph(notebook))):
        return None
    minutes, assumes, can = found.groups()
    ranges = re.findall(rf"{LINK.pattern} to {LINK.pattern}", assumes)
    return Head(int(minutes), LINK.findall(assumes), [(first, last) for _, first, _, last in ranges], can)


def reading_minutes(notebook: NotebookNode) -> int:
    """Minutes to read a notebook: 200 words or 15 lines of code in one, to the next 5, at least 5.

    Words are those of the text, formulas and tables included; empty lines of code do not count. Neither do
    waiting, exercises and a second reading.
    """
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    words = sum(bool(re.search(r"\w", word)) for text in texts for word in text.split())
    lines = sum(bool(line.strip()) for _, source in code_cells(notebook) for line in source.splitlines())
    return max(STEP, STEP * round((words / WORDS_A_MINUTE + lines / LINES_A_MINUTE) / STEP))


def assumed(path: Path, head: Head) -> list[Path]:
    """The notebooks that a head names, and those between the two ends of a range; no others, if a link is broken."""
    order = [found.with_suffix(".ipynb") for found in find_notebooks()]
    place = {address: Path(os.path.normpath(path.parent / address)) for _, address in head.links}
    found = {other for other in place.values() if other in order}
    for first, last in head.ranges:
        if {place[first], place[last]} <= found:
            found |= set(order[order.index(place[first]) : order.index(place[last]) + 1])
    return sorted(other.with_suffix(".py") for other in found)


def all_assumed(path: Path, assumes: dict[Path, list[Path]]) -> set[Path]:
    """What a notebook assumes, what that assumes, and so on."""
    found, queue = set(), list(assumes[path])
    while queue:
        if (other := queue.pop()) not in found:
            found.add(other)
            queue += assumes.get(other, [])
    return found


@cache
def exported() -> tuple[dict[str, str], dict[str, Path]]:
    """{public name: module} and {module: the notebook that exports it}."""
    modules = read_modules(ROOT, [])
    names = {public: module.name for module in modules for public in public_names(module)}
    return names, {module.name: ROOT / "notebooks" / f"{module.notebook}.py" for module in modules}


def imported(path: Path, notebook: NotebookNode) -> dict[str, Path]:
    """{module: the notebook that exports it} for what a notebook imports from others."""
    names, homes = exported()
    trees = [ast.parse(source) for _, source in code_cells(notebook)]
    used = {name for tree in trees for name in used_modules(tree, names)}
    return {name: homes[name] for name in sorted(used) if homes[name] != path}


if __name__ == "__main__":
    notebooks = {path: read_source(path) for path in find_notebooks()}
    heads = {path: read_head(notebook) for path, notebook in notebooks.items()}
    assumes = {path: assumed(path, head) if head else [] for path, head in heads.items()}
    for path, notebook in notebooks.items():
        known = all_assumed(path, assumes)
        missing = [name for name, home in imported(path, notebook).items() if name not in TOOLS and home not in known]
        head, number = heads[path], title(notebook).split()[0]
        stated = f"{head.minutes:3d} min" if head else "no head"
        links = " ".join(link for link, _ in head.links) if head else ""
        print(f"{number:7}{stated}, estimate {reading_minutes(notebook):3d}; assumes {links or '-'}", end="")
        print(f"; NOT ASSUMED: {', '.join(missing)}" if missing else "")
