"""Credit: the checks against brute force, red on the wrong versions, green on 7.1 and 7.3."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.credit import gae_advantages, outcome_rewards, returns_to_go
from agentrl.credit_faults import (
    check_returns,
    check_token_gae,
    check_token_rewards,
    decaying_gae,
    returns_with_reset,
)
from agentrl.turns import turn_advantages
from agentrl.whitening import masked_whiten

MASK = torch.tensor([[1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)
REWARDS = outcome_rewards([1.0, -0.5], MASK)
masks = st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3).map(torch.tensor)


def values_like(mask, seed):
    return torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40)
@given(masks, st.integers(0, 99), st.floats(0.5, 1), st.floats(0, 1))
def test_gae_of_the_book_is_green_also_whitened(mask, seed, gamma, lam):
    rewards, values = values_like(mask, seed) * mask, values_like(mask, seed + 1)
    advantages, _ = gae_advantages(rewards, values, mask, gamma, lam)
    assert check_token_gae(advantages, rewards, values, mask, gamma, lam) is None
    assert check_token_gae(masked_whiten(advantages, mask), rewards, values, mask, gamma, lam) is None


def test_decay_is_red_and_named():
    values = values_like(MASK, 0)
    wrong, _ = decaying_gae(REWARDS, values, MASK, 1.0, 0.95)
    found = check_token_gae(wrong, REWARDS, values, MASK, 1.0, 0.95)
    assert found.fault == "advantages decay across observations" and found.row in (0, 1)
    whitened = check_token_gae(masked_whiten(wrong, MASK), REWARDS, values, MASK, 1.0, 0.95)
    assert whitened.fault == "advantages decay across observations"
    other = check_token_gae(wrong + torch.eye(6)[:2], REWARDS, values, MASK, 1.0, 0.95)
    assert other.fault == "advantages are not GAE of these rewards"


def test_decay_is_invisible_without_observations():
    mask = torch.ones(1, 5, dtype=torch.bool)
    rewards, values = outcome_rewards([1.0], mask), values_like(mask, 3)
    assert check_token_gae(decaying_gae(rewards, values, mask, 0.9, 0.9)[0], rewards, values, mask, 0.9, 0.9) is None


def test_calls_as_steps_are_accepted_with_turns_only():
    turn = torch.tensor([[-1, 0, 0, 0, 0, 1, 1], [-1, -1, 0, 0, 0, 0, 1]])
    values = values_like(MASK, 5)
    advantages, _ = turn_advantages(REWARDS, values, MASK, turn[:, 1:], 1.0, 0.9)
    assert check_token_gae(advantages, REWARDS, values, MASK, 1.0, 0.9, turn=turn) is None
    assert check_token_gae(advantages, REWARDS, values, MASK, 1.0, 0.9) is not None


def test_truncated_rows_are_left_to_the_other_check_and_rows_keep_their_number():
    values = values_like(MASK, 7)
    wrong, _ = decaying_gae(REWARDS, values, MASK, 1.0, 0.9)
    right, _ = gae_advantages(REWARDS, values, MASK, 1.0, 0.9)
    first_wrong = torch.stack([wrong[0], right[1]])
    cut = torch.tensor([True, False])
    assert check_token_gae(first_wrong, REWARDS, values, MASK, 1.0, 0.9, truncated=cut) is None
    assert check_token_gae(first_wrong.flip(0), REWARDS.flip(0), values.flip(0), MASK.flip(0), 1.0, 0.9,
                     truncated=cut).row == 1  # fmt: skip
    assert check_token_gae(wrong, REWARDS, values, MASK, 1.0, 0.9, truncated=torch.ones(2)) is None


def test_rewards_on_masked_positions_are_red():
    late = REWARDS.clone()
    late[0, 3] = 0.5
    found = check_token_rewards(late, MASK)
    assert (found.fault, found.row, found.column) == ("reward where the mask is not set", 0, 3)
    assert check_token_rewards(REWARDS, MASK) is None


def test_rewards_must_add_up():
    assert check_token_rewards(REWARDS, MASK, torch.tensor([1.0, -0.5])) is None
    found = check_token_rewards(REWARDS, MASK, torch.tensor([1.0, 0.5]))
    assert (found.fault, found.row) == ("token rewards do not add up", 1)


@settings(max_examples=40)
@given(masks, st.integers(0, 99))
def test_returns_of_the_book_are_green_and_resets_red(mask, seed):
    rewards = (1 + values_like(mask, seed)) * mask
    right, wrong = returns_to_go(rewards, mask), returns_with_reset(rewards, mask)
    assert check_returns(right, rewards, mask) is None
    if (right - wrong).abs().max() > 1e-9:
        assert check_returns(wrong, rewards, mask).fault == "returns are lost on the way back"
    else:
        assert check_returns(wrong, rewards, mask) is None


def test_discount_counts_kept_tokens():
    returns = torch.tensor([[0.125, 0.25, 0, 0, 0.5, 1.0]], dtype=torch.float64)
    assert check_returns(returns, REWARDS[:1], MASK[:1], gamma=0.5) is None
    found = check_returns(returns, REWARDS[:1], MASK[:1])
    assert (found.row, found.column) == (0, 0) and "has 0.125 and should have 1" in found.evidence


@pytest.mark.parametrize("n", [1, 5])
def test_nothing_kept_is_nothing_found(n):
    nothing = torch.zeros(n, 4, dtype=torch.float64)
    assert check_token_gae(nothing, nothing, nothing, nothing, 1.0, 0.9) is None
    assert check_returns(nothing, nothing, nothing) is None and check_token_rewards(nothing, nothing) is None
