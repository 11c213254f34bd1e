"""The masked policy gradient: exact by enumeration, blind to what padding holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.gradient import NO_SPREAD, keep_only, masked_mean, reinforce_loss, same_within

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 1e300]
seeds = st.integers(0, 2**32 - 1)


def random_batch(seed, rows=5, columns=6):
    generator = torch.Generator().manual_seed(seed)
    x, a = (torch.randn(rows, columns, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, a, torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.5


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("kind", [torch.bool, torch.float64, torch.int64])
def test_a_dropped_position_is_exactly_zero_in_value_and_gradient(garbage, kind):
    x = torch.tensor([[2.0, garbage]], dtype=torch.float64, requires_grad=True)
    kept = keep_only(x, torch.tensor([[1, 0]]).to(kind))
    kept.sum().backward()
    assert kept.tolist() == [[2.0, 0.0]]
    assert x.grad.tolist() == [[1.0, 0.0]]


def test_masked_mean_by_hand_and_of_nothing():
    x = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, 7.0]], dtype=torch.float64, requires_grad=True)
    assert masked_mean(x, torch.tensor([[1, 1, 0], [1, 0, 0]])).item() == pytest.approx(7 / 3, abs=1e-15)
    nothing = masked_mean(x, torch.zeros(2, 3))
    nothing.backward()
    assert nothing.item() == 0.0
    assert x.grad.eq(0).all()


def test_the_mean_of_one_position_is_its_value():
    assert masked_mean(torch.tensor([[3.0, 5.0]]), torch.tensor([[1, 0]])).item() == 3.0


@given(seeds)
@settings(max_examples=30)
def test_loss_is_the_double_loop(seed):
    logp, a, mask = random_batch(seed)
    kept = [(b, t) for b in range(5) for t in range(6) if mask[b, t]]
    loop = -sum(a[c].item() * logp[c].item() for c in kept) / max(len(kept), 1)
    assert reinforce_loss(logp, a, mask).item() == pytest.approx(loop, abs=1e-12)
    assert reinforce_loss(logp, a, mask.double()).item() == pytest.approx(loop, abs=1e-12)


@given(seeds, st.sampled_from(GARBAGE), st.permutations(range(5)))
@settings(max_examples=30)
def test_rows_order_and_padding_change_nothing(seed, garbage, order):
    logp, a, mask = random_batch(seed)
    wide = [torch.nn.functional.pad(x, (0, 2, 0, 1), value=garbage) for x in (logp[order], a[order])]
    wide_mask = torch.nn.functional.pad(mask[order], (0, 2, 0, 1))
    wide[0].requires_grad_()
    loss = reinforce_loss(*wide, wide_mask)
    loss.backward()
    assert loss.item() == pytest.approx(reinforce_loss(logp, a, mask).item(), abs=1e-12)
    assert wide[0].grad[~wide_mask].eq(0).all()


def test_an_advantage_a_row_serves_all_tokens_of_the_row_even_in_a_square_batch():
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64, requires_grad=True)
    loss = reinforce_loss(logp, torch.tensor([1.0, -2.0], dtype=torch.float64), torch.ones(2, 2))
    loss.backward()
    assert loss.item() == pytest.approx(-(1 * (-1 - 2) - 2 * (-3 - 4)) / 4)
    assert logp.grad.tolist() == [[-0.25, -0.25], [0.5, 0.5]]


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), ()])
def test_another_shape_of_advantages_is_refused(shape):
    with pytest.raises(ValueError, match=r"advantages have shape .*allowed: \[2, 3\] .*\[2\]"):
        reinforce_loss(torch.zeros(2, 3), torch.zeros(shape), torch.ones(2, 3))


def test_no_gradient_flows_into_the_advantages():
    a = torch.ones(1, 2, requires_grad=True)
    reinforce_loss(torch.zeros(1, 2, requires_grad=True), a, torch.ones(1, 2)).backward()
    assert a.grad is None


def test_the_expected_masked_gradient_is_the_exact_one_and_no_other_is():
    """Action, observation, action, with one table of logits for all three; summed over every episode."""
    episodes = torch.cartesian_prod(*3 * [torch.arange(2)])  # [8, 3]
    environment = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    reward = torch.tensor([0.3, -1.0, 2.0, 0.5, 0.0, 1.0, -0.7, 0.4], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1]]).expand(8, 3)
    last = torch.cat([torch.zeros(8, 1, dtype=torch.int64), episodes[:, :-1]], dim=1)  # the previous token

    def logps(logits):
        return torch.log_softmax(logits, -1)[last].gather(-1, episodes[..., None])[..., 0]  # [8, 3]

    def probs(logits):
        policy = keep_only(logps(logits), mask).sum(1).exp()
        return policy * environment[episodes[:, 0], episodes[:, 1]]

    logits = torch.tensor([[0.3, -0.2], [0.1, 0.6]], dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad((probs(logits) * reward).sum(), logits)
    weight = probs(logits).detach() * reward

    def estimate(mask):
        kept = mask.sum().item()
        return -kept * torch.autograd.grad(reinforce_loss(logps(logits), weight, mask), logits)[0]

    torch.testing.assert_close(estimate(mask), exact, rtol=0, atol=1e-12)
    assert (estimate(torch.ones(8, 3)) - exact).abs().max() > 1e-2  # observation let in
    assert (estimate(torch.tensor([[1, 0, 0]]).expand(8, 3)) - exact).abs().max() > 1e-2  # an action left out


def test_a_mask_of_another_shape_is_refused():
    x = torch.ones(4, 3, dtype=torch.float64)
    for function in (keep_only, masked_mean):
        with pytest.raises(ValueError, match=r"mask has shape \[1, 3\]; allowed: \[4, 3\]"):
            function(x, torch.ones(1, 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["logp", "advantages"])
def test_reinforce_names_a_kept_number_that_is_not_finite(name, bad):
    arrays = {key: -torch.ones(2, 2, dtype=torch.float64) for key in ("logp", "advantages")}
    arrays[name][1, 0] = bad
    assert reinforce_loss(**arrays, mask=torch.tensor([[1, 1], [0, 1]])).isfinite()
    with pytest.raises(ValueError, match=rf"{name} is {bad} at the kept position \[1, 0\]"):
        reinforce_loss(**arrays, mask=torch.ones(2, 2))


def equal(low, high, dtype=torch.float64, **share):
    return same_within(*(torch.tensor(x, dtype=torch.float64) for x in (low, high)), dtype, **share).item()


def test_equal_is_measured_against_size_and_type():
    assert equal(1e7, math.nextafter(1e7, math.inf)) and not equal(1e7, 1e7 + 0.05)
    assert equal(-1e7, math.nextafter(-1e7, math.inf)) and equal(-1e12, math.nextafter(-1e12, 0.0))
    assert equal(0.35, 0.35 + 6e-8, torch.float32) and not equal(0.35, 0.35 + 6e-8)
    assert equal(0.0, NO_SPREAD) and not equal(0.0, 1.01 * NO_SPREAD) and equal(0.0, 0.5, share=0.5)
    assert equal(3, 3, torch.long) and not equal(3, 4, torch.long)


def test_small_multiples_of_a_cent_differ_as_they_did():
    for steps in range(-40, 41):
        for other in range(steps + 1, 41):
            assert not equal(0.05 * steps, 0.05 * other)


def test_equal_is_sixteen_steps_of_the_type_and_no_more():
    low = torch.tensor([1024.0, 1024.0], dtype=torch.float64)
    step = 1024 * torch.finfo(torch.float32).eps
    high = low + torch.tensor([15.5, 16.5], dtype=torch.float64) * step
    assert same_within(low, high, torch.float32).tolist() == [True, False]
