from agentrl.diagnosis import SYMPTOMS, symptom_table
from tools.notebooks import ROOT
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
