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
# # 7.4 Compare only calls that were made in the same state
#
# A group of episodes of one task is a baseline for free: subtract the mean of the group. But it compares
# whole episodes, so a good call in a failed episode is blamed with the rest. GiGPO (Feng et al. 2025)
# compares at a finer grain as well: calls that different episodes made in exactly the same state form a
# group of their own. This section finds such groups, computes the advantage they give, and counts on real
# episodes how many calls have anybody to be compared with.
#
# **Time** 15 min. **Assumes** [5.5](../05_trajectories/05_5_rl_base.ipynb),
# [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb). **Afterwards you can** group calls by the state
# that they were made in, and count how many have another one to be compared with.

# %%
#@save step_groups
import hashlib

import torch

from agentrl.episodes import OWNER
from agentrl.gradient import check_switch, keep_only, same_within
from agentrl.tasks import canonical_source, rename

# %% [markdown]
# ## What is the same state?
#
# Names are drawn anew for each episode (2.1), so the same function reads differently in every one of them,
# and a comparison of texts would find no two equal states. A task's canonical source numbers its names in
# order of appearance; with the same numbering we can write the present source, and what the tools have
# answered, in names that do not depend on the draw.
#
# A state is then: the task, its source as it stands, the edits and calls that are left, and the observations
# so far, in order. Whatever the environment will answer to a call depends on nothing else. The policy sees a
# little more than that, its own calls: two episodes that made different malformed calls are in one state.

# %%
#@save
def state_key(env, seen):
    """Hash of an environment's state before a call, whatever its names; `seen`: the observations so far."""
    env = env.unwrapped
    number = {name: canonical for canonical, name in canonical_source(env.task.source)[1].items()}
    left = (env.max_edits - env.info['n_edits'], env.budget - env.info['n_turns'])
    state = (env.task.name, rename(env.source, number), left, [rename(text, number) for text in seen])
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


# %% [markdown]
# A finished episode does not hold its states, but its calls do: made again in a fresh environment they lead
# through the same ones, since nothing in it is random. So the states are those of the real environment, not
# of a second description of it that could be wrong.

# %%
#@save
def call_texts(traj):
    """What the policy wrote in each call of a trajectory: list of texts."""
    wrote = [(traj.owner == OWNER['policy']) & (traj.turn == k) for k in range(traj.info['n_turns'])]
    return [traj.tok.decode(traj.ids[at].tolist()) for at in wrote]


def visited_states(env, task, calls, max_turns):
    """The state before each of `calls`, by making them again in `env`: list of keys."""
    env.reset(options={'task': task, 'max_turns': max_turns})
    keys, seen = [], []
    for call in calls:
        keys.append(state_key(env, seen))
        seen.append(env.step(call)[0])
    return keys


# %% [markdown]
# One task under two draws of names. The first two episodes agree until they edit, the third tests before it
# reads, the fourth sends a malformed call first.

# %%
import pandas as pd

from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks, randomize_names

task, rng = make_tasks()[1], torch.Generator().manual_seed(0)
histories = {'A': ['read', 'edit fix_boundary', 'submit'], 'B': ['read', 'edit fix_init', 'submit'],
             'C': ['test', 'read', 'submit'], 'D': ['red', 'read', 'submit']}
rows = {}
for name, calls in histories.items():
    named = randomize_names(task, rng)
    rows[name] = visited_states(EditBudgetEnv(), named, [f'<call> {call} </call>' for call in calls], 6)
    print(name, named.issue)
pd.DataFrame(rows, index=['before call 0', 'before call 1', 'before call 2']).map(lambda key: key[:4])

# %% [markdown]
# Before call 0 all four stand in one state, in spite of four function names. Before call 1 A and B still do.
# Before call 2 nobody has company: the source of A and B differs, and C and D saw different answers.
#
# ## The step advantage by hand
#
# For a call in state $s$ let $G(s)$ be the calls that the batch made in it, and $R_j$ the return-to-go of
# each, all that its episode earned from that call on. The step advantage is
#
# $$A^S_i = \frac{R_i - \bar R}{\sigma}, \qquad
# \bar R, \sigma: \text{ mean and deviation of } R_j,\ j \in G(s_i).$$
#
# As in group advantages (9.1) the deviation is the sample one, may be left out, and a group without spread
# gets exactly zero. So does a call without company: it has been compared with nothing. We do not discount.
# Take the first three episodes with verdicts 1, 0, 0, and calls that cost nothing: the return-to-go of each
# call is its episode's verdict.

# %%
def step_advantages_in_loops(returns, keys, std_normalize):
    result = []
    for mine, key in zip(returns, keys):
        group = [r for r, other in zip(returns, keys) if other == key]
        mean = sum(group) / len(group)
        if len(group) == 1 or max(group) - min(group) < 1e-9:
            result.append(0.0)
        else:
            std = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
            result.append((mine - mean) / std if std_normalize else mine - mean)
    return result


