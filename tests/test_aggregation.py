"""The three means as weights: by hand, against loops, and under every split of a minibatch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid, pad

from agentrl.aggregation import AGGREGATIONS, aggregate, loss_weights

modes = pytest.mark.parametrize("mode", AGGREGATIONS)
masks = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=6)
)
seeds = st.integers(0, 2**32 - 1)


def loops(x, mask, mode):
    rows = [[v for v, kept in zip(*row, strict=True) if kept] for row in zip(x, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    return sum(sum(row) / (len(row) if mode == "seq_mean_token_mean" else 1) for row in rows) / len(rows)


@pytest.mark.parametrize(
    ("mode", "short", "long"),
    [("token_mean", 0.1, 0.1), ("seq_mean_token_mean", 1 / 2, 1 / 18), ("seq_mean_token_sum", 1 / 2, 1 / 2)],
)
def test_episodes_of_one_and_nine_tokens(mode, short, long):
    mask = torch.tensor([[1] + 8 * [0], 9 * [1]])
    expected = torch.tensor([[short] + 8 * [0.0], 9 * [long]], dtype=torch.float64)
    torch.testing.assert_close(loss_weights(mask, mode), expected, rtol=0, atol=1e-15)


@modes
@given(mask=masks, seed=seeds)
@settings(max_examples=40)
def test_weights_are_the_loops(mode, mask, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(mask), len(mask[0]), generator=generator, dtype=torch.float64)
    for kind in (torch.bool, torch.float64):
        value = aggregate(x, torch.tensor(mask, dtype=kind), mode).item()
        assert value == pytest.approx(loops(x.tolist(), mask, mode), abs=1e-12)


@modes
@given(mask=masks, columns=st.integers(0, 3), rows=st.integers(0, 3), data=st.data())
@settings(max_examples=40)
def test_padding_dropped_rows_and_row_order_change_no_weight(mode, mask, columns, rows, data):
    mask = torch.tensor(mask)
    order = data.draw(st.permutations(range(len(mask))))
    weights = loss_weights(mask, mode)
    wide = loss_weights(pad(mask[order], (0, columns, 0, rows)), mode)
    torch.testing.assert_close(wide, pad(weights[order], (0, columns, 0, rows)), rtol=0, atol=1e-15)
    assert weights[~mask].eq(0).all()
    if mode != "seq_mean_token_sum":
        assert weights.sum().item() == pytest.approx(float(mask.any()), abs=1e-12)


@modes
def test_nothing_kept_gives_zeros_and_a_zero_gradient(mode):
    x = torch.full((2, 3), math.nan, dtype=torch.float64, requires_grad=True)
    assert loss_weights(torch.zeros(2, 3), mode).eq(0).all()
    loss = aggregate(x, torch.zeros(2, 3), mode)
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad.eq(0).all()


@modes
@given(mask=masks, seed=seeds, data=st.data())
@settings(max_examples=40)
def test_the_gradient_does_not_depend_on_the_split(mode, mask, seed, data):
    mask, generator = torch.tensor(mask), torch.Generator().manual_seed(seed)
    features = torch.randn(*mask.shape, 3, generator=generator, dtype=torch.float64)
    theta = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)

    def gradient(rows, weights):
        return torch.autograd.grad((weights * -logsigmoid(features[rows] @ theta)).sum(), theta)[0]

    order = data.draw(st.permutations(range(len(mask))))
    ends = sorted(data.draw(st.sets(st.integers(1, len(mask))))) + [len(mask)]
    pieces = [order[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]
    weights = loss_weights(mask, mode)
    split = sum(gradient(piece, weights[piece]) for piece in pieces)
    torch.testing.assert_close(split, gradient(list(range(len(mask))), weights), rtol=0, atol=1e-12)


def test_a_mean_of_means_would_not_pass_the_split_test():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    x = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    naive = sum(aggregate(x[[b]], mask[[b]], "token_mean") for b in range(2)) / 2
    assert (naive.item(), aggregate(x, mask, "token_mean").item()) == (2.0, 1.0)


def test_equal_lengths_make_the_means_one():
    mask = torch.ones(3, 4)
    token, sequence, total = (loss_weights(mask, mode) for mode in AGGREGATIONS)
    torch.testing.assert_close(token, sequence, rtol=0, atol=1e-15)
    torch.testing.assert_close(total, 4 * token, rtol=0, atol=1e-15)


@pytest.mark.parametrize("mode", ["mean", "", None, "TOKEN_MEAN"])
def test_an_unknown_mode_is_named_with_what_is_allowed(mode):
    with pytest.raises(ValueError) as error:
        loss_weights(torch.ones(1, 1), mode)
    assert repr(mode) in str(error.value)
    assert all(name in str(error.value) for name in AGGREGATIONS)


def test_weights_of_a_mask_without_rows_are_refused():
    with pytest.raises(ValueError, match=r"mask has shape \[3\]; allowed: \[B, T-1\]"):
        loss_weights(torch.ones(3), "token_mean")
    with pytest.raises(ValueError, match=r"mask has shape \[1, 3\]; allowed: \[4, 3\]"):
        aggregate(torch.ones(4, 3), torch.ones(1, 3), "token_mean")
