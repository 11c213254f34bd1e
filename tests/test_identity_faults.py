"""Ids, contexts and counts: red on other ids, other prefixes and second copies; green on what was sampled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.identity_faults import (
    call_columns,
    check_call_contexts,
    check_first_ratio,
    check_token_ids,
    check_trained_once,
    train_shared_once,
)

IDS = torch.tensor([[9, 4, 5, 8, 6, 7], [9, 3, 8, 2, 0, 0]])
MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 0, 0]], dtype=torch.bool)
SAMPLED = [[4, 5, 6, 7], [3, 2]]
CONTEXTS = [[[9], [9, 4, 5, 8]], [[9], [9, 3, 8]]]


def test_what_was_sampled_is_green():
    assert check_token_ids(IDS, MASK, SAMPLED) is None
    assert check_call_contexts(IDS, MASK, CONTEXTS) is None
    assert check_trained_once(IDS, MASK, torch.tensor([0, 1])) is None


def test_each_row_needs_an_entry():
    for wrong in ([], SAMPLED[:1], [*SAMPLED, [1]]):
        with pytest.raises(ValueError, match=f"sampled_ids has {len(wrong)} entries; allowed: 2"):
            check_token_ids(IDS, MASK, wrong)
    with pytest.raises(ValueError, match="contexts has 1 entries; allowed: 2"):
        check_call_contexts(IDS, MASK, CONTEXTS[:1])


def test_what_is_masked_may_be_infinite():
    engine = torch.tensor([[-1.0, -torch.inf]])
    found = check_first_ratio(torch.tensor([[-3.0, -1.0]]), engine, torch.tensor([[1, 0]]), same_weights=True)
    assert "1 of 1" in found.evidence and "by 2" in found.evidence


def test_another_id_is_found_at_its_place():
    found = check_token_ids(IDS, MASK, [[4, 5, 6, 1], [3, 2]])
    assert (found.row, found.column) == (0, 4) and "number 4" in found.evidence
    assert check_token_ids(IDS, MASK, [[4, 5, 6, 7], [3, 2, 1]]).row == 1
    assert check_token_ids(IDS, MASK, [[4, 5], [3, 2]]).column == 3
    assert check_token_ids(IDS, MASK, [torch.tensor(SAMPLED[0]), torch.tensor([1, 2])]).row == 1


def test_a_dropped_row_needs_no_ids():
    dropped = MASK & torch.tensor([[False], [True]])
    assert check_token_ids(IDS, dropped, [[1, 2, 3], [3, 2]]) is None
    assert check_call_contexts(IDS, dropped, [[[1]], CONTEXTS[1]]) is None


@settings(max_examples=50)
@given(st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=1, max_size=3))
def test_runs_of_kept_tokens(rows):
    for row in rows:
        text = "".join("x" if keep else " " for keep in row)
        assert len(call_columns(torch.tensor(row))) == len(text.split())
    ids, mask = torch.arange(9 * len(rows)).reshape(-1, 9), torch.tensor(rows)
    contexts = [[ids[n, : c + 1].tolist() for c in call_columns(mask[n])] for n in range(len(rows))]
    assert check_call_contexts(ids, mask, contexts) is None
    for n, calls in enumerate(contexts):
        if calls:
            calls[-1] = calls[-1] + [1]
            assert check_call_contexts(ids, mask, contexts).row == n
            break


def test_a_shorter_history_is_red():
    found = check_call_contexts(IDS, MASK, [[[9], [9, 8]], CONTEXTS[1]])
    assert (found.fault, found.row, found.column) == ("trained in another context than sampled", 0, 3)
    assert check_call_contexts(IDS, MASK, [CONTEXTS[0][:1], CONTEXTS[1]]).fault == "calls and contexts do not match"


def test_left_padding_is_no_context():
    ids, mask = torch.cat([torch.zeros(2, 2, dtype=torch.long), IDS], 1), torch.cat([MASK[:, :2] * False, MASK], 1)
    attention = torch.cat([torch.zeros(2, 2), torch.ones(2, 6)], 1)
    assert check_call_contexts(ids, mask, CONTEXTS, attention) is None
    assert check_call_contexts(ids, mask, CONTEXTS) is not None


def test_first_ratio_speaks_of_kept_tokens_of_the_same_weights():
    engine = torch.tensor([[-1.0, 0.0, -1.0]])
    trainer = torch.tensor([[-1.01, -9.0, -3.5]])
    mask = torch.tensor([[1, 0, 1]])
    found = check_first_ratio(trainer, engine, mask, True)
    assert (found.row, found.column) == (0, 2) and "1 of 2" in found.evidence
    assert check_first_ratio(trainer, engine, mask, False) is None
    assert check_first_ratio(trainer, engine, mask, True, max_gap=3.0) is None


def test_one_far_token_in_thousands_is_healthy_and_one_in_hundreds_is_not():
    far = torch.full((1, 3643), -1.0)
    far[0, 7] = -2.5
    engine = torch.full((1, 3643), -1.0)
    assert check_first_ratio(far, engine, torch.ones(1, 3643), True) is None
    assert check_first_ratio(far[:, :300], engine[:, :300], torch.ones(1, 300), True).column == 7


BRANCHES = torch.tensor([[0, 2, 5, 7, 0], [0, 2, 5, 8, 0], [0, 2, 5, 8, 9]])
PATHS = torch.tensor([[1, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)


def test_a_prefix_is_trained_once_and_by_a_row_that_stays():
    episode = torch.zeros(3)
    found = check_trained_once(BRANCHES, PATHS, episode)
    assert (found.fault, found.row, found.column) == ("tokens are trained more than once", 1, 0)
    right = train_shared_once(BRANCHES, PATHS, episode, torch.tensor([False, True, True]))
    assert right.tolist() == [[False] * 4, [True, False, True, False], [False, False, False, True]]
    assert check_trained_once(BRANCHES, right, episode) is None
    assert check_trained_once(BRANCHES, PATHS, torch.arange(3)) is None


def test_the_same_token_after_another_prefix_is_another_sample():
    ids = torch.tensor([[0, 1, 2, 3], [0, 9, 2, 3]])
    assert check_trained_once(ids, torch.tensor([[0, 1, 1], [0, 1, 1]]), torch.zeros(2)) is None
