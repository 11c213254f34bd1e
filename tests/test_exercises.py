import pytest

from agentrl.exercises import exercise


@exercise
def check_half(attempt):
    """'right', or what is wrong."""
    return "right" if attempt(4) == 2 else f"not {attempt(4)!r}"


def test_an_attempt_is_judged_by_the_check():
    assert check_half(lambda x: x / 2) == "right"
    assert check_half(lambda x: x) == "not 4"
    assert check_half.__doc__ == "'right', or what is wrong."


def test_an_attempt_that_is_not_written_yet_is_no_error():
    def unwritten(x):
        raise NotImplementedError

    assert check_half(unwritten).startswith("not written yet")


def test_an_attempt_without_a_return_is_told_so():
    def forgetful(x):
        x / 2

    assert check_half(forgetful).startswith("your function gave None")


def test_another_error_of_an_attempt_is_shown_as_it_is():
    with pytest.raises(ZeroDivisionError):
        check_half(lambda x: x / 0)
