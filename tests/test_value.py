"""The clipped value loss: hand-made numbers, the definition as a loop, finite differences, exact zeros, padding."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from agentrl.value import value_loss

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 1e200]
seeds = st.integers(0, 2**32 - 1)
clips = st.sampled_from([0.01, 0.2, 1.0, math.inf])


def random_batch(seed):
    rng = torch.Generator().manual_seed(seed)
    arrays = torch.randn(3, 4, 5, generator=rng, dtype=torch.float64)
    return *arrays, torch.rand(4, 5, generator=rng, dtype=torch.float64) < 0.6


def gradient(values, *rest):
    values = values.detach().clone().requires_grad_()
    loss = value_loss(values, *rest)
    loss.backward()
    return loss.item(), values.grad


def error(value, old, target, clip):
    """Half the larger squared error, written as the case distinction of a single number."""
    moved = max(-clip, min(clip, value - old))
    return max((value - target) ** 2, (old + moved - target) ** 2) / 2


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (0.6, 0.5, 1.0, 0.08, -0.4),  # within the range
        (0.9, 0.5, 1.0, 0.045, 0.0),  # far enough toward the target: charged as 0.7
        (0.1, 0.5, 1.0, 0.405, -0.9),  # moved away: pays in full
        (1.2, 0.5, 1.0, 0.045, 0.0),  # beyond the target, nearer than 0.7 is
        (1.5, 0.5, 1.0, 0.125, 0.5),  # beyond it by more
        (-0.4, 0.0, -1.0, 0.32, 0.0),  # the same downward
        (0.4, 0.0, -1.0, 0.98, 1.4),
        (0.3, 0.0, 0.1, 0.02, 0.2),  # the target lies within the range
    ],
)
def test_the_cases_by_hand(value, old, target, loss, slope):
    one = torch.ones(1, 1, dtype=torch.float64)
    found, grad = gradient(value * one, old * one, target * one, one, 0.2)
    assert found == pytest.approx(loss, abs=1e-12)
    assert grad.item() == pytest.approx(slope, abs=1e-12)
    if slope == 0:
        assert grad.item() == 0.0


@given(seed=seeds, clip=clips)
@settings(max_examples=60)
def test_the_mean_over_kept_positions_of_the_definition(seed, clip):
    values, old, target, mask = random_batch(seed)
    errors = [error(*(x[at].item() for x in (values, old, target)), clip) for at in map(tuple, mask.nonzero().tolist())]
    loss, _ = gradient(values, old, target, mask, clip)
    assert loss == pytest.approx(sum(errors) / max(len(errors), 1), abs=1e-12)
    squared = ((values - target) ** 2)[mask].mean().item() / 2 if errors else 0.0
    assert loss >= squared - 1e-12
    assert clip < math.inf or loss == pytest.approx(squared, abs=1e-12)


@given(seed=seeds, clip=st.sampled_from([0.05, 0.3, math.inf]))
@settings(max_examples=20)
def test_the_gradient_is_that_of_finite_differences(seed, clip):
    values, old, target, mask = random_batch(seed)
    _, grad = gradient(values, old, target, mask, clip)
    moved, h = values - old, 1e-6
    inside = moved.abs() < clip - 1e-3
    apart = ((old + moved.clamp(-clip, clip) - target).abs() - (values - target).abs()).abs() > 1e-3
    smooth = inside | ((moved.abs() > clip + 1e-3) & apart)  # not at a kink of the loss
    for at in map(tuple, smooth.nonzero().tolist()):
        step = torch.zeros_like(values).index_put([torch.tensor(i) for i in at], torch.tensor(h, dtype=torch.float64))
        up, down = (value_loss(values + sign * step, old, target, mask, clip).item() for sign in (1, -1))
        assert grad[at].item() == pytest.approx((up - down) / (2 * h), abs=1e-6)


@given(seed=seeds, garbage=st.lists(st.sampled_from(GARBAGE), min_size=3, max_size=3), clip=clips)
@settings(max_examples=40)
def test_padding_may_hold_anything(seed, garbage, clip):
    *arrays, mask = random_batch(seed)
    loss, grad = gradient(*arrays, mask, clip)
    wide = pad(mask, (0, 2, 0, 1))
    dirty = [pad(x, (0, 2, 0, 1)).masked_fill(~wide, g) for x, g in zip(arrays, garbage, strict=True)]
    dirty_loss, dirty_grad = gradient(*dirty, wide, clip)
    assert dirty_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(dirty_grad, pad(grad, (0, 2, 0, 1)), rtol=0, atol=1e-12)
    assert dirty_grad[~wide].eq(0).all()


@pytest.mark.parametrize("mask_type", [torch.bool, torch.float64])
def test_nothing_kept_is_zero_and_a_row_without_a_token_counts_for_nothing(mask_type):
    values, old, target, mask = random_batch(0)
    loss, grad = gradient(values, old, target, torch.zeros_like(mask).to(mask_type), 0.2)
    assert loss == 0.0 and grad.eq(0).all()
    mask[2] = False
    without = [0, 1, 3]
    loss, grad = gradient(values, old, target, mask.to(mask_type), 0.2)
    assert loss == pytest.approx(value_loss(values[without], old[without], target[without], mask[without], 0.2).item())
    assert grad[2].eq(0).all()


def test_gradient_flows_into_the_current_values_only():
    arrays, mask = [x.requires_grad_() for x in random_batch(1)[:3]], random_batch(1)[3]
    value_loss(*arrays, mask, 0.2).backward()
    assert arrays[0].grad is not None and arrays[1].grad is None and arrays[2].grad is None


@pytest.mark.parametrize("clip", [0.0, -0.2, math.nan])
def test_a_clip_that_is_not_positive_is_refused(clip):
    with pytest.raises(ValueError, match=r"must be > 0.*inf"):
        value_loss(*random_batch(0), clip)


def test_a_value_a_row_is_refused_also_in_a_square_batch():
    square = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\[3\].*\[B, T-1\]"):
        value_loss(square, square, torch.zeros(3), square, 0.2)


@pytest.mark.parametrize("at", range(3))
def test_a_kept_nan_is_named(at):
    name = ("values", "old_values", "returns")[at]
    arrays = [torch.zeros(1, 2, dtype=torch.float64) for _ in range(3)]
    arrays[at][0, 1] = math.nan
    assert value_loss(*arrays, torch.tensor([[1, 0]]), 0.2).item() == 0.0
    with pytest.raises(ValueError, match=rf"{name} is nan at the kept position \[0, 1\]"):
        value_loss(*arrays, torch.tensor([[1, 1]]), 0.2)
