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
# # 2.2 Solve the repair exactly: when is looking worth its price?
#
# Before we train anything, let us find out what the best possible agent does. The repair of a function by
# calls is small enough to write down as a Markov decision process (MDP) with 142 states and to solve without
# any error. We will see the best policy, the exact cost of a call at which it gives up, which assumptions
# move that cost, and why a beginner gives up far earlier. Later sections can then tell what training misses
# from what cannot be had.
#
# **Time** 30 min. **Assumes** [2.1](02_1_repair_tasks.ipynb). **Afterwards you can** solve a small decision
# process by value iteration, and give the exact cost of a call at which the best agent gives up.

# %%
#@save mdp
from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from agentrl.tasks import EDIT_OPS

# %% [markdown]
# ## What the agent knows is the state
#
# Section 4.3 builds the environment; here are its rules. An episode has six turns. `read` shows the source,
# `test` says whether the function passes, `edit` applies one of five edits and works once, `submit` ends the
# episode and is paid 1 if the function is right. Each call costs $c$.
#
# Which edit is right the agent cannot see, so that cannot be part of the state. What it *knows* can: the edit
# that reading has shown, what it believes of the edit that it made, whether it has tested the function as it
# is now, and the turns left. The fields after `edits` are for later: they change one assumption each.

# %%
#@save
RepairState = namedtuple('RepairState', 'known edit tested left')   # edit: none, blind, right or wrong


@dataclass(frozen=True)
class RepairRules:
    """The rules of a repair; probabilities are int or Fraction, so that everything stays exact."""
    turns: int = 6
    edits: tuple = tuple(EDIT_OPS)                                  # one is right, each equally likely
    read_works: Fraction = Fraction(1)                              # the chance that reading shows which
    needs_test: bool = False                                        # is a verdict paid only after a test?
    free_exit: bool = False                                         # does submitting no edit cost nothing?

    def __post_init__(self):
        if type(self.turns) is not int or self.turns < 1 or not self.edits or not 0 <= self.read_works <= 1:
            raise ValueError(f'{self} makes no episode; a whole number of turns >= 1, one edit or more, '
                             'read_works 0 to 1')

    @property
    def calls(self):
        """All calls; those that end an episode sooner come first, and win ties."""
        return ('submit', *(f'edit {op}' for op in self.edits), 'read', 'test')

    @property
    def start(self):
        return RepairState(None, 'none', False, self.turns)


# %%
rules = RepairRules()
print(rules.start)
print(rules.calls)

# %% [markdown]
# ## One small function for each call
#
# Each returns what may happen, as pairs of a probability and the fields of the state that change. Reading
# finds each edit one time in five. A blind edit stays a blind one until a test or a look at the new source
# tells, and then it is right one time in five. A second edit is refused and only costs its turn.
#
# Two things are left out. `test` tells the truth here, while the visible tests of section 2.1 let a few wrong
# functions pass (section 4.1 counts them); and there are no malformed calls, which only cost a turn. In all
# else the model must agree with the environment: `tests/test_mdp.py` plays both call by call and compares
# verdict, reward, stop and what is known.

# %%
#@save
def _reveal(rules, **changes):
    guess = Fraction(1, len(rules.edits))
    return [(guess, {'edit': 'right', **changes}), (1 - guess, {'edit': 'wrong', **changes})]


def after_read(state, rules):
    """Reading shows the right edit or, after a blind edit, whether that was it; if it works."""
    works = rules.read_works
    if state.edit == 'none' and state.known is None:
        return [*((works / len(rules.edits), {'known': op}) for op in rules.edits), (1 - works, {})]
    if state.edit == 'blind':
        return [*((works * p, changes) for p, changes in _reveal(rules)), (1 - works, {})]
    return [(1, {})]


def after_test(state, rules):
    """A test of the function as it is now; before the edit its failure is no news."""
    return _reveal(rules, tested=True) if state.edit == 'blind' else [(1, {'tested': True})]


