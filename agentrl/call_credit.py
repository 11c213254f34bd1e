# Made by tools/export.py from notebooks/12_multi_turn/12_2_credit_across_turns.py. Do not edit: change it there, then `make export`.
# Body: 9bc0841e935159d6
"""12.2 Decide who gets the credit: the episode, the token or the call."""

from fractions import Fraction

import torch
import torch.nn.functional as F

from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.credit import gae_advantages, outcome_rewards, returns_to_go
from agentrl.critic import batch_values, critic_step, fit_critic, make_critic
from agentrl.episodes import collate
from agentrl.exercises import exercise
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, train_rl
from agentrl.turns import turn_advantages
from agentrl.whitening import masked_whiten


# 12_multi_turn/12_2_credit_across_turns, cell 2
def per_call_rewards(trajs, mask, step_penalty):
    """Token rewards [B, T-1]: -step_penalty on the last token of each call, the verdict on the last of all.

    ValueError if they do not add up to the reward that the environment gave.
    """
    keep = mask.bool()
    ends = keep & ~F.pad(keep[:, 1:], (0, 1))                           # an observation follows every call
    verdict = torch.tensor([float(traj.info['hidden_pass']) for traj in trajs], dtype=torch.float64)
    rewards = outcome_rewards(verdict, keep) - step_penalty * ends.to(torch.float64)
    given = torch.tensor([traj.reward for traj in trajs], dtype=torch.float64)
    if (wrong := (rewards.sum(1) - given).abs() > 1e-9).any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f'row {row}: calls earn {rewards[row].sum():.3f}, the environment gave '
                         f'{given[row]:.3f}; step_penalty must be that of the environment, and no other '
                         'price may be set')
    return rewards


# 12_multi_turn/12_2_credit_across_turns, cell 4
ESTIMATES = {
    'token GAE': lambda rewards, values, batch: gae_advantages(
        rewards, values, batch['action_mask'], 1.0, 0.95)[0],
    'turn GAE': lambda rewards, values, batch: turn_advantages(
        rewards, values, batch['action_mask'], batch['turn'][:, 1:], 1.0, 0.95)[0],
}


# 12_multi_turn/12_2_credit_across_turns, cell 4
def critic_credit(critic, opt, estimate):
    """A `prepare` for train_rl: whitened advantages by `estimate`, and one step of the critic."""
    def prepare(trajs, tok, cfg):
        batch = collate(trajs, tok.pad_id)
        mask, rewards = batch['action_mask'], per_call_rewards(trajs, batch['action_mask'], cfg.step_penalty)
        advantages = estimate(rewards, batch_values(critic, batch), batch)        # [B, T-1]
        critic_step(critic, opt, batch, returns_to_go(rewards, mask))
        return batch, masked_whiten(advantages, mask)

    return prepare


# 12_multi_turn/12_2_credit_across_turns, cell 5
def warm_critic(policy, tok, cfg, generator, sets=3, steps=60):
    """A critic of `policy`, fitted to `sets` × 20 tasks × group_size of its episodes, and its optimiser."""
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=cfg.lr, eps=1e-5, fused=True)
    trajs = sample_groups(policy, make_tasks('train') * sets, tok, cfg, generator)
    batch = collate(trajs, tok.pad_id)
    mask = batch['action_mask']
    returns = returns_to_go(per_call_rewards(trajs, mask, cfg.step_penalty), mask)
    fit_critic(critic, opt, batch, returns, steps, generator)
    return critic, opt


# 12_multi_turn/12_2_credit_across_turns, cell 6
@cached
def train_with_critic(estimate, cfg, base_seed=0, steps=STEPS, evaluation=EVALUATION):
    """Train the RL base with one of ESTIMATES: dict of weights, critic, history and heldout."""
    tok, tasks = build_tokenizer(make_tasks('all')), make_tasks('train')
    policy = make_rl_base(tok, base_seed)
    critic, opt = warm_critic(policy, tok, cfg, torch.Generator().manual_seed(10_000 + cfg.seed))
    prepare = critic_credit(critic, opt, ESTIMATES[estimate])
    history = train_rl(policy, tasks, tok, cfg, steps, prepare=prepare)
    rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg)
    return {'weights': policy.state_dict(), 'critic': critic.state_dict(),
            'history': history, 'heldout': heldout}


# 12_multi_turn/12_2_credit_across_turns, cell 6
def train_critic_arm(arm, seed=0, base_seed=0):
    """`train_with_critic` for an arm of CREDIT."""
    return train_with_critic(arm, RLConfig(seed=seed, **CREDIT_ARMS[arm]), base_seed)


CREDIT_ARMS = {'token GAE': {'step_penalty': 0.05}, 'turn GAE': {'step_penalty': 0.05}}
CREDIT = Study('credit', CREDIT_ARMS, train_critic_arm)


# 12_multi_turn/12_2_credit_across_turns, cell 16
@exercise
def check_call_advantages(attempt):
    """Try `attempt(rewards, values)`, lists of K fractions, as A_k at gamma = lambda = 1: what is wrong, in words."""
    rng = torch.Generator().manual_seed(0)
    for n_calls in (1, 2, 3, 6):
        rewards, values = ([Fraction(n, 10) for n in torch.randint(-9, 10, (n_calls,), generator=rng).tolist()]
                           for _ in range(2))
        td = [r + after - v for r, after, v in zip(rewards, [*values[1:], 0], values, strict=True)]
        right = [sum(td[k:]) for k in range(n_calls)]                   # GAE with gamma = lambda = 1
        given = list(attempt(list(rewards), list(values)))
        if given != right:
            shown = ', '.join(f'{name} {[str(x) for x in row]}' for name, row in (
                ('rewards', rewards), ('values', values), ('right', right), ('yours', given)))
            return f'not yet, for an episode of {n_calls} calls: {shown}'
    return 'right, for episodes of 1, 2, 3 and 6 calls'
