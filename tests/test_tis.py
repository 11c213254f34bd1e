"""Importance weights and their metrics against plain loops, and the twelve-way toy against its formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tis import (
    TOY_RULES,
    averaged_log_ratio,
    clipped_weights,
    effective_sample_size,
    floored_where,
    gradient_share,
    icepop_weights,
    importance_ratio,
    kl_terms,
    ratio_metrics,
    run_toy,
    summed_log_ratio,
)

GARBAGE = [0.0, math.inf, -math.inf, math.nan, 900.0]
bands = st.tuples(st.floats(0, 1), st.floats(1, 5))
seeds = st.integers(0, 2**32 - 1)


def random_batch(seed, rows=4, columns=6):
    """Log-ratios, advantages, weights and a mask [B, T-1]; every row keeps a token; garbage outside the mask."""
    rng = torch.Generator().manual_seed(seed)
    x, advantages = (2 * torch.randn(rows, columns, generator=rng, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(rows, columns, generator=rng) < 0.6
    mask[:, 0] = True
    waste = torch.tensor(GARBAGE, dtype=torch.float64)[torch.randint(len(GARBAGE), x.shape, generator=rng)]
    return torch.where(mask, x, waste), advantages, mask


def loop(x, mask, rule):
    """[[rule(r, b, t) where the mask keeps, else 0]]"""
    return torch.tensor(
        [[rule(math.exp(x[b, t]), b, t) if mask[b, t] else 0.0 for t in range(x.shape[1])] for b in range(x.shape[0])],
        dtype=torch.float64,
    )


def same(a, b):
    return torch.allclose(a, b, rtol=1e-12, atol=1e-300)


@settings(max_examples=60)
@given(seeds, bands)
def test_weights_are_the_loops(seed, band):
    (low, high), (x, advantages, mask) = band, random_batch(seed)
    assert same(importance_ratio(x, mask), loop(x, mask, lambda r, b, t: r))
    assert same(clipped_weights(x, mask, low, high), loop(x, mask, lambda r, b, t: min(max(r, low), high)))
    assert same(clipped_weights(x, mask), loop(x, mask, lambda r, b, t: min(r, 2.0)))
    assert same(icepop_weights(x, mask, low, high), loop(x, mask, lambda r, b, t: r if low <= r <= high else 0.0))
    negative = floored_where(x, mask, advantages < 0, low, high)
    floor = lambda b, t: low if advantages[b, t] < 0 else 0.0  # noqa: E731
    assert same(negative, loop(x, mask, lambda r, b, t: min(max(r, floor(b, t)), high)))


def test_a_collapsed_ratio_by_hand():
    x, mask = torch.tensor([[-30.0, 0.0, 1.0, -800.0, 800.0]], dtype=torch.float64), torch.ones(1, 5)
    assert clipped_weights(x, mask)[0].tolist() == [math.exp(-30), 1.0, 2.0, 0.0, 2.0]
    assert clipped_weights(x, mask, low=0.5)[0].tolist() == [0.5, 1.0, 2.0, 0.5, 2.0]
    assert icepop_weights(x, mask)[0].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]
    edges = torch.tensor([[0.5, 2.0]], dtype=torch.float64).log()
    assert icepop_weights(edges, torch.ones(1, 2)).tolist() == importance_ratio(edges, torch.ones(1, 2)).tolist()


def test_weights_carry_no_gradient():
    x = torch.tensor([[0.3, -2.0]], dtype=torch.float64, requires_grad=True)
    for weights in (clipped_weights, icepop_weights, importance_ratio):
        assert not weights(x, torch.ones(1, 2)).requires_grad


def test_bad_input_is_named():
    x = torch.tensor([[0.0, math.nan]], dtype=torch.float64)
    with pytest.raises(ValueError, match="row 0, column 1 is not a number"):
        importance_ratio(x, torch.tensor([[1, 1]]))
    assert importance_ratio(x, torch.tensor([[1, 0]])).tolist() == [[1.0, 0.0]]
    for band in ((-0.1, 2.0), (1.5, 2.0), (0.5, 0.9), (math.nan, 2.0)):
        with pytest.raises(ValueError, match="0 <= low <= 1 <= high"):
            clipped_weights(x[:, :1], torch.ones(1, 1), *band)
        with pytest.raises(ValueError, match="0 <= low <= 1 <= high"):
            icepop_weights(x[:, :1], torch.ones(1, 1), *band)


def test_a_small_difference_a_token_over_a_hundred():
    x, mask = torch.full((1, 120), 0.012, dtype=torch.float64), torch.arange(120)[None] < 100
    x[:, 100:] = math.nan
    assert importance_ratio(summed_log_ratio(x, mask), mask)[0, 0].item() == pytest.approx(math.exp(1.2))
    assert importance_ratio(averaged_log_ratio(x, mask), mask)[0, 99].item() == pytest.approx(math.exp(0.012))
    assert summed_log_ratio(x, mask)[0, 100:].tolist() == [0.0] * 20


@settings(max_examples=40)
@given(seeds)
def test_sequence_ratios_are_the_loops(seed):
    x, _, mask = random_batch(seed)
    for b in range(len(x)):
        kept = [x[b, t].item() for t in range(x.shape[1]) if mask[b, t]]
        for t in mask[b].nonzero()[:, 0].tolist():
            assert summed_log_ratio(x, mask)[b, t].item() == pytest.approx(sum(kept), abs=1e-12)
            assert averaged_log_ratio(x, mask)[b, t].item() == pytest.approx(sum(kept) / len(kept), abs=1e-12)


@settings(max_examples=40)
@given(seeds, bands)
def test_metrics_are_the_loops(seed, band):
    (low, high), (x, advantages, mask) = band, random_batch(seed)
    weights = clipped_weights(x, mask, low, high)
    kept = [(x[b, t].item(), weights[b, t].item(), advantages[b, t].item()) for b, t in mask.nonzero().tolist()]
    n, signal = len(kept), sum(abs(w * a) for _, w, a in kept)
    found = ratio_metrics(x, weights, advantages, mask, low, high)
    wanted = {
        "kl": sum(math.exp(v) - 1 - v for v, _, _ in kept) / n,
        "below": sum(math.exp(v) < low for v, _, _ in kept) / n,
        "above": sum(math.exp(v) > high for v, _, _ in kept) / n,
        "min_log_ratio": min(v for v, _, _ in kept),
        "ess": sum(w for _, w, _ in kept) ** 2 / (n * sum(w * w for _, w, _ in kept)),
        "signal_below": sum(abs(w * a) for v, w, a in kept if math.exp(v) < low) / signal,
    }
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_metrics_where_there_is_nothing_to_say():
    x, mask = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3)
    silent = ratio_metrics(x, mask.double(), torch.zeros_like(x), mask)
    assert math.isnan(silent["signal_below"]) and silent["kl"] == 0.0 and silent["ess"] == 1.0
    assert math.isnan(effective_sample_size(torch.zeros_like(x), mask).item())


def test_the_kl_estimate_is_unbiased_clamped_and_never_negative():
    """Under the rollout policy p its mean is KL(p || q), exactly."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    terms = kl_terms((q / p).log()[None], torch.ones(1, 3))[0]
    assert (p * terms).sum().item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-12)
    far = kl_terms(torch.tensor([[50.0, -50.0, 1e-9]], dtype=torch.float64), torch.ones(1, 3))[0]
    assert far.tolist() == pytest.approx([math.exp(20) - 21, math.exp(-20) - 1 + 20, 5e-19], rel=1e-6, abs=1e-17)
    assert (far >= 0).all()


