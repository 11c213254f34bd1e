"""The ways to install the book agree, and what is installed is this checkout in the versions of the lock."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import agentrl
from tools.notebooks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCK_TEXT = (ROOT / "requirements.lock").read_text(encoding="utf-8")
# One entry a package: `name==version ; marker \` and, in lines of their own, the hashes of its files.
LOCK = [entry for entry in re.split(r"\n(?=\S)", LOCK_TEXT) if not entry.startswith("#")]
LOCKED = [Requirement(entry.split("\\\n")[0].strip()) for entry in LOCK]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [Requirement(text) for some in (PROJECT["dependencies"], *EXTRAS.values()) for text in some]
RANGES = [requirement for requirement in RANGES if requirement.name != "agentrl"]
PYTHONS = ["3.11.7", "3.12.1", "3.13.0", "3.14.0"]
SYSTEMS = {"linux": "posix", "darwin": "posix", "win32": "nt"}


def locked_version(name: str, **environment: str) -> str:
    """The one version of package `name` that the lock gives, here or in another marker environment."""
    found = [
        requirement.specifier
        for requirement in LOCKED
        if canonicalize_name(requirement.name) == canonicalize_name(name)
        and (requirement.marker is None or requirement.marker.evaluate(environment))
    ]
    assert len(found) == 1, f"{name} stands {len(found)} times in requirements.lock; run `make lock`"
    return str(found[0]).removeprefix("==")


@pytest.mark.parametrize("requirement", RANGES, ids=str)
def test_every_dependency_is_locked_in_its_range(requirement):
    for python in PYTHONS:
        for system, name in SYSTEMS.items():
            short = ".".join(python.split(".")[:2])
            here = {"python_full_version": python, "python_version": short, "sys_platform": system, "os_name": name}
            assert requirement.specifier.contains(locked_version(requirement.name, **here)), f"{system} {python}"


def test_dependencies_are_ranges_that_leave_room_for_other_software():
    for requirement in RANGES:
        assert [bound.operator for bound in requirement.specifier] == [">="], f"{requirement}: write name>=version"
    least = {requirement.name: str(requirement.specifier) for requirement in RANGES}
    assert least["torch"] == ">=2.4" and least["numpy"] == ">=1.26"


def test_every_line_of_the_lock_has_an_exact_version_and_hashes():
    for entry, requirement in zip(LOCK, LOCKED, strict=True):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), entry.splitlines()[0]
        assert re.search(r"^    --hash=sha256:[0-9a-f]{64}\b", entry, re.MULTILINE), entry.splitlines()[0]


def test_the_lock_names_no_address_no_option_and_none_of_the_cuda_libraries():
    assert "://" not in LOCK_TEXT
    assert not re.search(r"^-", LOCK_TEXT, re.MULTILINE)
    assert not [entry for entry in LOCK if re.match(r"cuda|nvidia|triton", entry)]


def test_what_is_installed_is_what_the_lock_says():
    wanted = {one.name: str(one.specifier)[2:] for one in LOCKED if one.marker is None or one.marker.evaluate()}
    installed = {name: version(name).split("+")[0] for name in wanted}  # torch: 2.13.0+cpu
    assert {name: Version(text) for name, text in installed.items()} == {
        name: Version(text) for name, text in wanted.items()
    }


def test_make_installs_from_the_lock_and_again_when_it_changes():
    assert re.search(r"^\$\(STAMP\): pyproject.toml requirements.lock$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^\$\(PEERS_STAMP\): pyproject.toml requirements.lock ", MAKEFILE, re.MULTILINE)
    assert "--no-deps --require-hashes --requirement requirements.lock" in MAKEFILE
    printed = subprocess.run(["make", "-n", "-B", ".venv/.stamp"], cwd=ROOT, capture_output=True, text=True).stdout
    read_torch = re.search(r'"\$\((sed .*)\)"', printed)[1]
    found = subprocess.run(["sh", "-c", read_torch], cwd=ROOT, capture_output=True, text=True).stdout
    assert found == f"torch=={locked_version('torch')}\n"


def test_conda_gets_a_python_that_is_locked_for_and_the_lock():
    assert CONDA["name"] == "agentrl"
    python, pip, lines = CONDA["dependencies"]
    assert python == f"python {PROJECT['requires-python']},<3.15" and pip == "pip"
    assert lines == {"pip": ["--requirement requirements.lock"]}


def test_pip_checks_every_hash_of_the_file_that_conda_gives_it(tmp_path):
    """Conda writes its pip lines into a file. All is installed here, so pip has nothing to do."""
    lines = "\n".join(CONDA["dependencies"][-1]["pip"]).replace("requirements.lock", str(ROOT / "requirements.lock"))
    (tmp_path / "conda.txt").write_text(lines, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--require-hashes", "--requirement"]
    done = subprocess.run([*command, str(tmp_path / "conda.txt")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def test_the_checkout_itself_can_be_installed_beside_what_is_there():
    """The last command of make, of the README and of environment.yml."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "--editable", "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install agentrl" in done.stdout


def test_the_installed_package_is_this_checkout():
    assert Path(agentrl.__file__).resolve() == ROOT / "agentrl" / "__init__.py"