keys = rows['A'] + rows['B'] + rows['C']
verdicts = 3 * [1.0] + 3 * [0.0] + 3 * [0.0]
by_hand = step_advantages_in_loops(verdicts, keys, std_normalize=False)
table = pd.DataFrame({'episode': list('AAABBBCCC'), 'call': sum((histories[n] for n in 'ABC'), []),
                      'return': verdicts, 'step advantage': by_hand})
table['episode advantage'] = table['return'] - 1 / 3
table.round(3)

# %% [markdown]
# The episode advantage gives B's `read` and B's wrong edit the same −1/3. The step advantage gives the first
# call of every episode exactly that (all calls before anything happened form one group, which is the
# episode's), but compares B's edit with A's alone, from the same state: −1/2 against +1/2. And it says
# nothing about the four calls that were made in a state of their own.
#
# The same with tensors: number the groups, add up by number.

# %%
#@save
def step_advantages(returns, keys, std_normalize=True):
    """Advantages [N] of calls with returns-to-go [N] among those of the same key (GiGPO, Feng et al. 2025).

    The return minus the group's mean, divided if std_normalize by its sample standard deviation. A call
    without company, or whose group's returns differ by rounding only (section 6.1), gets exactly 0. ValueError
    for another number of keys, for returns that are not finite, and for a std_normalize that is no truth value.
    """
    check_switch('std_normalize', std_normalize)
    dtype = returns.dtype if isinstance(returns, torch.Tensor) else torch.float64
    returns = torch.as_tensor(returns, dtype=torch.float64)
    if returns.shape != (len(keys),):
        raise ValueError(f'returns have shape {list(returns.shape)}; allowed: [{len(keys)}], one a key')
    if (bad := ~returns.isfinite()).any():
        call = bad.nonzero()[0].item()
        raise ValueError(f'the return of call {call} is {returns[call].item()}; returns must be finite')
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    group = torch.tensor([number[key] for key in keys], dtype=torch.long)                     # [N]
    size = group.bincount(minlength=len(number))                                              # [groups]

    def over_group(values, reduce):
        return returns.new_zeros(len(number)).scatter_reduce(0, group, values, reduce, include_self=False)

    centred = returns - over_group(returns, 'mean')[group]
    spread = ~same_within(over_group(returns, 'amin'), over_group(returns, 'amax'), dtype)     # [groups]
    if std_normalize:
        variance = over_group(centred**2, 'sum') / (size - 1).clamp(min=1)
        centred = centred / variance.where(spread, 1.0).sqrt()[group]
    return keep_only(centred, spread[group])


# %%
print([round(a, 3) for a in step_advantages(verdicts, keys, std_normalize=False).tolist()])
for n_states in (1, 3, 30):
    for std_normalize in (True, False):
        random = torch.randint(n_states, (60,), generator=rng).tolist()
        returns = 0.05 * torch.randint(5, (60,), generator=rng).double()  # ties are common
        loops = step_advantages_in_loops(returns.tolist(), random, std_normalize)
        found = step_advantages(returns, random, std_normalize).tolist()
        worst = max(abs(a - b) for a, b in zip(found, loops))
        print(f'{n_states:2} states, std_normalize {std_normalize!s:5}: agree {worst < 1e-12}')

# %% [markdown]
# ## Both together, for each token
#
# A call without company would learn nothing, so GiGPO keeps the episode's advantage and adds the step's with
# a weight ω, which its authors set to 1:
#
# $$A = A^E + \omega A^S.$$
#
# All tokens of a call get the call's number. The step advantages come in order of rows and turns, as one long
# list; the position of call k of row b in it is the number of calls in the rows before, plus k.

# %%
#@save
def step_group_advantages(episode, step, turn, mask, weight=1.0):
    """A = episode + weight * step for each token (GiGPO, Feng et al. 2025): [B, T-1], 0 outside mask.

    episode [B]; step [N], the calls in order of row and turn; turn [B, T]; mask [B, T-1]. ValueError if N is
    not the number of calls in `turn`, for shapes that do not fit, or for a weight that is negative or infinite.
    """
    if turn.dim() != 2 or episode.shape != turn.shape[:1] or mask.shape != turn[:, 1:].shape:
        raise ValueError(f'episode, turn, mask: shapes {[list(x.shape) for x in (episode, turn, mask)]}; allowed: '
                         '[B], [B, T], [B, T-1]')
    n_calls = turn.amax(1) + 1                                                                # [B]
    if step.shape != (n_calls.sum(),) or not 0 <= weight < float('inf'):
        raise ValueError(f'{step.numel()} step advantages, weight {weight}; allowed: {int(n_calls.sum())}, one '
                         'for each call of the batch, and a finite weight of at least 0')
    for name, x in (('episode', episode), ('step', step)):
        if not x.isfinite().all():
            raise ValueError(f'{name} advantages hold {x[~x.isfinite()][0].item()}; all must be finite')
    place = (n_calls.cumsum(0) - n_calls)[:, None] + turn[:, 1:]                              # [B, T-1]
    tokens = episode[:, None] + weight * step[place.where(mask.bool(), 0)]
    return keep_only(tokens, mask)


