"""Break the core on purpose, one place at a time, and see whether the unit tests notice (mutation testing).

    python -m tools.mutate                            the modules whose result in tests/mutants.yml is out of date
    python -m tools.mutate gradient ppo               these, in any case
    python -m tools.mutate --survivors ppo            after adding tests: only mutants that survived
    python -m tools.mutate --jobs 4 --seconds 20      four mutants at a time, each at most 20 s beyond its tests' time

mutmut makes a mutant for every operator, number, string, argument and assignment of a function, and runs the tests
that reach it in a fork of a process that has imported everything. All happens in a copy of the repository.

Not mutated: docstrings, type annotations and what a `raise` says; functions with a decorator; statements outside of
functions (constants, the fields of a configuration); calls of `len` and `isinstance`.

A survivor needs a reason in tests/mutants.yml that says why no test can kill it, which is written by hand and kept
as long as a survivor makes the same change. tests/test_mutate.py checks that results are up to date.
"""

import ast
import difflib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
import yaml

from agentrl.cache import cache_dir
from agentrl.pieces import tree_text
from tools.notebooks import KERNEL_ENV, ROOT, write_atomically

REPORT = ROOT / "tests" / "mutants.yml"
KILLED, SURVIVED, SLOW = {"killed", "segfault"}, {"survived", "no tests"}, {"timeout"}


@dataclass(frozen=True)
class Part:
    """A module under mutation: its unit tests (names of files in tests/), and which functions and classes of it.

    `unused` names tests that are not run, since they are about stored runs and not about this code.
    """

    tests: tuple[str, ...]
    only: tuple[str, ...] = ()  # none: all of them
    without: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


# The core: what the book trains with, and the statistics by which it judges. A line adds a module.
TABLE_TEST = "test_the_table_covers_every_public_function_that_computes_from_arrays"  # mutants would count
CORE = {
    "gradient": Part(("test_gradient", "test_bad_input"), unused=(TABLE_TEST,)),
    "aggregation": Part(("test_aggregation",)),
    "advantages": Part(("test_advantages", "test_bad_input"), unused=(TABLE_TEST,)),
    "credit": Part(("test_credit", "test_bad_input"), unused=(TABLE_TEST,)),
    "turns": Part(("test_turns", "test_bad_input"), unused=(TABLE_TEST,)),
    "ppo": Part(("test_ppo", "test_bad_input"), unused=(TABLE_TEST,)),
    "whitening": Part(("test_whitening", "test_bad_input"), unused=(TABLE_TEST,)),
    "rewards": Part(("test_rewards",)),
    "environment": Part(("test_environment",)),
    "episodes": Part(("test_episodes",)),
    "sampling": Part(("test_sampling", "test_bad_input"), unused=(TABLE_TEST,)),
    "training": Part(("test_training", "test_bad_input"), unused=(TABLE_TEST,)),
    "context": Part(("test_context",), without=("compacted", "check_compaction")),  # an exercise's
    "call_credit": Part(("test_call_credit",), ("per_call_rewards",), unused=("test_the_stored_runs_are_whole",)),
    "plotting": Part(("test_plotting",), ("mean_interval", "with_interval")),
    "evidence": Part(
        ("test_evidence", "test_bad_input"),
        without=("stored_rows", "task_scores", "train_and_repeat"),  # what reads stored tables, and what trains
        unused=(
            "test_scores_by_task_add_up_to_the_stored_means",
            "test_rows_of_other_code_are_not_mixed_in",
            TABLE_TEST,
        ),
    ),
}

CONFTEST = """
import json
import resource
from pathlib import Path

from hypothesis import Phase, settings

# The same examples for every mutant, none kept, and no search for a smaller one: the first failure is enough.
settings.register_profile(
    "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("mutants")
resource.setrlimit(resource.RLIMIT_DATA, (4 * 2**30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
STATS = Path("mutmut-stats.json")  # here once all tests have run


def pytest_collection_modifyitems(items):
    seconds = json.loads(STATS.read_text())["duration_by_test"] if STATS.exists() else {}
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))  # the quick ones first
"""

SETTINGS = """
[tool.pytest.ini_options]
pythonpath = ["."]
markers = ["browser: opens JupyterLab in a browser", "slow: takes more than ten seconds"]

[tool.mutmut]
source_paths = ["agentrl"]
only_mutate = ["agentrl/{module}.py"]
also_copy = ["conftest.py", "tools", "figures"]
process_isolation = "fork"  # its processes have read all imports; safe, since torch has one thread and no device
timeout_multiplier = 1.0
timeout_constant = {seconds}
pytest_add_cli_args = {arguments}
pytest_add_cli_args_test_selection = {tests}
"""


