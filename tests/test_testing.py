"""agentrl.testing: programs are really executed, and a bad one costs a failed verdict and nothing else."""

import ast
import os
import subprocess
import sys
import time
from multiprocessing import get_context

import psutil
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from agentrl import testing
from agentrl.tasks import EDIT_OPS, apply_op, make_tasks, randomize_names
from agentrl.testing import Verdict, run_tests

ADD = (((3, 2), 5), ((-1, 1), 0), ((0, 0), 0))
NO_ARGUMENTS = (((), 1),)


def function(*lines, head="def f(a, b):"):
    return "\n".join([head, *(f"    {line}" for line in lines)])


def living(mark):
    """Living processes with `mark` on their command line, apart from those that wait for a job."""
    found, waiting = [], {child.process.pid for child in testing._ready()}
    for process in psutil.process_iter(["cmdline", "status"]):
        is_marked = mark in str(process.info["cmdline"]) and process.info["status"] != psutil.STATUS_ZOMBIE
        if is_marked and process.pid not in waiting:
            found.append(process.pid)
    return found


def survivors(mark):
    """Those that still live after a moment: a killed process may need one to go on a busy machine."""
    for _ in range(50):
        if not living(mark):
            return []
        time.sleep(0.1)
    return living(mark)


def children_of_ours():
    waiting = {child.process.pid for child in testing._ready()}
    return [p for p in psutil.Process().children() if testing.RUNNER in p.cmdline() and p.pid not in waiting]


@pytest.mark.parametrize(
    "source, verdict",
    [
        ("def f(a, b): return a + b", Verdict(True, 3, 3, "passed")),
        ("def f(a, b): return abs(a) + b", Verdict(False, 2, 3, "failed")),
        ("def f(a, b): return a + b if b else 1 // b", Verdict(False, 2, 3, "error: ZeroDivisionError")),
        ("def f(a, b): return 1 / 0", Verdict(False, 0, 3, "error: ZeroDivisionError")),
        ("def f(a): return a", Verdict(False, 0, 3, "error: TypeError")),
        ("def f(a, b): return f(a, b)", Verdict(False, 0, 3, "error: RecursionError")),
        ("raise KeyError\ndef f(a, b): return a + b", Verdict(False, 0, 3, "error: KeyError")),
        ("def f(a, b): return a + b\ndel f", Verdict(False, 0, 3, "error: KeyError")),
        ("def g(x): return x\ndef f(a, b): return g(a + b)", Verdict(True, 3, 3, "passed")),
        ("def f(a, b): return a + b\ndef g(a, b): return a", Verdict(False, 1, 3, "failed")),
        ("def f(a, b) return a + b", Verdict(False, 0, 3, "error: SyntaxError")),
        ("return 1\ndef f(a, b): return a + b", Verdict(False, 0, 3, "error: SyntaxError")),
        ("f = max", Verdict(False, 0, 3, "error: no function")),
        ("", Verdict(False, 0, 3, "error: no function")),
        ("#" * 20_001, Verdict(False, 0, 3, "error: source too long")),
    ],
)
def test_verdicts(source, verdict):
    assert run_tests(source, ADD) == verdict


@pytest.mark.parametrize(
    "value, expected, same",
    [
        ("1", 1, True), ("True", 1, False), ("1.0", 1, False), ("True", True, True), ("1", True, False),
        ("0.1 + 0.2", 0.3, False), ("0.1 + 0.2", 0.1 + 0.2, True), ("None", None, True),
        ("(1, 2)", (1, 2), True), ("[1, 2]", (1, 2), False), ("[1, [2]]", [1, [2]], True),
        ("{'a', 'b', 'c', 'd', 'e'}", {"e", "d", "c", "b", "a"}, True), ("{1}", {True}, False),
        ("[{1: 'a', 2: {3}}]", [{2: {3}, 1: "a"}], True), ("{1: 1}", {1: True}, False), ("{1: 1}", {1}, False),
        ("{(1, 2)}", {(2, 1)}, False), ("{1.0: 0}", {1: 0}, False), ("'{'", "{", True), ("{'a'}", "{'a'}", False),
        ("'é\\n'", "é\n", True), ("'a'", "b", False), ("float('nan')", 1, False),
    ],
)  # fmt: skip
def test_values_are_compared_strictly(value, expected, same):
    assert run_tests(f"def f(): return {value}", (((), expected),)).passed is same