def after_edit(state, rules, op):
    """The one edit, blind or not; a second one is refused."""
    if state.edit != 'none':
        return [(1, {})]
    made = 'blind' if state.known is None else 'right' if op == state.known else 'wrong'
    return [(1, {'edit': made, 'tested': False})]


# %%
known = rules.start._replace(known='fix_init', left=5)
blind = rules.start._replace(edit='blind', left=5)
print('read at the start:', [(str(p), changes) for p, changes in after_read(rules.start, rules)][:2], '...')
print('edit when known:  ', after_edit(known, rules, 'fix_init'))
print('edit when not:    ', after_edit(rules.start, rules, 'fix_init'))
print('test after that:  ', [(str(p), changes) for p, changes in after_test(blind, rules)])

# %% [markdown]
# ## Outcomes of a call
#
# An `Outcome` has a probability, the verdict that is paid, how many calls are charged, and the next state,
# with `None` for the end. The last turn ends the episode whatever the call was. Verdict and charge are kept
# apart, because the cost $c$ is what we want to turn. The printed check is by hand: a blind edit, submitted,
# passes with probability 1/5.

# %%
#@save
Outcome = namedtuple('Outcome', 'probability verdict charged state')
AFTER_CALL = {'read': after_read, 'test': after_test, 'edit': after_edit}


def pass_chance(state, rules):
    """The probability that submitting now is paid."""
    if rules.needs_test and not state.tested:
        return 0
    return {'none': 0, 'blind': Fraction(1, len(rules.edits)), 'right': 1, 'wrong': 0}[state.edit]


def call_outcomes(state, call, rules):
    """The Outcomes of a call that can happen; their probabilities add up to 1."""
    if call == 'submit':
        chance, charged = pass_chance(state, rules), int(not (rules.free_exit and state.edit == 'none'))
        found = [Outcome(chance, 1, charged, None), Outcome(1 - chance, 0, charged, None)]
    elif state.left == 1:
        found = [Outcome(1, 0, 1, None)]
    else:
        tool, *op = call.split()
        found = [Outcome(p, 0, 1, state._replace(left=state.left - 1, **changes))
                 for p, changes in AFTER_CALL[tool](state, rules, *op)]
    return [outcome for outcome in found if outcome.probability]


# %%
for p, verdict, charged, state in call_outcomes(blind, 'submit', rules):
    print(f'probability {p}, verdict {verdict}, calls charged {charged}, next {state}')

# %% [markdown]
# ## The transition table
#
# Start at the start and add every state that a call can lead to. Nobody has to list the states, and none is
# listed that cannot occur.

# %%
#@save
def transition_table(rules):
    """{state: {call: Outcomes}} for all states that can be reached from the start."""
    table, waiting = {}, [rules.start]
    for state in waiting:                                           # grows while we walk along it
        if state is not None and state not in table:
            table[state] = {call: call_outcomes(state, call, rules) for call in rules.calls}
            waiting += [outcome.state for found in table[state].values() for outcome in found]
    return table


# %%
table = transition_table(rules)
print(len(table), 'states, by turns left:',
      {left: sum(state.left == left for state in table) for left in range(6, 0, -1)})
sums = {sum(o.probability for o in found) for calls in table.values() for found in calls.values()}
print('probabilities of the', 8 * len(table), 'calls add up to', *sums)

# %% [markdown]
# ## Value iteration, in plain loops
#
# The value of a state is what the best policy can still expect. It solves Bellman's equation (1957),
#
# $$ V(s) = \max_a \sum_{s'} P(s' \mid s, a)\,\bigl(v - c\,n + \gamma\, V(s')\bigr), $$
#
# with verdict $v$, charge $n$ (1 a call) and $\gamma = 1$ unless we say otherwise. Start with zeros and
# replace each value by the right-hand side, until nothing changes. All numbers are fractions, so "nothing
# changes" is meant literally.

# %%
#@save
def action_value(outcomes, values, cost, discount=1):
    """The right-hand side of Bellman's equation for one call."""
    return sum(o.probability * (o.verdict - cost * o.charged + discount * values.get(o.state, 0))
               for o in outcomes)


