"""Weights: asked by autograd, compared with 6.2's, red for denominators, splits and fan-out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.advantages import group_advantages
from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.weight_faults import check_fan_out, check_token_weights, effective_weights, episode_votes

MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.float64)
masks = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=2, max_size=5).map(torch.tensor)


def mean(losses, mask):
    return (losses * mask).sum() / mask.sum()


@settings(max_examples=40)
@given(masks, st.sampled_from(AGGREGATIONS))
def test_weights_of_the_book_are_green_in_any_pieces(mask, mode):
    weights = loss_weights(mask, mode)
    asked = effective_weights(lambda losses, m: (losses * loss_weights(m, mode)).sum(), mask)
    assert torch.allclose(asked, weights) and check_token_weights(asked, mask, mode) is None
    assert check_token_weights(weights.float(), mask, mode) is None


def test_a_factor_and_a_split_are_told_apart():
    right = loss_weights(MASK, "token_mean")
    found = check_token_weights(right * 25 / 30, MASK, "token_mean")
    assert found.fault == "the denominator is not the kept tokens" and "0.8333" in found.evidence
    split = effective_weights(mean, MASK[:3], [[0, 1], [2]]) / 2
    assert check_token_weights(split, MASK[:3], "token_mean").fault == "weights depend on the split"
    even = effective_weights(mean, torch.ones(4, 3), [[0, 1], [2, 3]]) / 2
    assert check_token_weights(even, torch.ones(4, 3), "token_mean") is None


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_another_aggregation_is_not_taken_for_this_one(mode):
    for other in AGGREGATIONS:
        found = check_token_weights(loss_weights(MASK, other), MASK, mode)
        assert (found is None) == (mode == other)


def test_weight_outside_the_mask_is_red():
    weights = loss_weights(MASK, "token_mean")
    weights[3, 2] = 0.1
    found = check_token_weights(weights, MASK, "token_mean")
    assert (found.fault, found.row, found.column) == ("dropped tokens have weight", 3, 2)
    assert check_token_weights(torch.zeros(2, 3), torch.zeros(2, 3), "token_mean") is None


@settings(max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.data())
def test_fan_out(counts, data):
    verdict = torch.tensor([data.draw(st.sampled_from([0.0, 1.0])) for _ in counts], dtype=torch.float64)
    episode = torch.tensor(sum(([n] * k for n, k in enumerate(counts)), []))
    ours = group_advantages(verdict, len(counts))[episode]
    assert check_fan_out(ours, torch.zeros(len(episode)), episode) is None
    by_sample = verdict[episode] - verdict[episode].mean()
    differs = abs(verdict[episode].mean() - verdict.mean()) > 2e-3
    found = check_fan_out(by_sample, torch.zeros(len(episode)), episode)
    assert (found is not None) == bool(differs)
    votes = episode_votes(episode)
    assert all(votes[episode == n].sum().item() == pytest.approx(1 / len(counts)) for n in range(len(counts)))


def test_fan_out_has_no_opinion_on_call_level_credit_and_dropped_rows():
    episode = torch.tensor([0, 0, 1])
    assert check_fan_out(torch.tensor([1.0, 2.0, 0.0]), torch.zeros(3), episode) is None
    one_each = torch.tensor([0.5, 0.5, 0.5])  # another baseline, but no fan-out
    assert check_fan_out(one_each, torch.zeros(3), torch.arange(3)) is None
    advantages, mask = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([[1], [1], [1], [0]])
    assert check_fan_out(advantages, torch.zeros(4), torch.tensor([0, 0, 1, 1]), mask) is None
