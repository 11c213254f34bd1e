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
# # 12.3 Solution: a curriculum of turn budgets
#
# With three turns from the start, the agent of section 12.3 never reads: it guesses. The careful
# episode needs exactly three calls. Here it gets six turns for 20 steps first, and then three.
#
# **Time** 5 min. **Assumes** [12.3](../12_multi_turn/12_3_budget_and_penalty.ipynb). **Afterwards you can**
# write a schedule of turn budgets, and judge before each step of it how many episodes fit the next one.

# %%
import pandas as pd

from agentrl.arms import run_study
from agentrl.curriculum import CURRICULUM, CURRICULUM_ARMS, check_budget
from agentrl.plotting import mean_interval, plot_panels, save_figure, save_table, use_style


def my_budget(step):
    """The turn budget of a training step."""
    return 6 if step < 20 else 3


print(check_budget(my_budget))

# %% [markdown]
# ## Three arms, ten seeds each
#
# All are trained for 60 steps and evaluated with three turns.

# %%
heldout, history = run_study(CURRICULUM, list(CURRICULUM_ARMS), CURRICULUM.seeds)
shown = ['pass_rate', 'reads', 'tests', 'edits', 'turns']
save_table(heldout[['arm', 'seed', *shown]], 's_12_3_curriculum')
heldout.groupby('arm', sort=False)[shown].agg(['min', 'mean', 'max']).round(3).T

# %%
passes = heldout.pivot(index='seed', columns='arm', values='pass_rate')
table = pd.DataFrame({arm: mean_interval(passes[arm]) for arm in CURRICULUM_ARMS}).T
gain = pd.DataFrame({f'{arm}, minus no curriculum': mean_interval(passes[arm] - passes['3 turns, 60 steps'])
                     for arm in list(CURRICULUM_ARMS)[1:]}).T
pd.concat([table, gain]).set_axis(['mean', 'low', 'high'], axis=1).round(3)

# %%
use_style(dashes=True)
labels = {'pass_rate': 'pass rate', 'reads': 'reads an episode', 'tests': 'tests an episode',
          'turns': 'calls an episode'}
fig = plot_panels(history, list(CURRICULUM_ARMS), labels,
                  f'The way to three turns, {len(CURRICULUM.seeds)} seeds (line: mean, band: seed range)')
save_figure(fig, 's_12_3_curriculum', history[['arm', 'seed', 'step', *labels]])

# %% [markdown]
# What happens when the budget falls to three depends on one habit: how many of a seed's episodes still test.

# %%
def around(cut):
    """A seed a row: tests an episode in the last step before `cut`, submissions right after it, what came of it."""
    runs = history[history['arm'] == CUTS[cut]].pivot(index='seed', columns='step')
    return pd.DataFrame({'tests before': runs['tests', cut - 1], 'submit after': runs['submit_rate', cut],
                         'submit 10 later': runs['submit_rate', cut + 10], 'pass at the end': runs['pass_rate', 59]})


CUTS = {20: '6 turns, then 3', 40: '6 turns, 4, then 3'}
pd.concat({arm: around(cut) for cut, arm in CUTS.items()}, names=['arm']).round(2)

# %% [markdown]
# ## What was seen
#
# The careful episode is within reach of three turns: an agent that learned to read with six keeps reading
# with three and passes 0.680 of held-out episodes (0.508 to 0.852), against 0.209 without a curriculum, 0.471
# more on average (0.301 to 0.642). Blind guessing is where training from the base gets stuck, not what three
# turns allow. One seed of ten begins to leave it by itself: it reads 0.794 times an episode in the end.
#
# The staircase is not better: it gains 0.401 (0.174 to 0.627), and two of its seeds, 0 and 7, end in nothing,
# one of the other arm. These are seeds whose agent, when the budget falls, still reads, edits, tests and
# submits, in nearly every episode (0.97 and 1.00 tests): with more turns the useless test costs nothing. When
# the third turn becomes the last, it never submits, all rewards are 0, all advantages are 0, and no gradient
# will ever tell it why: the pass rate stays at 0.00 to the end. But the share does not decide alone: others
# fell into the same trap at 0.94 and 0.95 tests and found the way out, by a few episodes that left the test
# away. So the habit that costs nothing (section 12.3) decides whether a curriculum survives its own steps:
# before a budget falls, look at what share of the episodes fits into the new one.
#
# **Try it.** Price the calls while there is room, `RLConfig(seed=0, step_penalty=0.05)` in
# `train_stages`: does the staircase of seed 0 survive?