def test_the_share_of_the_gradient_by_hand():
    z = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    logp = torch.stack([z[0], z[1], z[0] + z[1]])[None]
    coefficients = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    below = torch.tensor([[True, False, False]])
    assert gradient_share(logp, coefficients, below, [z]) == pytest.approx(3 / 5)
    assert gradient_share(logp, coefficients, ~below & False, [z]) == 0.0
    assert math.isnan(gradient_share(logp, 0 * coefficients, below, [z]))
    against = torch.tensor([[3.0, 0.0, -2.0]], dtype=torch.float64)
    assert gradient_share(logp, against, below, [z]) == pytest.approx(3 / math.hypot(1, 2))  # over 1: they oppose


# The toy


def expected_gradient(z, mu, rule, advantage):
    """By autograd on sum over actions of mu(a) w(r(a)) A(a) log p(a), w detached."""
    z = z.clone().requires_grad_()
    behaviour = torch.full_like(z, (1 - mu) / (len(z) - 1))
    behaviour[0] = mu
    logp = z.log_softmax(0)
    w = torch.tensor([TOY_RULES[rule](r) for r in (logp.detach().exp() / behaviour).tolist()], dtype=torch.float64)
    a = torch.zeros_like(z)
    a[0] = advantage
    (gradient,) = torch.autograd.grad((behaviour * w * a * logp).sum(), z)
    return gradient


