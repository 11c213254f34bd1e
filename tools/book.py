"""Make static pages of the executed notebooks: lay out sources in .site/source, let Sphinx write .site/html.

    python -m tools.book

Nothing is executed, and nothing is fetched: MathJax and its fonts come with a package of the `book` extra.
"""

import ast
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from agentrl.symptoms import symptom_table
from tools.export import Module, defined_names, public_names, read_modules
from tools.figures import FIGURES, made
from tools.notebooks import ROOT, code_cells, find_notebooks, read_source, section, title, write_atomically
from tools.symptoms import section_links

PAGES = ROOT / "site"
SITE = ROOT / ".site"
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2")
UPPER = {"ppo": "PPO", "grpo": "GRPO"}
WIDGETS = ("application/vnd.jupyter.widget-view+json", "application/javascript")
WIDGET_TEXT = re.compile(r"^(interactive\(children=|\w*Box\(children=|\w+\(children=|\w*Slider\()")
STATIC = (
    '<p class="static-view">Here stands something to play with. It moves where the notebook runs: '
    "<code>make lab</code>. The cells around it do the same in plain code.</p>"
)


# What the book holds


@cache
def heading(path: Path) -> str:
    """The title of a notebook, `7.1 Skip ...`."""
    return title(read_source(path))


@cache
def modules() -> dict[str, Module]:
    """{'07_advantages/07_1_returns_and_gae': its module}."""
    return {module.notebook: module for module in read_modules(ROOT, [])}


def chapters() -> dict[str, list[Path]]:
    """{'07_advantages': its notebooks}, in the order of the book."""
    found = {}
    for path in find_notebooks():
        found.setdefault(path.parent.name, []).append(path)
    return found


def chapter_title(folder: str) -> str:
    """`9 GRPO` for 09_grpo, `Solutions` for solutions."""
    words = [UPPER.get(word, word) for word in folder.split("_")]
    number = [str(int(words.pop(0)))] if words[0].isdigit() else []
    text = " ".join(words)
    return " ".join([*number, text[0].upper() + text[1:]]).replace("Multi turn", "Multi-turn")


def label(module: str, cell: int) -> str:
    """The anchor of an exporting cell."""
    return f"{module}-cell-{cell}"


@cache
def homes() -> dict[str, tuple[str, str, int]]:
    """{'agentrl.credit.gae_advantages': (section number, notebook, cell)} for every public name."""
    found = {}
    for module in modules().values():
        for number, _, tree in module.cells:
            for name in defined_names(tree):
                found.setdefault(f"agentrl.{module.name}.{name}", (module.title.split()[0], module.name, number))
    return found


def what_to_see() -> dict[str, str]:
    """{notebook: what the README's table says is to be seen in it}."""
    rows = re.findall(r"^\| [\d.]+ \[.+?\]\(notebooks/(.+?)\.ipynb\) \| (.*?) \|", readme(), re.MULTILINE)
    return dict(rows)


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def escape(text: str) -> str:
    """Markdown that shows `text` as it is."""
    return re.sub(r"([\\`*_{}\[\]<>$|#~])", r"\\\1", text)


# Notebooks


def make_static(output: dict) -> None:
    """Leave an output as a page can show it: links to pages, and of a widget what else is stored, or a sentence."""
    data = output.get("data", {})
    if "text/markdown" in data:
        data["text/markdown"] = re.sub(r"\.ipynb\)", ".html)", "".join(data["text/markdown"]))
    was_widget = any(data.pop(kind, None) for kind in WIDGETS)
    text = "".join(data.get("text/plain", ""))
    if data and set(data) <= {"text/plain"} and (was_widget or WIDGET_TEXT.match(text)):
        output["data"] = {"text/html": STATIC, "text/plain": text}


