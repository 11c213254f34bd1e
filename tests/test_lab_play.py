"""JupyterLab on a fresh copy of the book: each chapter's first notebook runs, and a slider moves by keyboard."""

import json
import shutil
import time
from urllib.request import Request, urlopen

import pytest

from tests.browser import (
    LIMIT,
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
from tools.notebooks import ROOT, find_notebooks, section

CHAPTERS = {path.parent.name: section(path) for path in reversed(find_notebooks()) if path.parent.name != "solutions"}
SLIDERS = "15_explorers/15_0_sliders"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT),
    needs_browser,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address, token, root): JupyterLab on a copy of the notebooks, with new dates as after a checkout."""
    root = tmp_path_factory.mktemp("book")
    shutil.copytree(ROOT / "notebooks", root / "notebooks", copy_function=shutil.copyfile)
    with jupyterlab(root, tmp_path_factory.mktemp("lab") / "jupyter") as (url, token):
        yield url, token, root


@pytest.fixture(scope="module")
def browser():
    with chromium() as context:
        yield context


@pytest.fixture
def lab(server, browser):
    """(page, address, token, root), with a page of its own; ends the kernels that the test has started."""
    url, token, root = server
    page = browser.new_page()
    yield page, url, token, root
    page.close()
    headers = {"Authorization": f"token {token}"}
    for session in json.load(urlopen(Request(f"{url}api/sessions", headers=headers), timeout=30)):
        address = f"{url}api/sessions/{session['id']}"
        urlopen(Request(address, headers=headers, method="DELETE"), timeout=30).close()


def code_cells(path):
    """The code cells of the notebook in the file `path`."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run_all(page, root, notebook):
    """Clear the outputs, run all cells, and save until the notebook's file holds the result; its code cells."""
    path = root / f"{notebook}.ipynb"
    choose(page, "Edit", "Clear Outputs of All Cells")
    save(page, notebook)
    # else what the book stores would pass for the result
    assert [cell["execution_count"] for cell in code_cells(path) if cell["execution_count"]] == []
    choose(page, "Run", "Run All Cells")

    def finished():
        assert asked(page) == []
        time.sleep(1)
        save(page, notebook)
        cells = code_cells(path)
        errors = [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
        assert errors == []
        # a cell that is under way has no number yet
        return [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)) and cells

    return until(finished, f"{path.name} to run")


def test_stored_results_do_not_pass_for_a_run(monkeypatch):
    """With commands that do nothing, the notebook's file holds all results of the book."""
    monkeypatch.setattr(f"{__name__}.choose", lambda *_: None)
    monkeypatch.setattr(f"{__name__}.save", lambda *_: None)
    with pytest.raises(AssertionError):
        run_all(None, ROOT, f"notebooks/{SLIDERS}")


def test_a_notebook_opens_alone_also_where_another_was_left_open(lab):
    page, url, token, _ = lab
    kept = lambda reply: "/api/workspaces/" in reply.url and reply.request.method == "PUT"  # noqa: E731
    with page.expect_response(lambda reply: kept(reply) and "03_1_tokenizer" in (reply.request.post_data or "")):
        open_notebook(page, url, token, "notebooks/03_model/03_1_tokenizer")
    open_notebook(page, url, token, f"notebooks/{SLIDERS}")
    page.wait_for_load_state("networkidle")
    assert page.locator(".jp-NotebookPanel").count() == 1


@pytest.mark.parametrize("chapter", sorted(CHAPTERS))
def test_the_first_notebook_of_a_chapter_opens_paired_and_runs(lab, chapter):
    page, url, token, root = lab
    notebook = f"notebooks/{CHAPTERS[chapter]}"
    source = (root / f"{notebook}.py").read_text(encoding="utf-8")
    open_notebook(page, url, token, notebook)
    assert metadata_of(page, notebook)["jupytext"]["formats"] == "ipynb,py:percent"
    assert run_all(page, root, notebook)
    assert (root / f"{notebook}.py").read_text(encoding="utf-8") == source


def test_a_slider_moves_by_keyboard_and_the_figure_changes(lab):
    page, url, token, root = lab
    open_notebook(page, url, token, f"notebooks/{SLIDERS}")
    run_all(page, root, f"notebooks/{SLIDERS}")
    slider, figure = page.get_by_role("slider").first, page.get_by_alt_text("the 95% interval of a pass rate")
    slider.focus()
    value, before = slider.get_attribute("aria-valuenow"), figure.get_attribute("src")
    page.keyboard.press("ArrowRight")
    until(lambda: figure.get_attribute("src") != before, "another figure")
    assert float(slider.get_attribute("aria-valuenow")) > float(value)
    page.keyboard.press("ArrowLeft")
    until(lambda: figure.get_attribute("src") == before, "the first figure again")
