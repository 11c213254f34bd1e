"""The ways to install the book agree, and what is installed is this checkout."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

import agentrl
from tools.notebooks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["optional-dependencies"]
PINS = [*PROJECT["dependencies"], *(pin for pins in EXTRAS.values() for pin in pins if not pin.startswith("agentrl["))]


def test_conda_gets_python_pip_and_this_package_without_versions():
    assert CONDA["name"] == "agentrl"
    assert CONDA["dependencies"] == ["python", "pip", {"pip": ["-e .[dev]"]}]


def test_the_pip_part_of_the_conda_file_can_be_installed():
    (requirement,) = CONDA["dependencies"][-1]["pip"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    done = subprocess.run([*command, *requirement.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install agentrl" in done.stdout


def test_every_version_is_exact_and_installed():
    for pin in PINS:
        name, _, wanted = pin.partition("==")
        assert re.fullmatch(r"[a-z][a-z-]*", name) and wanted, f"{pin}: write name==version"
        assert version(name).split("+")[0] == wanted


def test_the_installed_package_is_this_checkout():
    assert Path(agentrl.__file__).resolve() == ROOT / "agentrl" / "__init__.py"
