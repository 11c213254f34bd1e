"""Group advantages: by hand, against loops, exact zeros, refusals."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.advantages import compare_kept, compute_advantages, group_advantages
from agentrl.gradient import NO_SPREAD

cents = st.integers(-100, 100).map(lambda n: n / 100)


def batches(min_size=2):
    return st.tuples(st.integers(min_size, 8), st.integers(1, 4)).flatmap(
        lambda gn: st.tuples(st.lists(cents, min_size=gn[0] * gn[1], max_size=gn[0] * gn[1]), st.just(gn[0]))
    )


def loops(rewards, size, std_normalize):
    result = []
    for first in range(0, len(rewards), size):
        group = rewards[first : first + size]
        if len(set(group)) == 1:
            result += size * [0.0]
            continue
        mean = math.fsum(group) / size
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (size - 1))
        result += [(r - mean) / (std if std_normalize else 1) for r in group]
    return result


def test_one_pass_in_eight_by_hand():
    a = group_advantages([1.0] + 7 * [0.0], 8)
    assert a.dtype == torch.float64
    assert a.tolist() == pytest.approx([7 / math.sqrt(8)] + 7 * [-1 / math.sqrt(8)], abs=1e-12)
    plain = group_advantages(torch.tensor([1.0] + 7 * [0.0]), 8, std_normalize=False)
    assert plain.tolist() == pytest.approx([7 / 8] + 7 * [-1 / 8], abs=1e-15)


@given(batches(), st.booleans())
def test_agrees_with_the_loops(batch, std_normalize):
    rewards, size = batch
    assert group_advantages(rewards, size, std_normalize).tolist() == pytest.approx(
        loops(rewards, size, std_normalize), abs=1e-9
    )


@pytest.mark.parametrize("std_normalize", [True, False])
@given(reward=st.floats(-3, 3), ulps=st.lists(st.integers(-3, 3), min_size=2, max_size=16))
def test_a_group_without_spread_is_exactly_zero_in_spite_of_rounding(std_normalize, reward, ulps):
    rewards = [reward + n * math.ulp(reward) for n in ulps]
    assert group_advantages(rewards, len(rewards), std_normalize).tolist() == len(rewards) * [0.0]


def test_a_penalty_multiplied_or_added_up_is_the_same_penalty():
    for calls, cost in itertools.product(range(1, 13), (0.01, 0.05, 0.1, 0.3)):
        added = 0.0
        for _ in range(calls):
            added -= cost
        assert group_advantages([-cost * calls, added] * 4, 8).tolist() == 8 * [0.0]


def test_the_threshold_lets_a_real_difference_through():
    assert group_advantages([0.0, 0.9 * NO_SPREAD], 2).tolist() == [0.0, 0.0]
    above = 1.1 * NO_SPREAD
    assert group_advantages([0.0, above], 2, std_normalize=False).tolist() == [-above / 2, above / 2]
    assert group_advantages([0.0, 1e-6], 2).tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


@given(batches(), st.data())
def test_the_order_within_and_of_groups_does_not_matter(batch, data):
    rewards, size = batch
    a = group_advantages(rewards, size)
    groups = data.draw(st.permutations([list(range(i, i + size)) for i in range(0, len(rewards), size)]))
    order = [i for group in groups for i in data.draw(st.permutations(group))]
    shuffled = group_advantages([rewards[i] for i in order], size)
    torch.testing.assert_close(shuffled, a[order], rtol=0, atol=1e-9)


@given(batches())
def test_sums_and_squares(batch):
    rewards, size = batch
    for group in group_advantages(rewards, size).reshape(-1, size):
        assert group.sum().item() == pytest.approx(0.0, abs=1e-9)
        assert (group**2).sum().item() == pytest.approx(0.0 if group.eq(0).all() else size - 1, abs=1e-9)


@given(batches(), st.floats(0.1, 10), st.floats(-5, 5))
def test_division_hides_the_scale_and_nothing_else_does(batch, scale, shift):
    rewards, size = batch
    moved = [scale * r + shift for r in rewards]
    divided = group_advantages(rewards, size)
    torch.testing.assert_close(group_advantages(moved, size), divided, rtol=0, atol=1e-8)
    plain, scaled = (group_advantages(r, size, std_normalize=False) for r in (rewards, moved))
    torch.testing.assert_close(scaled, scale * plain, rtol=0, atol=1e-8)


@given(batches(min_size=2))
def test_leave_one_out(batch):
    rewards, size = batch
    plain = group_advantages(rewards, size, std_normalize=False)
    for i, r in enumerate(rewards):
        first = i - i % size
        others = rewards[first:i] + rewards[i + 1 : first + size]
        left_out = r - math.fsum(others) / (size - 1)
        assert size / (size - 1) * plain[i].item() == pytest.approx(left_out, abs=1e-9)


@pytest.mark.parametrize(
    ("rewards", "size", "message"),
    [
        ([1.0, 0.0, 1.0], 2, r"shape \[3\].*multiple of group_size 2"),
        ([[1.0, 0.0]], 2, r"shape \[1, 2\]"),
        ([1.0, 0.0], 1, "group_size is 1.*2 or more"),
        ([1.0, 0.0], 0, "group_size is 0"),
        ([1.0, 0.0], -2, "group_size is -2"),
        ([1.0, math.nan], 2, "reward nan in row 1.*finite"),
        ([-math.inf, 1.0], 2, "reward -inf in row 0"),
    ],
)
def test_refusals_say_what_was_given(rewards, size, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, size)


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
@pytest.mark.parametrize("std_normalize", [True, False])
def test_every_kept_token_gets_its_episodes_advantage(kind, std_normalize):
    generator = torch.Generator().manual_seed(0)
    reward = torch.rand(6, generator=generator, dtype=torch.float64)
    mask = (torch.rand(6, 5, generator=generator) < 0.5).to(kind)
    cfg = SimpleNamespace(group_size=3, std_normalize=std_normalize)
    a = compute_advantages({"reward": reward, "action_mask": mask}, cfg)
    episode = group_advantages(reward, 3, std_normalize)
    assert a.dtype == torch.float64
    assert a.tolist() == [[episode[b].item() if mask[b, t] else 0.0 for t in range(5)] for b in range(6)]


def test_a_batch_that_disagrees_with_itself_is_refused():
    with pytest.raises(ValueError, match="4 rewards, 3 rows"):
        compute_advantages(
            {"reward": torch.zeros(4), "action_mask": torch.ones(3, 2)},
            SimpleNamespace(group_size=2, std_normalize=True),
        )


def test_equal_is_measured_against_size_and_type():
    added = torch.zeros(1, dtype=torch.float32)
    for _ in range(7):
        added -= 0.05
    single = torch.cat([added, torch.full((7,), -7 * 0.05, dtype=torch.float32)])
    assert single[0] != single[1]
    large = [1e7, math.nextafter(1e7, math.inf)] * 4
    for rewards in (single, large):
        for std_normalize in (True, False):
            assert group_advantages(rewards, 8, std_normalize).tolist() == 8 * [0.0]
    assert group_advantages([1e7, 1e7 + 0.05], 2, std_normalize=False).tolist() == pytest.approx([-0.025, 0.025])


@pytest.mark.parametrize(("std_normalize", "message"), [("False", "'False'"), (0, "0"), (None, "None")])
def test_a_switch_is_true_or_false(std_normalize, message):
    with pytest.raises(ValueError, match=f"std_normalize={message} must be True or False"):
        group_advantages([1.0, 0.0], 2, std_normalize)


@pytest.mark.parametrize("size", [2.0, True])
def test_a_group_size_is_a_whole_number(size):
    with pytest.raises(ValueError, match=f"group_size is {size}"):
        group_advantages([1.0, 0.0], size)


def test_a_row_that_trains_nothing_shifts_no_sibling():
    mask = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0]] + [[1, 1]] * 4)
    reward = torch.tensor([0.0, 1.0, 1.0, 1.0] + [1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    cfg = SimpleNamespace(group_size=4, std_normalize=False)
    a = compute_advantages({"reward": reward, "action_mask": mask}, cfg)
    right = [[-2 / 3, -2 / 3], [1 / 3, 0.0], [0.0, 1 / 3], [0.0, 0.0]]
    torch.testing.assert_close(a[:4], torch.tensor(right, dtype=torch.float64), rtol=0, atol=1e-12)
    assert a[4:].tolist() == [[x, x] for x in (0.75, -0.25, -0.25, -0.25)]


@given(batches(), st.data())
def test_kept_rows_are_compared_as_if_there_were_no_others(batch, data):
    rewards, size = batch
    kept = data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))
    cfg = SimpleNamespace(group_size=size, std_normalize=True)
    found = compare_kept(torch.tensor(rewards, dtype=torch.float64), torch.tensor(kept), cfg)
    for first in range(0, len(rewards), size):
        own = [row for row in range(first, first + size) if kept[row]]
        right = loops([rewards[row] for row in own], len(own), True) if len(own) > 1 else [0.0] * len(own)
        assert found[own].tolist() == pytest.approx(right, abs=1e-9)
        assert all(found[row] == 0 for row in range(first, first + size) if not kept[row])


def test_kept_rewards_are_judged_in_float64_and_shapes_are_named():
    cfg = SimpleNamespace(group_size=3, std_normalize=True)
    kept = torch.tensor([True, True, False])
    mask = kept[:, None].expand(3, 2)
    for dtype in (torch.float32, torch.int64):
        found = compute_advantages({"reward": torch.tensor([0, 1, 1], dtype=dtype), "action_mask": mask}, cfg)
        assert found.dtype == torch.float64 and found[0, 0] == -found[1, 0] != 0
    with pytest.raises(ValueError, match=r"rewards have shape \[3, 1\]"):
        compare_kept(torch.zeros(3, 1), torch.ones(3, 1, dtype=torch.bool), cfg)
    with pytest.raises(ValueError, match="rewards"):
        compare_kept(torch.tensor([0.0, float("nan"), 1.0], dtype=torch.float64), kept, cfg)
