"""Results that come with the book: fresh, whole, and one of them made again each time."""

import os
import random

import pytest
import torch

from agentrl.base import make_rl_base
from agentrl.cache import weights_dir
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from tools import weights
from tools.weights import RECIPES, file_of, index, made_again, only_base, same, stored

DRAW = int.from_bytes(os.urandom(4), "big")


def test_all_are_there_of_this_code_and_nothing_else():
    """If this fails, their code has changed: `make restamp` if that should be neutral, else `make weights`."""
    assert weights.stale() == []
    files = {path.name for path in weights_dir().glob("*.kept")}
    assert files == set(index().values()) == {file_of(name) for name in RECIPES}


@pytest.mark.slow
def test_one_drawn_at_random_is_made_again():
    name = random.Random(DRAW).choice([name for name in RECIPES if name != "base"])
    assert made_again(name)[0] == "as before", f"draw {DRAW}: {name}"


def test_the_base_of_the_book_is_read_and_not_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    make_rl_base(build_tokenizer(make_tasks("all")))
    assert list(tmp_path.iterdir()) == []


def test_only_the_base_is_found_where_results_are_made_again():
    before = os.environ.get("AGENTRL_WEIGHTS")
    with only_base():
        assert {path.name for path in weights_dir().glob("*.kept")} == {file_of("base")}
    assert os.environ.get("AGENTRL_WEIGHTS") == before


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_WEIGHTS", str(tmp_path))
    return tmp_path


def test_last_digits_stay_as_they_were_and_other_numbers_are_told(folder, monkeypatch):
    name = "mask right"
    first = [{"step": 0, "reward": 1 / 3, "passes": 3, "weights": torch.tensor([1.0, 2.0])}]
    nearly = [{"step": 0, "reward": 1 / 3 + 1e-12, "passes": 3, "weights": torch.tensor([1.0, 2.0 + 1e-7])}]
    for result, said in ((first, "made"), (nearly, "as before")):
        monkeypatch.setattr(weights, "make", lambda _, result=result: result)
        what, kept = made_again(name)
        weights.keep(name, kept)
        assert what == said and stored(name)[0][0]["reward"] == 1 / 3
    for change in ({"passes": 4}, {"reward": 0.334}, {"weights": torch.tensor([1.0, 2.1])}, {"more": 0}):
        assert not same(first, [first[0] | change])
        monkeypatch.setattr(weights, "make", lambda _, change=change: [first[0] | change])
        assert made_again(name)[0] == "DIFFERS from before"


def test_a_damaged_or_stale_file_is_made_again_and_the_old_one_goes(folder, monkeypatch):
    name = "mask right"
    weights.keep(name, [1])
    (folder / file_of(name)).write_bytes(b"damaged")
    assert stored(name) == [] and name in weights.stale()
    weights.keep(name, [1])
    old = file_of(name)
    monkeypatch.setattr(weights, "key_of", lambda _: "0123456789ab")
    assert name in weights.stale() and stored(name) == [[1]]  # what other code made is there to compare with
    weights.keep(name, [1])
    assert not (folder / old).exists() and name not in weights.stale()
