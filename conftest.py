"""Settings for every pytest run, so that plain `pytest` compares notebooks as `make test` does."""

import os
import tempfile
from pathlib import Path

from tools.figures import stage
from tools.notebooks import KERNEL_ENV


def pytest_configure(config):
    for name in ("TQDM_DISABLE", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, KERNEL_ENV[name])
    if "AGENTRL_FIGURES" not in os.environ:  # notebooks under test draw elsewhere
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.environ["AGENTRL_FIGURES"] = str(stage(Path(folder.name)))
        config.add_cleanup(folder.cleanup)
