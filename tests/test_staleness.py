import asyncio
from dataclasses import replace

import pytest
import torch

from agentrl import staleness
from agentrl.advantages import group_advantages
from agentrl.base import make_rl_base
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode, collate, make_trajectory
from agentrl.model import TinyAgent, sequence_log_probs
from agentrl.quotas import run_virtual
from agentrl.sampling import rollout_batch
from agentrl.staleness import (
    AsyncConfig,
    AsyncGroup,
    AsyncRun,
    LossyEnv,
    ledger_row,
    make_call,
    next_calls,
    note_group,
    play_group,
    run_loop,
    sibling_advantages,
    stale_kl,
    take_groups,
)
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

TOK = build_tokenizer(make_tasks("all"))
TASKS = make_tasks("train")
CFG = RLConfig(group_size=3)
SMALL = AsyncConfig(samplers=3, buffer=2, groups_per_step=2, loss_rate=0.0)


def train(limits, steps=3, cfg=CFG, policy=None):
    return run_virtual(run_loop(policy or make_rl_base(TOK), TASKS, TOK, cfg, limits, steps))


def make_run(limits=SMALL, version=0):
    """An AsyncRun outside of any loop."""
    run = AsyncRun(TinyAgent(len(TOK)), TASKS, TOK, CFG, limits)
    run.version = version
    return run


def test_age_is_that_of_the_oldest_turn():
    assert AsyncGroup(None, versions=[4, 2, 9]).staleness(10) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_staleness": -1},
        {"max_staleness": 1.5},
        {"when_stale": "keep"},
        {"retries": -1},
        {"samplers": 0},
        {"buffer": 0},
        {"groups_per_step": 0},
        {"call_seconds": 0.0},
        {"slow_factor": -2.0},
        {"train_seconds": float("nan")},
        {"loss_rate": 1.01},
        {"patience": 0},
    ],
    ids=str,
)
def test_absurd_settings_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AsyncConfig(**wrong)


