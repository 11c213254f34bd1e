"""Numbers in the prose of a notebook, and rows of the README, are those of the notebooks."""

import re

import nbformat
import pandas as pd
import pytest

from tools.export import read_modules
from tools.notebooks import ROOT, find_notebooks, read_source, section, title

NOTEBOOKS = {section(path): nbformat.read(path, as_version=4) for path in find_notebooks(suffix=".ipynb")}
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")  # a full stop may follow
BOOK = pd.read_csv(ROOT / "figures" / "book_results.csv")["value"].tolist()
SECTIONS = {".".join(str(int(part)) for part in re.findall(r"\d+", name.split("/")[-1])[:2]) for name in NOTEBOOKS}


def closing_words(notebook):
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return next((text for text in reversed(texts) if "## What was seen" in text), "")


def numbers_shown(notebook):
    """All numbers in outputs and code of a notebook."""
    shown = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [cell.source]
            texts += [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            shown += [float(number) for text in texts for number in re.findall(r"\d+(?:\.\d+)?", text)]
    return shown


def is_shown(number, shown):
    digits = len(number.split(".")[1])
    return any(abs(round(value, digits) - float(number)) < 1e-9 for value in shown)


def unshown(text, shown):
    """Decimal numbers of a text that are not among those shown: no section, formula, code or suggestion."""
    text = re.sub(r"\$[^$]*\$|`[^`]*`|\[[\d.]+[^\]]*\]\([^)]*\)", "", text.split("**Try it")[0])
    text = re.sub(r"sections? [\d.]+", "", text)
    return [n for n in NUMBER.findall(text) if n not in SECTIONS and not is_shown(n, shown)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_closing_words_quote_numbers_that_were_shown(name):
    words = closing_words(NOTEBOOKS[name])
    assert words, "no closing cell that begins with '## What was seen'"
    assert unshown(words, numbers_shown(NOTEBOOKS[name])) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_prose_quotes_numbers_that_were_shown_or_are_the_books(name):
    shown = numbers_shown(NOTEBOOKS[name]) + BOOK
    cells = [cell.source for cell in NOTEBOOKS[name].cells if cell.cell_type == "markdown"]
    assert [n for text in cells for n in unshown(text, shown)] == []


def test_a_number_that_was_not_shown_is_found():
    text = "By section 12.4, $x = 0.31$ and `0.32`: 0.75, not 0.33. **Try it** with 0.34."
    assert unshown(text, [0.7501]) == ["0.33"]
    assert is_shown("0.75", [0.7501]) and not is_shown("0.75", [0.7601, 75.0]) and is_shown("1.0", [1.0])


def test_the_readme_lists_every_section():
    modules = {module.notebook: module.name for module in read_modules(ROOT, [])}
    rows = dict(re.findall(r"^\| [\d.]+ \[(.+?)\]\((.+?)\) \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    expected = {title(read_source(path)).split(" ", 1)[1]: path for path in find_notebooks()}
    assert rows == {name: path.with_suffix(".ipynb").relative_to(ROOT).as_posix() for name, path in expected.items()}
    for line in (ROOT / "README.md").read_text("utf-8").splitlines():
        if row := re.match(r"\| [\d.]+ \[.+?\]\(notebooks/(.+?)\.ipynb\) \|.*\| (?:`(\w+)`)? ?\|$", line):
            assert row[2] == modules.get(row[1]), line
