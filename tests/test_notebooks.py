"""What every stored notebook must keep: executed in one run, short, free of noise, in the book's order."""

import ast
import json
import re
from pathlib import Path

import nbformat
import pytest
import yaml

from tools.export import public_names, read_modules, used_modules
from tools.notebooks import ROOT, code_cells, find_notebooks, read_source, section, title

NOTEBOOKS = {section(path): nbformat.read(path, as_version=4) for path in find_notebooks(suffix=".ipynb")}
SOURCES = {section(path): read_source(path) for path in find_notebooks()}
MODULES = read_modules(ROOT, [])
LOOK_AHEAD = {"00_start_here/00_0_start_here", "00_start_here/00_1_tour"}  # the others use earlier sections only
IGNORED = yaml.safe_load((Path(__file__).parent / "ignored_outputs.yml").read_text(encoding="utf-8")) or {}
IGNORE = "nbval-ignore-output"

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)
each_source = pytest.mark.parametrize("name", SOURCES)


def code(name):
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]


def outputs(name):
    return [output for cell in code(name) for output in cell.outputs]


@each_notebook
def test_executed_from_the_top_in_one_run(name):
    cells = code(name)
    assert cells, "a notebook without code"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@each_notebook
def test_holds_no_error_and_no_warning(name):
    assert [output.ename for output in outputs(name) if output.output_type == "error"] == []
    assert [output.text for output in outputs(name) if output.get("name") == "stderr"] == []


@each_source
def test_no_cell_is_empty(name):
    """JupyterLab would write an empty cell of text another way, and so alter the source when it is saved."""
    assert [place for place, cell in enumerate(SOURCES[name].cells) if not cell.source.strip()] == []


def count_statements(source):
    """Statements of a cell, also inside functions; lines would be saved at the price of blank ones."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))


@each_source
def test_is_short(name):
    cells = code_cells(SOURCES[name])
    assert title(SOURCES[name]), "no title"
    assert len(cells) <= 32
    counts = {number: count_statements(source) for number, source in cells}
    assert {number: count for number, count in counts.items() if count > 40} == {}, "cells of more than 40 statements"


@each_notebook
def test_has_the_kernel_that_every_reader_has(name):
    assert NOTEBOOKS[name].metadata.kernelspec.name == "python3"
    assert "version" not in NOTEBOOKS[name].metadata.get("language_info", {})
    assert "widgets" not in NOTEBOOKS[name].metadata


@each_notebook
def test_holds_no_machine_paths_addresses_or_timings(name):
    text = json.dumps([cell.source for cell in NOTEBOOKS[name].cells] + outputs(name))
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|usr|work|Users|private)/[\w./-]*", text) == []
    assert re.findall(r"\b(?:at )?0x[0-9a-f]{6,}", text) == []
    assert [cell.id for cell in NOTEBOOKS[name].cells if cell.metadata.keys() - {"tags"}] == []
    assert "application/vnd.jupyter.widget" not in text


@each_notebook
def test_cell_ids_are_distinct(name):
    ids = [cell.id for cell in NOTEBOOKS[name].cells]
    assert len(ids) == len(set(ids))


def test_each_ignored_output_is_listed_with_its_reason():
    tagged = {
        f"{name}, cell {number}"
        for name in NOTEBOOKS
        for number, cell in enumerate(code(name), start=1)
        if IGNORE in cell.metadata.get("tags", [])
    }
    assert tagged == set(IGNORED)
    assert all(isinstance(reason, str) and len(reason) > 10 for reason in IGNORED.values())


@each_notebook
def test_most_outputs_are_compared(name):
    ignored = sum(IGNORE in cell.metadata.get("tags", []) for cell in code(name))
    skipped = [cell for cell in code(name) if {"nbval-skip", "raises-exception"} & set(cell.metadata.get("tags", []))]
    assert ignored * 4 <= len(code(name)) and not skipped


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in LOOK_AHEAD])
def test_uses_earlier_sections_only(name):
    homes = {public: module.name for module in MODULES for public in public_names(module)}
    earlier = {module.name for module in MODULES if module.notebook < name}
    for number, source in code_cells(SOURCES[name]):
        used = set(used_modules(ast.parse(source), homes))
        assert used <= earlier, f"cell {number} uses {sorted(used - earlier)}"
