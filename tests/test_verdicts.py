import math

import pandas as pd
import pytest

from agentrl import verdicts
from agentrl.verdicts import STUDIES, find_study, judge, judge_all, read_book, read_claims, read_number
from tools.notebooks import ROOT

CLAIMS = read_claims()


def test_every_section_of_the_chapter_has_claims_and_no_claim_is_made_twice():
    assert list(CLAIMS["section"].unique()) == [f"12.{n}" for n in range(1, 8)]
    assert not CLAIMS["claim"].duplicated().any()
    assert (CLAIMS["low"] < CLAIMS["high"]).all() and set(CLAIMS["unit"]) == {
        "rate", "share", "calls", "tokens", "reward",
    }  # fmt: skip
    with pytest.raises(ValueError, match="12.8.*12.1"):
        read_claims("12.8")


def test_every_claim_can_fail():
    """A region that holds whatever could be measured would be no claim."""
    rates = CLAIMS[CLAIMS["unit"].isin(["rate", "share"])]
    least = rates["minus"].map(lambda text: -1.0 if text else 0.0)
    assert ((rates["low"] >= least) | (rates["high"] <= 1)).all()


def test_delta_belongs_to_claims_of_a_direction_and_is_the_one_named_before():
    direction = (CLAIMS["minus"] != "") & (
        ((CLAIMS["low"] == 0) & (CLAIMS["high"] == math.inf)) | ((CLAIMS["low"] == -math.inf) & (CLAIMS["high"] == 0))
    )
    column = CLAIMS["number"].str.split(":").str[2]
    wanted = column.map({"pass_rate": 0.05, "reads": 0.1, "tests": 0.1, "edits": 0.1, "turns": 0.1}).where(direction)
    assert CLAIMS["delta"].tolist() == wanted.fillna(0).tolist()


@pytest.mark.parametrize("row", range(len(CLAIMS)))
def test_a_claims_names_exist(row):
    claim = CLAIMS.iloc[row]
    for text in filter(None, (claim["number"], claim["minus"])):
        study, arm, column, *how = text.split(":")
        assert arm in find_study(study).arms and len(how) <= 1
        number = read_number(text)
        assert len(number) >= 3 and not number.isna().any(axis=None)
    for text in filter(None, (claim["book"], claim["book_minus"])):
        assert math.isfinite(read_book(text))


def test_wrong_names_are_named():
    with pytest.raises(ValueError, match="study='gpro'.*grpo"):
        read_number("gpro:default:reads")
    with pytest.raises(ValueError, match="no 'read' of arm='default'.*reads"):
        read_book("12.3:budget_and_penalty:default:read")
    assert math.isnan(read_book("")) and set(STUDIES) >= {"grpo", "context", "base_streams"}


def test_numbers_come_from_the_stored_rows():
    stored = pd.read_csv(ROOT / "figures" / "data" / "grpo_history.csv")
    rows = stored[(stored["arm"] == "default") & (stored["base"] == 0) & (stored["seed"] == 1)]
    wanted = rows[rows["step"].between(35, 39)]["reads"].mean()
    assert read_number("grpo:default:reads:35-39").loc[1, "all"] == pytest.approx(wanted)
    table = read_number("context:keep 1:pass_rate:keep 0")
    stored = pd.read_csv(ROOT / "figures" / "data" / "context_heldout.csv")
    rows = stored[(stored["arm"] == "keep 1") & (stored["evaluated"] == "keep 0") & (stored["base"] == 0)]
    assert table.mean(axis=1).tolist() == pytest.approx(rows.sort_values("seed")["pass_rate"].tolist())


def test_a_verdict_is_of_the_difference_and_of_the_seeds_asked_for(monkeypatch):
    tables = {
        "one": pd.DataFrame({"a": [0.5] * 8, "b": [0.7] * 8}),
        "other": pd.DataFrame({"a": [0.1] * 8, "b": [0.9] * 8}),
    }
    monkeypatch.setattr(verdicts, "read_number", lambda text, base: tables[text])
    monkeypatch.setattr(verdicts, "read_book", {"x": 3.0, "y": 1.0}.get)
    claim = {"number": "one", "minus": "other", "book": "x", "book_minus": "y", "low": 0, "high": math.inf}
    found = judge(claim)
    assert found["book"] == 2.0 and found["estimate"] == pytest.approx(0.1) and found["verdict"] == "holds"
    assert found["seeds"] == 8 and found["for other tasks"] == "undecided"  # one task up, one down
    few = judge(claim | {"minus": "", "low": 0.7}, seeds=slice(2, None))
    assert few["seeds"] == 6 and few["verdict"] == "does not hold" and few["book"] == 3.0


def test_the_stored_verdicts_are_those_of_the_stored_runs():
    stored = pd.read_csv(ROOT / "figures" / "tables" / "12_9_verdicts.csv", dtype={"section": str})
    some = CLAIMS.sample(6, random_state=0).index
    again = judge_all(CLAIMS.loc[some])
    assert stored.loc[some, "claim"].tolist() == again["claim"].tolist() and len(stored) == len(CLAIMS)
    assert stored.loc[some, "verdict"].tolist() == again["verdict"].tolist()
    assert stored.loc[some, "low"].tolist() == pytest.approx(again["low"].tolist(), rel=1e-4, abs=1e-9)


def test_each_section_points_to_its_verdicts():
    for path in sorted((ROOT / "notebooks" / "12_multi_turn").glob("12_[1-7]_*.py")):
        if path.name not in ("12_4_context_management.py", "12_7_design_review.py"):  # 12.4 and 12.7 have two parts
            assert "12_9_what_holds.ipynb" in path.read_text(), path.name
