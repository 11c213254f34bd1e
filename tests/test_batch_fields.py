"""Fields become tensors, or lines that name field, place and what is allowed."""

import numpy as np
import pytest
import torch

from agentrl.batch_fields import ALL_FIELDS, codes, plain_tensor, read_batch, rounding_of, shape_of, with_guess

MASK = [[0, 1, 1], [1, 1, 0]]


def test_fields_are_tensors_of_the_masks_shape():
    batch = {"action_mask": MASK, "logp": np.full((2, 3), -1), "ids": [[1] * 4] * 2, "x": 1}
    read, unknown, problems = read_batch(batch)
    assert read["action_mask"].dtype == torch.bool and read["logp"].dtype == torch.float64
    assert read["ids"].shape == (2, 4) and unknown == ["x"] and problems == {}


@pytest.mark.parametrize(
    "field, message, place",
    [
        ({"logp": [[0, float("nan"), 0]] * 2}, "logp is nan", (0, 1)),
        ({"reward": [1.0, float("inf")]}, "reward is inf", (1, None)),
        ({"attention_mask": [[1, 1, 1, 1], [1, 1, 2, 1]]}, "attention_mask holds 2", (1, 2)),
        ({"values": [[0.0] * 4] * 2}, r"allowed: [2, 3]", (None, None)),
    ],
)
def test_what_cannot_be_used_has_its_place(field, message, place):
    read, _, problems = read_batch({"action_mask": MASK} | field)
    (error,) = problems.values()
    assert message in str(error) and (error.row, error.column) == place
    assert list(read) == ["action_mask"]


def test_lost_rows_and_dropped_tokens_may_hold_anything():
    nan = float("nan")
    batch = {"action_mask": MASK, "logp": [[nan, -1, -1], [nan, nan, nan]], "errors": [None, "lost"]}
    read, _, problems = read_batch(batch)
    assert problems == {} and read["logp"].isfinite().all()


def test_without_a_mask_nothing_is_read():
    read, unknown, problems = read_batch({"ids": [[1, 2]], "what": 3})
    assert read == {} and unknown == ["what"] and list(problems) == ["action_mask"]


def test_labels_jagged_rows_shapes_and_slips():
    assert codes(["b", "a", "b"]) == [0, 1, 0] and codes(torch.tensor([5, 5, 3])) == [0, 0, 1]
    rows = torch.nested.nested_tensor([torch.tensor([1.0, 2.0]), torch.tensor([3.0])], layout=torch.jagged)
    assert plain_tensor("logp", rows).tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert [shape_of("x", (2, 4), kind) for kind in ("tokens", "columns", "rows")] == [(2, 4), (2, 3), (2,)]
    assert "advantages?" in with_guess("adventages") and with_guess("note") == "note" and "logp" in ALL_FIELDS


def test_rounding_is_seen_in_dtypes_and_in_digits():
    x = torch.linspace(-3, -0.1, 50, dtype=torch.float64)[:, None]
    assert rounding_of({"logp": x}) == 1e-6
    assert rounding_of({"logp": x.bfloat16()}) == rounding_of({"logp": x.bfloat16().double()}) == 2.0**-8
    assert rounding_of({"logp": x.half().double()}) == 2.0**-11
