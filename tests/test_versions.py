"""agentrl.versions: what moves the version of a result, and what leaves it alone."""

import ast
import sys
import textwrap
import threading
from importlib import import_module
from pathlib import Path

import pytest

import agentrl
from agentrl import versions
from agentrl.arms import EVALUATION, GRPO
from agentrl.cache import parts_of
from agentrl.context_study import CONTEXT
from agentrl.evidence import REPEATS
from agentrl.mixture import MIXTURE
from agentrl.pathologies import PATHOLOGIES
from agentrl.pieces import OnlyCode, digest, global_names, tree_text
from agentrl.staleness import STALENESS
from agentrl.versions import code_lines, code_version, place_of, reach, read_cells, read_space
from tools.runs import studies

TOYS = {
    "low": "LOW = 1\nUNUSED = 5\n",
    "mid": "from agentrl.low import LOW\n\n\ndef mid(cfg):\n    return LOW * cfg.rate\n",
    "settings": (
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Config:\n"
        "    name: str\n    rate: float = 0.5\n    other: int = 3\n\n"
        "    def __post_init__(self):\n        if self.rate < 0:\n            raise ValueError('rate')\n"
    ),
    "looks": "def paint(x):\n    return x\n",
    "clock": "TICK = 1\n\n\ndef now():\n    return TICK\n",
    "top": (
        "from agentrl.mid import mid\nfrom agentrl.settings import Config\nfrom math import floor\n\n\n"
        "class Shown:\n    def _repr_html_(self):\n        from agentrl.looks import paint\n"
        "        return paint(self)\n\n\n"
        "ARMS = {'one': {'rate': 0.1}, 'two': {'rate': 0.2}}\n\n\n"
        "def train(arm):\n    from agentrl.clock import now\n"
        "    return mid(Config(arm, **ARMS[arm])) + floor(now()) + len([Shown()])\n\n\n"
        "STUDY = Study('toy', ARMS, train)\n"
    ),
}


@pytest.fixture
def toys(monkeypatch):
    """A package of toy modules in place of agentrl's own."""
    modules = dict(TOYS)
    monkeypatch.setattr(versions, "module_source", lambda name: modules[name])
    monkeypatch.setattr(versions, "is_module", lambda name: name in modules)
    return modules


def version_of(modules, module="top", name="train", words=()):
    """The version that code would have in these modules."""
    versions.targets_of.cache_clear()
    versions.pieces_of.cache_clear()
    return digest("\n".join(code_lines(reach([(read_space(modules[module], module), name)], words))))


MOVES = {
    "a constant two modules away": ("low", "LOW = 1", "LOW = 2"),
    "a name bound to something else": ("mid", "import LOW", "import UNUSED as LOW"),
    "the body of a function": ("mid", "LOW * cfg", "LOW + cfg"),
    "the default of a field that is used": ("settings", "0.5", "0.25"),
    "what is imported inside a function": ("clock", "TICK = 1", "TICK = 2"),
    "another function of another package": ("top", "import floor", "import ceil as floor"),
}
STAYS = {
    "a comment and a docstring": ("mid", "    return LOW", '    """Doc."""\n    # why\n    return (LOW)'),
    "a definition that nothing uses": ("low", "UNUSED = 5", "UNUSED = 6"),
    "a field that nothing uses": ("settings", "other: int = 3", "other: int = 4\n    more: bool = False"),
    "a check": ("settings", "if self.rate < 0", "if self.rate < -1"),
    "how a value is shown": ("looks", "return x", "return 2 * x"),
    "an import that nothing uses": ("mid", "import LOW", "import LOW, UNUSED"),
    "a statement after it": ("top", "STUDY", "TABLE = {}\nSTUDY"),
}


@pytest.mark.parametrize("module, old, new", MOVES.values(), ids=MOVES)
def test_what_decides_a_result_moves_its_version(toys, module, old, new):
    before = version_of(toys, words={"one"})
    assert old in toys[module]
    toys[module] = toys[module].replace(old, new)
    assert version_of(toys, words={"one"}) != before


@pytest.mark.parametrize("module, old, new", STAYS.values(), ids=STAYS)
def test_what_decides_nothing_leaves_it_alone(toys, module, old, new):
    before = version_of(toys, words={"one"})
    assert old in toys[module]
    toys[module] = toys[module].replace(old, new)
    assert version_of(toys, words={"one"}) == before


def test_a_definition_may_move_and_a_module_may_get_another_name(toys):
    before = version_of(toys)
    toys["lowest"] = toys.pop("low")
    toys["mid"] = toys["mid"].replace("agentrl.low", "agentrl.lowest")
    assert version_of(toys) == before
    toys["mid"] = toys["mid"].replace("from agentrl.lowest import LOW", "LOW = 1")
    assert version_of(toys) == before
    toys["folder.clock"] = toys.pop("clock")
    toys["top"] = toys["top"].replace("agentrl.clock", "agentrl.folder.clock")
    assert version_of(toys) == before


