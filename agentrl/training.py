# Made by tools/export.py from notebooks/09_grpo/09_2_training_loop.py. Do not edit: change it there, then `make export`.
# Body: 0930db744026c306
"""9.2 Train: sample groups, compare, update, repeat."""

from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from tqdm import tqdm

from agentrl.advantages import compute_advantages
from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.environment import check_count, make_env
from agentrl.episodes import collate, length_buckets, take_rows
from agentrl.gradient import check_switch
from agentrl.model import check_positive
from agentrl.packing import action_log_probs
from agentrl.ppo import check_shapes, clip_fraction, clipped_loss
from agentrl.rewards import make_reward
from agentrl.sampling import sample_groups, sample_step


# 09_grpo/09_2_training_loop, cell 2
@dataclass(frozen=True)
class RLConfig:
    """A training run's parameters; a value out of range is a ValueError that names field, value and range."""
    prompts_per_step: int = 8
    group_size: int = 8
    max_turns: int = 6
    max_edits: int = 1
    reward: str = 'hidden'
    step_penalty: float = 0.0
    wrong_submit: float = 0.0
    invalid_penalty: float = 0.0
    temperature: float = 1.0
    std_normalize: bool = True
    loss_agg: str = 'token_mean'
    clip: float = 0.2
    epochs: int = 1
    minibatches: int = 2
    bucket_size: int = 32
    lr: float = 7e-4
    max_grad_norm: float = 1.0
    fresh_names: bool = True
    seed: int = 0

    def __post_init__(self):
        for name in ('prompts_per_step', 'max_turns', 'epochs', 'minibatches', 'bucket_size'):
            check_count(name, getattr(self, name))
        check_count('group_size', self.group_size, least=2)
        check_count('max_edits', self.max_edits, least=0)
        check_count('seed', self.seed, least=0)
        for name in ('temperature', 'clip', 'lr', 'max_grad_norm'):
            check_positive(name, getattr(self, name))
        for name in ('std_normalize', 'fresh_names'):
            check_switch(name, getattr(self, name))
        if self.minibatches > (rows := self.prompts_per_step * self.group_size):
            raise ValueError(f'minibatches={self.minibatches} must be at most prompts_per_step * group_size = {rows}, '
                             'the episodes of a step')
        if self.loss_agg not in AGGREGATIONS:
            raise ValueError(f'loss_agg={self.loss_agg!r} is not known; '
                             f'choose one of {", ".join(AGGREGATIONS)}')
        make_reward(self.reward, self.step_penalty, self.wrong_submit, self.invalid_penalty)


# 09_grpo/09_2_training_loop, cell 4
def behavior_stats(trajs):
    """Means over episodes (malformed: over calls) and the counts behind them, from the infos of `trajs`.

    ValueError if there are none.
    """
    if not trajs:
        raise ValueError('trajs is empty; a mean needs one episode or more')

    def total(key):
        return sum(traj.info[key] for traj in trajs)

    n, calls = len(trajs), total('n_turns')
    return {
        'episodes': n, 'passes': total('hidden_pass'), 'submits': total('submitted'), 'calls': calls,
        'pass_rate': total('hidden_pass') / n, 'submit_rate': total('submitted') / n,
        'reward': reduce(add, (traj.reward for traj in trajs), 0.0) / n,
        'reads': total('n_reads') / n, 'tests': total('n_tests') / n, 'edits': total('n_edits') / n,
        'turns': calls / n, 'malformed': total('n_invalid') / calls,
        'tokens': sum(len(traj.ids) for traj in trajs) / n,
        'policy_tokens': sum(int(traj.action_mask.sum()) for traj in trajs) / n,
    }


# 09_grpo/09_2_training_loop, cell 5
def count_by_task(tasks, trajs):
    """A row of counts for each of `tasks`, whose groups of episodes stand end to end and are of one size.

    ValueError if the episodes do not divide into as many groups as there are tasks.
    """
    if not tasks or not trajs or len(trajs) % len(tasks):
        raise ValueError(f'{len(trajs)} trajs for {len(tasks)} tasks; give as many episodes of each task')
    n, rows = len(trajs) // len(tasks), []
    for k, task in enumerate(tasks):
        group = trajs[k * n:(k + 1) * n]
        totals = {name: sum(traj.info[key] for traj in group) for name, key in (
            ('passes', 'hidden_pass'), ('submits', 'submitted'), ('calls', 'n_turns'), ('reads', 'n_reads'),
            ('tests', 'n_tests'), ('edits', 'n_edits'), ('malformed', 'n_invalid'))}
        rows.append({'task': task.name, 'episodes': n} | totals)
    return rows


