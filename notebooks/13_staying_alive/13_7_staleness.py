# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13.7 Limit how old a group may be, and see whom the limit removes
#
# In a fully asynchronous run nobody waits: samplers play episodes with whatever weights there are, a trainer
# takes finished groups from a buffer and changes the weights meanwhile. Nothing idles, and some of the data
# is old when it arrives. We build such a run from real parts on a clock that jumps, measure how old groups
# get and what that does to the distance between the policy that sampled and the policy that is trained, and
# put a limit on age. The limit works. It also removes the slow tasks, and the policy forgets them: that is
# the finding to take along.
#
# The names and the limit are those of pull request 2588 of radixark/miles (2026); 2544 is about connections
# that are lost.
#
# **Time** 30 min. **Assumes** [9.3](../09_grpo/09_3_arms.ipynb), [13.6](13_6_quotas_and_backoff.ipynb).
# **Afterwards you can** measure the age of the groups in a batch, and count which kinds of tasks a limit on
# it removes.

# %%
#@save staleness
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

# %% [markdown]
# ## How old is a group?
#
# The *version* of the engine counts updates of its weights. A group of episodes takes several turns, and the
# weights may change between two of them, so its turns have versions of their own. At an update to come, the
# age of the group is the engine's version minus the version of its **oldest** turn:
#
# $$\text{staleness} = v_{\text{now}} - \min_k v_k .$$
#
# The last turn flatters: a group that began nine versions ago has a fresh last turn.

# %%
#@save
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


# %%
group = AsyncGroup(task=None, versions=[3, 5, 5, 11])
print('at version 12:', group.staleness(12), 'by the oldest turn,', 12 - group.versions[-1], 'by the last')

# %% [markdown]
# ## The settings of a run
#
# `max_staleness` is None for no limit; `when_stale` says what happens to a group that is too old: `drop` it,
# or `retry` its task with the weights of now, at most `retries` times. Calls take time, with a factor for
# slow tasks; here all tasks of one edit are slow, as tests of one kind of program are in life. A call loses
# its connection with probability `loss_rate`.

# %%
#@save
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


