import io
from dataclasses import FrozenInstanceError, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from agentrl import training
from agentrl.advantages import compute_advantages
from agentrl.aggregation import AGGREGATIONS
from agentrl.environment import EditBudgetEnv, LoggedEnv, log_by_step, make_env
from agentrl.episodes import collate
from agentrl.model import TinyAgent, sequence_log_probs
from agentrl.packing import action_log_probs
from agentrl.sampling import sample_groups, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import (
    RLConfig,
    behavior_stats,
    count_by_task,
    evaluate,
    group_batch,
    heldout_stats,
    rl_update,
    train_rl,
    train_steps,
)

TASKS = make_tasks("train")
TOK = build_tokenizer(make_tasks("all"))
SMALL = RLConfig(prompts_per_step=2, group_size=4, max_turns=3)


def tiny():
    return TinyAgent(len(TOK), d=16, n_layers=1, n_heads=2, d_mlp=16)


@pytest.fixture(scope="module")
def batch():
    """Episodes of an untrained policy with made-up rewards, so that every group has a spread."""
    rng = torch.Generator().manual_seed(0)
    batch = collate(sample_step(tiny(), TASKS, TOK, SMALL, rng), TOK.pad_id)
    return batch | {"reward": torch.rand(8, generator=rng, dtype=torch.float64)}


def updated(batch, cfg):
    policy = tiny()
    opt = torch.optim.SGD(policy.parameters(), lr=0.1)
    stats = rl_update(policy, opt, batch, compute_advantages(batch, cfg), cfg)
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach(), stats


@settings(max_examples=12)
@given(st.integers(1, 9), st.sampled_from(AGGREGATIONS))
def test_buckets_change_nothing(batch, size, mode):
    cfg = replace(SMALL, loss_agg=mode)
    whole, _ = updated(batch, replace(cfg, bucket_size=8))
    cut, _ = updated(batch, replace(cfg, bucket_size=size))
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-12)


def test_padding_changes_nothing(batch):
    pad = torch.nn.functional.pad
    wide = {name: pad(value, (0, 5)) if value.dim() == 2 else value for name, value in batch.items()}
    torch.testing.assert_close(updated(wide, SMALL)[0], updated(batch, SMALL)[0], rtol=0, atol=1e-12)


def test_equal_rewards_leave_the_policy_alone(batch):
    still = batch | {"reward": torch.full((8,), 0.3, dtype=torch.float64)}
    before = torch.nn.utils.parameters_to_vector(tiny().parameters()).detach()
    after, stats = updated(still, SMALL)
    assert torch.equal(before, after) and stats["grad_norm"] == 0


def test_an_update_makes_rewarded_episodes_likelier(batch):
    cfg = replace(SMALL, minibatches=1)
    advantages = compute_advantages(batch, cfg)
    policy = tiny()
    rl_update(policy, torch.optim.SGD(policy.parameters(), lr=0.05), batch, advantages, cfg)
    with torch.no_grad():
        gain = (sequence_log_probs(policy, batch["ids"]) - batch["logp"]) * batch["action_mask"]
    assert (gain * advantages).sum() > 0


def test_training_is_a_function_of_the_seed():
    def run(seed):
        policy = tiny()
        history = train_rl(policy, TASKS, TOK, replace(SMALL, seed=seed), steps=2)
        return history, torch.nn.utils.parameters_to_vector(policy.parameters()).detach()

    (first, weights), (second, same), (other, _) = run(0), run(0), run(1)
    assert first == second and torch.equal(weights, same) and first != other


def test_statistics_come_from_info_alone():
    log = []
    cfg = replace(SMALL, group_size=4)
    policy = tiny()
    history = train_rl(policy, TASKS, TOK, cfg, steps=2, env_factory=lambda cfg: LoggedEnv(make_env(cfg), log))
    for row, infos in zip(history, log_by_step(history, log), strict=True):
        assert row["episodes"] == len(infos) == 8
        assert row["turns"] == sum(info["n_turns"] for info in infos) / 8
        assert row["malformed"] == sum(info["n_invalid"] for info in infos) / sum(info["n_turns"] for info in infos)


