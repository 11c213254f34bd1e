"""What asks for a new look at a notebook or a test, and what does not."""

import pytest

from agentrl import versions
from tools import check, depends
from tools.check import Report, run_and_remember, wait_for_runs
from tools.depends import check_key, key_of, own_modules, reached_by, studies_in, tables_of
from tools.notebooks import ROOT

READS_RUNS = "from agentrl.arms import arm_results\narm_results(['default'], (0,))"
CLIPS = "import agentrl.ppo\nfrom agentrl.ppo import clipped_loss\n\n\ndef f():\n    return clipped_loss"


@pytest.fixture
def edit(monkeypatch):
    """edit(module, old, new): agentrl's sources, one of them altered."""
    original, altered = versions.module_source, {}
    monkeypatch.setattr(versions, "module_source", lambda name: altered.get(name) or original(name))

    def forget():
        versions.targets_of.cache_clear()
        versions.pieces_of.cache_clear()

    def change(module, old, new):
        assert old in original(module)
        altered[module] = original(module).replace(old, new, 1)
        forget()

    yield change
    forget()


@pytest.fixture
def figures(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("grpo_heldout", "grpo_history", "context_heldout", "credit_lab"):
        (tmp_path / "data" / f"{name}.csv").write_text("arm,base,seed,version\n")
    (tmp_path / "claims.csv").write_text("section\n")
    return tmp_path


@pytest.mark.parametrize(
    "module, old, new, moves",
    [
        ("ppo", "MAX_LOG_RATIO = 20.0", "MAX_LOG_RATIO = 21.0", True),  # what it uses uses this
        ("ppo", "down = (advantages < 0)", "down = (advantages <= 0)", False),  # another function of the module
        ("gradient", "def keep_only", "def keep_only_more", True),
        ("rewards", "REWARD_KINDS", "REWARD_SORTS", False),
    ],
)
def test_a_definition_that_is_reached_moves_the_key(edit, figures, module, old, new, moves):
    code = "from agentrl.ppo import clipped_loss\nclipped_loss"
    before = key_of(code, figures)
    edit(module, old, new)
    assert (key_of(code, figures) != before) == moves


def test_what_only_shows_counts_for_a_page(edit, figures):
    code = "from agentrl.episodes import Trajectory\nTrajectory"
    before = key_of(code, figures)
    edit("display", "def tokens_html", "def tokens_html_more")
    assert key_of(code, figures) != before


def test_only_tables_that_are_read_count(figures):
    assert studies_in(READS_RUNS, reached_by(READS_RUNS)) == {"grpo"}
    names = [path.name for path in tables_of(READS_RUNS, reached_by(READS_RUNS), figures)]
    assert names == ["grpo_heldout.csv", "grpo_history.csv"]
    before = key_of(READS_RUNS, figures)
    (figures / "data" / "context_heldout.csv").write_text("arm\n")
    assert key_of(READS_RUNS, figures) == before
    (figures / "data" / "grpo_history.csv").write_text("arm\n")
    assert key_of(READS_RUNS, figures) != before
    own = "MINE = Study('context', ARMS, train)"
    assert studies_in(own, reached_by(own)) == {"context"}
    claims = "from agentrl.verdicts import judge_all, read_claims\nread_claims()"
    assert figures / "claims.csv" in tables_of(claims, reached_by(claims), figures)


def test_modules_of_the_tools_are_followed_and_a_test_of_the_whole_book_sees_all(monkeypatch):
    names = {path.name for path in own_modules("from tools.sweep_check import check")}
    assert {"sweep_check.py", "sweep.py", "weights.py", "notebooks.py"} <= names
    path = ROOT / "tests" / "test_depends.py"
    assert check_key(path) == check_key(path)
    before = check_key(path)
    monkeypatch.setattr(depends, "whole_book", lambda: "another book")
    assert depends.WHOLE.search(path.read_text()) and check_key(path) != before
    small = ROOT / "tests" / "test_turns.py"
    before = check_key(small)
    monkeypatch.setattr(depends, "whole_book", lambda: "a third one")
    assert not depends.WHOLE.search(small.read_text()) and check_key(small) == before


def test_what_passes_is_remembered_and_what_fails_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    keys = {"tests/test_a.py": "1", "tests/test_b.py": "2"}
    assert run_and_remember(Report(1, 5, 2, {"tests/test_b.py"}), keys) == (5, 2)
    assert check.checked() == {"tests/test_a.py": "1"}
    assert run_and_remember(Report(2, 0, 0, set()), keys) == (0, 1)  # interrupted: nothing is known
    assert check.checked() == {"tests/test_a.py": "1"}
    assert run_and_remember(Report(0, 7, 0, set()), keys) == (7, 0)
    assert check.checked() == keys
    (tmp_path / "checked.json").write_text("{damaged")
    assert check.checked() == {}


def test_notebooks_whose_runs_are_of_other_code_are_named_and_not_run(monkeypatch, capsys):
    monkeypatch.setattr(check, "stale_studies", lambda: {"grpo"})
    keys = {f"notebooks/{name}.ipynb": name for name in ("09_grpo/09_4_shortcuts", "08_ppo/08_1_clipped_update")}
    assert wait_for_runs(keys) == {"notebooks/08_ppo/08_1_clipped_update.ipynb": "08_ppo/08_1_clipped_update"}
    said = capsys.readouterr().out
    assert "runs of grpo were made by other code: notebooks/09_grpo/09_4_shortcuts.ipynb" in said and "restamp" in said
