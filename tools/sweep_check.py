"""Make stored runs again, without what is kept in the cache, and compare them with the stored rows.

    python -m tools.sweep_check                                      every stored run (hours)
    python -m tools.sweep_check --draw 4                             four of them, drawn at random
    python -m tools.sweep_check --study grpo --arms default          the runs of an arm

Where the runs were stored, whatever is counted is equal, and so is all that is computed from counts. Another processor
rounds the sums of a matrix product differently. Training multiplies such a difference step by step, until some token
in some episode is another one: the run *parts* from the stored one. So the first SURE steps must be equal in all
counts and agree to NEAR in sums of many products. A run that has not parted by its end must also end in the stored
counts. One that parts later is named, with its step, and is no failure. (`make restamp` compares two codes on one
machine, where every digit is equal.)
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
NEAR = 1e-3  # the same within SURE steps on another processor
SURE = 10  # steps in which rounding has never grown into another count
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


def stored_rows(study: Study, name: str, run: Run) -> pd.DataFrame:
    """The rows of a run in one of the stored tables."""
    stored = read_runs(study, name)
    return stored[(stored[KEY] == list(run)).all(axis=1)].reset_index(drop=True)


def parts_at(again: pd.DataFrame, stored: pd.DataFrame) -> int | None:
    """The first step at which a count of two histories differs, from SURE on; None if none does."""
    counts = [name for name in EXACT if name in again and name in stored]
    steps = again.index[(again[counts] != stored[counts]).any(axis=1)] if len(again) == len(stored) else []
    return int(steps[0]) if len(steps) and steps[0] >= SURE else None


def parting(study: Study, run: Run, result: dict) -> int | None:
    """The step at which a run parts from the stored one; None if it does not."""
    if "history" not in (tables := run_tables(result)):
        return None
    return parts_at(as_stored(tables["history"]), stored_rows(study, "history", run))


def differences(study: Study, run: Run, result: dict, strict: bool = False) -> list[str]:
    """What differs between the stored rows of a run and the rows of `result`; a line a table.

    Not `strict`: numbers that are not counted count for the first SURE steps alone, and a run that has parted may
    end otherwise.
    """
    parted, found = None if strict else parting(study, run, result), []
    for name, rows in run_tables(result).items():
        stored, again = stored_rows(study, name, run), as_stored(rows)
        if len(again) != len(stored):
            found.append(f"{name}: {len(again)} rows, stored are {len(stored)}")
            continue
        columns = list(again)
        if not strict and name == "history":
            late = [c for c in columns if c in EXACT and c in stored and parted is None]
            wrong = [c for c in late if column_differs(c, again[c], stored[c])]
            again, stored = again[:SURE], stored[:SURE]
        else:
            wrong = []
            columns = [c for c in columns if strict or (c in EXACT and parted is None)]
        close = CLOSE if strict else NEAR
        left = [c for c in columns if c not in wrong]
        wrong += [c for c in left if c not in stored or column_differs(c, again[c], stored[c], close)]
        found += [f"{name}: {', '.join(wrong)}"] if wrong else []
    return found


def stored_runs(study: Study, arms: list[str] | None = None) -> list[Run]:
    """The runs of a study (of some arms) whose rows are stored."""
    keys = read_runs(study, "heldout")[KEY].drop_duplicates().itertuples(index=False, name=None)
    return [key for key in keys if key[0] in (arms or study.arms)]


def make_again(chosen: list[tuple[Study, Run]], jobs: int) -> dict[tuple[str, Run], dict | str]:
    """{(study, run): result or error text} of stored runs, made from the base that comes with the book."""
    made, by_study = {}, {study.name: study for study, _ in chosen}
    with only_base(), tqdm(total=len(chosen), unit="run", smoothing=0) as bar:
        for name, study in by_study.items():
            bar.set_description(name)
            for run, result in finished_runs(study, [run for one, run in chosen if one.name == name], jobs):
                made[name, run] = result
                bar.update()
    return made


def check(chosen: list[tuple[Study, Run]], jobs: int) -> list[str]:
    """Make the runs again; a line for each that is not what is stored. Those that part late are only named."""
    wrong, known = [], {study.name: study for study, _ in chosen}
    for (name, run), result in make_again(chosen, jobs).items():
        found = [f"FAILED: {result}"] if isinstance(result, str) else differences(known[name], run, result)
        wrong += [f"{name}: {run_name(run)}: {line}" for line in found]
        if not found and (step := parting(known[name], run, result)) is not None:
            print(f"{name}: {run_name(run)} parts from the stored run at step {step}")
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
