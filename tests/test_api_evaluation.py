"""Any model in the gym: failed is not errored, nothing waits for ever, an episode counts once."""

import asyncio
import itertools
import json

import pytest
import typer
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from openai import AuthenticationError, NotFoundError
from typer.testing import CliRunner

from agentrl.api_evaluation import Record, evaluate_api, score_records, score_text
from agentrl.model import TinyAgent
from agentrl.serving import TOOL_SCHEMAS, LocalServer, run_async, serve_agent
from agentrl.tasks import infer_op, make_tasks
from agentrl.tokenizer import build_tokenizer
from tools.evaluate_api import main

pytestmark = pytest.mark.timeout(60)
TOK = build_tokenizer(make_tasks("all"))


def app_of(answer):
    """A server whose answer to the n-th chat request is `answer(n, body)`."""
    app, numbers = FastAPI(), itertools.count()

    @app.post("/v1/chat/completions")
    async def chat(http: Request):
        result = answer(next(numbers), await http.json())
        return await result if asyncio.iscoroutine(result) else result

    return app


def tool_answer(name, arguments="{}", reason="tool_calls"):
    function = {"name": name, "arguments": arguments}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
    }


def perfect_reader(_, body):
    """A model that reads the prompt's tools, reads the source, makes the edit that repairs it, submits."""
    assert body["tools"] == TOOL_SCHEMAS and body["messages"][0]["role"] == "system"
    turns = (len(body["messages"]) - 2) // 2
    if turns == 1:
        source = body["messages"][-1]["content"]
        edits = {" <= ": "comparison", " >= ": "comparison", "- 1 :": "boundary", "-=": "operator"}
        op = next((op for sign, op in edits.items() if sign in source), "init" if " = 1" in source else "return")
        return tool_answer("edit", json.dumps({"op": f"fix_{op}"}))
    return tool_answer("read" if turns == 0 else "submit")


def evaluate(answer, seconds=30.0, **settings):
    with LocalServer(app_of(answer)) as server:
        return run_async(evaluate_api(server.url, "m", "none", **settings), seconds)


def test_a_model_that_can_do_it_passes_all_tasks():
    assert all(infer_op(task.source) == task.edit for task in make_tasks("heldout"))
    records = evaluate(perfect_reader, samples=2)
    score = score_records(records)
    assert (score["passed"], score["scored"], score["errored"], score["duplicates"]) == (20, 20, {}, 0)
    assert {(record.turns, record.tokens, record.stop) for record in records} == {(3, 12, "submit")}
    assert {(record.task, record.sample) for record in records} == {
        (task.name, sample) for task in make_tasks("heldout") for sample in (0, 1)
    }


def test_limits_of_the_task_are_failures():
    score = score_records(evaluate(lambda *_: tool_answer("test")))
    assert (score["passed"], score["scored"]) == (0, 10)
    records = evaluate(lambda *_: tool_answer("edit", '{"op": "fi', reason="length"))
    assert {(record.passed, record.stop, record.turns) for record in records} == {(False, "length", 1)}


def test_a_full_context_is_a_failure_and_another_refusal_an_error():
    def refuse(code):
        return lambda *_: JSONResponse({"error": {"message": "no", "code": code}}, status_code=400)

    assert {r.stop for r in evaluate(refuse("context_length_exceeded"))} == {"context"}
    assert score_records(evaluate(refuse("bad_tools")))["errored"] == {"refused: Error code: 400 - no": 10}


async def never(*_):
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    "answer, why",
    [
        (never, "timeout"),
        (lambda *_: Response("{", headers={"content-length": "99"}), "APIConnectionError"),
        (lambda *_: HTMLResponse("<html>wait</html>"), "ValueError: the server sent no whole"),
        (lambda *_: Response("{", media_type="application/json"), "JSONDecodeError"),
        (lambda *_: {"choices": "rubbish"}, "ValueError: the server sent no whole"),
        (lambda *_: tool_answer("read", reason=None), "ValueError: finish_reason=None"),
        (lambda *_: JSONResponse({"error": "busy"}, status_code=500), "InternalServerError"),
        (lambda *_: JSONResponse({"error": "slow down"}, status_code=429), "RateLimitError"),
    ],
)
def test_what_is_lost_on_the_line_is_errored_and_not_failed(answer, why):
    score = score_records(evaluate(answer, episode_seconds=0.4 if answer is never else 20.0, concurrency=10))
    assert score["scored"] == 0 and sum(score["errored"].values()) == 10
    assert all(reason.startswith(why) for reason in score["errored"])