def digest(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def code_statements(source: str) -> list[str]:
    """The top-level statements of Python source as text, whatever its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return [tree_text(statement) for statement in tree.body]


def versions(module: str, part: Part, root: Path = ROOT) -> dict[str, str]:
    """Twelve hex digits each over what is mutated (with mutmut's version) and over tests in use, without comments."""

    def statements(path: str) -> list[str]:
        return code_statements((root / path).read_text(encoding="utf-8"))

    code = digest(version("mutmut"), part.only, part.without, statements(f"agentrl/{module}.py"))
    tests = {name: statements(f"tests/{name}.py") for name in part.tests}
    return {"code": code, "tests": digest(tests)}


def spare(source: str, part: Part) -> str:
    """The source with mutmut's marks "leave this alone" around each `raise`, and around what is not asked for."""
    lines, tree = source.splitlines(), ast.parse(source)
    named = [node for node in tree.body if hasattr(node, "name")]
    unasked = [node for node in named if node.name in part.without or (part.only and node.name not in part.only)]
    inside = {child for node in unasked for child in ast.walk(node)}
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node not in inside]
    for node in unasked:  # the mark stands behind the colon
        lines[node.body[0].lineno - 2] += "  # pragma: no mutate block"
    for node in raises:
        indent = " " * node.col_offset
        lines[node.lineno - 1] = f"{indent}# pragma: no mutate start\n{lines[node.lineno - 1]}"
        lines[node.end_lineno - 1] += f"\n{indent}# pragma: no mutate end"
    return "\n".join(lines) + "\n"


def build_copy(folder: Path, module: str, part: Part, seconds: float, root: Path = ROOT) -> None:
    """Lay out in `folder` what mutmut needs to mutate a module and to run its tests."""
    for name in ("agentrl", "tests", "tools", "figures"):  # tests read the book's values
        if (root / name).is_dir():
            # one conftest.py, that of the copy: the tests' own would load another profile
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "conftest.py"))
    target = folder / "agentrl" / f"{module}.py"
    target.write_text(spare(target.read_text(encoding="utf-8"), part), encoding="utf-8")
    tests = [f"tests/{name}.py" for name in part.tests]
    arguments = ["-p", "no:cacheprovider", "-m", "not slow and not browser"]
    arguments += [f"--deselect={test}::{name}" for test in tests for name in part.unused]
    (folder / "pyproject.toml").write_text(
        SETTINGS.format(module=module, seconds=float(seconds), tests=tests, arguments=arguments)
    )
    (folder / "conftest.py").write_text(CONFTEST)


def mutmut(folder: Path, *arguments: str, seconds: float = 120.0) -> str:
    """What mutmut prints in `folder`; RuntimeError if it fails, or if it takes longer than `seconds`."""
    settings = {
        "AGENTRL_CACHE": str(cache_dir()),
        "PYTHONPATH": "",
        "MPLBACKEND": "Agg",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time of a short test
    }
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **KERNEL_ENV, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"mutmut {arguments[0]} was stopped after {seconds:g} s; give it more --minutes") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # workers that are left
        except ProcessLookupError:
            pass
    if process.returncode:
        raise RuntimeError(f"mutmut {' '.join(arguments)} failed:\n{out[-4000:]}")
    return out


def statuses(printed: str) -> dict[str, str]:
    """{mutant: status} from what `mutmut results` prints."""
    return dict(re.findall(r"^ {4}(\S+): (.+)$", printed, re.MULTILINE))


def split_name(mutant: str) -> str:
    """`Class.method` or `function` for a mutant's name, agentrl.module.x_function__mutmut_3."""
    name = mutant.rpartition("__mutmut_")[0].split(".", 2)[2]
    return name.removeprefix("x_") if name.startswith("x_") else ".".join(name.split("ǁ")[1:])


def number(mutant: str) -> int:
    return int(mutant.rpartition("_")[2])


def mutant_name(module: str, row: dict) -> str:
    """The way back, from a row of the report to mutmut's name."""
    function = row["function"]
    mangled = f"xǁ{function.replace('.', 'ǁ')}" if "." in function else f"x_{function}"
    return f"agentrl.{module}.{mangled}__mutmut_{row['mutant']}"


def changes(mutated: str, module: str) -> dict[str, str]:
    """{mutant: the lines that it removes and adds} from the module that mutmut wrote, with all mutants in it."""
    lines, code = mutated.splitlines(), {}
    for node in ast.walk(ast.parse(mutated)):
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name:
            text = lines[node.lineno - 1 : node.end_lineno]
            text[0] = text[0].replace(node.name, split_name(f"agentrl.{module}.{node.name}").split(".")[-1])
            code[node.name] = text
    found = {}
    for name, text in code.items():
        original = code[name.rpartition("__mutmut_")[0] + "__mutmut_orig"]
        diff = list(difflib.unified_diff(original, text, lineterm="", n=0))[2:]
        found[f"agentrl.{module}.{name}"] = "\n".join(line.rstrip() for line in diff if not line.startswith("@@"))
    return found


