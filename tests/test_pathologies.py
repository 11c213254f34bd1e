from dataclasses import replace
from math import isnan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.advantages import group_advantages
from agentrl.critic import make_critic
from agentrl.environment import STOPS, EditBudgetEnv, make_env
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, collate, make_trajectory
from agentrl.model import TinyAgent
from agentrl.pathologies import (
    CURE_ARMS,
    CURES,
    PATHOLOGIES,
    TRUNCATED,
    Bootstrap,
    CappedObservations,
    FreeCalls,
    TurnsLeft,
    anneal_cost,
    cap_words,
    check_cut_rewards,
    check_turns_left,
    coasting_step,
    compare_kept,
    cost_at,
    cut_values,
    is_truncated,
    mask_truncated,
    price_truncated,
    train_pathology,
    treated,
    window_needed,
    window_rollouts,
    without_nan,
)
from agentrl.sampling import rollout_batch, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.tool_errors import stop_counts
from agentrl.training import RLConfig, group_batch, train_rl

TASKS = make_tasks("train")
TOK = build_tokenizer(make_tasks("all"))
SMALL = RLConfig(prompts_per_step=2, group_size=4, max_turns=3, wrong_submit=-1.0)


def tiny(seed=0):
    return TinyAgent(len(TOK), d=16, n_layers=1, n_heads=2, d_mlp=16, seed=seed)


def chatty(seed=0, likes=("<call>", "read", "test", "submit", "</call>")):
    """An untrained policy that prefers the words of calls, so that some of its calls are well-formed."""
    policy = tiny(seed)
    with torch.no_grad():
        policy.head.weight *= 0.1
        policy.norm.bias += 1.0  # a constant direction, on which the head can put its preferences
        for word in likes:
            policy.head.weight[TOK.stoi[word]] += 0.22
    return policy


def episode(*names):
    """A finished episode of TASKS[1], budget three turns, that makes these calls."""
    row = Episode(make_env(SMALL), TASKS[1], TOK, 3, 256)
    for name in names:
        ids = TOK.encode(f"<call> {name} </call>")
        row.act(ids, [-1.0] * len(ids))
    assert row.done
    return make_trajectory(row)


RIGHT = f"edit {TASKS[1].edit}"


@pytest.fixture(scope="module")
def trajs():
    """Two groups: one of all outcomes, one in which every submission is wrong; four of eight are cut."""
    stalls = [episode("read", "test", RIGHT), episode("read", "read", "read")]
    first = [episode("read", RIGHT, "submit"), episode("submit"), *stalls]
    return [*first, episode("test", "submit"), episode("submit"), *reversed(stalls)]


def calls(env, *names, **options):
    env.reset(options={"task": TASKS[1], **options})
    return [env.step(f"<call> {name} </call>") for name in names]


# Costs


@given(st.integers(2, 60), st.floats(0, 1))
def test_the_cost_rises_in_equal_steps_from_zero_to_its_end(steps, cost):
    costs = [cost_at(step, steps, cost) for step in range(steps)]
    assert costs[0] == 0 and costs[-1] == pytest.approx(cost)
    assert [b - a for a, b in zip(costs, costs[1:], strict=False)] == pytest.approx([cost / (steps - 1)] * (steps - 1))


def test_one_step_costs_nothing():
    assert cost_at(0, 1, 0.3) == 0


def test_the_annealed_sampler_charges_more_each_step_and_changes_nothing_else():
    cfg = replace(SMALL, step_penalty=0.3, wrong_submit=0.0)
    sample = anneal_cost(cfg, 3)["sample"]
    for cost in (0.0, 0.15, 0.3):
        rng, same = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
        charged = sample(chatty(), TASKS, TOK, cfg, rng, make_env)
        free = sample_step(chatty(), TASKS, TOK, replace(cfg, step_penalty=0.0), same)
        for a, b in zip(charged, free, strict=True):
            assert torch.equal(a.ids, b.ids)
            assert a.reward == pytest.approx(b.reward - cost * a.info["n_turns"])


@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_calls_beyond_the_allowance_are_charged(free):
    names = ("read", "test", "nonsense")
    rewards = [result[1] for result in calls(FreeCalls(EditBudgetEnv(), free, 0.3), *names)]
    assert rewards == [0.0] * free + [-0.3] * (3 - free)


def test_the_allowance_is_an_episodes():
    env = FreeCalls(EditBudgetEnv(), 1, 0.3)
    assert [result[1] for result in calls(env, "read", "read")] == [0.0, -0.3]
    assert [result[1] for result in calls(env, "read", "read")] == [0.0, -0.3]


def test_the_arm_with_four_free_calls_charges_no_call_twice():
    cfg = RLConfig(**CURE_ARMS["four calls free"])
    env = CURES["four calls free"](cfg, 40)["env_factory"](cfg)
    rewards = [result[1] for result in calls(env, *["read"] * 6)]
    assert rewards == [0.0] * 4 + [-0.3] * 2


