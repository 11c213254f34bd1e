"""Gather the `#@save` cells of each notebook into one module of `agentrl`.

    python -m tools.export            write what changed
    python -m tools.export --check    name stale, orphaned and hand-edited modules, write nothing

A cell exports when its first line is `#@save` (or `# @save`); a notebook's first such line names the module:
`#@save tasks` makes `agentrl/tasks.py`. The order of sections is the order of paths.
"""

import ast
import hashlib
import keyword
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from tools.notebooks import ROOT, code_cells, find_notebooks, read_source, section, title, write_atomically

SAVE = re.compile(r"#\s?@save\b(.*)")
BANNER = re.compile(r"# Made by tools/export\.py from (.+)\. Do not edit: .*\n# Body: ([0-9a-f]{16})\n")


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where."""

    notebook: str
    cell: int | None
    message: str

    def __str__(self) -> str:
        where = f"notebooks/{self.notebook}.py" if self.notebook else "agentrl"
        return f"{where}{f', cell {self.cell}' if self.cell else ''}: {self.message}"


@dataclass
class Module:
    """The exporting cells of one notebook."""

    name: str
    notebook: str
    title: str
    cells: list[tuple[int, str, ast.Module]] = field(default_factory=list)  # number, source, tree


# Reading: notebook -> module


def read_module(path: Path, root: Path, problems: list[Problem]) -> Module | None:
    """The module that a notebook feeds, or None; what is wrong is added to `problems`."""
    where, notebook = section(path, root), read_source(path)
    module = Module("", where, title(notebook))
    for number, source in code_cells(notebook):
        first, *rest = source.splitlines()
        if any(SAVE.fullmatch(line) for line in rest):
            problems.append(Problem(where, number, "`#@save` must be the first line of its cell"))
        if not (mark := SAVE.fullmatch(first)):
            continue
        name = mark[1].strip()
        if name and not (name.isidentifier() and name.islower() and not keyword.iskeyword(name)):
            problems.append(Problem(where, number, f"`{first}`: a module's name is one lower-case word"))
        elif name and module.name and name != module.name:
            message = f"two names for one notebook: `{module.name}`, then `{name}`"
            problems.append(Problem(where, number, message))
        elif not name and not module.name and not module.cells:
            message = "the first exporting cell must name the module: `#@save name`"
            problems.append(Problem(where, number, message))
        module.name = module.name or name
        try:
            tree = compile(source, f"{where}, cell {number}", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            compile(tree, f"{where}, cell {number}", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            problems.append(Problem(where, number, f"the exporting cell does not compile: {error}"))
            tree = ast.Module([], [])
        module.cells.append((number, source, tree))
    return module if module.cells else None


def read_modules(root: Path, problems: list[Problem]) -> list[Module]:
    """Every module, in the order of sections."""
    return [module for path in find_notebooks(root) if (module := read_module(path, root, problems))]


def defined_names(tree: ast.Module) -> list[str]:
    """Names that the cell defines at its top level: functions, classes, assigned names."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = (leaf for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
            names += [leaf.id for leaf in stored if isinstance(leaf.ctx, ast.Store)]
    return names


