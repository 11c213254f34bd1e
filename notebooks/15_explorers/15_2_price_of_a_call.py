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
# # 15.2 Turn the price of a call, and watch the best decision change
#
# Section 2.2 solved the repair exactly: below a price the best agent reads, above it gives up. Here its
# solution gets a slider. One figure shows, for a situation and rules of your choice, what each call is
# worth at every price, and the best way on at the price that is set. The point is to see that a decision
# changes where two straight lines cross, and how the lines move with the rules.
#
# **Time** 10 min. **Assumes** [2.2](../02_fundamentals/02_2_repair_mdp.ipynb), [15.0](15_0_sliders.ipynb).
# **Afterwards you can** move the price of a call, and say at which price the best agent stops looking and
# at which it gives up.

# %%
#@save mdp_explorer
from fractions import Fraction
from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb

from agentrl.explorer import Explorer, menu, slider
from agentrl.mdp import RepairRules, best_calls, solve_costs, transition_table, value_iteration
from agentrl.plotting import arm_color, spread_labels, use_style

# %% [markdown]
# ## Situations
#
# A situation is a state of 2.2: what is known, whether and how the function was edited, whether that was
# tested, and how many calls are left. Five of them are worth a look. The first is the start; with one turn
# in the whole episode the others cannot be reached, and the function says so.

# %%
#@save
PLACES = {                                                              # changes of the start, calls made
    'nothing known': ({}, 0),
    'the right edit is known': ({'known': 'fix_init'}, 1),
    'blindly edited': ({'edit': 'blind'}, 1),
    'blindly edited and tested: it fails': ({'edit': 'wrong', 'tested': True}, 2),
    'rightly edited': ({'known': 'fix_init', 'edit': 'right'}, 2),
}


def place_state(place, rules):
    """The state of one of PLACES under some rules; ValueError if they leave no call for it."""
    changes, made = PLACES[place]
    if rules.turns <= made:
        raise ValueError(f'{place!r} comes after {made} calls, and there are {rules.turns}; allow more turns')
    return rules.start._replace(left=rules.turns - made, **changes)


# %%
for place in PLACES:
    print(f'{place:36}', place_state(place, RepairRules()))

# %% [markdown]
# ## What each call is worth
#
# At a price $c$ a call is worth its verdict, minus $c$ if it is charged, plus the value of the state that
# follows when all later calls are the best ones. `solve_costs` has that for a whole grid of prices at once.
# The five edits are five calls; the best of them stands for all.

# %%
#@save
COSTS = np.arange(121) / 200                                            # 0 to 0.6


@lru_cache(maxsize=64)
def solved(rules):
    """(transition table, values of calls [121, S, A]) at all of COSTS."""
    table = transition_table(rules)
    return table, solve_costs(table, COSTS)[1]


def call_values(place, rules):
    """What submit, the best edit, read and test are worth at all of COSTS (the index): a DataFrame."""
    table, worth = solved(rules)
    here = worth[:, list(table).index(place_state(place, rules))]       # [121, A]
    edits = [n for n, call in enumerate(rules.calls) if call.startswith('edit')]
    numbers = {call: here[:, n] for n, call in enumerate(rules.calls) if n not in edits}
    return pd.DataFrame({'submit': numbers['submit'], 'edit': here[:, edits].max(1), 'read': numbers['read'],
                         'test': numbers['test']}, index=pd.Index(COSTS, name='cost'))


# %%
call_values('nothing known', RepairRules()).iloc[::20].round(3)

# %% [markdown]
# By hand at a price of 0.1: submitting at once is worth −0.1; a blind edit and a submit $1/5 - 0.2 = 0$;
# reading, the right edit and a submit $1 - 0.3 = 0.7$; a test first costs one call more, 0.6, and tells
# nothing. The row agrees. At a price of 0 a test is as good as a read, since it costs nothing and one may
# still read after it.
#
# ## The best way on
#
# From the state of the figure, the best calls one after the other, if the luck is such as the agent hopes
# for: of the states that may follow, we go to the one of highest value.

# %%
#@save
def best_way(place, rules, cost):
    """The best calls from a place to the end, when every draw ends well: list of texts."""
    table, state, way = solved(rules)[0], place_state(place, rules), []
    cost = Fraction(cost).limit_denominator(1000)
    values = value_iteration(table, cost)
    while state is not None:
        call = best_calls(table, state, values, cost)[0]
        way.append(call.split()[0])
        state = max(table[state][call], key=lambda o: values.get(o.state, 0)).state
    return way


# %%
for cost in (0.0, 0.1, 0.4, 0.55):
    print(f'price {cost:4}:', ' | '.join(best_way('nothing known', RepairRules(), cost)))
print('two turns, price 0.1:', ' | '.join(best_way('nothing known', RepairRules(turns=2), 0.1)))

# %% [markdown]
# ## One figure
#
# At the left a line for each call over all prices, and the price that is set; a band at the foot has the
# colour of the best call there. At the right the values at that price as bars, the best one full. A call is
# its name as much as its colour.

