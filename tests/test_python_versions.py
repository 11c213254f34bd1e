"""Python 3.11 to 3.14 give the same digits: from 3.12 on `sum` of floats carries rounding errors along."""

import sys
from types import SimpleNamespace

import pytest
import torch

from agentrl import training
from agentrl.model import TinyAgent
from agentrl.plotting import mean_interval
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, rl_update, train_rl
from agentrl.zombies import QueueConfig, queue_means

TENTHS = 10 * [0.1]  # 0.9999999999999999 from left to right, 1.0 with the errors carried along


def left_to_right(values, /, start=0):
    """`sum` of Python 3.11."""
    for value in values:
        start = start + value
    return start


def compensated(values, /, start=0):
    """`sum` of Python 3.12 (Neumaier 1974), which carries errors along if it meets nothing but ints and floats."""
    values = list(values)
    total = left_to_right(values, start)
    if type(total) is not float or not {type(value) for value in values} <= {int, float}:
        return total
    total, error = float(start), 0.0
    for value in values:
        new = total + value
        error += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
        total = new
    return total + error


def with_each_sum(monkeypatch, function):
    """What `function` returns with each Python's `sum` in all modules of the book."""
    results = []
    for other in (left_to_right, compensated):
        for name in [name for name in sys.modules if name.startswith("agentrl.")]:
            monkeypatch.setattr(sys.modules[name], "sum", other, raising=False)
        results.append(function())
    return results


def test_this_python_has_one_of_the_two_sums():
    assert left_to_right(TENTHS) != compensated(TENTHS)
    wanted = compensated if sys.version_info >= (3, 12) else left_to_right
    for values in (TENTHS, [1e16, 1.0, -1e16], [1, 2.5, 3], [], [2, 3]):
        assert sum(values) == wanted(values) and type(sum(values)) is type(wanted(values))


def interval():
    return mean_interval(TENTHS)


def behavior():
    info = dict.fromkeys(("n_turns", "hidden_pass", "submitted", "n_reads", "n_tests", "n_edits", "n_invalid"), 1)
    one = SimpleNamespace(reward=0.1, info=info, ids=[0, 0], action_mask=torch.ones(1))
    return behavior_stats(10 * [one])


def update_statistics():
    batch = {"ids": torch.zeros(10, 2), "action_mask": torch.ones(10, 1), "logp": torch.zeros(10, 1)}

    def step(*_):
        return {"clip_fraction": 0.1, "grad_norm": 0.7}

    return rl_update(None, None, batch, torch.zeros(10, 1), RLConfig(minibatches=10), step=step)


def waiting():
    return queue_means(QueueConfig(0.25, samples=16), hours=12, first=2)


def trained_and_evaluated():
    """A step of training at a price a call, and an evaluation: every statistic that a run stores."""
    tok, cfg = build_tokenizer(make_tasks("all")), RLConfig(step_penalty=0.05, minibatches=4)
    policy, rng = TinyAgent(len(tok), d=16, n_layers=1, n_heads=2, d_mlp=16), torch.Generator().manual_seed(0)
    history = train_rl(policy, make_tasks("train"), tok, cfg, steps=2)
    return history, evaluate(policy, make_tasks("heldout"), tok, 2, rng, cfg)


@pytest.mark.parametrize("function", [interval, behavior, update_statistics, waiting])
def test_no_mean_depends_on_how_python_sums(monkeypatch, function):
    monkeypatch.setattr(training, "take_rows", lambda batch, rows: rows)
    old, new = with_each_sum(monkeypatch, function)
    assert old == new


def test_no_statistic_of_a_run_depends_on_how_python_sums(monkeypatch):
    old, new = with_each_sum(monkeypatch, trained_and_evaluated)
    assert old == new
