# Made by tools/export.py from notebooks/15_explorers/15_2_price_of_a_call.py. Do not edit: change it there, then `make export`.
# Body: 616c89b0f52726fa
"""15.2 Turn the price of a call, and watch the best decision change."""

from fractions import Fraction
from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb

from agentrl.explorer import Explorer, menu, slider
from agentrl.mdp import RepairRules, best_calls, solve_costs, transition_table, value_iteration
from agentrl.plotting import arm_color, spread_labels, use_style

# 15_explorers/15_2_price_of_a_call, cell 2
PLACES = {                                                              # changes of the start, calls made
    'nothing known': ({}, 0),
    'the right edit is known': ({'known': 'fix_init'}, 1),
    'blindly edited': ({'edit': 'blind'}, 1),
    'blindly edited and tested: it fails': ({'edit': 'wrong', 'tested': True}, 2),
    'rightly edited': ({'known': 'fix_init', 'edit': 'right'}, 2),
}


# 15_explorers/15_2_price_of_a_call, cell 2
def place_state(place, rules):
    """The state of one of PLACES under some rules; ValueError if they leave no call for it."""
    changes, made = PLACES[place]
    if rules.turns <= made:
        raise ValueError(f'{place!r} comes after {made} calls, and there are {rules.turns}; allow more turns')
    return rules.start._replace(left=rules.turns - made, **changes)


# 15_explorers/15_2_price_of_a_call, cell 4
COSTS = np.arange(121) / 200                                            # 0 to 0.6


# 15_explorers/15_2_price_of_a_call, cell 4
@lru_cache(maxsize=64)
def solved(rules):
    """(transition table, values of calls [121, S, A]) at all of COSTS."""
    table = transition_table(rules)
    return table, solve_costs(table, COSTS)[1]


# 15_explorers/15_2_price_of_a_call, cell 4
def call_values(place, rules):
    """What submit, the best edit, read and test are worth at all of COSTS (the index): a DataFrame."""
    table, worth = solved(rules)
    here = worth[:, list(table).index(place_state(place, rules))]       # [121, A]
    edits = [n for n, call in enumerate(rules.calls) if call.startswith('edit')]
    numbers = {call: here[:, n] for n, call in enumerate(rules.calls) if n not in edits}
    return pd.DataFrame({'submit': numbers['submit'], 'edit': here[:, edits].max(1), 'read': numbers['read'],
                         'test': numbers['test']}, index=pd.Index(COSTS, name='cost'))


# 15_explorers/15_2_price_of_a_call, cell 6
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


# 15_explorers/15_2_price_of_a_call, cell 8
CALL_COLORS = {'submit': arm_color('penalty 0.3'), 'edit': arm_color('max_turns 3'),
               'read': arm_color('default'), 'test': arm_color('penalty 0.05')}


# 15_explorers/15_2_price_of_a_call, cell 8
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


# 15_explorers/15_2_price_of_a_call, cell 8
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


# 15_explorers/15_2_price_of_a_call, cell 9
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


# 15_explorers/15_2_price_of_a_call, cell 12
def explore_price():
    """The explorer of this section."""
    return Explorer(
        mdp_figure, 'value of each call over the price of a call',
        cost=slider('price of a call', 0.1, 0.0, 0.6, 0.01), place=menu('situation', [*PLACES]),
        turns=slider('turns', 6, 1, 6), read_works=slider('reading works', 1.0, 0.1, 1.0, 0.1),
        needs_test=menu('must test before submit', {'no': False, 'yes': True}),
        free_exit=menu('giving up is free', {'no': False, 'yes': True}))