def public_names(module: Module) -> list[str]:
    """What a module offers, in the order of definition."""
    names = [name for _, _, tree in module.cells for name in defined_names(tree)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


# Checking


def used_modules(tree: ast.AST, homes: dict[str, str]) -> list[str]:
    """Modules of `agentrl` that code uses, by import or as `agentrl.name` (`homes`: name -> module)."""
    used, aliases = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "agentrl":
                    aliases.add(alias.asname or alias.name)
                elif alias.name.startswith("agentrl."):
                    used.append(alias.name.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "agentrl":
            used += [homes.get(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentrl."):
            used.append(node.module.split(".")[1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            used.append(homes.get(node.attr, node.attr))
    return [name for name in dict.fromkeys(used) if not name.startswith("__")]


def check_names(modules: list[Module]) -> list[Problem]:
    """Two notebooks on one module, two definitions of one name, a name that hides a module."""
    problems, owners, homes = [], {}, {}
    for module in modules:
        if module.name and module.name in owners:
            message = f"module `{module.name}` is already made by notebooks/{owners[module.name]}.py"
            problems.append(Problem(module.notebook, module.cells[0][0], message))
        owners.setdefault(module.name, module.notebook)
    for module in modules:
        for number, _, tree in module.cells:
            for name in defined_names(tree):
                if name in homes and not name.startswith("_"):
                    message = "`{}` is already defined in notebooks/{}.py, cell {}".format(name, *homes[name])
                    problems.append(Problem(module.notebook, number, message))
                elif name in owners:
                    message = f"`{name}` is also the name of a module: agentrl.{name} would mean two things"
                    problems.append(Problem(module.notebook, number, message))
                homes.setdefault(name, (module.notebook, number))
    return problems


def check_order(modules: list[Module]) -> list[Problem]:
    """An exporting cell may import modules of earlier sections only."""
    homes = {name: module.name for module in modules for name in public_names(module)}
    order = {module.name: place for place, module in reversed(list(enumerate(modules)))}
    problems = []
    for place, module in enumerate(modules):
        for number, _, tree in module.cells:
            for used in used_modules(tree, homes):
                if used not in order:
                    known = ", ".join(sorted(order)) or "none"
                    message = f"no module agentrl.{used}; there are: {known}"
                    problems.append(Problem(module.notebook, number, message))
                elif order[used] >= place:
                    later = modules[order[used]].notebook
                    message = f"imports agentrl.{used}, which a later section makes (notebooks/{later}.py)"
                    if order[used] == place:
                        message = f"imports agentrl.{used}, the module that this notebook makes"
                    problems.append(Problem(module.notebook, number, message))
    return problems


# Writing: module -> text


def _group(module: str) -> int:
    top = module.split(".")[0]
    return 0 if top == "__future__" else 1 if top in sys.stdlib_module_names else 3 if top == "agentrl" else 2


def _rank(pair: tuple[str, str | None]) -> tuple:  # constants, classes, functions: the order that ruff wants
    name = pair[0]
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name.lower(), name)


def _aliased(name: str, alias: str | None) -> str:
    return f"{name} as {alias}" if alias else name


def merge_imports(trees: list[ast.Module]) -> str:
    """The imports of all cells, each once: standard library, other packages, agentrl."""
    plain, named = set(), {}
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.Import):
            plain |= {(alias.name, alias.asname) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.setdefault(node.module, set()).update((alias.name, alias.asname) for alias in node.names)

    lines = [(_group(name), 0, name.lower(), f"import {_aliased(name, alias)}") for name, alias in plain]
    for name, pairs in named.items():
        members = [_aliased(*pair) for pair in sorted(pairs, key=_rank)]
        line = f"from {name} import {', '.join(members)}"
        if len(line) > 110:
            line = f"from {name} import (\n" + "".join(f"    {member},\n" for member in members) + ")"
        lines.append((_group(name), 1, name.lower(), line))
    lines.sort()
    blocks = ["\n".join(line for g, *_, line in lines if g == wanted) for wanted in range(4)]
    return "\n\n".join(block for block in blocks if block)


def without_imports(module: Module) -> list[str]:
    """The cells' code less `#@save` and imports, with a pointer to the source above each definition."""
    blocks = []
    for number, source, tree in module.cells:
        lines = source.splitlines()
        lines[0] = ""
        starts = []
        for node in tree.body:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines[first : node.end_lineno] = [""] * (node.end_lineno - first)
                continue
            while first > 1 and lines[first - 1].startswith("#"):
                first -= 1  # comments stay with what they explain
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not starts:
                starts.append(first)
        for start in reversed(starts):
            lines.insert(start, f"# {module.notebook}, cell {number}")
        blocks.append("\n".join(lines).strip("\n"))
    return [block for block in blocks if block.strip()]


def render(notebook: str, body: str) -> str:
    """The text of a generated file: banner, then body."""
    source = f"notebooks/{notebook}.py" if notebook else "all notebooks"
    banner = f"# Made by tools/export.py from {source}. Do not edit: change it there, then `make export`."
    return f"{banner}\n# Body: {digest(body)}\n{body}"


def digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def render_module(module: Module) -> str:
    """The text of `agentrl/<module>.py`."""
    doc = '"""' + (module.title or module.name).replace("\\", "\\\\").replace('"', "'") + '."""'
    imports = merge_imports([tree for _, _, tree in module.cells])
    blocks = without_imports(module)
    defines = bool(blocks) and re.match(r"(#.*\n)*(@|def |class |async )", blocks[0])
    head = "\n\n".join([doc, imports] if imports else [doc])
    body = head + ("\n\n\n" if defines else "\n\n") + "\n\n\n".join(blocks)
    return render(module.notebook, body.rstrip("\n") + "\n")


def render_init(modules: list[Module]) -> str:
    """The text of `agentrl/__init__.py`: every public name, loaded with its module when first asked for."""
    pairs = [(name, module.name) for module in modules for name in public_names(module)]
    homes = "".join(f'    "{name}": "{home}",\n' for name, home in pairs)
    names = "".join(f'    "{name}",\n' for name in sorted(name for name, _ in pairs))
    body = f'''"""Reinforcement learning for language-model agents: the code of the book's notebooks.

A name is loaded with its module when it is first used, so that no section runs the code of a later one.
"""

from importlib import import_module

__all__ = [
{names}]

_HOME = {{
{homes}}}


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'agentrl' has no attribute {{name!r}}")
    value = globals()[name] = getattr(import_module(f"agentrl.{{_HOME[name]}}"), name)
    return value


def __dir__():
    return sorted([*globals(), *__all__])
'''
    return render("", body)


# The command


def build(root: Path = ROOT) -> tuple[dict[str, str], list[Problem]]:
    """(file name -> text) of the whole package, and what is wrong with the notebooks."""
    problems: list[Problem] = []
    modules = read_modules(root, problems)
    problems += check_names(modules) + check_order(modules)
    bad = {problem.notebook for problem in problems}
    sound = [module for module in modules if module.notebook not in bad]
    files = {f"{module.name}.py": render_module(module) for module in sound}
    return {"__init__.py": render_init(sound), **files}, problems


def state(path: Path, text: str | None) -> str:
    """fresh, missing, stale, orphaned or hand-edited: the file beside the text that it should hold."""
    if not path.exists():
        return "missing"
    found = path.read_text(encoding="utf-8")
    if found == text:
        return "fresh"
    banner = BANNER.match(found)
    if not banner or digest(found[banner.end() :]) != banner[2]:
        return "hand-edited"
    return "stale" if text is not None else "orphaned"


def states(root: Path, files: dict[str, str]) -> dict[str, str]:
    """The state of every file that is, or should be, in `agentrl/`."""
    names = sorted({*files, *(path.name for path in (root / "agentrl").glob("*.py"))})
    return {name: state(root / "agentrl" / name, files.get(name)) for name in names}


def export(
    check: Annotated[bool, typer.Option("--check", help="Compare only; write nothing.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Write sound modules, leave others.")] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds notebooks/ and agentrl/.")] = ROOT,
) -> None:
    """Write agentrl/ from the notebooks' `#@save` cells."""
    files, problems = build(root)
    for problem in problems:
        print(f"error: {problem}")
    if problems and not partial:
        raise typer.Exit(1)
    found = {name: kind for name, kind in states(root, files).items() if kind != "fresh"}
    if problems:
        found = {name: kind for name, kind in found.items() if name in files}
    edited = [name for name, kind in found.items() if kind == "hand-edited"]
    for name in found if check else edited:
        advice = "move the change to its notebook and delete it" if name in edited else "run `make export`"
        print(f"{found[name]}: agentrl/{name} ({advice})")
    if check or (edited and not partial):
        raise typer.Exit(1 if found or problems else 0)
    for name, kind in found.items():
        if kind == "hand-edited":
            continue
        if kind == "orphaned":
            (root / "agentrl" / name).unlink()
        else:
            write_atomically(root / "agentrl" / name, files[name])
        print(f"{'removed' if kind == 'orphaned' else 'wrote'} agentrl/{name}")
    print(f"agentrl: {len(files) - 1} modules from the notebooks, {len(found) - len(edited)} files changed")
    raise typer.Exit(1 if problems or edited else 0)


if __name__ == "__main__":
    typer.run(export)
