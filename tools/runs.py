"""Make what the book stores and what is missing or was made by other code: training runs and the credit lab.

    python -m tools.runs

A run that is stored in figures/data and whose version fits is not trained again; an interrupted call
goes on where it was.
"""

from importlib import import_module

from agentrl.arms import Study, run_study
from agentrl.credit_lab import lab_results
from agentrl.versions import module_source, read_space
from tools.notebooks import ROOT


def studies() -> list[Study]:
    """Every study that a section defines, by name."""
    found = []
    for path in sorted((ROOT / "agentrl").rglob("[a-z]*.py")):
        name = path.relative_to(ROOT / "agentrl").with_suffix("").as_posix().replace("/", ".")
        if read_space(module_source(name), name).tables:
            values = vars(import_module(f"agentrl.{name}")).values()
            found += [value for value in values if isinstance(value, Study)]
    return sorted({study.name: study for study in found}.values(), key=lambda study: study.name)


if __name__ == "__main__":
    lab = lab_results()
    print(f"credit lab: {len(lab)} rows are stored in figures/data")
    for study in studies():
        heldout, _ = run_study(study, list(study.arms), study.seeds)
        print(f"{study.name}: runs of {heldout['arm'].nunique()} arms are stored in figures/data")