def value_sweep(table, values, cost, discount=1):
    """Every state's value, computed once from the old ones."""
    return {state: max(action_value(found, values, cost, discount) for found in calls.values())
            for state, calls in table.items()}


def value_iteration(table, cost, discount=1):
    """The optimal value of each state; exact for a cost that is an int or a Fraction."""
    values, new = {}, dict.fromkeys(table, 0)
    while new != values:
        values, new = new, value_sweep(table, new, cost, discount)
    return values


# %% [markdown]
# At a cost of 1/20, sweep by sweep. After $k$ sweeps a value counts only the next $k$ calls. With one call
# nothing can be won; with two the best is a blind edit, $1/5 - 2/20 = 1/10$; with three the agent can read,
# edit right and submit, $1 - 3/20 = 17/20$. More turns add nothing.

# %%
cost, values = Fraction(1, 20), dict.fromkeys(table, 0)
for number in range(1, 6):
    values = value_sweep(table, values, cost)
    print(f'after sweep {number}: value at the start {values[rules.start]!s:>5}')
print('until nothing changes:', value_iteration(table, cost)[rules.start])

# %% [markdown]
# ## The best policy
#
# It takes a call of the highest value. Ties are exact too, so `best_calls` returns all that are best. Let us
# follow it, in the case that reading shows `fix_init`. Tests have no place in it.

# %%
#@save
def best_calls(table, state, values, cost, discount=1):
    """All calls whose value is the highest in this state, those that end the episode sooner first."""
    worth = {call: action_value(found, values, cost, discount) for call, found in table[state].items()}
    highest = max(worth.values())
    return [call for call, value in worth.items() if value == highest]


# %%
values, state = value_iteration(table, cost), rules.start
while state is not None:
    best = best_calls(table, state, values, cost)
    print(f'{state.left} turns left, worth {values[state]!s:>5}: {" or ".join(best)}')
    following = [outcome.state for outcome in table[state][best[0]]]
    state = next((s for s in following if s and s.known == 'fix_init'), None)

# %% [markdown]
# ## Brute force: every policy there is
#
# Is a state that holds only what the agent knows enough? The check must not use it. So we write the hidden
# game down (one edit is the right one, and the answer depends on it and on the calls so far) and let a policy
# be anything that maps the answers seen so far to a call. Then we list them all. With five edits and six
# turns they are too many; with three edits and three turns it can be done.

# %%
from collections import Counter
from itertools import product


def answer(right, calls):
    """What the agent hears after these calls, if `right` is the edit that repairs."""
    edits = [call for call in calls if call.startswith('edit')]
    repaired = edits[:1] == [f'edit {right}']
    if calls[-1] == 'read':
        return f'repaired: {repaired}' if edits else right
    if calls[-1].startswith('edit'):
        return 'applied' if len(edits) == 1 else 'refused'
    return 'pass' if repaired else 'fail'


def every_policy(rights, calls, turns, choices):
    """(passes, calls made) of each policy, added up over the functions it cannot yet tell apart."""
    if turns == 0:
        return [(0, 0)]
    found = []
    for call in choices:
        groups = {}
        for right in rights:
            groups.setdefault(answer(right, [*calls, call]), []).append(right)
        if call == 'submit':
            found.append((len(groups.get('pass', [])), len(rights)))
            continue
        parts = [every_policy(group, [*calls, call], turns - 1, choices) for group in groups.values()]
        found += [tuple(map(sum, zip((0, len(rights)), *part))) for part in product(*parts)]
    return found


# %% [markdown]
# Most policies differ only in what they do after it no longer matters. `Counter` keeps the different ones,
# and the best of them must be the value that value iteration found, at every cost.