# Truncation


def test_every_stop_is_a_limit_or_an_end():
    assert set(TRUNCATED) < set(STOPS) and "submit" not in TRUNCATED


def test_stop_reasons_add_up_and_agree_with_submissions(trajs):
    counts = stop_counts(trajs)
    assert sum(counts.values()) == len(trajs) and list(counts) == list(STOPS)
    assert counts["submit"] == sum(traj.info["submitted"] for traj in trajs)
    assert is_truncated(trajs).tolist() == [not traj.info["submitted"] for traj in trajs]


def test_masking_drops_the_tokens_of_cut_episodes_and_leaves_the_baseline(trajs):
    batch, advantages = treated(mask_truncated)(trajs, TOK, SMALL)
    plain, cut = collate(trajs, TOK.pad_id), is_truncated(trajs)
    assert not batch["action_mask"][cut].any() and (advantages[cut] == 0).all()
    assert torch.equal(batch["action_mask"][~cut], plain["action_mask"][~cut])
    assert torch.equal(batch["reward"], plain["reward"])


def test_pricing_charges_cut_episodes_alone(trajs):
    batch, advantages = treated(price_truncated)(trajs, TOK, SMALL)
    expected = [traj.reward + (0.0 if traj.info["submitted"] else -1.0) for traj in trajs]
    assert batch["reward"].tolist() == expected
    expected = group_advantages(torch.tensor(expected, dtype=torch.float64), 4)
    assert torch.equal(advantages, expected[:, None] * batch["action_mask"])


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.booleans()), min_size=8, max_size=8))
def test_kept_episodes_are_compared_among_themselves(episodes):
    rewards, kept = (torch.tensor(column) for column in zip(*episodes, strict=True))
    rewards, found = rewards.double(), compare_kept(rewards.double(), kept, SMALL)
    for start in (0, 4):
        rows = [row for row in range(start, start + 4) if kept[row]]
        expected = torch.zeros(len(rows), dtype=torch.float64)
        if len({rewards[row].item() for row in rows}) > 1:
            expected = (rewards[rows] - rewards[rows].mean()) / rewards[rows].std()
        torch.testing.assert_close(found[rows], expected)
    assert not found[~kept].any()


def test_dropped_episodes_have_no_say(trajs):
    """What a cut episode earned may be anything, also in the mean of its group."""
    drop = CURES["truncation dropped"](SMALL, 1)["prepare"]
    batch, advantages = drop(trajs, TOK, SMALL)
    cut = is_truncated(trajs)
    changed = [replace(traj, reward=5.0) if gone else traj for traj, gone in zip(trajs, cut, strict=True)]
    assert torch.equal(drop(changed, TOK, SMALL)[1], advantages)
    assert not batch["action_mask"][cut].any() and not advantages[cut].any() and advantages.any()


def test_a_priced_cut_makes_the_loss_that_of_the_default(trajs):
    """Then every episode earns 1 or -1 where the default pays 1 or 0, and group advantages are the same."""
    plain = [replace(traj, reward=float(traj.info["hidden_pass"])) for traj in trajs]
    priced, default = treated(price_truncated)(trajs, TOK, SMALL)[1], group_batch(plain, TOK, SMALL)[1]
    torch.testing.assert_close(priced, default)


def test_treatments_leave_the_trajectories_alone(trajs):
    before = [(traj.reward, traj.action_mask.clone()) for traj in trajs]
    for treat in (mask_truncated, price_truncated, Bootstrap(make_critic(tiny()))):
        treated(treat)(trajs, TOK, SMALL)
    assert all(
        traj.reward == reward and torch.equal(traj.action_mask, mask)
        for traj, (reward, mask) in zip(trajs, before, strict=True)
    )


def a_critic(seed=1):
    critic = make_critic(tiny())
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(seed))
    return critic


def test_values_at_the_cut_are_those_before_the_last_policy_token(trajs):
    critic = a_critic()
    values = cut_values(critic, collate(trajs, TOK.pad_id))
    for traj, value in zip(trajs, values, strict=True):
        last = int((traj.owner == OWNER["policy"]).nonzero()[-1])
        assert value.item() == pytest.approx(critic(traj.ids[None, :last])[0, -1].item(), abs=1e-10)


def test_bootstrapping_adds_the_value_before_the_step_to_cut_episodes(trajs):
    critic = a_critic()
    batch, cut = collate(trajs, TOK.pad_id), is_truncated(trajs)
    values, before = cut_values(critic, batch), torch.nn.utils.parameters_to_vector(critic.parameters()).detach()
    found = Bootstrap(critic)(batch, cut, SMALL)
    torch.testing.assert_close(found["reward"], batch["reward"] + values.where(cut, 0.0))
    after = torch.nn.utils.parameters_to_vector(critic.parameters()).detach()
    assert not torch.equal(before, after)


