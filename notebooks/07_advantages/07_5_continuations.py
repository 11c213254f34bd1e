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
# # 7.5 Ask what a state is worth by playing on from it
#
# What return can be expected before a call? A critic guesses (7.2). An environment that can be copied lets us
# *measure*: stop before the call, let the policy play on from there many times, and take the mean. That is
# VinePPO's answer (Kazemnejad et al. 2024). It is right on average whatever the network believes, and it
# costs environment steps. This section takes exact snapshots, samples from all of them together, checks the
# estimate where the true value can be summed up, and says what it costs.
#
# **Time** 15 min. **Assumes** [5.5](../05_trajectories/05_5_rl_base.ipynb). **Afterwards you can** copy an
# episode halfway, estimate the value of its state with a standard error, and count the environment steps
# that this took.

# %%
#@save continuations
import copy

import torch

from agentrl.environment import check_count
from agentrl.episodes import OWNER, Episode
from agentrl.sampling import run_episodes

# %% [markdown]
# ## A snapshot is a copy
#
# A running episode is a row of tokens and an environment. The plain way to copy both is `copy.deepcopy`,
# which follows every reference and copies whatever it finds, such as the tokenizer with its vocabulary.

# %%
def act(episode, *calls):
    for call in calls:
        ids = episode.tok.encode(f'<call> {call} </call>')
        episode.act(ids, [0.0] * len(ids))
    return episode


def start(max_turns=6):
    return Episode(EditBudgetEnv(), task, tok, max_turns, max_len=256)


# %%
from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok, task = build_tokenizer(make_tasks('all')), make_tasks()[1]
original = act(start(), 'read')
deep = act(copy.deepcopy(original), 'edit fix_boundary', 'submit')
print('copy: ', deep.actions, deep.reward)
print('original:', original.actions, '; vocabulary copied:', deep.tok is not tok)

# %% [markdown]
# We will want a hundred thousand copies, so we say what has to be copied: the lists, which grow, and the
# counts in the environment's `info`. Everything else (the task, the source, the tokenizer, the reward
# function) is never changed in place, and both may hold it. A wrapper around the environment might keep
# things of its own that we do not know of; it is refused.

# %%
#@save
def copy_episode(episode):
    """A copy of a running Episode, its environment included; either can go on without the other.

    ValueError if the environment is wrapped: what a wrapper keeps (a log, say) would be shared.
    """
    if episode.env is not episode.env.unwrapped:
        raise ValueError(f'the environment is wrapped in {type(episode.env).__name__}; '
                         'snapshots are of bare environments: make the Episode with env.unwrapped')
    twin = copy.copy(episode)
    for name in ('ids', 'owner', 'turn', 'logp', 'actions'):
        setattr(twin, name, list(getattr(episode, name)))
    twin.env = copy.copy(episode.env)
    twin.env.info = dict(episode.env.info)
    return twin


# %% [markdown]
# Both kinds of copy take the same calls and must end with the same row of tokens, the same reward and the
# same counts; and the original must not have noticed.

# %%
PARTS = ('ids', 'owner', 'turn', 'actions', 'info', 'reward')


def state_of(episode):
    return [getattr(episode, name) for name in PARTS] + [episode.env.source, episode.env.info]


before = copy.deepcopy(state_of(original))
for calls in (['edit fix_boundary', 'submit'], ['edit fix_init', 'submit'], ['test', 'read', 'edit', 'test']):
    ends = [act(copied, *calls) for copied in (copy.deepcopy(original), copy_episode(original))]
    same = state_of(ends[0]) == state_of(ends[1])
    print(f'{ends[1].reward}  {ends[1].info["stop"] or "running":8}  the two copies agree: {same}')
print('original as it was:', state_of(original) == before)

# %% [markdown]
# ## A snapshot before each call, and one at the end
#
# A trajectory is only a record. But nothing in the environment is random, so its calls, made again, lead
# through the same states; we stop before each. That the row of tokens comes out as recorded is the proof that
# nothing was missed, so it is checked every time.

