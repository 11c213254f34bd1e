import math

import numpy as np
import pandas as pd
import pytest

from agentrl import evidence
from agentrl.arms import GRPO, read_runs
from agentrl.evidence import (
    LEAST_SEEDS,
    RATES,
    SAME,
    difference,
    draw_seeds,
    draw_seeds_and_tasks,
    expanded_level,
    interquartile_mean,
    interval,
    stored_rows,
    task_scores,
    verdict,
)


def table(n_seeds=10, n_tasks=10, seed=0):
    return np.random.default_rng(seed).random((n_seeds, n_tasks))


def test_scores_by_task_add_up_to_the_stored_means():
    heldout = read_runs(GRPO, "heldout")
    for arm in ("default", "penalty 0.3", "max_turns 3"):
        stored = heldout[(heldout["arm"] == arm) & (heldout["base"] == 0)].set_index("seed")
        for metric in set(RATES) - {"malformed"}:  # a rate a call: its mean over tasks is not the mean over calls
            ours = task_scores(GRPO, arm, metric)
            assert ours.shape[1] == 10 and not ours.isna().any(axis=None)
            pd.testing.assert_series_equal(ours.mean(axis=1), stored[metric], check_names=False)


def test_rows_of_other_code_are_not_mixed_in(monkeypatch):
    assert len(stored_rows(GRPO, "heldout", "default")) >= 3
    monkeypatch.setattr(type(GRPO), "version", lambda study, arm: "another")
    with pytest.raises(ValueError, match="tools.sweep --study grpo --arms .default. --bases 0"):
        stored_rows(GRPO, "heldout", "default")


def test_an_interval_over_seeds_is_that_of_the_seed_means():
    scores = table()
    spread = draw_seeds(scores, np.mean, 0.95).standard_error
    means = scores.mean(axis=1)
    assert spread == pytest.approx(means.std() / np.sqrt(len(means)), rel=0.03)
    found = interval(scores)
    assert found["low"] < found["estimate"] < found["high"]
    assert found["estimate"] == pytest.approx(scores.mean()) and (found["seeds"], found["tasks"]) == (10, 10)


def test_tasks_that_differ_widen_only_the_interval_over_tasks():
    scores = 0.05 * table() + np.linspace(0, 1, 10)
    narrow, wide = interval(scores), interval(scores, draw=draw_seeds_and_tasks)
    assert wide["high"] - wide["low"] > 5 * (narrow["high"] - narrow["low"])
    turned = interval(scores.T)  # and rows and columns are not taken for each other
    assert turned["high"] - turned["low"] > 5 * (narrow["high"] - narrow["low"])


def test_rows_are_drawn_whole():
    scores = np.repeat(np.linspace(0, 1, 10)[:, None], 8, axis=1)  # a run that fails does so on every task
    spread = draw_seeds(scores, np.mean, 0.95).standard_error
    assert spread == pytest.approx(scores[:, 0].std() / np.sqrt(10), rel=0.03)


def test_bootstraps_are_percentiles_of_plain_loops_over_one_stream():
    """9999 draws from generator 0: of rows; of rows, then of columns. Skewed, so that other intervals differ."""
    scores, rng = table(7, 4) ** 6, np.random.default_rng(0)
    rows, columns = rng.integers(0, 7, (9999, 7)), rng.integers(0, 4, (9999, 4))
    by_hand = (
        (draw_seeds, [scores[r].mean() for r in rows]),
        (draw_seeds_and_tasks, [scores[np.ix_(r, c)].mean() for r, c in zip(rows, columns)]),
    )
    for draw, means in by_hand:
        found = draw(scores, np.mean, 0.8)
        assert found.bootstrap_distribution == pytest.approx(means)
        assert [*found.confidence_interval] == pytest.approx(np.quantile(means, [0.1, 0.9]))


@pytest.mark.parametrize("n", [3, 10, 100])
def test_the_expanded_level_gives_the_width_of_students_t(n):
    from scipy.stats import norm, t

    z = norm.ppf((1 + expanded_level(0.95, n)) / 2)
    assert z * np.sqrt((n - 1) / n) == pytest.approx(t.ppf(0.975, n - 1))


def test_few_seeds_have_no_interval_and_leave_a_claim_undecided():
    found = interval(table(LEAST_SEEDS - 1))
    assert np.isnan([found["low"], found["high"]]).all() and verdict(found, (-9, 9)) == "undecided"
    assert not np.isnan(interval(table(LEAST_SEEDS))["low"])


def test_the_interval_is_the_same_each_time_and_of_the_level_asked():
    assert interval(table()) == interval(table())
    wide, narrow = interval(table()), interval(table(), confidence=0.5)
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_a_statistic_is_told_which_axes_are_seeds_and_tasks():
    def best_task(scores, axis):
        return scores.max(axis=axis[1], keepdims=True).mean(axis=axis)

    scores = table(8, 3)
    assert interval(scores, best_task)["estimate"] == pytest.approx(scores.max(axis=1).mean())


@pytest.mark.parametrize("scores", [np.empty((0, 3)), np.full((8, 2), np.nan), np.zeros(8), [[0.5, None]] * 8])
def test_a_table_with_gaps_is_refused(scores):
    with pytest.raises(ValueError, match="full table"):
        interval(scores)


