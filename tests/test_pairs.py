"""Every notebook is a pair, and both halves hold the same cells."""

import os
import shutil

import nbformat
import pytest
from jupytext import TextFileContentsManager

from tools.notebooks import ROOT, find_notebooks, read_source, section

SOURCES = {section(path): path for path in find_notebooks()}
STORED = {section(path): path for path in find_notebooks(suffix=".ipynb")}


def essence(notebook):
    """What a pair must agree on: type, source and tags of each cell."""
    return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


def test_each_half_has_its_other_half():
    assert SOURCES, "there are no notebooks"
    assert sorted(SOURCES.keys() - STORED.keys()) == [], "a .py without .ipynb: run `make notebooks`"
    assert sorted(STORED.keys() - SOURCES.keys()) == [], "an .ipynb without .py"


@pytest.mark.parametrize("name", [name for name in SOURCES if name in STORED])
def test_both_halves_hold_the_same_cells(name):
    stored = nbformat.read(STORED[name], as_version=4)
    assert essence(read_source(SOURCES[name])) == essence(stored), "run `make notebooks`"


@pytest.mark.parametrize("name", [name for name in SOURCES if name in STORED])
def test_jupyterlab_opens_the_pair_and_a_save_leaves_the_source_as_it_is(name, tmp_path):
    for path in (ROOT / "notebooks" / "jupytext.toml", SOURCES[name], STORED[name]):
        shutil.copy(path, tmp_path)
    source, stored = tmp_path / SOURCES[name].name, tmp_path / STORED[name].name
    os.utime(source, (0, 0))  # the .ipynb is always the newer one
    manager = TextFileContentsManager(root_dir=str(tmp_path))
    opened = manager.get(stored.name)
    assert opened["content"].metadata.kernelspec.name == "python3"
    assert [cell.get("outputs") for cell in opened["content"].cells] == [
        cell.get("outputs") for cell in nbformat.read(STORED[name], as_version=4).cells
    ]
    manager.save(opened, stored.name)
    assert source.read_bytes() == SOURCES[name].read_bytes()
