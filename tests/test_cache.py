"""agentrl.cache: what changes a key, what counts as damage, who trains when two ask."""

import os
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import cache
from agentrl.cache import cache_dir, cached, code_statements, code_version, imported_modules, notebook_edits

MODULES = {
    "low": "LOW = 1\n",
    "mid": "from agentrl.low import LOW\n\ndef mid():\n    return LOW\n",
    "top": "from agentrl.mid import mid\n\ndef top():\n    from agentrl.looks import paint\n    return mid\n",
    "looks": "def paint(x):\n    return x\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def modules(monkeypatch):
    """A toy package in place of agentrl's own modules."""
    toys = dict(MODULES)
    monkeypatch.setattr(cache, "module_source", lambda name: toys[name])
    return toys


@dataclass(frozen=True)
class Config:
    steps: int
    seed: int = 0


def kept_function(runs):
    """A kept function that notes its runs."""

    @cached("cache")
    def train(config, scale=1.0):
        runs.append(config)
        weights = torch.full((3,), scale * config.seed, dtype=torch.float64)
        return {"weights": weights, "history": [{"step": 0}]}

    return train


def kept_file(folder):
    (path,) = folder.rglob("output.pkl")
    return path


def call_quietly(function, *args):
    """The function's value; a warning would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args)


# The key


def test_prose_and_layout_leave_the_statements_alone():
    plain = "class A:\n    def f(self):\n        return 1\n\n\nasync def g():\n    return 2\n"
    prose = (
        '"""Module."""\n# comment\nclass A:\n    "doc"\n\n    def f(self):\n        """doc"""\n'
        '        return (1)  # one\nasync def g():\n    "doc"\n    return 2\n'
    )
    assert code_statements(plain) == code_statements(prose)
    assert code_statements(plain) != code_statements(plain.replace("1", "3"))
    assert code_statements("x = 'text'") != code_statements("x = 'other text'")


def test_imports_of_functions_do_not_count():
    source = (
        "import agentrl.a\nimport agentrl.b as bee, math\nfrom agentrl.c import x\nfrom agentrl import d\n"
        "try:\n    import agentrl.e\nexcept ImportError:\n    pass\n"
        "class K:\n    import agentrl.f\n    def m(self):\n        import agentrl.no\n"
        "async def a():\n    from agentrl.no import y\nfrom other.agentrl import z\n"
    )
    assert imported_modules(source) == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("name", ["low", "mid", "top"])
def test_version_follows_module_level_imports(modules, name):
    before = code_version("top")
    modules[name] += "NEW = 1\n"
    assert code_version("top") != before


def test_version_ignores_prose_and_imports_inside_functions(modules):
    before = code_version("top")
    modules["looks"] += "NEW = 1\n"
    modules["low"] = '"""Now with a docstring."""\n# and a comment\n' + modules["low"]
    assert code_version("top") == before
    assert code_version("mid") != before


def test_version_depends_on_torch_and_on_nothing_else(modules, monkeypatch):
    before = code_version("top")
    assert before == code_version("top") and len(before) == 12 and int(before, 16) >= 0
    monkeypatch.setattr(cache, "version", lambda package: "0.1")
    assert code_version("top") != before


def test_several_modules_and_full_names(modules):
    assert code_version("agentrl.top", "agentrl.looks") == code_version("looks", "top")
    assert len({code_version("top", "looks"), code_version("top"), code_version("looks")}) == 3


def test_the_build_of_torch_does_not_count(modules, monkeypatch):
    """Tables name the version of the code that made them; they travel between machines."""
    monkeypatch.setattr(cache, "version", lambda package: "2.13.0+cpu")
    built_for_cpu = code_version("top")
    monkeypatch.setattr(cache, "version", lambda package: "2.13.0")
    assert code_version("top") == built_for_cpu


def test_how_results_are_kept_does_not_count(modules):
    before = code_version("top")
    modules["cache"] = "NEW = 1\n"
    modules["low"] += "from agentrl.cache import cached\n"
    with_import = code_version("top")
    modules["cache"] += "NEWER = 1\n"
    assert code_version("top") == with_import != before


def test_how_a_result_is_kept_does_not_change_it(modules):
    modules["cache"] = "from agentrl.top import top\n"
    modules["low"] += "from agentrl.cache import cached\n"
    before, of_the_cache = code_version("top"), code_version("cache")
    modules["cache"] += "NEW = 1\n"
    assert code_version("top") == before
    assert code_version("cache") == code_version("agentrl.cache") != of_the_cache


def test_version_survives_import_cycles(modules):
    modules["low"] += "from agentrl.top import top\n"
    assert code_version("low") == code_version("low")


def test_unknown_module_is_named_with_what_exists():
    with pytest.raises(ValueError, match="no module 'trianing'.*cache.*plotting"):
        cached("trianing")
    with pytest.raises(ValueError, match="no module ''"):
        cache.module_source(imported_modules("import agentrl")[0])


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


def test_functions_of_other_names_and_changed_modules_do_not_share(folder, modules):
    def define(name):
        def function():
            runs.append(name)

        function.__qualname__ = name
        return cached("top")(function)

    runs = []
    for function in (define("a"), define("b"), define("a")):
        function()
    assert runs == ["a", "b"]
    modules["low"] += "NEW = 1\n"
    define("a")()
    assert runs == ["a", "b", "a"]


@pytest.mark.parametrize("value", [torch.zeros(1), {"deep": [torch.nn.Linear(1, 1)]}, torch.Generator()])
def test_tensors_as_arguments_are_refused(folder, value):
    runs = []
    with pytest.raises(ValueError, match="was given a .*; give it what that is made from"):
        kept_function(runs)(value)
    assert runs == []


def test_edits_in_a_notebook_are_seen(modules):
    exported = [
        "#@save mid\nfrom agentrl.low import LOW",
        '# @save\ndef mid():\n    "Prose."\n    return LOW',
    ]
    assert notebook_edits([]) == notebook_edits(["", "x = 3"]) == notebook_edits(exported) == []
    assert notebook_edits([*exported, "#@save\nbroken (", "def helper():\n    return 2", "#@saved = 3"]) == []
    assert len(notebook_edits([*exported, "#@save\ndef helper():\n    return 2"])) == 1
    assert len(notebook_edits([exported[0], exported[1].replace("LOW", "2")])) == 1
    assert len(notebook_edits(exported[1:])) == 1  # without the cell that names the module, nothing is known


def test_a_notebook_and_its_module_share_results_until_the_notebook_is_edited(folder, modules, tmp_path):
    text = "def mid():\n    runs.append(LOW)\n    return LOW\n"
    modules["mid"] = text

    def define(name, cells, low=1, text=text):
        """A kept `mid` as a kernel or an import defines it."""
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        namespace = {
            "__name__": name,
            "LOW": low,
            "runs": runs,
            **({"In": cells} if cells is not None else {}),
        }
        exec(compile(text, str(path), "exec"), namespace)
        return cached("mid", "agentrl.low")(namespace["mid"])

    runs, cells = [], [f"#@save mid\n{text}"]
    imported, typed = define("agentrl.mid", None), define("__main__", cells)
    assert imported() == typed() == 1
    assert runs == [1]
    cells.append("#@save\nLOW = 2")  # the reader runs a changed cell
    assert define("__main__", cells, low=2)() == 2 and imported() == 1
    assert runs == [1, 2]
    assert define("agentrl.mid", None, text=text.replace("return", "return 10 *"))() == 10


# What is kept


def test_each_call_gives_a_fresh_object(folder):
    train = kept_function([])
    first, second = train(Config(1, seed=3)), train(Config(1, seed=3))
    assert first["weights"].tolist() == second["weights"].tolist() == [3.0] * 3
    first["weights"].zero_()
    first["history"].append("spoiled")
    assert train(Config(1, seed=3))["weights"].tolist() == [3.0] * 3 and second["history"] == [{"step": 0}]


def test_results_that_cannot_be_pickled_are_an_error(folder):
    @cached("cache")
    def make():
        return lambda: 0

    with pytest.raises(Exception, match="pickle"):
        make()


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


@pytest.mark.parametrize("content", [None, b"", b"half", b"\xff\xfe"])
def test_damaged_digests_are_damage(kept, content):
    train, runs, path = kept
    digest = path.with_suffix(".sha256")
    check_rebuilt(train, runs, digest.unlink if content is None else lambda: digest.write_bytes(content))


def test_what_one_process_kept_another_finds_whatever_it_asks_first(folder, monkeypatch):
    runs = []
    first, second = kept_function(runs), cached("plotting")(lambda: runs.append("second"))
    first(Config(1)), second()
    monkeypatch.setattr("joblib.memory._FUNCTION_HASHES", {})  # joblib's memory, as it is in a new process
    second(), first(Config(1))
    assert runs == [Config(1), "second"]


def test_a_flipped_bit_in_any_byte_and_every_cut_are_noticed(kept):
    train, runs, path = kept
    store, item = cache.CheckedStore(), path.parent
    store.location, call_id = str(item.parents[2]), item.relative_to(item.parents[2]).parts
    whole = path.read_bytes()
    assert store.contains_item(call_id)
    cuts = [whole[:length] for length in range(len(whole))]
    zeroed = [cut + bytes(len(whole) - len(cut)) for cut in cuts]
    flips = [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for damaged in {*cuts, *zeroed, *flips} - {whole}:
            path.write_bytes(damaged)
            assert not store.contains_item(call_id)


@settings(deadline=None, max_examples=30)
@given(content=st.binary(max_size=300), digest=st.one_of(st.none(), st.binary(max_size=80)))
def test_any_bytes_at_all_are_noticed(tmp_path_factory, content, digest):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("AGENTRL_CACHE", str(folder))
        runs = []
        train = kept_function(runs)
        train(Config(1, seed=3))
        path = kept_file(folder)

        def damage():
            path.write_bytes(content)
            if digest is not None:
                path.with_suffix(".sha256").write_bytes(digest)

        check_rebuilt(train, runs, damage)


# Interruptions and other processes

SCRIPT = """
    import os, sys, time
    from pathlib import Path
    from agentrl import cache
    moment, *folders = sys.argv[1:]

    def write_some(path, content):
        with open(path, "wb") as file:
            file.write(content.encode()[:20])
            file.flush()
            os._exit(9)

    def do_not_rename(old, new):
        if new.endswith("output.pkl"):
            os._exit(9)
        os.replace(old, new)

    if moment == "amid the digest":
        Path.write_text = write_some
    if moment == "before the digest":
        Path.write_text = lambda path, content: os._exit(9)
    if moment == "before the rename":
        cache.CheckedStore._move_item = staticmethod(do_not_rename)

    @cache.cached("cache")
    def train(n):
        with open(Path(os.environ["AGENTRL_CACHE"], "runs.txt"), "a") as log:
            log.write("run\\n")
        if moment == "in training":
            os._exit(9)
        if moment == "slowly":
            time.sleep(0.4)
        return [n] * 1000

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
    moments = ("in training", "before the rename", "before the digest", "amid the digest")
    for moment in moments:
        (tmp_path / moment).mkdir()
    killed = [start(moment, tmp_path / moment) for moment in moments]
    for process in killed:
        process.communicate(timeout=120)
    assert [process.returncode for process in killed] == [9] * 4
    folders = [tmp_path / moment for moment in moments]
    after = start("never", *folders, *folders)
    assert after.communicate(timeout=120) == ("2000\n" * 8, "")
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

    @cached("cache")
    def train():
        if interrupt:
            raise KeyboardInterrupt
        return "trained"

    with pytest.raises(KeyboardInterrupt):
        train()
    assert not list(folder.rglob("output.pkl"))
    interrupt.clear()
    assert train() == "trained"
