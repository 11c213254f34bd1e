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
# # 12.7 Solution: show the turns that are left
#
# The exercise asks for a wrapper that ends each observation with the turns that are left, and for a guess at
# what it does where a cut episode is free. Here is the wrapper with its check, and the stored runs of section
# 12.7 as the answer to the guess.
#
# **Time** 5 min. **Assumes** [12.7](../12_multi_turn/12_7_design_problems.ipynb). **Afterwards you can**
# wrap an environment so that each observation ends with the turns left, and say when these words do harm.

# %%
import gymnasium as gym

from agentrl.pathologies import check_turns_left


class CountDown(gym.Wrapper):
    """Counts its own calls, and says how many are left of `budget`."""

    def __init__(self, env, budget):
        super().__init__(env)
        self.budget = budget

    def reset(self, **options):
        self.left = self.budget
        return self.env.reset(**options)

    def step(self, action):
        observation, *rest = self.env.step(action)
        self.left -= 1
        return f'{observation} turns left {" ".join(str(self.left))}', *rest


def my_turns_left(env):
    return CountDown(env, env.get_wrapper_attr('max_turns'))


check_turns_left(my_turns_left)

# %% [markdown]
# The vocabulary has the ten digits as words, so 12 is written as two of them; `12` in one word would be an
# unknown word, and the tokenizer says so. The wrapper counts by itself. The one in the section asks the
# environment, which also works if an episode is given a budget of its own through `reset`. Both are right
# where a budget is the environment's:

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.pathologies import TurnsLeft
from agentrl.tasks import make_tasks

task = make_tasks('train')[0]
for wrap in (my_turns_left, TurnsLeft):
    for options in ({'task': task}, {'task': task, 'max_turns': 3}):
        env = wrap(EditBudgetEnv(max_turns=6))
        env.reset(options=options)
        print(wrap.__name__, options.get('max_turns', 6), env.step('<call> test </call>')[0])

# %% [markdown]
# The guess: showing the limit changes what the policy *can* do, not what it is paid for. While a wrong
# submission costs 1 and a cut episode nothing, to know the limit is no reason to submit before it. The runs,
# ten seeds each, without and with the turns shown, and with them shown and a cut priced like a wrong
# submission; beside them the lowest submit rate during training, and how many seeds stop submitting:

# %%
import pandas as pd

from agentrl.arms import SEEDS, arm_results, run_study
from agentrl.pathologies import PATHOLOGIES

shown = run_study(PATHOLOGIES, ['turns left shown', 'turns left priced'], SEEDS)
tables = zip(arm_results(['wrong_submit -1'], SEEDS), shown, strict=True)
heldout, history = (pd.concat(pair).set_index(['arm', 'seed']) for pair in tables)
start = history[history['step'] == 0]
runs = pd.DataFrame({'at step 0': start['submit_rate'],
                     'lowest submit rate': history.groupby(['arm', 'seed'])['submit_rate'].min(),
                     'held-out submit rate': heldout['submit_rate'], 'held-out pass': heldout['pass_rate']})
print(runs.groupby('arm').agg(['mean', 'min', 'max']).round(3).T.to_string())
counts = {'held-out submit rate below 0.05': runs['held-out submit rate'] < 0.05,
          'held-out pass of half or more': runs['held-out pass'] >= 0.5}
pd.DataFrame(counts).groupby('arm').agg(['sum', 'count']).T

# %% [markdown]
# ## What was seen
#
# A wrapper of a few lines that the check finds right. The guess holds in its main point: shown the turns
# left, five of ten policies stop submitting (a held-out submit rate below 0.05), and four pass half or more,
# up to 0.769, where the same reward without the words ends at 0.662 to 0.794 on every seed. With a price on
# being cut the words do no harm: 0.681 to 0.800. Ten seeds still do not say whether the policy uses the
# count.
#
# **Try it.** Let `my_turns_left` speak only when two turns are left: what does the check say, and is it right
# to say so?
