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
# # 12.7 Diagnose four failures, and run each beside its cure
#
# An agent that submits at once, one that never submits, episodes that are cut off, and a context that is too
# small: whoever trains agents will meet these four. Each is told in the same order, symptom, cause, options,
# advice, and each is a run with its cure beside it. The third is the hardest, because it looks like
# bookkeeping: what should an episode count as that nobody let finish? Seven answers are trained, and their
# runs end between a pass rate of 0 and the best we know.
#
# **Time** 40 min. **Assumes** [2.2](../02_fundamentals/02_2_repair_mdp.ipynb),
# [12.2](12_2_credit_across_turns.ipynb), [12.5](12_5_tool_errors.ipynb). **Afterwards you can** recognise
# four failures by what the agent does, apply a cure to each, and choose what a truncated episode counts as.

# %%
#@save pathologies
from dataclasses import replace
from functools import partial
from math import isnan

import gymnasium as gym
import torch

from agentrl.advantages import compare_kept, compute_advantages
from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.critic import batch_values, critic_step, fit_critic, make_critic
from agentrl.environment import make_env
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, collate, make_trajectory
from agentrl.exercises import exercise
from agentrl.gradient import keep_only
from agentrl.sampling import CachedReader, run_episodes, sample_groups, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, minibatch_step, rl_update, train_rl

# %% [markdown]
# ## A cure is a part of the loop
#
# The loop of section 9.2 has three places where something else can be put in: the environment, the sampler,
# and the making of batch and advantages. A cure here is a function that makes such parts for a run. It
# registers itself under the name of its arm, with the settings in which that arm departs from the default.

# %%
#@save
CURE_ARMS, CURES = {}, {}                                               # arm: settings; arm: maker of parts


def cure(arm, **settings):
    """Register make_parts(cfg, steps) -> keyword arguments of train_rl as an arm of PATHOLOGIES."""
    def register(make_parts):
        CURE_ARMS[arm], CURES[arm] = settings, make_parts
        return make_parts

    return register


def without_nan(history):
    """The history with clip_fraction 0 in a step of which a minibatch kept no token (`coasting_step`)."""
    return [row | {'clip_fraction': 0.0 if isnan(row['clip_fraction']) else row['clip_fraction']}
            for row in history]


