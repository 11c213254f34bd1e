"""Returns and GAE: by hand, against independent derivations, blind to observations, deaf to nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from agentrl.credit import gae_advantages, outcome_rewards, returns_to_go

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 1e300]
seeds = st.integers(0, 2**32 - 1)
factors = st.sampled_from([0.0, 0.3, 0.9, 0.95, 1.0])


def random_batch(seed, rows=5, columns=8):
    """rewards (0 outside the mask), values, mask; the last row keeps nothing."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.6
    mask[-1] = False
    return rewards.masked_fill(~mask, 0.0), values, mask


def mixture_of_n_step_advantages(rewards, values, gamma, lam):
    """GAE by its other description: (1 - lam) sum over n of lam^(n-1) times the n-step advantage."""
    result = []
    for t in range(len(rewards)):
        left = len(rewards) - t
        steps = []
        for n in range(1, left + 1):
            total = sum(gamma**i * rewards[t + i] for i in range(n))
            steps.append(total + (gamma**n * values[t + n] if n < left else 0.0) - values[t])
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, left)] + [lam ** (left - 1)]
        result.append(sum(w * a for w, a in zip(weights, steps, strict=True)))
    return result


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float64])
def test_the_verdict_is_on_the_last_kept_token(kind):
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).to(kind)
    rewards = outcome_rewards(torch.tensor([1.0, -0.3, 0.25, 0.0]), mask)
    assert rewards.dtype == torch.float64
    assert rewards.nonzero().tolist() == [[0, 3], [1, 0], [2, 4]]
    assert rewards.sum(1).tolist() == pytest.approx([1.0, -0.3, 0.25, 0.0], abs=1e-7)


def test_verdicts_may_be_a_list_of_booleans():
    assert outcome_rewards([True, False], torch.ones(2, 2)).tolist() == [[0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("verdict", [1.0, -0.05, math.nan])
def test_a_verdict_without_a_token_is_refused(verdict):
    with pytest.raises(ValueError, match="in row 1, where mask keeps no token"):
        outcome_rewards([1.0, verdict], torch.tensor([[1, 0], [0, 0]]))


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_another_shape_of_verdicts_is_refused(shape):
    with pytest.raises(ValueError, match=r"verdict has shape .*allowed: \[2\]"):
        outcome_rewards(torch.zeros(shape), torch.ones(2, 3))


def test_returns_by_hand():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]])
    rewards = torch.tensor([[0.0, -0.5, 0.0, 2.0, 0.0], [0.0, 1.0, 2.0, 4.0, 8.0]], dtype=torch.float64)
    assert returns_to_go(rewards, mask).tolist() == [[1.5, 1.5, 0.0, 2.0, 0.0], [0.0, 15.0, 14.0, 12.0, 8.0]]


@given(seeds)
@settings(max_examples=50)
def test_returns_are_the_double_loop(seed):
    rewards, _, mask = random_batch(seed)
    returns = returns_to_go(rewards, mask)
    for b, t in torch.cartesian_prod(torch.arange(5), torch.arange(8)).tolist():
        loop = math.fsum(rewards[b, s].item() for s in range(t, 8) if mask[b, s]) if mask[b, t] else 0.0
        assert returns[b, t].item() == pytest.approx(loop, abs=1e-12)


@pytest.mark.parametrize("reward", [1.0, -1e-9, math.nan])
@pytest.mark.parametrize("function", [returns_to_go, lambda r, m: gae_advantages(r, 0 * r, m, 1.0, 1.0)])
def test_a_reward_that_would_be_lost_is_refused(function, reward):
    rewards = torch.zeros(2, 4, dtype=torch.float64)
    rewards[1, 2] = reward
    with pytest.raises(ValueError, match=r"in row 1, column 2, where mask is not set.*column t speaks of token t\+1"):
        function(rewards, torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1]]))


@given(seeds)
@settings(max_examples=50)
def test_a_verdict_written_one_column_late_is_noticed(seed):
    """Unless the next column happens to be the policy's too, which it never is after a call."""
    _, _, mask = random_batch(seed)
    mask[:-1, 3], mask[:-1, 4:] = True, False
    with pytest.raises(ValueError, match="column 4"):
        returns_to_go(outcome_rewards([1.0, 1.0, 1.0, 1.0, 0.0], mask).roll(1, 1), mask)


