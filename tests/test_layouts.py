"""Columns of TRL and verl stand beside the tokens that they speak of."""

import pytest
import torch

from agentrl.layouts import from_trl, from_verl, read_layout

TRL = {
    "prompt_ids": [[0, 11], [11, 12]],
    "prompt_mask": [[0, 1], [1, 1]],
    "completion_ids": [[21, 31, 23, 0], [21, 31, 32, 24]],
    "completion_mask": [[1, 1, 1, 0], [1, 1, 1, 1]],
    "tool_mask": [[1, 0, 1, 1], [1, 0, 0, 1]],
    "old_per_token_logps": [[-0.21, -0.31, -0.23, 0.0], [-0.21, -0.31, -0.32, -0.24]],
}
VERL = {
    "responses": torch.tensor(TRL["completion_ids"]),
    "response_mask": torch.tensor(TRL["tool_mask"]) * torch.tensor(TRL["completion_mask"]),
    "input_ids": torch.tensor([p + c for p, c in zip(TRL["prompt_ids"], TRL["completion_ids"])]),
    "old_log_probs": torch.tensor(TRL["old_per_token_logps"]),
}


@pytest.mark.parametrize("fields", [from_trl(TRL), from_verl(VERL)])
def test_a_column_speaks_of_the_next_token(fields):
    for ids, mask, logp in zip(fields["ids"], fields["action_mask"], fields["train_logp"]):
        kept = ids[1:][mask.bool()]
        assert kept.tolist() in ([21, 23], [21, 24])
        assert torch.allclose(logp[mask.bool()], -kept / 100)


def test_layouts_are_known_by_their_names():
    assert read_layout(TRL)[0] == "TRL" and read_layout(VERL)[0] == "verl"
    name, fields = read_layout({"action_mask": [[1]], "note": 1})
    assert name == "book" and fields == {"action_mask": [[1]], "note": 1}
    assert read_layout(TRL | {"note": 1})[1]["note"] == 1 and read_layout(VERL | {"note": 1})[1]["note"] == 1


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="must agree"):
        from_trl(TRL | {"tool_mask": None, "completion_mask": [[1, 1]]})
    with pytest.raises(ValueError, match="must be a prompt and the responses"):
        from_verl(VERL | {"input_ids": VERL["responses"]})
    with pytest.raises(ValueError, match="old_log_probs has shape"):
        from_verl(VERL | {"old_log_probs": torch.zeros(2, 3)})


def test_returns_need_values():
    zeros = torch.zeros(2, 4)
    assert "returns" not in from_verl(VERL | {"returns": zeros})
    assert "returns" in from_verl(VERL | {"returns": zeros, "values": zeros})
