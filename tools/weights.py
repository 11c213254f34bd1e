"""Make the results that come with the book again, in figures/weights, and compare them with what is there.

    python -m tools.weights            make what is missing or was made by other code
    python -m tools.weights --all      make all of them again and compare
    python -m tools.weights --draw 1   make one of them again, drawn at random, and compare; write nothing

They are what several pages need and a reader should not wait for: the policy that training starts from, its critics,
and the trained agents that pages play with. A file bears the key of the call that makes it (section 0.4). Where a
result that was made again is that of before but for the last digits, which differ between processors, the digits of
before stay, so that every machine starts from the same.
"""

import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer
from tqdm import tqdm

from agentrl import arms, base, call_credit, critic, mask_faults, pathologies
from agentrl.cache import kept_bytes, one_thread, open_kept, take_apart, weights_dir, write_kept
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

CLOSE = 1e-6  # relative, of numbers that are sums of many products
WORDS = tuple(build_tokenizer(make_tasks("all")).itos)
RECIPES = {  # name: a kept function and its arguments, as the pages call it
    "base": (base.base_weights, (WORDS, base.DEMONSTRATED, 0)),
    "critic, 24 episodes": (critic.critic_weights, (WORDS, 24, 60, 0)),
    "critic, 80 episodes": (critic.critic_weights, (WORDS, 80, 60, 0)),
    "long critic": (pathologies.long_critic_weights, (-1.0, 24, 8, 30)),
    "turn GAE": (call_credit.train_with_critic, ("turn GAE", RLConfig(**call_credit.CREDIT_ARMS["turn GAE"]), 0)),
    **{
        f"default, seed {seed}": (arms.train_config, (arms.arm_config("default", seed), base.DEMONSTRATED, 0))
        for seed in range(3)
    },
    **{f"mask {kind}": (mask_faults.train_with_mask, (kind,)) for kind in mask_faults.MASKS},
}


def index() -> dict[str, str]:
    """{recipe: file} as `make weights` last wrote it."""
    path = weights_dir() / "index.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def key_of(name: str) -> str:
    function, arguments = RECIPES[name]
    return function.key(*arguments)


def file_of(name: str) -> str:
    """The file of a recipe; the key in its name says which code and arguments made it."""
    return f"{RECIPES[name][0].__qualname__}-{key_of(name)}.kept"


def stored(name: str) -> list:
    """[result] of a recipe as the book has it, whatever code made it; [] if there is none or it is damaged."""
    path = weights_dir() / index().get(name, "none")
    return open_kept(path.read_bytes(), path.stem.rpartition("-")[2]) if path.is_file() else []


@contextmanager
def only_base() -> Iterator[None]:
    """Results are made and not found, but for those of the RL base, which all others start from."""
    with tempfile.TemporaryDirectory() as folder:
        for path in weights_dir().glob("base_weights-*"):
            (Path(folder) / path.name).symlink_to(path.resolve())
        (cache := Path(folder) / "cache").mkdir()
        with patch.dict(os.environ, AGENTRL_CACHE=str(cache), AGENTRL_WEIGHTS=folder):
            yield


def make(name: str):
    """A recipe's result, made and not found."""
    function, arguments = RECIPES[name]
    with only_base(), one_thread():
        return function.__wrapped__(*arguments)


def numbers(result) -> tuple[str, list[np.ndarray]]:
    """A result as its description without numbers that may differ in their last digits, and these numbers."""
    arrays, loose = [], []
    said = json.loads(json.dumps(take_apart(result, arrays)), parse_float=lambda text: loose.append(float(text)))
    return json.dumps(said), [*arrays, np.array(loose)]


def same(one, other) -> bool:
    """Are two results equal, and their numbers close?"""
    (said, arrays), (also, others) = numbers(one), numbers(other)
    alike = said == also and [array.shape for array in arrays] == [array.shape for array in others]
    pairs = zip(arrays, others, strict=True)
    return alike and all(np.allclose(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True) for a, b in pairs)


def keep(name: str, result) -> None:
    """Write a recipe's file and the index, and delete the file that it replaces."""
    folder, before = weights_dir(), index()
    folder.mkdir(parents=True, exist_ok=True)
    write_kept(folder / file_of(name), kept_bytes(key_of(name), result))
    now = {one: before[one] for one in RECIPES if one in before} | {name: file_of(name)}
    write_kept(folder / "index.json", (json.dumps(now, indent=1) + "\n").encode())
    for path in folder.glob("*.kept"):
        if path.name not in now.values():
            path.unlink()


def made_again(name: str) -> tuple[str, object]:
    """(what was found, the result to keep) of a recipe: 'made', 'as before' (then that of before) or 'DIFFERS'."""
    before, result = stored(name), make(name)
    if not before:
        return "made", result
    return ("as before", before[0]) if same(before[0], result) else ("DIFFERS from before", result)


def stale() -> list[str]:
    """Recipes whose file is missing, damaged or of other code."""
    return [name for name in RECIPES if index().get(name) != file_of(name) or not stored(name)]


def main(
    everything: Annotated[bool, typer.Option("--all", help="Make all again and compare.")] = False,
    draw: Annotated[int | None, typer.Option(min=1, help="Make so many again, drawn at random; write nothing.")] = None,
) -> None:
    """Make the results that come with the book; exit status 1 if one differs from the one that was there."""
    if draw:
        chosen = random.sample(list(RECIPES), min(draw, len(RECIPES)))
    else:
        chosen = list(RECIPES) if everything else stale()
    found = {}
    for name in tqdm(chosen, desc="weights"):
        found[name], result = made_again(name)
        if not draw:
            keep(name, result)
    for name, what in found.items():
        typer.echo(f"{name}: {what}")
    typer.echo(f"{len(found)} of {len(RECIPES)} made again, {len(RECIPES) - len(found)} up to date")
    raise typer.Exit(int(any("DIFFERS" in what for what in found.values())))


if __name__ == "__main__":
    typer.run(main)
