"""What a notebook or a test depends on, definition by definition, as section 0.3.1 follows it.

A stored output and a passed check stay good until something changes that was reached: a definition of `agentrl` that
the code uses, directly or not, also one that only draws; a table that it reads; a file of `tools` or `tests` that it
imports; the versions of the packages.
"""

import ast
import functools
import hashlib
import platform
import re
from pathlib import Path

from agentrl.pieces import digest, imported_names, make_piece
from agentrl.versions import Space, code_lines, reach, targets_of
from tools.notebooks import ROOT, code_cells, read_source

READERS = {  # files in figures, and the definition by which code reads them
    "book_results.csv": "book_results",
    "claims.csv": "read_claims",
    "data/credit_lab.csv": "lab_path",
}
# Words of a test that looks at the book as a whole, at notebooks, figures or commands: any change concerns it.
WHOLE = re.compile(r"\b(ROOT|FIGURES|find_notebooks|read_source|subprocess|read_claims|book_results|read_runs)\b")


def reached_by(source: str) -> dict[tuple, list]:
    """{(Space, name): Pieces} of all definitions of `agentrl` that Python code reaches."""
    tree, space = ast.parse(source), Space("")
    for node in ast.walk(tree):
        space.imports |= imported_names(node)
    pieces = [make_piece(ast.unparse(node), whole=True) for node in tree.body]
    return reach({place for piece in pieces for place in targets_of(space, piece, True).values()}, whole=True)


def studies_in(source: str, reached: dict[tuple, list]) -> set[str]:
    """Names of the studies that code defines or reaches."""
    statements = [node for space, name in reached for node in space.definitions.get(name, [])]
    statements += ast.parse(source).body
    calls = [node.value for node in statements if isinstance(getattr(node, "value", None), ast.Call)]
    return {
        call.args[0].value
        for call in calls
        if getattr(call.func, "id", "") == "Study" and isinstance(call.args[0], ast.Constant)
    }


def tables_of(source: str, reached: dict[tuple, list], figures: Path) -> list[Path]:
    """The files in `figures` that code reads: the runs of each study that it reaches, and what READERS or it name."""
    names = {name for _, name in reached}
    files = [figures / file for file, reader in READERS.items() if reader in names or reader in source]
    files += [
        path for study in sorted(studies_in(source, reached)) for path in sorted(figures.glob(f"data/{study}_*.csv"))
    ]
    files += [path for path in sorted((figures / "data").glob("*.csv")) if path.name in source]
    return [path for path in dict.fromkeys(files) if path.exists()]


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def own_modules(source: str) -> tuple[Path, ...]:
    """Files of `tools` and `tests` that code imports, directly or not."""
    found, queue = {}, [source]
    while queue:
        for node in ast.walk(ast.parse(queue.pop())):
            for full in imported_names(node).values():
                top, *parts = full.split(".")
                path = ROOT / top / f"{parts[0]}.py" if parts and top in ("tools", "tests") else ROOT / "none"
                if path not in found and path.exists():
                    found[path] = path.read_text(encoding="utf-8")
                    queue.append(found[path])
    return tuple(found)


@functools.cache
def environment() -> str:
    """What stays the same in a session: the versions of packages and of Python, and the settings of all checks."""
    files = [ROOT / name for name in ("requirements.lock", "pyproject.toml", "conftest.py", "tests/conftest.py")]
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    return digest("\n".join([platform.python_version(), *texts]))


def key_of(source: str, figures: Path, *more: Path) -> str:
    """A hash of some code and all that it depends on; `more` are files that count as well."""
    reached = reached_by(source)
    files = [*tables_of(source, reached, figures), *own_modules(source), *more]
    contents = [file_digest(file) for file in files if file.exists()]
    return digest("\n".join([source, environment(), *contents, *code_lines(reached, whole=True)]))


def notebook_code(path: Path) -> str:
    """All code of a notebook as one text; cells that are not plain Python (magics) are left out."""
    cells = []
    for _, source in code_cells(read_source(path)):
        try:
            ast.parse(source)
        except SyntaxError:
            continue
        cells.append(source)
    return "\n".join(cells)


def notebook_key(path: Path, root: Path = ROOT) -> str:
    """The key of a notebook's outputs."""
    return key_of(notebook_code(path), root / "figures", path, Path(__file__).with_name("execute.py"))


@functools.cache
def whole_book() -> str:
    """A hash of every file of the book but for what is made, for tests that look at all of it."""
    folders = ("agentrl", "figures", "notebooks", "site", "tests", "tools")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    files = [path for path in [*files, *sorted(ROOT.glob("*.*"))] if path.is_file() and path.suffix != ".pyc"]
    return digest("".join(map(file_digest, files)))


def check_key(path: Path) -> str:
    """The key of a test file's result."""
    source = path.read_text(encoding="utf-8")
    return digest(key_of(source, ROOT / "figures", path) + (whole_book() if WHOLE.search(source) else ""))