# %%
for wrong in ({'max_staleness': -1}, {'when_stale': 'keep'}, {'buffer': 0}, {'loss_rate': 1.5}):
    try:
        AsyncConfig(**wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## One call of each episode
#
# The sampler of section 5.3 plays a batch to its end with one set of weights. Here weights change between
# turns, so we sample one call at a time, with a cache that is filled anew from the episode's tokens: what old
# weights computed is not kept. Uniforms are used in the same order, so with weights that stand still the
# episodes must be those of section 5.3.

# %%
#@save
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


# %%
from agentrl.environment import EditBudgetEnv
from agentrl.sampling import rollout_batch

tok = build_tokenizer(make_tasks('all'))
policy, tasks = make_rl_base(tok), make_tasks('train')[:8]
envs, rng = [EditBudgetEnv() for _ in tasks], torch.Generator().manual_seed(0)
whole = rollout_batch(policy, envs, tasks, tok, 6, 1.0, rng)
noise = torch.rand(8, policy.max_len, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
episodes = [Episode(EditBudgetEnv(), task, tok, 6, policy.max_len) for task in tasks]
used = [0] * 8
while running := [n for n, episode in enumerate(episodes) if not episode.done]:
    some, counts = [episodes[n] for n in running], [used[n] for n in running]
    for n, call in zip(running, next_calls(policy, some, 1.0, noise[running], counts), strict=True):
        episodes[n].act(*call)
        used[n] += len(call[0])
print('call by call as in one go:', all(
    torch.equal(make_trajectory(a).ids, b.ids) for a, b in zip(episodes, whole, strict=True)))

# %% [markdown]
# ## Connections get lost
#
# A tool call may raise `ConnectionError`. The episode is over then, and nobody knows what its reward would
# have been. Two habits are common. One gives it the reward 0, the other leaves it out and compares its
# siblings with each other alone. Take a group in which all would have passed, and one that half of its
# episodes solve.

# %%
#@save
class LossyEnv(gym.Wrapper):
    """Loses the connection with probability `rate` a call, drawn from `generator`: ConnectionError."""

    def __init__(self, env, rate, generator):
        super().__init__(env)
        self.rate, self.generator = rate, generator

    def step(self, action):
        if torch.rand((), generator=self.generator, dtype=torch.float64) < self.rate:
            raise ConnectionError('the sandbox closed the connection')
        return self.env.step(action)


def sibling_advantages(rewards, valid, std_normalize=True):
    """Group advantages [B] of one group among its valid members; exactly 0 for the others."""
    valid = torch.as_tensor(valid, dtype=torch.bool)
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    advantages = torch.zeros_like(rewards)
    if valid.sum() > 1:
        advantages[valid] = group_advantages(rewards[valid], int(valid.sum()), std_normalize)
    return advantages


# %%
import pandas as pd

shown = {}
for name, rewards in {'all pass': [1.0] * 8, 'half pass': [1.0, 0.0] * 4}.items():
    rewards, valid = torch.tensor(rewards, dtype=torch.float64), torch.arange(8) > 0       # the first is lost
    shown[f'{name}, reward 0'] = group_advantages(rewards * valid, 8).tolist()
    shown[f'{name}, left out'] = sibling_advantages(rewards, valid).tolist()
pd.DataFrame(shown, index=['lost', *[f'sibling {n}' for n in range(1, 8)]]).T.round(2)

# %% [markdown]
# With reward 0 the lost episode is punished for good calls, and where all pass it makes an opinion out of
# nothing. Worse, the punishment is not even handed out evenly. Each call may lose the connection, so long
# episodes are lost more often: reward 0 is a hidden price on calls. Below are 160 episodes of the base, of
# which connections are drawn 400 times at 5% a call. For episodes that pass, the mean advantage by their
# number of calls: without losses; with reward 0, over all draws; left out, over the draws in which the
# episode came through (in the others it pushes nothing).

# %%
from agentrl.sampling import sample_groups

trajs = sample_groups(policy, make_tasks('train'), tok, RLConfig(), torch.Generator().manual_seed(0))
rewards = torch.tensor([traj.reward for traj in trajs], dtype=torch.float64).reshape(20, 8)
calls = torch.tensor([traj.info['n_turns'] for traj in trajs]).reshape(20, 8)
rng = torch.Generator().manual_seed(1)
bias = {name: torch.zeros(20, 8, dtype=torch.float64) for name in ('reward 0', 'left out')}
came_through = torch.zeros(20, 8, dtype=torch.float64)
for _ in range(400):
    valid = torch.rand(20, 8, generator=rng, dtype=torch.float64) < 0.95 ** calls
    zeroed = group_advantages((rewards * valid).flatten(), 8, std_normalize=False).reshape(20, 8)
    bias['reward 0'] += zeroed / 400
    bias['left out'] += torch.stack([sibling_advantages(*pair, std_normalize=False)
                                     for pair in zip(rewards, valid, strict=True)])
    came_through += valid
bias['left out'] /= came_through
full = group_advantages(rewards.flatten(), 8, std_normalize=False).reshape(20, 8)
passed = rewards > 0
by_calls = pd.DataFrame([{'calls of a passing episode': n, 'episodes': int((passed & (calls == n)).sum()),
                          'no losses': full[passed & (calls == n)].mean().item()} |
                         {name: value[passed & (calls == n)].mean().item() for name, value in bias.items()}
                         for n in sorted(set(calls[passed].tolist()))])
by_calls.round(3)

# %% [markdown]
# Reward 0 takes more from a passing episode the longer it is: a price on calls that nobody set. Left out, an
# episode that came through is judged nearly as if nothing had been lost, whatever its length.
#
# ## A sampler
#
# A sampler takes the next task, plays its group turn by turn, and puts it into the buffer, where it waits if
# the buffer is full. Each group has a generator of its own, so its luck does not depend on who played it. A
# lost connection ends one episode and nothing else. A service that is gone altogether is another matter:
# after `patience` groups in a row without two episodes to compare, the run ends and says why. Any other
# error ends the run at once, as it should.

# %%
#@save
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


# %%
#@save
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


def make_call(episode, call):
    """Make a call (ids, logps); False if its connection was lost."""
    try:
        episode.act(*call)
    except ConnectionError:
        return False
    return True


# %%
#@save
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


def note_group(run, group, fate):
    """Write down what became of a group: 'kept', 'dropped', 'retried' or 'lost'."""
    run.ledger.append({'slow': group.slow, 'fate': fate, 'staleness': group.staleness(run.version),
                       'by_last_turn': run.version - group.versions[-1], 'tokens': group.tokens(),
                       'episodes_lost': group.lost})


# %% [markdown]
# ## A trainer
#
# The trainer takes groups until it has enough young ones, works for a while (samplers go on with the old
# weights), and updates. A version moves only with an update, so a limit of 0 can always be met by a group
# that begins now: the trainer may starve, but not for ever.
#
# Before the update we estimate the distance between the policy that sampled and the one that is trained,
# from the sampled tokens, by $e^x - 1 - x$ with $x = \log \pi_\text{train} - \log \pi_\text{rollout}$
# (Schulman 2020, his $k_3$): token mean, $x$ clamped to ±20.

# %%
#@save
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


def stale_kl(policy, batch, temperature):
    """Token mean of e^x - 1 - x, x = log pi_train - log pi_rollout: KL(rollout, train) by k3."""
    mask = batch['action_mask']
    with torch.no_grad():
        logp = action_log_probs(policy, batch['ids'], batch['length'], mask, temperature)
    x = keep_only(logp - batch['logp'], mask).clamp(-20, 20)
    return masked_mean(x.expm1() - x, mask).item()


# %%
#@save
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


async def keep_training(run, opt, steps):
    """So many updates; their history."""
    history = []
    for _ in range(steps):
        groups = await take_groups(run)
        await asyncio.sleep(run.limits.train_seconds)
        history.append(group_update(run, opt, groups))
        run.version += 1
    return history


# %%
#@save
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


# %%
from agentrl.quotas import run_virtual


def short_run(limits, steps=5):
    """The history of a short run from the base."""
    learner = make_rl_base(tok)
    return pd.DataFrame(run_virtual(run_loop(learner, make_tasks('train'), tok, RLConfig(), limits, steps)))


columns = ['step', 'seconds', 'staleness', 'by_last_turn', 'kl', 'fast_kept', 'slow_kept', 'episodes_lost']
short_run(AsyncConfig())[columns].round(4)

# %% [markdown]
# With a limit of 0 every token was sampled by the very policy that is trained on it, so the distance must be
# nought; a service that is down must end the run.

# %%
strict = short_run(AsyncConfig(max_staleness=0), steps=3)
small = bool((strict['kl'].abs() < 1e-12).all())
print('limit 0: staleness', strict['staleness'].tolist(), ' kl below 1e-12:', small)
try:
    short_run(AsyncConfig(loss_rate=1.0, patience=5))
except RuntimeError as error:
    print(error)

# %% [markdown]
# ## Four limits, ten seeds
#
# Forty updates of two groups, from the RL base. The runs are a study (section 9.3), stored under
# `figures/data`. Afterwards each policy plays the held-out tasks, all of them and, once more, those of the
# slow edit alone.

# %%
#@save
STALENESS_ARMS = {
    'no limit': {},
    'limit 4': {'max_staleness': 4},
    'limit 1': {'max_staleness': 1},
    'limit 1, retry': {'max_staleness': 1, 'when_stale': 'retry'},
}


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


def train_staleness_arm(arm, seed=0, base_seed=0):
    """`train_async` for a named arm."""
    return train_async(RLConfig(seed=seed), AsyncConfig(**STALENESS_ARMS[arm]), base_seed, STEPS, EVALUATION)


STALENESS = Study('staleness', STALENESS_ARMS, train_staleness_arm)

# %%
from agentrl.arms import run_study
from agentrl.plotting import (
    arm_color,
    plot_bands,
    save_figure,
    save_table,
    spread_labels,
    use_style,
    with_interval,
)

heldout, history = run_study(STALENESS, list(STALENESS.arms), STALENESS.seeds)
kinds = [f'{speed}_{fate}' for speed in ('fast', 'slow') for fate in ('kept', 'dropped', 'retried')]
counts = [*kinds, 'tokens_made', 'tokens_kept', 'episodes_lost', 'episodes']
by_run = history.groupby(['arm', 'seed'])
sums = by_run[counts].sum()
runs = by_run.agg({'staleness': 'max', 'by_last_turn': 'max', 'kl': 'mean', 'seconds': 'max'})
runs['wasted tokens'] = 1 - sums['tokens_kept'] / sums['tokens_made']
for speed in ('fast', 'slow'):
    runs[f'{speed} survive'] = sums[f'{speed}_kept'] / (sums[f'{speed}_kept'] + sums[f'{speed}_dropped'])
runs['slow of trained'] = sums['slow_kept'] / (sums['slow_kept'] + sums['fast_kept'])
for name in ('all', 'slow'):
    rows = heldout[heldout['evaluated'] == name].set_index(['arm', 'seed'])
    runs[f'held-out pass, {name}'] = rows['pass_rate']
runs = runs.loc[list(STALENESS.arms)]
save_table(runs.reset_index(), '13_7_staleness_runs')
runs.groupby('arm', sort=False).agg(['min', 'max']).round(3).T

# %% [markdown]
# Lowest and highest seed above; below the means with their 95% t intervals, and the differences from the arm
# without a limit, seed by seed.

# %%
measured = ['kl', 'wasted tokens', 'slow of trained', 'held-out pass, all', 'held-out pass, slow']
compared = ['kl', 'held-out pass, all', 'held-out pass, slow']
differences = runs[compared].sub(runs.loc['no limit', compared], level='seed').add_suffix(', minus no limit')
runs[measured].join(differences).groupby('arm', sort=False).agg(with_interval, digits=4).T

# %%
sums[[*kinds, 'episodes_lost', 'episodes']].groupby('arm').sum().loc[list(STALENESS.arms)].T

# %%
import matplotlib.pyplot as plt
import numpy as np

use_style(dashes=True)
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), width_ratios=(1, 1, 0.9))
smooth = history.sort_values(['arm', 'seed', 'step']).assign(
    kl=history.groupby(['arm', 'seed'])['kl'].transform(lambda kl: kl.rolling(5, min_periods=1).mean()))