def test_the_critic_learns_what_episodes_earn(trajs):
    bootstrap, batch, cut = Bootstrap(make_critic(tiny())), collate(trajs, TOK.pad_id), is_truncated(trajs)
    bootstrap.opt.param_groups[0]["lr"] = 0.02
    for _ in range(60):
        bootstrap(batch, cut, SMALL)
    values = cut_values(bootstrap.critic, batch)
    assert (values[~cut] - batch["reward"][~cut]).abs().max() < 0.2


def test_turns_left_count_down_to_nothing():
    shown = [result[0] for result in calls(TurnsLeft(EditBudgetEnv()), "read", "test", "nonsense", max_turns=12)]
    assert [text.split()[-4:] for text in shown] == [
        ["turns", "left", "1", "1"],
        ["turns", "left", "1", "0"],
        ["call", "turns", "left", "9"],
    ]
    TOK.encode(" ".join(shown))


def test_a_wrapped_environment_can_be_cut():
    for env in (TurnsLeft(EditBudgetEnv()), CappedObservations(EditBudgetEnv(), 8), FreeCalls(EditBudgetEnv(), 1, 1.0)):
        env.reset(options={"task": TASKS[0]})
        assert env.get_wrapper_attr("cut")("context")["stop"] == "context"


# Context


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(3, 12))
def test_a_capped_text_keeps_head_and_tail(words, cap):
    short = cap_words(" ".join(words), cap).split()
    if len(words) <= cap:
        assert short == words
        return
    middle = short.index("...")
    head, tail = short[:middle], short[middle + 1 :]
    assert len(short) == cap and head and tail and 0 <= len(head) - len(tail) <= 1
    assert words[: len(head)] == head and words[len(words) - len(tail) :] == tail


def test_a_cap_without_room_is_refused():
    with pytest.raises(ValueError, match="cap=2"):
        cap_words("a b c d", 2)


def test_the_cap_leaves_issue_reward_and_info_alone():
    capped, plain = CappedObservations(EditBudgetEnv(), 5), EditBudgetEnv()
    assert capped.reset(options={"task": TASKS[1]}) == plain.reset(options={"task": TASKS[1]})
    for call in ("read", "edit fix_boundary", "test", "submit"):
        ours, theirs = capped.step(f"<call> {call} </call>"), plain.step(f"<call> {call} </call>")
        assert ours[1:] == theirs[1:] and ours[0] == cap_words(theirs[0], 5)


def rollouts(window, policy=None, turns=24, seed=0):
    policy, rng = policy or tiny(), torch.Generator().manual_seed(seed)
    tasks = TASKS[:3]
    return window_rollouts(policy, [EditBudgetEnv() for _ in tasks], tasks, TOK, turns, window, rng)


def test_the_whole_window_gives_the_default_sampler():
    policy, tasks = chatty(), TASKS[:3]
    envs = [EditBudgetEnv() for _ in tasks]
    default = rollout_batch(policy, envs, tasks, TOK, 24, 1.0, torch.Generator().manual_seed(0))
    for a, b in zip(rollouts(policy.max_len, policy), default, strict=True):
        assert torch.equal(a.ids, b.ids) and a.info == b.info


@settings(max_examples=10)
@given(st.integers(20, 120), st.integers(0, 5), st.booleans())
def test_an_episode_that_is_cut_by_the_context_is_a_whole_number_of_calls(window, seed, talks):
    """A policy that never ends its calls fills the window in the middle of one: every call is six tokens, or ended."""
    policy = chatty(seed) if talks else chatty(seed, likes=("read", "test"))
    cut, whole = rollouts(window, policy, seed=seed), rollouts(policy.max_len, policy, seed=seed)
    counts = stop_counts(cut)
    assert sum(counts.values()) == len(cut)
    for short, long in zip(cut, whole, strict=True):
        n = len(short.ids)
        assert n <= window and torch.equal(short.ids, long.ids[:n])
        for turn in range(short.info["n_turns"]):
            call = short.ids[(short.turn == turn) & (short.owner == OWNER["policy"])]
            assert len(call) == MAX_CALL_TOKENS or call[-1] == TOK.call_end_id
        if short.info["stop"] == "context":
            after = long.ids[: n + 40]
            assert len(after) > n and not short.info["submitted"]
            room = window - n
            next_observation = long.ids[n:][long.turn[n:] == short.info["n_turns"] - 1]
            assert room < MAX_CALL_TOKENS or len(next_observation) > room
        else:
            assert short.info == long.info