def test_counts_agree_with_rates():
    stats = evaluate(tiny(), TASKS[:3], TOK, 5, torch.Generator().manual_seed(0), SMALL)
    assert stats["episodes"] == 15
    assert stats["pass_rate"] == stats["passes"] / 15 and stats["turns"] == stats["calls"] / 15


def test_evaluation_plays_the_episodes_of_its_environments_and_lists_them_by_task():
    made = []

    def env_factory(cfg):
        made.append(cfg)
        return make_env(cfg)

    stats = evaluate(tiny(), TASKS[:3], TOK, 5, torch.Generator().manual_seed(0), SMALL, env_factory)
    trajs = sample_groups(tiny(), TASKS[:3], TOK, SMALL, torch.Generator().manual_seed(0), n=5)
    assert made == [SMALL] * 15
    assert stats == behavior_stats(trajs) | {"by_task": count_by_task(TASKS[:3], trajs)}


def told(reward, n_tokens, mask, **info):
    """A trajectory of which only the bookkeeping matters."""
    return SimpleNamespace(reward=reward, ids=torch.zeros(n_tokens), action_mask=torch.tensor(mask), info=info)


COUNTS = ("hidden_pass", "submitted", "n_turns", "n_reads", "n_tests", "n_edits", "n_invalid")
TOLD = [
    told(0.5, 10, [1, 1, 0], **dict(zip(COUNTS, (True, True, 5, 1, 2, 1, 1)))),
    told(1.0, 20, [1, 0, 0], **dict(zip(COUNTS, (True, True, 4, 2, 0, 3, 0)))),
    told(0.0, 30, [0, 0, 0], **dict(zip(COUNTS, (False, True, 3, 0, 7, 1, 0)))),
    told(-0.5, 60, [1, 1, 0], **dict(zip(COUNTS, (False, False, 8, 0, 0, 2, 3)))),
]


def test_behaviour_by_hand():
    assert behavior_stats(TOLD) == {
        "episodes": 4,
        "passes": 2,
        "submits": 3,
        "calls": 20,
        "pass_rate": 0.5,
        "submit_rate": 0.75,
        "reward": 0.25,
        "reads": 0.75,
        "tests": 2.25,
        "edits": 1.75,
        "turns": 5.0,
        "malformed": 0.2,
        "tokens": 30.0,
        "policy_tokens": 1.25,
    }


def test_counts_by_task_by_hand():
    names = ("passes", "submits", "calls", "reads", "tests", "edits", "malformed")
    assert count_by_task(TASKS[:2], TOLD) == [
        {"task": TASKS[0].name, "episodes": 2} | dict(zip(names, (2, 2, 9, 3, 2, 4, 1))),
        {"task": TASKS[1].name, "episodes": 2} | dict(zip(names, (0, 1, 11, 0, 7, 3, 3))),
    ]
    assert heldout_stats(TASKS[:2], TOLD) == behavior_stats(TOLD) | {"by_task": count_by_task(TASKS[:2], TOLD)}


def test_an_update_is_the_plain_loop(batch):
    """Two epochs of three minibatches without buckets: every third row, whole, in order, the norm cut."""
    cfg = replace(SMALL, epochs=2, minibatches=3, bucket_size=2, max_grad_norm=0.05, temperature=0.7, clip=0.1)
    advantages = compute_advantages(batch, cfg)
    after, stats = updated(batch, cfg)
    policy, norms, shares = tiny(), [], []
    for first in (0, 1, 2, 0, 1, 2):
        rows = list(range(first, 8, 3))
        mask, a = batch["action_mask"][rows], advantages[rows]
        logp = sequence_log_probs(policy, batch["ids"][rows], cfg.temperature)
        ratio = (logp - batch["logp"][rows]).exp()
        loss = -torch.minimum(ratio * a, ratio.clamp(0.9, 1.1) * a)[mask].mean()
        grads = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        grads = [g if g is not None else torch.zeros_like(p) for g, p in zip(grads, policy.parameters())]
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
        still = ((a > 0) & (ratio > 1.1)) | ((a < 0) & (ratio < 0.9))
        shares.append(still[mask].double().mean().item())
        with torch.no_grad():
            for p, g in zip(policy.parameters(), grads):
                p -= 0.1 * g * min(1.0, 0.05 / (norms[-1] + 1e-6))
    vector = torch.nn.utils.parameters_to_vector(policy.parameters())
    torch.testing.assert_close(after, vector.detach(), rtol=0, atol=1e-12)
    assert 0 < sum(shares) / 6 == pytest.approx(stats["clip_fraction"])
    assert min(norms) > 0.05 and sum(norms) / 6 == pytest.approx(stats["grad_norm"])
    assert stats.keys() == {"clip_fraction", "grad_norm"}


