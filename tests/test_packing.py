import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.model import TinyAgent
from agentrl.packing import action_log_probs, hidden_where, pack, padded_log_probs

MODEL = TinyAgent(vocab_size=11, d=8, n_layers=2, n_heads=2, d_mlp=16, max_len=16, seed=3)


def batch(lengths, seed, share=0.5):
    """Random ids [B, T] with lengths [B], and a mask [B, T-1] that is set on about `share` of the tokens."""
    rng, length = torch.Generator().manual_seed(seed), torch.tensor(lengths)
    ids = torch.randint(11, (len(lengths), max(lengths)), generator=rng)
    inside = torch.arange(1, max(lengths)) < length[:, None]
    return ids, length, inside & (torch.rand(inside.shape, generator=rng) < share)


LENGTHS = st.lists(st.integers(2, 12), min_size=1, max_size=7)


@settings(max_examples=40)
@given(LENGTHS, st.integers(0, 99), st.sampled_from([0.3, 1.0]))
def test_packed_is_padded(lengths, seed, share):
    ids, length, mask = batch(lengths, seed, share)
    for temperature in (1.0, 0.7):
        expected = padded_log_probs(MODEL, ids, length, mask, temperature)
        found = action_log_probs(MODEL, ids, length, mask, temperature)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert (found[~mask] == 0).all()


def test_gradients_are_those_of_the_padded_batch():
    ids, length, mask = batch([9, 4, 9, 12, 2], seed=1)
    gradients = [
        torch.autograd.grad(f(MODEL, ids, length, mask).sum(), list(MODEL.parameters()), allow_unused=True)
        for f in (padded_log_probs, action_log_probs)
    ]
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_stands_behind_a_row_does_not_matter():
    ids, length, mask = batch([5, 12, 3], seed=2)
    other = ids.where(torch.arange(12) < length[:, None], 7)
    assert torch.equal(action_log_probs(MODEL, ids, length, mask), action_log_probs(MODEL, other, length, mask))


def test_rows_and_columns_say_where_a_state_stood():
    ids, length, _ = batch([5, 8, 3], seed=3)
    where = torch.arange(8) < length[:, None]
    hidden, row, column = hidden_where(MODEL, ids, length, where)
    assert len(hidden) == 16
    torch.testing.assert_close(hidden, MODEL.hidden(ids)[row, column], rtol=0, atol=1e-12)


def test_no_action_gives_zeros():
    ids, length, mask = batch([5, 8], seed=4)
    assert torch.equal(action_log_probs(MODEL, ids, length, mask & False), torch.zeros(2, 7, dtype=torch.float64))


def test_a_mask_on_padding_is_refused():
    ids, length, mask = batch([5, 8], seed=4)
    mask[0, 4] = True  # speaks of token 5 of a row of five, numbers 0 to 4
    with pytest.raises(ValueError, match="1 positions.*behind the end"):
        action_log_probs(MODEL, ids, length, mask)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="17 tokens.*16"):
        hidden_where(MODEL, torch.zeros(1, 17, dtype=torch.long), torch.tensor([17]), torch.ones(1, 17).bool())
    with pytest.raises(ValueError, match="12 is outside.*11"):
        hidden_where(MODEL, torch.tensor([[12]]), torch.tensor([1]), torch.tensor([[True]]))


@given(LENGTHS)
def test_pack_sorts_and_counts(lengths):
    order, shapes = pack(torch.tensor(lengths))
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert [lengths[n] for n in order] == [length for rows, length in shapes for _ in range(rows)]
    assert len({length for _, length in shapes}) == len(shapes)


def test_shapes_and_a_temperature_that_do_not_fit_are_named():
    model, ids = TinyAgent(8, d=8, n_layers=1, n_heads=2, d_mlp=8), torch.zeros(2, 4, dtype=torch.long)
    length, mask = torch.tensor([4, 4]), torch.ones(2, 3)
    for function in (padded_log_probs, action_log_probs):
        with pytest.raises(ValueError, match=r"mask|where.*\[1, 3\]"):
            function(model, ids, length, mask[:1])
        with pytest.raises(ValueError, match="temperature=0"):
            function(model, ids, length, mask, 0)
    with pytest.raises(ValueError, match=r"length: shapes .*\[1\]"):
        action_log_probs(model, ids, length[:1], mask)
