from fractions import Fraction

import numpy as np
import pytest

from agentrl.mdp import RepairRules, action_value, value_iteration
from agentrl.mdp_explorer import COSTS, PLACES, best_way, call_values, explore_price, place_state, solved


@pytest.mark.parametrize("place", PLACES)
def test_values_are_those_of_exact_value_iteration(place):
    rules, n = RepairRules(), 50
    table, state = solved(rules)[0], place_state(place, rules)
    cost = Fraction(COSTS[n]).limit_denominator(1000)
    values = value_iteration(table, cost)
    exact = {call: action_value(found, values, cost) for call, found in table[state].items()}
    row = call_values(place, rules).iloc[n]
    assert np.isclose(row["edit"], float(max(v for call, v in exact.items() if call.startswith("edit"))))
    assert all(np.isclose(row[call], float(exact[call])) for call in ("submit", "read", "test"))


def test_by_hand():
    row = call_values("nothing known", RepairRules()).loc[0.1]
    assert np.allclose(row[["submit", "edit", "read", "test"]], [-0.1, 0.0, 0.7, 0.6])
    assert best_way("nothing known", RepairRules(), 0.4) == ["read", "edit", "submit"]
    assert best_way("nothing known", RepairRules(), 0.55) == ["submit"]
    assert best_way("nothing known", RepairRules(turns=2), 0.1) == ["edit", "submit"]
    assert best_way("rightly edited", RepairRules(needs_test=True), 0.1) == ["test", "submit"]


def test_a_place_that_cannot_be_reached_says_what_to_do():
    with pytest.raises(ValueError, match="2 calls.*allow more turns"):
        place_state("rightly edited", RepairRules(turns=2))


def test_moving_the_price_changes_the_figure_and_an_impossible_place_is_explained():
    explorer = explore_price()
    before = explorer.picture.value
    explorer.controls["cost"].value = 0.55
    assert before != explorer.picture.value and "data:image/svg" in explorer.picture.value
    explorer.controls["place"].value = "rightly edited"
    explorer.controls["turns"].value = 1
    assert "allow more turns" in explorer.picture.value
