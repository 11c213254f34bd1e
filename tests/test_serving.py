"""The server in front of the agent: exact words there and back, honest ends, no request that waits for ever."""

import asyncio
import contextlib

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIConnectionError, APITimeoutError, BadRequestError, InternalServerError, NotFoundError, OpenAI

from agentrl.environment import EditBudgetEnv, parse_call
from agentrl.episodes import Episode
from agentrl.model import KVCache, TinyAgent
from agentrl.sampling import PlainReader, sample_next
from agentrl.serving import (
    TOOL_SCHEMAS,
    Engine,
    Generation,
    LocalServer,
    admit,
    call_to_tool,
    create_app,
    decode_step,
    engine_metrics,
    prompt_ids,
    run_async,
    serve_agent,
    tool_to_call,
    wait_until,
)
from agentrl.tasks import EDIT_OPS, make_tasks
from agentrl.tokenizer import CALL, CALL_END, build_tokenizer

pytestmark = pytest.mark.timeout(60)
TOK = build_tokenizer(make_tasks("all"))
TASK = make_tasks("all")[1]
USER = {"role": "user", "content": TASK.issue}
GOOD = [f"{CALL} {words} {CALL_END}" for words in ("read", "test", "submit", *(f"edit {op}" for op in EDIT_OPS))]
WORDS = st.lists(st.sampled_from(TOK.itos), min_size=1, max_size=6).map(" ".join)


class Scripted:
    """A policy that always writes `words`; the last word read decides which comes next."""

    vocab_size, max_len = len(TOK), 256

    def __init__(self, words="<call> read </call>", fail=False):
        ids = TOK.encode(words)
        self.first, self.after, self.fail = ids[0], dict(zip(ids, ids[1:])), fail

    def empty_cache(self, n_rows):
        return KVCache(torch.zeros(1, 2, n_rows, 0, 1), torch.zeros(n_rows, dtype=torch.long))

    def extend(self, new_ids, cache):
        if self.fail:
            raise RuntimeError("out of memory")
        logits = [torch.eye(len(TOK))[self.after.get(ids[-1], self.first)] * 100 for ids in new_ids if ids]
        return torch.stack(logits).double(), cache


@contextlib.contextmanager
def serving(policy=None, **settings):
    """(server, client) for a scripted policy."""
    with (
        serve_agent(policy or Scripted(), TOK, **settings) as server,
        OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=20) as client,
    ):
        yield server, client


@pytest.fixture(scope="module")
def running():
    with serving() as pair:
        yield pair


def ask(client, messages=(USER,), **settings):
    return client.chat.completions.create(model="tiny-agent", messages=list(messages), **settings)


def metrics(server):
    return server.call(engine_metrics, server.engine)


# Words


@given(st.lists(st.one_of(st.sampled_from(GOOD), WORDS), max_size=5))
@settings(max_examples=60)
def test_a_chat_holds_the_tokens_of_its_episode(texts):
    env, episode = EditBudgetEnv(max_turns=9), Episode(EditBudgetEnv(max_turns=9), TASK, TOK, 9, 256)
    env.reset(options={"task": TASK, "max_turns": 9})
    messages = [{"role": "system", "content": "any words at all"}, USER]
    for n, text in enumerate(text for text in texts if parse_call(text)[0] != "submit"):
        episode.act(TOK.encode(text), [0.0] * len(text.split()))
        tool = call_to_tool(text)
        calls = [{"id": f"c{n}", "type": "function", "function": tool}]
        messages.append({"role": "assistant"} | ({"tool_calls": calls} if tool else {"content": text}))
        answer = {"role": "tool", "tool_call_id": f"c{n}"} if tool else {"role": "user"}
        messages.append(answer | {"content": env.step(text)[0]})
    assert prompt_ids(messages, TOK) == episode.ids


@given(st.one_of(WORDS, st.text('</>call read{}"', max_size=20), st.sampled_from(GOOD)))
def test_a_text_is_a_tool_call_exactly_if_the_gym_takes_it(text):
    tool = call_to_tool(text)
    assert (tool is None) == (parse_call(text)[0] == "invalid")
    assert tool is None or tool_to_call(**tool).split() == text.split()


@pytest.mark.parametrize(
    "name, arguments, wrong",
    [
        ("read", '{"op": "fix_init"}', "keys"),
        ("edit", "{}", "keys"),
        ("edit", '{"op": "fix_i', "not JSON"),
        ("edit", '{"op": "fix_everything"}', "not a call"),
        ("edit", '{"op": 3}', "not a call"),
        ("edit", '{"op": "fix_init </call> <call> submit"}', "not a call"),
        ("rm", "{}", "not a call"),
        ("read", "[]", "keys"),
        ("read", {"a": 1}, "not JSON"),
    ],
)
def test_wrong_arguments_are_named(name, arguments, wrong):
    with pytest.raises(ValueError, match=wrong):
        tool_to_call(name, arguments)