@cached
def train_cured(arm, cfg, base_seed, steps, evaluation):
    """Train the RL base under `cfg` with an arm's parts: dict of weights, history and heldout, as in 9.3."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
    policy, parts = make_rl_base(tok, base_seed), CURES[arm](cfg, steps)
    history = without_nan(train_rl(policy, make_tasks('train'), tok, cfg, steps, **parts))
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg,
                       parts.get('env_factory', make_env))
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


def train_pathology(arm, seed=0, base_seed=0):
    """`train_cured` for a named arm; ValueError for a name that is not registered."""
    if arm not in CURES:
        raise ValueError(f'arm={arm!r} is not known; choose one of {", ".join(CURES)}')
    return train_cured(arm, RLConfig(seed=seed, **CURE_ARMS[arm]), base_seed, STEPS, EVALUATION)


PATHOLOGIES = Study('pathologies', CURE_ARMS, train_pathology)

# %% [markdown]
# ## 1. It submits at once
#
# **Symptom.** Episodes shrink to one call, and the reward settles at exactly minus the cost of a call.
#
# **Cause.** With pass rate $p$, $K$ calls and a cost $c$ a call, an attempt is worth $p - cK$ and giving up
# is worth $-c$. What counts is the *starting* policy's $p$, not the optimum's (2.2, 12.3). The book's numbers
# stand beside ours, as everywhere below.

# %%
import pandas as pd

from agentrl.arms import SEEDS, arm_results, run_study
from agentrl.mdp import affordable_cost
from agentrl.plotting import (
    beside_book,
    book_results,
    plot_bands,
    plot_panels,
    save_figure,
    save_table,
    spread_labels,
    use_style,
    with_interval,
)

heldout, history = arm_results(['default', 'penalty 0.3', 'wrong_submit -1'], SEEDS)
start = history[(history['arm'] == 'penalty 0.3') & (history['step'] == 0)][['pass_rate', 'turns']].mean()
ours = start.to_dict() | {'attempt_value': start['pass_rate'] - 0.3 * start['turns'], 'submit_value': -0.3}
book = book_results('12.7', 'submits_at_once').set_index(['arm', 'metric'])['value']
print(pd.DataFrame({'ours': ours, 'book': book['starting policy']}).round(3))
print('the starting policy can afford a cost of', round(affordable_cost(*start), 3))


def by_window(history, arm, column):
    """Means of ten steps of an arm, a row a window: their mean, lowest and highest over the seeds."""
    rows = history[history['arm'] == arm]
    window = rows['step'].map(lambda step: f'steps {step // 10 * 10}-{step // 10 * 10 + 9}')
    seeds = rows.groupby([window, 'seed'])[column].mean()
    return seeds.groupby('step').agg(mean='mean', lowest='min', highest='max')


turns = by_window(history, 'penalty 0.3', 'turns')
turns.assign(book=[book[f'penalty 0.3, {window}', 'turns'] for window in turns.index]).round(2)

# %% [markdown]
# **Options.** Lower the cost, which changes what is asked for. Do not train on it at all: report it as a metric
# beside the pass rate, and choose by both among the checkpoints of a run that pays for passes only. (The
# stored runs keep one checkpoint each, so this option is named here and not run.) Or keep the cost and change
# *when* it is charged: anneal it in, so that the policy has learned to repair by the time that calls become dear, or charge only
# calls beyond a free allowance. The first is a sampler that counts training steps, the second a wrapper of
# the environment that counts calls.

# %%
#@save
def cost_at(step, steps, cost):
    """A cost that rises in a straight line from 0 at the first of `steps` steps to `cost` at the last."""
    return cost * step / max(steps - 1, 1)


@cure('cost annealed in', step_penalty=0.3)
def anneal_cost(cfg, steps):
    """A sampler that charges cost_at of its own count of calls, one call of it a training step."""
    costs = iter([cost_at(step, steps, cfg.step_penalty) for step in range(steps)])

    def sample(policy, tasks, tok, cfg, generator, env_factory):
        return sample_step(policy, tasks, tok, replace(cfg, step_penalty=next(costs)), generator, env_factory)

    return {'sample': sample}


class FreeCalls(gym.Wrapper):
    """Charges `cost` for each call after the first `free` of an episode."""

    def __init__(self, env, free, cost):
        super().__init__(env)
        self.free, self.cost = free, cost

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - self.cost * (info['n_turns'] > self.free), terminated, truncated, info


@cure('four calls free', step_penalty=0.3)
def allow_four(cfg, steps):
    """An environment that charges step_penalty from the fifth call on."""
    def env_factory(cfg):
        return FreeCalls(make_env(replace(cfg, step_penalty=0.0)), free=4, cost=cfg.step_penalty)

    return {'env_factory': env_factory}

# %%
from agentrl.environment import EditBudgetEnv

print('cost a call at steps 0, 10, 20, 30, 39:', [round(cost_at(n, 40, 0.3), 3) for n in (0, 10, 20, 30, 39)])
env = FreeCalls(EditBudgetEnv(), free=4, cost=0.3)
env.reset(options={'task': make_tasks('train')[1]})
print('six reads, four of them free:          ', [env.step('<call> read </call>')[1] for _ in range(6)])

# %% [markdown]
# Forty steps and ten seeds of each, evaluated on held-out tasks. `reward` is what the arm itself pays at the
# end of training: the full cost of each call for the first two, calls from the fifth on for the third.
# `can_afford` is $p/(K-1)$ of the trained policy, the cost at which its attempts are worth no more than
# giving up (0 for one that has given up).

# %%
def with_intervals(runs, columns):
    """Mean over seeds and 95% t interval, as text, for each arm and column."""
    return runs.groupby('arm', sort=False)[columns].agg(with_interval).T


cured, steps = run_study(PATHOLOGIES, ['cost annealed in', 'four calls free'], SEEDS)
COSTS = ['penalty 0.3', 'cost annealed in', 'four calls free']
runs = pd.concat([heldout, cured]).set_index('arm').loc[COSTS].reset_index()
runs['can_afford'] = [affordable_cost(p, k) if k > 1.5 else 0
                      for p, k in zip(runs['pass_rate'], runs['turns'])]
columns = ['arm', 'seed', 'pass_rate', 'reads', 'tests', 'turns', 'reward', 'can_afford']
save_table(runs[columns], '12_7_cost_heldout')
print(with_intervals(runs, ['pass_rate', 'reads', 'tests', 'turns', 'reward', 'can_afford']).to_string())
counts = {'tests in most episodes': runs['tests'] > 0.5, 'can afford 0.3': runs['can_afford'] > 0.3}
by_arm = runs.assign(**counts).groupby('arm', sort=False)
seeds = by_arm[list(counts)].sum().assign(of=by_arm.size())
ranges = by_arm[['tests', 'reward', 'can_afford']].agg(['min', 'max']).round(3)
pd.concat({'seeds': seeds}, axis=1).join(ranges)

# %%
import matplotlib.pyplot as plt

use_style(dashes=True)
curves = pd.concat([history, steps])
labels = {'turns': 'calls an episode', 'pass_rate': 'pass rate'}
fig = plot_panels(curves, COSTS, labels, 'Figure 12.7a  A cost of 0.3 a call, charged in three ways')
shown = curves[curves['arm'].isin(COSTS)]
save_figure(fig, '12_7_costs', shown[['arm', 'seed', 'step', *labels]])

# %% [markdown]
# Charged from the start, the cost ends in one call and pass 0.001. Annealed in or beyond an allowance, every
# seed reads and repairs. But look at `reward`: giving up earns −0.3. Nine of ten annealed seeds earn more
# than that; one, which still tests when the full price arrives, earns −0.466: it spends more than it can
# afford (0.244), and if training went on it would have to drop the test or give up. The allowance leaves a
# fourth call alone, since it is free: on seven of ten seeds it is a test in most episodes, and only two could
# afford to be charged for all of their calls.
#
# **Advice.** Compute $p/(K-1)$ before training, and again during the annealing. Use an allowance if what you
# fear is *long* episodes, annealing if each call really costs.
#
# ## 2. It never submits
#
# **Symptom.** The reward rises, and the submit rate falls: episodes grow until the turn budget cuts them.
#
# **Cause.** A wrong submission now costs 1 (`wrong_submit=-1`), an episode that is cut costs nothing. At
# pass rate $p$ a submission is worth $p - (1-p) = 2p - 1$, below 0 until $p$ reaches one half. Not to submit
# is the quickest way to a better reward.

# %%
never = history[history['arm'] == 'wrong_submit -1']
table = book_results('12.7', 'never_submits')
table['step'] = table['arm'].str.split().str[1].astype(int)
table = table.pivot(index='step', columns='metric', values='value')
METRICS = ['submit_rate', 'pass_rate', 'reward', 'turns']
means = never.groupby('step')[METRICS].mean().loc[table.index]
print(means.join(table[METRICS].add_suffix(' (book)')).round(2).to_string())
low = never.loc[never.groupby('seed')['submit_rate'].idxmin()].set_index('seed')
low = low.rename(columns={'step': 'step of lowest submit rate'})
for first in (0, 9):                                                    # by step 10, as section 12.9 compares
    rows = never[never['step'].between(first, first + 2)]
    low[f'submit rate, steps {first}-{first + 2}'] = rows.groupby('seed')['submit_rate'].mean()
low[['step of lowest submit rate', 'submit_rate', 'pass_rate', 'reward', *low.columns[-2:]]].round(3)

# %% [markdown]
# The symptom shows on every seed, on nine of ten it is at its worst within six steps, and it passes, sooner
# than in the book: by step 10 six seeds submit more than at the start and four less, so whether ours submit
# less by then is undecided. Those episodes that still submit are the better ones, so once more than half of
# the submissions are right, submitting pays again, and the rate comes back, even on seed 9, which had
# stopped.
#
# The reward is exactly the pass rate minus the rate of wrong submissions, so its rise can be taken apart:
# here is the change from step 0 to the mean of steps 1 to 5, beside the default, whose wrong submissions are
# free.

# %%
def early_change(history, arm, columns):
    """Mean of steps 1 to 5 minus step 0, a row a seed."""
    rows = history[history['arm'] == arm]
    rows = rows.assign(wrong_submits=rows['submit_rate'] - rows['pass_rate'])
    first, early = rows[rows['step'] == 0], rows[rows['step'].between(1, 5)]
    return early.groupby('seed')[columns].mean() - first.groupby('seed')[columns].mean()


PARTS = ['reward', 'pass_rate', 'wrong_submits', 'submit_rate']
changes = pd.concat([early_change(history, arm, PARTS).assign(arm=arm)
                     for arm in ('wrong_submit -1', 'default')])
with_intervals(changes, PARTS)

# %% [markdown]
# In five steps the reward rises by more than the default's, and all of it is wrong submissions that are no
# longer made; the pass rate stands still where the default's more than doubles. The book says that it falls.
# Ours does not, beyond the noise: the interval holds 0, and by step 10 the pass rate is higher than at the
# start.
#
# **Options.** A milder price; a price annealed in, as above; or close the exit: what is cut off earns what a
# wrong submission earns. **Advice.** Log the submit rate and the stop reasons beside the reward, always: they
# tell this rise from a good one.

# %% [markdown]
# ## 3. What is a truncated episode worth?
#
# That exit is a choice: the environment says "cut off", and *we* said "0". Other answers follow. The first
# two are functions of the batch and of which rows were cut: charge what is cut as if it had been submitted
# wrong, or mask it out of the update. The second sounds fair, since nobody knows how the episode would have
# ended.

# %%
#@save
TRUNCATED = ('turn_budget', 'context', 'length')                        # the STOPS that are a limit's doing


def is_truncated(trajs):
    """Which episodes were cut off by a limit: bool [B]."""
    return torch.tensor([traj.info['stop'] in TRUNCATED for traj in trajs])


def treated(treat):
    """A `prepare` for train_rl: group advantages of the batch that treat(batch, cut [B], cfg) returns."""
    def prepare(trajs, tok, cfg):
        batch = treat(collate(trajs, tok.pad_id), is_truncated(trajs), cfg)
        return batch, compute_advantages(batch, cfg)

    return prepare


def price_truncated(batch, cut, cfg):
    """A truncated episode earns what a wrong submission earns."""
    return batch | {'reward': batch['reward'] + cfg.wrong_submit * cut}


@cure('truncation priced', wrong_submit=-1.0)
def charge_truncation(cfg, steps):
    """Truncated episodes earn wrong_submit."""
    return {'prepare': treated(price_truncated)}


def mask_truncated(batch, cut, cfg):
    """No token of a truncated episode is trained on."""
    return batch | {'action_mask': batch['action_mask'] & ~cut[:, None]}


def masked_advantages(batch, cut, cfg):
    """Advantages [B, T-1] of what mask_truncated keeps, in groups whose means count the cut episodes too."""
    return keep_only(compute_advantages(batch, cfg), mask_truncated(batch, cut, cfg)['action_mask'])

# %% [markdown]
# If a minibatch keeps nothing, `minibatch_step` of section 9.2 takes no step. The two arms that mask do: there
# Adam's momentum carries the policy on, as it does in most trainers, and so a policy that has stopped
# submitting keeps drifting.

# %%
#@save
def coasting_step(policy, opt, minibatch, cfg, log_probs):
    """minibatch_step, but Adam's momentum moves the weights where nothing is kept; clip_fraction nan then."""
    if minibatch['action_mask'].any():
        return minibatch_step(policy, opt, minibatch, cfg, log_probs)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    opt.step()
    return {'clip_fraction': float('nan'), 'grad_norm': 0.0}