# %%
#@save
def snapshots(traj, env, task, max_turns, max_len=256):
    """Episodes before each of the K calls of a trajectory and after the last, by acting it again: K + 1.

    ValueError if the same calls do not lead to the same tokens (another task or environment).
    """
    episode = Episode(env, task, traj.tok, max_turns, max_len)
    cuts = [copy_episode(episode)]
    for k in range(traj.info['n_turns']):
        call = (traj.owner == OWNER['policy']) & (traj.turn == k)                             # [T]
        episode.act(traj.ids[call].tolist(), traj.logp[call[1:]].tolist())
        cuts.append(copy_episode(episode))
    if episode.ids != traj.ids.tolist():
        raise ValueError('the calls of this trajectory lead to other tokens here; give the task (with its '
                         'names), the kind of environment, max_turns and max_len that it was sampled with')
    return cuts


# %%
from agentrl.base import make_rl_base
from agentrl.sampling import rollout_batch
from agentrl.tasks import randomize_names

policy, rng = make_rl_base(tok), torch.Generator().manual_seed(0)
tasks = [randomize_names(task, rng) for task in make_tasks()[:2] for _ in range(16)]
trajs = rollout_batch(policy, [EditBudgetEnv() for _ in tasks], tasks, tok, 6, 1.0, rng)
cuts = [snapshots(traj, EditBudgetEnv(), task, 6) for traj, task in zip(trajs, tasks)]
print(len(trajs), 'episodes,', sum(map(len, cuts)), 'snapshots; those of the first episode:')
for state in cuts[0]:
    print(f'{len(state.ids):3} tokens, {state.env.info["n_turns"]} calls made, source changed:',
          state.env.source != state.env.task.source)
try:
    snapshots(trajs[0], EditBudgetEnv(), tasks[1], 6)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Play on, all together
#
# The sampler of 5.3 begins with whatever an episode holds, so a copy in the middle is as good as a new one.
# What is new is that copies *agree*: all of a start's continuations have the same past, and many of them make
# the same next call. The cached reader would read that past once for each copy. This one keeps one row of the
# cache for all episodes that have read the same tokens, and splits it where they part.

# %%
#@save
class SharedReader:
    """Logits for the next token from a key/value cache in which rows that have read the same are one."""

    def __init__(self, model, n_rows):
        self.model, self.cache, self.place = model, model.empty_cache(1), [0] * n_rows

    def next_logits(self, new_ids):
        """Read {row: new ids}; logits [R, V] after the last token of each row. Others may be forgotten."""
        branches = {}                                                   # (place before, new ids): place after
        for row, ids in new_ids.items():
            self.place[row] = branches.setdefault((self.place[row], tuple(ids)), len(branches))
        parents = [parent for parent, _ in branches]
        if parents != list(range(len(self.cache.lengths))):
            self.cache = self.cache.select(torch.tensor(parents))
        logits, self.cache = self.model.extend([list(ids) for _, ids in branches], self.cache)
        return logits[[self.place[row] for row in new_ids]]


# %%
#@save
def continue_episodes(policy, starts, n, generator, temperature=1.0, reader=SharedReader):
    """Play on from each start to the end, n times: list (a start each) of lists of finished Episodes.

    Each continuation owns a row of uniforms. The starts stay as they are; one that has ended already has
    nothing to add, and its continuations are copies of it. ValueError for n below 1.
    """
    check_count('n', n)
    episodes = [copy_episode(episode) for episode in starts for _ in range(n)]
    noise = torch.rand(len(episodes), policy.max_len, generator=generator, dtype=torch.float64)
    running = [n for n, episode in enumerate(episodes) if not episode.done]
    run_episodes(reader(policy, len(running)), [episodes[n] for n in running], temperature, noise[running])
    return [episodes[first:first + n] for first in range(0, len(episodes), n)]


# %% [markdown]
# The old reader and the new one must sample the same tokens; and the work is counted where each token enters
# the network.

# %%
from agentrl.sampling import CachedReader

tokens_read = []
counter = policy.tokens.register_forward_hook(lambda layer, ids, out: tokens_read.append(ids[0].numel()))
ends = []
for reader in (CachedReader, SharedReader):
    tokens_read.clear()
    ends.append(continue_episodes(policy, cuts[0], 64, torch.Generator().manual_seed(0), reader=reader))
    print(f'{reader.__name__:12} reads {sum(tokens_read):6} tokens for 64 copies of {len(cuts[0])} starts')
counter.remove()
print('the same tokens:', all(a.ids == b.ids for old, new in zip(*ends) for a, b in zip(old, new)))