def test_the_limit_is_on_the_episode_and_not_on_the_request():
    async def slowly(*_):
        await asyncio.sleep(0.2)  # six turns of it take longer than the episode may
        return tool_answer("test")

    assert score_records(evaluate(slowly, episode_seconds=0.7, concurrency=10))["errored"] == {"timeout": 10}


def test_a_server_that_does_not_exist_errors():
    records = run_async(evaluate_api("http://127.0.0.1:9/v1", "m", "none", episode_seconds=20.0), 30)
    assert {record.passed for record in records} == {None}


def test_a_lost_connection_costs_one_episode_and_not_the_run():
    def flaky(n, body):
        first = len(body["messages"]) == 2
        return Response("{", headers={"content-length": "99"}) if first and n % 4 == 0 else perfect_reader(n, body)

    score = score_records(evaluate(flaky, concurrency=1))
    assert score["scored"] + score["errored"]["APIConnectionError: Connection error."] == 10
    assert 0 < score["passed"] == score["scored"] < 10


def test_no_more_episodes_at_a_time_than_allowed():
    running, most = 0, 0

    async def count(*_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return tool_answer("submit")

    assert len(evaluate(count, concurrency=3)) == 10 and most == 3


@pytest.mark.parametrize("status, error", [(401, AuthenticationError), (404, NotFoundError)])
def test_what_every_episode_would_meet_ends_the_run(status, error):
    with pytest.raises(error, match="no way"):
        evaluate(lambda *_: JSONResponse({"error": {"message": "no way"}}, status_code=status))


@pytest.mark.parametrize(
    "name, value",
    [
        ("samples", 0),
        ("concurrency", -1),
        ("episode_seconds", 0),
        ("episode_seconds", float("nan")),
        ("episode_seconds", float("inf")),
        ("model", ""),
    ],
)
def test_absurd_settings_are_named_before_anything_is_sent(name, value):
    with pytest.raises(ValueError, match=name):
        run_async(evaluate_api("http://127.0.0.1:9/v1", **{"model": "m", "key": "none"} | {name: value}), 20)


# The score


def test_a_record_that_comes_twice_counts_once():
    once = [Record("a", 0, True, "submit"), Record("a", 1, False, "submit"), Record("b", 0, None, "timeout")]
    score = score_records(once + once[:1] + once[2:])
    assert score == score_records(once) | {"duplicates": 2}
    assert (score["passed"], score["scored"], score["errored"]) == (1, 2, {"timeout": 1})
    with pytest.raises(ValueError, match="two different records of task 'a', sample 0"):
        score_records([once[0], Record("a", 0, False, "submit")])


def test_the_interval_is_wilsons():
    records = [Record("a", n, n < 3, "submit") for n in range(20)]
    score, z, p, n = score_records(records), 1.959964, 3 / 20, 20
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    assert score["low"] == pytest.approx((middle - half) / (1 + z * z / n), abs=1e-5)
    assert score["high"] == pytest.approx((middle + half) / (1 + z * z / n), abs=1e-5)
    assert score_text(score).startswith("3 of 20 scored episodes passed: 0.150 (0.052 to 0.360); 0 errored")


def test_nothing_scored_is_no_score():
    assert "no score; 1 errored\n  1 errored: timeout" in score_text(score_records([Record("a", 0, None, "timeout")]))


# The command


def command(*arguments, env=None):
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments, env=env, terminal_width=200)


def test_the_command_plays_against_the_books_server():
    with serve_agent(TinyAgent(len(TOK), n_layers=1, d=32), TOK) as server:
        model = ("--base-url", server.url, "--model", "tiny-agent")
        result = command(*model, "--key-env", "A_KEY", "--samples", "2", env={"A_KEY": "x"})
    assert result.exit_code == 0, result.output
    assert "tiny-agent, heldout tasks, 2 a task: 0 of 20 scored episodes passed: 0.000 (0.000 to" in result.output


def test_the_command_says_what_the_server_said():
    with serve_agent(TinyAgent(len(TOK), n_layers=1, d=32), TOK) as server:
        result = command("--base-url", server.url, "--model", "gpt", "--key-env", "")
    assert result.exit_code == 1 and "model='gpt' is not here" in result.output


@pytest.mark.parametrize(
    "wrong, name",
    [
        (["--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--base-url", "localhost:80"], "base_url"),
        (["--samples", "-1"], "samples"),
        (["--episode-seconds", "0"], "episode_seconds"),
        (["--concurrency", "0"], "concurrency"),
        (["--tasks", "some"], "some"),
    ],
)
def test_the_command_names_what_is_wrong(wrong, name):
    result = command("--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--key-env", "", *wrong)
    assert result.exit_code == 2 and name in result.output
