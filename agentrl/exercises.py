# Made by tools/export.py from notebooks/12_multi_turn/12_1_observations_are_inputs.py. Do not edit: change it there, then `make export`.
# Body: ea1b12e6825b6536
"""12.1 Observations are inputs, not actions."""

from functools import wraps


# 12_multi_turn/12_1_observations_are_inputs, cell 9
def exercise(check):
    """The check of an exercise, which says so if the attempt (its only argument) is not written yet."""
    @wraps(check)
    def checked(attempt):
        try:
            return check(attempt)
        except NotImplementedError:
            return 'not written yet: replace the line that raises, then run this cell again'

    return checked
