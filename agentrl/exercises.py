# Made by tools/export.py from notebooks/12_multi_turn/12_1_observations_are_inputs.py. Do not edit: change it there, then `make export`.
# Body: 4c47369a44ac3b9e
"""12.1 Observations are inputs, not actions."""

from functools import wraps


# 12_multi_turn/12_1_observations_are_inputs, cell 9
def exercise(check):
    """The check of an exercise, which says so if the attempt is not written yet or returns nothing."""
    class NothingReturned(Exception):
        pass

    @wraps(check)
    def checked(attempt):
        def answer(*args):
            if (given := attempt(*args)) is None:
                raise NothingReturned
            return given

        try:
            return check(answer)
        except NotImplementedError:
            return 'not written yet: replace the line that raises, then run this cell again'
        except NothingReturned:
            return 'your function gave None: does each way through it end with `return`?'

    return checked
