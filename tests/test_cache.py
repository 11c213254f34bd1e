"""agentrl.cache: what a key depends on, what counts as damage, who trains when two ask."""

import hashlib
import os
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import cache, versions
from agentrl.cache import (
    cache_dir,
    cached,
    describe,
    kept_bytes,
    open_kept,
    result_key,
    weights_dir,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    monkeypatch.setenv("AGENTRL_WEIGHTS", str(tmp_path / "none"))
    return tmp_path


@dataclass(frozen=True)
class Config:
    steps: int
    seed: int = 0


def kept_function(runs):
    """A kept function that notes its runs."""

    @cached
    def train(config, scale=1.0):
        runs.append(config)
        weights = torch.full((3,), scale * config.seed, dtype=torch.float64)
        return {"weights": weights, "history": [{"step": 0}]}

    return train


def kept_file(folder):
    (path,) = folder.rglob("*.kept")
    return path


def call_quietly(function, *args):
    """The function's value; a warning would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args)


# The key


def test_arguments_count_by_value_not_by_spelling(folder):
    runs = []
    train = kept_function(runs)
    train(Config(1))
    train(Config(1), 1.0)
    train(scale=1.0, config=Config(1, 0))
    assert runs == [Config(1)]
    train(Config(1), 2.0)
    train(Config(2))
    assert runs == [Config(1), Config(1), Config(2)]


def test_a_setting_at_its_default_is_not_part_of_the_key():
    assert describe(Config(1)) == describe(Config(1, seed=0)) == {"class": "Config", "steps": 1}
    assert describe(Config(1, seed=2)) == {"class": "Config", "steps": 1, "seed": 2}
    assert describe({"a": (1, [None, "x"])}) == {"a": [1, [None, "x"]]}


@pytest.mark.parametrize("value", [torch.zeros(1), {"deep": [torch.nn.Linear(1, 1)]}, torch.Generator(), {1, 2}])
def test_arguments_without_a_plain_description_are_refused(folder, value):
    runs = []
    with pytest.raises(ValueError, match="was given a .*; give it what that is made from"):
        kept_function(runs)(value)
    assert runs == []


TOY = """
from dataclasses import dataclass

RATE = 0.5


@dataclass(frozen=True)
class Settings:
    steps: int = 10
    seed: int = 0


def train(settings):
    return RATE * settings.steps
"""


@pytest.mark.parametrize(
    "old, new, moves",
    [
        ("RATE = 0.5", "RATE = 0.6", True),
        ("steps: int = 10", "steps: int = 11", True),
        ("seed: int = 0", "seed: int = 0\n    other: int = 1", False),
        ("return RATE", '"""Doc."""\n    return RATE', False),
    ],
)
def test_the_key_depends_on_all_code_behind_the_function(monkeypatch, old, new, moves):
    def key(text):
        monkeypatch.setattr(versions, "module_source", lambda name: text)
        space = {"__name__": "agentrl.toy"}
        exec(text, space)
        return result_key(space["train"], {"settings": space["Settings"]()})

    assert (key(TOY) != key(TOY.replace(old, new))) == moves


def test_a_notebook_and_its_module_share_results_until_the_notebook_is_edited(folder, monkeypatch):
    text = "def mid():\n    runs.append(LOW)\n    return LOW\n"
    monkeypatch.setattr(versions, "module_source", lambda name: f"LOW = 1\n\n\n{text}")

    def define(name, cells, low=1):
        """A kept `mid` as a kernel or an import defines it."""
        namespace = {"__name__": name, "LOW": low, "runs": runs, **({"In": cells} if cells else {})}
        exec(text, namespace)
        return cached(namespace["mid"])

    runs, cells = [], ["#@save mid\nLOW = 1", f"#@save\n{text}"]
    imported, typed = define("agentrl.mid", None), define("__main__", cells)
    assert imported() == typed() == 1
    assert runs == [1]
    cells.append("#@save\nLOW = 2")  # the reader runs a changed cell
    assert define("__main__", cells, low=2)() == 2 and imported() == 1
    assert runs == [1, 2]


# What is kept


def test_each_call_gives_a_fresh_object(folder):
    train = kept_function([])
    first, second = train(Config(1, seed=3)), train(Config(1, seed=3))
    assert first["weights"].tolist() == second["weights"].tolist() == [3.0] * 3
    first["weights"].zero_()
    first["history"].append("spoiled")
    assert train(Config(1, seed=3))["weights"].tolist() == [3.0] * 3 and second["history"] == [{"step": 0}]


def test_results_without_a_plain_description_are_an_error(folder):
    @cached
    def make():
        return [{"made": lambda: 0}]

    with pytest.raises(TypeError, match="a function cannot be kept; a result is made of"):
        make()
    assert not list(folder.rglob("*.kept"))


RESULTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts) | st.tuples(parts) | st.dictionaries(st.text() | st.integers(), parts),
    max_leaves=20,
)


@settings(deadline=None, max_examples=50)
@given(result=RESULTS)
def test_results_come_back_as_they_were(result):
    (found,) = open_kept(kept_bytes("key", result), "key")
    assert repr(found) == repr(result)  # nan is not equal to itself


def test_tensors_of_all_kinds_come_back_to_the_last_digit():
    kinds = (torch.float64, torch.float32, torch.int64, torch.bool, torch.uint8)
    before = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds} | {"empty": torch.zeros(0, 3)}
    before["nan"] = torch.tensor([float("nan"), -0.0, 5e-324], dtype=torch.float64)
    (after,) = open_kept(kept_bytes("key", before), "key")
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and after[name].shape == tensor.shape
        assert after[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_reading_a_kept_file_executes_nothing(folder, tmp_path):
    """A pickle in a kept file's place, with a right checksum, is refused."""

    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    archive = tmp_path / "evil.npz"
    np.savez(archive, said=np.array([Evil()], dtype=object))
    for evil in (archive.read_bytes(), pickle.dumps(Evil())):
        assert open_kept(hashlib.sha256(evil).digest() + evil, "key") == []
    assert not (tmp_path / "executed").exists()


def test_a_file_under_another_name_is_not_taken_for_what_it_is_not(folder):
    runs = []
    train = kept_function(runs)
    train(Config(1, seed=3)), train(Config(2, seed=4))
    one, other = sorted(folder.rglob("*.kept"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second), other.write_bytes(first)
    with pytest.warns(UserWarning, match="damaged"):
        assert train(Config(1, seed=3))["weights"].tolist() == [3.0] * 3
    with pytest.warns(UserWarning, match="damaged"):
        assert train(Config(2, seed=4))["weights"].tolist() == [4.0] * 3
    assert len(runs) == 4


def test_a_result_that_comes_with_the_book_is_read_and_a_damaged_one_made_again(folder, monkeypatch):
    runs = []
    train = kept_function(runs)
    train(Config(1, seed=3))
    book = folder / "book"
    book.mkdir()
    monkeypatch.setenv("AGENTRL_WEIGHTS", str(book))
    kept = kept_file(folder)
    place = book / f"{kept.parent.name}-{kept.name}"
    kept.rename(place)
    assert call_quietly(train, Config(1, seed=3))["weights"].tolist() == [3.0] * 3 and len(runs) == 1
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged; it is made again"):
        assert train(Config(1, seed=3))["weights"].tolist() == [3.0] * 3
    assert len(runs) == 2


@pytest.mark.parametrize("method", ["mkdir", "write_bytes"])
def test_a_folder_that_cannot_be_written_costs_a_warning_at_most(folder, monkeypatch, method):
    train = kept_function([])
    train(Config(1, seed=3))

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, method, refuse)
    assert call_quietly(train, Config(1, seed=3))["weights"].tolist() == [3.0] * 3  # a hit writes nothing
    if method == "write_bytes":
        with pytest.warns(UserWarning, match="could not be kept: .*Read-only"):
            assert train(Config(1, seed=4))["weights"].tolist() == [4.0] * 3


def test_what_is_made_is_made_on_one_thread(folder):
    @cached
    def threads():
        return torch.get_num_threads()

    before = torch.get_num_threads()
    assert threads() == 1 and torch.get_num_threads() == before


def test_nothing_is_printed(folder, capfd):
    train = kept_function([])
    call_quietly(train, Config(1))
    call_quietly(train, Config(1))
    assert capfd.readouterr() == ("", "")


def test_the_folder_is_the_repository_s_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv("AGENTRL_CACHE", raising=False)
    assert cache_dir() == Path(cache.__file__).resolve().parents[1] / ".cache"
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("AGENTRL_WEIGHTS", raising=False)
    assert weights_dir() == Path(cache.__file__).resolve().parents[1] / "figures" / "weights"


# Damage


def check_rebuilt(train, runs, damage):
    """After `damage` the next call warns, trains again and is right; the one after that reads."""
    damage()
    before = len(runs)
    with pytest.warns(UserWarning, match="damaged; it is made again"):
        assert train(Config(1, seed=3))["weights"].tolist() == [3.0] * 3
    assert call_quietly(train, Config(1, seed=3))["weights"].tolist() == [3.0] * 3
    assert len(runs) == before + 1


@pytest.fixture
def kept(folder):
    runs = []
    train = kept_function(runs)
    train(Config(1, seed=3))
    return train, runs, kept_file(folder)


CHANGES = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-1],
    "zeros at the end": lambda content: content[:-9] + bytes(9),
    "more at the end": lambda content: content + b"x",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_results_are_made_again(kept, change):
    train, runs, path = kept
    check_rebuilt(train, runs, lambda: path.write_bytes(change(path.read_bytes())))