COASTING = partial(rl_update, step=coasting_step)


@cure('truncation masked', wrong_submit=-1.0)
def leave_out_truncation(cfg, steps):
    """Truncated episodes are left out of the update, but not of their groups' means."""
    def prepare(trajs, tok, cfg):
        batch, cut = collate(trajs, tok.pad_id), is_truncated(trajs)
        return mask_truncated(batch, cut, cfg), masked_advantages(batch, cut, cfg)

    return {'prepare': prepare, 'update': COASTING}

# %% [markdown]
# Masked out of the update, its reward of 0 still counts in the mean of its group. One may also drop it from
# the comparison, by `compare_kept` of section 9.1. It looks like the same thing said more thoroughly, and it is
# not.

# %%
#@save
@cure('truncation dropped', wrong_submit=-1.0)
def drop_truncation(cfg, steps):
    """Truncated episodes are left out of the update and of the comparison with their siblings."""
    def prepare(trajs, tok, cfg):
        cut = is_truncated(trajs)
        batch = mask_truncated(collate(trajs, tok.pad_id), cut, cfg)
        return batch, compare_kept(batch['reward'], ~cut, cfg)[:, None] * batch['action_mask']

    return {'prepare': prepare, 'update': COASTING}

# %%
def pushes(right, wrong, cfg):
    """Sums of advantages over the submitted and over the cut episodes of a group of eight, by treatment."""
    reward = torch.tensor([1.0] * right + [-1.0] * wrong + [0.0] * (8 - right - wrong), dtype=torch.float64)
    batch, cut = {'reward': reward, 'action_mask': torch.ones(8, 1, dtype=torch.bool)}, reward == 0
    advantages = {'counted 0': compute_advantages(batch, cfg),
                  'priced': compute_advantages(price_truncated(batch, cut, cfg), cfg),
                  'masked': masked_advantages(batch, cut, cfg),
                  'dropped': compare_kept(reward, ~cut, cfg)[:, None]}
    return {name: (a[~cut].sum().item(), a[cut].sum().item()) for name, a in advantages.items()}