# %%
for edits, turns in ((3, 3), (5, 2)):
    small = RepairRules(turns=turns, edits=tuple(EDIT_OPS)[:edits])
    policies = Counter(every_policy(small.edits, [], turns, small.calls))
    print(f'{edits} edits, {turns} turns: {policies.total()} policies, {len(policies)} different results')
    for cost in (Fraction(0), Fraction(1, 20), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
        brute = max(passes - cost * made for passes, made in policies) / edits
        solved = value_iteration(transition_table(small), cost)[small.start]
        print(f'    cost {cost!s:>4}: brute force {brute!s:>5}, value iteration {solved!s:>5}')
        assert brute == solved

# %% [markdown]
# ## All costs at once
#
# For a curve we want hundreds of costs. The table becomes four arrays: probability and number of the next
# state for each state, call and outcome; verdict and charge for each state and call. The end is one more
# state of value 0, in the last place. A sweep is then a single expression, over all costs side by side.

# %%
#@save
def table_arrays(table):
    """probability, next state [S, A, O], expected verdict, charge [S, A]; state number S is the end."""
    place = {state: number for number, state in enumerate([*table, None])}
    rows = [list(calls.values()) for calls in table.values()]
    shape = (len(rows), len(rows[0]), max(len(found) for row in rows for found in row))
    probability, following = np.zeros(shape), np.full(shape, place[None])
    verdict, charge = np.zeros(shape[:2]), np.zeros(shape[:2])
    for s, row in enumerate(rows):
        for a, found in enumerate(row):
            verdict[s, a] = sum(o.probability * o.verdict for o in found)
            charge[s, a] = sum(o.probability * o.charged for o in found)
            for k, o in enumerate(found):
                probability[s, a, k], following[s, a, k] = o.probability, place[o.state]
    return probability, following, verdict, charge


# %%
#@save
def solve_costs(table, costs, discount=1.0):
    """Optimal values [C, S] and action values [C, S, A] for costs [C], float64, by value iteration."""
    probability, following, verdict, charge = table_arrays(table)
    reward = verdict - np.asarray(costs, dtype=np.float64)[:, None, None] * charge       # [C, S, A]
    values, new = None, np.zeros((len(reward), len(table) + 1))                          # [C, S + 1]
    while values is None or not np.array_equal(values, new):
        values = new
        worth = reward + discount * (probability * values[:, following]).sum(-1)         # [C, S, A]
        new = np.pad(worth.max(-1), ((0, 0), (0, 1)))
    return values[:, :-1], worth


# %% [markdown]
# The two versions side by side, in all states. Then what a curve can say: on a grid of 101 costs, at which of
# them is each call best at the start?

# %%
grid = np.arange(101) / 100                                                              # [101]
curves, worth = solve_costs(table, grid)
for n in (0, 5, 30, 50, 80):
    exact = value_iteration(table, Fraction(n, 100))
    gap = max(abs(curves[n, s] - exact[state]) for s, state in enumerate(table))
    print(f'cost {n / 100:.2f}: value {curves[n, 0]:6.3f}, plain loops agree {gap < 1e-12}')
first = np.isclose(worth[:, 0], curves[:, :1], rtol=0, atol=1e-12)                        # [101, A]
for call, best in zip(rules.calls, first.T):
    where = f'from {grid[best].min()} to {grid[best].max()}' if best.any() else 'never'
    print(f'{call:20} best at the start:', where)

# %% [markdown]
# Reading is best up to 0.5, submitting at once from 0.5 on, an edit without a look never. That `test` appears
# at 0 is the tie of a free call: a free test changes nothing, so nothing speaks against it.
#
# ## The exact switch
#
# A policy that passes with probability $v$ in $n$ calls is worth $v - cn$, a straight line in $c$. The
# optimum is the highest of all these lines. To find its corners exactly, solve at both ends of an interval
# and intersect the two lines; if nothing lies above that point it is a corner, else search on both sides of
# it (Eisner and Severance 1976).

# %%
#@save
def policy_line(table, choose, state, discount=1):
    """(expected verdict, expected number of charged calls) of the policy choose(state) -> call."""
    if state is None:
        return 0, 0
    verdict = charged = 0
    for o in table[state][choose(state)]:
        later = policy_line(table, choose, o.state, discount)
        verdict += o.probability * (o.verdict + discount * later[0])
        charged += o.probability * (o.charged + discount * later[1])
    return verdict, charged


def switch_points(table, state, low, high, discount=1):
    """The costs between low and high (Fractions) at which the best policy from `state` changes."""
    def best_line(cost):
        values = value_iteration(table, cost, discount)
        return policy_line(table, lambda s: best_calls(table, s, values, cost, discount)[0], state, discount)

    def corners(left, right):
        if left == right:
            return []
        cost = (left[0] - right[0]) / Fraction(left[1] - right[1])
        middle = best_line(cost)
        if middle[0] - cost * middle[1] == left[0] - cost * left[1]:
            return [cost]
        return corners(left, middle) + corners(middle, right)

    return corners(best_line(low), best_line(high))


# %% [markdown]
# By hand: careful against giving up, $1 - 3c = -c$ gives $c = 1/2$. With two turns left only a blind edit is
# possible, $1/5 - 2c = -c$ gives $1/5$. Once reading *has* shown the edit its price is gone for good, and
# $1 - 2c = -c$ gives 1.

# %%
ends = Fraction(1, 1000), Fraction(2)
places = {'nothing known, 6 turns left': rules.start, 'right edit known, 5 left': known} | {
    f'nothing known, {left} turns left': rules.start._replace(tested=True, left=left) for left in (3, 2)}
for name, state in places.items():
    print(f'{name}: the best policy changes at', *switch_points(table, state, *ends))
for cost in (Fraction(3, 10), Fraction(4, 10), Fraction(1, 2), Fraction(1, 2) + Fraction(1, 10**9)):
    best = best_calls(table, rules.start, value_iteration(table, cost), cost)
    print(f'cost {float(cost):.9f}: {" or ".join(best)}')

# %% [markdown]
# ## The book's switch lies lower
#
# The book solves such an MDP too (its section 2.9). Its optimal policy keeps its shape at costs up to 0.3 and
# gives up from 0.4 on. Ours still reads at 0.4, where care is worth $1 - 3 \cdot 0.4 = -0.2$ against $-0.4$.
# The book's table of transitions is not public to us, so we ask which single change of the rules would put
# the switch where the book has it.

# %%
import pandas as pd

from agentrl.plotting import book_results, save_figure, save_table, spread_labels, use_style

F = Fraction
book = book_results('2.9').set_index('metric')['value']
low, high = (F(str(book[name])) for name in ('keeps_shape_up_to_cost', 'gives_up_from_cost'))
assumptions = [('the rules above', RepairRules(), 1), ('two turns', RepairRules(turns=2), 1),
               ('a verdict counts only after a test', RepairRules(needs_test=True), 1),
               ('giving up costs nothing', RepairRules(free_exit=True), 1),
               ('reading works 4 times in 5', RepairRules(read_works=F(4, 5)), 1),
               ('reading works 2 times in 3', RepairRules(read_works=F(2, 3)), 1),
               ('reading works 3 times in 7', RepairRules(read_works=F(3, 7)), 1),
               ('discount 9/10 a call', RepairRules(), F(9, 10)),
               ('discount 3/5 a call', RepairRules(), F(3, 5))]
rows = []
for name, changed, discount in assumptions:
    switch = switch_points(transition_table(changed), changed.start, *ends, discount)[-1]
    rows.append((name, str(switch), float(switch), low <= switch <= high))
moved = pd.DataFrame(rows, columns=['assumption', 'gives up at', 'decimal', 'where the book has it'])
save_table(moved, '02_2_assumptions')
moved.round(3)

# %% [markdown]
# Two whole-number changes do it. If the agent must test before it submits, the careful way has four calls and
# $1 - 4c = -c$ gives 1/3; so does an exit free of charge, $1 - 3c = 0$. An unreliable reading does it too. If
# it works with probability $q$, the switch is at $q/(1+q)$, so $q$ from 3/7 to 2/3 will do. (At the switch,
# $-c + q\,(1-2c) + (1-q)(-c) = -c$: whether a failed reading is tried again makes no difference there.) A
# discount acts in the same way, but would have to be implausibly strong. We cannot tell which of these the
# book assumed; our environment has none of them, and its switch is 1/2.
#
# ## Four policies
#
# Now lines for the policies that one meets in training. Each takes the state and returns a call.

# %%
def careful(state):
    return 'submit' if state.edit != 'none' else f'edit {state.known}' if state.known else 'read'


def careful_with_test(state):
    return 'test' if state.edit != 'none' and not state.tested else careful(state)


def blind_edit(state):
    return 'submit' if state.edit != 'none' else 'edit fix_init'


POLICIES = {'careful': careful, 'careful, with a test': careful_with_test,
            'blind edit, then submit': blind_edit, 'submit at once': lambda state: 'submit'}
lines = {name: policy_line(table, choose, rules.start) for name, choose in POLICIES.items()}
give_up = lines['submit at once']
pd.DataFrame([(name, str(v), str(n), str((v - give_up[0]) / Fraction(n - give_up[1])) if n > 1 else '')
              for name, (v, n) in lines.items()],
             columns=['policy', 'passes', 'calls', 'as good as giving up at a cost of'])

# %% [markdown]
# ## What a beginner can afford
#
# Take the last column for any policy: if its episodes pass with probability $p$ and take $K$ calls on
# average, an attempt beats giving up as long as
#
# $$ p - cK > -c, \qquad\text{that is}\qquad c < \frac{p}{K - 1}. $$
#
# The optimum does not enter. A beginner that passes one episode in five with three calls can afford 0.1,
# although the same three calls, done right, are worth making up to 0.5. The rule also covers an agent that
# reads but *misreads* without noticing: right in 6 to 8 edits of 10, it can afford 0.3 to 0.4, which is once
# more where the book has its switch.

# %%
#@save
def affordable_cost(pass_rate, calls):
    """The cost a call below which attempts of this pass rate and mean number of calls beat giving up."""
    if not 0 <= pass_rate <= 1 or calls <= 1:
        raise ValueError(f'pass_rate={pass_rate}, calls={calls}; a pass rate is 0 to 1, and an attempt has '
                         'more than the one call of giving up')
    return pass_rate / (calls - 1)


# %%
rates = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
pd.DataFrame({f'{calls} calls': [affordable_cost(p, calls) for p in rates]
              for calls in (2, 3, 4, 6)}, index=pd.Index(rates, name='pass rate')).round(3)

# %% [markdown]
# ## Both in one figure
#
# At the left, what the four policies are worth; the wide grey line is the optimum over all policies. Each
# dot marks where a policy is worth no more than submitting at once. At the right, the pass rate that attempts
# of $K$ calls need: below the line of its $K$, giving up is better. The colours are those of the runs in
# section 12.3 that may end in such a policy.

# %%
import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb

from agentrl.plotting import arm_color

use_style()
colors = dict(zip(POLICIES, map(arm_color, ('penalty 0.05', 'default', 'max_turns 3', 'penalty 0.3'))))
costs, per_call = grid[:61], 'cost of a call (a pass pays 1)'                            # 0 to 0.6
drawn = pd.DataFrame({'cost': costs, 'optimum': curves[:61, 0]})
fig, (ax, need) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(1.3, 1))
ax.plot(costs, drawn['optimum'], color='#CCCCCC', linewidth=9, solid_capstyle='round')
for name, (v, n) in lines.items():
    drawn[name] = float(v) - float(n) * costs
    ax.plot(costs, drawn[name], color=colors[name])
    ax.annotate(name, (0.6, drawn[name].iloc[-1]), xytext=(6, 0), textcoords='offset points', va='center',
                color=[0.65 * part for part in to_rgb(colors[name])], fontsize='small', label='line end')
    if n > 1:
        corner = (v - give_up[0]) / Fraction(n - give_up[1])
        ax.plot(corner, -corner, 'o', color=colors[name])
        ax.annotate(str(corner), (corner, -corner), xytext=(5, 6), textcoords='offset points')
