"""Faults in raw batches are named, and what is right for one estimator or another passes."""

import pytest
import torch

from agentrl.batch_faults import (
    check_critic,
    check_engine_zeros,
    check_estimator,
    check_left_padding,
    check_log_prob_range,
    check_positions,
    check_raised_weights,
    check_reference,
    check_sampler_gap,
    check_silent,
    check_twins,
    check_weight_range,
    estimates_in_groups,
    longest_runs,
    recognise,
)

GROUP = torch.arange(16) // 4
REWARD = torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = torch.ones(16, 8, dtype=torch.bool)
ESTIMATES = estimates_in_groups(REWARD, GROUP)


@pytest.mark.parametrize("name", ESTIMATES)
def test_each_estimator_is_recognised_with_its_sign(name):
    assert recognise(ESTIMATES[name], REWARD, GROUP) == (name, 1)
    assert recognise(-ESTIMATES[name], REWARD, GROUP) == (name, -1)
    assert check_estimator(ESTIMATES[name], REWARD, GROUP, MASK) is None
    assert "sign" in check_estimator(-ESTIMATES[name], REWARD, GROUP, MASK).fault


def test_batch_scale_whitening_and_other_baselines_are_no_fault():
    centred = ESTIMATES["dr_grpo"]
    assert recognise(centred / REWARD.std(), REWARD, GROUP)[0] == "batch scale"
    assert recognise((REWARD - REWARD.mean()) / REWARD.std(), REWARD, GROUP)[0] == "reinforce++"
    assert recognise(REWARD - torch.tensor([0.1, 0.5, 0.3, 0.9]).double()[GROUP], REWARD, GROUP)[0] == "remax"


def test_shuffled_rows_and_another_estimator_than_declared():
    shuffled = ESTIMATES["grpo"].roll(1)
    assert "another order" in check_estimator(shuffled, REWARD, GROUP, MASK).fault
    assert "another estimator" in check_estimator(ESTIMATES["rloo"], REWARD, GROUP, MASK, estimator="grpo").fault


def test_log_probs_that_cannot_be():
    logp = torch.full((16, 8), -1.0).double()
    assert check_log_prob_range(MASK, logp) is None and check_log_prob_range(MASK, -logp) is not None
    assert check_reference(0 * logp, MASK) is not None and check_reference(logp, MASK) is None
    assert check_sampler_gap(logp - 1.0, logp, MASK) is not None and check_sampler_gap(logp, logp, MASK) is None
    engine = logp.clone()
    engine[:, 2:5] = 0.0
    assert check_engine_zeros(engine, logp, MASK).column == 2
    assert check_engine_zeros(engine, logp.where(engine != 0, -1e-5), MASK) is None  # the trainer is as sure


def test_rows_prompts_and_positions():
    ids, logp = torch.arange(128).view(16, 8).repeat(1, 2)[:, :9], torch.full((16, 8), -2.0).double()
    assert check_twins(ids, GROUP, MASK, logp) is None
    ids[1] = ids[0]
    assert check_twins(ids, GROUP, MASK, logp).row == 1
    assert check_critic(0 * logp, MASK) is not None and check_silent(torch.zeros(16), MASK) is not None
    attention = torch.ones(2, 6, dtype=torch.bool)
    padded = torch.tensor([[9, 9, 9, 1, 2, 3], [9, 4, 1, 2, 3, 5]])
    right = padded != 9
    assert check_left_padding(padded, right) is None
    assert check_left_padding(padded, attention & right.where(torch.tensor([[False], [True]]), attention)).row == 0
    position = (right.long().cumsum(1) - 1).clamp(min=0)
    assert check_positions(position, right) is None
    assert check_positions(torch.arange(6).expand(2, 6), right) is not None


def test_floors_and_missing_caps():
    log_ratio = torch.linspace(-3, 4, 128).view(16, 8).double()
    zero = 0 * log_ratio
    assert check_weight_range(log_ratio.exp().clamp(max=2.0), log_ratio, zero, MASK) is None
    assert "lower clip" in check_weight_range(log_ratio.exp().clamp(0.5, 2), log_ratio, zero, MASK).fault
    assert "cap" in check_weight_range(log_ratio.exp(), log_ratio, zero, MASK).fault


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_weights_of_rows_are_judged_by_their_rows(kind):
    per_token = (torch.linspace(-3, 3, 16).double() / (8 if kind == "sum" else 1))[:, None].expand(16, 8)
    noise = torch.linspace(-0.3, 0.3, 8).double()  # its sum is 0
    log_ratio = per_token + noise
    ratio = (log_ratio.sum(1) if kind == "sum" else log_ratio.mean(1)).exp()[:, None].expand(16, 8)
    zero = 0 * log_ratio
    for right in (ratio, ratio.clamp(max=2.0), ratio / ratio.mean()):
        assert check_weight_range(right, log_ratio, zero, MASK, cap=100.0) is None
        assert check_raised_weights(right, log_ratio, zero, MASK) is None
    assert "lower clip" in check_weight_range(ratio.clamp(0.5, 2.0), log_ratio, zero, MASK).fault


@pytest.mark.parametrize("rows, per_token, found", [(16, -1.6, 1), (1024, -1.6, None), (1024, -2.0, 1)])
def test_twins_are_weighed_by_the_size_of_the_batch(rows, per_token, found):
    """A row of probability exp(-12.8) is rare among 16 rows, and may turn up twice among 1,024."""
    ids, mask = torch.arange(rows * 9).view(rows, 9), torch.ones(rows, 8, dtype=torch.bool)
    ids[1] = ids[0]
    finding = check_twins(ids, torch.arange(rows) // 4, mask, torch.full((rows, 8), per_token).double())
    assert (finding and finding.row) == found


def test_runs_are_counted():
    assert longest_runs(torch.tensor([[1, 1, 0, 1, 0]]).bool()).tolist() == [[2, 2, 0, 1, 0]]
