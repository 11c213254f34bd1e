# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12.7 Solution: pairs that isolate a shift, and what each shift costs
#
# The exercise of section 12.7.1 asks, for each way in which deployment differs from training, for two
# situations that differ in it and in nothing else. Here are the pairs, their check, the size of each
# shift for each way of training, and the answer of the review.
#
# **Time** 5 min. **Assumes** [12.7.1](../12_multi_turn/12_7_design_review.ipynb). **Afterwards you can**
# build two situations that differ in one thing, and say when the sizes of two shifts may be compared.

# %%
import pandas as pd

from agentrl.arms import run_study
from agentrl.plotting import mean_interval
from agentrl.review import FIELDS, REVIEW, REVIEW_ARMS, check_pair

# %% [markdown]
# ## The pairs
#
# The budget changes nothing else at the start of an episode, where there is no history. A late state is a
# longer history in the same context; the `read` is there in both, so that nothing is missing. With four calls
# made and three observations kept, exactly one is hidden: a useless test in one history, the source in the
# other. So the same change of context is a placeholder in the first and forgetting in the second.

# %%
def my_pair(shift):
    """(with the shift, without it), two of SITUATIONS."""
    return {
        'budget': ((12, 'full', 'nothing', 0), (6, 'full', 'nothing', 0)),
        'late state': ((12, 'full', 'read, tests', 8), (12, 'full', 'read, tests', 1)),
        'placeholders': ((12, 'keep 3', 'tests', 4), (12, 'full', 'tests', 4)),
        'forgetting': ((12, 'keep 3', 'read, tests', 4), (12, 'full', 'read, tests', 4)),
    }[shift]


print(check_pair(my_pair))

# %%
rows, _ = run_study(REVIEW, list(REVIEW_ARMS), REVIEW.seeds)
passes = rows.set_index([*FIELDS, 'arm', 'seed'])['pass_rate'].sort_index()


def size(shift, arm):
    """Pass rate with the shift minus without it, on average over seeds, with its 95% interval."""
    new, old = (passes.loc[(*situation, arm)] for situation in my_pair(shift))
    return mean_interval(new - old)


shifts = ('budget', 'late state', 'placeholders', 'forgetting')
pd.DataFrame({(shift, arm): size(shift, arm) for shift in shifts for arm in REVIEW_ARMS},
             index=['mean', 'low', 'high']).T.round(3)

# %% [markdown]
# ## What was seen
#
# On the agent as planned a larger budget costs nothing (0.001, with an interval around 0), a late state
# 0.433 of the pass rate, and forgetting the source 0.216. A placeholder by itself changes little, −0.022.
# After training as deployed the late state costs 0.601, so that little is left to forget: with a pass rate
# near 0, a shift that would do harm looks like none (0.028, undecided). Sizes of shifts compare only where
# the starting points do. With rehearsal and the read kept, the late state costs 0.062 (0.003 to 0.121), but
# *without* the source that agent loses 0.426 on average (0.313 to 0.538). It was cured by its context, not
# of its need for it.
#
# **Try it.** The two shifts that hurt can meet in one situation. From the stored rows, compare their joint
# size, `(12, 'keep 3', 'read, tests', 8)` against `(12, 'full', 'read, tests', 1)`, with their sum.
