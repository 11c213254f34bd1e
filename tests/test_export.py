"""The exporter: what it writes, what `--check` names, and every mistake it must report with its place."""

import shutil
import subprocess
import sys

import pytest
import typer

from tools.export import build, export, state, states
from tools.notebooks import ROOT

HEADER = "# %% [markdown]\n# # 1.1 Add numbers\n\n"


def write(root, **notebooks):
    """Notebooks of one chapter, by name: each a list of code cells."""
    folder = root / "notebooks" / "01_first"
    folder.mkdir(parents=True, exist_ok=True)
    for name, cells in notebooks.items():
        (folder / f"{name}.py").write_text(HEADER + "\n\n".join(f"# %%\n{cell}" for cell in cells) + "\n")
    return root


def run(root, **options):
    """The exit code of the command."""
    with pytest.raises(typer.Exit) as stop:
        export(**{"check": False, "partial": False, "root": root, **options})
    return stop.value.exit_code


def problems(root):
    return [str(problem) for problem in build(root)[1]]


ADD = "#@save sums\ndef add(a, b):\n    return a + b"
USE = "#@save uses\nfrom agentrl.sums import add\n\ndef twice(a):\n    return add(a, a)"


def test_the_committed_package_is_fresh():
    files, found = build(ROOT)
    assert not found
    assert set(states(ROOT, files).values()) == {"fresh"}


def test_exported_code_runs_and_says_where_it_comes_from(tmp_path):
    draft = "def add(a, b):\n    return 0"
    plain = "LIMIT = 3\nhalf = lambda x: x / 2"
    write(
        tmp_path,
        **{"1_1": ["x = 1", draft, ADD, "#@save\n# why\n" + plain + "\n\ndef _hidden(): pass"], "1_2": [USE]},
    )
    assert run(tmp_path) == 0
    text = (tmp_path / "agentrl" / "sums.py").read_text()
    assert text.startswith("# Made by tools/export.py from notebooks/01_first/1_1.py. Do not edit")
    assert '"""1.1 Add numbers."""' in text
    assert "# 01_first/1_1, cell 3\ndef add(a, b):" in text
    assert "# 01_first/1_1, cell 4\n# why\nLIMIT = 3" in text
    assert "# 01_first/1_1, cell 4\ndef _hidden" in text
    assert "x = 1" not in text and "return 0" not in text
    code = "import agentrl as a; print(a.__all__, a.twice(4), sorted(set(dir(a)) & set(a.__all__)))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = "['LIMIT', 'add', 'half', 'twice']"
    assert printed.stdout == f"{names} 8 {names}\n"


def test_both_spellings_and_a_second_run_give_the_same_text(tmp_path):
    write(tmp_path, **{"1_1": [ADD, "#@save\nSIDES = 4"]})
    assert run(tmp_path) == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "agentrl").iterdir()}
    write(tmp_path, **{"1_1": [ADD.replace("#@save", "# @save"), "# @save\nSIDES = 4"]})  # as ruff format leaves it
    assert run(tmp_path) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "agentrl").iterdir()} == before


def test_imports_are_gathered_once_in_order_and_pass_ruff(tmp_path):
    first = "#@save sums\nimport math\nfrom dataclasses import dataclass\n\nimport torch"
    head = "#@save\nimport math\nfrom dataclasses import field"
    second = f"{head}\n\n\n@dataclass\nclass Sum:\n    parts: list = field(default_factory=list)"
    third = "#@save\nimport numpy as np\n\n\ndef zero():\n    return torch.zeros(int(math.pi)), np.zeros(1)"
    write(tmp_path, **{"1_1": [first, second, third]})
    assert run(tmp_path) == 0
    text = (tmp_path / "agentrl" / "sums.py").read_text()
    assert "import math\nfrom dataclasses import dataclass, field\n\nimport numpy as np\nimport torch\n\n\n# 01" in text
    assert text.count("import math") == 1
    settings = ["--config", str(ROOT / "pyproject.toml")]
    checked = subprocess.run([sys.executable, "-m", "ruff", "check", *settings, tmp_path / "agentrl"])
    assert checked.returncode == 0


def test_long_imports_are_wrapped(tmp_path):
    names = ", ".join(f"name_number_{i:02d}" for i in range(12))
    values = "\n".join(f"name_number_{i:02d} = {i}" for i in range(12))
    write(
        tmp_path,
        **{"1_1": [f"#@save names\n{values}"], "1_2": [f"#@save user\nfrom agentrl.names import ({names})"]},
    )
    assert run(tmp_path) == 0
    assert "from agentrl.names import (\n    name_number_00,\n" in (tmp_path / "agentrl" / "user.py").read_text()