def picture_names(source: str) -> list[str]:
    """Names that a cell gives to save_figure or save_table."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    ours = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id in ("save_figure", "save_table")]
    values = [value.value for node in ours for value in node.args if isinstance(value, ast.Constant)]
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def is_shown(source: str) -> list[str]:
    """picture_names of a cell, none of a cell with IPython magic."""
    try:
        return picture_names(source)
    except SyntaxError:
        return []


def stage_notebook(path: Path) -> str:
    """The stored notebook of a section as the site needs it: anchors, pictures with a text, no live widgets."""
    notebook = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    module, where = modules().get(section(path)), heading(path).split(" ", 1)[0]
    exporting = {number for number, _, _ in module.cells} if module else set()
    notebook["metadata"].pop("widgets", None)
    cells, number, placed = [], 0, set()
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = re.sub(r"\]\((?:\.\./)+README\.md", "](../../index.md", source)
        elif cell["cell_type"] == "code" and source.strip():
            number += 1
            for output in cell["outputs"]:
                make_static(output)
            drawn = is_shown(source)
            alt = f"Picture made by cell {number} of {where}" + f": {', '.join(drawn)}" * bool(drawn)
            cell["metadata"]["mystnb"] = {"image": {"alt": alt}}
            names = [(f"({label(module.name, number)})=")] if number in exporting else []
            names += [f"(made-{name})=" for name in drawn if name in all_pictures() and name not in placed]
            placed.update(drawn)
            if names:
                text = "\n".join(names)
                cells.append({"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text})
        cells.append(cell)
    return json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False)


@cache
def agentrl_names(notebook: str) -> dict[str, str]:
    """{name: page and anchor} for what a section imports from agentrl or exports to it."""
    module, found = modules().get(notebook), {}
    if module:
        found |= {name: module.name for name in public_names(module)}
    for _, source in code_cells(read_source(ROOT / "notebooks" / f"{notebook}.py")):
        for name, home in re.findall(r"^\s*from agentrl\.(\w+) import (\([^)]*\)|.*)", source, re.MULTILINE):
            found |= {word: name for word in re.findall(r"\w+", home)}
    return {n: f"api/{m}.html#agentrl.{m}.{n}" for n, m in found.items() if f"agentrl.{m}.{n}" in homes()}


def link_code(notebook: str, body: str) -> str:
    """The HTML of a section with names of the package, where its code uses them, as links to their pages."""
    names = agentrl_names(notebook)

    def link(mark: re.Match) -> str:
        target = names.get(mark[2])
        return f'<a class="api" href="../../{target}">{mark[0]}</a>' if target else mark[0]

    return re.sub(r'<span class="(n|nc|nf)">(\w+)</span>', link, body)


# Figures and tables


@cache
def all_pictures() -> dict[str, list[str]]:
    """{'07_1_skip_or_decay': its files}, relative to figures/."""
    found = {}
    for name in made():
        found.setdefault(Path(name).stem, []).append(name)
    return found


@cache
def makers() -> dict[str, Path]:
    """{'07_1_skip_or_decay': the notebook that saves it}."""
    found = {}
    for path in find_notebooks():
        for _, source in code_cells(read_source(path)):
            found |= {name: path for name in is_shown(source) if name in all_pictures()}
    return found


def read_table(name: str) -> tuple[list[str], list[list[str]]]:
    with (FIGURES / "tables" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture_number(name: str) -> str:
    """`7.1 skip or decay` for 07_1_skip_or_decay."""
    number = re.match(r"(?:s_)?(\d+)_(\d+)_(.+)", name)
    return f"{int(number[1])}.{number[2]} {number[3].replace('_', ' ')}" if number else name.replace("_", " ")


def picture_entry(name: str) -> str:
    """One figure or table: heading, picture or short table, the cell that makes it, its files."""
    files, (header, rows) = all_pictures()[name], read_table(name)
    pictures = [file for file in files if not file.startswith("tables/")]
    kind = "Figure" if pictures else "Table"
    parts = [f"(item-{name})=\n### {kind} {picture_number(name)}"]
    parts += [f"![{kind} {picture_number(name)}](figures/{file})" for file in pictures]
    if not pictures and len(rows) <= 12 and len(header) <= 8:
        parts.append(markdown_table(map(escape, header), [map(escape, row) for row in rows]))
    links = ", ".join(f"{{download}}`{Path(file).name} <figures/{file}>`" for file in files)
    made_by = f"[{heading(makers()[name])}](#made-{name})"
    columns = ", ".join(f"`{column}`" for column in header)
    parts.append(f"Made in {made_by}. Files: {links}; {len(rows)} rows of {columns}.")
    return "\n\n".join(parts)


def figures_page() -> str:
    """All figures and tables by chapter."""
    parts = [
        "# Figures and tables",
        (
            "Every figure of the book is drawn from a table that is kept beside it, and every table is a file "
            "(section 0.2). The names here are those of the files in `figures/` and `figures/tables/`."
        ),
    ]
    for folder, paths in chapters().items():
        names = [name for path in paths for name in all_pictures() if makers().get(name) == path]
        if names:
            parts += [f"## {chapter_title(folder)}", *map(picture_entry, names)]
    return "\n\n".join(parts) + "\n"


# The package


def plain_rst(text: str) -> str:
    """RST that shows a line of plain text; what stands between backticks is code."""
    parts = re.split(r"`+([^`]+)`+", text)
    return "".join(f"``{p}``" if n % 2 else re.sub(r"([\\*_|`])", r"\\\1", p) for n, p in enumerate(parts))


def as_rst(lines: list[str], name: str = "") -> list[str]:
    """A plain docstring as RST: paragraphs stay paragraphs, indented lines keep their places."""
    text = "\n".join(lines).strip()
    if text.startswith(f"{name.rpartition('.')[2]}("):  # what a dataclass without a docstring is given
        return []
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        rows = paragraph.splitlines()
        hanging = any(row.startswith(" ") for row in rows)
        mark = "| " if hanging else ""
        found += [f"{mark}{' ' * (len(row) - len(row.lstrip()))}{plain_rst(row.strip())}" for row in rows] + [""]
    return found


def source_line(what: str, name: str) -> list[str]:
    """A pointer from a name of the package to the cell that explains it."""
    if what == "module" or name not in homes():
        return []
    number, module, cell = homes()[name]
    return [f":ref:`Section {number}, cell {cell} <{label(module, cell)}>`", ""]


def constant(name: str, node: ast.Assign | ast.AnnAssign, full: str) -> str:
    """The entry of a constant: its value where it is short."""
    value = ast.unparse(node.value) if node.value else ""
    option = [f"   :value: {value}"] if value and len(value) <= 80 else []
    return "\n".join([f".. py:data:: {name}", *option, "", *(f"   {line}" for line in source_line("data", full))])


def module_page(module: Module) -> str:
    """The page of one module, its names in the order in which its notebook defines them."""
    name = f"agentrl.{module.name}"
    heading = f"{name}\n{'=' * len(name)}"
    parts = [heading, f":doc:`{module.title} </notebooks/{module.notebook}>`", f".. py:module:: {name}"]
    public = set(public_names(module))
    for _, _, tree in module.cells:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in public:
                parts.append(f".. autofunction:: {name}.{node.name}")
            elif isinstance(node, ast.ClassDef) and node.name in public:
                parts.append(f".. autoclass:: {name}.{node.name}\n   :members:\n   :member-order: bysource")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                single = ast.Module([node], [])
                parts += [constant(n, node, f"{name}.{n}") for n in defined_names(single) if n in public]
    return "\n\n".join(parts) + "\n"


def package_page() -> str:
    """The list of modules."""
    parts = [
        "The package agentrl\n===================",
        "Every name is written once, in the notebook that explains it; the package is made from those cells. "
        "``import agentrl`` gives all names, each loaded with its module when it is first used.",
        ".. list-table::\n   :widths: 25 75\n   :header-rows: 1\n\n   * - module\n     - section",
    ]
    rows = [
        f"   * - :doc:`{module.name} </api/{module.name}>`\n     - :doc:`{module.title} </notebooks/{module.notebook}>`"
        for module in modules().values()
    ]
    parts[-1] += "\n" + "\n".join(rows)
    names = "\n".join(f"   {module.name}" for module in modules().values())
    parts.append(f".. toctree::\n   :hidden:\n\n{names}")
    return "\n\n".join(parts) + "\n"


# Pages by hand


def chapter_page(folder: str, paths: list[Path]) -> str:
    """A chapter: what is to be seen in each section, and its module."""
    see, rows = what_to_see(), []
    for path in paths:
        where, module = section(path), modules().get(section(path))
        api = f"[`{module.name}`](../api/{module.name}.rst)" if module else ""
        rows.append([f"[{heading(path)}](../notebooks/{where}.ipynb)", see.get(where, ""), api])
    table = markdown_table(["section", "what you will see", "module"], rows)
    names = "\n".join(f"../notebooks/{section(path)}" for path in paths)
    return f"# {chapter_title(folder)}\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def chapter_list() -> str:
    """The chapters, and what the sidebar shows."""
    rows = []
    for folder, paths in chapters().items():
        titles = [heading(path) for path in paths]
        links = " · ".join(
            f"[{name.split()[0]}](notebooks/{section(path)}.ipynb)" for name, path in zip(titles, paths, strict=True)
        )
        rows.append([f"[{chapter_title(folder)}](chapters/{folder}.md)", links])
    names = "\n".join(f"chapters/{folder}" for folder in chapters())
    return (
        markdown_table(["chapter", "sections"], rows)
        + f"\n\n```{{toctree}}\n:hidden:\n:caption: Chapters\n\n{names}\n```"
        + "\n\n```{toctree}\n:hidden:\n:caption: To look things up\n\nglossary\nfigures\napi/index\n```"
    )


def hand_page(name: str) -> str:
    """A page of site/ with links as they are on the site: its folder is the root there."""
    text = (PAGES / name).read_text(encoding="utf-8").replace("](../README.md#", "](#")
    return text.replace("](../", "](")


def glossary_page() -> str:
    """The glossary with its terms as Sphinx knows terms, so that search and links find them."""
    head, _, body = hand_page("glossary.md").partition("\n- **")
    entries = re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=\n- \*\*|\Z)", f"- **{body}", re.MULTILINE | re.DOTALL)
    terms = "\n\n".join(f"{term}\n  {' '.join(text.split())}" for term, text in entries)
    return f"{head}\n\n```{{glossary}}\n{terms}\n```\n"


def start_page() -> str:
    """The start page, with what is kept elsewhere put in."""
    parts = {"reading orders": hand_page("reading_orders.md").replace("\n## ", "\n### ").replace("# ", "## ", 1)}
    parts |= {"symptoms": symptom_table(section_links()), "chapters": chapter_list()}
    return re.sub(r"<!-- (.+?) -->", lambda mark: parts[mark[1]], hand_page("index.md"))


# The command


def sources() -> dict[str, str]:
    """{path in .site/source: text} of every page."""
    pages = {"index.md": start_page(), "glossary.md": glossary_page(), "figures.md": figures_page()}
    pages |= {f"chapters/{folder}.md": chapter_page(folder, paths) for folder, paths in chapters().items()}
    pages |= {"api/index.rst": package_page()}
    pages |= {f"api/{module.name}.rst": module_page(module) for module in modules().values()}
    return pages | {f"notebooks/{section(path)}.ipynb": stage_notebook(path) for path in find_notebooks()}


def copies() -> dict[str, Path]:
    """{path in .site/source: file to copy}: settings, style, MathJax, figures, tables."""
    home = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    files = [
        path for name in MATHJAX for path in ([home / name] if (home / name).is_file() else (home / name).iterdir())
    ]
    found = {f"_static/mathjax/{path.relative_to(home).as_posix()}": path for path in files}
    found |= {f"_static/{path.name}": path for path in (PAGES / "_static").iterdir()}
    found |= {f"figures/{name}": path for name, path in made().items()}
    return found | {"conf.py": PAGES / "conf.py", "figures/sources.csv": FIGURES / "sources.csv"}


def lay_out(folder: Path) -> None:
    """Write all sources into `folder`; what has not changed keeps its time, what is not of the book goes."""
    wanted = {name: text.encode() for name, text in sources().items()}
    wanted |= {name: path.read_bytes() for name, path in copies().items()}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    for name, content in wanted.items():
        if not (folder / name).exists() or (folder / name).read_bytes() != content:
            write_atomically(folder / name, content)


def build(out: Annotated[Path, typer.Option(help="Folder to build in.")] = SITE) -> None:
    """Make the pages; exit with Sphinx's code, which is not 0 if there was a warning."""
    lay_out(out / "source")
    options = ["-b", "html", "-d", str(out / "doctrees"), "-j", "2", "-W", "--keep-going", "-n", "-q"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "sphinx", *options, str(out / "source"), str(out / "html")]
    code = subprocess.run(command, cwd=ROOT, env=env).returncode
    if code == 0:
        print(f"open {os.path.relpath(out / 'html' / 'index.html')}")
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(build)
