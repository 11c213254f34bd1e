# Made by tools/export.py from notebooks/12_multi_turn/12_8_the_base.py. Do not edit: change it there, then `make export`.
# Body: 219c1576b08193f0
"""12.8 Look at the base over many streams."""

import torch

from agentrl.arms import Study
from agentrl.base import make_rl_base
from agentrl.environment import make_env
from agentrl.episodes import OWNER, collate
from agentrl.gradient import reinforce_loss
from agentrl.model import selected_log_probs
from agentrl.pathologies import CappedObservations, window_needed
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.tool_errors import error_stats, make_early_stop_env
from agentrl.training import RLConfig, behavior_stats


# 12_multi_turn/12_8_the_base, cell 2
def gradient_shares(policy, trajs, tok):
    """Shares of predicted positions with a gradient at their logits (6.1): the policy's, and all others'."""
    batch = collate(trajs, tok.pad_id)
    logits = policy(batch['ids'][:, :-1])                                         # [B, T-1, V]
    logits.retain_grad()
    logp = selected_log_probs(logits, batch['ids'][:, 1:])
    reinforce_loss(logp, batch['reward'] - 0.5, batch['action_mask']).backward()
    policy.zero_grad()
    reached, owner = logits.grad.abs().sum(-1) > 0, batch['owner'][:, 1:]         # [B, T-1]
    own, others = owner == OWNER['policy'], (owner != OWNER['policy']) & (owner >= 0)
    return {'gradient_own': reached[own].double().mean().item(),
            'gradient_others': reached[others].double().mean().item()}


# 12_multi_turn/12_8_the_base, cell 2
def length_stats(trajs):
    """The longest episode, the policy's share, shares of episodes lost to the context or a smaller window."""
    n, predicted = len(trajs), sum(len(traj.ids) - 1 for traj in trajs)
    return {'max_tokens': max(len(traj.ids) for traj in trajs),
            'policy_share': sum(int(traj.action_mask.sum()) for traj in trajs) / predicted,
            'overflow': sum(traj.info['stop'] == 'context' for traj in trajs) / n,
            'lost_64': sum(window_needed(traj) > 64 for traj in trajs) / n,
            'lost_128': sum(window_needed(traj) > 128 for traj in trajs) / n,
            'lost_64_masked': sum(window_needed(traj, 1) > 64 for traj in trajs) / n}


# 12_multi_turn/12_8_the_base, cell 3
BASE_ARMS = {'6 turns': {'max_turns': 6}, '12 turns': {'max_turns': 12}, '24 turns': {'max_turns': 24},
             'early stop': {'max_turns': 6}, 'cap 8': {'max_turns': 24}}
BASE_ENVS = {'early stop': make_early_stop_env, 'cap 8': lambda cfg: CappedObservations(make_env(cfg), 8)}


# 12_multi_turn/12_8_the_base, cell 3
def measure_base(arm, seed=0, base_seed=0):
    """The RL base on the train tasks, eight episodes each, from one stream: its heldout is what it did."""
    tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(**BASE_ARMS[arm])
    policy, rng = make_rl_base(tok, base_seed), torch.Generator().manual_seed(1 + seed)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, rng, BASE_ENVS.get(arm, make_env))
    stats, errors = behavior_stats(trajs), error_stats(trajs)
    value = {'attempt_at_0.3': stats['pass_rate'] - 0.3 * stats['turns'], 'submit_at_0.3': -0.3}
    rates = {name: errors[name] for name in ('episodes_with_error', 'their_pass')}
    return {'history': [], 'heldout': stats | rates | value | length_stats(trajs)
            | gradient_shares(policy, trajs[:16], tok)}


BASE_STREAMS = Study('base_streams', BASE_ARMS, measure_base)
