import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.model import TinyAgent, selected_log_probs, sequence_log_probs

MODEL = TinyAgent(vocab_size=11, d=8, n_layers=2, n_heads=2, d_mlp=16, max_len=32, seed=3)


def test_causal():
    ids = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 11
    assert torch.equal(MODEL(ids)[:, :6], MODEL(changed)[:, :6])
    assert not torch.allclose(MODEL(ids)[:, 6:], MODEL(changed)[:, 6:])


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(0, 1000))
def test_cache_in_any_pieces_equals_full_forward(pieces, seed):
    rng = torch.Generator().manual_seed(seed)
    pieces = [[1 + piece[0], *piece[1:]] for piece in pieces]  # the first piece of a row is never empty
    rows = [torch.randint(11, (sum(piece),), generator=rng).tolist() for piece in pieces]
    cache, read = MODEL.empty_cache(len(rows)), [0] * len(rows)
    for turn in range(max(map(len, pieces))):
        n_new = [piece[turn] if turn < len(piece) else 0 for piece in pieces]
        if not any(n_new):
            continue
        news = [row[done : done + n] for row, done, n in zip(rows, read, n_new, strict=True)]
        logits, cache = MODEL.extend(news, cache)
        read = [done + n for done, n in zip(read, n_new, strict=True)]
        got = [b for b, n in enumerate(n_new) if n]
        for b, row_logits in zip(got, logits, strict=True):
            torch.testing.assert_close(row_logits, MODEL(torch.tensor([rows[b][: read[b]]]))[0, -1], rtol=0, atol=1e-12)


def test_selecting_rows_keeps_their_past():
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1))
    _, cache = MODEL.extend(ids.tolist(), MODEL.empty_cache(3))
    logits, _ = MODEL.extend([[4], [7]], cache.select(torch.tensor([2, 0])))
    for row, last, n in ((0, 4, 2), (1, 7, 0)):
        full = MODEL(torch.tensor([ids[n].tolist() + [last]]))[0, -1]
        torch.testing.assert_close(logits[row], full, rtol=0, atol=1e-12)


def test_log_probs():
    ids = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(2))
    expected = (MODEL(ids) / 0.7).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(sequence_log_probs(MODEL, ids, 0.7), expected, rtol=0, atol=1e-12)
    assert selected_log_probs(torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, dtype=torch.long)).shape == (4,)


def test_size_and_dtype():
    model = TinyAgent(85)
    assert 150_000 < sum(p.numel() for p in model.parameters()) < 160_000
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert all(block.key.bias is None for block in model.blocks)
    assert torch.equal(TinyAgent(85).head.weight, model.head.weight)
    assert not torch.equal(TinyAgent(85, seed=1).head.weight, model.head.weight)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="33 tokens.*32"):
        MODEL(torch.zeros(1, 33, dtype=torch.long))
    with pytest.raises(ValueError, match="12 is outside.*11"):
        MODEL(torch.tensor([[12]]))
    with pytest.raises(ValueError, match="33 tokens"):
        MODEL.extend([[0] * 33], MODEL.empty_cache(1))
    with pytest.raises(ValueError, match="n_heads=3"):
        TinyAgent(11, d=8, n_heads=3)


@pytest.mark.parametrize("name", ["vocab_size", "d", "n_layers", "n_heads", "d_mlp", "max_len"])
@pytest.mark.parametrize("wrong", [0, -1, 8.0, True])
def test_a_size_that_is_no_whole_number_above_zero_is_named(name, wrong):
    with pytest.raises(ValueError, match=f"{name}={wrong}"):
        TinyAgent(**{"vocab_size": 8, name: wrong})


def test_ids_that_name_no_word_are_refused():
    model = TinyAgent(8, d=8, n_layers=1, n_heads=2, d_mlp=8)
    for wrong in (-1, 8):
        with pytest.raises(ValueError, match=f"token id {wrong} "):
            model(torch.tensor([[0, wrong]]))
        with pytest.raises(ValueError, match=f"token id {wrong} "):
            model.extend([[wrong]], model.empty_cache(1))
    with pytest.raises(ValueError, match="ids are torch.float32"):
        model(torch.zeros(1, 2))


def test_one_id_is_not_spread_over_rows():
    with pytest.raises(ValueError, match=r"ids have shape \[1\]; allowed: \[4\]"):
        selected_log_probs(torch.zeros(4, 3), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_a_temperature_that_is_not_positive_is_named(temperature):
    model = TinyAgent(8, d=8, n_layers=1, n_heads=2, d_mlp=8)
    with pytest.raises(ValueError, match="temperature="):
        sequence_log_probs(model, torch.zeros(1, 2, dtype=torch.long), temperature)
