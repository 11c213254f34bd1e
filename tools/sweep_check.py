"""Make stored runs again, without what is kept in the cache, and compare them with the stored rows to the last digit.

    python -m tools.sweep_check                                      every stored run (hours)
    python -m tools.sweep_check --draw 4                             four of them, drawn at random
    python -m tools.sweep_check --study grpo --arms default          the runs of an arm

Whatever is counted must be equal, and so must all that is computed from counts. Sums of many products (losses,
gradient norms, log-probabilities) may differ in their last digits between processors; they must agree to CLOSE.
"""

import io
import random
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from agentrl.arms import KEY, Study, read_runs, run_tables
from agentrl.launch import finished_runs, nearest
from tools.sweep import Run, choose_studies, run_name
from tools.weights import only_base

CLOSE = 1e-6  # relative, of figures that are sums of many products
EXACT = (
    "episodes passes submits calls pass_rate submit_rate reward reads tests edits turns malformed tokens policy_tokens"
).split()


def as_stored(rows: list[dict], **how) -> pd.DataFrame:
    """Rows as they are after a table was written (`how`, for pandas) and read."""
    return pd.read_csv(io.StringIO(pd.DataFrame(rows).to_csv(index=False, **how)))


def column_differs(name: str, again: pd.Series, stored: pd.Series, close: float = CLOSE) -> bool:
    """Is a column that was made again another one?"""
    if name in EXACT or not pd.api.types.is_float_dtype(again):
        return not again.equals(stored.astype(again.dtype, errors="ignore"))
    gap = (again - stored).abs() > close * (1 + stored.abs())
    return bool(gap.any() or (again.isna() != stored.isna()).any())


def differences(study: Study, run: Run, result: dict) -> list[str]:
    """What differs between the stored rows of a run and the rows of `result`; a line a table."""
    found = []
    for name, rows in run_tables(result).items():
        stored = read_runs(study, name)
        stored = stored[(stored[KEY] == list(run)).all(axis=1)].reset_index(drop=True)
        again = as_stored(rows)
        if len(again) != len(stored):
            found.append(f"{name}: {len(again)} rows, stored are {len(stored)}")
        elif columns := [c for c in again if c not in stored or column_differs(c, again[c], stored[c])]:
            found.append(f"{name}: {', '.join(columns)}")
    return found


def stored_runs(study: Study, arms: list[str] | None = None) -> list[Run]:
    """The runs of a study (of some arms) whose rows are stored."""
    keys = read_runs(study, "heldout")[KEY].drop_duplicates().itertuples(index=False, name=None)
    return [key for key in keys if key[0] in (arms or study.arms)]


def check(chosen: list[tuple[Study, Run]], jobs: int) -> list[str]:
    """Make the runs again; a line for each that is not what is stored."""
    wrong = []
    by_study = {study.name: (study, [run for one, run in chosen if one.name == study.name]) for study, _ in chosen}
    with only_base(), tqdm(total=len(chosen), unit="run", smoothing=0) as bar:
        for study, runs in by_study.values():
            bar.set_description(study.name)
            for run, result in finished_runs(study, runs, jobs):
                found = [f"FAILED: {result}"] if isinstance(result, str) else differences(study, run, result)
                wrong += [f"{study.name}: {run_name(run)}: {line}" for line in found]
                bar.update()
    return wrong


def main(
    study: Annotated[list[str] | None, typer.Option(help="A study; may be repeated; default: all.")] = None,
    arms: Annotated[list[str] | None, typer.Option(help="An arm; may be repeated; default: all.")] = None,
    draw: Annotated[int | None, typer.Option(min=1, help="So many runs, drawn at random; default: all.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
) -> None:
    """Compare stored runs with the same runs made again; exit status 1 if one differs."""
    try:
        studies = choose_studies(study)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    known = list(dict.fromkeys(arm for one in studies for arm in one.arms))
    if wrong := [text for arm in arms or () for text in nearest("arm", arm, known)]:
        raise typer.BadParameter("\n".join(wrong))
    chosen = [(one, run) for one in studies for run in stored_runs(one, arms)]
    if not chosen:
        raise typer.BadParameter(f"no runs are stored of arms={arms} in {', '.join(one.name for one in studies)}")
    chosen = random.sample(chosen, min(draw, len(chosen))) if draw else chosen
    wrong = check(chosen, jobs)
    typer.echo("\n".join(wrong) or f"{len(chosen)} runs are what is stored")
    raise typer.Exit(int(bool(wrong)))


if __name__ == "__main__":
    typer.run(main)