def test_calls_one_by_one_are_those_of_the_lockstep_sampler():
    model, tasks = make_rl_base(TOK), TASKS[:5]
    whole = rollout_batch(model, [EditBudgetEnv() for _ in tasks], tasks, TOK, 6, 1.0, torch.Generator().manual_seed(3))
    noise = torch.rand(5, model.max_len, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    episodes, used = [Episode(EditBudgetEnv(), task, TOK, 6, model.max_len) for task in tasks], [0] * 5
    while running := [n for n in range(5) if not episodes[n].done]:
        some, counts = [episodes[n] for n in running], [used[n] for n in running]
        for n, call in zip(running, next_calls(model, some, 1.0, noise[running], counts), strict=True):
            episodes[n].act(*call)
            used[n] += len(call[0])
    for ours, theirs in zip(map(make_trajectory, episodes), whole, strict=True):
        assert torch.equal(ours.ids, theirs.ids) and torch.allclose(ours.logp, theirs.logp, rtol=0, atol=1e-12)


def test_a_lost_episode_is_left_out_and_never_given_a_reward():
    rewards = [1.0, 0.0, 1.0, 1.0]
    advantages = sibling_advantages([float("nan"), *rewards], [False] + [True] * 4)
    assert advantages[0] == 0 and torch.equal(advantages[1:], group_advantages(rewards, 4))
    assert sibling_advantages([0.0, 1.0, 1.0], [False, True, True]).tolist() == [0, 0, 0]
    assert sibling_advantages([0.0, 1.0, 1.0], [False, False, True]).tolist() == [0, 0, 0]
    assert torch.equal(sibling_advantages(rewards, [True] * 4, False), group_advantages(rewards, 4, False))


def test_a_connection_is_lost_as_often_as_asked_and_by_the_generator():
    rng, lost = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        episode = Episode(LossyEnv(EditBudgetEnv(), 0.25, rng), TASKS[0], TOK, 6, 256)
        lost += not make_call(episode, (TOK.encode("<call> submit </call>"), [0.0] * 3))
        assert episode.done or not episode.info["submitted"]
    assert 70 < lost < 130


def test_other_errors_are_not_swallowed():
    class Broken(EditBudgetEnv):
        def step(self, action):
            raise KeyError("a mistake in the program")

    with pytest.raises(KeyError):
        make_call(Episode(Broken(), TASKS[0], TOK, 6, 256), (TOK.encode("<call> read </call>"), [0.0] * 3))


def test_the_versions_of_turns_are_those_of_their_moment():
    async def play():
        run = make_run()
        group, rng = run.next_group()
        job = asyncio.create_task(play_group(run, group, rng))
        for version in range(1, 9):
            await asyncio.sleep(1.0)
            run.version = version
        await job
        return group

    group = run_virtual(play())
    assert group.versions == sorted(group.versions) and group.versions[0] == 0 and group.versions[-1] > 2
    assert (
        len(group.trajs) == 3 and group.lost == 0 and max(t.info["n_turns"] for t in group.trajs) == len(group.versions)
    )


def test_a_limit_keeps_drops_and_tries_again():
    async def take(limits, ages, tries=0):
        run = AsyncRun(None, TASKS, TOK, CFG, replace(limits, buffer=9))
        run.version = 10
        for age in ages:
            group = AsyncGroup(TASKS[age], tries=tries, versions=[10 - age, 10])
            group.trajs = []
            await run.buffer.put(group)
        taken = await take_groups(run)
        return [g.staleness(10) for g in taken], [row["fate"] for row in run.ledger], list(run.again)

    drop = AsyncConfig(max_staleness=2, groups_per_step=2)
    retry = replace(drop, when_stale="retry", retries=1)
    ages = [3, 2, 9, 0]
    assert run_virtual(take(drop, ages)) == ([2, 0], ["dropped", "kept", "dropped", "kept"], [])
    again = [(TASKS[3], 1), (TASKS[9], 1)]
    assert run_virtual(take(retry, ages)) == ([2, 0], ["retried", "kept", "retried", "kept"], again)
    assert run_virtual(take(retry, ages, tries=1))[1:] == (["dropped", "kept", "dropped", "kept"], [])
    assert run_virtual(take(replace(drop, max_staleness=None), [9, 3])) == ([9, 3], ["kept", "kept"], [])


def test_a_task_to_be_tried_again_comes_first_and_all_tasks_come():
    run = make_run()
    first = {run.next_group()[0].task.name for _ in TASKS}
    assert len(first) == len(TASKS)
    run.again.append((TASKS[7], 2))
    group, _ = run.next_group()
    assert (group.task, group.tries) == (TASKS[7], 2)


def test_the_ledger_adds_up():
    run = make_run(version=5)
    for slow, fate, oldest in ((True, "kept", 1), (False, "kept", 4), (False, "dropped", 0), (True, "retried", 2)):
        note_group(run, AsyncGroup(None, slow, versions=[oldest, 5]), fate)
    row = ledger_row(run.ledger)
    assert row["staleness"] == 4 and row["by_last_turn"] == 0
    assert [row[key] for key in ("slow_kept", "fast_kept", "fast_dropped", "slow_retried", "slow_dropped")] == [
        1,
        1,
        1,
        1,
        0,
    ]


def test_kl_is_that_of_the_formula():
    model = TinyAgent(len(TOK))
    trajs = rollout_batch(
        model, [EditBudgetEnv() for _ in range(3)], TASKS[:3], TOK, 2, 1.0, torch.Generator().manual_seed(0)
    )
    batch = collate(trajs, TOK.pad_id)
    assert abs(stale_kl(model, batch, 1.0)) < 1e-20
    other = TinyAgent(len(TOK), seed=1)
    total, n = 0.0, 0
    for traj in trajs:
        logp = sequence_log_probs(other, traj.ids[None])[0].detach()
        for t in traj.action_mask.nonzero()[:, 0]:
            x = max(-20.0, min(20.0, (logp[t] - traj.logp[t]).item()))
            total, n = total + torch.tensor(x).double().exp().item() - 1 - x, n + 1
    assert stale_kl(other, batch, 1.0) == pytest.approx(total / n, rel=1e-6)


def test_a_limit_holds_and_zero_is_on_policy():
    strict = train(replace(SMALL, max_staleness=0))
    assert [row["staleness"] for row in strict] == [0, 0, 0] and all(abs(row["kl"]) < 1e-12 for row in strict)
    free = train(SMALL, steps=5)
    assert max(row["staleness"] for row in free) > 1 and max(row["kl"] for row in free) > 1e-8
    assert all(row["tokens_made"] == row["tokens_kept"] for row in free)
    limited = train(replace(SMALL, max_staleness=1), steps=5)
    assert max(row["staleness"] for row in limited) == 1


def test_the_same_run_twice_gives_the_same_history():
    limits = replace(SMALL, loss_rate=0.05, max_staleness=1, when_stale="retry")
    assert train(limits, steps=2) == train(limits, steps=2)


def test_lost_connections_do_not_end_a_run_but_a_dead_service_does():
    history = train(replace(SMALL, loss_rate=0.2), steps=2)
    assert len(history) == 2 and sum(row["episodes_lost"] for row in history) > 0
    with pytest.raises(RuntimeError, match="4 groups in a row"):
        train(replace(SMALL, loss_rate=1.0, patience=4))


def test_a_mistake_in_a_sampler_ends_the_run_and_does_not_hang(monkeypatch):
    async def broken(run, group, rng):
        await asyncio.sleep(3)
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(staleness, "play_group", broken)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        train(SMALL)


def test_a_mistake_in_the_trainer_ends_the_run(monkeypatch):
    monkeypatch.setattr(staleness, "stale_kl", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(SMALL)
