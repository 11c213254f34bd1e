import pytest
import torch

from agentrl.base import DEMONSTRATED, HABITS, chance, choose, demonstrate, demonstrations, make_rl_base, spoil
from agentrl.environment import parse_call
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate

TOK = build_tokenizer(make_tasks("all"))
TASKS = make_tasks("train")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habits_never_use_what_is_not_demonstrated(habit):
    for n, task in enumerate(TASKS):
        calls = habit(task, DEMONSTRATED, rng(n))
        assert calls[-1] == "submit" and "edit fix_return" not in calls
        traj = demonstrate(task, habit, TOK, DEMONSTRATED, rng(n), malformed=0)
        assert traj.info["n_turns"] == len(calls) and traj.info["n_invalid"] == 0 and traj.info["submitted"]


def test_shares_of_habits_sum_to_one():
    assert sum(HABITS.values()) == pytest.approx(1)


def test_spoiled_calls_are_malformed():
    generator = rng()
    for call in ("read", "test", "submit", "edit fix_init"):
        for _ in range(20):
            assert parse_call(" ".join(spoil(["<call>", *call.split(), "</call>"], generator)))[0] == "invalid"


def test_draws_follow_their_weights():
    generator = rng()
    picks = [choose("ab", generator, (3.0, 1.0)) for _ in range(2000)]
    assert 0.70 < picks.count("a") / 2000 < 0.80
    assert 0.05 < sum(chance(0.1, generator) for _ in range(2000)) / 2000 < 0.15


def test_demonstrations_are_a_function_of_the_generator():
    first, second = (demonstrations(TASKS, HABITS, TOK, DEMONSTRATED, 8, rng(3)) for _ in range(2))
    assert torch.equal(first["ids"], second["ids"])


def test_the_base_is_a_beginner():
    """Passes sometimes, speaks well, and never gives up on everything: what RL needs to start from."""
    stats = evaluate(make_rl_base(TOK), make_tasks("heldout"), TOK, 16, rng(1), RLConfig())
    assert 0.08 < stats["pass_rate"] < 0.3
    assert 0.5 < stats["submit_rate"] < 0.9
    assert 0.003 < stats["malformed"] < 0.04
    assert 0.3 < stats["reads"] < 1


def test_each_call_gives_a_fresh_policy():
    first, second = make_rl_base(TOK), make_rl_base(TOK)
    with torch.no_grad():
        first.head.weight.zero_()
    assert second.head.weight.abs().sum() > 0
