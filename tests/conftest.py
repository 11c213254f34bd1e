"""The settings of all property tests: the same examples in every run, and no limit on the time of one.

`python -m pytest --hypothesis-profile=search tests/test_ppo.py` draws new ones.
"""

from hypothesis import settings

settings.register_profile("search", deadline=None)
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")
