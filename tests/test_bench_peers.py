"""The benchmark against TRL, as far as it goes without TRL."""

import inspect
import re
import tomllib

import jinja2
import pandas as pd
import pytest
import torch
import typer

from agentrl.environment import BugFixEnv
from agentrl.episodes import Episode
from agentrl.model import TinyAgent
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig
from tools import bench_peers
from tools.bench_peers import CHAT_TEMPLATE, OURS, RESPONSE_TEMPLATE, CallEnv, gpt2_shape, gpt2_weights, summary
from tools.notebooks import ROOT

TASKS = make_tasks("train")
TOK = build_tokenizer(make_tasks("all"))


def random_policy():
    """A small policy whose biases and norms are random too."""
    rng = torch.Generator().manual_seed(0)
    policy = TinyAgent(11, d=8, n_layers=2, n_heads=4, d_mlp=12, max_len=32)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(generator=rng)
    return policy


def shown(task):
    """What `read` shows of a task."""
    env = BugFixEnv()
    env.reset(options={"task": task})
    return env.step("<call> read </call>")[0]


def call_env(n=0):
    """CallEnv at the start of a task, and the task under its fresh names."""
    env = CallEnv(RLConfig(), torch.Generator().manual_seed(0))
    issue = env.reset(task=n, prompt=[])
    assert issue == env._env.task.issue
    return env, env._env.task


def test_says_what_to_do_without_trl(monkeypatch, capsys):
    monkeypatch.setattr(bench_peers, "PEERS", ("torch", "no_such_peer"))
    monkeypatch.setattr(bench_peers, "measure", lambda *_: pytest.fail("measured without its peer"))
    with pytest.raises(typer.Exit) as stopped:
        bench_peers.main(rounds=1, steps=1)
    said = capsys.readouterr().err
    assert stopped.value.exit_code == 1
    assert "not installed here: no_such_peer." in said and "make bench-peers" in said