def test_equal_tests_of_other_types_are_other_questions():
    echo = "def f(a): return a"
    assert run_tests(echo, (((1,), 1),)).passed and run_tests(echo, (((True,), True),)).passed
    assert not run_tests(echo, (((1,), True),)).passed and not run_tests(echo, (((True,), 1),)).passed


def test_arguments_are_fresh_for_each_test():
    shared = [1, 2]
    assert run_tests("def f(a):\n    a.append(0)\n    return len(a)", (((shared,), 3), ((shared,), 3))).passed
    assert shared == [1, 2]


@pytest.mark.parametrize(
    "body, reason",
    [
        (["while True: pass"], "timeout"),
        (["import time", "time.sleep(60)"], "timeout"),
        (["import threading", "threading.Event().wait()"], "timeout"),
        (["x = [0]", "while True: x += x"], "memory"),
        (["x = []", "while True: x.append(' ' * 1000)"], "memory"),
        (["x = ()", "while True: x = (x,)"], "memory"),
        (["return [0] * 10**12"], "memory"),
        (["raise MemoryError"], "memory"),
        (["for i in range(100): print('x' * 100_000)", "return a + b"], "output"),
        (["while True: print('x' * 1000)"], "output"),
        (["import os", "while True: os.write(2, b'x' * 1000)"], "output"),
        (["return 'x' * 100_000"], "output"),
        (["exit()"], "exit"),
        (["quit(0)"], "exit"),
        (["raise SystemExit(0)"], "exit"),
        (["raise KeyboardInterrupt"], "exit"),
        (["import os", "os._exit(0)"], "exit"),
        (["import os", "os._exit(3)"], "exit"),
        (["import os", "os.abort()"], "exit"),
    ],
)
def test_a_bad_program_is_stopped(monkeypatch, body, reason):
    monkeypatch.setattr(testing, "PATIENCE", 1 if reason == "timeout" else 30)
    timeout = 1.0 if reason == "timeout" else 20.0
    assert run_tests(function(*body), ADD, timeout, memory_mb=64) == Verdict(False, 0, 3, reason)
    assert not children_of_ours()


def test_time_is_the_processor_s(monkeypatch):
    waits = function("import time", "time.sleep(0.4)", "return a + b")
    assert run_tests(waits, ADD[:1], timeout=0.3).passed
    monkeypatch.setattr(testing, "PATIENCE", 1)
    assert run_tests(waits, ADD[:1], timeout=0.2).reason == "timeout"
    monkeypatch.setattr(testing, "PATIENCE", 1000)
    assert run_tests(function("while True: pass"), ADD, timeout=0.3).reason == "timeout"


def test_processor_time_of_descendants_counts(monkeypatch):
    monkeypatch.setattr(testing, "PATIENCE", 1000)
    lines = ["import subprocess, sys", "command = [sys.executable, '-I', '-S', '-c', 'while True: pass']",
             "subprocess.Popen(command).wait()"]  # fmt: skip
    assert run_tests(function(*lines, head="def f():"), NO_ARGUMENTS, timeout=0.5).reason == "timeout"


def test_a_program_that_exits_while_it_is_loaded():
    assert run_tests("exit(0)\ndef f(a, b): return a + b", ADD).reason == "exit"


@pytest.mark.parametrize(
    "body",
    [
        ["print('Verdict(passed=True, n_passed=3, n_tests=3)')"],
        ["print('= 5')", "print('= 0')", "print('= 0')"],
        ["return 'passed'"],
        ["return type('Agreeable', (), {'__eq__': lambda self, other: True})()"],
        ["raise type('passed', (Exception,), {})"],
        ["raise type('E\\n= 5\\n= 0\\n= 0', (Exception,), {})"],
        ["import os", "for n in range(20):", "    try: os.write(n, b'= True\\n= True\\n= True')",
         "    except OSError: 0", "os._exit(0)"],
        ["import builtins", "builtins.ascii = lambda value: 'True'"],
    ],
)  # fmt: skip
def test_a_fake_verdict_does_not_pass(body):
    verdict = run_tests(function(*body), ADD)
    assert not verdict.passed and verdict.n_passed == 0 and verdict.reason != "passed"