def test_two_functions_of_one_name_are_told_apart(toys):
    """Both are in the closure; which of them is meant where has to count."""
    toys["a"], toys["b"] = "def f():\n    return 1\n", "def f():\n    return 2\n"
    toys["both"] = (
        "from agentrl.a import f as g\nfrom agentrl.b import f as h\n\n\ndef train():\n    return g() - 2 * h()\n"
    )
    before = version_of(toys, "both")
    toys["both"] = toys["both"].replace("agentrl.a", "agentrl.x").replace("agentrl.b", "agentrl.a")
    toys["both"] = toys["both"].replace("agentrl.x", "agentrl.b")
    assert version_of(toys, "both") != before


def test_an_arm_of_another_study_counts_where_it_is_named_only(toys):
    one = version_of(toys, words={"one"})
    toys["top"] = toys["top"].replace("'two': {'rate': 0.2}", "'two': {'rate': 0.3}, 'three': {}")
    assert version_of(toys, words={"one"}) == one
    toys["top"] = toys["top"].replace("'one': {'rate': 0.1}", "'one': {'rate': 0.4}")
    assert version_of(toys, words={"one"}) != one


def test_a_function_that_a_decorator_registers_counts_for_its_key(toys):
    toys["cures"] = (
        "CURES = {}\n\n\ndef cure(arm):\n    def register(f):\n        CURES[arm] = f\n        return f\n"
        "    return register\n"
        "\n\n@cure('rest')\ndef rest():\n    return 1\n\n\n@cure('tea')\ndef tea():\n    return 2\n\n\n"
        "def train(arm):\n    return CURES[arm]()\n"
    )
    rest, tea = (version_of(toys, "cures", words={arm}) for arm in ("rest", "tea"))
    assert rest != tea
    toys["cures"] = toys["cures"].replace("return 2", "return 3")
    assert version_of(toys, "cures", words={"rest"}) == rest and version_of(toys, "cures", words={"tea"}) != tea


def test_all_fields_count_where_a_configuration_is_used_as_a_whole(toys):
    toys["whole"] = (
        "from dataclasses import asdict\nfrom agentrl.settings import Config\n\n\n"
        "def train():\n    return asdict(Config('x'))\n"
    )
    before = version_of(toys, "whole")
    toys["settings"] = toys["settings"].replace("other: int = 3", "other: int = 4")
    assert version_of(toys, "whole") != before


def test_cells_of_a_notebook_count_as_its_module_does_until_one_is_edited(toys):
    cells = [
        "#@save mid\nfrom agentrl.low import LOW",
        "%matplotlib inline",
        f"#@save\n{toys['mid'].split(chr(10), 3)[3]}",
    ]
    space = read_cells((*cells, "mid(3)", "x = 2"))
    version = digest("\n".join(code_lines(reach([(space, "mid")]))))
    assert version == version_of(toys, "mid", "mid")
    edited = read_cells((*cells, "LOW = 2"))
    assert digest("\n".join(code_lines(reach([(edited, "mid")])))) != version


def test_names_are_those_of_the_module_also_inside_functions():
    code = """
    def f(a, b=DEFAULT, *c: KIND) -> OUT:
        local = a
        def g():
            nonlocal local
            return [x for x in local if deep(x)] + b
        class K(Base):
            y = there
            def m(self):
                return y, local
        return lambda z: z + free
    """
    assert global_names(ast.parse(textwrap.dedent(code))) == {
        "DEFAULT", "KIND", "OUT", "deep", "Base", "there", "y", "free"
    }  # fmt: skip


def test_the_text_of_a_tree_has_no_layout_and_all_content():
    assert tree_text(ast.parse("f( x,y )  # c")) == tree_text(ast.parse("f(x, y)"))
    for one, other in (("1", "1.0"), ("'a'", "b'a'"), ("x", "'x'"), ("not x", "x"), ("0", "False")):
        assert tree_text(ast.parse(one)) != tree_text(ast.parse(other))


def test_unknown_modules_and_functions_without_source_are_named():
    with pytest.raises(ValueError, match="no module 'trianing'"):
        versions.module_source("trianing")


# The book's own studies


def words_of(study, arm):
    return {arm} | {part for part in parts_of(study.arms[arm]) if isinstance(part, str)}


@pytest.fixture
def edit(monkeypatch):
    """edit(module, old, new): agentrl's sources, one of them altered."""
    original, altered = versions.module_source, {}
    monkeypatch.setattr(versions, "module_source", lambda name: altered.get(name) or original(name))

    def change(module, old, new):
        source = original(module)
        assert old in source, (module, old)
        altered.clear()
        altered[module] = source.replace(old, new, 1)
        versions.targets_of.cache_clear()
        versions.pieces_of.cache_clear()

    yield change
    versions.targets_of.cache_clear()
    versions.pieces_of.cache_clear()


