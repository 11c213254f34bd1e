"""Masks: red on each wrong mask, green on the policy's own, for any owners."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl.mask_faults import (
    MASKS,
    Finding,
    check_action_mask,
    check_padding,
    check_sampled_mask,
    first_place,
    shifted,
)

OWNERS = torch.tensor([[0, 1, 2, 2, 3, 3, 2, 2], [0, 1, 2, 2, 3, -1, -1, -1]])
TURNS = torch.tensor([[-1, -1, 0, 0, 0, 0, 1, 1], [-1, -1, 0, 0, 0, -1, -1, -1]])
owner_rows = st.lists(st.lists(st.integers(-1, 3), min_size=6, max_size=6), min_size=1, max_size=4)


def test_the_right_mask_is_green():
    assert check_action_mask(MASKS["right"](OWNERS, TURNS), OWNERS) is None


@pytest.mark.parametrize(
    "mask, fault, row, column",
    [
        (MASKS["inverted"](OWNERS, TURNS), "inverted mask", 0, 0),
        (MASKS["everything"](OWNERS, TURNS), "trains on tokens of others", 0, 3),
        (shifted(MASKS["right"](OWNERS, TURNS), 1), "shifted mask", 0, 1),
        (shifted(MASKS["right"](OWNERS, TURNS), -1), "shifted mask", 0, 0),
        (MASKS["right"](OWNERS, TURNS) & (torch.arange(7) != 2), "leaves out tokens of the policy", 0, 2),
    ],
)
def test_each_wrong_mask_is_named_with_its_place(mask, fault, row, column):
    found = check_action_mask(mask, OWNERS)
    assert (found.fault, found.row, found.column) == (fault, row, column)
    assert check_action_mask(mask.double(), OWNERS) == found


def test_evidence_counts_by_owner():
    found = check_action_mask(MASKS["everything"](OWNERS, TURNS), OWNERS)
    assert "3 of 9 kept tokens" in found.evidence and "3 by tool" in found.evidence
    padded = MASKS["right"](OWNERS, TURNS) | torch.tensor([[False] * 7, [False] * 6 + [True]])
    assert "1 by nobody (padding)" in check_action_mask(padded, OWNERS).evidence


def test_a_dropped_row_is_left_alone():
    mask = MASKS["right"](OWNERS, TURNS)
    mask[0] = False
    assert check_action_mask(mask, OWNERS) is None
    assert check_action_mask(torch.zeros_like(mask), OWNERS) is None


@settings(max_examples=60)
@given(owner_rows, st.data())
def test_any_flip_in_a_kept_row_is_red_and_at_its_place(rows, data):
    owner = torch.tensor(rows)
    mask = owner[:, 1:] == 2
    assert check_action_mask(mask, owner) is None
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 4))
    wrong = mask.clone()
    wrong[row, column] = ~wrong[row, column]
    assume(wrong[row].any())
    found = check_action_mask(wrong, owner)
    assert (found.row, found.column) == (row, column)


@settings(max_examples=60)
@given(owner_rows)
def test_without_owners_the_log_probabilities_tell(rows):
    owner = torch.tensor(rows)
    mask = owner[:, 1:] == 2
    logp = -0.5 * mask.double()
    assert check_sampled_mask(mask, logp) is None
    inverted = ~mask
    if mask.any() and (mask.any(1) & inverted.any(1)).any():
        assert check_sampled_mask(inverted, logp).fault == "sampled tokens are left out"


def test_unsampled_tokens_inside_are_red_above_one_half_only():
    logp = torch.tensor([[-1.0, -1.0, 0.0, 0.0, 0.0]])
    assert check_sampled_mask(torch.ones(1, 5), logp).fault == "trains on tokens that nobody sampled"
    assert check_sampled_mask(torch.tensor([[1, 1, 1, 1, 0]]), logp) is None


def test_padding_left_and_right():
    attention = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    assert check_padding(torch.tensor([[1, 1, 0], [0, 1, 1]]), attention) is None
    found = check_padding(torch.tensor([[0, 1, 1], [0, 1, 1]]), attention)
    assert (found.fault, found.row, found.column) == ("trains on padding", 0, 2)
    assert check_padding(torch.tensor([[0, 0, 0], [1, 1, 1]]), attention).row == 1


def test_a_finding_reads_well():
    assert str(Finding("f", "e")) == "f: e"
    assert str(Finding("f", "e", 1, 2)) == "f: e (first at row 1, column 2)"
    assert first_place(torch.tensor([False, True])) == {"row": 1, "column": None}
