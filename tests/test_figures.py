"""Every figure has the table behind it, and the comparison of figures can fail."""

import csv
import re

import pytest

from tools.figures import FIGURES, differences, made, same_svg, stage
from tools.notebooks import ROOT

PICTURES = [name for name in made() if name.endswith((".svg", ".png"))]
TABLES = [name for name in made() if name.startswith("tables/")]


def test_there_are_figures():
    assert PICTURES and TABLES and set(made()) == {*PICTURES, *TABLES}


@pytest.mark.parametrize("name", PICTURES)
def test_a_figure_has_its_table(name):
    assert (FIGURES / "tables" / name).with_suffix(".csv").exists()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_tidy(name):
    with (FIGURES / name).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert rows and all(len(row) == len(header) for row in rows)


def test_the_books_values_are_there():
    with (FIGURES / "book_results.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["section", "experiment", "arm", "metric", "value"]
    assert len(rows) > 100 and all(float(row[-1]) == float(row[-1]) for row in rows)


def test_the_readme_shows_figures_that_exist():
    shown = re.findall(r"\bfigures/[\w./-]+\.(?:svg|png|csv)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown and [name for name in shown if not (ROOT / name).exists()] == []


def test_a_figure_that_changed_appeared_or_vanished_is_named(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        (folder / "tables").mkdir(parents=True)
        (folder / "tables" / "same.csv").write_text("a\n1\n")
    (old / "tables" / "gone.csv").write_text("a\n1\n")
    (new / "fresh.svg").write_text("<svg/>")
    (old / "moved.svg").write_text('<path d="M 1.00 2.00" id="m0123456789"/>')
    (new / "moved.svg").write_text('<path d="M 1.00 2.50" id="mabcdef6789"/>')
    assert differences(old, new) == [
        "fresh.svg: made by a notebook, but not committed",
        "moved.svg: differs from the committed file",
        "tables/gone.csv: committed, but no notebook makes it",
    ]
    assert differences(old, old) == []


def test_svg_may_differ_by_rounding_and_ids_only():
    one = '<g clip-path="url(#p0123456789)"><path id="p0123456789" d="M 10.04 -3.5"/></g>'
    assert same_svg(one, one.replace("p0123456789", "pabcdefabcd").replace("10.04", "10.05"))
    assert not same_svg(one, one.replace("10.04", "10.24"))
    assert not same_svg(one, one.replace("path id", "path class"))
    assert not same_svg(one, one.replace('id="p0123456789"', 'id="p9876543210"'))


def test_notebooks_find_the_inputs_and_nothing_else(tmp_path):
    folder = stage(tmp_path / "figures")
    assert made(folder) == {}
    assert (folder / "book_results.csv").read_bytes() == (FIGURES / "book_results.csv").read_bytes()
