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
# # 9.4 Close the shortcuts: the agent takes them where the honest way is dear
#
# A policy is paid for passing tests, not for reading code. If something else in the episode gives the answer
# away, it may learn that instead, whenever that is easier than the honest way. Here we open one such leak on
# purpose: each training task keeps its own function name, and the name stands in the prompt. We will see an
# agent that leaves the leak alone, and one whose training curve looks like success while its held-out pass
# rate tells another story.
#
# **Time** 5 min. **Assumes** [4.1](../04_environment/04_1_isolated_tests.ipynb), [9.3](09_3_arms.ipynb).
# **Afterwards you can** open a leak in the tasks, and tell by held-out pass rates whether an agent has
# learned the task or the leak.

# %%
import pandas as pd

from agentrl.arms import SEEDS, arm_results
from agentrl.plotting import mean_interval, plot_panels, save_figure, save_table, use_style
from agentrl.tasks import EDIT_OPS, apply_op, make_tasks
from agentrl.testing import run_tests

# %% [markdown]
# ## How far one gets without looking
#
# First the baseline that any reader of code must beat. One fixed edit, applied blindly to every task:

# %%
def blind_pass_rate(op, split):
    """Share of a split's tasks whose hidden tests pass after the edit `op`, applied without looking."""
    tasks = make_tasks(split)
    return sum(run_tests(apply_op(task.source, op), task.hidden_tests).passed for task in tasks) / len(tasks)


blind = pd.DataFrame({split: {op: blind_pass_rate(op, split) for op in EDIT_OPS}
                      for split in ('train', 'heldout')})
save_table(blind.rename_axis('edit').reset_index(), '09_4_blind_edits')
blind

# %% [markdown]
# Every blind edit passes 0.200 of both splits, by construction: each edit is the right one for a fifth of the
# tasks. The book's value for the best single blind edit is 0.200 as well.
#
# ## The leak
#
# With `fresh_names=False` the twenty training tasks have twenty different names, always the same, so the word
# in the prompt gives the edit away. Nothing else changes. A policy that learns twenty words by heart need not
# read.

# %%
print([(task.issue.split()[-2], task.edit) for task in make_tasks('train')][:5])
arms = ['default', 'fixed names', 'max_turns 3', 'fixed names, 3 turns']
heldout, history = arm_results(arms, SEEDS)

# %% [markdown]
# Two budgets. With six turns there is time to read, edit, test and submit. With three, the habit of the base
# (read, edit, test, submit) does not fit, and section 12.3 shows that its agent guesses blindly. We look at
# the last ten training steps and at the held-out tasks, whose names an agent of the leak has never seen: the
# lowest, the middle (the median) and the highest of ten seeds.

# %%
train = history[history['step'] >= 30].groupby(['arm', 'seed'])[['pass_rate', 'reads']].mean().reset_index()
unseen = heldout[['arm', 'seed', 'pass_rate', 'reads']]
table = train.merge(unseen, on=['arm', 'seed'], suffixes=(' train', ' held-out'))
save_table(table, '09_4_fixed_names')
numbers = ['pass_rate train', 'reads train', 'pass_rate held-out', 'reads held-out']
by_arm = table.groupby('arm')[numbers].agg(['min', 'median', 'max']).loc[arms]
by_arm.stack(future_stack=True).rename_axis(['arm', 'over seeds']).round(3)

# %% [markdown]
# Arms of the same seed start from the same policy and are tested on the same tasks, so we compare in pairs
# (their names differ, and so do the uniforms): with the leak minus without, mean and 95% t interval.

# %%
wide = table.pivot(index='seed', columns='arm', values=numbers)
rows = {(turns, number): mean_interval(wide[number][leak] - wide[number][honest])
        for turns, honest, leak in ((6, 'default', 'fixed names'), (3, 'max_turns 3', 'fixed names, 3 turns'))
        for number in numbers}
pd.DataFrame(rows, index=['leak minus no leak', 'low', 'high']).T.rename_axis(['turns', '']).round(3)

# %% [markdown]
# With three turns the highest held-out pass rate is far from the middle. Is one agent different from the
# others? Here are the agents of three turns, parted by whether they read.

# %%
three = table[table['arm'].str.contains('3')]
three.groupby(['arm', three['reads held-out'] > 0.5])[['pass_rate train', 'pass_rate held-out']].agg(
    ['count', 'min', 'mean', 'max']).round(3)

# %%
use_style(dashes=True)
labels = {'pass_rate': 'training pass rate', 'reads': 'reads an episode'}
fig = plot_panels(history, arms, labels, f'A leaking name: {len(SEEDS)} seeds (line: mean, band: seed range)')
save_figure(fig, '09_4_fixed_names', history[['arm', 'seed', 'step', *labels]])

# %% [markdown]
# With six turns the leak is left alone: the agent reads, as without the leak, because reading was already in
# the base and soon pays. With three turns the training pass rate climbs above that of the blind guesser; on
# functions with names that it has not seen, the same agent is as blind as ever. Who looks only at the training
# curve sees an agent that learns to repair. So it is on nine seeds. On the tenth the agent finds out around
# step 20 that reading, editing and submitting fit into three turns, and leaves the leak. Without the leak none
# of ten does; that the leak has helped does not follow from one case.
#
# ## What was seen
#
# A blind edit passes 0.2 of either split. With six turns a leaking name changes nothing that matters: about
# one read an episode, and a difference in held-out passes of −0.001 (−0.027 to 0.024). With three turns it
# raises the training pass rate of the last ten steps by 0.226 (0.12 to 0.332): this holds. The held-out one
# differs by 0.072 (−0.061 to 0.205): undecided, because one agent of ten learned to read after all. The nine
# others pass 0.215 there, between 0.175 and 0.306, against 0.201 without the leak: it taught them little or
# nothing about code. Shortcuts are taken where the honest way is dear, and only tasks that break the shortcut
# show it.
#
# **Try it.** Give all functions that need the same edit the same name (change `make_tasks`) and train with
# six turns. Is five words by heart tempting enough?