def test_peers_are_pinned_and_no_dependency_of_the_book():
    lines = (ROOT / "tools" / "peers-requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(pins) == set(bench_peers.PEERS)
    assert all(re.fullmatch(r"[\d.]+", pin) for pin in pins.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert not set(pins) & {pin.split("==")[0] for pin in ours}


def test_gpt2_has_the_shape_of_the_policy():
    shape = gpt2_shape(random_policy())
    sizes = {"vocab_size": 11, "n_positions": 32, "n_embd": 8, "n_layer": 2, "n_head": 4, "n_inner": 12}
    assert {name: shape[name] for name in sizes} == sizes


def test_gpt2_weights_compute_the_same_layers():
    policy, x = random_policy(), torch.randn(5, 8, dtype=torch.float64)
    weights = gpt2_weights(policy)

    def layer(n, name, x):
        return x @ weights[f"transformer.h.{n}.{name}.weight"] + weights[f"transformer.h.{n}.{name}.bias"]

    for n, block in enumerate(policy.blocks):
        wanted = torch.cat([block.query(x), block.key(x), block.value(x)], -1)
        torch.testing.assert_close(layer(n, "attn.c_attn", x), wanted)
        torch.testing.assert_close(layer(n, "attn.c_proj", x), block.out(x))
        torch.testing.assert_close(layer(n, "mlp.c_proj", layer(n, "mlp.c_fc", x).relu()), block.mlp(x))


def test_gpt2_gets_every_weight_once():
    policy = random_policy()
    zeros = len(policy.blocks) * 8  # the biases of keys
    n_weights = sum(weight.numel() for weight in gpt2_weights(policy).values())
    assert n_weights == sum(parameter.numel() for parameter in policy.parameters()) + zeros


def test_chat_template_gives_the_tokens_of_an_episode():
    episode = Episode(BugFixEnv(), TASKS[0], TOK, 6, 256)
    call = "<call> read </call>"
    user, template = {"role": "user", "content": TASKS[0].issue}, jinja2.Template(CHAT_TEMPLATE)
    assert TOK.encode(template.render(messages=[user])) == episode.ids
    n_before = len(episode.ids)
    episode.act(TOK.encode(call), [0.0] * 3)
    tool = {"role": "tool", "content": shown(TASKS[0])}
    asked = {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": {}}}]}
    assert TOK.encode(template.render(messages=[user, asked, tool])) == episode.ids
    assert TOK.encode(template.render(messages=[user, asked])) == episode.ids[:n_before] + TOK.encode(call)


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ("<call> read </call>", True),
        ("<call> edit fix_init </call>", True),
        ("<call> submit submit </call>", True),
        ("<call> submit </call>", False),
        ("read </call>", False),
    ],
)
def test_every_call_but_submit_goes_to_the_tool(text, is_call):
    assert bool(re.match(RESPONSE_TEMPLATE["fields"]["tool_calls"]["open_pattern"], text)) == is_call


@pytest.mark.parametrize("context", [TASKS[0].issue, f"{TASKS[0].issue} <call> read </call> <obs> a = 0 </obs>"])
def test_a_message_starts_after_the_issue_or_an_observation(context):
    ends = [match.end() for match in re.finditer(RESPONSE_TEMPLATE["start_anchor_pattern"], f"<bos> {context}")]
    assert ends and ends[-1] == len(f"<bos> {context}")


def test_trl_sees_one_tool():
    public = {name for name, _ in inspect.getmembers(CallEnv, inspect.isfunction) if not name.startswith("_")}
    assert public == {"reset", "call"}


def test_calls_and_rewards_are_those_of_the_environment():
    env, task = call_env()
    assert env.call("read") == shown(task)
    assert env.call("read read") == "error malformed call"
    assert env.call(f"edit {task.edit}") == "applied"
    assert env._end({"content": "<call> submit "}) == 1.0
    env, _ = call_env()
    assert env._end({"content": "<call> submit "}) == 0.0  # nothing was repaired


def test_an_episode_without_submit_has_no_reward():
    for message in ({"content": "", "tool_calls": [{}]}, {"content": "submit "}):
        env, task = call_env()
        env.call(f"edit {task.edit}")
        assert env._end(message) == 0.0


def test_log_counts_all_tokens_of_an_episode():
    env, task = call_env()
    prompts, log = [[{"role": "user", "content": task.issue}]], []
    completions = [[{"role": "assistant"}, {"role": "tool"}, {"role": "assistant", "content": "<call> submit "}]]
    bench_peers.repair_reward(prompts, completions, [list(range(9))], [env], log)
    assert log == [{"tokens": 7 + 9, "calls": 2, "reward": 0.0, "episodes": 1}]


def test_summary_takes_ratios_within_rounds():
    seconds = {OURS: [1.0, 2.0, 10.0], ("TRL", "float32"): [4.0, 3.0, 5.0]}
    same = {"tokens": 300.0, "calls": 6.0, "reward": 1.0, "episodes": 2.0}
    rows = pd.DataFrame(
        {"round": n, "what": what, "dtype": dtype, "seconds": value, "CPU seconds": 1 / value} | same
        for (what, dtype), values in seconds.items()
        for n, value in enumerate(values)
    )
    ours, trl = summary(rows).to_dict("records")
    assert (ours["ratio to ours"], trl["ratio to ours"]) == (1.0, 1.5)  # of 4, 3/2 and 1/2
    assert trl["CPU ratio"] == 0.67  # of 1/4, 2/3 and 2
    assert (trl["seconds a step"], trl["min"], trl["max"]) == (4.0, 3.0, 5.0)
    assert (trl["tokens a second"], trl["calls"], trl["reward"]) == (75, 3.0, 0.5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_our_steps_count_their_episodes_and_leave_the_start_as_it_is(dtype):
    start = TinyAgent(len(TOK), d=16, n_layers=1, n_heads=2, d_mlp=16)
    before = [parameter.clone() for parameter in start.parameters()]
    cfg = RLConfig(prompts_per_step=2, group_size=2, max_turns=2)
    (step,) = bench_peers.our_steps(start, TOK, cfg, 0, dtype, 1)
    assert (step["episodes"], step["calls"]) == (4, 8)
    assert step["tokens"] > 4 * (7 + 2 * 6)
    assert all(torch.equal(old, new) for old, new in zip(before, start.parameters(), strict=True))
