"""The stored mutants of the core: up to date, nearly all killed, survivors explained; and the tool that makes them."""

import pytest
import typer
import yaml

from tools import mutate
from tools.mutate import CORE, Part
from tools.notebooks import ROOT

REPORT = mutate.read_report()


def test_the_report_is_up_to_date():
    old = mutate.stale(REPORT)
    assert old == [], f'code or tests have changed since their mutants ran: make mutate MODULES="{" ".join(old)}"'
    assert list(REPORT) == list(CORE)


@pytest.mark.parametrize("module", CORE)
def test_what_survives_is_explained(module):
    entry = REPORT[module]
    assert entry["mutants"] == entry["killed"] + entry["timeouts"] + len(entry["survivors"]) > 0
    unexplained = [row["change"] for row in entry["survivors"] if len(row["reason"].split()) < 4]
    assert unexplained == [], f"no reason in tests/mutants.yml why no test can kill these mutants of {module}"


def test_nearly_all_are_killed():
    caught = sum(entry["killed"] + entry["timeouts"] for entry in REPORT.values())
    assert caught >= 0.95 * sum(entry["mutants"] for entry in REPORT.values())


@pytest.mark.parametrize("module", CORE)
def test_modules_tests_and_functions_of_the_core_exist(module):
    source = (ROOT / "agentrl" / f"{module}.py").read_text(encoding="utf-8")
    assert all(
        f"\ndef {name}(" in source or f"\nclass {name}" in source for name in CORE[module].only + CORE[module].without
    )
    tests = [(ROOT / "tests" / f"{name}.py").read_text(encoding="utf-8") for name in CORE[module].tests]
    assert tests and all(any(f"\ndef {name}(" in text for text in tests) for name in CORE[module].unused)


# The tool


