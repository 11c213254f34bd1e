# Made by tools/export.py from notebooks/02_fundamentals/02_2_repair_mdp.py. Do not edit: change it there, then `make export`.
# Body: e5debab56b439e4c
"""2.2 Solve the repair exactly: when is looking worth its price?."""

from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from agentrl.tasks import EDIT_OPS

# 02_fundamentals/02_2_repair_mdp, cell 2
RepairState = namedtuple('RepairState', 'known edit tested left')   # edit: none, blind, right or wrong


# 02_fundamentals/02_2_repair_mdp, cell 2
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


# 02_fundamentals/02_2_repair_mdp, cell 4
def _reveal(rules, **changes):
    guess = Fraction(1, len(rules.edits))
    return [(guess, {'edit': 'right', **changes}), (1 - guess, {'edit': 'wrong', **changes})]


# 02_fundamentals/02_2_repair_mdp, cell 4
def after_read(state, rules):
    """Reading shows the right edit or, after a blind edit, whether that was it; if it works."""
    works = rules.read_works
    if state.edit == 'none' and state.known is None:
        return [*((works / len(rules.edits), {'known': op}) for op in rules.edits), (1 - works, {})]
    if state.edit == 'blind':
        return [*((works * p, changes) for p, changes in _reveal(rules)), (1 - works, {})]
    return [(1, {})]


# 02_fundamentals/02_2_repair_mdp, cell 4
def after_test(state, rules):
    """A test of the function as it is now; before the edit its failure is no news."""
    return _reveal(rules, tested=True) if state.edit == 'blind' else [(1, {'tested': True})]


# 02_fundamentals/02_2_repair_mdp, cell 4
def after_edit(state, rules, op):
    """The one edit, blind or not; a second one is refused."""
    if state.edit != 'none':
        return [(1, {})]
    made = 'blind' if state.known is None else 'right' if op == state.known else 'wrong'
    return [(1, {'edit': made, 'tested': False})]


# 02_fundamentals/02_2_repair_mdp, cell 6
Outcome = namedtuple('Outcome', 'probability verdict charged state')
AFTER_CALL = {'read': after_read, 'test': after_test, 'edit': after_edit}


# 02_fundamentals/02_2_repair_mdp, cell 6
def pass_chance(state, rules):
    """The probability that submitting now is paid."""
    if rules.needs_test and not state.tested:
        return 0
    return {'none': 0, 'blind': Fraction(1, len(rules.edits)), 'right': 1, 'wrong': 0}[state.edit]


# 02_fundamentals/02_2_repair_mdp, cell 6
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


# 02_fundamentals/02_2_repair_mdp, cell 8
def transition_table(rules):
    """{state: {call: Outcomes}} for all states that can be reached from the start."""
    table, waiting = {}, [rules.start]
    for state in waiting:                                           # grows while we walk along it
        if state is not None and state not in table:
            table[state] = {call: call_outcomes(state, call, rules) for call in rules.calls}
            waiting += [outcome.state for found in table[state].values() for outcome in found]
    return table


# 02_fundamentals/02_2_repair_mdp, cell 10
def action_value(outcomes, values, cost, discount=1):
    """The right-hand side of Bellman's equation for one call."""
    return sum(o.probability * (o.verdict - cost * o.charged + discount * values.get(o.state, 0))
               for o in outcomes)


# 02_fundamentals/02_2_repair_mdp, cell 10
def value_sweep(table, values, cost, discount=1):
    """Every state's value, computed once from the old ones."""
    return {state: max(action_value(found, values, cost, discount) for found in calls.values())
            for state, calls in table.items()}


# 02_fundamentals/02_2_repair_mdp, cell 10
def value_iteration(table, cost, discount=1):
    """The optimal value of each state; exact for a cost that is an int or a Fraction."""
    values, new = {}, dict.fromkeys(table, 0)
    while new != values:
        values, new = new, value_sweep(table, new, cost, discount)
    return values


# 02_fundamentals/02_2_repair_mdp, cell 12
def best_calls(table, state, values, cost, discount=1):
    """All calls whose value is the highest in this state, those that end the episode sooner first."""
    worth = {call: action_value(found, values, cost, discount) for call, found in table[state].items()}
    highest = max(worth.values())
    return [call for call, value in worth.items() if value == highest]


# 02_fundamentals/02_2_repair_mdp, cell 16
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


# 02_fundamentals/02_2_repair_mdp, cell 17
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


# 02_fundamentals/02_2_repair_mdp, cell 19
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


# 02_fundamentals/02_2_repair_mdp, cell 19
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


# 02_fundamentals/02_2_repair_mdp, cell 23
def affordable_cost(pass_rate, calls):
    """The cost a call below which attempts of this pass rate and mean number of calls beat giving up."""
    if not 0 <= pass_rate <= 1 or calls <= 1:
        raise ValueError(f'pass_rate={pass_rate}, calls={calls}; a pass rate is 0 to 1, and an attempt has '
                         'more than the one call of giving up')
    return pass_rate / (calls - 1)