ax.annotate('optimum', (0.1, 0.7), xytext=(12, 10), textcoords='offset points', color='#666666')
ax.axvspan(float(low), float(high), color='#F2F2F2', zorder=0)
ax.annotate("the book's\nswitch", (0.35, 0.95), ha='center', va='center', color='#666666', fontsize='small')
ax.set(xlabel=per_call, ylabel='expected return of an episode', xlim=(0, 0.6), title='Four policies')
spread_labels(ax)
for calls in (2, 3, 4, 6):
    end = min(0.6, affordable_cost(1.0, calls))
    drawn[f'needed with {calls} calls'] = np.where(costs <= end, costs * (calls - 1), np.nan)
    need.plot((0, end), (0, end * (calls - 1)), color='#555555')
    need.annotate(f'{calls} calls', (end, end * (calls - 1)), xytext=(0, 4), textcoords='offset points',
                  ha='right' if end == 0.6 else 'center', fontsize='small', color='#555555')
need.set(xlabel=per_call, ylabel='pass rate', xlim=(0, 0.6), ylim=(0, 1.1), yticks=np.arange(6) / 5,
         title='Pass rate above which attempts pay')
save_figure(fig, '02_2_value_and_cost', drawn)

# %% [markdown]
# ## Turn the cost yourself
#
# `show_policy` gives the best calls in five situations. The table below shows them for six costs; the slider
# under it, if your notebook runs, for any.

