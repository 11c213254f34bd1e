"""Run the arms of the book over many seeds, in parallel; store each run as soon as it ends; go on after a kill.

    python -m tools.sweep --seeds 0-9                                    all arms of all studies
    python -m tools.sweep --study grpo --arms default --seeds 0-9 --bases 0-3 --jobs 2
    python -m tools.sweep --seeds 0-9 --missing                          only say what is missing
    python -m tools.sweep --seeds 0-9 --jobs 32 --address 10.0.0.5:6379  on a Ray cluster, with the book on each node

Runs that are stored in figures/data and whose version fits are not made again. A run that fails, or whose worker is
killed, is listed at the end with its arm and seed, and does not stop the others. The exit status is 1 while runs are
missing, and 2 if the options or a stored table cannot be used. Ctrl-C, a kill or a
full disk loses only the runs under way; the same command goes on from there.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Annotated

import joblib
import typer
from tqdm import tqdm

from agentrl.arms import DamagedTable, Study, missing_runs, store_run
from agentrl.launch import finished_runs, launch_settings, nearest, parse_numbers
from tools.runs import studies

RAY_SECONDS = 60  # to join a cluster whose head accepts connections
Run = tuple[str, int, int]  # arm, base, seed


def say_numbers(numbers: list[int]) -> str:
    """`0-2, 7` for [0, 1, 2, 7]."""
    ranges = []
    for _, pairs in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        block = [number for _, number in pairs]
        ranges.append(f"{block[0]}-{block[-1]}" if len(block) > 1 else str(block[0]))
    return ", ".join(ranges)


def say_missing(study: Study, runs: list[Run], wanted: int) -> str:
    """What is missing of a study, a line an arm and base."""
    lines = [f"{study.name}: {len(runs)} of {wanted} runs are missing"]
    for (arm, base), some in groupby(sorted(runs), key=lambda run: run[:2]):
        lines.append(f"  {arm}, base {base}: seeds {say_numbers([seed for *_, seed in some])}")
    return "\n".join(lines)


def run_name(run: Run) -> str:
    return "arm={!r} base={} seed={}".format(*run)


@contextmanager
def ray_workers(address: str | None, jobs: int) -> Iterator[None]:
    """Joblib's workers: those of a Ray cluster if there is an address, else processes of this machine."""
    if address is None:
        yield
        return
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise ValueError(
            f"--address needs Ray, which is not installed ({error}); install the extra: pip install '.[cluster]', "
            "or leave --address out"
        ) from error
    join_cluster(ray, address)
    try:
        register_ray()
        with joblib.parallel_config(backend="ray", n_jobs=jobs):
            yield
    finally:
        ray.shutdown()


def join_cluster(ray, address: str, seconds: float = RAY_SECONDS) -> None:
    """`ray.init`, within `seconds`; it may wait for ever for a head that accepts a connection and says nothing."""
    answers = queue.Queue()

    def join() -> None:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
            answers.put(None)
        except Exception as error:
            answers.put(error)

    threading.Thread(target=join, daemon=True).start()
    try:
        error = answers.get(timeout=seconds)
    except queue.Empty:
        error = TimeoutError(f"no answer within {seconds:g} s")
    if error is not None:
        raise ValueError(f"address={address!r} accepts connections but is no Ray cluster that can be joined: {error}")


def sweep(todo: dict[str, tuple[Study, list[Run]]], jobs: int) -> list[str]:
    """Run and store everything, with progress; a line for each run that failed."""
    failed = []
    with tqdm(total=sum(len(runs) for _, runs in todo.values()), unit="run", smoothing=0) as bar:
        for study, runs in todo.values():
            bar.set_description(study.name)
            for run, result in finished_runs(study, runs, jobs):
                if isinstance(result, str):
                    failed.append(f"FAILED {study.name}: {run_name(run)}: {result}")
                    bar.write(failed[-1])
                else:
                    store_run(study, *run, result)
                bar.update()
    return failed


def choose_studies(names: list[str] | None) -> list[Study]:
    """The studies of these names, or all; ValueError for a name that is not known."""
    known = {study.name: study for study in studies()}
    if wrong := [text for name in names or () for text in nearest("study", name, known)]:
        raise ValueError("\n".join(wrong))
    return [known[name] for name in dict.fromkeys(names or known)]


def gather(names, arms, seeds, bases, jobs, address):
    """(studies, settings) that were asked for; a ValueError lists all that is wrong with them."""
    chosen, wrong, numbers = choose_studies(names), [], {}
    for name, text in (("seeds", seeds), ("bases", bases)):
        try:
            numbers[name] = parse_numbers(name, text)
        except ValueError as error:
            wrong.append(f"- {error}")
            numbers[name] = (0,)  # so that the other checks speak of the others
    known = [arm for study in chosen for arm in study.arms]
    given = {"arms": list(dict.fromkeys(arms or known)), **numbers, "jobs": jobs, "address": address}
    try:
        settings = launch_settings(given, known)
    except ValueError as error:
        wrong = [*str(error).splitlines()[1:], *wrong]
    if wrong:
        raise ValueError("\n".join([f"nothing was started, {len(wrong)} to put right:", *wrong]))
    return chosen, settings


def main(
    seeds: Annotated[str, typer.Option(help="Seeds, as 0-9 or 0,1,5.")],
    arms: Annotated[list[str] | None, typer.Option(help="An arm; may be repeated; default: all.")] = None,
    bases: Annotated[str, typer.Option(help="Seeds of the RL base.")] = "0",
    study: Annotated[list[str] | None, typer.Option(help="A study; may be repeated; default: all.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    address: Annotated[str | None, typer.Option(help="A Ray cluster, host:port; default: this machine.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Say what is missing, and stop.")] = False,
) -> None:
    """Make the runs of these arms and seeds that are not stored yet."""
    try:
        chosen, settings = gather(study, arms, seeds, bases, jobs, address)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error

    def still_missing() -> dict[str, tuple[Study, list[Run]]]:
        return {
            one.name: (one, missing_runs(one, mine, settings.seeds, settings.bases))
            for one in chosen
            if (mine := [arm for arm in settings.arms if arm in one.arms])
        }

    try:
        todo = still_missing()
    except DamagedTable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    for one, runs in todo.values():
        n_arms = sum(arm in one.arms for arm in settings.arms)
        typer.echo(say_missing(one, runs, n_arms * len(settings.seeds) * len(settings.bases)))
    if missing or not any(runs for _, runs in todo.values()):
        raise typer.Exit(int(any(runs for _, runs in todo.values())))
    failed, stopped = [], None
    try:
        with ray_workers(address, jobs):
            failed = sweep(todo, jobs)
    except KeyboardInterrupt:
        stopped = "interrupted"
    except (OSError, ValueError) as error:
        stopped = f"stopped: {error}"
    left = sum(len(runs) for _, runs in still_missing().values())
    for line in failed:
        typer.echo(line, err=True)
    typer.echo(f"{stopped or 'done'}; {left} runs are missing" + (", the same command makes them" if left else ""))
    raise typer.Exit(130 if stopped == "interrupted" else int(bool(stopped or failed or left)))


if __name__ == "__main__":
    typer.run(main)