@pytest.mark.parametrize("window", [48, 64, 100])
@pytest.mark.parametrize("seed", range(3))
def test_an_episode_is_lost_under_the_windows_smaller_than_it_needs(window, seed):
    policy = chatty(seed)
    whole, cut = rollouts(policy.max_len, policy, seed=seed), rollouts(window, policy, seed=seed)
    assert [window_needed(traj) > window for traj in whole] == [traj.info["stop"] == "context" for traj in cut]


def needed_call_by_call(traj, keep_obs):
    """The views of 12.4, token by token."""
    longest = 0
    for call in range(traj.info["n_turns"]):
        view = [
            int(token)
            for token, owner, turn in zip(traj.ids, traj.owner.tolist(), traj.turn.tolist(), strict=True)
            if turn < call and not (owner == OWNER["tool"] and turn < call - keep_obs)
        ]
        longest = max(longest, len(view))
    return longest + MAX_CALL_TOKENS


def test_masked_views_need_less(trajs):
    for traj in trajs:
        needs = [window_needed(traj, keep) for keep in (0, 1, 2, None)]
        assert needs == sorted(needs) and needs[:3] == [needed_call_by_call(traj, keep) for keep in (0, 1, 2)]
        assert window_needed(traj, traj.info["n_turns"]) == needs[3]


def test_a_window_beyond_the_policys_is_refused():
    with pytest.raises(ValueError, match="window=300.*256"):
        rollouts(300)


# Arms


def test_every_arm_has_parts_that_the_loop_takes():
    assert PATHOLOGIES.arms is CURE_ARMS and CURE_ARMS.keys() == CURES.keys()
    with pytest.raises(ValueError, match="truncation masked"):
        train_pathology("truncation maskd")


@pytest.mark.parametrize("arm", [arm for arm in CURES if arm != "truncation bootstrapped"])
def test_an_arm_can_be_trained(arm):
    cfg = replace(SMALL, **CURE_ARMS[arm])
    history = train_rl(tiny(), TASKS, TOK, cfg, steps=2, **CURES[arm](cfg, 2))
    assert len(history) == 2 and all(row["episodes"] == 8 for row in history)


def test_a_batch_of_cut_episodes_only_leaves_a_new_policy_alone():
    """Nothing is kept, so nothing may move; the share 0/0 of clipped tokens is stored as 0."""
    policy = chatty(likes=("read", "test"))
    before = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    history = train_rl(policy, TASKS, TOK, SMALL, steps=1, **CURES["truncation masked"](SMALL, 1))
    assert history[0]["submit_rate"] == 0 and isnan(history[0]["clip_fraction"])
    (row,) = without_nan(history)
    assert row == history[0] | {"clip_fraction": 0.0}
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(policy.parameters()).detach())


# Exercises


def unsolved(*_):
    raise NotImplementedError


class OneWord(TurnsLeft):
    def step(self, action):
        observation, *rest = self.env.step(action)
        return f"{observation} turns left {self.env.get_wrapper_attr('budget') - rest[-1]['n_turns']}", *rest


class Generous(TurnsLeft):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 1, *rest


@pytest.mark.parametrize(
    "wrap, says",
    [
        (TurnsLeft, "right"),
        (unsolved, "not written yet"),
        (lambda env: env, "should be"),
        (OneWord, "left 1 1"),
        (Generous, "reward, ends and info"),
    ],
)
def test_the_check_of_turns_left_says_what_is_wrong(wrap, says):
    assert says in check_turns_left(wrap)


@pytest.mark.parametrize(
    "rewards_of, says",
    [
        (lambda r, c, v: r + v.detach().where(c, 0.0), "right"),
        (unsolved, "not written yet"),
        (lambda r, c, v: r + v * c, "detach"),
        (lambda r, c, v: r + v.detach(), "not cut"),
        (lambda r, c, v: v.detach().where(c, r), "count as 0.55 but counts as 0.75"),
        (lambda r, c, v: (r + v.detach() * c).sum(), "shape"),
    ],
)
def test_the_check_of_bootstrapping_says_what_is_wrong(rewards_of, says):
    assert says in check_cut_rewards(rewards_of)


def test_the_arms_that_mask_coast_on_where_nothing_is_kept():
    policy = torch.nn.Linear(2, 1)
    opt = torch.optim.Adam(policy.parameters(), lr=0.1)
    policy(torch.ones(1, 2)).sum().backward()
    opt.step()
    before = policy.weight.detach().clone()
    stats = coasting_step(policy, opt, {"action_mask": torch.zeros(2, 3)}, None, None)
    assert (policy.weight != before).all() and stats["grad_norm"] == 0.0
    assert without_nan([stats])[0]["clip_fraction"] == 0.0
    for arm in ("truncation masked", "truncation dropped"):
        assert CURES[arm](RLConfig(), 1)["update"].keywords == {"step": coasting_step}