def test_gae_by_hand():
    rewards = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, 0.6, 0.8]], dtype=torch.float64)
    advantages, returns = gae_advantages(rewards, values, torch.ones(1, 3), 1.0, 0.5)
    assert advantages[0].tolist() == pytest.approx([0.25, 0.3, 0.2], abs=1e-12)
    assert returns[0].tolist() == pytest.approx([0.75, 0.9, 1.0], abs=1e-12)
    advantages, _ = gae_advantages(rewards, values, torch.ones(1, 3), 0.5, 1.0)
    assert advantages[0].tolist() == pytest.approx([-0.25, -0.1, 0.2], abs=1e-12)


@given(seeds, factors, factors)
@settings(max_examples=50)
def test_gae_is_the_mixture_of_n_step_advantages(seed, gamma, lam):
    rewards, values, mask = random_batch(seed)
    advantages, returns = gae_advantages(rewards, values, mask, gamma, lam)
    for b in range(5):
        kept = mask[b]
        expected = mixture_of_n_step_advantages(rewards[b][kept].tolist(), values[b][kept].tolist(), gamma, lam)
        assert advantages[b][kept].tolist() == pytest.approx(expected, abs=1e-10)
        assert returns[b][kept].tolist() == pytest.approx((advantages + values)[b][kept].tolist(), abs=1e-12)
    assert advantages[~mask].eq(0).all() and returns[~mask].eq(0).all()


@given(seeds)
@settings(max_examples=30)
def test_the_ends_of_lambda(seed):
    rewards, values, mask = random_batch(seed)
    whole, returns = gae_advantages(rewards, values, mask, 1.0, 1.0)
    torch.testing.assert_close(returns, returns_to_go(rewards, mask), rtol=0, atol=1e-12)
    torch.testing.assert_close(whole[mask], (returns_to_go(rewards, mask) - values)[mask], rtol=0, atol=1e-12)
    nothing, _ = gae_advantages(rewards, 0 * values, mask, 1.0, 0.0)
    torch.testing.assert_close(nothing, rewards, rtol=0, atol=0)


@given(seeds, factors, factors, st.sampled_from(GARBAGE), st.data())
@settings(max_examples=60)
def test_inserting_observations_changes_no_advantage(seed, gamma, lam, garbage, data):
    """Any number of columns at any places, whatever the critic says there; rows in another order."""
    rewards, values, mask = random_batch(seed)
    before = gae_advantages(rewards, values, mask, gamma, lam)
    wide = [rewards, values, mask]
    for _ in range(data.draw(st.integers(1, 4))):
        at, n = data.draw(st.integers(0, wide[2].shape[1])), data.draw(st.integers(1, 5))
        wide = [
            torch.cat([x[:, :at], x.new_full((5, n), filling), x[:, at:]], 1)
            for x, filling in zip(wide, (0.0, garbage, False), strict=True)
        ]
    order = data.draw(st.permutations(range(5)))
    wide = [x[order] for x in wide]
    after = gae_advantages(*wide, gamma, lam)
    for a, b in zip(before, after, strict=True):
        assert b[wide[2]].tolist() == a[order][mask[order]].tolist()
        assert b[~wide[2]].eq(0).all()
    to_go = returns_to_go(wide[0], wide[2])
    torch.testing.assert_close(to_go[wide[2]], returns_to_go(rewards, mask)[order][mask[order]], rtol=0, atol=1e-12)


@given(seeds, factors)
@settings(max_examples=30)
def test_what_comes_later_does_not_depend_on_what_came_before(seed, lam):
    rewards, values, mask = random_batch(seed)
    full, _ = gae_advantages(rewards, values, mask, 0.9, lam)
    tail, _ = gae_advantages(rewards[:, 3:], values[:, 3:], mask[:, 3:], 0.9, lam)
    assert torch.equal(full[:, 3:], tail)


