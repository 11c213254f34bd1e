"""Training on samples of an older policy: what the loop weighs, with which policy it samples, and what it records."""

import copy

import pytest
import torch

from agentrl import lagged
from agentrl.aggregation import loss_weights
from agentrl.base import DEMONSTRATED, make_rl_base
from agentrl.lagged import (
    LAGGED,
    WEIGHINGS,
    few_tasks,
    gradient_below,
    score_tokens,
    train_lagged,
    weigh_batch,
)
from agentrl.model import sequence_log_probs
from agentrl.ppo import clipped_loss
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, group_batch, rl_update

TOK = build_tokenizer(make_tasks("all"))
TASKS = few_tasks(4)
CFG = RLConfig(prompts_per_step=4, group_size=4, lr=0.4, seed=1)


@pytest.fixture(scope="module")
def base():
    return make_rl_base(TOK)


@pytest.fixture(scope="module")
def stale(base):
    """A batch of the base, its advantages, and a policy some updates further."""
    policy = copy.deepcopy(base)
    opt = torch.optim.SGD(policy.parameters(), lr=0.4)
    for seed in (5, 6, 7):
        batch, advantages = group_batch(
            sample_step(policy, TASKS, TOK, CFG, torch.Generator().manual_seed(seed)), TOK, CFG
        )
        rl_update(policy, opt, batch, advantages, CFG)
    trajs = sample_step(base, TASKS, TOK, CFG, torch.Generator().manual_seed(2))
    return policy, *group_batch(trajs, TOK, CFG)


def test_scores_are_those_of_the_padded_forward_pass(base, stale):
    _, batch, _ = stale
    mask = batch["action_mask"]
    logp, entropy = score_tokens(base, batch, 1.0)
    assert (logp - sequence_log_probs(base, batch["ids"]).where(mask, 0.0)).abs().max() < 1e-12
    p = base(batch["ids"][:, :-1]).softmax(-1)
    assert (entropy - (-(p * p.log()).sum(-1)).where(mask, 0.0)).abs().max() < 1e-10
    assert logp.requires_grad and not entropy.requires_grad


def test_no_lag_means_a_ratio_of_one(base, stale):
    _, batch, advantages = stale
    for weighing in WEIGHINGS:
        tokens, metrics = weigh_batch(base, batch, advantages, weighing, CFG)
        assert (tokens["weight"] - batch["action_mask"].double()).abs().max() < 1e-10
        assert metrics["below"] == 0 and abs(metrics["min_log_ratio"]) < 1e-10 and metrics["kl"] < 1e-18


def test_what_the_tokens_get(stale):
    policy, batch, advantages = stale
    mask = batch["action_mask"]
    tokens, metrics = weigh_batch(policy, batch, advantages, "low 0.5", CFG)
    train = sequence_log_probs(policy, batch["ids"]).detach()
    ratio = (train - batch["logp"]).exp().where(mask, 0.0)
    assert (tokens["ratio"] - ratio).abs().max() < 1e-9
    assert torch.allclose(tokens["weight"], ratio.clamp(0.5, 2.0).where(mask, 0.0))
    assert 0 < metrics["below"] == ((ratio < 0.5) & mask).sum().item() / mask.sum().item()
    assert metrics["min_log_ratio"] == pytest.approx((train - batch["logp"])[mask].min().item())
    assert metrics["entropy"] == pytest.approx(tokens["entropy"].sum().item() / mask.sum().item())
    names = {name: weigh_batch(policy, batch, advantages, name, CFG)[0]["weight"] for name in WEIGHINGS}
    floor = (ratio < 0.5) & mask
    assert torch.equal(names["floor, A < 0"] == 0.5, floor & (advantages < 0) | (ratio == 0.5))
    assert torch.equal(names["floor, A > 0"] == 0.5, floor & (advantages > 0) | (ratio == 0.5))
    assert (names["IcePop"][floor] == 0).all() and torch.equal(names["no weight"], mask.double())
    rows = (train - batch["logp"]).where(mask, 0.0).sum(1)
    assert torch.allclose(names["whole sequence"][mask], rows.exp().clamp(0, 2)[:, None].expand(mask.shape)[mask])
    mean = rows / mask.sum(1)
    assert torch.allclose(names["geometric mean"][mask], mean.exp().clamp(0, 2)[:, None].expand(mask.shape)[mask])