def library(root, code, tests):
    for name, text in (("agentrl/__init__.py", ""), ("agentrl/half.py", code), ("tests/test_half.py", tests)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


CODE = '''
def half(x):
    """Half of a number that is not negative."""
    if x < 0:
        raise ValueError(f"x={x + 0} must be"
                         " 0 or more")
    return x / 2
'''
WEAK = "from agentrl.half import half\n\ndef test_half():\n    assert half(6) == 3\n"
STRONG = (
    WEAK + "    assert half(0) == 0 and half(0.5) == 0.25\n\n"
    "def test_refusal():\n    import pytest\n\n    with pytest.raises(ValueError):\n        half(-1)\n"
)
HALF = Part(("test_half",))


@pytest.mark.slow
def test_weak_tests_let_mutants_live_and_better_ones_do_not(tmp_path):
    weak = mutate.measure("half", HALF, 2, 10, 2, library(tmp_path, CODE, WEAK))
    strong = mutate.measure("half", HALF, 2, 10, 2, library(tmp_path, CODE, STRONG))
    changes = [(row["function"], row["change"]) for row in weak["survivors"]]
    assert changes == [
        ("half", "-    if x < 0:\n+    if x <= 0:"),
        ("half", "-    if x < 0:\n+    if x < 1:"),
    ]
    assert (weak["mutants"], weak["killed"], weak["timeouts"]) == (4, 2, 0)  # none in what the error says
    assert (strong["mutants"], strong["killed"], strong["survivors"]) == (4, 4, [])
    assert weak["code"] == strong["code"] and weak["tests"] != strong["tests"]
    assert mutate.measure("half", HALF, 2, 10, 2, tmp_path, old=weak) == strong


@pytest.mark.slow
def test_failing_tests_are_reported_and_not_counted(tmp_path):
    with pytest.raises(RuntimeError, match="mutmut run .*failed:(.|\n)*assert half"):
        mutate.measure("half", HALF, 1, 10, 2, library(tmp_path, CODE, WEAK.replace("== 3", "== 4")))


@pytest.mark.slow
def test_a_test_that_is_not_used_may_fail(tmp_path):
    tests = STRONG + "\ndef test_stored_runs():\n    assert half(4) == 'stored'\n"
    entry = mutate.measure(
        "half", Part(("test_half",), unused=("test_stored_runs",)), 1, 10, 2, library(tmp_path, CODE, tests)
    )
    assert (entry["mutants"], entry["killed"]) == (4, 4)


def test_versions_are_about_code_and_not_about_comments(tmp_path):
    def found(code=CODE, tests=WEAK, part=HALF):
        return mutate.versions("half", part, library(tmp_path, code, tests)).values()

    code, tests = found()
    assert [code, tests] == [*found(CODE.replace("Half of", "One half of") + "# why\n", WEAK + "\n# why\n")]
    for other in (found(CODE.replace("2", "3")), found(part=Part(("test_half",), ("half",)))):
        assert [*other][0] != code and [*other][1] == tests
    assert [*found(tests=STRONG)] == [code, [*found(tests=STRONG)][1]] != [code, tests]


def test_stale_is_what_is_absent_or_of_another_version():
    some = {name: CORE[name] for name in ("gradient", "ppo", "turns", "credit")}
    fresh = {name: mutate.versions(name, part) for name, part in some.items()}
    report = {
        "gradient": fresh["gradient"],
        "ppo": fresh["ppo"] | {"tests": "old"},
        "credit": fresh["credit"] | {"code": ""},
    }
    assert mutate.stale(report, some) == ["ppo", "turns", "credit"]


def test_survivors_alone_are_run_only_where_the_code_is_that_of_the_result():
    fresh = mutate.versions("ppo", CORE["ppo"]) | {"timeouts": 0, "survivors": [{"function": "f"}]}
    assert mutate.earlier("ppo", {"ppo": fresh | {"tests": "old"}}) == fresh | {"tests": "old"}
    for report in (
        {},
        {"ppo": fresh | {"code": "old"}},
        {"ppo": fresh | {"timeouts": 1}},
        {"ppo": fresh | {"survivors": []}},
    ):
        with pytest.raises(typer.BadParameter, match="--survivors needs a result for the present code of ppo"):
            mutate.earlier("ppo", report)


def test_an_error_is_spared_and_no_more():
    source = "def f(x):\n    if x:\n        raise ValueError('a'\n                         'b')\n    return x\n"
    lines = mutate.spare(source, HALF).splitlines()
    assert lines[2] == "        # pragma: no mutate start" and lines[5] == "        # pragma: no mutate end"
    assert "\n".join(lines[:2] + lines[3:5] + lines[6:]) + "\n" == source


TWO = (
    CODE + "\n\n@property\ndef twice(x):\n    return x\n\n\nclass Thrice:\n    def of(self, x):\n        return 3 * x\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("part", [Part(("test_half",), ("half",)), Part(("test_half",), without=("twice", "Thrice"))])
def test_functions_and_classes_that_were_not_asked_for_are_spared(tmp_path, part):
    entry = mutate.measure("half", part, 2, 10, 2, library(tmp_path, TWO, STRONG))
    assert entry["mutants"] == 4
    marked = [line for line in mutate.spare(TWO, part).splitlines() if line.endswith("  # pragma: no mutate block")]
    assert [line.split(":")[0] for line in marked] == ["def twice(x)", "class Thrice"]


def test_reasons_are_kept_for_the_same_change_alone():
    old = {"survivors": [{"function": "f", "change": "-a\n+b", "reason": "they are equal"}]}
    rows = [
        {"function": f, "change": change, "reason": ""}
        for f, change in (("f", "-a\n+b"), ("g", "-a\n+b"), ("f", "-a\n+c"))
    ]
    reasons = [row["reason"] for row in mutate.with_reasons({"survivors": rows}, old)["survivors"]]
    assert reasons == ["they are equal", "", ""]
    assert mutate.with_reasons({"survivors": rows}, None)["survivors"] == rows


def test_what_mutmut_prints_is_read():
    printed = "    agentrl.ppo.x_f__mutmut_1: survived\nnoise\n    agentrl.a.xǁBǁg__mutmut_12: no tests\n"
    assert mutate.statuses(printed) == {
        "agentrl.ppo.x_f__mutmut_1": "survived",
        "agentrl.a.xǁBǁg__mutmut_12": "no tests",
    }
    assert [mutate.split_name(name) for name in mutate.statuses(printed)] == ["f", "B.g"]
    rows = [{"function": "f", "mutant": 1}, {"function": "B.g", "mutant": 12}]
    assert [mutate.mutant_name("ppo", rows[0]), mutate.mutant_name("a", rows[1])] == list(mutate.statuses(printed))
    assert [mutate.number(name) for name in mutate.statuses(printed)] == [1, 12]


def test_changes_are_those_of_functions_and_methods():
    mutated = "def x_f__mutmut_orig(x=1):\n    return x\n\ndef x_f__mutmut_1(x=2):\n    return x\n\n"
    mutated += "class B:\n" + "".join(f"    def xǁBǁg__mutmut_{n}(self):\n        y = {n!r}\n" for n in ("orig", 1))
    found = mutate.changes(mutated, "a")
    assert found["agentrl.a.x_f__mutmut_1"] == "-def f(x=1):\n+def f(x=2):"
    assert found["agentrl.a.xǁBǁg__mutmut_1"] == "-        y = 'orig'\n+        y = 1"


def test_a_report_is_read_as_it_was_written(tmp_path):
    report = {"ppo": {"mutants": 1, "survivors": [{"function": "f", "change": "-a\n+b", "reason": "ratio: π"}]}}
    mutate.write_report(report, tmp_path / "report.yml")
    assert mutate.read_report(tmp_path / "report.yml") == report
    assert yaml.safe_load((tmp_path / "report.yml").read_text(encoding="utf-8")) == report
    assert mutate.read_report(tmp_path / "none.yml") == {}


def test_an_unknown_module_is_refused_with_those_that_there_are():
    with pytest.raises(typer.BadParameter, match="no module poo in the core; there are: gradient, "):
        mutate.choose(["ppo", "poo"], {})
    assert mutate.choose(["ppo"], {}) == ["ppo"] and mutate.choose([], {}) == list(CORE)
