"""Print the index of symptoms for the README, from the list that section 14.9.5 keeps.

python -m tools.symptoms
"""

from agentrl.symptoms import symptom_table
from tools.notebooks import ROOT, find_notebooks, read_source, title


def section_links() -> dict[str, str]:
    """{'14.9': a Markdown link to its notebook} for every section of the book."""
    links = {}
    for path in find_notebooks():
        if "solutions" not in path.parts:
            number = title(read_source(path)).split()[0]
            links[number] = f"[{number}]({path.relative_to(ROOT).with_suffix('.ipynb').as_posix()})"
    return links


if __name__ == "__main__":
    print(symptom_table(section_links()))