def test_the_gradient_carried_by_small_ratios_is_the_gradient_of_their_loss(stale):
    policy, batch, advantages = stale
    tokens, _ = weigh_batch(policy, batch, advantages, "low 0.5", CFG)
    mask, low = batch["action_mask"], (tokens["ratio"] < 0.5) & batch["action_mask"]

    def norm(kept):
        trial = copy.deepcopy(policy)
        logp = sequence_log_probs(trial, batch["ids"])
        weights = loss_weights(mask, CFG.loss_agg) * kept
        clipped_loss(logp, tokens["train_logp"], advantages * tokens["weight"], weights).backward()
        return torch.cat([p.grad.flatten() for p in trial.parameters()]).norm().item()

    assert low.any()
    found = gradient_below(policy, batch, tokens, CFG)
    assert found == pytest.approx(norm(low) / norm(mask), rel=1e-9)


class Stop(Exception):
    pass


def test_the_sampler_is_the_policy_of_lag_steps_ago(base, monkeypatch):
    seen, policy = [], copy.deepcopy(base)
    real = lagged.sample_step

    def spy(behaviour, *args):
        seen.append(
            ([p.detach().clone() for p in behaviour.parameters()], [p.detach().clone() for p in policy.parameters()])
        )
        return real(behaviour, *args)

    monkeypatch.setattr(lagged, "sample_step", spy)
    versions = []
    train_lagged(policy, TASKS, TOK, CFG, lag=2, steps=4, look=lambda step, version, *_: versions.append(version))
    assert versions == [0, 0, 0, 2]
    for step, (behaviour, _) in enumerate(seen):
        then = seen[max(0, step - 2)][1]
        assert all(torch.equal(a, b) for a, b in zip(behaviour, then))
    assert not torch.equal(seen[3][1][0], seen[2][1][0])


def test_without_lag_or_weight_it_is_the_plain_loop(base):
    policy, plain = copy.deepcopy(base), copy.deepcopy(base)
    history = train_lagged(policy, TASKS, TOK, CFG, "no weight", lag=0, steps=2)
    generator, opt = torch.Generator().manual_seed(CFG.seed), torch.optim.SGD(plain.parameters(), lr=CFG.lr)
    for step in range(2):
        batch, advantages = group_batch(sample_step(plain, TASKS, TOK, CFG, generator), TOK, CFG)
        update = rl_update(plain, opt, batch, advantages, CFG)
        assert history[step]["grad_norm"] == pytest.approx(update["grad_norm"], rel=1e-6)
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(policy.parameters(), plain.parameters()))
    assert ["gradient_below" in row for row in history] == [True, False]
    assert ["own_pass_rate" in row for row in history] == [True, False]


def test_arms_are_equal_until_a_small_ratio_is_trained_on(base):
    def run(weighing):
        return train_lagged(copy.deepcopy(base), TASKS, TOK, CFG, weighing, lag=8, steps=4)

    half, zero = run("low 0.5"), run("low 0")
    first = next((step for step, row in enumerate(half) if row["below"] > 0), len(half))
    assert first >= 1
    for a, b in zip(half[:first], zero[:first]):
        assert a["kl"] == b["kl"] and a["min_log_ratio"] == b["min_log_ratio"] and a["pass_rate"] == b["pass_rate"]
        assert a["grad_norm"] == b["grad_norm"]


def test_the_tasks():
    assert [task.edit for task in few_tasks(4)] == list(DEMONSTRATED) and few_tasks(20) == make_tasks("train")
    with pytest.raises(ValueError, match="n_tasks=7 is not one of 4, 20"):
        few_tasks(7)
    assert LAGGED["weighing"] in WEIGHINGS and LAGGED["optimizer"] in lagged.OPTIMIZERS


def test_a_run_is_made_of_its_settings(monkeypatch):
    called = {}

    def fake(policy, tasks, tok, cfg, **rest):
        called.update(rest, cfg=cfg, tasks=tasks)
        return [{"step": 0}]

    monkeypatch.setattr(lagged, "train_lagged", fake)
    run = lagged.train_weighed.__wrapped__(
        {"weighing": "low 0", "n_tasks": 20, "lr": 0.25, "steps": 3}, 9, 0, {"seed": 1, "samples": 1}
    )
    assert run["history"] == [{"step": 0}] and run["heldout"]["episodes"] == 260
    assert called["cfg"] == RLConfig(prompts_per_step=4, group_size=16, lr=0.25, seed=9)
    assert (called["weighing"], called["steps"], called["lag"], len(called["tasks"])) == ("low 0", 3, LAGGED["lag"], 20)