LAZY = "#@save uses\ndef f():\n    import agentrl as arl\n    return arl.add(1, 2)"
FIRST = "notebooks/01_first/1_1.py"
# what is wrong: the notebooks, the place that must be named, the words that must be said
MISTAKES = {
    "one module, two notebooks": (
        {"1_1": [ADD], "1_2": ["x = 1", ADD.replace("add", "sub")]},
        "1_2.py, cell 2",
        f"already made by {FIRST}",
    ),
    "one name, two notebooks": (
        {"1_1": [ADD], "1_2": ["#@save other\ndef add(): pass"]},
        "1_2.py, cell 1",
        f"`add` is already defined in {FIRST}, cell 1",
    ),
    "one name, two cells": (
        {"1_1": [ADD, "#@save\ndef add(): pass"]},
        "1_1.py, cell 2",
        "`add` is already defined",
    ),
    "a name that is a module": (
        {"1_1": [ADD, "#@save\nsums = 1"]},
        "1_1.py, cell 2",
        "also the name of a module",
    ),
    "broken syntax": ({"1_1": ["x = 1", "#@save sums\ndef add(a:"]}, "1_1.py, cell 2", "does not compile"),
    "return at top level": ({"1_1": ["#@save sums\nreturn 3"]}, "1_1.py, cell 1", "does not compile"),
    "a magic": ({"1_1": ["#@save sums\n%timeit 3"]}, "1_1.py, cell 1", "does not compile"),
    "a later module": (
        {"1_0": [USE], "1_1": [ADD]},
        "1_0.py, cell 1",
        f"imports agentrl.sums, which a later section makes ({FIRST})",
    ),
    "a later name, imported late": ({"1_0": [LAZY], "1_1": [ADD]}, "1_0.py, cell 1", "a later section makes"),
    "the module itself": (
        {"1_1": [ADD, "#@save\nfrom agentrl.sums import add as plus"]},
        "1_1.py, cell 2",
        "the module that this notebook makes",
    ),
    "two names for one notebook": (
        {"1_1": [ADD, "#@save more\nx = 1"]},
        "1_1.py, cell 2",
        "two names for one notebook: `sums`, then `more`",
    ),
    "no name": ({"1_1": ["#@save\nx = 1"]}, "1_1.py, cell 1", "must name the module"),
    "no such name": ({"1_1": ["#@save two words\nx = 1"]}, "1_1.py, cell 1", "one lower-case word"),
    "not the first line": ({"1_1": ["x = 1\n#@save sums"]}, "1_1.py, cell 1", "must be the first line"),
    "an unknown module": ({"1_2": [USE]}, "1_2.py, cell 1", "no module agentrl.sums; there are: uses"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_nothing_is_written(tmp_path, capsys, mistake):
    notebooks, place, words = MISTAKES[mistake]
    write(tmp_path, **notebooks)
    assert run(tmp_path) == 1
    printed = capsys.readouterr().out
    assert f"notebooks/01_first/{place}: " in printed and words in printed
    assert not (tmp_path / "agentrl").exists()


def test_earlier_sections_and_the_package_itself_may_be_imported(tmp_path):
    whole = "#@save uses\nimport agentrl\n\nROOT = agentrl.__file__\nTWO = agentrl.add(1, 1)"
    write(tmp_path, **{"1_1": [ADD], "1_2": [whole]})
    assert problems(tmp_path) == []


def test_check_names_stale_missing_orphaned_and_edited_modules(tmp_path, capsys):
    write(tmp_path, **{"1_1": [ADD], "1_2": [USE], "1_3": ["#@save last\nx = 1"], "1_4": ["#@save lost\ny = 1"]})
    assert run(tmp_path) == 0 and run(tmp_path, check=True) == 0
    write(tmp_path, **{"1_1": [ADD.replace("a + b", "b + a")]})
    (tmp_path / "notebooks" / "01_first" / "1_3.py").unlink()
    package = tmp_path / "agentrl"
    (package / "lost.py").unlink()
    (package / "uses.py").write_text((package / "uses.py").read_text().replace("add(a, a)", "2 * a"))
    (package / "mine.py").write_text("x = 1\n")
    before = {path: path.read_text() for path in package.iterdir()}
    capsys.readouterr()
    assert run(tmp_path, check=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "stale: agentrl/__init__.py",
        "orphaned: agentrl/last.py",
        "missing: agentrl/lost.py",
        "hand-edited: agentrl/mine.py",
        "stale: agentrl/sums.py",
        "hand-edited: agentrl/uses.py",
    ]
    assert {path: path.read_text() for path in package.iterdir()} == before


def test_a_hand_edit_is_never_overwritten_and_an_orphan_is_removed(tmp_path):
    write(tmp_path, **{"1_1": [ADD], "1_2": ["#@save last\nx = 1"]})
    assert run(tmp_path) == 0
    edited = tmp_path / "agentrl" / "sums.py"
    edited.write_text(edited.read_text() + "\n# a thought\n")
    (tmp_path / "notebooks" / "01_first" / "1_2.py").unlink()
    assert run(tmp_path) == 1
    assert "a thought" in edited.read_text() and (tmp_path / "agentrl" / "last.py").exists()
    edited.unlink()
    assert run(tmp_path) == 0
    assert sorted(path.name for path in (tmp_path / "agentrl").iterdir()) == ["__init__.py", "sums.py"]


def test_partial_writes_the_sound_modules_and_still_fails(tmp_path):
    write(tmp_path, **{"1_1": [ADD], "1_2": ["#@save broken\ndef f("]})
    assert run(tmp_path, partial=True) == 1
    assert sorted(path.name for path in (tmp_path / "agentrl").iterdir()) == ["__init__.py", "sums.py"]


def test_checkpoints_are_no_notebooks(tmp_path):
    write(tmp_path, **{"1_1": [ADD]})
    hidden = tmp_path / "notebooks" / "01_first" / ".ipynb_checkpoints"
    hidden.mkdir()
    shutil.copy(tmp_path / "notebooks" / "01_first" / "1_1.py", hidden / "1_1-checkpoint.py")
    assert problems(tmp_path) == []


def test_a_file_without_banner_counts_as_edited(tmp_path):
    (tmp_path / "x.py").write_text("")
    assert state(tmp_path / "x.py", "x = 1\n") == "hand-edited"
