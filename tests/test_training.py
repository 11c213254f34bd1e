from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.advantages import compute_advantages
from agentrl.aggregation import AGGREGATIONS
from agentrl.environment import EditBudgetEnv, LoggedEnv, log_by_step, make_env
from agentrl.episodes import collate
from agentrl.model import TinyAgent
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, rl_update, train_rl

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


@settings(deadline=None, max_examples=12)
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
    from agentrl.model import sequence_log_probs

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
    with pytest.raises(ValueError, match=f"{field}.*{str(value).lstrip('-')}"):
        RLConfig(**{field: value})


def test_configurations_are_frozen():
    with pytest.raises(FrozenInstanceError):
        RLConfig().lr = 1.0