# %% [markdown]
# ## The value and its error
#
# The return of a continuation is what it earned after its start. The mean of n of them estimates the value,
# and their sample deviation over $\sqrt n$ is the standard error of that. How large must n be? A verdict that
# is 1 with probability p has deviation $\sqrt{p(1-p)}$, at most one half: for an error of 0.01 some 2500 are
# enough in any state.

# %%
#@save
def continuation_returns(starts, continued):
    """What each continuation earned after its start: [S, n], float64."""
    return torch.tensor([[episode.reward - start.reward for episode in episodes]
                         for start, episodes in zip(starts, continued, strict=True)], dtype=torch.float64)


def mean_and_error(returns):
    """Estimated value of each start and its standard error, [S] each, of finite returns [S, n] with n >= 2."""
    if returns.dim() != 2 or not len(returns) or returns.shape[1] < 2:
        raise ValueError(f'returns have shape {list(returns.shape)}; an error needs 2 or more of each start')
    if not returns.isfinite().all():
        raise ValueError(f'returns hold {returns[~returns.isfinite()][0].item()}; all must be finite')
    return returns.mean(1), returns.std(1) / returns.shape[1] ** 0.5


# %% [markdown]
# ## Where the true value can be summed up
#
# With two calls left there are few ways to go on. Of the eight well-formed calls one submits, and after each
# of the others only `submit` can still earn something:
#
# $$V = p(\text{submit})\,v + \sum_{a} p(a)\; p(\text{submit} \mid a)\; v_a ,$$
#
# with $v$ the verdict on the source as it stands and $v_a$ on the source after $a$. The malformed calls are
# countless, but we know what they have in common: together they have the rest of the probability, and the
# source stays as it is. So V is known up to that rest times $v$, and exactly where $v = 0$.

# %%
from agentrl.model import sequence_log_probs
from agentrl.tasks import EDIT_OPS

CALLS = ['submit', 'read', 'test', *(f'edit {op}' for op in EDIT_OPS)]


@torch.no_grad()
def call_probability(episode, call):
    ids = tok.encode(f'<call> {call} </call>')
    row = torch.tensor([episode.ids + ids])
    return sequence_log_probs(policy, row)[0, -len(ids):].sum().exp().item()


def verdict(episode):
    return act(copy_episode(episode), 'submit').reward


def exact_value(state):
    """Bounds on the probability to pass with two calls left."""
    low, rest = 0.0, 1.0
    for call in CALLS:
        p, after = call_probability(state, call), act(copy_episode(state), call)
        low += p * (after.reward if after.done else call_probability(after, 'submit') * verdict(after))
        rest -= p
    return low, low + rest * verdict(state)


# %% [markdown]
# Three states with two calls left, and 300 estimates of 9 continuations in each. All 2700 together must agree
# with the sum within their error, and the 300 must scatter as a verdict does, by $\sqrt{V(1-V)/9}$.

# %%
import pandas as pd

rows = []
for calls in ([], ['read'], ['edit fix_boundary']):
    state = act(start(max_turns=len(calls) + 2), *calls)
    low, high = exact_value(state)
    nines = continuation_returns([state], continue_episodes(policy, [state], 2700, rng)).reshape(300, 9)
    mean, error = mean_and_error(nines.reshape(1, -1))
    rows.append([', '.join(calls) or 'nothing', low, high, mean.item(), error.item(),
                 nines.mean(1).std().item(), (low * (1 - low) / 9) ** 0.5])
columns = ['done so far', 'V, at least', 'at most', 'mean of 2700', 'error', 'scatter of nines', 'expected']
pd.DataFrame(rows, columns=columns).round(4)

# %% [markdown]
# ## An episode under the glass
#
# Here is the first episode that read, made four calls or more and passed. In each state: the probability to
# pass from there, by 512 continuations and by 9. The advantage of a call is what it earned plus what the
# state after it is worth, minus what the state before it was worth,
#
# $$A_k = r_k + V(s_{k+1}) - V(s_k),$$
#
# with V = 0 after the end. By hand: values 0.25, 0.5, 1, 0 around three calls, the last of which earns 1,
# give 0.25, 0.5 and 0. The advantages add up to the return minus $V(s_0)$; each call gets its own share.