groups = {f'{right} right, {wrong} wrong, 4 cut': pushes(right, wrong, RLConfig(wrong_submit=-1.0))
          for right, wrong in ((1, 3), (2, 2), (3, 1))}
table = pd.DataFrame({(group, who): {name: pair[n] for name, pair in by_name.items()}
                      for group, by_name in groups.items() for n, who in enumerate(('submitted', 'cut'))})
table.round(2) + 0.0

# %% [markdown]
# A positive sum says: more of these. Counted 0, a group that submits more right than wrong pushes towards
# submitting, one with more wrong than right towards stalling, and a tie does neither; so the exit is a
# trap only while the policy is bad. Masking keeps half of that force, since the zeros stay in the mean.
# Priced, the push is always towards submitting. Dropped, the sum is 0 in every group: the kept episodes
# are only compared with each other, what a wrong submission loses goes to anything else that is possible,
# stalling among it, and nothing ever pushes back. The submit rate in training, by windows of ten steps,
# beside the book's masked run:

# %%
book = book_results('12.7', 'masked_truncation').set_index('arm')['value']
_, steps = run_study(PATHOLOGIES, ['truncation masked', 'truncation dropped'], SEEDS)
for arm in ('truncation masked', 'truncation dropped'):
    print(by_window(steps, arm, 'submit_rate').assign(book=book).rename_axis(arm).round(3).to_string())

# %% [markdown]
# Masked, our runs do not do what the book's does: the submit rate comes back as it does when counted 0,
# though on every seed to less than 1. Dropped, most of them do: the mean falls in each window, to 0.193,
# though one seed still submits 0.698 at the end. Neither arm is the book's. There a cut episode gets advantage
# 0, mean and deviation of a group are those of its submitted episodes, and the tokens of cut episodes still
# count in the mean over tokens, which makes every step of a stalling agent smaller. Dropping shares the
# comparison and leaves those tokens out. So the book's numbers stand beside ours for orientation, and no
# verdict on its arm follows. That the sums above are the cause of what ours do is likely, not proved.
#
# ## Ask a critic what would have come
#
# Pardo et al. (2018) keep the limit out of the value: where an episode was cut, its return goes on with
# $V(s_{\text{end}})$, what a critic expects from there if there were time. The book leaves this as an
# exercise; here it is. The critic is that of section 7.2, read before the last token that the policy wrote. It
# starts from the base's submitted episodes under a budget of 24 turns (those still running after 24 calls say
# nothing about an end, and are left out), then takes one step of regression each training step, on the same
# bootstrapped returns. Advantages are those of the group, as before.

# %%
#@save
def cut_values(critic, batch):
    """The critic's value before the last token that the policy wrote: [B]."""
    last = batch['action_mask'].cumsum(1).argmax(1)                     # [B], column of the last kept token
    return batch_values(critic, batch).gather(1, last[:, None])[:, 0]


class Bootstrap:
    """Adds a critic's value to the reward of cut episodes (Pardo et al. 2018), then fits it one step."""

    def __init__(self, critic):
        self.critic, self.opt = critic, torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)

    def __call__(self, batch, cut, cfg):
        batch = batch | {'reward': batch['reward'] + cut_values(self.critic, batch) * cut}
        returns = batch['reward'][:, None].expand(batch['action_mask'].shape)   # no reward before the end
        critic_step(self.critic, self.opt, batch, returns)
        return batch