def test_training_is_adam_on_what_its_hooks_give():
    """Three steps by hand: one generator, an optimiser that remembers, and the hooks in the order of their use."""
    cfg, seen = replace(SMALL, seed=3, lr=0.01), []

    def sample(policy, tasks, tok, given, generator, env_factory):
        seen.append(("sample", tasks, tok, given, env_factory))
        return sample_step(policy, tasks, tok, given, generator, env_factory)

    def prepare(trajs, tok, given):
        seen.append(("prepare", tok, given))
        batch, _ = group_batch(trajs, tok, given)
        return batch, made_up(batch)

    def made_up(batch):
        return torch.linspace(-1, 1, batch["action_mask"].numel(), dtype=torch.float64).view(batch["logp"].shape)

    def factory(cfg):
        return make_env(cfg)

    policy = tiny()
    history = train_rl(policy, TASKS, TOK, cfg, 3, factory, sample=sample, prepare=prepare)
    assert seen == [("sample", TASKS, TOK, cfg, factory), ("prepare", TOK, cfg)] * 3
    plain, rows, generator = tiny(), [], torch.Generator().manual_seed(3)
    opt = torch.optim.Adam(plain.parameters(), lr=0.01, eps=1e-5, fused=True)
    for step in range(3):
        trajs = sample_step(plain, TASKS, TOK, cfg, generator)
        batch = collate(trajs, TOK.pad_id)
        rows.append({"step": step} | behavior_stats(trajs) | rl_update(plain, opt, batch, made_up(batch), cfg))
    assert history == [pytest.approx(row) for row in rows]
    weights, expected = (torch.nn.utils.parameters_to_vector(p.parameters()) for p in (policy, plain))
    assert torch.equal(weights, expected)  # to the last bit, as stored runs are


def test_an_update_computes_a_bucket_at_a_time(batch):
    sizes = []

    def log_probs(policy, ids, *rest):
        sizes.append(len(ids))
        return action_log_probs(policy, ids, *rest)

    policy, cfg = tiny(), replace(SMALL, minibatches=2, bucket_size=3)
    opt = torch.optim.SGD(policy.parameters(), lr=0.1)
    rl_update(policy, opt, batch, compute_advantages(batch, cfg), cfg, log_probs)
    assert sizes == [3, 1, 3, 1]


