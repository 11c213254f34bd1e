"""Each notebook's head states its time, what it assumes and what the reader can do afterwards, and is right."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.heads import STEP, TOOLS, all_assumed, assumed, imported, last_paragraph, read_head, reading_minutes
from tools.notebooks import ROOT, find_notebooks, read_source, section, title

SOURCES = {path: read_source(path) for path in find_notebooks()}
HEADS = {path: read_head(notebook) for path, notebook in SOURCES.items()}
ASSUMES = {path: assumed(path, head) if head else [] for path, head in HEADS.items()}
AHEAD = [ROOT / "notebooks" / "00_start_here" / name for name in ("00_0_start_here.py", "00_1_tour.py")]  # look ahead
GOOD = "**Time** 10 min. **Assumes** [2.1](a.ipynb). **Afterwards you can** name the one edit that repairs it."

each_notebook = pytest.mark.parametrize("path", SOURCES, ids=section)


def notebook(text, code=""):
    return new_notebook(cells=[new_markdown_cell(text), new_code_cell(code)])


@each_notebook
def test_the_first_cell_ends_with_a_head(path):
    assert SOURCES[path].cells[0].cell_type == "markdown"
    assert HEADS[path], f"not of the form of CONTRIBUTING.md: {last_paragraph(SOURCES[path])}"


@each_notebook
def test_the_stated_time_is_within_a_step_of_the_estimate(path):
    stated, estimate = HEADS[path].minutes, reading_minutes(SOURCES[path])
    assert stated % STEP == 0 and abs(stated - estimate) <= STEP, f"stated {stated} min, estimated {estimate}"


@each_notebook
def test_assumed_sections_are_there_come_earlier_and_are_few(path):
    links = HEADS[path].links
    assert len(links) <= 4
    for number, address in links:
        linked = (path.parent / address).resolve().with_suffix(".py")
        assert linked in SOURCES and title(SOURCES[linked]).split()[0] == number, f"[{number}]({address})"
    assert all(section(other) < section(path) for other in ASSUMES[path])


@pytest.mark.parametrize("path", [path for path in SOURCES if path not in AHEAD], ids=section)
def test_what_is_imported_is_explained_by_what_is_assumed(path):
    known = all_assumed(path, ASSUMES)
    missing = {name: section(home) for name, home in imported(path, SOURCES[path]).items() if home not in known}
    assert {name: home for name, home in missing.items() if name not in TOOLS} == {}


@each_notebook
def test_the_promise_is_short_and_its_own(path):
    promise = HEADS[path].can
    assert 10 <= len(promise.split()) <= 25 and "—" not in promise
    assert [section(other) for other, head in HEADS.items() if head and head.can == promise] == [section(path)]


def test_a_head_is_read():
    head = read_head(notebook(f"# 2.2 A title\n\nWhy.\n\n{GOOD}"))
    assert (head.minutes, head.links, head.ranges) == (10, [("2.1", "a.ipynb")], [])
    assert head.can == "name the one edit that repairs it."


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("10 min", "ten min"),
        GOOD.replace("[2.1](a.ipynb)", "2.1"),
        GOOD.replace("[2.1](a.ipynb)", ""),
        GOOD.replace("**Afterwards you can**", "Afterwards you can"),
        f"{GOOD}\n\nOne more paragraph.",
    ],
)
def test_another_form_is_none(text):
    assert read_head(notebook(text)) is None


def test_a_range_stands_for_the_sections_between():
    path = ROOT / "notebooks" / "07_advantages" / "07_6_credit_lab.py"
    links = "[7.1](07_1_returns_and_gae.ipynb) to [7.3](07_3_turn_advantages.ipynb)"
    head = read_head(notebook(GOOD.replace("[2.1](a.ipynb)", links)))
    assert [other.stem for other in assumed(path, head)] == [
        "07_1_returns_and_gae",
        "07_2_critic",
        "07_3_turn_advantages",
    ]


def test_what_is_assumed_by_the_assumed_counts():
    assumes = {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}
    assert all_assumed("c", assumes) == {"a", "b"} and all_assumed("a", assumes) == set()


@pytest.mark.parametrize(
    ("words", "lines", "minutes"), [(1, 0, 5), (1000, 0, 5), (2000, 0, 10), (1000, 75, 10), (200, 135, 10)]
)
def test_the_estimate_is_200_words_or_15_lines_a_minute_to_the_next_5(words, lines, minutes):
    assert reading_minutes(notebook("word " * words + "| - |", "x = 1\n\n" * lines)) == minutes
