"""Whitening under a mask: mean 0 and deviation 1 over what is kept, exact zeros elsewhere and without spread."""

import math
import statistics
from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.whitening import masked_whiten

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 1e300]
seeds = st.integers(0, 2**32 - 1)


def random_batch(seed, share=0.5):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 5, generator=rng, dtype=torch.float64) * 3 - 1
    return x, torch.rand(4, 5, generator=rng, dtype=torch.float64) < share


@pytest.mark.parametrize("mask_type", [torch.bool, torch.float64, torch.int64])
def test_by_hand(mask_type):
    x = torch.tensor([[1.0, 7.0, 2.0, 3.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1]]).to(mask_type)
    assert masked_whiten(x, mask).tolist() == [[-1.0, 0.0, 0.0, 1.0]]


def test_two_kept_positions_are_enough():
    white = masked_whiten(torch.tensor([[2.0, 9.0, 6.0]], dtype=torch.float64), torch.tensor([[1, 0, 1]]))
    assert white.tolist() == [pytest.approx([-math.sqrt(0.5), 0.0, math.sqrt(0.5)])]


@given(seed=seeds, garbage=st.sampled_from(GARBAGE))
@settings(max_examples=60)
def test_mean_and_deviation_over_kept_positions_whatever_the_others_hold(seed, garbage):
    x, mask = random_batch(seed)
    white = masked_whiten(x.masked_fill(~mask, garbage), mask)
    assert white[~mask].eq(0).all() and white.isfinite().all() and white.shape == x.shape
    kept = x[mask].tolist()
    if len(kept) < 2:
        assert white.eq(0).all()
    else:
        mean, deviation = statistics.mean(kept), statistics.stdev(kept)
        assert white[mask].tolist() == pytest.approx([(v - mean) / deviation for v in kept], abs=1e-12)
        assert statistics.mean(white[mask].tolist()) == pytest.approx(0, abs=1e-12)
        assert statistics.stdev(white[mask].tolist()) == pytest.approx(1, abs=1e-12)


@given(seed=seeds, scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
@settings(max_examples=30)
def test_units_and_zero_of_the_reward_do_not_matter(seed, scale, shift):
    x, mask = random_batch(seed)
    torch.testing.assert_close(masked_whiten(scale * x + shift, mask), masked_whiten(x, mask), rtol=0, atol=1e-9)


@given(seed=seeds, value=st.floats(-1e6, 1e6))
@settings(max_examples=30)
def test_equal_values_give_exact_zeros(seed, value):
    x, mask = random_batch(seed)
    assert masked_whiten(x.masked_fill(mask, value), mask).eq(0).all()


@pytest.mark.parametrize("kept", [[0, 0, 0], [1, 0, 0], [1, 1, 1]])
def test_a_spread_of_the_last_bit_leaves_no_residue(kept):
    multiplied, added = -0.05 * 6, reduce(add, 6 * [-0.05])
    assert multiplied != added
    x = torch.tensor([[multiplied, added, multiplied]], dtype=torch.float64)
    assert masked_whiten(x, torch.tensor([kept])).tolist() == [[0.0, 0.0, 0.0]]


def test_eps_is_the_spread_that_counts_as_none_and_enters_nothing_else():
    x, both = torch.tensor([[0.0, 0.5]], dtype=torch.float64), torch.ones(1, 2)
    assert masked_whiten(x, both, eps=0.5).eq(0).all()
    assert torch.equal(masked_whiten(x, both, eps=0.4), masked_whiten(x, both))


def test_the_mean_over_tokens_is_that_of_the_long_episode():
    mask = torch.arange(9) < torch.tensor([[1], [9]])  # [2, 9]
    x = torch.tensor([[0.2], [0.5]], dtype=torch.float64).expand(2, 9)
    white = masked_whiten(x, mask)
    assert white[0, 0] < 0 < x[0, 0]  # better than expected, and yet pushed down
    assert white[0, 0].item() == pytest.approx(-9 * white[1, 0].item())


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_kept_value_that_is_not_finite_is_refused(bad):
    x, mask = torch.tensor([[1.0, bad, 2.0]]), torch.tensor([[1, 1, 1]])
    with pytest.raises(ValueError, match=rf"{bad} at the kept position \[0, 1\]"):
        masked_whiten(x, mask)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"\[2\].*\[2, 3\]"):
        masked_whiten(torch.zeros(2), torch.ones(2, 3))


def test_equal_is_measured_against_size_and_type():
    both = torch.ones(1, 2)
    large = torch.tensor([[1e9, math.nextafter(1e9, math.inf)]], dtype=torch.float64)
    single = torch.tensor([[sum([0.05] * 7), 0.35]], dtype=torch.float32) + torch.tensor([0.0, 3e-8])
    assert masked_whiten(large, both).eq(0).all() and masked_whiten(single, both).eq(0).all()
    assert masked_whiten(torch.tensor([[1e9, 1e9 + 20]], dtype=torch.float64), both).ne(0).all()


def test_whole_numbers_and_a_negative_eps_are_refused():
    with pytest.raises(ValueError, match="x is torch.int64"):
        masked_whiten(torch.tensor([[1, 2]]), torch.ones(1, 2))
    for eps in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="eps="):
            masked_whiten(torch.zeros(1, 2), torch.ones(1, 2), eps)


def test_nothing_may_be_added_to_the_deviation():
    values, mask = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    white = masked_whiten(values, mask, eps=0.0)
    assert abs(float(white.mean())) < 1e-12