HOLES = {  # each left the version as it was when versions went by modules
    "the seed of an evaluation": (GRPO, "default", "arms", "evaluation['seed'] + cfg.seed", "evaluation['seed'] + 7"),
    "the seed of a repeat": (REPEATS, "own draws", "evidence", "EVALUATION['seed'] + 1000", "EVALUATION['seed'] + 1"),
    "the seed in a context": (CONTEXT, "keep 1", "context_study", "EVALUATION['seed'] + seed", "EVALUATION['seed']"),
    "the virtual clock": (STALENESS, "no limit", "quotas", "max(timeout, 0.0)", "max(2 * timeout, 0.0)"),
    "the number of steps": (GRPO, "default", "arms", "STEPS = 40", "STEPS = 41"),
    "a cure": (PATHOLOGIES, "truncation dropped", "pathologies", "~cut, cfg)[:, None]", "cut, cfg)[:, None]"),
}  # fmt: skip


@pytest.mark.parametrize("study, arm, module, old, new", HOLES.values(), ids=HOLES)
def test_code_that_decides_a_run_moves_its_version(edit, study, arm, module, old, new):
    before = study.version(arm)
    edit(module, old, new)
    assert study.version(arm) != before


NEUTRAL = {
    "a neutral field": ("training", "    seed: int = 0\n", "    seed: int = 0\n    novelty: float = 0.0\n"),
    "a new arm": ("arms", "    'default': {},\n", "    'default': {},\n    'another': {'clip': 0.3},\n"),
    "how runs are stored": ("arms", "lineterminator='\\n'", "lineterminator='\\r'"),
    "a colour": ("display", "#", "#0"),
}


@pytest.mark.parametrize("module, old, new", NEUTRAL.values(), ids=NEUTRAL)
def test_code_that_decides_no_run_leaves_all_versions_alone(edit, module, old, new):
    before = {(study.name, arm): study.version(arm) for study in studies() for arm in study.arms}
    edit(module, old, new)
    assert {(study.name, arm): study.version(arm) for study in studies() for arm in study.arms} == before


def altered_literals(node):
    """The definition with its first number or text changed, or None if it has none."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and type(part.value) in (int, float, str):
            before, part.value = part.value, part.value + ("x" if isinstance(part.value, str) else 1)
            text = ast.unparse(node)
            part.value = before
            return text
    return None


@pytest.mark.parametrize("study, least", [(GRPO, 80), (STALENESS, 10)], ids=["grpo", "what staleness adds"])
def test_one_literal_in_any_definition_that_decides_a_run_moves_its_version(edit, study, least):
    arm = list(study.arms)[0]
    words = words_of(study, arm)
    before, edits = code_version(study.train, words), []
    known = reach([place_of(GRPO.train)], words) if study is not GRPO else {}
    for space, name in reach([place_of(study.train)], words).keys() - known.keys():
        node, *more = space.definitions[name]
        if not more and name not in space.tables and not versions.is_dataclass(node):
            old = ast.get_source_segment(versions.module_source(space.module), node)
            if new := altered_literals(OnlyCode(whole=True).visit(ast.parse(ast.unparse(node)).body[0])):
                edits.append((space.module, old, new))
    for module, old, new in edits:
        edit(module, old, new)
        assert code_version(study.train, words) != before, (module, old)
    assert len(edits) > least


@pytest.mark.parametrize("study", [GRPO, STALENESS, PATHOLOGIES, MIXTURE, REPEATS], ids=lambda study: study.name)
def test_every_function_that_a_run_calls_is_in_its_version(study, monkeypatch, short_training):
    """Two steps of training under a profiler: what is called must have been reached from the source alone."""
    arm, called, root = list(study.arms)[0], set(), str(Path(agentrl.__file__).parent)

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            called.add((Path(code.co_filename).stem, code.co_qualname.split(".")[0]))

    reached = {(space.module, name) for space, name in reach([place_of(study.train)], words_of(study, arm))}
    for module, _ in reached:
        import_module(f"agentrl.{module}")
    threading.setprofile(note), sys.setprofile(note)
    try:
        study.train(arm, 0, 0)
    finally:
        sys.setprofile(None), threading.setprofile(None)
    outside = {one for one in called - reached if not one[1].startswith("<")}
    assert {module for module, _ in outside} <= {"pieces", "versions", "cache"} and len(called) > 60


@pytest.fixture
def short_training(monkeypatch, tmp_path):
    """Training takes two steps and evaluation one episode of each task; nothing made so is kept."""
    from agentrl import staleness, training
    from tools.weights import only_base

    whole = training.train_steps

    def few_steps(policy, tasks, tok, cfg, steps=40, *rest, **parts):
        return whole(policy, tasks, tok, cfg, min(steps, 2), *rest, **parts)

    monkeypatch.setattr(training, "train_steps", few_steps)
    monkeypatch.setitem(EVALUATION, "samples", 1)
    monkeypatch.setattr(staleness, "STEPS", 2)
    monkeypatch.setattr("agentrl.evidence.N_REPEATS", 2)
    with only_base():
        yield
