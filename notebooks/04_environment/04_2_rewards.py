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
# # 4.2 Say what is wanted in one function
#
# The reward is the only thing that tells an agent what we want, and several pathologies of chapter 12 are a
# reward that says something else. So it stands in one place: a function of the call that was made and of the
# verdict. We build it, price a few episodes by hand, and see how a cost for each call changes which of them
# is best.
#
# **Time** 5 min. **Assumes** [4.1](04_1_isolated_tests.ipynb). **Afterwards you can** price any episode
# from its calls and its verdict, and find the cost at which giving up beats an attempt.

# %%
#@save rewards
REWARD_KINDS = ('hidden', 'visible')

# %% [markdown]
# ## One reward for one call
#
# With verdict $v \in \{0, 1\}$ at `submit`, cost $c$ a call, price $q$ of a malformed call and $w \le 0$ for
# a wrong submission:
#
# $$ r_k = -c \;-\; q\,[\text{call } k \text{ malformed}] \;+\; [\text{call } k \text{ submits}]\,\bigl(v + (1 - v)\,w\bigr) $$
#
# Whose verdict? `hidden` tests are what we mean. `visible` tests are what the agent can also run itself, and
# passing them is easier.

# %%
#@save
def make_reward(kind='hidden', step_penalty=0.0, wrong_submit=0.0, invalid_penalty=0.0):
    """The reward of a call as a function of (tool, passes); `submit` alone asks `passes(kind)`, the verdict.

    Costs are positive numbers, `wrong_submit` is the (negative) reward itself; all else is a ValueError.
    """
    if kind not in REWARD_KINDS:
        raise ValueError(f'reward={kind!r} is not known; choose one of {", ".join(REWARD_KINDS)}')
    for name, value in (('step_penalty', step_penalty), ('invalid_penalty', invalid_penalty)):
        if not 0 <= value < float('inf'):
            raise ValueError(f'{name}={value} must be a finite number >= 0')
    if not float('-inf') < wrong_submit <= 0:
        raise ValueError(f'wrong_submit={wrong_submit} must be a finite number <= 0: it is the reward itself')

    def reward(tool, passes):
        total = 0.0 - step_penalty
        if tool == 'invalid':
            total -= invalid_penalty
        if tool == 'submit':
            total += 1.0 if passes(kind) else wrong_submit
        return total

    return reward


# %% [markdown]
# ## Four episodes, priced by hand
#
# The careful agent reads, edits, tests and submits; the lean one leaves the test out; the blind one edits
# without looking and is right one time in five; the last one gives up. What is each worth at a cost of 0,
# 0.05 and 0.3 a call?

# %%
import pandas as pd

episodes = {
    'careful': (['read', 'edit', 'test', 'submit'], 1.0),
    'lean': (['read', 'edit', 'submit'], 1.0),
    'blind': (['edit', 'submit'], 0.2),
    'gives up': (['submit'], 0.0),
}


def expected_return(calls, p_pass, reward):
    """Mean return of an episode that passes with probability p_pass."""
    verdicts = {True: p_pass, False: 1 - p_pass}
    return sum(p * sum(reward(call, lambda kind, v=v: v) for call in calls) for v, p in verdicts.items())


costs = (0.0, 0.05, 0.3)
pd.DataFrame({f'cost {c}': {name: expected_return(calls, p, make_reward(step_penalty=c)) for name, (calls, p)
                            in episodes.items()} for c in costs}).round(3)

# %% [markdown]
# At no cost the test is free, so nothing tells careful from lean. At 0.05 lean is best. At 0.3 it is still
# best, but only for who can already read and edit right: the blind agent now does better to give up. That gap
# between what is optimal and what a *beginner* can afford is the subject of section 12.3.
#
# ## Wrong input

# %%
for bad in ({'kind': 'hiden'}, {'step_penalty': -0.05}, {'wrong_submit': 1.0}):
    try:
        make_reward(**bad)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## What was seen
#
# One function prices every call. At a cost of 0.3 a call the lean episode is still worth 0.1 and giving up
# costs 0.3, while blind editing costs 0.4.
#
# **Try it.** Find the cost at which lean and giving up are worth the same. Set `wrong_submit=-1` and price
# the blind agent against one that never submits.