def test_expected_values_are_not_in_the_child():
    body = ["import sys, gc", "frames = sys._current_frames().values()", "seen = ''",
            "for frame in frames:", "    while frame:", "        seen += str(frame.f_globals)",
            "        frame = frame.f_back", "return '73571' in seen"]  # fmt: skip
    assert run_tests(function(*body, head="def f(a):"), (((4242,), 73571),)) == Verdict(False, 0, 1, "failed")
    body[-1] = "return '4242' in seen"
    assert run_tests(function(*body, head="def f(a):"), (((4242,), True),)).passed


def test_prints_within_the_limit_do_not_matter():
    assert run_tests(function("print('= 1' * 1000)", "return a + b"), ADD).passed


def test_the_environment_is_not_inherited(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "do not tell")
    spy = "import os, sys\ndef f():\n    return 'MY_SECRET' in os.environ, os.listdir(), sys.flags.isolated"
    assert run_tests(spy, (((), (False, [], 1)),)).passed


def test_open_files_are_not_inherited(tmp_path):
    with open(tmp_path / "ours", "w") as ours:
        os.set_inheritable(ours.fileno(), True)
        source = f"import os\ndef f():\n    os.write({ours.fileno()}, b'x' * 7)\n    return 1"
        run_tests(source, NO_ARGUMENTS)
    assert (tmp_path / "ours").read_text() == ""


def test_descendants_are_ended():
    mark = f"marked_child_{os.getpid()}"
    source = ("import subprocess, sys\ndef f():\n    for i in range(2):\n"
              f"        subprocess.Popen([sys.executable, '-c', '{mark} = 1\\nwhile 1: 0'])\n")  # fmt: skip
    assert run_tests(source + "    while True: pass", NO_ARGUMENTS, timeout=1.0).reason == "timeout"
    assert not survivors(mark)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_copies_are_ended_and_have_no_say(monkeypatch):
    mark = f"marked_fork_{os.getpid()}"
    monkeypatch.setattr(testing, "RUNNER", f"{testing.RUNNER}# {mark}")
    lines = ["import os", "for i in range(4): os.fork()", "return 1"]
    assert run_tests(function(*lines, head="def f():"), NO_ARGUMENTS).passed
    sleeper = f"os.fork() or os.execlp('sleep', '{mark}', '600')"
    assert run_tests(function("import os", sleeper, "return 1", head="def f():"), NO_ARGUMENTS).passed
    lines = ["import os", "for i in range(5): os.fork()", "x = [0] * 1_000_000", "while True: pass"]
    many = run_tests(function(*lines, head="def f():"), NO_ARGUMENTS, memory_mb=128, timeout=10.0)
    assert many.reason == "memory"
    assert not survivors(mark)


def test_memory_of_descendants_counts(monkeypatch):
    monkeypatch.setattr(testing, "PATIENCE", 1)
    lines = ["import subprocess, sys, time", "for i in range(4):",
             "    grow = 'import time; x = bytearray(30_000_000); x[:] = b\\'1\\' * len(x); time.sleep(600)'",
             "    subprocess.Popen([sys.executable, '-I', '-S', '-c', grow])",
             "time.sleep(600)"]  # fmt: skip
    source = function(*lines, head="def f():")
    assert run_tests(source, NO_ARGUMENTS, memory_mb=500, timeout=1.0).reason == "timeout"
    assert run_tests(source, NO_ARGUMENTS, memory_mb=100, timeout=10.0).reason == "memory"


