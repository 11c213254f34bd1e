from types import SimpleNamespace

import pytest
import torch

from agentrl.arms import SEEDS, read_runs
from agentrl.base import make_rl_base
from agentrl.call_credit import (
    CREDIT,
    CREDIT_ARMS,
    ESTIMATES,
    check_call_advantages,
    critic_credit,
    per_call_rewards,
    warm_critic,
)
from agentrl.credit import returns_to_go
from agentrl.critic import batch_values, make_critic
from agentrl.episodes import collate
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

TOK, COST = build_tokenizer(make_tasks("all")), 0.05
CFG = RLConfig(step_penalty=COST, group_size=2)


@pytest.fixture(scope="module")
def trajs():
    return sample_groups(make_rl_base(TOK), make_tasks("train"), TOK, CFG, torch.Generator().manual_seed(0))


def test_each_call_pays_at_its_last_token_and_the_verdict_comes_last(trajs):
    batch = collate(trajs, TOK.pad_id)
    rewards = per_call_rewards(trajs, batch["action_mask"], COST)
    for row, traj in enumerate(trajs):
        owned = batch["action_mask"][row].nonzero()[:, 0].tolist()
        turns = batch["turn"][row, 1:].tolist()
        last = [t for t, after in zip(owned, [*owned[1:], None]) if after is None or turns[after] != turns[t]]
        by_hand = dict.fromkeys(last, -COST)
        by_hand[last[-1]] += float(traj.info["hidden_pass"])
        assert len(last) == traj.info["n_turns"]
        found = {t: r for t, r in enumerate(rewards[row].tolist()) if r}
        assert found == pytest.approx(by_hand)
        assert rewards[row].sum().item() == pytest.approx(traj.reward)


def test_a_price_that_the_environment_did_not_charge_is_refused(trajs):
    mask = collate(trajs, TOK.pad_id)["action_mask"]
    with pytest.raises(ValueError, match="row 0: calls earn .* step_penalty must be that of the environment"):
        per_call_rewards(trajs, mask, 2 * COST)


def test_what_rounding_leaves_is_not_a_price():
    mask = torch.tensor([[0, 1, 1, 0]])
    for given in (0.0, 1e-9):
        failed = SimpleNamespace(info={"hidden_pass": False}, reward=given)
        assert not per_call_rewards([failed], mask, 0.0).any()
    with pytest.raises(ValueError, match="row 0"):
        per_call_rewards([SimpleNamespace(info={"hidden_pass": False}, reward=1.1e-9)], mask, 0.0)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_prepare_whitens_over_the_tokens_and_moves_only_the_critic(trajs, estimate):
    policy = make_rl_base(TOK)
    critic = make_critic(policy)
    before = torch.nn.utils.parameters_to_vector(critic.parameters()).clone()
    kept = torch.nn.utils.parameters_to_vector(policy.parameters()).clone()
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    batch, advantages = critic_credit(critic, opt, ESTIMATES[estimate])(trajs, TOK, CFG)
    inside = advantages[batch["action_mask"]]
    assert abs(inside.mean().item()) < 1e-9 and inside.std(unbiased=False).item() == pytest.approx(1, abs=0.01)
    assert not advantages[~batch["action_mask"]].any() and not advantages.requires_grad
    assert not torch.equal(before, torch.nn.utils.parameters_to_vector(critic.parameters()))
    assert torch.equal(kept, torch.nn.utils.parameters_to_vector(policy.parameters()))


def test_turn_level_credit_is_one_number_a_call(trajs):
    policy = make_rl_base(TOK)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    batch, advantages = critic_credit(critic, opt, ESTIMATES["turn GAE"])(trajs, TOK, CFG)
    mask, turn = batch["action_mask"], batch["turn"][:, 1:]
    for row, traj in enumerate(trajs):
        for k in range(traj.info["n_turns"]):
            assert len(set(advantages[row][mask[row] & (turn[row] == k)].tolist())) == 1


def test_a_warm_critic_fits_better_than_a_cold_one(trajs):
    policy, rng = make_rl_base(TOK), torch.Generator().manual_seed(0)
    batch = collate(trajs, TOK.pad_id)
    mask = batch["action_mask"]
    target = returns_to_go(per_call_rewards(trajs, mask, COST), mask)[mask]
    errors = [
        (batch_values(critic, batch)[mask] - target).square().mean().item()
        for critic in (make_critic(policy), warm_critic(policy, TOK, CFG, rng, sets=1, steps=15)[0])
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("arm", CREDIT_ARMS)
def test_the_stored_runs_are_whole(arm):
    rows = read_runs(CREDIT, "history").query("arm == @arm")
    assert set(rows["seed"]) >= set(SEEDS) and (rows.groupby("seed").size() == 40).all()


def test_the_check_of_the_exercise_says_what_is_wrong():
    def unwritten(rewards, values):
        raise NotImplementedError

    def returns_alone(rewards, values):
        return [sum(rewards[k:]) for k in range(len(rewards))]

    def right(rewards, values):
        return [earned - v for earned, v in zip(returns_alone(rewards, values), values)]

    def rounded(rewards, values):
        return [float(x) for x in right(rewards, values)]

    assert check_call_advantages(right).startswith("right")
    assert check_call_advantages(returns_alone).startswith("not yet, for an episode of 1 calls: rewards [")
    assert check_call_advantages(rounded).startswith("not yet")
    assert check_call_advantages(unwritten).startswith("not written yet")