def test_a_flipped_bit_in_any_byte_and_every_cut_are_noticed(kept):
    _, _, path = kept
    whole, key = path.read_bytes(), path.stem
    assert open_kept(whole, key) and not open_kept(whole, "other")
    cuts = [whole[:length] for length in range(len(whole))]
    zeroed = [cut + bytes(len(whole) - len(cut)) for cut in cuts]
    flips = [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))]
    for damaged in {*cuts, *zeroed, *flips} - {whole}:
        assert open_kept(damaged, key) == []


@settings(deadline=None)
@given(content=st.binary(max_size=300), right=st.booleans())
def test_any_bytes_at_all_are_noticed(content, right):
    """Also with the right checksum."""
    assert open_kept(content, "key") == []
    assert open_kept(hashlib.sha256(content).digest() + content if right else content, "key") == []


# Interruptions and other processes

SCRIPT = """
    import os, sys, time
    from pathlib import Path
    from agentrl import cache
    moment, *folders = sys.argv[1:]

    def write_some(path, content):
        with open(path, "wb") as file:
            file.write(content[:200])
            file.flush()
            os._exit(9)

    if moment == "amid the file":
        Path.write_bytes = write_some
    if moment == "before the rename":
        cache.os.replace = lambda old, new: os._exit(9)

    @cache.cached
    def train(n):
        with open(Path(os.environ["AGENTRL_CACHE"], "runs.txt"), "a") as log:
            log.write("run\\n")
        if os.environ["MOMENT"] == "in training":
            os._exit(9)
        if os.environ["MOMENT"] == "slowly":
            time.sleep(0.4)
        return [n] * 1000

    os.environ["MOMENT"] = moment
    for folder in folders:
        os.environ["AGENTRL_CACHE"] = folder
        Path(folder, f"ready {os.getpid()}").touch()
        while moment == "slowly" and not Path(folder, "go").exists():
            time.sleep(0.01)
        print(sum(train(2)))
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that asks for a result in some cache folders, and dies at a moment (or does not)."""
    script = tmp_path / "ask.py"
    script.write_text(textwrap.dedent(SCRIPT))
    root = Path(cache.__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(root)}

    def popen(moment, *folders):
        command = [sys.executable, "-W", "ignore", str(script), moment, *map(str, folders)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=env, cwd=root, **pipes)

    return popen


