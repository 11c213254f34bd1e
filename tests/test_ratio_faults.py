"""Ratios: sums and means told apart, floors found, truncation allowed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.ppo import probability_ratio
from agentrl.ratio_faults import SEQUENCE_RATIOS, check_lower_clip, check_sequence_ratio

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
ENGINE = -torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TRAINER = -torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_definitions_by_loops():
    for row in range(3):
        gaps = [(TRAINER - ENGINE)[row, t].item() for t in range(4) if MASK[row, t]]
        assert SEQUENCE_RATIOS["sum"](TRAINER - ENGINE, MASK)[row].log().item() == pytest.approx(sum(gaps))
        mean = sum(gaps) / max(len(gaps), 1)
        assert SEQUENCE_RATIOS["mean"](TRAINER - ENGINE, MASK)[row].log().item() == pytest.approx(mean)


@pytest.mark.parametrize("named", SEQUENCE_RATIOS)
@pytest.mark.parametrize("kind", SEQUENCE_RATIOS)
@pytest.mark.parametrize("cap", [0.9, float("inf")])
def test_a_weight_of_another_kind_is_red(named, kind, cap):
    weights = SEQUENCE_RATIOS[kind](TRAINER - ENGINE, MASK).clamp(max=cap)
    found = check_sequence_ratio(weights, named, TRAINER, ENGINE, MASK, cap)
    assert (found is None) == (named == kind)
    assert found is None or f"a {kind} of log-ratios" in found.evidence


def test_neither_and_unknown():
    weights = torch.full((3,), 7.0)
    assert "neither" in check_sequence_ratio(weights, "sum", TRAINER, ENGINE, MASK).evidence
    with pytest.raises(ValueError, match="choose one of sum, mean"):
        check_sequence_ratio(weights, "product", TRAINER, ENGINE, MASK)


@settings(max_examples=50)
@given(st.lists(st.floats(-30, 3), min_size=4, max_size=4), st.floats(0.01, 0.9))
def test_a_floor_is_red_exactly_when_it_acts(log_ratio, low):
    trainer = torch.tensor([log_ratio], dtype=torch.float64)
    engine, mask = torch.zeros_like(trainer), torch.ones(1, 4, dtype=torch.bool)
    ratio = trainer.exp()
    assert check_lower_clip(ratio.clamp(max=2.0), trainer, engine, mask) is None
    assert check_lower_clip(ratio.where(ratio >= low, 0.0), trainer, engine, mask) is None  # IcePop's zero
    found = check_lower_clip(ratio.clamp(low, 2.0), trainer, engine, mask)
    assert (found is not None) == bool((low > ratio * 1.001 + 1e-6).any())
    if found:
        assert ratio[0, found.column] == ratio.min()


def test_masked_tokens_may_weigh_anything_and_our_ratio_is_green():
    assert check_lower_clip(torch.full((3, 4), 9.0), TRAINER, ENGINE, torch.zeros(3, 4)) is None
    assert check_lower_clip(probability_ratio(TRAINER, ENGINE, MASK), TRAINER, ENGINE, MASK) is None
