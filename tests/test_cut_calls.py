"""A cut call is no call: treatments, labels that lie, answers that leave something out, a loop that does not guess."""

import asyncio

import pytest
import torch
from openai.types.chat import ChatCompletion

from agentrl.cut_calls import (
    TREATMENTS,
    CutEnv,
    Turn,
    act_on,
    compare_prefix,
    end_at_cut,
    is_cut,
    lenient_finish,
    play_chat,
    read_turn,
    report_error,
    run_limited,
)
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode
from agentrl.model import TinyAgent
from agentrl.sampling import CachedReader, PlainReader, run_episodes
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

pytestmark = pytest.mark.timeout(60)
TOK = build_tokenizer(make_tasks("all"))
TASK = make_tasks("all")[1]  # needs fix_boundary
FIX = '{"op": "fix_boundary"}'


def reset(env):
    env.reset(options={"task": TASK})
    return env


def completion(*calls, text=None, reason="tool_calls", written=3, total=40, **changes):
    """What the library makes of an answer that a server sends."""
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": made or None}
    usage = {"prompt_tokens": total - written, "completion_tokens": written, "total_tokens": total}
    fields = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    return ChatCompletion.construct(**fields | changes)


# Treatments


@pytest.mark.parametrize(
    "name, edits, malformed, stop",
    [("execute the prefix", 1, 0, None), ("end the episode", 0, 0, "length"), ("report", 0, 1, None)],
)
def test_a_treatment_counts_the_turn_and_does_what_it_says(name, edits, malformed, stop):
    env = reset(EditBudgetEnv())
    _, reward, terminated, truncated, info = TREATMENTS[name](env, "<call> edit fix_boundary")
    assert (info["n_turns"], info["n_edits"], info["n_invalid"], info["stop"]) == (1, edits, malformed, stop)
    assert not terminated and truncated == (stop is not None) and reward == 0 and not info["submitted"]
    if stop:
        with pytest.raises(RuntimeError, match="length"):
            env.step("<call> read </call>")


def test_only_calls_without_an_end_are_treated():
    env = reset(CutEnv(EditBudgetEnv(), end_at_cut))
    assert env.step("<call> read </call>")[4]["n_reads"] == 1
    assert env.step("nonsense </call>")[4]["n_invalid"] == 1
    assert env.step("<call> submit")[4] | {} == env.unwrapped.info
    assert env.unwrapped.info["stop"] == "length" and env.unwrapped.info["n_turns"] == 3


