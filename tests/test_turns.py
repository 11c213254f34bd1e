"""Turn-level GAE: by hand, against loops over calls, its identities, what must not matter."""

import math
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.credit import gae_advantages, returns_to_go
from agentrl.turns import call_starts, turn_advantages

seeds = st.integers(0, 2**32 - 1)
factors = st.sampled_from([0.0, 0.3, 0.9, 0.95, 1.0])


def random_batch(seed, rows=5, columns=16):
    """Calls and observations of random lengths, some calls empty, turn -1 before; the last row keeps nothing."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    turn_ids = (torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.3).cumsum(1) - 1
    mask = (torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.6) & (turn_ids >= 0)
    mask[-1] = False
    return rewards.masked_fill(~mask, 0.0), values, mask, turn_ids


def loops(rewards, values, mask, turn_ids, gamma, lam):
    """One row, backwards over its calls: {turn: (advantage, return)}."""
    kept = [t for t in range(len(mask)) if mask[t]]
    calls = [(turn, list(own)) for turn, own in groupby(kept, key=lambda t: turn_ids[t])]
    result, advantage, after = {}, 0.0, 0.0
    for turn, own in reversed(calls):
        value = values[own[0]]
        advantage = math.fsum(rewards[t] for t in own) + gamma * after - value + gamma * lam * advantage
        result[turn], after = (advantage, advantage + value), value
    return result


def test_by_hand():
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 0, 0]])
    turn_ids = torch.tensor([[-1, 0, 0, 0, 0, 2, 2, -1]])  # call 1 is missing
    rewards = torch.tensor([[0.0, 0.25, -0.5, 0.0, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    values = torch.tensor([[9.0, 0.5, 9.0, 9.0, 9.0, 0.75, 9.0, 9.0]], dtype=torch.float64)
    advantages, returns = turn_advantages(rewards, values, mask, turn_ids, 1.0, 0.5)
    assert advantages.tolist() == [[0.0, 0.125, 0.125, 0.0, 0.0, 0.25, 0.0, 0.0]]
    assert returns.tolist() == [[0.0, 0.625, 0.625, 0.0, 0.0, 1.0, 0.0, 0.0]]
    advantages, _ = turn_advantages(rewards, values, mask, turn_ids, 0.5, 1.0)
    assert advantages[0, [1, 5]].tolist() == [-0.25 + 0.375 - 0.5 + 0.5 * 0.25, 0.25]


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float64])
def test_call_starts_by_hand(kind):
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]]).to(kind)
    turn_ids = torch.tensor([[-1, 0, 0, 0, 1, 1], [0, 0, 0, 5, 5, 9], [7, 3, -1, 0, 0, 0]])
    expected = [[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]
    assert call_starts(mask, turn_ids).int().tolist() == expected


@given(seeds, factors, factors)
@settings(max_examples=60)
def test_agrees_with_the_loops(seed, gamma, lam):
    batch = random_batch(seed)
    mask, turn_ids = batch[2:]
    advantages, returns = turn_advantages(*batch, gamma, lam)
    for b in range(len(mask)):
        expected = loops(*(x[b].tolist() for x in batch), gamma, lam)
        for t in range(mask.shape[1]):
            pair = expected[turn_ids[b, t].item()] if mask[b, t] else (0.0, 0.0)
            assert (advantages[b, t].item(), returns[b, t].item()) == pytest.approx(pair, abs=1e-10)


@given(seeds)
@settings(max_examples=40)
def test_undiscounted_it_is_what_was_earned_minus_the_value_of_the_start(seed):
    rewards, values, mask, turn_ids = batch = random_batch(seed)
    advantages, returns = turn_advantages(*batch, 1.0, 1.0)
    to_go = returns_to_go(rewards, mask)
    for b, t in mask.nonzero().tolist():
        start = (mask[b] & (turn_ids[b] == turn_ids[b, t])).nonzero()[0].item()
        assert returns[b, t].item() == pytest.approx(to_go[b, start].item(), abs=1e-10)
        assert advantages[b, t].item() == pytest.approx((to_go - values)[b, start].item(), abs=1e-10)


@given(seeds)
@settings(max_examples=40)
def test_undiscounted_the_surprises_of_tokens_add_up_to_that_of_their_call(seed):
    rewards, values, mask, turn_ids = batch = random_batch(seed)
    by_token, _ = gae_advantages(rewards, values, mask, 1.0, 0.0)
    by_call, _ = turn_advantages(*batch, 1.0, 0.0)
    for b, t in mask.nonzero().tolist():
        own = mask[b] & (turn_ids[b] == turn_ids[b, t])
        assert by_call[b, t].item() == pytest.approx(by_token[b][own].sum().item(), abs=1e-10)


@given(seeds, factors, factors)
@settings(max_examples=40)
def test_calls_of_one_token_are_token_level(seed, gamma, lam):
    rewards, values, mask, _ = random_batch(seed)
    by_turn = turn_advantages(rewards, values, mask, mask.cumsum(1), gamma, lam)
    by_token = gae_advantages(rewards, values, mask, gamma, lam)
    assert all(torch.equal(a, b) for a, b in zip(by_turn, by_token, strict=True))


@given(seeds, factors, st.data())
@settings(max_examples=40)
def test_neither_observations_nor_longer_calls_take_time(seed, lam, data):
    """Insert columns: observations anywhere, or further tokens (without reward) after a token of a call."""
    rewards, values, mask, turn_ids = random_batch(seed)
    before = turn_advantages(rewards, values, mask, turn_ids, 0.9, lam)
    at, n, more = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 5)), data.draw(st.booleans())
    turn = turn_ids[:, at - 1 : at].expand(5, n)
    kept = mask[:, at - 1 : at].expand(5, n) & more
    fillings = (torch.zeros(5, n, dtype=torch.float64), torch.full((5, n), math.nan), kept, turn)
    wide = [
        torch.cat([x[:, :at], filling.to(x.dtype), x[:, at:]], 1)
        for x, filling in zip((rewards, values, mask, turn_ids), fillings, strict=True)
    ]
    for a, b in zip(before, turn_advantages(*wide, 0.9, lam), strict=True):
        assert torch.equal(torch.cat([b[:, :at], b[:, at + n :]], 1), a)
        assert torch.equal(b[:, at : at + n], torch.where(kept, a[:, at - 1 : at], 0.0))


@given(seeds)
@settings(max_examples=30)
def test_only_the_order_of_turns_matters(seed):
    rewards, values, mask, turn_ids = random_batch(seed)
    first = turn_advantages(rewards, values, mask, turn_ids, 0.9, 0.8)
    second = turn_advantages(rewards, values, mask.double(), 3 * turn_ids + 2, 0.9, 0.8)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_gradient_and_no_change_of_the_inputs():
    batch = random_batch(1)
    copies = [x.clone() for x in batch]
    batch[1].requires_grad_()
    assert not any(x.requires_grad for x in turn_advantages(*batch, 1.0, 0.95))
    assert all(torch.equal(x.detach(), y) for x, y in zip(batch, copies, strict=True))


def test_padding_may_hold_anything_and_a_row_may_keep_nothing():
    values = torch.tensor([[0.5, math.nan], [math.inf, math.nan]], dtype=torch.float64)
    mask, turn_ids = torch.tensor([[1, 0], [0, 0]]), torch.tensor([[0, -1], [-1, -1]])
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    advantages, returns = turn_advantages(rewards, values, mask, turn_ids, 1.0, 0.95)
    assert advantages.tolist() == [[0.5, 0.0], [0.0, 0.0]] and returns.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_an_episode_cut_in_the_middle_of_a_call():
    """The last call has two tokens and no end; its reward counts, and nothing follows it."""
    mask, turn_ids = torch.tensor([[1, 1, 1, 0, 1, 1]]), torch.tensor([[0, 0, 0, 0, 1, 1]])
    rewards = torch.tensor([[0.0, 0.0, -0.1, 0.0, 0.0, -0.1]], dtype=torch.float64)
    values = torch.tensor([[0.2, 9, 9, 9, 0.4, 9]], dtype=torch.float64)
    advantages, _ = turn_advantages(rewards, values, mask, turn_ids, 1.0, 0.0)
    assert advantages[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0, -0.5, -0.5], abs=1e-12)


def test_what_does_not_fit_is_refused():
    x, ones = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"turn_ids have shape \[2, 4\]; allowed: \[2, 3\].*\[:, 1:\]"):
        turn_advantages(x, x, ones, torch.zeros(2, 4, dtype=torch.long), 1.0, 1.0)
    with pytest.raises(ValueError, match="turn -1 at the kept column 0 of row 1"):
        call_starts(ones, torch.tensor([[0, 0, 1], [-1, 0, 0]]))
    with pytest.raises(ValueError, match="turn -3 at the kept column 1 of row 0, after turn -1"):
        call_starts(torch.tensor([[0, 1]]), torch.tensor([[4, -3]]))
    with pytest.raises(ValueError, match="turn 0 at the kept column 2 of row 0, after turn 1"):
        call_starts(ones, torch.tensor([[0, 1, 0], [0, 0, 0]]))
    with pytest.raises(ValueError, match="in row 0, column 1, where mask is not set"):
        turn_advantages(torch.ones(1, 2), torch.zeros(1, 2), torch.tensor([[1, 0]]), torch.zeros(1, 2).long(), 1.0, 1.0)
    with pytest.raises(ValueError, match="lam=2"):
        turn_advantages(x, x, ones, torch.zeros(2, 3, dtype=torch.long), 1.0, 2)


def test_only_the_order_of_turn_numbers_counts():
    mask = torch.tensor([[1, 1, 0, 1, 0, 1]])
    rewards = torch.tensor([[0.0, 0.5, 0.0, -0.1, 0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, 0.1, 0.0, 0.7, 0.0, 0.2]], dtype=torch.float64)
    small, large = torch.tensor([[0, 0, 0, 1, 1, 2]]), torch.tensor([[3, 3, 3, 40, 40, 10**12]])
    found = (turn_advantages(rewards, values, mask, turn, 0.9, 0.8) for turn in (small, large))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_turns_with_a_fraction_are_refused():
    with pytest.raises(ValueError, match="turn_ids are torch.float32"):
        call_starts(torch.ones(1, 2), torch.zeros(1, 2))


def test_types_are_kept_and_whole_numbers_count_as_float64():
    mask, turn = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0, 1]])
    halves, whole = torch.tensor([[0.5, 0.25]]), torch.tensor([[1, 0]])
    assert turn_advantages(halves, halves, mask, turn, 1.0, 1.0)[0].dtype == torch.float32
    assert turn_advantages(whole, whole, mask, turn, 1.0, 1.0)[0].dtype == torch.float64
