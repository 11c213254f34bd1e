# Made by tools/export.py from notebooks/07_advantages/07_2_critic.py. Do not edit: change it there, then `make export`.
# Body: a5820d7a5643bba5
"""7.2 Train a critic, and ask how much there is to predict."""

import copy

import torch
from torch import nn
from tqdm import tqdm

from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.credit import outcome_rewards, returns_to_go
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import collate, length_buckets, take_rows
from agentrl.gradient import check_kept, keep_only, same_within
from agentrl.sampling import rollout_batch
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import Tokenizer


# 07_advantages/07_2_critic, cell 2
class Critic(nn.Module):
    """A copy of a policy's trunk with a scalar head that starts at zero."""

    def __init__(self, policy):
        super().__init__()
        self.trunk = copy.deepcopy(policy)
        del self.trunk.head  # its words are not needed, and would be parameters without gradient
        self.head = nn.Linear(policy.head.in_features, 1, dtype=policy.head.weight.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids):
        """Values [B, T]: the return expected after each of ids [B, T]."""
        return self.head(self.trunk.hidden(ids))[..., 0]


# 07_advantages/07_2_critic, cell 2
def make_critic(policy):
    """A critic that starts from a copy of the policy's trunk and says 0 everywhere."""
    return Critic(policy)


# 07_advantages/07_2_critic, cell 3
def critic_values(critic, ids):
    """Values before each token is written: ids [B, T] -> [B, T-1], column t for token t+1."""
    return critic(ids[:, :-1])


# 07_advantages/07_2_critic, cell 5
def critic_step(critic, opt, batch, returns, bucket_size=16):
    """One step on the squared error to returns [B, T-1], its mean over action_mask; that mean before it."""
    opt.zero_grad()
    batch, total = batch | {'returns': returns}, 0.0
    n_kept = batch['action_mask'].sum().clamp(min=1)
    for rows in length_buckets(batch['length'], bucket_size):
        piece = take_rows(batch, rows)
        error = critic_values(critic, piece['ids']) - piece['returns']  # [b, t-1]
        loss = (keep_only(error, piece['action_mask']) ** 2).sum() / n_kept
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    opt.step()
    return total


# 07_advantages/07_2_critic, cell 7
def fit_critic(critic, opt, batch, returns, steps, generator, n=64):
    """`steps` of critic_step to returns [B, T-1], each on `n` rows drawn from the batch; the losses."""
    batch, losses = batch | {'returns': returns}, []
    for _ in tqdm(range(steps), desc='critic'):
        rows = torch.randperm(len(returns), generator=generator)[:n]
        piece = take_rows(batch, rows)
        losses.append(critic_step(critic, opt, piece, piece['returns']))
    return losses


# 07_advantages/07_2_critic, cell 8
@torch.no_grad()
def batch_values(critic, batch, bucket_size=32):
    """critic_values of a whole batch, [B, T-1], without gradient and with little padding, which gets 0."""
    values = torch.zeros_like(batch['logp'])
    for rows in length_buckets(batch['length'], bucket_size):
        piece = take_rows(batch, rows)
        values[rows, :piece['ids'].shape[1] - 1] = critic_values(critic, piece['ids'])
    return values


# 07_advantages/07_2_critic, cell 9
def base_episodes(policy, tok, split, n, generator):
    """`n` episodes of a policy for each task of a split, fresh names for each: (trajectories, tasks)."""
    tasks = [randomize_names(task, generator) for task in make_tasks(split) for _ in range(n)]
    envs = [EditBudgetEnv() for _ in tasks]
    return rollout_batch(policy, envs, tasks, tok, 6, 1.0, generator), tasks


# 07_advantages/07_2_critic, cell 9
def verdict_returns(batch):
    """Returns-to-go [B, T-1] of episodes whose only reward is the verdict."""
    return returns_to_go(outcome_rewards(batch['reward'], batch['action_mask']), batch['action_mask'])


# 07_advantages/07_2_critic, cell 10
@cached
def critic_weights(vocabulary, n, steps, seed):
    """Weights of a critic of the RL base, fitted to `n` episodes of each train task (those of `seed`)."""
    tok, rng = Tokenizer(vocabulary), torch.Generator().manual_seed(seed)
    policy = make_rl_base(tok)
    batch = collate(base_episodes(policy, tok, 'train', n, rng)[0], tok.pad_id)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)
    fit_critic(critic, opt, batch, verdict_returns(batch), steps, rng)
    return critic.state_dict()


# 07_advantages/07_2_critic, cell 10
def make_base_critic(tok, n=24, steps=60, seed=0):
    """The RL base's critic, fitted in `steps` steps to `n` episodes of each train task; kept on disk."""
    critic = make_critic(make_rl_base(tok))
    critic.load_state_dict(critic_weights(tok.itos, n, steps, seed))
    return critic


# 07_advantages/07_2_critic, cell 11
def explained_variance(values, returns, mask):
    """1 - Var(returns - values) / Var(returns) over the kept positions (population variances), a float.

    ValueError if the returns there do not vary: then there is nothing to explain. ValueError for other shapes,
    and for kept numbers that are not finite.
    """
    if not values.shape == returns.shape == mask.shape:
        raise ValueError('values, returns, mask: shapes '
                         f'{[list(x.shape) for x in (values, returns, mask)]}; all must be equal')
    check_kept(mask, values=values, returns=returns)
    dtype = returns.dtype
    values, returns = values[mask.bool()].double(), returns[mask.bool()].double()
    if not len(returns) or same_within(returns.amin(), returns.amax(), dtype):
        raise ValueError(f'{len(returns)} kept returns without variance; explained variance needs returns '
                         'that differ: use more episodes')
    return 1 - ((returns - values).var(correction=0) / returns.var(correction=0)).item()
