"""The index of symptoms: rows that lead to sections, the same in the README and for the museum's checks."""

import re

import pandas as pd

from agentrl.diagnosis import CHECKS
from agentrl.symptoms import SYMPTOMS, symptom_table
from tools.notebooks import ROOT, find_notebooks
from tools.symptoms import section_links


def test_each_symptom_names_a_section_that_is_there():
    links = section_links()
    assert {row["section"] for row in SYMPTOMS} <= set(links)
    for link in links.values():
        assert (ROOT / link.split("(")[1].rstrip(")")).is_file()


def test_the_readme_holds_the_index_of_symptoms():
    """If this fails: python -m tools.symptoms, and put the table into README.md."""
    assert symptom_table(section_links()) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_symptom_with_several_causes_has_one_row():
    rows = symptom_table(section_links()).splitlines()[2:]
    assert len(rows) == len({row["symptom"] for row in SYMPTOMS})
    assert sum(row.count("; ") for row in rows) >= len(SYMPTOMS) - len(rows)


def test_symptoms_lead_to_sections_of_the_book():
    sections = {".".join(str(int(n)) for n in re.findall(r"\d+", path.stem)[:2]) for path in find_notebooks()}
    for line in SYMPTOMS:
        assert set(line) == {"symptom", "mechanism", "section"} and all(line.values())
        assert line["section"] in sections or line["section"].startswith("13."), line
    symptoms = [line["symptom"] for line in SYMPTOMS]
    assert "reward rises, pass rate falls" in symptoms and any("KL explodes" in text for text in symptoms)
    museum = {line["section"] for line in SYMPTOMS if line["section"].startswith("14.")}
    assert museum == {check.section for check in CHECKS} - {"14.9.0"}
    assert pd.DataFrame(SYMPTOMS).duplicated().sum() == 0