for arm in STALENESS.arms:
    plot_bands(left, history, 'step', 'staleness', arm)
    plot_bands(middle, smooth, 'step', 'kl', arm)
left.set(xlabel='update', ylabel='oldest group trained on (versions)', xlim=(0, 39), ylim=(0, None))
middle.set(xlabel='update', ylabel='train-rollout KL (nats a token)', xlim=(0, 39), ylim=(0, None))
for place, arm in enumerate(STALENESS.arms):
    for speed, marker in (('fast', 'o'), ('slow', 's')):
        values = runs.loc[arm, f'{speed} survive']
        right.plot(values, place + np.linspace(-0.25, 0.25, len(values)), marker, color=arm_color(arm),
                   markersize=4, fillstyle='full' if speed == 'fast' else 'none', clip_on=False)
right.set(yticks=range(4), yticklabels=list(STALENESS.arms), ylim=(3.5, -0.5), xlim=(0, 1),
          xlabel='share of groups that survive\n(dots: fast tasks, open squares: slow)')
fig.suptitle('Figure 13.7  A tight limit on age keeps the distance small and lets few slow tasks through')
for ax in (left, middle):
    spread_labels(ax)
save_figure(fig, '13_7_staleness', history[['arm', 'seed', 'step', 'staleness', 'kl', *kinds]])

