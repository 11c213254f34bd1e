import numpy as np
import pytest

from agentrl.credit_explorer import (
    call_values_of,
    credit_by_lambda,
    credit_cell,
    credit_html,
    episode_calls,
    episode_credit,
    explore_credit,
    explore_lambda,
)
from agentrl.credit_lab import lab_results


def test_a_row_a_method_with_the_numbers_of_the_lab():
    table, stored = episode_credit(4, 1), lab_results()
    rows = stored[(stored["task"] == 4) & (stored["episode"] == 1) & (stored["cost"] == 0)]
    assert list(table.index) == ["truth", *rows["method"].unique()]
    assert table.shape[1] == len(episode_calls(4, 1)[0])
    one = rows[(rows["method"] == "MC 9") & (rows["call"] == 3)].iloc[0]
    assert table.loc["MC 9", 3] == one["draw"] and table.loc["truth", 3] == one["truth"]


def test_an_episode_that_was_not_measured_is_named():
    with pytest.raises(ValueError, match="episode=7.*episodes 0 to 2"):
        episode_credit(0, 7)


def test_a_wrong_sign_is_marked_only_where_the_truth_is_clear():
    assert "×" in credit_cell(-0.3, 0.2, 1.0) and "×" not in credit_cell(0.3, 0.2, 1.0)
    assert "×" not in credit_cell(-0.3, 0.01, 1.0) and "×" not in credit_cell(0.0, 0.2, 1.0)


def test_lambda_one_is_the_verdict_minus_the_value_and_lambda_zero_one_step():
    values, verdict = call_values_of(4, 1)
    assert np.allclose(credit_by_lambda(4, 1, 1.0), verdict - values)
    assert np.allclose(credit_by_lambda(4, 1, 0.0), np.append(values[1:], verdict) - values.numpy())


def test_moving_controls_changes_table_and_figure():
    explorer = explore_credit()
    before = explorer.picture.value
    explorer.controls["estimate"].value = "mean"
    assert before != explorer.picture.value == credit_html(4, 1, 0.0, "mean")
    explorer = explore_lambda()
    before = explorer.picture.value
    explorer.controls["lam"].value = 0.5
    assert before != explorer.picture.value
