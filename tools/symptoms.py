"""Print the index of symptoms for the README, from the list that section 14.9 keeps.

    python -m tools.symptoms
"""

from itertools import groupby

from agentrl.diagnosis import SYMPTOMS
from tools.notebooks import ROOT, find_notebooks, read_source, title


def section_links() -> dict[str, str]:
    """{'14.9': a Markdown link to its notebook} for every section of the book."""
    links = {}
    for path in find_notebooks():
        if "solutions" not in path.parts:
            number = title(read_source(path)).split()[0]
            links[number] = f"[{number}]({path.relative_to(ROOT).with_suffix('.ipynb').as_posix()})"
    return links


def symptom_table() -> str:
    """A Markdown table: one row a symptom, with its mechanisms and the sections that show them."""
    links, rows = section_links(), ["| symptom | what may be behind it |", "|---|---|"]
    for symptom, causes in groupby(SYMPTOMS, key=lambda row: row["symptom"]):
        text = "; ".join(f"{cause['mechanism']} ({links[cause['section']]})" for cause in causes)
        rows.append(f"| {symptom} | {text} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(symptom_table())