# %%
SITUATIONS = {'nothing known, 6 turns left': rules.start,
              'nothing known, 2 turns left': rules.start._replace(tested=True, left=2),
              'right edit known, 5 left': known,
              'right edit made, 4 left': known._replace(edit='right', left=4),
              'blind edit made, 5 left': blind}


def show_policy(cost):
    """Best calls and value in five situations at this cost; five edits that tie are `any edit`."""
    cost = Fraction(cost).limit_denominator(1000)
    values, rows = value_iteration(table, cost), {}
    for name, state in SITUATIONS.items():
        best = best_calls(table, state, values, cost)
        tie = len(best) > 4                                         # all five edits are among the best
        words = dict.fromkeys('any edit' if tie and call.startswith('edit') else call for call in best)
        rows[name] = {'best calls': ' or '.join(words), 'value': round(float(values[state]), 3)}
    return pd.DataFrame(rows).T


pd.DataFrame({cost: show_policy(cost)['best calls'] for cost in (0, 0.05, 0.2, 0.4, 0.5, 0.6)})

# %% tags=["nbval-ignore-output"]
from ipywidgets import FloatSlider, interact

_ = interact(show_policy, cost=FloatSlider(value=0.4, min=0, max=1, step=0.05, description='cost'))

# %% [markdown]
# ## What was seen
#
# The repair has 142 states. Its best policy reads, makes the right edit and submits. It keeps that shape at
# every cost below 1/2 and gives up above; once it has read, it would go on up to a cost of 1. With two turns
# it edits blindly below 1/5; with more it never does.
#
# | finding of the book | here, exactly | verdict |
# |---|---|---|
# | the optimal policy keeps its shape at costs up to 0.3 | it does, up to 0.5 | holds |
# | it gives up from 0.4 on | at 0.4 it still reads; it gives up from 0.5 on | does not hold |
#
# A test that must be made, or an exit that is free, would move our switch to 1/3, and so to where the book
# has it; a reading that works 2 times in 3 to 2/5. A beginner is bound not by the optimum but by $p/(K-1)$:
# with a pass rate of 0.2 and three calls it can afford a cost of 0.1. Section 12.3 compares this with
# training.
#
# **Try it.** In `RepairRules`, leave two edits and let reading work 3 times in 10: between which costs is a
# blind edit the best start? Then make a rule of your own, for example two edits an episode, and see what a
# test is worth.
