"""JupyterLab as a reader meets it: a notebook opens without a question, runs, and is saved as a pair."""

import json
import os
import shutil
import time

import pytest
from playwright.sync_api import expect

from tests.browser import (
    LIMIT,
    PATIENCE,
    SERVER,
    asked,
    choose,
    chromium,
    jupyterlab,
    metadata_of,
    needs_browser,
    open_notebook,
    save,
    until,
)
from tools.notebooks import ROOT

NOTEBOOK = "notebooks/03_model/03_1_tokenizer"
LINE = "# typed in JupyterLab"


@pytest.fixture
def copy(tmp_path):
    """A book of one notebook: its .py an hour older than its .ipynb, and without the last stored output."""
    root = tmp_path / "book"
    (root / NOTEBOOK).parent.mkdir(parents=True)
    for name in ("notebooks/jupytext.toml", f"{NOTEBOOK}.py", f"{NOTEBOOK}.ipynb"):
        shutil.copy(ROOT / name, root / name)
    source, stored = root / f"{NOTEBOOK}.py", root / f"{NOTEBOOK}.ipynb"
    notebook = json.loads(stored.read_text(encoding="utf-8"))
    last = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][-1]
    expected = "".join(last["outputs"][0]["text"]).strip()
    last["outputs"], last["execution_count"] = [], None
    stored.write_text(json.dumps(notebook), encoding="utf-8")
    hour_ago = time.time() - 3600
    os.utime(source, (hour_ago, hour_ago))
    return root, source, stored, expected


def test_kernels_and_server_outlive_the_longest_test():
    """Else a page that is slow on a busy machine finds no kernel, and waits in vain for its cells to run."""
    ends = {name: int(value) for name, value in (line.split("=") for line in SERVER if "_timeout=" in line)}
    assert len(ends) == 2 and min(ends.values()) >= LIMIT


@pytest.mark.browser
@pytest.mark.timeout(LIMIT)
@needs_browser
def test_a_notebook_opens_without_a_question_runs_and_is_saved_as_a_pair(copy, tmp_path):
    root, source, stored, expected = copy
    before = source.read_text(encoding="utf-8")
    with jupyterlab(root, tmp_path / "jupyter") as (url, token), chromium() as browser:
        page = browser.new_page()
        open_notebook(page, url, token, NOTEBOOK)
        assert metadata_of(page, NOTEBOOK)["jupytext"]["formats"] == "ipynb,py:percent"

        cell = page.locator(".jp-NotebookPanel .jp-CodeCell").last
        output = cell.locator(".jp-OutputArea-output")
        # JupyterLab draws cells one by one: until all are there, the last one may be another, with an output
        until(lambda: output.count() == 0, "the last cell, which was stored without its output")
        choose(page, "Run", "Run All Cells")
        expect(output).to_have_text(expected, timeout=PATIENCE * 1000)

        save(page, NOTEBOOK)
        assert expected in stored.read_text(encoding="utf-8")
        assert source.read_text(encoding="utf-8") == before

        cell.locator(".cm-content").click()
        page.keyboard.press("ControlOrMeta+End")
        page.keyboard.type(f"\n{LINE}")
        save(page, NOTEBOOK)
        for half in (source, stored):
            assert LINE in half.read_text(encoding="utf-8"), half.name
        page.screenshot(path=tmp_path / "lab.png")
        assert asked(page) == []

    after = source.read_text(encoding="utf-8").splitlines()
    after.remove(LINE)
    assert after == before.splitlines()