# %%
#@save
def call_advantages(rewards, values):
    """A_k = r_k + V(s_{k+1}) - V(s_k) of the K calls of an episode: rewards [K], values [K + 1] -> [K]."""
    if rewards.dim() != 1 or values.shape != (len(rewards) + 1,):
        raise ValueError(f'rewards have shape {list(rewards.shape)}, values {list(values.shape)}; allowed: [K] and '
                         '[K + 1], a value before each call and one after the last')
    for name, x in (('rewards', rewards), ('values', values)):
        if not x.isfinite().all():
            raise ValueError(f'{name} hold {x[~x.isfinite()][0].item()}; all must be finite')
    return rewards + values[1:] - values[:-1]


# %%
print(call_advantages(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.25, 0.5, 1.0, 0.0])).tolist())
n = next(n for n, traj in enumerate(trajs) if traj.reward == 1 and traj.info['n_reads'] and len(cuts[n]) > 4)
words = [call[7:-8] for call in cuts[n][-1].actions]
earned = torch.zeros(len(words), dtype=torch.float64)
earned[-1] = trajs[n].reward
many = continuation_returns(cuts[n], continue_episodes(policy, cuts[n], 512, rng))
few = continuation_returns(cuts[n], continue_episodes(policy, cuts[n], 180, rng)).reshape(-1, 20, 9).mean(2)
value, error = mean_and_error(many)
table = pd.DataFrame({'call': words, 'V before it': value[:-1], 'error': error[:-1],
                      'A': call_advantages(earned, value), 'V by 9': few[:-1, 0],
                      'A by 9': call_advantages(earned, few[:, 0])})
table.round(3)

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
fig, ax = plt.subplots()
x = torch.arange(len(words))
for place, draws in enumerate(few[:-1].tolist()):
    beside = pd.Series(draws).groupby(draws).cumcount()                 # equal estimates side by side
    ax.scatter(place + 0.07 + 0.035 * beside, draws, s=9, color=SPARE_COLORS[1], linewidths=0)
ax.errorbar(x, value[:-1], 1.96 * error[:-1], fmt='-o', color='black', markersize=4, capsize=3, linewidth=1.5)
ax.text(0.42, few[0].median() - 0.12, '20 estimates, each by\n9 continuations', color='#2A7A70', va='center')
ax.text(0.85, value[1] + 0.03, '512 continuations,\n95% interval', ha='right', va='center')
ax.set(xticks=x, xticklabels=words, xlabel='before this call')
ax.set(ylabel='probability to pass', ylim=(-0.03, 1.05))
nines = pd.DataFrame(few[:-1].numpy()).add_prefix('V by 9, estimate ')
save_figure(fig, '07_5_values', table.join(nines))

# %% [markdown]
# ## The price
#
# A critic costs no environment steps beyond the episodes themselves. Continuations do: from each call start n
# of them are played to the end, and a step is a call that the environment answers. Counted on the first 16
# episodes of this section.

# %%
flat = [state for states in cuts[:16] for state in states]
played = continue_episodes(policy, flat, 9, rng)
steps = torch.tensor([[len(end.actions) - len(begin.actions) for end in ends]
                      for begin, ends in zip(flat, played)], dtype=torch.float64)                 # [S, 9]
own = sum(traj.info['n_turns'] for traj in trajs[:16]) / 16
each = steps.mean(1).sum().item() / 16
rows = [[n, own + n * each, (own + n * each) / own] for n in (0, 1, 4, 9, 512)]
pd.DataFrame(rows, columns=['continuations', 'steps an episode', 'times an episode alone']).round(1)

# %% [markdown]
# ## What was seen
#
# A copy that copies only what changes goes on exactly like a deep one. With one cache row for all that have
# read the same, 3477 tokens were read instead of 19538 for the same continuations, token for token. Where
# the value can be summed up (0.0760, 0.0047, and between 0.8080 and 0.8168), 2700 continuations gave
# 0.0767, 0.0033 and 0.8215, none of them two standard errors off; means of nine scatter by about what a
# verdict must (0.0975 where 0.0883 is expected, two errors of such a deviation apart; 0.0190 for 0.0227;
# 0.1235 for 0.1313). In the episode under the glass `read` was worth 0.371 and the edit 0.320; nine
# continuations said 0.222 and 0.333. They cost 25.4 times the steps of the episodes alone.
#
# **Try it.** Which state of the figure needs the most continuations for an error of 0.01, and how many? Then
# take snapshots of an episode sampled at temperature 2 and play on at 1: whose value is it that you get?