@pytest.mark.parametrize("reader", [PlainReader, CachedReader])
def test_a_limit_of_six_is_the_sampler_of_the_book(reader):
    model = TinyAgent(len(TOK), n_layers=1, d=32)
    noise = torch.rand(4, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    book = [Episode(EditBudgetEnv(), task, TOK, 6, 256) for task in make_tasks("train")[:4]]
    ours = [Episode(CutEnv(EditBudgetEnv(), report_error), task, TOK, 6, 256) for task in make_tasks("train")[:4]]
    run_episodes(reader(model, 4), book, 1.0, noise)
    run_limited(reader(model, 4), ours, 6, 1.0, noise)
    assert [(e.ids, e.logp, e.owner, e.info) for e in ours] == [(e.ids, e.logp, e.owner, e.info) for e in book]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_call_is_longer_than_the_limit(limit):
    model = TinyAgent(len(TOK), n_layers=1, d=32)
    noise = torch.rand(4, 256, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    episodes = [Episode(CutEnv(EditBudgetEnv(), report_error), task, TOK, 6, 256) for task in make_tasks("train")[:4]]
    run_limited(CachedReader(model, 4), episodes, limit, 1.0, noise)
    for episode in episodes:
        assert all(len(action.split()) <= limit for action in episode.actions)
        assert episode.info["n_turns"] == len(episode.actions) <= 6 and episode.done


@pytest.mark.parametrize(
    "prefix, whole, verdict",
    [
        ("<call> edit fix_init", "<call> edit fix_init </call>", "same call"),
        ("<call> submit", "<call> submit submit </call>", "other call"),
        ("<call> edit", "<call> edit fix_init </call>", "no call"),
    ],
)
def test_what_closing_makes(prefix, whole, verdict):
    assert compare_prefix(prefix, whole) == verdict


# Labels


@pytest.mark.parametrize(
    "reason, written, limit, cut",
    [
        ("length", 3, None, True),
        ("length", 3, 3, True),
        ("tool_calls", 3, 3, False),  # it just fits
        ("tool_calls", 4, 3, True),  # labelled as complete
        ("stop", 4, 3, True),
        ("tool_calls", 400, None, False),
    ],
)
def test_a_cut_turn_is_known_by_the_word_or_by_the_count(reason, written, limit, cut):
    assert is_cut(Turn((), "", reason, written, 40), limit) == cut


def test_a_lenient_server_labels_a_cut_call_as_complete():
    assert lenient_finish("<call> edit fix_init", False) == ({"name": "edit", "arguments": '{"op": "fix_init"}'},) + (
        "tool_calls",
    )
    assert lenient_finish("<call> edit", False) == (None, "length")
    assert lenient_finish("<call> </call>", True) == (None, "stop")


# Answers


def test_a_whole_answer_is_read_and_sent_back_as_it_was():
    turn = read_turn(completion(("edit", FIX)))
    assert (turn.finish_reason, turn.written, turn.total) == ("tool_calls", 3, 40)
    function = {"name": "edit", "arguments": FIX}
    calls = [{"id": "c0", "type": "function", "function": function}]
    assert turn.message() == {"role": "assistant", "content": None, "tool_calls": calls}
    assert read_turn(completion(text="hello", reason="stop")).message() == {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    "answer",
    [
        "<html>busy</html>",
        None,
        42,
        completion(choices=[]),
        completion(choices=None),
        completion(choices=[3]),
        completion(usage=None),
        completion(usage={}),
        completion(reason=None),
        completion(choices=[{"index": 0, "message": None, "finish_reason": "stop"}]),
        completion(choices=[{"index": 0, "message": {"tool_calls": [{"id": "c"}]}, "finish_reason": "stop"}]),
    ],
)
def test_an_answer_that_leaves_something_out_is_an_error_and_not_a_guess(answer):
    with pytest.raises(ValueError, match="no whole chat completion|must send all three"):
        read_turn(answer)


@pytest.mark.parametrize(
    "answer",
    [
        completion((5, "{}")),
        completion(("", "{}")),
        completion(("read", ""), usage={"completion_tokens": "3", "total_tokens": 40}),
        completion(("read", ""), written=-1),
        completion(("read", ""), usage={"completion_tokens": 3, "total_tokens": 1.5}),
        completion(text=["read"], reason="stop"),
    ],
)
def test_a_part_of_the_wrong_type_is_an_error_and_not_a_crash(answer):
    with pytest.raises(ValueError, match="of the wrong type: Turn"):
        read_turn(answer)


# The loop


def play(*answers, **settings):
    """Play the answers one after another; (info, turns, the messages of each request)."""
    left, seen = list(answers), []

    async def ask(messages):
        seen.append(list(messages))
        return left.pop(0)

    info, turns = asyncio.run(asyncio.wait_for(play_chat(ask, EditBudgetEnv(), TASK, **settings), 20))
    return info, turns, seen


def test_an_episode_by_chat():
    info, turns, seen = play(completion(("read", "")), completion(("edit", FIX)), completion(("submit", "{}")))
    assert info["hidden_pass"] and info["n_turns"] == len(turns) == 3 and info["n_invalid"] == 0
    assert [message["role"] for message in seen[-1]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert seen[-1][2]["tool_call_id"] == "c0" and seen[-1][4]["content"] == "applied"


def test_a_cut_call_labelled_as_complete_is_not_made_where_the_loop_counts():
    cut = completion(("edit", FIX), written=4)
    info, _, _ = play(cut, limit=3)
    assert (info["stop"], info["n_edits"], info["n_turns"], info["n_invalid"]) == ("length", 0, 1, 0)
    info, _, _ = play(cut, completion(("submit", "{}")), limit=4)
    assert info["stop"] == "submit" and info["n_edits"] == 1


def test_a_cut_call_that_is_reported_does_not_end_the_episode():
    cut = completion(text="<call> edit fix_init", reason="length")
    info, _, seen = play(cut, completion(("submit", "{}")), on_cut=report_error)
    assert info["stop"] == "submit" and info["n_invalid"] == 1 and info["n_edits"] == 0
    assert seen[1][-2:] == [
        {"role": "assistant", "content": "<call> edit fix_init"},
        {"role": "user", "content": "error malformed call"},
    ]


def test_a_cut_call_labelled_as_complete_is_reported_as_the_answer_to_its_call():
    cut = completion(("edit", FIX), written=4)
    info, _, seen = play(cut, completion(("submit", "{}")), limit=3, on_cut=report_error)
    assert info["stop"] == "submit" and info["n_invalid"] == 1 and info["n_edits"] == 0
    made, answered = seen[1][-2:]
    assert made["tool_calls"][0]["id"] == answered["tool_call_id"] == "c0"
    assert (answered["role"], answered["content"]) == ("tool", "error malformed call")


@pytest.mark.parametrize("call", [("rm", "{}"), ("edit", '{"op": "fix_'), ("edit", "{}"), ("read", '{"file": "a"}')])
def test_a_tool_call_that_the_gym_does_not_know_is_malformed(call):
    info, _, seen = play(completion(call), completion(("submit", "{}")))
    assert info["n_invalid"] == 1 and info["n_turns"] == 2
    assert seen[1][-1] == {"role": "tool", "tool_call_id": "c0", "content": "error malformed call"}


def test_text_without_a_call_is_malformed():
    info, _, seen = play(completion(text="I think it is fine.", reason="stop"), completion(("submit", "{}")))
    assert info["n_invalid"] == 1 and seen[1][-1] == {"role": "user", "content": "error malformed call"}


def test_several_calls_are_made_in_order_until_the_episode_ends():
    env = reset(EditBudgetEnv())
    turn = read_turn(completion(("read", ""), ("submit", ""), ("test", "")))
    answers, info = act_on(turn, env)
    assert [answer["tool_call_id"] for answer in answers] == ["c0", "c1"]
    assert info["stop"] == "submit" and info["n_tests"] == 0


def test_enough_ends_the_episode_as_truncated():
    info, turns, _ = play(completion(("read", ""), total=50), enough=lambda turn: turn.total >= 50)
    assert info["stop"] == "context" and not info["submitted"] and len(turns) == 1
