"""Make what the book stores and what is missing or was made by other code: training runs and the credit lab.

    python -m tools.runs

A run that is stored in figures/data and whose version fits is not trained again; an interrupted call
goes on where it was.
"""

import agentrl
from agentrl.arms import Study, run_study
from agentrl.verdicts import all_studies


def studies() -> list[Study]:
    """Every study that a section exports."""
    return list(all_studies().values())


if __name__ == "__main__":
    lab = agentrl.lab_results()
    print(f"credit lab: {len(lab)} rows are stored in figures/data")
    for study in studies():
        heldout, _ = run_study(study, list(study.arms), study.seeds)
        print(f"{study.name}: runs of {heldout['arm'].nunique()} arms are stored in figures/data")