# %%
turn = torch.tensor([[-1, 0, 0, 0, 1, 1, 1], [-1, 0, 0, -1, -1, -1, -1]])                     # [2, 7]
mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)               # [2, 6]
episode, step = torch.tensor([0.5, -0.5], dtype=torch.float64), torch.tensor([0.1, 0.2, 0.3]).double()
step_group_advantages(episode, step, turn, mask).round(decimals=2) + 0.0

# %% [markdown]
# ## Who has company?
#
# Now the starting policy of this book on eight tasks, eight episodes each, as in a training step. A call
# costs 0.05, so the return-to-go of call k of K is the verdict minus 0.05 (K − k).

# %%
from agentrl.base import make_rl_base
from agentrl.episodes import collate
from agentrl.sampling import rollout_batch
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
policy, rng = make_rl_base(tok), torch.Generator().manual_seed(0)
tasks = [randomize_names(task, rng) for task in make_tasks('train')[:8] for _ in range(8)]
trajs = rollout_batch(policy, [EditBudgetEnv() for _ in tasks], tasks, tok, 6, 1.0, rng)
records = []
for n, (traj, task) in enumerate(zip(trajs, tasks)):
    calls = call_texts(traj)
    keys = visited_states(EditBudgetEnv(), task, calls, 6)
    records += [(task.name, n, k, calls[k][7:-8], keys[k], traj.reward - 0.05 * (len(calls) - k))
                for k in range(len(calls))]
calls = pd.DataFrame(records, columns=['task', 'episode', 'call', 'text', 'state', 'return'])
calls['group'] = calls.groupby('state')['state'].transform('size')
calls['advantage'] = step_advantages(calls['return'].tolist(), calls['state'].tolist(), std_normalize=False)
print(len(trajs), 'episodes,', len(calls), 'calls,', calls['state'].nunique(), 'states')

# %%
def company(calls):
    return pd.Series({'calls': len(calls), 'with company': (calls['group'] > 1).sum(),
                      'share': (calls['group'] > 1).mean(), 'largest group': calls['group'].max(),
                      'advantage not 0': (calls['advantage'] != 0).mean()})


by_call = pd.DataFrame({k: company(rows) for k, rows in calls.groupby('call')}).T
table = pd.concat([by_call, company(calls).to_frame('all').T,
                   company(calls[calls['call'] > 0]).to_frame('all but call 0').T])
table.rename_axis('call').astype({name: int for name in ('calls', 'with company', 'largest group')}).round(3)

# %% [markdown]
# Call 0 always has its eight. What remains thins out quickly: an agent that dithers walks where nobody else
# does. A group may also have nothing to say, since all its calls ended alike.
#
# What would have been found without canonical names? We take the names as they are.

# %%
raw = [(tasks[n].source, tuple(calls.loc[(calls['episode'] == n) & (calls['call'] < k), 'text']))
       for n, k in zip(calls['episode'], calls['call'])]
sizes = pd.Series(raw).value_counts()
print('calls with company if names count:', int(sizes[sizes > 1].sum()), 'of', len(raw))

# %% [markdown]
# ## One task, call by call
#
# The groups of one task that have company and spread, with what was done in each and what it returned.

# %%
some = calls[(calls['advantage'] != 0) & (calls['call'] > 0)]
name = some['task'].value_counts().index[0]
print(name)
some[some['task'] == name].sort_values(['call', 'state', 'episode'])[
    ['call', 'episode', 'text', 'group', 'return', 'advantage']].round(3)

# %% [markdown]
# Finally the token-level advantages of this batch, and the identity that was seen by hand: at the first call
# the step advantage is the group advantage of the episode, so there GiGPO counts it twice.

# %%
batch = collate(trajs, tok.pad_id)
first = calls[calls['call'] == 0]
by_task = first.groupby('task')['return']
episode = torch.tensor((first['return'] - by_task.transform('mean')).tolist(), dtype=torch.float64)     # [64]
step = torch.tensor(calls['advantage'].tolist(), dtype=torch.float64)
tokens = step_group_advantages(episode, step, batch['turn'], batch['action_mask'])
print('equal at call 0:', (step[first.index.tolist()] - episode).abs().max().item() < 1e-12)
kept = tokens[batch['action_mask']]
print(list(tokens.shape), 'tokens, of which', len(kept), 'kept;', int((kept != 0).sum()), 'not zero')

# %% [markdown]
# ## What was seen
#
# Three episodes by hand: the same −1/3 for a harmless `read` and a wrong edit became −0.333 and −0.5, and
# four calls of nine were compared with nobody. On 64 episodes of the starting policy, 225 calls were made
# in 143 states: a share of 0.471 had company, but 0.261 if the first call is left aside, where the step
# advantage only repeats the episode's; and of all 161 later calls a share of 0.149 got an advantage that
# is not zero. From the third call on, no group had anything to say. If names counted there would be no
# company at all. Whether what step groups do say is *right* is measured in 7.6.
#
# **Try it.** Leave the calls that are left out of `state_key`: how many more calls have company, and what is
# wrong with comparing them? Then take 32 episodes of two tasks instead of eight of eight.
