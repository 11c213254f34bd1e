"""A short fixed run does exactly this much work. A slower way to the same numbers shows here, without a clock."""

import torch

from agentrl.model import TinyAgent
from agentrl.packing import padded_log_probs
from agentrl.sampling import PlainReader, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, group_batch, rl_update, train_rl
from agentrl.work import count_work

TOK, TASKS = build_tokenizer(make_tasks("all")), make_tasks("train")
SMALL = RLConfig(prompts_per_step=2, group_size=4)


def small_policy():
    return TinyAgent(len(TOK), d=8, n_heads=2, d_mlp=16, seed=1)


def test_work_of_two_training_steps():
    policy, trajs = small_policy(), []

    def sample(*args):
        trajs.extend(sample_step(*args))
        return trajs[-8:]

    with count_work(policy) as work:
        train_rl(policy, TASKS, TOK, SMALL, steps=2, sample=sample)
    tokens = sum(len(traj.ids) - 1 for traj in trajs)  # the last one is never an input
    actions = sum(int(traj.action_mask.sum()) for traj in trajs)
    assert work == {
        "sampling: calls": 72,  # 36 rounds a step
        "sampling: tokens": tokens,
        "sampling: last block": actions,
        "sampling: head": actions,
        "update: calls": 4,  # two minibatches a step, one bucket each
        "update: tokens": tokens,
        "update: last block": actions,
        "update: head": actions,
    }
    assert (tokens, actions) == (1065, 569)


def test_the_plain_loop_does_more():
    policy, rng = small_policy(), torch.Generator().manual_seed(0)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    with count_work(policy) as work:
        trajs = sample_step(policy, TASKS, TOK, SMALL, rng, reader=PlainReader)
        rl_update(policy, opt, *group_batch(trajs, TOK, SMALL), SMALL, padded_log_probs)
    tokens = sum(len(traj.ids) - 1 for traj in trajs)
    assert work["sampling: tokens"] > 10 * tokens
    assert work["update: tokens"] == work["update: last block"] == work["update: head"] > tokens


def test_nothing_is_counted_afterwards():
    policy = small_policy()
    with count_work(policy) as work:
        pass
    policy(torch.tensor([[1]]))
    assert set(work.values()) == {0}