# %%
#@save
@cached
def long_critic_weights(wrong_submit, max_turns, n, fit_steps):
    """Weights of a critic of the RL base, fitted to its submitted episodes under a budget of `max_turns`."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(0)
    policy, cfg = make_rl_base(tok), RLConfig(max_turns=max_turns, wrong_submit=wrong_submit)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, rng, n=n)
    batch = collate([traj for traj in trajs if traj.info['submitted']], tok.pad_id)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)
    fit_critic(critic, opt, batch, batch['reward'][:, None].expand(batch['logp'].shape), fit_steps, rng)
    return critic.state_dict()


def make_long_critic(wrong_submit=-1.0, max_turns=24, n=8, fit_steps=30):
    """A critic that says what the RL base's episodes are worth if there is time to finish; kept on disk."""
    critic = make_critic(make_rl_base(build_tokenizer(make_tasks('all'))))
    critic.load_state_dict(long_critic_weights(wrong_submit, max_turns, n, fit_steps))
    return critic


@cure('truncation bootstrapped', wrong_submit=-1.0)
def bootstrap_truncation(cfg, steps):
    """Truncated episodes earn what the critic expects of them."""
    return {'prepare': treated(Bootstrap(make_long_critic(cfg.wrong_submit)))}

# %% [markdown]
# Is the critic right about stalling? Let the base play with 24 turns, take the episodes that needed more than
# six calls, and compare what they came to with what the critic says where a budget of six would have cut them.

# %%
from agentrl.tool_errors import stop_counts
from agentrl.training import behavior_stats

tok = build_tokenizer(make_tasks('all'))
base, cfg = make_rl_base(tok), RLConfig(max_turns=24, wrong_submit=-1.0)
trajs = sample_groups(base, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(5), n=8)
slow = [traj for traj in trajs if traj.info['n_turns'] > 6]
batch = collate(slow, tok.pad_id)
early = batch | {'action_mask': batch['action_mask'] & (batch['turn'][:, 1:] < 6)}
print({stop: n for stop, n in stop_counts(trajs).items() if n}, 'of', len(trajs))
print(f'{len(slow)} would be cut at six; going on they earn {batch["reward"].mean():.3f}, '
      f'the critic says {cut_values(make_long_critic(), early).mean():.3f}, counted 0 they earn 0')

# %% [markdown]
# So an episode of the base that stalls is worth less than nothing, and the critic says so, a little too
# gloomily. The exit is no longer free, and no number had to be made up. The last option says nothing about
# worth: it lets the policy *see* the limit. Before we train with it: what do the unknown words alone do to
# the untrained base?

