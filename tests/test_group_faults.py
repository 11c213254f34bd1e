"""Groups: rounding and errors, red in their wrong versions, green in ours, whatever the order of rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.advantages import group_advantages
from agentrl.group_faults import (
    check_errored_rows,
    check_group_spread,
    leave_one_out_advantages,
    members,
    row_advantages,
)

rewards_of_groups = st.integers(2, 8).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.integers(-40, 40), min_size=2 * size, max_size=2 * size))
)


@settings(max_examples=80)
@given(rewards_of_groups, st.booleans(), st.randoms())
def test_ours_are_green_in_any_order(case, normalize, random):
    size, cents = case
    reward = torch.tensor(cents, dtype=torch.float64) / 100
    advantages, group = group_advantages(reward, size, normalize), torch.arange(2 * size) // size
    order = list(range(2 * size))
    random.shuffle(order)
    assert check_group_spread(advantages[order], reward[order], group[order]) is None
    assert check_errored_rows(advantages[order], group[order], [None] * 2 * size) is None


def test_single_precision_residue_is_red():
    reward = torch.tensor([0.95] + 7 * [0.35], dtype=torch.float64)
    wrong = leave_one_out_advantages(reward)
    found = check_group_spread(wrong, reward, torch.zeros(8))
    assert found.fault == "rounding blown up to an advantage" and found.row == 0
    zero_one = torch.tensor([1.0] + 7 * [0.0], dtype=torch.float64)
    assert check_group_spread(leave_one_out_advantages(zero_one), zero_one, torch.zeros(8)) is None


def test_equal_rewards_must_give_zero():
    reward = torch.tensor([0.3, 0.1 + 0.2] * 2, dtype=torch.float64)
    naive = (reward - reward.mean()) / reward.std()
    assert check_group_spread(naive, reward, torch.zeros(4)).row in range(4)
    assert check_group_spread(torch.zeros(4), reward, torch.zeros(4)) is None


def test_large_rewards_may_have_large_centred_advantages():
    reward = torch.tensor([100.0, 0.0, 0.0])
    assert check_group_spread(reward - reward.mean(), reward, torch.zeros(3)) is None
    assert check_group_spread(3 * (reward - reward.mean()), reward, torch.zeros(3)) is not None


def test_token_advantages_count_where_they_are_kept():
    reward = torch.tensor([1.0, 0.0])
    advantages = torch.tensor([[99.0, 0.7], [99.0, -0.7]])
    mask = torch.tensor([[0, 1], [0, 1]])
    assert check_group_spread(advantages, reward, torch.zeros(2), mask) is None
    assert check_group_spread(advantages, reward, torch.zeros(2)) is not None
    assert row_advantages(advantages, mask).tolist() == advantages.double()[:, 1].tolist()
    assert row_advantages(advantages, mask * torch.tensor([[1], [0]])).isnan().tolist() == [False, True]


def test_errors_out_of_loss_and_baseline():
    passed, errors = torch.tensor([1.0, 0, 0, 0]).double(), [None, None, None, "lost"]
    group, healthy = torch.zeros(4), torch.tensor([True, True, True, False])
    wrong = group_advantages(passed, 4)
    assert check_errored_rows(wrong, group, errors).fault == "an errored sample was given a reward"
    masked = torch.where(healthy, wrong, 0.0)
    assert check_errored_rows(masked, group, errors).fault == "an errored sample is in the baseline"
    right = torch.zeros(4, dtype=torch.float64)
    right[healthy] = group_advantages(passed[healthy], 3)
    assert check_errored_rows(right, group, errors) is None
    assert check_errored_rows(wrong, group, [None] * 4) is None
    assert check_group_spread(right, passed, group, errors=errors) is None


def test_members_keep_the_order_and_drop_the_sick():
    assert [rows.tolist() for rows in members(torch.tensor([5, 2, 5, 2]), [True, True, False, True])] == [[0], [1, 3]]
