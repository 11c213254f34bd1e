import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tasks import EDIT_OPS, NAME_POOL, apply_op, compact_source, make_tasks
from agentrl.tokenizer import Tokenizer, build_tokenizer

TOK = build_tokenizer(make_tasks("all"))


@given(st.lists(st.integers(0, len(TOK) - 1)))
def test_ids_survive_text(ids):
    assert TOK.encode(TOK.decode(ids)) == ids


def test_knows_all_words_of_the_gym():
    for task in make_tasks("all"):
        for op in EDIT_OPS:
            for other in EDIT_OPS:
                TOK.encode(compact_source(apply_op(apply_op(task.source, op), other)))
    TOK.encode(" ".join(NAME_POOL))
    TOK.encode("error malformed call error no edits left visible tests pass fail applied")


def test_ids_do_not_depend_on_the_order_of_tasks():
    assert build_tokenizer(make_tasks("all")) == TOK
    assert TOK.itos[TOK.pad_id] == "<pad>" and TOK.itos[TOK.call_end_id] == "</call>"


def test_unknown_words_are_named():
    with pytest.raises(ValueError, match="gnu, yak"):
        TOK.encode("yak read gnu")
    with pytest.raises(ValueError, match="twice"):
        Tokenizer(("a", "b", "a"))


@pytest.mark.parametrize("wrong", [-1, 10**6, 0.5, math.nan])
def test_an_id_without_a_word_is_named(wrong):
    tok = build_tokenizer([])
    with pytest.raises(ValueError, match=rf"ids \[{wrong}\].*from 0 to {len(tok) - 1}"):
        tok.decode([0, wrong])


def test_text_is_a_string():
    with pytest.raises(ValueError, match="text=None"):
        build_tokenizer([]).encode(None)