def test_a_bootstrap_is_an_addition_to_the_last_reward():
    """A row cut after two tokens, whose next value would be 0.4, equals the same row with that value seen."""
    values = torch.tensor([[0.5, 0.7, 0.4]], dtype=torch.float64)
    seen, _ = gae_advantages(torch.zeros(1, 3, dtype=torch.float64), values, torch.ones(1, 3), 0.9, 0.0)
    cut_reward = torch.tensor([[0.0, 0.9 * 0.4, 0.0]], dtype=torch.float64)
    cut, _ = gae_advantages(cut_reward, values, torch.tensor([[1, 1, 0]]), 0.9, 0.0)
    assert cut[0, :2].tolist() == pytest.approx(seen[0, :2].tolist(), abs=1e-12)


def test_no_gradient_and_no_change_of_the_inputs():
    rewards, values, mask = random_batch(0)
    copies = [x.clone() for x in (rewards, values, mask)]
    values.requires_grad_()
    results = gae_advantages(rewards, values, mask.double(), 1.0, 0.95)
    assert not any(x.requires_grad for x in results)
    assert all(torch.equal(x, y) for x, y in zip((rewards, values.detach(), mask), copies, strict=True))
    assert torch.equal(results[0], gae_advantages(rewards, values, mask, 1.0, 0.95)[0])


@pytest.mark.parametrize("gamma, lam, name", [(1.1, 1.0, "gamma=1.1"), (1.0, -0.1, "lam=-0.1"), (math.nan, 1, "gamma")])
def test_factors_outside_their_range_are_refused(gamma, lam, name):
    with pytest.raises(ValueError, match=f"{name}.*allowed: from 0 to 1"):
        gae_advantages(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), gamma, lam)


def test_shapes_that_disagree_are_refused():
    three, two = torch.zeros(2, 3), torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"rewards have shape \[2, 3\], mask \[2, 2\]"):
        returns_to_go(three, two)
    with pytest.raises(ValueError, match=r"values have shape \[2, 3\]; allowed: \[2, 2\]"):
        gae_advantages(two, three, torch.ones(2, 2), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"both must be \[B, T-1\]"):
        returns_to_go(torch.zeros(3), torch.ones(3))


def test_padding_with_nothing_kept_is_all_zero():
    results = gae_advantages(torch.zeros(2, 3), torch.full((2, 3), math.nan), torch.zeros(2, 3), 1.0, 0.9)
    assert all(x.eq(0).all() for x in results)
    assert returns_to_go(pad(torch.zeros(2, 3), (0, 2)), torch.zeros(2, 5)).eq(0).all()


def test_whole_numbers_are_not_cut_off():
    rewards, values = torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64), torch.tensor([[1, 2, 1]])
    mask = torch.ones(1, 3)
    right = gae_advantages(rewards, values.double(), mask, 0.9, 0.5)
    for some in (rewards, rewards.long()):
        found = gae_advantages(some, values, mask, 0.9, 0.5)
        assert all(torch.equal(a, b) and a.dtype == torch.float64 for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_kept_numbers_that_are_not_finite_are_named(bad):
    zeros, broken = (torch.full((1, 2), x, dtype=torch.float64) for x in (0.0, bad))
    for rewards, values, name in ((broken, zeros, "rewards"), (zeros, broken, "values")):
        with pytest.raises(ValueError, match=rf"{name} is {bad} at the kept position \[0, 0\]"):
            gae_advantages(rewards, values, torch.ones(1, 2), 1.0, 1.0)
    with pytest.raises(ValueError, match=f"rewards is {bad}"):
        returns_to_go(broken, torch.ones(1, 2))
    with pytest.raises(ValueError, match=f"verdict {bad} in row 0; .*finite"):
        outcome_rewards([bad], torch.ones(1, 2))


def test_types_are_kept_and_whole_numbers_count_as_float64():
    mask = torch.ones(1, 2, dtype=torch.bool)
    halves, whole = torch.tensor([[0.5, 0.25]]), torch.tensor([[1, 0]])
    assert gae_advantages(halves, halves, mask, 1.0, 1.0)[0].dtype == torch.float32
    assert gae_advantages(halves.double(), halves, mask, 1.0, 1.0)[0].dtype == torch.float64
    assert gae_advantages(whole, halves, mask, 1.0, 1.0)[0].dtype == torch.float64