def is_gone(pid):
    """Whether a process ends within some seconds."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def open_descriptors():
    return psutil.Process().num_fds() if hasattr(os, "fork") else psutil.Process().num_handles()


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """The folder in which children get theirs, and nobody else; no child waits yet."""
    monkeypatch.setattr(testing.tempfile, "tempdir", str(tmp_path))
    testing._local.ready = []
    yield tmp_path
    testing._local.ready = []


def test_a_child_serves_one_program_and_nothing_is_left_of_it(own_folder):
    remember = "import sys\nseen = hasattr(sys, 'seen')\nsys.seen = 1\ndef f(): return seen, {}"
    run_tests("def f(): return 1", NO_ARGUMENTS)
    descriptors = open_descriptors()
    for i in range(2 * testing.AHEAD):
        assert run_tests(remember.format(i), (((), (False, i)),)).passed
    assert len(testing._ready()) == testing.AHEAD and open_descriptors() <= descriptors
    assert len(list(own_folder.iterdir())) == testing.AHEAD


def test_the_start_of_a_child_is_not_the_program_s_time():
    testing._local.ready = []
    for timeout in (0.05, 0.0501):  # first one that is started for it, then one that was prepared
        assert run_tests("import time\ndef f(): return time.sleep(0.1)", (((), None),), timeout=timeout).passed


def test_waiting_for_the_end_works_without_a_file_for_it(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(testing, "PATIENCE", 1)
    assert run_tests("def f(a, b): return a + b + 0", ADD).passed
    assert run_tests("import time\ndef f(): time.sleep(50)", NO_ARGUMENTS, timeout=0.3).reason == "timeout"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only there")
def test_nobody_polls(monkeypatch):
    monkeypatch.setattr(testing, "LOOK_EVERY", 60)
    monkeypatch.setattr(time, "sleep", None)  # what subprocess polls with
    assert run_tests("import time\ndef f(): return time.sleep(0.1)", (((), None),)).passed


def test_an_end_without_a_report_is_not_kept():
    testing._execute.cache_clear()
    source = "import os, signal\ndef f(): os.kill(os.getpid(), 9)"
    for n_children in (1, 2):
        assert run_tests(source, NO_ARGUMENTS).reason == "exit"
        assert testing._execute.cache_info()[1:] == (n_children, 8192, 0)


def test_a_report_that_does_not_fit_on_the_disk_is_none():
    cut = "import os\nos.write = lambda file, data: 1\ndef f(): return 1"
    assert run_tests(cut, NO_ARGUMENTS).reason == "exit"


def test_a_child_that_was_killed_while_it_waited_is_not_used():
    run_tests("def f(): return 1", NO_ARGUMENTS)
    for child in testing._ready():
        child.process.kill()
        child.process.wait()
    assert run_tests("def f(): return 0 + 1", NO_ARGUMENTS).passed


def test_deep_folders_get_a_verdict_and_are_deleted(own_folder):
    deep = ["import os", "for i in range(1100):", "    os.mkdir('d')", "    os.chdir('d')", "return os.getcwd()"]
    assert run_tests(function(*deep, head="def f():"), NO_ARGUMENTS).n_tests == 1
    locked = ["import os", "os.mkdir('a')", "os.symlink('/', 'a/link')", "os.chmod('a', 0o500)"]
    assert run_tests(function(*locked, "return 1", head="def f():"), NO_ARGUMENTS).passed
    testing._local.ready = []
    assert not list(own_folder.iterdir())


def test_a_file_that_cannot_be_deleted_costs_no_verdict(monkeypatch, own_folder):
    def unlink(path, **where):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", unlink)
    assert run_tests("def f(): return open('stays', 'w').write('x')", NO_ARGUMENTS).passed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Unix")
def test_nothing_outlives_a_parent_that_is_killed():
    sleeper = "def f():\n    import os, time\n    print(os.getppid())\n    time.sleep(600)"
    code = ("import threading, time, psutil\nfrom agentrl.testing import run_tests\n"
            f"threading.Thread(target=run_tests, args=({sleeper!r}, (((), 1),)), daemon=True).start()\n"
            "while len(psutil.Process().children()) < 5 or time.sleep(1): time.sleep(0.05)\n"
            "print(*[child.pid for child in psutil.Process().children()], flush=True)\ntime.sleep(600)")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 5
    gone = [is_gone(pid) for pid in children]
    assert sum(gone) >= 4 and (all(gone) or sys.platform != "linux")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Unix")
def test_a_forked_copy_has_children_of_its_own_and_leaves_ours():
    run_tests("def f(): return 1", NO_ARGUMENTS)
    before = [child.process.pid for child in testing._ready()]
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(run_tests, ("def f(): return 2 - 1", NO_ARGUMENTS)).passed
    assert [child.process.pid for child in testing._ready()] == before
    assert run_tests("def f(): return 3 - 2", NO_ARGUMENTS).passed


def test_memo_is_keyed_by_the_canonical_program():
    testing._execute.cache_clear()
    count = lambda: testing._execute.cache_info()[:2]  # noqa: E731
    assert not run_tests("def f(a, b): return a * b", ADD).passed and count() == (0, 1)
    assert not run_tests("def g(x,  y):\n\n    return (x * y)", ADD).passed and count() == (1, 1)
    assert not run_tests("def f(a, b): return b * a", ADD).passed and count() == (1, 2)
    run_tests("def f(a, b): return a * b", ADD[:2])
    run_tests("def f(a, b): return a * b", ADD, timeout=3.0)
    run_tests("def f(a, b): return a * b", ADD, memory_mb=128)
    assert count() == (1, 5)


@pytest.mark.parametrize(
    "source",
    [
        "def f(xs): return sorted(xs, reverse=True)",
        "def f(xs):\n    reverse = True\n    return sorted(xs, reverse=reverse)",
        "def f(xs):\n    match len(xs):\n        case 2: return [xs[1], xs[0]]",
        "def f(xs, step=-1): return xs[::step]",
        "def f(xs):\n    names = sorted(locals())\n    return [3, 1] if names == ['xs'] else names",
        "def f(xs): return [x for x in [3, 1] if __name__ == __name__]",
    ],
)
def test_the_memo_does_not_change_what_a_program_means(source):
    assert run_tests(source, ((([1, 3],), [3, 1]),)) == Verdict(True, 1, 1, "passed")


@pytest.mark.parametrize(
    "tests",
    [(), [], None, "ab", 5, ((1, 2),), (((1,),),), (([1], 1),), (((object(),), 1),), (((1,), {1}.pop),)],
)
def test_malformed_tests_are_an_error(tests):
    with pytest.raises(ValueError, match="tests=.* give a non-empty tuple of pairs"):
        run_tests("def f(a): return a", tests)


@pytest.mark.parametrize(
    "name, value", [("timeout", 0), ("timeout", float("nan")), ("memory_mb", 1), ("memory_mb", 64.5)]
)
def test_wrong_limits_are_an_error(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        run_tests("def f(a): return a", ADD, **{name: value})


def test_a_source_must_be_a_string():
    with pytest.raises(TypeError, match="source=.*bytes"):
        run_tests(b"def f(a): return a", ADD)


SHORT_TESTS = (((1,), 1), ((2,), 2))


def judge(source):
    verdict = run_tests(source, SHORT_TESTS, timeout=1.0)
    assert isinstance(verdict, Verdict) and verdict.n_tests == 2 and 0 <= verdict.n_passed <= 2
    assert verdict.passed is (verdict.reason == "passed") is (verdict.n_passed == 2)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text("def f(a):\n return+-*/'\"\\#{}[]", max_size=60))
@example("\x00")
@example("\ud800")
@example("def f(a): return '\ud800'")
@example("'\\d'\ndef f(a): return a")
@example("def f(a): return f'{a!r:{a}}'")
@example("(" * 20_000)
@example("-" * 19_999 + "1")
@example("def f(a): return " + "-" * 5000 + "1")
@example("def f(a): return a" + ".a" * 5000)
@example("def f(a): return " + "1+" * 5000 + "1")
def test_any_string_gets_a_verdict(source):
    judge(source)


OPERATORS = st.sampled_from(["+", "*", "//", "==", "<", "if a else", "."])
EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "0", "1", "'x'", "None", "[]", "len", "b"]),
    lambda inner: (
        st.tuples(inner, OPERATORS, inner).map(" ".join) | inner.map("({})".format) | inner.map("f({})".format)
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(EXPRESSIONS)
def test_any_function_gets_a_verdict(expression):
    source = f"def f(a): return {expression}"
    try:
        ast.parse(source)
    except SyntaxError:
        assume(False)
    judge(source)


@pytest.mark.parametrize("task", make_tasks("all"), ids=lambda task: task.name)
def test_exactly_one_edit_repairs_a_task(task):
    assert not run_tests(task.source, task.hidden_tests).passed
    repairs = [op for op in EDIT_OPS if run_tests(apply_op(task.source, op), task.hidden_tests).passed]
    assert repairs == [task.edit]
    assert run_tests(apply_op(task.source, task.edit), task.visible_tests).passed


def test_names_do_not_matter():
    rng = torch.Generator().manual_seed(1)
    for task in make_tasks("heldout"):
        run_tests(task.source, task.hidden_tests)
        before = testing._execute.cache_info().misses
        for _ in range(20):
            fresh = randomize_names(task, rng)
            assert not run_tests(fresh.source, fresh.hidden_tests).passed
        assert testing._execute.cache_info().misses == before
