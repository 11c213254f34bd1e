"""The ledger of the sources: each of their claims is judged somewhere, or says why it is not."""

import re
from collections import Counter

import pandas as pd
import pytest

from tools.notebooks import ROOT

KEPT = {  # rows of the ledger; a new row raises a number here, a lost one makes a test fail
    ("chapter", "12"): 3,
    ("chapter", "12.1"): 30,
    ("chapter", "12.2"): 51,
    ("chapter", "12.3"): 49,
    ("chapter", "12.4"): 42,
    ("chapter", "12.5"): 22,
    ("chapter", "12.6"): 20,
    ("chapter", "12.7"): 79,
    ("chapter", "summary"): 15,
    ("chapter", "exercises"): 8,
    ("report", "abstract"): 1,
    ("report", "motivation"): 21,
    ("report", "implementation"): 25,
    ("report", "files"): 2,
    ("report", "snippet"): 6,
    ("report", "review"): 2,
    ("report", "risks"): 6,
    ("report", "impact"): 9,
    ("report", "related"): 4,
}
COLUMNS = [
    *("key", "source", "section", "paragraph", "quantity", "population", "arm", "window", "split", "value", "unit"),
    *("book", "judged_by", "reason"),
]
LEDGER = pd.read_csv(ROOT / "figures" / "sources.csv", dtype=str, keep_default_na=False)
CLAIMS = pd.read_csv(ROOT / "figures" / "claims.csv", dtype=str, keep_default_na=False)
BOOK = pd.read_csv(ROOT / "figures" / "book_results.csv", dtype=str, keep_default_na=False)
NOTEBOOKS = {path.stem: path.read_text() for path in sorted((ROOT / "notebooks").glob("*/*.py"))}


def judge_problem(text):
    """What is wrong with a `judged_by`; '' if the claim, the table or the section of a notebook exists."""
    if claim := re.fullmatch(r"claim (\S+): (.+)", text):
        known = (CLAIMS["section"] == claim[1]) & (CLAIMS["claim"] == claim[2])
        return "" if known.any() else "no such row of claims.csv"
    if table := re.fullmatch(r"table (\w+)", text):
        return "" if (ROOT / "figures" / "tables" / f"{table[1]}.csv").is_file() else "no such table"
    if place := re.fullmatch(r"notebook (\w+) # (#+ .+)", text):
        lines = NOTEBOOKS.get(place[1], "").splitlines()
        return "" if f"# {place[2]}" in lines else "no such section of a notebook"
    return "neither 'claim SECTION: WORDS' nor 'table NAME' nor 'notebook STEM # HEADING'"


def readers(section, experiment):
    """Stems of the notebooks with a cell that reads these rows of the book, alone or beside ours."""
    call = re.compile(
        rf"(?:book_results|beside_book)\((?:\w+, )?'{re.escape(section)}'(?:, '{re.escape(experiment)}')?\)"
    )
    return {stem for stem, text in NOTEBOOKS.items() if call.search(text)}


def is_read(row):
    """Is the book's value of a ledger row read by a claim, or by a cell of some notebook?"""
    section, experiment, *_ = row["book"].split(":")
    return row["book"] in {*CLAIMS["book"], *CLAIMS["book_minus"]} or bool(readers(section, experiment))


def test_no_row_is_lost():
    assert list(LEDGER.columns) == COLUMNS
    assert Counter(zip(LEDGER["source"], LEDGER["section"], strict=True)) == KEPT
    number = LEDGER.groupby(["source", "section"]).cumcount() + 1
    wanted = LEDGER["source"] + " " + LEDGER["section"] + " " + number.map("{:02d}".format)
    assert LEDGER["key"].tolist() == wanted.tolist() and LEDGER["key"].is_unique


def test_each_row_says_what_was_claimed_and_of_whom():
    for column in ("paragraph", "quantity", "value"):
        assert (LEDGER[column] != "").all(), column
    said = LEDGER[["source", "section", "paragraph", "quantity", "population", "arm", "window", "split", "book"]]
    assert not said.duplicated().any(), said[said.duplicated()]


def test_each_row_has_a_judge_or_a_reason():
    both = (LEDGER["judged_by"] != "") == (LEDGER["reason"] != "")
    assert not both.any(), LEDGER.loc[both, "key"].tolist()


@pytest.mark.parametrize("text", sorted(set(LEDGER["judged_by"]) - {""}))
def test_judges_exist(text):
    assert judge_problem(text) == ""


def test_a_judge_that_does_not_exist_is_found():
    for text, why in (
        ("claim 12.2: it flies", "claims.csv"),
        ("table 12_0_nothing", "table"),
        ("notebook 12_9_what_holds # ## Nothing", "section of a notebook"),
        ("12.9", "neither"),
    ):
        assert why in judge_problem(text)


def test_every_value_of_the_book_is_in_the_ledger_as_it_is_in_the_copy():
    keys = BOOK[["section", "experiment", "arm", "metric"]].agg(":".join, axis=1)
    ledger = LEDGER[LEDGER["book"] != ""].set_index("book")["value"]
    assert Counter(ledger.index) == Counter(keys)
    assert ledger.loc[keys].tolist() == BOOK["value"].tolist()


def test_every_value_of_the_book_is_read_by_a_cell_or_has_a_reason():
    rows = LEDGER[(LEDGER["book"] != "") & (LEDGER["reason"] == "")]
    unread = [row["key"] for row in rows.to_dict("records") if not is_read(row)]
    assert not unread
    assert not is_read({"book": "12.2:nowhere:arm:metric"})


def test_every_claim_judges_something_or_is_ours():
    """A claim with a value of the book has a row of the ledger; without one it may be our own."""
    judged = set(LEDGER["judged_by"])
    with_book = CLAIMS[CLAIMS["book"] != ""]
    missing = [row.claim for row in with_book.itertuples() if f"claim {row.section}: {row.claim}" not in judged]
    assert not missing
