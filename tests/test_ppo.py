"""The clipped update: the four cases, exact zeros, padding, splits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.gradient import reinforce_loss
from agentrl.ppo import MAX_LOG_RATIO, clip_fraction, clipped_loss, probability_ratio

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 5000.0, -5000.0]
seeds = st.integers(0, 2**32 - 1)


def random_batch(seed, rows=5, columns=6):
    generator = torch.Generator().manual_seed(seed)
    logp, old, a = (torch.randn(rows, columns, generator=generator, dtype=torch.float64) for _ in range(3))
    return logp, old, a, torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.6


def gradient(logp, *rest):
    logp = logp.detach().clone().requires_grad_()
    loss = clipped_loss(logp, *rest)
    loss.backward()
    return loss.item(), logp.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.5, 1.0, 1.2, 0.0),
        (1.5, -1.0, -1.5, -1.5),
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -1.0, -0.8, 0.0),
        (1.1, 2.0, 2.2, 2.2),
        (0.9, -2.0, -1.8, -1.8),
        (1.0, 1.0, 1.0, 1.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_cases_by_hand(ratio, advantage, value, slope):
    old = torch.tensor([[-3.0]], dtype=torch.float64)
    loss, grad = gradient(old + math.log(ratio), old, torch.full_like(old, advantage), torch.ones_like(old))
    assert loss == pytest.approx(-value, abs=1e-12)
    assert grad.item() == pytest.approx(-slope, abs=1e-12)
    if slope == 0:
        assert grad.item() == 0.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
@given(seed=seeds, clip=st.floats(0.01, 0.9))
@settings(max_examples=30)
def test_loss_and_clip_fraction_are_the_loops(mode, seed, clip):
    logp, old, a, mask = random_batch(seed)
    weights, loop, bites = loss_weights(mask, mode), 0.0, []
    for b, t in mask.nonzero().tolist():
        r, advantage = math.exp(logp[b, t].item() - old[b, t].item()), a[b, t].item()
        bites.append(r > 1 + clip if advantage > 0 else r < 1 - clip)
        limit = 1 + clip if advantage > 0 else 1 - clip
        loop -= weights[b, t].item() * advantage * (limit if bites[-1] else r)
    loss, grad = gradient(logp, old, a, weights, clip)
    assert loss == pytest.approx(loop, abs=1e-12)
    assert [g == 0 for g in grad[mask].tolist()] == bites
    assert clip_fraction(logp, old, a, mask, clip).item() == pytest.approx(sum(bites) / max(len(bites), 1))


def test_only_a_clip_that_stops_a_gradient_is_counted():
    one = torch.ones(1, 4, dtype=torch.float64)
    ratio = torch.tensor([[1.19, 1.21, 0.81, 0.79]], dtype=torch.float64)
    for advantage, share in ((1.0, 0.25), (-1.0, 0.25), (0.0, 0.0)):  # the default clip is 0.2
        assert clip_fraction(ratio.log(), 0 * one, advantage * one, one).item() == share
    for advantage in (1.0, -1.0):  # at the very edge: 1 + 1e-17 is 1
        assert clip_fraction(one, one, advantage * one, one, clip=1e-17).item() == 0.0
        assert gradient(one, one, advantage * one, one, 1e-17)[1].ne(0).all()
    assert clip_fraction(one, one, one, one).dtype == torch.float64


@given(seeds)
@settings(max_examples=30)
def test_at_ratio_one_the_gradient_is_that_of_reinforce(seed):
    logp, _, a, mask = random_batch(seed)
    _, grad = gradient(logp, logp, a, loss_weights(mask, "token_mean"))
    logp.requires_grad_()
    reinforce_loss(logp, a, mask).backward()
    torch.testing.assert_close(grad, logp.grad, rtol=0, atol=1e-15)
    assert clip_fraction(logp, logp, a, mask).item() == 0.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
@given(seed=seeds, garbage=st.lists(st.sampled_from(GARBAGE), min_size=3, max_size=3))
@settings(max_examples=40)
def test_padding_may_hold_anything(mode, seed, garbage):
    *arrays, mask = random_batch(seed)
    loss, grad = gradient(*arrays, loss_weights(mask, mode))
    wide = pad(mask, (0, 2, 0, 1))
    dirty = [pad(x, (0, 2, 0, 1)).masked_fill(~wide, g) for x, g in zip(arrays, garbage, strict=True)]
    dirty_loss, dirty_grad = gradient(*dirty, loss_weights(wide, mode))
    assert dirty_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(dirty_grad, pad(grad, (0, 2, 0, 1)), rtol=0, atol=1e-12)
    assert dirty_grad[~wide].eq(0).all()
    assert clip_fraction(*dirty, wide).item() == pytest.approx(clip_fraction(*arrays, mask).item(), abs=1e-12)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@given(seed=seeds, order=st.permutations(range(5)), end=st.integers(1, 4))
@settings(max_examples=30)
def test_micro_batches_of_shuffled_rows_add_up(mode, seed, order, end):
    *arrays, mask = random_batch(seed)
    weights = loss_weights(mask, mode)
    loss, grad = gradient(*arrays, weights)
    total, grads = 0.0, torch.zeros_like(grad)
    for rows in (order[:end], order[end:]):
        part, grads[rows] = gradient(*(x[rows] for x in (*arrays, weights)))
        total += part
    assert total == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(grads, grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("logp", "old"), [(0.0, -5000.0), (-5000.0, 0.0), (-math.inf, -1.0)])
def test_a_kept_ratio_that_overflows_stays_finite(logp, old, advantage):
    x, y = (torch.tensor([[v]], dtype=torch.float64) for v in (logp, old))
    loss, grad = gradient(x, y, torch.full_like(y, advantage), torch.ones_like(y))
    assert math.isfinite(loss)
    assert grad.item() == 0.0
    assert abs(probability_ratio(x, y, torch.ones(1, 1)).log().item()) <= MAX_LOG_RATIO + 1e-12


def test_nothing_kept_is_zero():
    *arrays, mask = random_batch(0)
    loss, grad = gradient(*arrays, loss_weights(torch.zeros_like(mask), "token_mean"))
    assert loss == 0.0
    assert grad.eq(0).all()
    assert clip_fraction(*arrays, torch.zeros_like(mask)).item() == 0.0


def test_gradient_flows_into_the_current_log_probabilities_only():
    logp, old, a, mask = random_batch(1)
    for x in (logp, old, a):
        x.requires_grad_()
    clipped_loss(logp, old, a, loss_weights(mask, "token_mean")).backward()
    assert logp.grad is not None
    assert old.grad is None and a.grad is None
    assert not clip_fraction(logp, old, a, mask).requires_grad


def test_an_advantage_a_row_is_refused_also_in_a_square_batch():
    square = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\[3\].*\[B, T-1\]"):
        clipped_loss(square, square, torch.zeros(3), square)


@pytest.mark.parametrize("clip", [-1, 0, 0.0, math.nan, "0.2", True])
def test_a_clip_that_is_not_a_positive_number_is_refused(clip):
    one = torch.ones(1, 2, dtype=torch.float64)
    for function in (clipped_loss, clip_fraction):
        with pytest.raises(ValueError, match="clip=.*must be > 0"):
            function(one, one, one, one, clip)


@pytest.mark.parametrize("name", ["logp", "old_logp", "advantages"])
def test_one_kept_nan_is_named_and_a_dropped_one_is_not(name):
    kept = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    arrays = {key: torch.zeros(1, 3, dtype=torch.float64) for key in ("logp", "old_logp", "advantages")}
    arrays[name][0, 2] = math.nan
    clipped_loss(**arrays, weights=kept), clip_fraction(**arrays, mask=kept)
    arrays[name][0, 1] = math.nan
    for function, last in ((clipped_loss, "weights"), (clip_fraction, "mask")):
        with pytest.raises(ValueError, match=rf"{name} is nan at the kept position \[0, 1\]"):
            function(**arrays, **{last: kept})


def test_a_mask_of_one_row_is_not_stretched_over_four():
    four = torch.ones(4, 3, dtype=torch.float64)
    for function in (clipped_loss, clip_fraction):
        with pytest.raises(ValueError, match="all must be"):
            function(four, four, four, four[:1])
    with pytest.raises(ValueError, match="all must be"):
        probability_ratio(four, four, four[:1])


@pytest.mark.parametrize("place", range(2))
def test_log_probabilities_of_another_shape_are_named(place):
    mask, arrays = torch.ones(2, 3), [torch.zeros(2, 3), torch.zeros(2, 3)]
    arrays[place] = torch.zeros(1, 3)
    name = ("logp", "old_logp")[place]
    for function, more in ((probability_ratio, (mask,)), (clipped_loss, (mask, mask)), (clip_fraction, (mask, mask))):
        with pytest.raises(ValueError, match=name) as error:
            function(*arrays, *more)
        assert "[1, 3]" in str(error.value)
