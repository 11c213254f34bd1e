"""Execution: byte-identical when repeated, nothing stored on failure, bounded in time, no needless work."""

import json
import time

import pytest

from tools.depends import notebook_key
from tools.execute import Failure, clean, prepare, remember, store, up_to_date, writes_figures

HEADER = "# %% [markdown]\n# # A notebook\n\n"
PLAIN = ["x = 1 + 1\nprint(x)", "import os\nprint(sorted({'b', 'a'}), os.environ['TQDM_DISABLE'])\nx", "x"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "notebooks" / "01_first").mkdir(parents=True)
    (tmp_path / "figures").mkdir()
    return tmp_path


def write(root, cells, name="1_1"):
    path = root / "notebooks" / "01_first" / f"{name}.py"
    path.write_text(HEADER + "\n\n".join(f"# %%\n{cell}" for cell in cells) + "\n")
    return path


def execute(path, root, timeout=60):
    return store(path, timeout, lambda: None, root)


@pytest.mark.slow
def test_two_runs_are_identical_to_the_byte_and_counted_from_one(root):
    path = write(root, PLAIN)
    execute(path, root)
    first = path.with_suffix(".ipynb").read_bytes()
    execute(path, root)
    assert path.with_suffix(".ipynb").read_bytes() == first
    cells = [cell for cell in json.loads(first)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3]
    assert [output["output_type"] for output in cells[1]["outputs"]] == ["stream", "execute_result"]
    assert all(cell["metadata"] == {} for cell in cells)


@pytest.mark.slow
def test_a_failing_cell_is_named_and_leaves_everything_as_it_was(root):
    draw = "import os, pathlib\n(pathlib.Path(os.environ['AGENTRL_FIGURES']) / 'a.svg').write_text('{}')"
    path = write(root, [draw.format("<svg/>")])
    assert execute(path, root).figures == ["a.svg"]
    before = path.with_suffix(".ipynb").read_bytes()
    write(root, [draw.format("<other/>"), "1 / 0"])
    with pytest.raises(Failure, match=r"01_first/1_1.py, cell 2: ZeroDivisionError: division by zero"):
        execute(path, root)
    assert path.with_suffix(".ipynb").read_bytes() == before
    assert (root / "figures" / "a.svg").read_text() == "<svg/>"


@pytest.mark.slow
def test_an_endless_cell_is_ended_in_time(root):
    path = write(root, ["x = 1", "while True:\n    pass"])
    started = time.monotonic()
    with pytest.raises(Failure, match="cell 2: CellTimeoutError"):
        execute(path, root, timeout=8)
    assert time.monotonic() - started < 60
    assert not path.with_suffix(".ipynb").exists()


@pytest.mark.slow
def test_a_kernel_that_dies_at_its_start_gets_one_more_try(root):
    die = "if not mark.exists():\n    mark.touch()\n    os._exit(1)"
    path = write(root, [f"import os, pathlib\nmark = pathlib.Path('mark')\n{die}", "1"])
    execute(path, root)
    assert path.with_suffix(".ipynb").exists()
    path = write(root, ["import os\nos._exit(1)"])
    with pytest.raises(Failure, match="cell 1: DeadKernelError"):
        execute(path, root)


def test_cell_ids_depend_on_the_cells_alone(root):
    ids = [cell.id for cell in prepare(write(root, PLAIN)).cells]
    assert len(set(ids)) == 4
    longer = [cell.id for cell in prepare(write(root, ["import sys", *PLAIN, "x"])).cells]
    assert [one for one in longer if one in ids] == ids
    assert len(set(longer)) == 6


def test_widget_state_versions_and_timing_are_removed(root):
    notebook = prepare(write(root, PLAIN))
    notebook.metadata.language_info = {"name": "python", "version": "3.11.7"}
    notebook.metadata.widgets = {"state": {}}
    notebook.cells[1].metadata = {"execution": {"iopub.status.busy": "now"}, "tags": ["nbval-ignore-output"]}
    data = {"application/vnd.jupyter.widget-view+json": {"model_id": "1f"}, "text/plain": "IntSlider()"}
    notebook.cells[1].outputs = [{"output_type": "display_data", "data": data, "metadata": {}}]
    clean(notebook)
    assert notebook.metadata.language_info == {"name": "python"} and "widgets" not in notebook.metadata
    assert notebook.cells[1].metadata == {"tags": ["nbval-ignore-output"]}
    assert list(notebook.cells[1].outputs[0]["data"]) == ["text/plain"]


@pytest.mark.slow
def test_a_slider_that_shows_output_is_executed_and_leaves_no_widget_behind(root):
    path = write(root, ["from ipywidgets import interact\n_ = interact(lambda n: n + 1, n=(0, 9))"])
    execute(path, root)
    notebook = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    (output,) = notebook["cells"][1]["outputs"]
    assert "widgets" not in notebook["metadata"] and list(output["data"]) == ["text/plain"]


def test_only_a_change_that_matters_asks_for_a_new_run(root, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(root / ".cache"))
    path = write(
        root, ["from agentrl.gradient import masked_mean", "import agentrl as arl\narl.save_figure(masked_mean)"]
    )
    for file in (path.with_suffix(".ipynb"), root / "figures" / "a.svg"):
        file.write_text("{}")

    def fresh():
        return up_to_date(path, notebook_key(path, root), root)

    assert writes_figures(path) and fresh() is None
    remember(path, notebook_key(path, root), ["a.svg"], root)
    assert fresh() == ["notebooks/01_first/1_1.ipynb", "figures/a.svg"]
    for file in (path, path.with_suffix(".ipynb"), root / "figures" / "a.svg"):
        before = file.read_bytes()
        file.write_bytes(before + b"\n# changed\n")
        assert fresh() is None, file
        file.write_bytes(before)
        assert fresh()
    (root / "figures" / "a.svg").unlink()
    assert fresh() is None
