"""The check list: green on the book's trainer, red on exactly one check for each exhibit, clear refusals."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.base import make_rl_base
from agentrl.batch_fields import ALL_FIELDS, BATCH_FIELDS
from agentrl.credit import outcome_rewards
from agentrl.diagnosis import CHECKS, RESULTS, diagnose, dump_step, questions_left
from agentrl.exhibits import dump_with_critic
from agentrl.layouts import from_trl, from_verl
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig


@cache
def dumps(seed=0):
    tok, cfg = build_tokenizer(make_tasks("all")), RLConfig(group_size=8)
    policy, rng = make_rl_base(tok), torch.Generator().manual_seed(seed)
    trajs = sample_groups(policy, make_tasks()[:2], tok, cfg, rng)
    grpo = dump_step(policy, trajs, tok, cfg)
    return grpo, dump_with_critic(grpo, rng)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("which", [0, 1])
def test_the_books_own_trainer_is_green(seed, which):
    report = diagnose(dumps(seed)[which])
    assert report.healthy and not report.names("red"), report
    assert len(report.names("green")) >= 14
    assert report.unused == ["length"]


def test_checks_ask_for_fields_that_exist():
    for check in CHECKS:
        names, needed = check.arguments()
        assert set(needed) <= set(names) <= set(ALL_FIELDS)
        assert set(check.after) <= {other.name for other in CHECKS} and set(check.unless) <= set(ALL_FIELDS)
    used = {name for check in CHECKS for name in [*check.arguments()[0], *check.unless]}
    assert used == set(ALL_FIELDS)


def test_arrays_and_lists_are_as_good_as_tensors():
    grpo = dumps()[0]
    arrays = {k: v.numpy() if torch.is_tensor(v) else v for k, v in grpo.items()}
    lists = {k: v.tolist() if torch.is_tensor(v) else v for k, v in grpo.items()}
    expected = [line for line in diagnose(grpo).lines if line["check"] != "copied log-probs"]  # lists lose digits
    for batch in (arrays, lists):
        assert [line for line in diagnose(batch).lines if line["check"] != "copied log-probs"] == expected


def test_missing_inputs_are_named():
    report = diagnose({"action_mask": [[0, 1]]})
    assert report.names("red") == report.names("green") == []
    lines = {line["check"]: line["evidence"] for line in report.lines}
    assert lines["action mask"] == "needs owner" and lines["lower clip"] == "needs weights, train_logp, logp"
    assert not report.healthy and report.verdict == "not enough to say"
    assert "needs owner" in questions_left(report.lines)["the mask"] and "open: the advantages" in repr(report)


def test_more_fields_override():
    grpo = dumps()[0]
    report = diagnose(grpo, owner=torch.ones_like(grpo["owner"]))
    assert report.names("red") == ["action mask"]
    assert "means nothing while action mask is red" in {line["evidence"] for line in report.lines}


def test_the_report_reads_in_text_and_html():
    mask, owner = dumps()[0]["action_mask"], dumps()[0]["owner"]
    one_more = mask | ((owner[:, 1:] < 0) & (owner[:, :-1] >= 0))
    report = diagnose(dumps()[0], action_mask=one_more, owner=None, token_weights=None)
    text, html = repr(report), report._repr_html_()
    assert text.splitlines()[1].startswith("red        14.1   padding") and "trains on padding" in html
    assert "1 red" in report.summary() and "<table" in html
    assert list(report.table().columns) == ["check", "section", "result", "fault", "evidence", "row", "column"]
    assert "<b>" not in diagnose({"action_mask": [[1]], "errors": ["KeyError <b>"]})._repr_html_()


MASK = [[0, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    "bad, message",
    [
        ({}, "needs action_mask"),
        ({"action_mask": [0, 1]}, r"shape \[2\]; allowed: \[B, T-1\]"),
        ({"action_mask": [[0, -1]]}, r"action_mask holds -1 at \[0, 1\]"),
        ({"action_mask": [[0, 0.5]]}, r"action_mask holds 0.5"),
        ({"action_mask": [[0, float("nan")]]}, "action_mask holds nan"),
        ({"action_mask": MASK, "ids": [[1, 2, 3], [1, 2, 3]]}, r"ids has shape \[2, 3\]; allowed: \[2, 4\]"),
        ({"action_mask": MASK, "logp": [[0.0] * 4] * 2}, r"logp has shape \[2, 4\]; allowed: \[2, 3\]"),
        ({"action_mask": MASK, "reward": [1.0]}, r"reward has shape \[1\]; allowed: \[2\]"),
        ({"action_mask": MASK, "advantages": [1.0] * 3}, r"allowed: \[2, 3\] or \[2\]"),
        ({"action_mask": MASK, "logp": [[0, float("nan"), 0]] * 2}, r"logp is nan at \[0, 1\]"),
        ({"action_mask": MASK, "advantages": [[0, float("inf"), 0]] * 2}, "advantages is inf"),
        ({"action_mask": MASK, "reward": [1.0, float("nan")]}, r"reward is nan at \[1\]"),
        ({"action_mask": MASK, "errors": [None]}, "errors has 1 entries; allowed: 2"),
        ({"action_mask": MASK, "calls": {"tokens": [1]}}, "calls lacks finish_reason, limit"),
        ({"action_mask": MASK, "logp": "abc"}, "logp is not an array"),
        ({"action_mask": MASK, "token_weights": np.zeros((2, 3)), "loss_agg": "mean"}, "loss aggregation 'mean'"),
    ],
)
def test_bad_input_is_a_red_line_that_names_the_field(bad, message):
    report = diagnose(bad)
    red = report.table().query("result == 'red'")
    assert red["evidence"].str.contains(message).any() and not report.healthy, report


def test_a_nan_has_its_row_and_column_and_what_needs_the_field_waits():
    report = diagnose({"action_mask": MASK, "logp": [[0, float("nan"), 0]] * 2})
    line = report.lines[0]
    assert (line["check"], line["row"], line["column"]) == ("logp", 0, 1) and report.verdict == "sick"
    assert {line["check"]: line["evidence"] for line in report.lines}["sampled mask"] == "needs logp (unusable)"


THINGS = [None, 3, "text", b"bytes", [1, 2], object(), {}, {"action_mask": object()}, torch.ones(2)]


@pytest.mark.parametrize("thing", THINGS)
def test_any_object_gives_a_report(thing):
    report = diagnose(thing)
    assert report.verdict == "not enough to say" and report.names("red") and not report.healthy
    assert repr(report) and report.layout == "none"


def test_float_masks_jagged_rows_and_verls_spelling_are_read():
    assert diagnose(dumps()[0], attention_mask=(dumps()[0]["owner"] >= 0).double()).healthy
    rows = torch.nested.nested_tensor([torch.tensor([-1.0, -2.0]), torch.tensor([-1.0])])
    assert not diagnose({"action_mask": [[1, 1], [1, 0]], "logp": rows}).names("red")
    report = diagnose({"action_mask": MASK, "token_weights": np.full((2, 3), 0.25) * MASK, "loss_agg": "token-mean"})
    assert "token weights" in report.names("green")


def test_a_slip_is_guessed():
    assert diagnose({"action_mask": MASK, "adventages": [1.0, 1.0]}).unused == ["adventages (did you mean advantages?)"]


def test_what_is_not_used_may_hold_anything():
    nan, inf = float("nan"), float("inf")
    batch = {"action_mask": MASK, "logp": [[nan, -1, -1], [-1, -1, -inf]], "reward": [1.0, nan]}
    batch |= {"errors": [None, "lost"], "group": ["a", "a"], "advantages": [0.0, 0.0], "note": 3}
    report = diagnose(batch)
    assert report.unused == ["note"] and report.healthy, report


TRL = {
    "prompt_ids": [[0, 11, 12], [11, 12, 13]],
    "prompt_mask": [[0, 1, 1], [1, 1, 1]],
    "completion_ids": [[21, 31, 23, 0], [21, 31, 32, 24]],
    "completion_mask": [[1, 1, 1, 0], [1, 1, 1, 1]],
    "tool_mask": [[1, 0, 1, 1], [1, 0, 0, 1]],
    "sampling_per_token_logps": [[-0.5, 0, -0.7, 0], [-0.9, 0, 0, -0.2]],
    "old_per_token_logps": [[-0.5, -9, -0.7, 0], [-0.9, -9, -9, -0.2]],
    "advantages": [0.7071, -0.7071],
}


def test_trl_columns_speak_of_the_next_token():
    fields = from_trl(TRL)
    assert fields["ids"].tolist() == [[0, 11, 12, 21, 31, 23, 0], [11, 12, 13, 21, 31, 32, 24]]
    kept = [fields["ids"][row, 1:][fields["action_mask"][row].bool()].tolist() for row in (0, 1)]
    assert kept == [[21, 23], [21, 24]]
    report = diagnose(TRL, reward=[1.0, 0.0], group=[0, 0], same_weights=True)
    assert report.layout == "TRL" and report.healthy and len(report.names("green")) == 12, report


def test_trl_faults_are_seen():
    forgotten = {k: v for k, v in TRL.items() if k != "tool_mask"}
    assert diagnose(forgotten | {"sampling_per_token_logps": [[-0.5, 0, 0, 0], [-0.9, 0, 0, 0]]}).names("red") == [
        "sampled mask"
    ]
    assert diagnose(TRL, reward=[1.0, 1.0], group=[0, 0]).names("red") == ["group spread"]
    assert "must agree" in repr(diagnose(TRL | {"completion_mask": [[1, 1]]}))
    tokens = TRL | {"advantages": [[0.5] * 4] * 2}
    assert from_trl(tokens)["advantages"].shape == (2, 6)


def verl(**changes):
    mask = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 1]])
    batch = {
        "prompts": torch.tensor(TRL["prompt_ids"]),
        "responses": torch.tensor(TRL["completion_ids"]),
        "response_mask": mask,
        "input_ids": torch.tensor([p + c for p, c in zip(TRL["prompt_ids"], TRL["completion_ids"])]),
        "attention_mask": torch.tensor([p + c for p, c in zip(TRL["prompt_mask"], TRL["completion_mask"])]),
        "rollout_log_probs": torch.tensor(TRL["sampling_per_token_logps"], dtype=torch.float64),
        "token_level_rewards": outcome_rewards([1.0, 0.0], mask),
        "advantages": torch.tensor([[0.7] * 4, [-0.7] * 4]) * mask,
        "returns": torch.tensor([[0.7] * 4, [-0.7] * 4]) * mask,
        "uid": np.array(["x", "x"], dtype=object),
    }
    batch["old_log_probs"] = batch["rollout_log_probs"] + 0.01
    return batch | changes


def test_verl_columns_speak_of_the_next_token_and_returns_need_values():
    fields = from_verl(verl())
    kept = [fields["ids"][row, 1:][fields["action_mask"][row].bool()].tolist() for row in (0, 1)]
    assert kept == [[21, 23], [21, 24]] and fields["group"].tolist() == [0, 0]
    assert "returns" not in fields and "returns" in from_verl(verl(values=torch.zeros(2, 4)))
    report = diagnose(verl(), same_weights=True, reward=[1.0, 0.0], loss_agg="token_mean")
    assert report.layout == "verl" and report.healthy and len(report.names("green")) == 13, report


def test_verl_faults_are_seen():
    late = torch.zeros(2, 4)
    late[0, 1] = 1.0
    report = diagnose(verl(token_level_rewards=late))
    line = report.table().query("result == 'red'").iloc[0]
    assert (line["check"], line["row"], line["column"]) == ("token rewards", 0, 3)
    assert diagnose(verl(response_mask=torch.ones(2, 4))).names("red")[0] in ("sampled mask", "padding")
    assert "old_log_probs has shape" in repr(diagnose(verl(old_log_probs=torch.zeros(2, 3))))
    assert "must be a prompt and" in repr(diagnose(verl(input_ids=torch.zeros(2, 4))))


def test_a_dataproto_is_read_too():
    batch = verl()
    proto = SimpleNamespace(
        batch={k: v for k, v in batch.items() if k != "uid"}, non_tensor_batch={"uid": batch["uid"]}
    )
    assert diagnose(proto, same_weights=True).lines == diagnose(batch, same_weights=True).lines


@settings(max_examples=60)
@given(st.data())
def test_random_batches_give_a_report(data):
    n, t = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 5))
    numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, -30.0, float("nan"), float("inf")])

    def array(*shape):
        size = int(np.prod(shape))
        return np.array(data.draw(st.lists(numbers, min_size=size, max_size=size))).reshape(shape)

    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n * (t - 1), max_size=n * (t - 1)))).reshape(n, t - 1)
    shapes = {"tokens": (n, t), "columns": (n, t - 1), "rows": (n,)}
    batch = {"action_mask": mask, "gamma": 1.0, "lam": 0.95, "loss_agg": "token_mean", "sequence_kind": "sum"}
    for kind, shape in shapes.items():
        for name in BATCH_FIELDS[kind]:
            if name != "action_mask" and data.draw(st.booleans()):
                values = array(*shape)
                integral = name in ("ids", "owner", "turn")
                batch[name] = np.nan_to_num(values, nan=0, posinf=2, neginf=0).astype(int) if integral else values
    report = diagnose(batch)
    assert len(report.lines) >= len(CHECKS) and {line["result"] for line in report.lines} <= set(RESULTS)
