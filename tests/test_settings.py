"""Property tests: the same examples in every run, and no limit on the time of one, which a busy one exceeds."""

import ast
from pathlib import Path

import hypothesis


def test_the_profile_of_the_book_is_in_force(request):
    if request.config.getoption("--hypothesis-profile") is None:
        assert hypothesis.settings().derandomize
    assert hypothesis.settings().deadline is None


def test_no_property_test_sets_a_deadline():
    found = [
        f"{path.name}, line {call.lineno}"
        for path in sorted(Path(__file__).parent.glob("test_*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "settings"
        for keyword in call.keywords
        if keyword.arg == "deadline" and getattr(keyword.value, "value", 0) is not None
    ]
    assert found == []