# 09_grpo/09_2_training_loop, cell 5
def heldout_stats(tasks, trajs):
    """`behavior_stats`, and under 'by_task' the rows of `count_by_task`."""
    return behavior_stats(trajs) | {'by_task': count_by_task(tasks, trajs)}


# 09_grpo/09_2_training_loop, cell 5
def evaluate(policy, tasks, tok, n_samples, generator, cfg, env_factory=make_env):
    """`heldout_stats` over `n_samples` episodes of every task, names drawn for each; ValueError below one."""
    check_count('n_samples', n_samples)
    return heldout_stats(tasks, sample_groups(policy, tasks, tok, cfg, generator, env_factory, n_samples))


# 09_grpo/09_2_training_loop, cell 8
def minibatch_step(policy, opt, minibatch, cfg, log_probs):
    """One optimiser step; the minibatch is computed in buckets of rows of similar length.

    No step, and zeros, if its mask keeps nothing. ValueError if loss or gradient is not finite.
    """
    if not minibatch['action_mask'].any():
        return {'clip_fraction': 0.0, 'grad_norm': 0.0}
    opt.zero_grad()
    minibatch = minibatch | {'weights': loss_weights(minibatch['action_mask'], cfg.loss_agg)}
    clipped = 0.0
    for rows in length_buckets(minibatch['length'], cfg.bucket_size):
        piece = take_rows(minibatch, rows)
        logp = log_probs(policy, piece['ids'], piece['length'], piece['action_mask'], cfg.temperature)
        clipped_loss(logp, piece['logp'], piece['advantages'], piece['weights'], cfg.clip).backward()
        share = clip_fraction(logp, piece['logp'], piece['advantages'], piece['action_mask'], cfg.clip)
        clipped += (share * piece['action_mask'].sum() / minibatch['action_mask'].sum()).item()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm).item()
    if not norm < float('inf'):
        raise ValueError(f'the gradient of policy has norm {norm}; no step was made. Look for weights that are not '
                         'finite, and for log_probs without a finite gradient')
    opt.step()
    return {'clip_fraction': clipped, 'grad_norm': norm}


# 09_grpo/09_2_training_loop, cell 8
def rl_update(policy, opt, batch, advantages, cfg, log_probs=action_log_probs, step=minibatch_step):
    """`epochs` × `minibatches` clipped steps, advantages [B, T-1]; means of clip_fraction and grad_norm."""
    check_shapes(advantages=advantages, action_mask=batch['action_mask'], logp=batch['logp'])
    if cfg.minibatches > len(batch['ids']):
        raise ValueError(f'minibatches={cfg.minibatches} must be at most the {len(batch["ids"])} rows of the batch')
    batch, steps = batch | {'advantages': advantages}, []
    for _ in range(cfg.epochs):
        for first in range(cfg.minibatches):
            rows = torch.arange(len(batch['ids']))[first::cfg.minibatches]
            steps.append(step(policy, opt, take_rows(batch, rows), cfg, log_probs))
    return {name: reduce(add, (made[name] for made in steps), 0.0) / len(steps) for name in steps[0]}


# 09_grpo/09_2_training_loop, cell 10
def group_batch(trajs, tok, cfg):
    """The trajectories as a batch, and their group advantages [B, T-1]."""
    batch = collate(trajs, tok.pad_id)
    return batch, compute_advantages(batch, cfg)


# 09_grpo/09_2_training_loop, cell 10
def train_steps(policy, tasks, tok, cfg, steps=40, env_factory=make_env, sample=sample_step,
                prepare=group_batch, update=rl_update):
    """Train `policy` in place; after each step yield a dict of its behaviour and update statistics."""
    generator = torch.Generator().manual_seed(cfg.seed)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5, fused=True)
    for step in range(steps):
        trajs = sample(policy, tasks, tok, cfg, generator, env_factory)
        updated = update(policy, opt, *prepare(trajs, tok, cfg), cfg)
        yield {'step': step} | behavior_stats(trajs) | updated


# 09_grpo/09_2_training_loop, cell 10
def train_rl(policy, tasks, tok, cfg, steps=40, env_factory=make_env, **parts):
    """`train_steps` to the end, with progress; returns the history, a list of its rows. `parts`: as there."""
    history = []
    with tqdm(train_steps(policy, tasks, tok, cfg, steps, env_factory, **parts), desc='RL', total=steps) as progress:
        for row in progress:
            history.append(row)
            progress.set_postfix_str(f"pass {row['pass_rate']:.2f}")
    return history
