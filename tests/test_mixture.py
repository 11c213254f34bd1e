"""Two formats of one task: prompts that match sources, one graded call, the mixture's draws, and shares of the loss."""

import re
from dataclasses import replace

import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.advantages import compute_advantages
from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.base import make_rl_base
from agentrl.environment import STOPS, EditBudgetEnv, make_env, parse_call
from agentrl.episodes import collate
from agentrl.mixture import (
    MIXTURE,
    MixedTurnEnv,
    balanced_batch,
    check_single_share,
    draw_names,
    format_row,
    format_scale,
    is_single,
    make_mixed_env,
    sample_mixture,
    sample_named,
    single_share,
    single_turn,
)
from agentrl.ppo import clipped_loss
from agentrl.rewards import make_reward
from agentrl.sampling import sample_groups, sample_step
from agentrl.tasks import EDIT_OPS, apply_op, compact_source, make_tasks, randomize_names
from agentrl.testing import run_tests
from agentrl.tokenizer import CALL, CALL_END, build_tokenizer
from agentrl.training import RLConfig

TASKS = make_tasks("all")
TOK = build_tokenizer(TASKS)
CFG = RLConfig(group_size=2)
GOOD = ["read", "test", "submit", *(f"edit {op}" for op in EDIT_OPS)]
CALLS = st.sampled_from([f"{CALL} {call} {CALL_END}" for call in GOOD])
WORDS = st.lists(st.sampled_from(TOK.itos), max_size=8).map(" ".join)
ANY = st.one_of(st.text(), WORDS, CALLS)
rng = torch.Generator


# Prompts


def test_the_prompt_carries_the_source_and_the_field_marks_it():
    for task in TASKS:
        one = single_turn(task)
        assert one.single_turn and not task.single_turn
        assert one.issue == f"{task.issue} {compact_source(task.source)}"
        assert single_turn(one) == one
        assert replace(one, issue=task.issue, single_turn=False) == task


@settings(max_examples=60)
@given(st.sampled_from(TASKS), st.lists(st.integers(0, 2**31), min_size=1, max_size=3))
def test_prompt_and_source_match_after_any_number_of_renamings(task, seeds):
    one, plain = single_turn(task), task
    for seed in seeds:
        one, plain = draw_names(one, rng().manual_seed(seed)), draw_names(plain, rng().manual_seed(seed))
        assert plain == randomize_names(plain, rng().manual_seed(seed))  # names do not depend on old names
        assert one == single_turn(plain) and not plain.single_turn
        name = re.match(r"def (\w+)", one.source)[1]
        assert one.issue == f"please fix the function {name} . {compact_source(one.source)}"
        TOK.encode(one.issue)


# The environment


def start(task, **options):
    env = MixedTurnEnv(**options)
    issue, _ = env.reset(options={"task": task})
    assert issue == task.issue
    return env


