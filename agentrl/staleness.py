# Made by tools/export.py from notebooks/13_staying_alive/13_7_staleness.py. Do not edit: change it there, then `make export`.
# Body: fe01517ae23095f2
"""13.7 Limit how old a group may be, and see whom the limit removes."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import gymnasium as gym
import torch

from agentrl.advantages import group_advantages
from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.environment import check_count, make_env
from agentrl.episodes import MAX_CALL_TOKENS, Episode, collate, make_trajectory
from agentrl.gradient import keep_only, masked_mean
from agentrl.packing import action_log_probs
from agentrl.sampling import CachedReader, sample_next
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, rl_update


# 13_staying_alive/13_7_staleness, cell 2
@dataclass
class AsyncGroup:
    """Episodes of one task: the version of each turn so far, finished trajectories, how many were lost."""
    task: object
    slow: bool = False
    tries: int = 0
    versions: list = field(default_factory=list)
    trajs: list = field(default_factory=list)
    lost: int = 0

    def staleness(self, version):
        """Versions between this one and that of the oldest turn."""
        return version - min(self.versions)

    def tokens(self):
        """Tokens that the policy wrote in the episodes that were finished."""
        return sum(int(traj.action_mask.sum()) for traj in self.trajs)


# 13_staying_alive/13_7_staleness, cell 4
@dataclass(frozen=True)
class AsyncConfig:
    """An asynchronous run; a value out of range is a ValueError that names field, value and range."""
    max_staleness: int | None = None
    when_stale: str = 'drop'
    retries: int = 3
    samplers: int = 4
    buffer: int = 2
    groups_per_step: int = 2
    call_seconds: float = 1.0
    slow_edits: tuple = ('fix_operator',)
    slow_factor: float = 4.0
    train_seconds: float = 2.0
    loss_rate: float = 0.005
    patience: int = 50

    def __post_init__(self):
        for name in ('samplers', 'buffer', 'groups_per_step', 'patience'):
            check_count(name, getattr(self, name))
        check_count('retries', self.retries, least=0)
        if self.max_staleness is not None:
            check_count('max_staleness (None is no limit)', self.max_staleness, least=0)
        if self.when_stale not in ('drop', 'retry'):
            raise ValueError(f"when_stale={self.when_stale!r} is not known; choose 'drop' or 'retry'")
        for name in ('call_seconds', 'slow_factor', 'train_seconds'):
            if not 0 < getattr(self, name) < float('inf'):
                raise ValueError(f'{name}={getattr(self, name)!r} must be a finite number > 0')
        if not 0 <= self.loss_rate <= 1:
            raise ValueError(f'loss_rate={self.loss_rate!r} must be a probability, from 0 to 1')


# 13_staying_alive/13_7_staleness, cell 6
def next_calls(policy, episodes, temperature, noise, used):
    """One call (ids, logps) of each episode; noise [B, N] in [0, 1), used: uniforms taken so far, a row."""
    reader, calls = CachedReader(policy, len(episodes)), [([], []) for _ in episodes]
    new_ids = {row: episode.ids for row, episode in enumerate(episodes)}
    while new_ids:
        rows = list(new_ids)
        u = noise[rows, [used[row] + len(calls[row][0]) for row in rows]]
        ids, logps = sample_next(reader.next_logits(new_ids), temperature, u)
        for row, token, logp in zip(rows, ids.tolist(), logps.tolist(), strict=True):
            calls[row][0].append(token)
            calls[row][1].append(logp)
            new_ids[row] = [token]
            if token == episodes[row].tok.call_end_id or len(calls[row][0]) == MAX_CALL_TOKENS:
                del new_ids[row]
    return calls


# 13_staying_alive/13_7_staleness, cell 8
class LossyEnv(gym.Wrapper):
    """Loses the connection with probability `rate` a call, drawn from `generator`: ConnectionError."""

    def __init__(self, env, rate, generator):
        super().__init__(env)
        self.rate, self.generator = rate, generator

    def step(self, action):
        if torch.rand((), generator=self.generator, dtype=torch.float64) < self.rate:
            raise ConnectionError('the sandbox closed the connection')
        return self.env.step(action)


# 13_staying_alive/13_7_staleness, cell 8
def sibling_advantages(rewards, valid, std_normalize=True):
    """Group advantages [B] of one group among its valid members; exactly 0 for the others."""
    valid = torch.as_tensor(valid, dtype=torch.bool)
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    advantages = torch.zeros_like(rewards)
    if valid.sum() > 1:
        advantages[valid] = group_advantages(rewards[valid], int(valid.sum()), std_normalize)
    return advantages


# 13_staying_alive/13_7_staleness, cell 11
class AsyncRun:
    """What samplers and trainer share: policy, version, tasks to come, buffer, a row a group."""

    def __init__(self, policy, tasks, tok, cfg, limits):
        self.policy, self.tasks, self.tok, self.cfg, self.limits = policy, tasks, tok, cfg, limits
        self.version, self.started, self.lost_in_a_row = 0, 0, 0
        self.coming, self.again, self.ledger = deque(), deque(), []
        self.buffer, self.rng = asyncio.Queue(limits.buffer), torch.Generator().manual_seed(cfg.seed)

    def next_group(self):
        """A group to play, of a task to be tried again or the next in random order, and its generator."""
        if not self.again and not self.coming:
            self.coming.extend(torch.randperm(len(self.tasks), generator=self.rng).tolist())
        task, tries = self.again.popleft() if self.again else (self.tasks[self.coming.popleft()], 0)
        self.started += 1
        group = AsyncGroup(task, task.edit in self.limits.slow_edits, tries)
        return group, torch.Generator().manual_seed(self.cfg.seed * 1_000_003 + self.started)


# 13_staying_alive/13_7_staleness, cell 12
async def play_group(run, group, rng):
    """Play the episodes of a group in lockstep turns, each turn with the weights of its moment."""
    cfg, limits = run.cfg, run.limits
    envs = [LossyEnv(make_env(cfg), limits.loss_rate, rng) for _ in range(cfg.group_size)]
    episodes = [Episode(env, randomize_names(group.task, rng), run.tok, cfg.max_turns, run.policy.max_len)
                for env in envs]
    noise = torch.rand(len(episodes), run.policy.max_len, generator=rng, dtype=torch.float64)
    running, used = list(range(len(episodes))), [0] * len(episodes)
    while running:
        group.versions.append(run.version)
        calls = next_calls(run.policy, [episodes[n] for n in running], cfg.temperature, noise[running],
                             [used[n] for n in running])
        seconds = limits.call_seconds * (limits.slow_factor if group.slow else 1.0)
        await asyncio.sleep(seconds * (0.5 + torch.rand((), generator=rng, dtype=torch.float64).item()))
        for n, call in zip(running, calls, strict=True):
            used[n] += len(call[0])
            if not make_call(episodes[n], call):
                group.lost += 1
                used[n] = None                                          # lost: it does not go on
        running = [n for n in running if used[n] is not None and not episodes[n].done]
    group.trajs = [make_trajectory(episode) for episode in episodes if episode.done]


# 13_staying_alive/13_7_staleness, cell 12
def make_call(episode, call):
    """Make a call (ids, logps); False if its connection was lost."""
    try:
        episode.act(*call)
    except ConnectionError:
        return False
    return True


# 13_staying_alive/13_7_staleness, cell 13
async def keep_sampling(run):
    """Play groups and put them into the buffer, for ever; RuntimeError if `patience` in a row are lost."""
    while True:
        group, rng = run.next_group()
        await play_group(run, group, rng)
        if len(group.trajs) > 1:
            run.lost_in_a_row = 0
            await run.buffer.put(group)
            continue
        run.lost_in_a_row += 1
        note_group(run, group, 'lost')
        if run.lost_in_a_row >= run.limits.patience:
            raise RuntimeError(f'{run.lost_in_a_row} groups in a row lost their connections, nothing is left '
                               'to train on: look at the sandboxes, or set loss_rate and patience')


# 13_staying_alive/13_7_staleness, cell 13
def note_group(run, group, fate):
    """Write down what became of a group: 'kept', 'dropped', 'retried' or 'lost'."""
    run.ledger.append({'slow': group.slow, 'fate': fate, 'staleness': group.staleness(run.version),
                       'by_last_turn': run.version - group.versions[-1], 'tokens': group.tokens(),
                       'episodes_lost': group.lost})


# 13_staying_alive/13_7_staleness, cell 14
async def take_groups(run):
    """Groups for one update, none of them too old; the others are dropped, or their task is tried again."""
    taken, limits = [], run.limits
    while len(taken) < limits.groups_per_step:
        group = await run.buffer.get()
        if limits.max_staleness is None or group.staleness(run.version) <= limits.max_staleness:
            taken.append(group)
            note_group(run, group, 'kept')
        elif limits.when_stale == 'retry' and group.tries < limits.retries:
            run.again.append((group.task, group.tries + 1))
            note_group(run, group, 'retried')
        else:
            note_group(run, group, 'dropped')
    return taken


# 13_staying_alive/13_7_staleness, cell 14
def stale_kl(policy, batch, temperature):
    """Token mean of e^x - 1 - x, x = log pi_train - log pi_rollout: KL(rollout, train) by k3."""
    mask = batch['action_mask']
    with torch.no_grad():
        logp = action_log_probs(policy, batch['ids'], batch['length'], mask, temperature)
    x = keep_only(logp - batch['logp'], mask).clamp(-20, 20)
    return masked_mean(x.expm1() - x, mask).item()


# 13_staying_alive/13_7_staleness, cell 15
def ledger_row(ledger):
    """What became of the groups noted in a ledger: greatest ages of those kept, tokens, counts by fate."""
    kept = [row for row in ledger if row['fate'] == 'kept']
    counts = {f'{name}_{fate}': sum((row['slow'], row['fate']) == (name == 'slow', fate) for row in ledger)
              for name in ('fast', 'slow') for fate in ('kept', 'dropped', 'retried')}
    return {
        'staleness': max(row['staleness'] for row in kept),
        'by_last_turn': max(row['by_last_turn'] for row in kept),
        'tokens_made': sum(row['tokens'] for row in ledger),
        'tokens_kept': sum(row['tokens'] for row in kept),
        'episodes_lost': sum(row['episodes_lost'] for row in ledger),
    } | counts


# 13_staying_alive/13_7_staleness, cell 15
def group_update(run, opt, groups):
    """Update the policy from groups of unequal size; a row of statistics and of what became of groups."""
    trajs = [traj for group in groups for traj in group.trajs]
    batch = collate(trajs, run.tok.pad_id)
    rewards = batch['reward'].split([len(group.trajs) for group in groups])
    advantages = torch.cat([group_advantages(some, len(some), run.cfg.std_normalize) for some in rewards])
    kl = stale_kl(run.policy, batch, run.cfg.temperature)
    update = rl_update(run.policy, opt, batch, advantages[:, None] * batch['action_mask'], run.cfg)
    ledger, run.ledger = run.ledger, []
    row = {'step': run.version, 'kl': kl, 'seconds': asyncio.get_running_loop().time()}
    return row | ledger_row(ledger) | behavior_stats(trajs) | update


# 13_staying_alive/13_7_staleness, cell 15
async def keep_training(run, opt, steps):
    """So many updates; their history."""
    history = []
    for _ in range(steps):
        groups = await take_groups(run)
        await asyncio.sleep(run.limits.train_seconds)
        history.append(group_update(run, opt, groups))
        run.version += 1
    return history


# 13_staying_alive/13_7_staleness, cell 16
async def run_loop(policy, tasks, tok, cfg, limits, steps):
    """Train `policy` in place with samplers and a trainer at once; the history, a row an update."""
    run = AsyncRun(policy, tasks, tok, cfg, limits)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5, fused=True)
    trainer = asyncio.create_task(keep_training(run, opt, steps))
    jobs = [trainer, *(asyncio.create_task(keep_sampling(run)) for _ in range(limits.samplers))]
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    for job in jobs:
        job.cancel()
    for ended in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(ended, Exception):                                # not CancelledError
            raise ended
    return trainer.result()


# 13_staying_alive/13_7_staleness, cell 19
STALENESS_ARMS = {
    'no limit': {},
    'limit 4': {'max_staleness': 4},
    'limit 1': {'max_staleness': 1},
    'limit 1, retry': {'max_staleness': 1, 'when_stale': 'retry'},
}


# 13_staying_alive/13_7_staleness, cell 19
@cached
def train_async(cfg, limits, base_seed, steps, evaluation):
    """Train the RL base asynchronously: dict of weights, history, heldout (of all tasks and of slow ones)."""
    from agentrl.quotas import run_virtual

    tok, heldout = build_tokenizer(make_tasks('all')), []
    policy = make_rl_base(tok, base_seed)
    history = run_virtual(run_loop(policy, make_tasks('train'), tok, cfg, limits, steps))
    tasks = make_tasks('heldout')
    for name, some in (('all', tasks), ('slow', [task for task in tasks if task.edit in limits.slow_edits])):
        rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
        heldout.append({'evaluated': name} | evaluate(policy, some, tok, evaluation['samples'], rng, cfg))
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 13_staying_alive/13_7_staleness, cell 19
def train_staleness_arm(arm, seed=0, base_seed=0):
    """`train_async` for a named arm."""
    return train_async(RLConfig(seed=seed), AsyncConfig(**STALENESS_ARMS[arm]), base_seed, STEPS, EVALUATION)


STALENESS = Study('staleness', STALENESS_ARMS, train_staleness_arm)