# %% [markdown]
# ## What was seen
#
# | question | here, ten seeds |
# |---|---|
# | oldest group that was trained on | 6 to 8 versions without a limit (2 or 3 by its last turn); exactly the limit with one |
# | train-rollout KL, mean of a run | 0.0069 (0.0057 to 0.0082) without a limit, 0.0051 (0.0040 to 0.0061) with 4, 0.0019 (0.0014 to 0.0024) with 1 |
# | tokens sampled and thrown away | 0.0847 with limit 4, 0.3585 with limit 1, 0.3645 with limit 1 and retry |
# | groups of slow tasks that survive | all; 0.375 to 0.688 with limit 4; at most 0.083 with limit 1; 0.467 to 0.750 with retry |
# | groups of fast tasks that survive | all, but 0.738 to 0.879 with limit 1 |
# | virtual seconds for forty updates | 146 to 165; 157 to 187; 224 to 249; 291 to 355 with retry |
#
# So a limit of 1 makes the data fresh, on every seed, and pays three times: a third of the tokens, half as
# much time again, and nearly all slow tasks, whose share of the groups falls from 0.1888 to 0.0075. Did the
# policy forget their edit? It did: the held-out pass rate on it falls by 0.3875 (0.1801 to 0.5949), on each
# of the ten seeds, and with it the pass rate on all tasks, by 0.0912 (0.0342 to 0.1483). Three seeds had
# left both undecided. A retry brings the slow tasks back, and the edit with them, and costs time instead. A
# limit of 4 lowers the KL by a quarter (−0.0019, −0.0034 to −0.0003), and what it drops, half of the slow
# groups, costs no pass rate that we could see. The public run names the limit and gives no figures for it,
# so there is nothing to set beside these.
#
# A lost episode that gets reward 0 makes an opinion out of nothing (−2.47 for good calls in a group where
# all pass) and a price on calls; left out, it does neither. Of some 6,300 episodes an arm 107 to 184 lost
# their connection, and no run ended of it.
#
# **Advice.** Count age from the oldest turn. Before setting a limit, look at which tasks it removes; prefer
# a retry, or a longer step, to a filter that only the quick ones pass.
#
# **Try it.** Set `slow_factor` to 2, then to 8, with limit 4: at which factor does the last slow group
# disappear? And let `keep_sampling` give up a group as soon as it is too old: how many of the wasted tokens
# does that save?