def test_progress_counts_steps_and_shows_the_pass_rate(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(training, "tqdm", partial(tqdm, disable=False, file=shown))
    history = train_rl(tiny(), TASKS, TOK, SMALL, steps=2)
    last = shown.getvalue().strip().rpartition("\r")[2]
    assert last.startswith("RL: 100%") and "| 2/2 [" in last
    assert last.endswith(f", pass {history[-1]['pass_rate']:.2f}]")


def test_the_loop_makes_forty_steps_unless_said_otherwise():
    trajs = sample_step(tiny(), TASKS, TOK, SMALL, torch.Generator().manual_seed(0))
    rows = train_steps(tiny(), TASKS, TOK, SMALL, sample=lambda *_: trajs, update=lambda *_: {})
    assert [row["step"] for row in rows] == list(range(40))


def test_forty_steps_of_group_advantages_unless_said_otherwise(batch):
    def sample(*_):
        return trajs

    trajs = sample_step(tiny(), TASKS[:1], TOK, replace(SMALL, prompts_per_step=1), torch.Generator().manual_seed(0))
    history = train_rl(tiny(), TASKS, TOK, replace(SMALL, minibatches=1), sample=sample)
    assert [row["step"] for row in history] == list(range(40))
    ours, advantages = group_batch(trajs, TOK, SMALL)
    assert all(torch.equal(value, ours[name]) for name, value in collate(trajs, TOK.pad_id).items())
    assert torch.equal(advantages, compute_advantages(ours, SMALL))


def test_the_edge_of_what_is_allowed():
    RLConfig(prompts_per_step=1, max_turns=1, epochs=1, minibatches=1, bucket_size=1, group_size=2, max_edits=0, seed=0)
    assert RLConfig(temperature=1e-3, clip=1e-3, lr=1e-9, max_grad_norm=1e-3).lr == 1e-9


def test_any_environment_may_be_trained_on():
    class Generous(EditBudgetEnv):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, reward + 1.0, *rest

    rng = torch.Generator().manual_seed(0)
    trajs = sample_step(tiny(), TASKS, TOK, SMALL, rng, lambda cfg: Generous(cfg.max_turns))
    assert behavior_stats(trajs)["reward"] == pytest.approx(behavior_stats(trajs)["turns"])


@pytest.mark.parametrize(
    "field, value",
    [
        ("prompts_per_step", 0),
        ("epochs", 0),
        ("max_grad_norm", 0.0),
        ("lr", float("inf")),
        ("max_turns", 0),
        ("max_turns", 2.0),
        ("max_turns", True),
        ("step_penalty", -0.05),
        ("wrong_submit", 1.0),
        ("invalid_penalty", -1),
        ("reward", "hiden"),
        ("loss_agg", "mean"),
        ("group_size", 1),
        ("temperature", 0.0),
        ("clip", float("nan")),
        ("lr", -1e-3),
        ("bucket_size", 0),
        ("minibatches", 0),
        ("seed", -1),
        ("max_edits", -1),
    ],
)
def test_wrong_configurations_name_field_and_value(field, value):
    with pytest.raises(ValueError, match=rf"\b{field}=.*{str(value).lstrip('-')}"):
        RLConfig(**{field: value})


def test_configurations_are_frozen():
    with pytest.raises(FrozenInstanceError):
        RLConfig().lr = 1.0


def test_a_minibatch_that_keeps_nothing_moves_no_weight_in_spite_of_momentum(batch):
    policy, advantages = tiny(), compute_advantages(batch, SMALL)
    opt = torch.optim.Adam(policy.parameters(), lr=0.01)
    rl_update(policy, opt, batch, advantages, SMALL)
    before = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
    stats = rl_update(policy, opt, batch | {"action_mask": batch["action_mask"] & False}, advantages, SMALL)
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(policy.parameters()))
    assert stats == {"clip_fraction": 0.0, "grad_norm": 0.0}


@pytest.mark.parametrize("name", ["advantages", "logp"])
def test_one_nan_is_named_and_leaves_the_weights(batch, name):
    cfg, policy = replace(SMALL, minibatches=1), tiny()
    arrays = {"advantages": compute_advantages(batch, cfg), "logp": batch["logp"].clone()}
    row, column = batch["action_mask"].nonzero()[3].tolist()
    arrays[name][row, column] = float("nan")
    before = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
    with pytest.raises(ValueError, match=f"{'old_' * (name == 'logp')}{name} is nan at the kept position"):
        rl_update(
            policy, torch.optim.Adam(policy.parameters()), batch | {"logp": arrays["logp"]}, arrays["advantages"], cfg
        )
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(policy.parameters()))


def test_a_weight_that_is_nan_trains_no_further(batch):
    policy = tiny()
    with torch.no_grad():
        policy.head.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="logp is nan at the kept position"):
        rl_update(policy, torch.optim.Adam(policy.parameters()), batch, compute_advantages(batch, SMALL), SMALL)