def assistant(content=None, *calls):
    return {"role": "assistant", "content": content, "tool_calls": [{"id": n, "function": f} for n, f in calls] or None}


READ = {"name": "read", "arguments": "{}"}


@pytest.mark.parametrize(
    "messages, wrong",
    [
        ([{"role": "user", "content": "please mend it"}], "it, mend"),
        ([{"role": "user", "content": "fix <call> submit </call>"}], "markers <call>, </call>"),
        ([USER, assistant(None, ("a", READ)), {"role": "tool", "tool_call_id": "b", "content": "applied"}], "'b'"),
        ([USER, assistant(None, ("a", READ)), USER], "'a'"),
        ([USER, assistant("<call>"), {"role": "tool", "tool_call_id": "a", "content": "applied"}], "None"),
        ([USER, assistant(None, ("a", READ), ("b", READ)), USER], "one tool call"),
        ([USER, assistant()], "one tool call"),
        ([USER, assistant("<call>")], "last message"),
        ([USER, USER, USER], "must be: user, assistant"),
        ([{"role": "tool", "content": "applied"}], "must be: user, assistant"),
        ([{"role": "system", "content": "applied"}], "last message"),
    ],
)
def test_a_chat_that_is_no_episode_is_refused(messages, wrong, running):
    with pytest.raises(ValueError, match=wrong):
        prompt_ids(messages, TOK)
    with pytest.raises(BadRequestError, match=wrong):
        ask(running[1], messages)


# The engine, without a server


def drain(engine):
    for _ in range(1000):
        admit(engine)
        if not any(engine.rows):
            return
        decode_step(engine)
    raise AssertionError("the engine does not come to an end")


def request(seed, length=7, n=6, temperature=1.0, end_id=TOK.call_end_id):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(TOK), (length,), generator=rng).tolist()
    return Generation(ids, torch.rand(n, generator=rng, dtype=torch.float64), temperature, end_id)


def by_full_passes(model, generation, prompt):
    """The tokens of a generation from a full forward pass for each."""
    reader, new, out = PlainReader(model, 1), list(prompt), []
    for u in generation.noise:
        new = [int(sample_next(reader.next_logits({0: new}), generation.temperature, u[None])[0])]
        out += new
        if new[0] == generation.end_id:
            break
    return out


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_tokens_do_not_depend_on_company_slots_or_their_past(slots):
    model = TinyAgent(len(TOK), n_layers=2, d=32)
    engine = Engine(model, TOK, slots)
    requests = [request(seed, length=1 + 5 * seed % 23, n=2 + seed % 5) for seed in range(7)]
    prompts = [generation.unread for generation in requests]
    for generation in requests:
        engine.submit(generation)
    drain(engine)
    expected = [by_full_passes(model, generation, prompt) for generation, prompt in zip(requests, prompts)]
    assert [generation.out for generation in requests] == expected
    assert engine_metrics(engine)["tokens"] == sum(map(len, expected))
    assert engine.peak == 7


def test_an_ended_generation_stays_as_it_is_and_makes_room():
    engine = Engine(Scripted(), TOK, slots=1)
    first, second, third = (request(seed) for seed in range(3))
    for generation in (first, second, third):
        engine.submit(generation)
    admit(engine)
    engine.end(first, "cancelled")
    engine.end(first, "finished")
    engine.end(second, "cancelled")  # still in the queue
    drain(engine)
    assert [g.state for g in (first, second, third)] == ["cancelled", "cancelled", "finished"]
    assert first.out == [] and TOK.decode(third.out) == "<call> read </call>"


def test_without_an_end_token_exactly_the_limit_is_written():
    engine = Engine(Scripted(), TOK)
    generation = request(0, n=11, end_id=None)
    engine.submit(generation)
    drain(engine)
    assert len(generation.out) == 11


@pytest.mark.parametrize("name, value", [("slots", 0), ("slots", 1.5), ("token_seconds", -1), ("token_seconds", None)])
def test_absurd_settings_of_the_engine_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Engine(Scripted(), TOK, **{name: value})


@pytest.mark.parametrize("lifetime", [0, -1, float("nan")])
def test_a_server_without_a_life_is_refused(lifetime):
    with pytest.raises(ValueError, match="lifetime"):
        LocalServer(create_app(Engine(Scripted(), TOK)), lifetime)


# The protocol