def test_the_interquartile_mean_ignores_a_failed_run():
    scores = np.full((8, 4), 0.8)
    scores[0] = 0.0
    assert interval(scores, interquartile_mean)["estimate"] == pytest.approx(0.8)
    assert interquartile_mean(np.arange(8.0).reshape(1, 2, 4)) == pytest.approx([3.5])


def test_a_difference_is_paired_by_seed_and_task():
    one = pd.DataFrame([[0.5, 1.0], [0.25, 0.0]], index=[3, 4], columns=["a", "b"])
    other = pd.DataFrame([[1.0, 0.25], [0.0, 0.0]], index=[4, 9], columns=["b", "a"])
    assert difference(one, other).to_dict() == {"a": {4: 0.0}, "b": {4: -1.0}}
    with pytest.raises(ValueError, match=r"seeds \[3, 4\] and \[7\]"):
        difference(one, other.set_axis([7, 8]).iloc[:1])


@pytest.mark.parametrize(
    "low, high, region, says",
    [
        (0.1, 0.2, (0, np.inf), "holds"),
        (-0.2, 0.0, (0, np.inf), "does not hold"),
        (0.0, 0.2, (0, np.inf), "undecided"),
        (0.06, 0.2, (-0.05, 0.05), "does not hold"),
        (-0.04, 0.04, (-0.05, 0.05), "holds"),
        (-0.04, 0.06, (-0.05, 0.05), "undecided"),
        (-0.2, -0.05, (-0.05, 0.05), "does not hold"),
        (0.05, 0.2, (-0.05, 0.05), "does not hold"),
        (0.04, 0.05, (-0.05, 0.05), "undecided"),
    ],
)
def test_verdicts(low, high, region, says):
    assert verdict({"low": low, "high": high}, region) == says


@pytest.mark.parametrize(
    "low, high, delta, says",
    [
        (-0.014, 0.006, 0.05, SAME),
        (-0.014, 0.006, 0, "undecided"),  # without a δ nothing changes
        (-0.05, 0.006, 0.05, "undecided"),  # δ itself is no longer the same
        (-0.4, 0.006, 0.05, "undecided"),
        (0.001, 0.006, 0.05, "holds"),  # δ takes no verdict back
        (-0.014, -0.006, 0.05, "does not hold"),
        (float("nan"), float("nan"), 0.05, "undecided"),
    ],
)
def test_an_interval_inside_delta_is_the_same(low, high, delta, says):
    assert verdict({"low": low, "high": high}, (0, float("inf")), delta) == says


def test_repeats_are_evaluations_of_one_policy(monkeypatch):
    calls = []
    run = {"weights": "w", "history": [{"step": 0}], "heldout": {}}
    monkeypatch.setattr(evidence, "train_arm", lambda *args: run)
    monkeypatch.setattr(evidence, "policy_from", lambda weights: weights)
    monkeypatch.setattr(
        evidence, "evaluate", lambda policy, tasks, tok, n, rng, cfg: calls.append(rng.initial_seed()) or {"n": n}
    )
    rows = evidence.train_and_repeat("shared draws", 3)["heldout"]
    assert [row["evaluated"] for row in rows] == list(range(evidence.N_REPEATS))
    assert len(set(calls)) == evidence.N_REPEATS and evidence.EVALUATION["seed"] not in calls
    shared = calls.copy()
    evidence.train_and_repeat("shared draws", 4)
    assert calls == shared * 2
    calls.clear()
    for seed in (3, 4):
        evidence.train_and_repeat("own draws", seed)
    assert len(set(calls)) == 2 * evidence.N_REPEATS


@pytest.mark.parametrize("confidence", [95, 1, 0, -0.5, math.nan, "0.95", True])
def test_a_confidence_outside_zero_and_one_is_refused(confidence):
    for wrong in (lambda: interval(np.zeros((8, 2)), confidence=confidence), lambda: expanded_level(confidence, 8)):
        with pytest.raises(ValueError, match="confidence=.*95% is 0.95"):
            wrong()


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="1 missing"):
        interval([[0.0, math.inf]] * 1)
    with pytest.raises(ValueError, match="n=1"):
        expanded_level(0.95, 1)


@pytest.mark.parametrize(
    ("found", "region"),
    [
        ({"low": 0, "high": 1}, (1, 0)),
        ({"low": 0, "high": 1}, (math.nan, 1)),
        ({"low": 1, "high": 0}, (0, 1)),
    ],
)
def test_bounds_out_of_order_are_refused(found, region):
    with pytest.raises(ValueError, match="lower bound"):
        verdict(found, region)


def test_two_values_have_a_level_and_edges_belong_to_no_side():
    assert expanded_level(0.95, 2) == 1 > expanded_level(0.95, 3) > 0.95  # of two nearly nothing is known
    assert verdict({"low": 0.1, "high": 0.1}, (0, 1)) == "holds"
    assert verdict({"low": -0.01, "high": 0.05}, (0.02, math.inf), delta=0.05) == "undecided"
    assert verdict({"low": -0.01, "high": 0.049}, (0.02, math.inf), delta=0.05) == SAME