@pytest.mark.parametrize("rule", TOY_RULES)
@pytest.mark.parametrize(("advantage", "start"), [(-1.0, 0.0), (1.0, -10.0), (-1.0, -2.0)])
def test_the_toy_follows_the_exact_gradient(rule, advantage, start):
    xs, norms = run_toy(rule, advantage, start, steps=12)
    z = torch.full((12,), (1 - 0.98 * math.exp(start)) / 11, dtype=torch.float64)
    z[0] = 0.98 * math.exp(start)
    z = z.log()
    for step in range(12):
        assert xs[step].item() == pytest.approx(z.log_softmax(0)[0].item() - math.log(0.98), abs=1e-9)
        gradient = expected_gradient(z, 0.98, rule, advantage)
        assert norms[step].item() == pytest.approx(gradient.norm().item(), abs=1e-9)
        z = z + gradient
    assert len(xs) == 13 and len(norms) == 12


def test_the_toy_agrees_with_its_formulas():
    c = 0.98 * 12 / 11
    none, half, zero, pop = (run_toy(rule)[0] for rule in ("no weight", "low 0.5", "low 0", "IcePop"))
    assert (none[-1] - none[100]).item() == pytest.approx(-100 * c, rel=1e-6)  # a line
    assert (half[-1] - half[100]).item() == pytest.approx(-100 * c / 2, rel=1e-6)  # half as steep
    assert zero[-1].item() == pytest.approx(-math.log(c * 200), abs=0.4)  # x ~ -log(ct)
    assert pop[-1] == pop[-50] and pop[-1] < math.log(0.5) < pop[pop > pop[-1]][-1]  # it stops at the first below
    assert [round(x[-1].item(), 2) for x in (none, half, zero, pop)] == [-158.86, -77.23, -5.01, -0.77]


@pytest.mark.parametrize(("rule", "wanted"), [("no weight", 10), ("low 0.5", 21), ("low 0", None), ("IcePop", None)])
def test_the_repair_from_a_collapsed_ratio(rule, wanted):
    xs, norms = run_toy(rule, advantage=1.0, start=-10.0, steps=1000)
    above = (xs > math.log(0.5)).nonzero()
    assert (above[0].item() if len(above) else None) == wanted
    assert (norms[0] == 0) == (rule == "IcePop")


def test_metrics_of_nothing_are_refused_by_name():
    x = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="mask keeps nothing"):
        ratio_metrics(x, x, x, x)


def test_a_mask_of_one_row_is_not_stretched():
    x = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="shape"):
        ratio_metrics(x, x, x, x[:1])
    for function in (effective_sample_size, kl_terms, importance_ratio, averaged_log_ratio, summed_log_ratio):
        with pytest.raises(ValueError, match=r"mask has shape \[1, 3\]"):
            function(x, x[:1])


def test_kept_numbers_that_are_not_finite_are_named():
    x, broken = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, math.nan]], dtype=torch.float64)
    for names in (("log_ratio",), ("weights",), ("advantages",)):
        arrays = {name: broken if name in names else x for name in ("log_ratio", "weights", "advantages")}
        with pytest.raises(ValueError, match=f"{names[0]} is nan"):
            ratio_metrics(**arrays, mask=x)
    with pytest.raises(ValueError, match="weights is nan"):
        effective_sample_size(broken, x)
    with pytest.raises(ValueError, match="weights go down to -1"):
        effective_sample_size(-x, x)