def measure(
    module: str,
    part: Part,
    jobs: int,
    seconds: float,
    minutes: float = 60.0,
    root: Path = ROOT,
    old: dict | None = None,
) -> dict:
    """Run all mutants of a module: its entry in the report, survivors without their reasons.

    With an old entry only those that survived there: what was killed counts as killed.
    """
    measured = versions(module, part, root)  # now: files may change while mutants run
    wanted = [mutant_name(module, row) for row in old["survivors"]] if old else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_copy(folder, module, part, seconds, root)
        mutmut(folder, "run", "--max-children", str(jobs), *wanted, seconds=60 * minutes)
        found = statuses(mutmut(folder, "results", "--all", "True"))
        if old:
            found = {m: "killed" if s == "not checked" else s for m, s in found.items()}
        if strange := {m: s for m, s in found.items() if s not in KILLED | SURVIVED | SLOW}:
            raise RuntimeError(f"{module}: mutmut could not decide: {strange}; run it again, perhaps with --jobs 1")
        change = changes((folder / "mutants" / "agentrl" / f"{module}.py").read_text(encoding="utf-8"), module)
    return {
        **measured,
        "mutants": len(found),
        "killed": sum(status in KILLED for status in found.values()),
        "timeouts": sum(status in SLOW for status in found.values()),
        "survivors": [
            {"function": split_name(mutant), "mutant": number(mutant), "change": change[mutant], "reason": ""}
            for mutant, status in found.items()
            if status in SURVIVED
        ],
    }


def earlier(module: str, report: dict) -> dict:
    """A module's entry if its mutants are still the same ones; else BadParameter."""
    entry = report.get(module, {})
    if entry.get("code") != versions(module, CORE[module])["code"] or entry["timeouts"] or not entry["survivors"]:
        raise typer.BadParameter(
            f"--survivors needs a result for the present code of {module} that has survivors and no timeouts; "
            "run it once without"
        )
    return entry


def with_reasons(entry: dict, old: dict | None) -> dict:
    """The entry with the reasons that the old one gives for the same changes of the same functions."""
    known = {(row["function"], row["change"]): row["reason"] for row in (old or {}).get("survivors", [])}
    rows = [{**row, "reason": known.get((row["function"], row["change"]), "")} for row in entry["survivors"]]
    return {**entry, "survivors": rows}


def read_report(path: Path = REPORT) -> dict:
    """{module: entry}; {} if there is none yet."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}


class Dumper(yaml.SafeDumper):
    """Several lines of code as a block."""


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def write_report(report: dict, path: Path = REPORT) -> None:
    """Write all modules, in the order of CORE."""
    ordered = {module: report[module] for module in CORE if module in report}
    write_atomically(path, yaml.dump(ordered, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110))


def stale(report: dict, core: dict[str, Part] | None = None) -> list[str]:
    """Modules of the core without an entry for their present code and tests."""
    core = CORE if core is None else core
    return [
        module for module, part in core.items() if not report.get(module, {}).items() >= versions(module, part).items()
    ]


def say(module: str, entry: dict) -> str:
    """A module's figures in a line."""
    caught, total = entry["killed"] + entry["timeouts"], entry["mutants"]
    unexplained = sum(not row["reason"] for row in entry["survivors"])
    return (
        f"{module:<12} {total:4d} mutants  {caught / max(1, total):6.1%} killed ({entry['timeouts']} by the time limit)"
        f"  {len(entry['survivors']):3d} survive  {unexplained:3d} of them without a reason"
    )


def choose(names: Iterable[str], report: dict) -> list[str]:
    """The modules of these names, or those that are out of date; BadParameter for a name not in CORE."""
    if unknown := [name for name in names if name not in CORE]:
        raise typer.BadParameter(f"no module {', '.join(unknown)} in the core; there are: {', '.join(CORE)}")
    return list(names) or stale(report)


def main(
    modules: Annotated[list[str] | None, typer.Argument(help="Modules; default: those that are out of date.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Mutants at a time.")] = 2,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds a mutant may take beyond its tests' time.")] = 60,
    minutes: Annotated[float, typer.Option(min=1, help="Minutes that a module may take.")] = 60,
    survivors: Annotated[
        bool, typer.Option("--survivors", help="After adding tests: only those that survived.")
    ] = False,
) -> None:
    """Run the mutants of the core's modules, and store the result."""
    for module in choose(modules or [], read_report()):
        started = time.monotonic()
        old = earlier(module, read_report()) if survivors else None
        entry = measure(module, CORE[module], jobs, seconds, minutes, old=old)
        report = read_report()
        report[module] = with_reasons(entry, report.get(module))
        write_report(report)
        typer.echo(f"{say(module, report[module])}  {time.monotonic() - started:4.0f} s")


if __name__ == "__main__":
    typer.run(main)