# %%
#@save
class TurnsLeft(gym.Wrapper):
    """Ends each observation with `turns left n`, a digit a word."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        left = self.env.get_wrapper_attr('budget') - info['n_turns']
        return f'{observation} turns left {" ".join(str(left))}', reward, terminated, truncated, info


@cure('turns left shown', wrong_submit=-1.0)
def show_turns_left(cfg, steps):
    """An environment whose observations say how many turns are left."""
    return {'env_factory': lambda cfg: TurnsLeft(make_env(cfg))}


@cure('turns left priced', wrong_submit=-1.0)
def price_turns_left(cfg, steps):
    """The turns left are shown, and truncated episodes earn wrong_submit."""
    return show_turns_left(cfg, steps) | {'prepare': treated(price_truncated)}

# %%
env = TurnsLeft(EditBudgetEnv(max_turns=12))
env.reset(options={'task': make_tasks('train')[1]})
print([env.step(f'<call> {call} </call>')[0] for call in ('test', 'edit fix_boundary', 'test')])
cfg = RLConfig(wrong_submit=-1.0)
factories = {'plain': make_env, 'turns left shown': lambda cfg: TurnsLeft(make_env(cfg))}
before = [{'arm': name} | behavior_stats(sample_groups(base, make_tasks('train'), tok, cfg,
                                                       torch.Generator().manual_seed(seed), factory))
          for name, factory in factories.items() for seed in range(3)]
with_intervals(pd.DataFrame(before), ['submit_rate', 'pass_rate', 'reads', 'tests', 'turns', 'malformed'])

# %% [markdown]
# It submits and passes as before, within the intervals, and makes a call more, half of it tests. So training
# with the turns shown starts nearer to the limit.
#
# ## Seven treatments in one table
#
# All with `wrong_submit=-1`, ten seeds, on held-out tasks, where the environment is the arm's own. The book
# has the first of the rows, and one that bears the name of another and masks in its own way, one seed each.

# %%
USE = {'truncation = 0': 'no answer costs anything', 'truncation priced': 'the limit is part of the task',
       'truncation masked': 'it is not, and cannot be triggered',
       'truncation dropped': 'it is not, and cannot be triggered',
       'truncation bootstrapped': 'it is not, but can be triggered',
       'turns left shown': 'never alone', 'turns left priced': 'the limit is part of the task'}
CUT = list(USE)
cured, steps = run_study(PATHOLOGIES, CUT[1:], SEEDS)
runs = pd.concat([heldout, cured]).replace({'wrong_submit -1': CUT[0]})
runs = runs.rename(columns={'pass_rate': 'heldout_pass'}).set_index('arm').loc[CUT].reset_index()
curves = pd.concat([history, steps]).replace({'wrong_submit -1': CUT[0]})
compared = beside_book(runs, '12.7', 'masked_truncation_heldout')
save_table(compared, '12_7_truncation_heldout')
table = with_intervals(runs, ['submit_rate', 'heldout_pass', 'turns']).T
for metric in ('heldout_pass', 'turns'):
    book = compared[compared['metric'] == metric].set_index('arm')['book']
    table[f'book: {metric}'] = book.map(lambda value: '' if pd.isna(value) else f'{value:g}')
print(table.assign(**{'use it if': USE}).to_string())
print('priced is the default run:', all((runs.loc[runs['arm'] == 'truncation priced', count].to_numpy()
                                         == heldout.loc[heldout['arm'] == 'default', count].to_numpy()).all()
                                        for count in ('passes', 'submits', 'calls', 'reads', 'tests')))
passes = runs.pivot(index='seed', columns='arm', values='heldout_pass')[CUT]
lowest = curves.groupby(['arm', 'seed'])['submit_rate'].min().unstack().loc[CUT]
minus_priced = passes.sub(passes['truncation priced'], axis=0).melt(var_name='arm', value_name='minus priced')
pd.DataFrame({
    'lowest pass': passes.min(), 'highest pass': passes.max(),
    f'of {len(SEEDS)}: pass half': (passes >= 0.5).sum(), 'pass under 0.2': (passes < 0.2).sum(),
    'pass minus priced, by seed': with_intervals(minus_priced, ['minus priced']).T['minus priced'],
    'lowest submit rate, held-out': runs.groupby('arm')['submit_rate'].min(),
    'in training': lowest.min(axis=1)}).loc[CUT].round(3)

# %%
PANELS = {'the limit taken out of the task': [CUT[n] for n in (0, 2, 3, 4)],
          'the limit made part of the task': [CUT[n] for n in (0, 1, 5, 6)]}
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
smooth = curves[curves['arm'].isin(CUT)].sort_values(['arm', 'seed', 'step'])
smooth = smooth.assign(submit_rate=smooth.groupby(['arm', 'seed'])['submit_rate'].transform(
    lambda curve: curve.rolling(5, min_periods=1).mean()))
for ax, (title, arms) in zip(axes, PANELS.items(), strict=True):
    for arm in arms:
        plot_bands(ax, smooth, 'step', 'submit_rate', arm)
    ax.set(title=title, xlabel='training step', ylim=(0, 1.02), xlim=(0, 39))
    spread_labels(ax)
axes[0].set_ylabel('submit rate, mean of five steps')
fig.suptitle('Figure 12.7b  A wrong submission costs 1. What does a cut episode count as?')
save_figure(fig, '12_7_truncation', smooth[['arm', 'seed', 'step', 'submit_rate']])

# %% [markdown]
# Three things stand out. Priced like a wrong submission, the run *is* the default of 9.3, call for call: all
# rewards are 1 or −1 instead of 1 or 0, and group advantages do not see the difference. Dropping is the worst
# row: no seed passes half, seven of ten less than 0.2. And to show the turns left without a price is a
# gamble: five of ten seeds pass nothing, one ends in between, four do what the others do. With the price, the
# same words do no harm: the highest pass, by nothing that counts, and the fewest calls. Whether the unpriced
# policy *uses* the count, or only stalls sooner because the new words make it longer-winded, these runs do
# not say.
#
# Counted 0, masked and bootstrapped pass a little less than priced, seed by seed, but these are six
# comparisons, and the three intervals end within 0.01 of 0. The first two leave the exit open: a seed of each
# submits only 0.675 and 0.594 in the end.
#
# | is the limit part of the task? | can the policy trigger it cheaply? | then |
# |---|---|---|
# | yes: a user waits, a bill is paid | yes or no | price it like a failure, at least like a wrong submission; show the turns left only if it is priced |
# | no: it only saves computing | no: a crash, a machine's time-out | mask or drop it |
# | no: it only saves computing | yes: to stall costs nothing | bootstrap; never drop it |
#
# **Advice.** Decide the first question before training. Leave out only what the policy cannot bring about.
#
# ## 4. The context overflows
#
# **Symptom.** Episodes end with stop `context`, unsubmitted, and the longest are hit first: those that
# explore. **Cause.** Every observation stays in the row. **Options.** A cap on an observation that keeps its
# head and its tail around a marker; a larger window; or a view in which old observations are masked, which
# section 12.4 does.

# %% [markdown]
# Our TinyAgent has 256 positions, and more would have to be trained, so we go the other way: the same base
# under smaller windows. With the same uniforms an episode under a small window is the beginning of the one
# under a larger window. So the window that an episode *needs* says whether it is lost, for any window at
# once; a cell below checks that against real episodes.

# %%
#@save
def cap_words(text, cap):
    """`text` if it has at most `cap` words, else its head, the marker `...` and its tail, `cap` in all."""
    words = text.split()
    if cap < 3:
        raise ValueError(f'cap={cap} must be at least 3: a first word, the marker and a last word')
    if len(words) <= cap:
        return text
    head = cap // 2
    return ' '.join([*words[:head], '...', *words[len(words) - (cap - 1 - head):]])


class CappedObservations(gym.Wrapper):
    """Shortens each observation to `cap` words; the issue stays whole."""

    def __init__(self, env, cap):
        super().__init__(env)
        self.cap = cap

    def step(self, action):
        observation, *rest = self.env.step(action)
        return cap_words(observation, self.cap), *rest

# %%
#@save
def window_rollouts(policy, envs, tasks, tok, max_turns, window, generator):
    """Episodes as in rollout_batch, cut at `window` <= policy.max_len tokens; draws do not depend on it."""
    if window > policy.max_len:
        raise ValueError(f'window={window} is more than the {policy.max_len} positions of the policy')
    episodes = [Episode(env, task, tok, max_turns, window) for env, task in zip(envs, tasks, strict=True)]
    noise = torch.rand(len(episodes), policy.max_len, generator=generator, dtype=torch.float64)
    run_episodes(CachedReader(policy, len(episodes)), episodes, 1.0, noise)
    return [make_trajectory(episode) for episode in episodes]


def window_needed(traj, keep_obs=None):
    """Tokens of the longest view before a call, and room for it; keep_obs: the last observations kept."""
    views = []
    for call in range(traj.info['n_turns'] + (traj.info['stop'] == 'context')):
        old = 0 if keep_obs is None else call - keep_obs                # the first turn that is shown
        shown = (traj.owner != OWNER['tool']) | (traj.turn >= old)      # [T]
        views.append(int((shown & (traj.turn < call)).sum()))
    return max(views) + MAX_CALL_TOKENS

# %%
from agentrl.tasks import randomize_names


def play(policy, split, n, cap, turns, seed, window=256):
    """Episodes of a policy, `n` a task, under an observation cap (None: none) and a window."""
    rng = torch.Generator().manual_seed(seed)
    tasks = [randomize_names(task, rng) for task in make_tasks(split) for _ in range(n)]
    envs = [EditBudgetEnv(turns) for _ in tasks]
    envs = envs if cap is None else [CappedObservations(env, cap) for env in envs]
    return window_rollouts(policy, envs, tasks, tok, turns, window, rng)


print([cap_words('s = 0 for i in range len a - 1 : s += a i end return s', cap) for cap in (8, 3)])
whole = {(cap, seed): play(base, 'train', 8, cap, 24, seed) for cap in (None, 16, 8) for seed in range(3)}
small = play(base, 'train', 8, None, 24, 0, window=64)
print({stop: n for stop, n in stop_counts(small).items() if n}, 'of', len(small))
print('lost as computed:', [traj.info['stop'] == 'context' for traj in small]
      == [window_needed(traj) > 64 for traj in whole[None, 0]])

# %% [markdown]
# For masking we ask the same question of the same episodes: would the views of section 12.4, without all but
# the last observation, or without any, have fitted? What the policy would have *done* with less to see is
# another question, which only a run answers (12.4).

# %%
CURES_HERE = {'nothing': (None, None), 'cap 16': (16, None), 'cap 8': (8, None),
              'masked, last one kept': (None, 1), 'masked, none kept': (None, 0)}
rows = [{'arm': name, 'window': window, 'seed': seed,
         'lost': sum(window_needed(traj, keep) > window for traj in whole[cap, seed]) / len(whole[cap, seed])}
        for name, (cap, keep) in CURES_HERE.items() for window in (48, 64, 96, 128, 256) for seed in range(3)]
lost = pd.DataFrame(rows)
save_table(lost, '12_7_overflow')
wide = lost.pivot(index=['arm', 'seed'], columns='window', values='lost').reset_index()
wide = wide.set_index('arm').loc[list(CURES_HERE)].reset_index()
print('share of episodes lost, by window in tokens')
with_intervals(wide, [48, 64, 96, 128, 256]).T

# %% [markdown]
# What does the cap take away? Every line of the code may hold the bug, so an agent that reads misses what was
# cut. A trained agent that lives on reading (the `turn GAE` arm of 12.2, seed 0), on held-out tasks with its
# six turns and the whole window, three streams of 160 episodes:

# %%
from agentrl.arms import policy_from
from agentrl.call_credit import train_critic_arm

trained = policy_from(train_critic_arm('turn GAE', seed=0)['weights'])
capped = [{'arm': f'cap {cap}'}
          | behavior_stats(play(trained, 'heldout', 16, cap, 6, seed))
          for cap in (None, 16, 8) for seed in range(3)]
with_intervals(pd.DataFrame(capped), ['pass_rate', 'reads', 'tests', 'turns'])

# %% [markdown]
# The window decides most: twice the window loses a fraction of the episodes. Masking all but the last
# observation saves more than half of what is lost at 64 tokens. A cap saves little or nothing there, probably
# because a long episode is many short observations and calls rather than one long one; at 96 tokens a cap of
# 8 loses 0.040 instead of 0.092. And it is dear: the agent that was trained without it loses more than half
# of its passes, and goes on calling. Training under the cap might teach it to do with less, but not what the
# words say that are gone.
#
# **Advice.** Cap what is long and whose middle is worthless, such as a log; mask what is old; and count the
# stops, since lost episodes are those of section 3.
#
# ## Exercises
#
# **Remaining turns.** Without looking above: write a wrapper that ends each observation with the turns that
# are left. What do you expect of it where a cut episode is free? **Bootstrapping.** Write what an episode
# should count as, given its reward, whether it was cut, and a critic's value at its end. The checks say what
# is wrong; both are solved in
# [turns left](../solutions/s_12_7_turns_left.ipynb) and [bootstrapping](../solutions/s_12_7_bootstrap.ipynb).

# %%
#@save
@exercise
def check_turns_left(wrap):
    """'right' if wrap(env) ends each observation with `turns left n`, changing nothing else; else why not."""
    for budget in (3, 12):
        plain, task = make_env(RLConfig(max_turns=budget)), make_tasks('train')[0]
        shown = wrap(make_env(RLConfig(max_turns=budget)))
        if (start := shown.reset(options={'task': task})) != plain.reset(options={'task': task}):
            return f'reset should give what it gave before, but gives {start!r}'
        for call in ('read', 'test'):
            text, *rest = plain.step(f'<call> {call} </call>')
            found, *others = shown.step(f'<call> {call} </call>')
            wanted = f'{text} turns left {" ".join(str(budget - rest[-1]["n_turns"]))}'
            if found != wanted:
                return (f'after {call!r}, of {budget} turns, the observation should be {wanted!r} '
                        f'but is {found!r}')
            if others != rest:
                return f'after {call!r} reward, ends and info should be {rest} but are {others}'
    return 'right'

# %%
#@save
@exercise
def check_cut_rewards(rewards_of):
    """'right' if rewards_of(reward, cut, value), all [B], bootstraps what was cut, no gradient; else why."""
    reward = torch.tensor([1.0, -1.0, -0.2, 0.0], dtype=torch.float64)
    cut = torch.tensor([False, False, True, True])
    value = torch.tensor([0.5, 0.5, 0.75, -0.6], dtype=torch.float64, requires_grad=True)
    found = rewards_of(reward, cut, value)
    wanted = reward + value.detach() * cut
    if found.shape != wanted.shape:
        return f'the result has shape {list(found.shape)}; it must be [4], one reward an episode'
    if found.requires_grad:
        return 'the critic would be trained to please the policy: detach its value'
    for b, gap in enumerate((found - wanted).abs().tolist()):
        if gap > 1e-9:
            kind = 'cut, ' if cut[b] else 'not cut, '
            return (f'an episode that was {kind}earned {reward[b].item()} and has value {value[b].item()} '
                    f'should count as {wanted[b].item():.2f} but counts as {found[b].item():.2f}')
    return 'right'

# %%
def my_turns_left(env):
    raise NotImplementedError                                           # return a gym.Wrapper of env


def my_cut_rewards(reward, cut, value):
    raise NotImplementedError                                           # all [B], float64 and bool


print('turns left:   ', check_turns_left(my_turns_left))
print('bootstrapping:', check_cut_rewards(my_cut_rewards))

# %% [markdown]
# ## What was seen
#
# | finding | here, ten seeds | verdict |
# |---|---|---|
# | at a cost of 0.3 an attempt is worth less than giving up (book) | −0.812 against −0.3; the book −0.92 | holds |
# | and the policy submits at once (book) | 1.58 calls in the first ten steps, then 1.00 to 1.02 on every seed | holds |
# | annealing the cost in cures it | pass 0.753, interval 0.731 to 0.774 | holds |
# | and what it learns pays at the full cost | reward −0.175, interval −0.251 to −0.100, against −0.3; nine of ten seeds | holds |
# | four free calls cure it | pass 0.774, interval 0.756 to 0.793 | holds |
# | `wrong_submit` −1: the submit rate falls and the reward rises (book) | in five steps −0.364 (−0.437 to −0.290) and 0.358 (0.308 to 0.408) | holds; by step 10 the submit rate is undecided |
# | while the pass rate falls (book) | −0.003, interval −0.050 to 0.044; the default's rises by 0.226 | does not hold: it stands still, then rises |
# | counted 0 it recovers (book 0.706) | held-out pass 0.745, interval 0.715 to 0.775 | holds |
# | masking truncation makes stalling free (book 0.075, another arm) | masked, but counted in its group: pass 0.719 (0.668 to 0.770), submit rate 0.904 (0.816 to 0.992) | does not hold of this arm; of the book's nothing is known |
# | the same, dropped from its group too: pass below 0.2 | pass 0.121 (0.013 to 0.228), submit rate 0.148; no seed passes half | undecided, but far below every cure |
# | bootstrapping cures it | pass 0.746 (0.716 to 0.777), submit rate 0.991 | holds |
# | showing the turns left cures it | pass 0.328 (0.069 to 0.588): none on five of ten seeds, half or more on four | undecided; worse than a price by 0.448 (0.186 to 0.709) |
# | showing them with a price does | pass 0.780 (0.754 to 0.806) | holds |
# | a larger window saves episodes from overflow | lost 0.240 at 64 tokens, 0.017 at 128 (here and below three streams of the base) | holds |
# | masking does | 0.067 at 64, interval 0.028 to 0.106 (views, not runs) | holds |
# | an observation cap does | cap 8: 0.231 at 64; and a trained agent falls from 0.798 to 0.350 | undecided at 64, and dear |
#
# Where stalling is free, the seeds of one treatment can end far apart: 0 to 0.419 dropped, 0 to 0.769 with
# the turns shown. The order of the good rows means little.
#
# The same findings with intervals and one rule for all: [section 12.9](12_9_what_holds.ipynb).
#
# **Try it.** Give the bootstrap a critic that was never fitted (`Bootstrap(make_critic(base))`, which says
# 0 everywhere at first) and predict the submit rate of the first five steps. Then drop truncated episodes
# under `wrong_submit=0`: does stalling still win?
