"""The exhibits: functions that keep a dump consistent, and dumps that leave the healthy one untouched."""

from functools import cache

import pytest
import torch

from agentrl.advantages import group_advantages
from agentrl.base import make_rl_base
from agentrl.diagnosis import CHECKS, diagnose, dump_step
from agentrl.exhibits import all_exhibits, dump_with_critic, with_logp, with_ones, with_rewards
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig


@cache
def dumps(seed=0):
    tok, cfg = build_tokenizer(make_tasks("all")), RLConfig(group_size=8)
    policy, rng = make_rl_base(tok), torch.Generator().manual_seed(seed)
    trajs = sample_groups(policy, make_tasks()[:2], tok, cfg, rng)
    grpo = dump_step(policy, trajs, tok, cfg)
    return grpo, dump_with_critic(grpo, rng)


MASK = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]], dtype=torch.bool)


def test_what_follows_from_rewards():
    reward, group = torch.tensor([1.0, 0, 0, 1]).double(), torch.tensor([0, 0, 1, 1])
    fields = with_rewards(MASK, reward, group)
    assert fields["rewards"].sum(1).tolist() == reward.tolist()
    rows = group_advantages(reward, 2)
    assert torch.equal(fields["advantages"], rows[:, None] * MASK)
    assert fields["returns"][0].tolist() == [1, 0, 1]
    healthy = torch.tensor([True, True, True, False])
    assert with_rewards(MASK, reward, group, healthy)["advantages"][2:].abs().sum() == 0


def test_what_follows_from_log_probabilities():
    logp = -MASK.double()
    fields = with_logp(MASK, logp + 1.0 * MASK, logp)
    assert fields["weights"].max() == 2.0 and torch.allclose(
        fields["sequence_weights"], torch.full((4,), torch.e).double()
    )


def test_the_first_of_each_group_passes():
    grpo, _ = dumps()
    assert with_ones(grpo)["reward"].tolist() == 2 * ([1.0] + 7 * [0.0])


def test_making_exhibits_leaves_the_healthy_dumps_alone():
    grpo, ppo = dumps()
    before = {name: value.clone() for name, value in grpo.items() if torch.is_tensor(value)}
    first, second = all_exhibits(grpo, ppo), all_exhibits(grpo, ppo)
    assert len(first) == 24 and list(first) == list(second)
    assert all(torch.equal(grpo[name], value) for name, value in before.items())
    assert diagnose(grpo).healthy and diagnose(ppo).healthy


@pytest.mark.parametrize("name", list(all_exhibits(*dumps())))
def test_each_exhibit_is_red_on_exactly_its_check(name):
    expected, dump = all_exhibits(*dumps())[name]
    report = diagnose(dump)
    assert report.names("red") == [expected], report
    line = report.table().set_index("check").loc[expected]
    assert line["fault"] and line["evidence"] and line["section"].startswith("14.")


def test_every_check_has_an_exhibit():
    assert {expected for expected, _ in all_exhibits(*dumps()).values()} == {
        check.name for check in CHECKS if check.section != "14.9.0"
    }
