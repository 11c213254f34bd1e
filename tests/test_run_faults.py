"""Runs: parsers, reruns, quotas; red on the wrong versions, green on the gym's."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.environment import parse_call
from agentrl.run_faults import (
    check_lost_rollouts,
    check_parser,
    check_quota_errors,
    check_rerun,
    mangle,
)


def test_a_trusting_parser_is_red_and_the_gyms_green():
    found = check_parser(lambda text: json.loads(text)["path"], ['{"path": "x"}'])
    assert found.fault == "malformed calls kill the rollout" and "JSONDecodeError" in found.evidence
    assert check_parser(parse_call, ["<call> edit fix_boundary </call>", "<call> read </call>"]) is None
    assert check_parser(lambda text: json.loads(text), ["1"], n=0) is None
    assert found == check_parser(lambda text: json.loads(text)["path"], ['{"path": "x"}'])


@settings(max_examples=50)
@given(st.text(max_size=30), st.randoms(use_true_random=False))
def test_any_text_can_be_mangled(text, random):
    assert isinstance(mangle(text, random), str)


@pytest.mark.parametrize(
    "message", ["JSONDecodeError: x", "Unterminated string at 3", "KeyError: 'path'", "invalid arguments"]
)
def test_lost_rollouts(message):
    assert check_lost_rollouts([None, None, message]).row == 2
    assert check_lost_rollouts([None, "container lost", "429 too many requests"]) is None


def test_the_same_rows_in_another_order_are_green():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    wider = torch.tensor([[4, 5, 6, 0], [1, 2, 3, 0]])
    assert check_rerun(ids, ["a", "b"], wider, ["b", "a"]) is None
    found = check_rerun(ids, ["a", "b"], wider, ["a", "b"])
    assert found.fault == "the same seed gives other tokens" and (found.row, found.column) == (0, 0)
    wider[0, 2] = 7
    found = check_rerun(ids, ["a", "b"], wider, ["b", "a"])
    assert (found.row, found.column) == (1, 1) and "6, then 7" in found.evidence


@pytest.mark.parametrize("again", [["a", "c"], ["a", "a"], ["a"]])
def test_keys_must_agree(again):
    with pytest.raises(ValueError, match="the same, distinct keys"):
        check_rerun(torch.zeros(2, 2), ["a", "b"], torch.zeros(len(again), 2), again)
    with pytest.raises(ValueError):
        check_rerun(torch.zeros(2, 2), ["a", "a"], torch.zeros(2, 2), ["a", "b"])


@pytest.mark.parametrize(
    "message", ["HTTP 429", "Too Many Requests", "CPU limit exceeded", "memory quota", "rate limit", "503"]
)
def test_a_quota_without_a_retry_is_red(message):
    assert check_quota_errors([None, message], [0, 0]).row == 1
    assert check_quota_errors([None, message], [0, 2]) is None


@pytest.mark.parametrize("message", ["invalid credentials", "no such image", "port 14290 refused", None])
def test_what_waiting_does_not_cure_is_green(message):
    assert check_quota_errors([message], [0]) is None