def test_a_gradient_that_is_not_finite_makes_no_step(batch):
    policy, cfg = tiny(), replace(SMALL, minibatches=1)
    before = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
    with pytest.raises(ValueError, match="gradient of policy has norm (inf|nan); no step"):
        rl_update(policy, torch.optim.Adam(policy.parameters()), batch, compute_advantages(batch, cfg) * 1e307, cfg)
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(policy.parameters()))


def test_more_minibatches_than_episodes_are_refused_before_sampling(batch):
    with pytest.raises(ValueError, match=r"minibatches=4 must be at most prompts_per_step \* group_size = 2"):
        RLConfig(prompts_per_step=1, group_size=2, minibatches=4)
    with pytest.raises(ValueError, match="minibatches=8 must be at most the 2 rows"):
        rows = {name: value[:2] for name, value in batch.items()}
        rl_update(tiny(), None, rows, torch.zeros(rows["logp"].shape), replace(SMALL, minibatches=8))


@pytest.mark.parametrize("name", ["std_normalize", "fresh_names"])
def test_a_switch_is_true_or_false(name):
    for wrong in ("False", 0, None):
        with pytest.raises(ValueError, match=f"{name}={wrong!r} must be True or False"):
            RLConfig(**{name: wrong})


def test_no_episode_is_lost_in_counts_by_task(batch):
    rng = torch.Generator().manual_seed(0)
    trajs = sample_groups(tiny(), TASKS[:2], TOK, SMALL, rng, n=2)
    for tasks, some in ((TASKS[:3], trajs), (TASKS[:1], []), ([], trajs)):
        with pytest.raises(ValueError, match=f"{len(some)} trajs for {len(tasks)} tasks"):
            count_by_task(tasks, some)
    with pytest.raises(ValueError, match="trajs is empty"):
        behavior_stats([])


def test_an_evaluation_of_nothing_is_refused():
    for tasks, n, message in (([], 2, "tasks is empty"), (TASKS[:1], 0, "n_samples=0"), (TASKS, -1, "n_samples=-1")):
        with pytest.raises(ValueError, match=message):
            evaluate(tiny(), tasks, TOK, n, torch.Generator(), SMALL)


@pytest.mark.parametrize("name", ["advantages", "action_mask", "logp"])
def test_an_update_names_the_array_of_another_shape(name):
    arrays = {key: torch.zeros(2, 3) for key in ("advantages", "action_mask", "logp")} | {name: torch.zeros(2, 1)}
    batch = {"ids": torch.zeros(2, 4)} | {key: arrays[key] for key in ("action_mask", "logp")}
    with pytest.raises(ValueError, match=name):
        rl_update(None, None, batch, arrays["advantages"], SMALL)


def test_as_many_minibatches_as_rows_are_allowed():
    batch = {"ids": torch.zeros(2, 4), "action_mask": torch.ones(2, 3), "logp": torch.zeros(2, 3)}
    batch["length"] = torch.full((2,), 4)
    cfg = replace(SMALL, minibatches=2)
    found = rl_update(None, None, batch, torch.zeros(2, 3), cfg, step=lambda *_: {"grad_norm": 1})
    assert found == {"grad_norm": 1.0} and isinstance(found["grad_norm"], float)


def test_an_infinite_gradient_makes_no_step():
    policy, trajs = tiny(), sample_step(tiny(), TASKS, TOK, SMALL, torch.Generator().manual_seed(0))
    batch, advantages = group_batch(trajs, TOK, SMALL)
    advantages = torch.where(batch["action_mask"].bool(), -1.0, 0.0).double()  # no clip holds these back

    def steep(policy, ids, length, mask, temperature):
        total = next(policy.parameters()).sum()
        return (total - total.detach()) * 1e308 * 1e10 * mask  # zeros, with a slope beyond all numbers

    before = [parameter.clone() for parameter in policy.parameters()]
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    with pytest.raises(ValueError, match="gradient of policy has norm inf"):
        rl_update(policy, opt, batch, advantages, SMALL, log_probs=steep)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