# %%
#@save
CALL_COLORS = {'submit': arm_color('penalty 0.3'), 'edit': arm_color('max_turns 3'),
               'read': arm_color('default'), 'test': arm_color('penalty 0.05')}


def draw_lines(ax, values, cost):
    """A line a call over all costs, labelled at its end, and a band of the best call at the foot."""
    low, high = min(-0.65, values.min().min() - 0.05), 1.1
    for call, line in values.items():
        ax.plot(values.index, line, color=CALL_COLORS[call])
        ax.annotate(call, (COSTS[-1], line.iloc[-1]), xytext=(6, 0), textcoords='offset points', va='center',
                    color=[0.65 * part for part in to_rgb(CALL_COLORS[call])], label='line end')
    best = values.idxmax(axis=1)
    for call in best.unique():
        ax.fill_between(values.index, low, low + 0.06, where=best == call, color=CALL_COLORS[call],
                        step='post', linewidth=0)
    ax.axvline(cost, color='#333333', linewidth=1, linestyle='--')
    ax.set(xlabel='price of a call (a pass pays 1)', ylabel='expected return from here', xlim=(0, COSTS[-1]),
           ylim=(low, high), title='Every price; at the foot, the best call')
    spread_labels(ax)


def draw_bars(ax, values, cost):
    """The values of the calls at one cost as bars; the best is full."""
    best = values.max()
    for row, (call, value) in enumerate(values.items()):
        full = np.isclose(value, best, rtol=0, atol=1e-9)
        ax.barh(row, value, color=CALL_COLORS[call], alpha=1.0 if full else 0.25)
        ax.annotate(f'{value + 0.0:.2f}', (value, row), xytext=(4 if value >= 0 else -4, 0), va='center',
                    ha='left' if value >= 0 else 'right', textcoords='offset points')
    ax.axvline(0, color='#333333', linewidth=0.8)
    ax.set(yticks=range(len(values)), yticklabels=values.index, xlim=(-1.1, 1.3), xlabel='expected return',
           title=f'At a price of {cost:.3g}')
    ax.invert_yaxis()


# %%
#@save
def mdp_figure(cost=0.1, place='nothing known', turns=6, read_works=1.0, needs_test=False, free_exit=False):
    """The values of all calls at a place, and the best way on; read_works from 0 to 1."""
    use_style()
    share = Fraction(read_works).limit_denominator(100)
    rules = RepairRules(turns=turns, read_works=share, needs_test=needs_test, free_exit=free_exit)
    values = call_values(place, rules)
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(1.4, 1))
    draw_lines(left, values, cost)
    draw_bars(right, values.iloc[np.abs(COSTS - cost).argmin()], cost)
    fig.suptitle(f'{place}: {", then ".join(best_way(place, rules, cost))}', x=0.01, ha='left')
    return fig


# %%
_ = mdp_figure()

# %% [markdown]
# With two turns left, no time is left for reading: the line of `read` lies below those of the other calls,
# and an edit without a look is best up to a price of 1/5.

# %%
_ = mdp_figure(cost=0.15, turns=2)

# %% [markdown]
# ## Turn it yourself
#
# Tab goes from control to control; the arrow keys move the price in steps of 0.01 and the turns by one. The
# last two menus change what a submit needs and what giving up costs.

# %%
#@save
def explore_price():
    """The explorer of this section."""
    return Explorer(
        mdp_figure, 'value of each call over the price of a call',
        cost=slider('price of a call', 0.1, 0.0, 0.6, 0.01), place=menu('situation', [*PLACES]),
        turns=slider('turns', 6, 1, 6), read_works=slider('reading works', 1.0, 0.1, 1.0, 0.1),
        needs_test=menu('must test before submit', {'no': False, 'yes': True}),
        free_exit=menu('giving up is free', {'no': False, 'yes': True}))


# %% tags=["nbval-ignore-output"]
explore_price()

# %% [markdown]
# ## Where the decision changes
#
# The explorer shows one crossing at a time. As a table: the price from which submitting at once is the best
# start, for turns and for readings that work more or less often, on the grid of prices.

# %%
def gives_up_from(rules):
    """The lowest of COSTS at which nothing beats submitting at once."""
    values = call_values('nothing known', rules)
    beaten = values.drop(columns='submit').max(axis=1) > values['submit'] + 1e-9
    return values.index[~beaten].min()


shares = (Fraction(1, 5), Fraction(1, 2), Fraction(4, 5), Fraction(1))
turns = pd.Index((2, 3, 4, 6), name='turns')
pd.DataFrame({f'reads work {float(q):g}': [gives_up_from(RepairRules(turns=n, read_works=q)) for n in turns]
              for q in shares}, index=turns)

# %% [markdown]
# ## What was seen
#
# At a price of 0.1 the best start is worth 0.7, and it is a read. The lines of `read` and `submit` cross at
# 0.5: from there on the best agent gives up. With two turns reading comes too late, and a blind edit is
# worth making below 0.2. A reading that works less often moves the crossing down, and more turns do not
# bring it back.
#
# **Try it.** Let giving up be free: at which price do the lines cross now? Then demand a test before a
# submit, and look at the situation "rightly edited": what does `submit` bring there?