class SingleTurnOnly(MixedTurnEnv):
    """For the checker, which sets no task."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.task = single_turn(self.task)
        return self.task.issue, dict(self.info)


def test_gymnasium_accepts_both_formats():
    check_env(MixedTurnEnv(max_turns=3), skip_render_check=True)
    check_env(SingleTurnOnly(), skip_render_check=True)


@settings(max_examples=300)
@given(ANY, st.sampled_from(TASKS[:6]), st.integers(1, 3))
def test_any_string_is_one_graded_call(action, task, max_turns):
    env = start(single_turn(task), max_turns=max_turns)
    observation, reward, terminated, truncated, info = env.step(action)
    tool, op = parse_call(action)
    right = tool == "edit" and op == task.edit
    assert (terminated, truncated, info["stop"], info["n_turns"], observation) == (True, False, "graded", 1, "")
    assert info["hidden_pass"] == right and reward == right
    assert info["submitted"] == (tool != "invalid") and info["n_invalid"] == (tool == "invalid")
    assert (info["n_reads"], info["n_tests"], info["n_edits"]) == tuple(tool == t for t in ("read", "test", "edit"))
    with pytest.raises(RuntimeError, match="graded.*reset"):
        env.step(action)


@settings(max_examples=150)
@given(st.lists(ANY, min_size=1, max_size=7))
def test_multi_turn_tasks_see_no_difference(actions):
    mixed, plain = start(TASKS[1], max_turns=5), EditBudgetEnv(max_turns=5)
    plain.reset(options={"task": TASKS[1]})
    for action in actions:
        result = mixed.step(action)
        assert result == plain.step(action) and result[4]["stop"] != "graded"
        if result[4]["stop"]:
            break


def test_one_call_costs_what_one_call_costs():
    reward = make_reward(step_penalty=0.25, invalid_penalty=0.5, wrong_submit=-2.0)
    paid = {
        call: start(single_turn(TASKS[1]), reward=reward).step(f"{CALL} {call} {CALL_END}")[1]
        for call in ("edit fix_boundary", "edit fix_init", "read", "submit", "raed")
    }
    assert paid == {"edit fix_boundary": 0.75, "edit fix_init": -2.25, "read": -2.25, "submit": -2.25, "raed": -0.75}


def test_an_edit_that_is_not_allowed_does_not_pass():
    env = start(single_turn(TASKS[1]), max_edits=0)
    *_, info = env.step(f"{CALL} edit fix_boundary {CALL_END}")
    assert info["submitted"] and not info["hidden_pass"] and info["n_edits"] == 0


def test_before_a_reset_it_says_so():
    with pytest.raises(RuntimeError, match="never reset"):
        MixedTurnEnv().step("")


# Sampling


@pytest.fixture(scope="module")
def base():
    return make_rl_base(TOK)


@pytest.fixture(scope="module")
def mixed(base):
    cfg = replace(CFG, group_size=8)
    return cfg, sample_mixture(base, make_tasks("train"), TOK, cfg, rng().manual_seed(3))


def same(some, others):
    return all(torch.equal(a.ids, b.ids) and a.info == b.info for a, b in zip(some, others, strict=True))


def test_without_single_turn_prompts_it_is_the_default_sampler(base):
    train = make_tasks("train")
    mixture = sample_mixture(base, train, TOK, CFG, rng().manual_seed(1), n_single=0)
    assert same(mixture, sample_step(base, train, TOK, CFG, rng().manual_seed(1)))
    groups = sample_named(base, train[:3], TOK, CFG, rng().manual_seed(2), n=3)
    assert same(groups, sample_groups(base, train[:3], TOK, CFG, rng().manual_seed(2), make_env, n=3))


def test_the_multi_turn_half_has_the_tokens_of_the_default(base, mixed):
    cfg, trajs = mixed
    default = sample_step(base, make_tasks("train"), TOK, cfg, rng().manual_seed(3))
    assert same(trajs[32:], default[32:])


def test_half_of_the_prompts_are_single_turn_and_carry_their_own_source(mixed):
    _, trajs = mixed
    single = is_single(trajs)
    assert single.tolist() == [True] * 32 + [False] * 32
    prompts = [TOK.decode(traj.ids[traj.owner == 1].tolist()) for traj in trajs]
    assert len(set(prompts[:8])) > 1  # names are drawn for each episode
    for prompt, one in zip(prompts, single.tolist()):
        name, view = re.fullmatch(r"please fix the function (\w+) \.(.*)", prompt).groups()
        assert bool(view) == one
        if one:  # the function's name stands in the issue only, its first variable comes back
            words = view.split()
            assert name not in words and words[1] == "=" and words[0] in words[2:]


def test_stops_add_up_to_the_number_of_episodes(mixed):
    _, trajs = mixed
    stops = [traj.info["stop"] for traj in trajs]
    assert sum(stops.count(stop) for stop in STOPS) == len(trajs) == 64
    assert stops.count("graded") == 32 == sum(len(set(traj.turn.tolist())) == 2 for traj in trajs[:32])


def test_the_verdict_is_that_of_the_edited_source(base):
    """Grade each sampled answer again, from its text."""
    task = TASKS[0]
    trajs = sample_named(base, [single_turn(task)], TOK, CFG, rng().manual_seed(0), n=40)
    for traj in trajs:
        tool, op = parse_call(TOK.decode(traj.ids[traj.owner == 2].tolist()))
        source = apply_op(task.source, op) if tool == "edit" else task.source
        assert traj.info["hidden_pass"] == run_tests(source, task.hidden_tests).passed == traj.reward


@pytest.mark.parametrize(
    "n_single, prompts, message",
    [
        (-1, 8, "n_single=-1 must be from 0 to prompts_per_step=8"),
        (9, 8, "n_single=9 must be from 0 to prompts_per_step=8"),
        (4, 21, "prompts_per_step=21 is more than the 20 tasks there are"),
    ],
)
def test_wrong_numbers_of_prompts(base, n_single, prompts, message):
    cfg = replace(CFG, prompts_per_step=prompts)
    with pytest.raises(ValueError, match=message):
        sample_mixture(base, make_tasks("train"), TOK, cfg, rng(), n_single=n_single)


# Shares of the loss


def test_shares_by_hand():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    single = torch.tensor([True, False])
    shares = {mode: single_share(loss_weights(mask, mode), single) for mode in AGGREGATIONS}
    assert shares == pytest.approx({"token_mean": 0.25, "seq_mean_token_mean": 0.5, "seq_mean_token_sum": 0.25})
    assert format_scale(mask, single, "token_mean").tolist() == [2.0, pytest.approx(2 / 3)]
    assert format_scale(mask, single, "seq_mean_token_mean").tolist() == [1.0, 1.0]
    for one in (torch.tensor([True, True]), torch.tensor([False, False])):
        assert format_scale(mask, one, "token_mean").tolist() == [1.0, 1.0]


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=9), st.sampled_from(AGGREGATIONS))
def test_each_format_gets_half_and_the_whole_stays(rows, mode):
    mask = torch.arange(9) < torch.tensor([length for length, _ in rows])[:, None]
    single = torch.tensor([one for _, one in rows])
    weights = loss_weights(mask, mode)
    scaled = weights * format_scale(mask, single, mode)[:, None]
    assert torch.allclose(scaled.sum(), weights.sum())
    if single.any() and not single.all():
        assert single_share(scaled, single) == pytest.approx(0.5)


def test_balanced_in_every_minibatch_and_nothing_else_changes(mixed):
    cfg, trajs = mixed
    batch, advantages = balanced_batch(trajs, TOK, cfg)
    plain = compute_advantages(batch, cfg)
    single = is_single(trajs)
    factor = (advantages / plain)[plain != 0]
    assert torch.equal(advantages == 0, plain == 0) and (factor > 0).all()
    for first in range(cfg.minibatches):
        mask, one = batch["action_mask"][first :: cfg.minibatches], single[first :: cfg.minibatches]
        scale = format_scale(mask, one, cfg.loss_agg)[:, None]
        assert torch.allclose(advantages[first :: cfg.minibatches], plain[first :: cfg.minibatches] * scale)
        assert single_share(loss_weights(mask, cfg.loss_agg) * scale, one) == pytest.approx(0.5)


def test_scaled_advantages_are_scaled_weights(mixed):
    """The clip compares ratios, so a positive factor may stand at the advantage or at the weight."""
    cfg, trajs = mixed
    batch = collate(trajs, TOK.pad_id)
    weights, scale = loss_weights(batch["action_mask"], cfg.loss_agg), torch.rand(len(trajs), 1).double() + 0.5
    advantages = compute_advantages(batch, cfg)
    logp = batch["logp"] + 0.3 * torch.randn(batch["logp"].shape, generator=rng().manual_seed(0)).double()
    one = clipped_loss(logp, batch["logp"], advantages * scale, weights)
    assert torch.allclose(one, clipped_loss(logp, batch["logp"], advantages, weights * scale), atol=1e-12)


def test_a_row_of_the_history(mixed):
    cfg, trajs = mixed
    batch = collate(trajs, TOK.pad_id)
    row = format_row(trajs, batch, compute_advantages(batch, cfg), cfg)
    assert row["single_share_tokens"] == batch["action_mask"][:32].sum() / batch["action_mask"].sum()
    assert row["single_turn_pass_rate"] == sum(traj.info["hidden_pass"] for traj in trajs[:32]) / 32
    assert row["multi_turn_reads"] == sum(traj.info["n_reads"] for traj in trajs[32:]) / 32
    multi = collate(trajs[32:], TOK.pad_id)
    alone = format_row(trajs[32:], multi, compute_advantages(multi, cfg), cfg)
    assert alone["single_turn_pass_rate"] != alone["single_turn_pass_rate"]  # nan
    assert alone["multi_turn_reads"] == row["multi_turn_reads"] and alone["single_share_tokens"] == 0


def test_every_arm_is_a_valid_configuration():
    for settings_ in MIXTURE.arms.values():
        assert 0 <= settings_["n_single"] <= RLConfig().prompts_per_step
        RLConfig(**{name: value for name, value in settings_.items() if name not in ("n_single", "balanced")})
    assert make_mixed_env(RLConfig(max_turns=3, max_edits=2)).max_edits == 2


# The exercise


def test_the_check_of_the_exercise():
    def tokens(lengths, single, mode):
        return sum(n for n, one in zip(lengths, single) if one) / sum(lengths)

    def right(lengths, single, mode):
        return sum(single) / len(single) if mode == "seq_mean_token_mean" else tokens(lengths, single, mode)

    def unwritten(lengths, single, mode):
        raise NotImplementedError

    assert check_single_share(right).startswith("right")
    assert check_single_share(tokens).startswith("seq_mean_token_mean: six episodes of [")
    assert check_single_share(lambda *_: "half").endswith("not 'half'")
    assert check_single_share(unwritten).startswith("not written yet")