def test_a_killed_process_leaves_nothing_usable(start, tmp_path):
    moments = ("in training", "before the rename", "amid the file")
    for moment in moments:
        (tmp_path / moment).mkdir()
    killed = [start(moment, tmp_path / moment) for moment in moments]
    for process in killed:
        process.communicate(timeout=120)
    assert [process.returncode for process in killed] == [9] * 3
    folders = [tmp_path / moment for moment in moments]
    after = start("never", *folders, *folders)
    assert after.communicate(timeout=120) == ("2000\n" * 6, "")
    runs = {folder.name: (folder / "runs.txt").read_text().count("run") for folder in folders}
    assert runs == dict.fromkeys(moments, 2)


def test_of_two_processes_one_trains_and_both_have_the_result(start, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    both = [start("slowly", folder), start("slowly", folder)]
    while len(list(folder.glob("ready *"))) < 2 and all(process.poll() is None for process in both):
        time.sleep(0.05)
    (folder / "go").touch()
    assert [process.communicate(timeout=120) for process in both] == [("2000\n", ""), ("2000\n", "")]
    assert (folder / "runs.txt").read_text().count("run") == 1


def test_an_interrupted_run_keeps_nothing_and_frees_the_lock(folder):
    interrupt = [True]

    @cached
    def train():
        if interrupt:
            raise KeyboardInterrupt
        return "trained"

    with pytest.raises(KeyboardInterrupt):
        train()
    assert not list(folder.rglob("*.kept"))
    interrupt.clear()
    assert train() == "trained"