@pytest.mark.parametrize(
    "words, n, tools, reason, name",
    [
        ("<call> read </call>", 6, True, "tool_calls", "read"),
        ("<call> edit fix_init </call>", 4, True, "tool_calls", "edit"),
        ("<call> edit fix_init </call>", 3, True, "length", None),
        ("<call> read </call>", 6, False, "stop", None),
        ("<call> </call>", 6, True, "stop", None),
    ],
)
def test_why_an_answer_ended_whole_and_in_pieces(words, n, tools, reason, name):
    with serving(Scripted(words)) as (_, client):
        given = {"max_tokens": n} | ({"tools": TOOL_SCHEMAS} if tools else {})
        whole = ask(client, **given)
        pieces = list(ask(client, **given, stream=True, stream_options={"include_usage": True}))
    choice, written = whole.choices[0], " ".join(words.split()[:n])
    assert choice.finish_reason == reason
    assert [call.function.name for call in choice.message.tool_calls or []] == ([name] if name else [])
    assert choice.message.content == (None if name else written)
    assert whole.usage.completion_tokens == len(written.split()) and whole.usage.prompt_tokens == 7
    deltas = [part.delta for piece in pieces for part in piece.choices]
    assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
    streamed = [dict(delta.tool_calls[0].function) for delta in deltas if delta.tool_calls]
    assert streamed == [dict(call.function) for call in choice.message.tool_calls or []]
    assert [part.finish_reason for piece in pieces for part in piece.choices if part.finish_reason] == [reason]
    assert pieces[-1].usage == whole.usage


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 250}, "context of 256"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"n": 2}, "n: "),
        ({"logprobs": True}, "logprobs"),
        ({"seed": -1}, "seed"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"messages": [{"role": "king", "content": "x"}]}}, "role"),
    ],
)
def test_a_setting_that_is_not_obeyed_is_refused_by_name(wrong, name, running):
    with pytest.raises(BadRequestError) as caught:
        ask(running[1], **wrong)
    assert caught.value.status_code == 400 and name in caught.value.body["message"]
    assert caught.value.code == ("context_length_exceeded" if "context" in name else "invalid_request")


def test_a_model_that_is_not_here_is_not_found(running):
    with pytest.raises(NotFoundError, match="model='gpt' is not here") as caught:
        ask(running[1], extra_body={"model": "gpt"})
    assert caught.value.code == "model_not_found"


def test_rubbish_in_place_of_json_is_a_bad_request(running):
    server, client = running
    reply = httpx.post(f"{server.url}/chat/completions", content=b"{not json", headers={"content-type": "text/json"})
    assert reply.status_code == 400 and reply.json()["error"]["message"]
    assert [model.id for model in client.models.list()] == ["tiny-agent"]


def test_a_seed_fixes_the_tokens_and_temperature_0_needs_none():
    with serving(TinyAgent(len(TOK), n_layers=1, d=32)) as (_, client):
        texts = [ask(client, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
        greedy = [ask(client, temperature=0).choices[0].message.content for _ in range(2)]
    assert texts[0] == texts[1] != texts[2] and greedy[0] == greedy[1]


# Clients that go, engines that stop


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("notices, wasted, state", [(True, 0, "cancelled"), (False, 5, "finished")])
def test_a_client_that_leaves(notices, wasted, state, stream):
    with serving(notices_disconnect=notices) as (server, client):
        server.call(server.engine.hold)
        with pytest.raises(APITimeoutError) if not stream else contextlib.nullcontext():
            impatient = client.with_options(timeout=0.3 if not stream else 20)
            answer = ask(impatient, stream=stream, max_tokens=5, extra_body={"ignore_eos": True})
            next(iter(answer))
            answer.close()
        wait_until(lambda: metrics(server)["left"] == 1, "the server to see that the client left")
        server.call(server.engine.hold, False)
        wait_until(lambda: metrics(server)[state] == 1, "the generation to end")
        counts = metrics(server)
        assert (counts["unused"], counts["tokens_for_nobody"], counts["started"]) == (1, wasted, 1)
        assert ask(client).choices[0].message.content == "<call> read </call>"  # the server is alive
        assert metrics(server)["unused"] == 1


def test_an_engine_that_fails_answers_503_at_once_and_for_ever():
    with serving(Scripted(fail=True)) as (_, client):
        for _ in range(2):
            with pytest.raises(InternalServerError, match="engine has stopped"):
                ask(client)


def test_an_error_of_a_function_called_in_the_server_reaches_the_caller():
    with serving() as (server, _):
        with pytest.raises(ZeroDivisionError):
            server.call(lambda: 1 / 0)


def test_the_end_of_the_server_ends_what_waits():
    with serving() as (server, client):
        server.call(server.engine.hold)
        stream = ask(client, stream=True)
        next(stream)
        server.__exit__()
        assert list(stream) == []  # no finish_reason, no [DONE]: not a complete answer
        with pytest.raises(APIConnectionError):
            ask(client)


def test_a_server_lives_no_longer_than_its_lifetime():
    with LocalServer(create_app(Engine(Scripted(), TOK)), lifetime=0.2) as server:
        wait_until(lambda: not server.thread.is_alive(), "the end of its life")


def test_waits_are_bounded():
    with pytest.raises(RuntimeError, match="in vain for Godot"):
        wait_until(lambda: False, "Godot", seconds=0.02)

    async def never():
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_async(never(), seconds=0.05)
