"""Settings for every pytest run, so that plain `pytest` compares notebooks as `make test` does."""

import os
import sys
import tempfile
from pathlib import Path

from tools.figures import stage
from tools.notebooks import KERNEL_ENV

NOTEBOOKS = Path(__file__).parent / "notebooks"
NBVAL = {  # its options; pyproject.toml keeps it out of runs without notebooks
    "nbval": True,
    "nbval_lax": False,
    "nbval_current_env": True,
    "nbval_kernel_name": None,
    "nbval_cell_timeout": 120,
    "nbval_kernel_startup_timeout": 60,
    "nbval_sanitize_with": None,
    "nbdime": False,
}


def pytest_configure(config):
    for name in ("TQDM_DISABLE", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, KERNEL_ENV[name])
    if "AGENTRL_FIGURES" not in os.environ:  # notebooks under test draw elsewhere
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.environ["AGENTRL_FIGURES"] = str(stage(Path(folder.name)))
        config.add_cleanup(folder.cleanup)


def pytest_collect_file(file_path, parent):
    """A notebook of the book is a test: nbval runs it in a kernel of its own and compares every output."""
    if file_path.suffix == ".ipynb" and NOTEBOOKS in file_path.parents:
        from nbval.plugin import pytest_collect_file

        vars(parent.config.option).update(NBVAL)
        return pytest_collect_file(file_path, parent)


def pytest_collection_finish(session):
    """Kernels of notebooks listen on files; where several notebooks are compared, they are forks of one process."""
    notebooks = {item.path for item in session.items if item.path.suffix == ".ipynb"}
    runs = hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None)
    if notebooks and runs:
        from tools.kernels import fork_kernels, nbval_on_files

        session.config.add_cleanup(nbval_on_files())
        if len(notebooks) > 2 and sys.platform == "linux":
            session.config.add_cleanup(fork_kernels({}))
