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
# # 8.3 Whiten the advantages, and know whose mean you subtract
#
# Before an update one often shifts and scales the advantages of a batch to mean 0 and deviation 1, so that
# the step does not depend on the size of the rewards. It is one line of code, and it hides a choice: the
# mean over what? Over tokens, an episode of nine tokens counts nine times. We will see what that does to two
# episodes of lengths 1 and 9, on which side of zero real episodes end up, and how much of it reaches the
# gradient: next to nothing under a mean over tokens, a push toward short episodes under a mean over
# episodes.
#
# **Time** 20 min. **Assumes** [5.5](../05_trajectories/05_5_rl_base.ipynb),
# [6.2](../06_policy_gradient/06_2_loss_aggregation.ipynb). **Afterwards you can** centre a batch over
# tokens or over episodes, and predict on which side of zero a short episode ends up in each.

# %%
#@save whitening
import torch

from agentrl.gradient import check_kept, keep_only, same_within

# %% [markdown]
# ## Three numbers by hand
#
# Of 1, 2 and 6 the mean is 3. The squares of the deviations are 4, 1 and 9, together 14; divided by $n - 1 =
# 2$ that is 7, so the *sample* deviation is $\sqrt 7 = 2.646$, and the whitened values are $-2/2.646$,
# $-1/2.646$ and $3/2.646$.

# %%
def whiten_in_loops(x):
    mean = sum(x) / len(x)
    std = (sum((value - mean) ** 2 for value in x) / (len(x) - 1)) ** 0.5
    return [(value - mean) / std for value in x]


[round(value, 3) for value in whiten_in_loops([1.0, 2.0, 6.0])]

# %% [markdown]
# ## The same with a mask
#
# Only kept positions are counted, and only they get a value; the others become exactly zero whatever stood
# there. What cannot be whitened is refused: arrays of different shapes, and a kept value that is infinite or
# not a number, which would spread to all the others through the mean.

# %%
#@save
def check_whiten(x, mask):
    """ValueError unless x and mask have one shape, x is of a floating type and finite where it is kept."""
    if x.shape != mask.shape:
        raise ValueError(f'x has shape {list(x.shape)}, mask {list(mask.shape)}; they must be equal')
    if not x.is_floating_point():
        raise ValueError(f'x is {x.dtype}; allowed: numbers with a fraction, such as x.double()')
    check_kept(mask, x=x)


# %% [markdown]
# Without spread there is nothing to scale: one kept value, or many that are equal, must give zero. Equal *on
# paper* is the harder case (9.1 meets it in groups): values that differ in the last bit would be blown up to
# ±1. So a spread of at most `eps` counts as none, as a share of the largest
# value if that is above 1 (section 6.1), and nothing is added to the deviation. That is our
# departure from common implementations, which add `eps` to the variance: they turn a spread of the last bit
# into something small, not into zero.

# %%
#@save
def masked_whiten(x, mask, eps=1e-8):
    """x, shifted and scaled to mean 0 and sample standard deviation 1 over the kept positions, 0 elsewhere.

    x, mask: the same shape, such as [B, T-1]. Exactly 0 everywhere if fewer than two positions are kept or
    all kept values lie within eps of each other, as `same_within` measures it. ValueError for a kept value that
    is not finite, for a type without fractions, and for an eps that is negative or infinite.
    """
    check_whiten(x, mask)
    if not 0 <= eps < float('inf'):
        raise ValueError(f'eps={eps} must be a finite number >= 0')
    kept = x[mask.bool()]  # [N]
    if len(kept) < 2 or same_within(kept.min(), kept.max(), x.dtype, eps):
        return torch.zeros_like(x)
    return keep_only((x - kept.mean()) / kept.std(), mask)


# %%
nan = float('nan')
x = torch.tensor([[1.0, nan, 2.0], [6.0, 9.0, nan]], dtype=torch.float64)  # [2, 3]
mask = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)
print(masked_whiten(x, mask).round(decimals=3))

# %%
rng = torch.Generator().manual_seed(0)
worst = 0.0
for _ in range(100):
    x = torch.randn(6, 8, generator=rng, dtype=torch.float64)
    mask = torch.rand(6, 8, generator=rng, dtype=torch.float64) < 0.5
    loops = torch.tensor(whiten_in_loops(x[mask].tolist()), dtype=torch.float64)
    worst = max(worst, (masked_whiten(x, mask)[mask] - loops).abs().max().item())
print('100 random masks agree with the loop:', worst < 1e-12)

# %% [markdown]
# Nothing to compare: six costs of 0.05 multiplied and added up, which differ in the last bit; one kept
# value; none. The naive formula finds a deviation in the first.

# %%
from functools import reduce
from operator import add

multiplied, added = -0.05 * 6, reduce(add, 6 * [-0.05])  # `sum` rounds differently from Python 3.12 on
pair = torch.tensor([[multiplied, added, 0.7]], dtype=torch.float64)
print('difference', f'{abs(multiplied - added):.1e}')
print('naive     ', [round(value, 3) for value in whiten_in_loops([multiplied, added])])
for kept in ([1, 1, 0], [0, 0, 1], [0, 0, 0]):
    print('kept', kept, masked_whiten(pair, torch.tensor([kept])).tolist())

# %% [markdown]
# ## Lengths 1 and 9
#
# A short episode of one token and a long one of nine: three calls of three tokens, with an observation after
# each of the first two. All tokens of an episode have the episode's advantage. Whose mean should be zero?
# Three candidates, each a mask that says what is counted: every token, one token of each call, one token of
# each episode.

# %%
import torch.nn.functional as F


def whose_mean(mask):
    """What may be counted, masks [B, T-1]: all kept tokens, the last one of each call, of each episode."""
    left = mask.flip(1).cumsum(1).flip(1)  # [B, T-1], kept tokens from here to the end
    return {'tokens': mask, 'calls': mask & ~F.pad(mask[:, 1:], (0, 1)), 'episodes': mask & (left == 1)}


def whitened_by(x, mask, counted):
    """Shift and scale taken from the counted positions, used on all kept ones: [B, T-1]."""
    kept = x[counted]
    return keep_only((x - kept.mean()) / kept.std(), mask)


mask = torch.tensor([[1] + 10 * [0], [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]], dtype=torch.bool)  # [2, 11]
for name, counted in whose_mean(mask).items():
    print(f'{name:9}', counted.long().tolist())

# %% [markdown]
# Two cases. In the first the short episode has advantage 1 and the long one 0. In the second the advantages
# came from a critic and *both* are positive: both went better than expected, the short one by 0.2, the long
# one by 0.5. In the last row the values are only scaled, by their root mean square over tokens.

# %%
import pandas as pd


def first_tokens(advantages):
    """Advantages of the first token of each episode after whitening, a row for each way to count."""
    x = torch.tensor(advantages, dtype=torch.float64)[:, None].expand(mask.shape)
    ways = {name: whitened_by(x, mask, counted) for name, counted in whose_mean(mask).items()}
    ways['scaled only'] = keep_only(x / x[mask].square().mean().sqrt(), mask)
    means = {name: x[counted].mean().item() for name, counted in whose_mean(mask).items()}
    return {name: [means.get(name, 0.0), *way[:, 0].tolist()] for name, way in ways.items()}


columns = ['subtracted', 'short', 'long']
cases = {'1 and 0': first_tokens([1.0, 0.0]), '0.2 and 0.5': first_tokens([0.2, 0.5])}
table = pd.concat({name: pd.DataFrame(rows, index=columns).T for name, rows in cases.items()}, axis=1)
table.round(3)

# %% [markdown]
# Counted by tokens, the mean is almost that of the long episode: 0.1, where that of the two episodes is 0.5.
# The long one is told next to nothing about itself (−0.316), the short one gets 2.846.
#
# In the second case every shift turns the sign of the short episode. It did better than expected, and its
# token is made less likely. A critic's advantages already have a meaningful zero, and any centring moves it;
# how far depends on who is in the batch. The gradient shows it directly: of the loss with respect to the
# log-probability of the short episode's token, where negative means *make it more likely*.

# %%
from agentrl.aggregation import loss_weights
from agentrl.gradient import reinforce_loss

x = torch.tensor([0.2, 0.5], dtype=torch.float64)[:, None].expand(mask.shape)
for name, advantages in {'raw': x, 'whitened over tokens': masked_whiten(x, mask)}.items():
    logp = torch.full(mask.shape, -1.0, dtype=torch.float64, requires_grad=True)
    reinforce_loss(logp, advantages, mask).backward()
    print(f'{name:21} short {logp.grad[0].sum().item():+.3f}  long {logp.grad[1].sum().item():+.3f}')

# %% [markdown]
# ## Real episodes
#
# Now 64 episodes of the starting policy with a cost of 0.1 a call and no critic: an episode's advantage is
# its reward. Long episodes here are those that wander through six calls and never submit, so they have the
# lowest rewards, and they have many tokens. They pull the token mean down.

# %%
from types import SimpleNamespace

from agentrl.base import make_rl_base
from agentrl.episodes import collate
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

SETTINGS = {'prompts_per_step': 8, 'group_size': 8, 'max_turns': 6, 'max_edits': 1, 'reward': 'hidden',
            'wrong_submit': 0.0, 'invalid_penalty': 0.0, 'temperature': 1.0, 'fresh_names': True}
tok = build_tokenizer(make_tasks('all'))
policy, tasks = make_rl_base(tok), make_tasks('train')


def sample_batch(rng, step_penalty):
    """A training batch of the starting policy, and the trajectories in it."""
    trajs = sample_step(policy, tasks, tok, SimpleNamespace(step_penalty=step_penalty, **SETTINGS), rng)
    return collate(trajs, tok.pad_id), trajs


batch, trajs = sample_batch(torch.Generator().manual_seed(0), step_penalty=0.1)
mask = batch['action_mask']
x = batch['reward'][:, None].expand(mask.shape)  # [64, T-1]
{name: round(x[counted].mean().item(), 3) for name, counted in whose_mean(mask).items()}

# %% [markdown]
# Which episodes lie between the means? A row for each kind: passed or not, number of calls, how many there
# are, and their advantage whitened in the three ways.

# %%
kinds = pd.DataFrame([{'passed': traj.info['hidden_pass'], 'calls': traj.info['n_turns'],
                       'tokens': int(traj.action_mask.sum()), 'reward': traj.reward} for traj in trajs])
first = mask.long().argmax(1, keepdim=True)  # [64, 1], column of an episode's first kept token
for name, counted in whose_mean(mask).items():
    kinds[f'by {name}'] = whitened_by(x, mask, counted).gather(1, first)[:, 0].tolist()
kinds.groupby(['passed', 'calls']).agg(
    episodes=('reward', 'size'), tokens=('tokens', 'mean'), reward=('reward', 'mean'),
    **{column: (column, 'mean') for column in kinds if column.startswith('by ')}).round(3)

# %%
differ = kinds[(kinds['by tokens'] > 0) != (kinds['by episodes'] > 0)]
print(len(differ), 'of', len(kinds), 'episodes have another sign; their calls:',
      sorted(differ['calls'].unique().tolist()), 'and how many passed:', differ['passed'].sum())
infos = [trajs[n].info for n in differ.index]
print('of these, edited without reading:', sum(info['n_edits'] == 1 and info['n_reads'] == 0 for info in infos))
for cost in (0.05, 0.1, 0.2, 0.3):
    reward = kinds['passed'] - cost * kinds['calls']
    by_token, by_episode = (reward * kinds['tokens']).sum() / kinds['tokens'].sum(), reward.mean()
    between = ((reward > by_token) & (reward < by_episode)).sum()
    print(f'cost {cost}: mean over tokens {by_token:.3f}, over episodes {by_episode:.3f}, between {between}')

# %% [markdown]
# Nearly all of them are blind attempts: an edit without reading, submitted, failed (19; one read and gave
# up). Compared with the average *episode* they did badly. Compared with the average *token* they did well,
# because most tokens were written in episodes that wandered about at a higher cost. So one way of counting
# discourages them and the other encourages them, from the same episodes and rewards. How many episodes lie
# between the means depends on the cost, and on luck.

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
table = kinds.groupby(['passed', 'calls']).agg(
    episodes=('reward', 'size'), reward=('reward', 'mean'), tokens=('tokens', 'mean')).reset_index()
fig, ax = plt.subplots(figsize=(7.4, 3.8))
for passed, colour in ((False, SPARE_COLORS[0]), (True, SPARE_COLORS[1])):
    part = table[table['passed'] == passed]
    ax.scatter(part['reward'], part['tokens'], s=12 * part['episodes'], color=colour)
    for row in part.itertuples():
        label = f'{row.episodes} episodes' if row.episodes == table['episodes'].max() else f'{row.episodes}'
        side = -1 if row.reward < kinds['reward'].mean() else 1
        ax.annotate(label, (row.reward, row.tokens), xytext=(13 * side, 5), textcoords='offset points',
                    ha='right' if side < 0 else 'left', fontsize='small', color=colour)
    ax.text(0.5 if passed else -0.6, 3, 'passed' if passed else 'failed', color=colour)
for name, style, side in (('tokens', '-', 'right'), ('episodes', '--', 'left')):
    mean = x[whose_mean(mask)[name]].mean().item()
    ax.axvline(mean, color='#333333', linestyle=style, linewidth=1.2)
    ax.text(mean + (0.01 if side == 'left' else -0.01), 23, f'mean over {name}', ha=side, fontsize='small')
ax.set(xlabel='reward of the episode (cost 0.1 a call)', ylabel='policy tokens an episode',
       xlim=(-0.8, 0.9), ylim=(0, 25))
save_figure(fig, '08_3_whose_mean', table)

# %% [markdown]
# ## When does it matter?
#
# Another sign on a third of the episodes sounds like a disaster. Yet 6.1 found that a constant subtracted
# from all rewards leaves the expected gradient as it was, and two ways of counting differ by just that, a
# constant (and a scale). Is the argument good for every loss? It needs $\mathbb{E}\big[\sum_t w_t \nabla
# \log \pi(a_t)\big] = 0$, true if the weights $w_t$ of 6.2 do not depend on $a_t$ or on anything after it.
# Divide by the length of the episode and they do.
#
# A toy: the policy stops with probability $q$ at each place and writes two tokens at most. The episodes are
# `E`, `w E` and `w w`. With θ the logit of $q$, sum over all three what a constant advantage of 1 does.

# %%
def push_of_a_constant(q, weights):
    """Expected slope along the logit of stopping when every token has advantage 1, weighted an episode."""
    episodes = [(q, [1 - q]), ((1 - q) * q, [-q, 1 - q]), ((1 - q) ** 2, [-q, -q])]  # probability, scores
    return sum(prob * weights(len(scores)) * sum(scores) for prob, scores in episodes)


for q in (0.2, 0.5):
    total, mean = push_of_a_constant(q, lambda n: 1), push_of_a_constant(q, lambda n: 1 / n)
    print(f'q = {q}: sum over tokens {abs(total):.3f}, mean over the episode {mean:.3f}, '
          f'q(1-q)/2 = {q * (1 - q) / 2:.3f}')

# %% [markdown]
# Summed over tokens, a constant does nothing on average. Averaged over each episode first, it pushes toward
# stopping: the token of a short episode weighs more. (The mean over all tokens of a large batch is a sum
# with a denominator that is nearly fixed.) Now the same for the policy: the gradient of a constant advantage
# of 1 in four batches, under both means. If it is only noise, batches point in unrelated directions and the
# cosine between them is near 0. If it is a push, they agree.

# %%
from itertools import combinations

from agentrl.packing import action_log_probs

MODES = ('token_mean', 'seq_mean_token_mean')


def gradients(batch):
    """For each mean: policy gradients of the reward and of a constant 1, flat, [2, parameters]."""
    logp = action_log_probs(policy, batch['ids'], batch['length'], batch['action_mask'])  # [64, T-1]
    parameters, result = list(policy.parameters()), {}
    for mode in MODES:
        weighted = (loss_weights(batch['action_mask'], mode) * logp).sum(1)  # [64]
        losses = (weighted @ batch['reward'], weighted.sum())
        result[mode] = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(
            loss, parameters, retain_graph=True)]) for loss in losses])
    return result


rng = torch.Generator().manual_seed(1)
batches = [sample_batch(rng, step_penalty=0.1)[0] for _ in range(4)]
parts = [gradients(batch) for batch in batches]

# %%
def agreement(vectors):
    """Mean cosine between pairs."""
    pairs = [F.cosine_similarity(a, b, dim=0).item() for a, b in combinations(vectors, 2)]
    return sum(pairs) / len(pairs)


def centred(part, batch, name):
    """The gradient of the reward minus its mean over what `name` says."""
    mask = batch['action_mask']
    reward = batch['reward'][:, None].expand(mask.shape)
    return part[0] - reward[whose_mean(mask)[name]].mean() * part[1]


rows = {}
for mode in MODES:
    ones = [part[mode][1] for part in parts]
    ways = {name: [centred(part[mode], batch, name) for part, batch in zip(parts, batches, strict=True)]
            for name in ('tokens', 'episodes')}
    rows[mode] = {'a constant, batch with batch': agreement(ones)}
    rows[mode] |= {f'mean over {name}, batch with batch': agreement(way) for name, way in ways.items()}
    rows[mode]['sums of four: tokens with episodes'] = agreement([sum(way) for way in ways.values()])
pd.DataFrame(rows).round(3)

# %% [markdown]
# Under the mean over tokens the constant is noise, and the two ways of counting lead to the same gradient.
# So for this loss the signs of single episodes are less telling than they look. Under the mean over episodes
# the constant has a direction of its own, in all batches the same, and whose mean is subtracted says how
# much of it is mixed in. (That the batches agree better with the token mean is no merit: part of what they
# agree on is that push.)
#
# What we take from it: count what the loss counts; if the advantages come from a critic or from groups,
# whose zero has a meaning, scaling without a shift keeps it; and whiten the whole batch before cutting it,
# since a minibatch has a mean of its own. Whitening also shares the fault that 9.1 finds in groups: if all
# episodes fail, their costs are blown up to deviation 1 whatever a call costs.
#
# ## What was seen
#
# Lengths 1 and 9, advantages 1 and 0: the mean over tokens is 0.1, over episodes 0.5, and the short episode
# gets 2.846 or 0.707. Where both had done better than expected, whitening turned the gradient at the short
# one from −0.020 to +0.285. In 64 real episodes at a cost of 0.1 the means were −0.215 and −0.131, and 20
# failed episodes, 19 of them blind, lay between; at 0.05, none. In the gradient, a constant is noise under
# a mean over tokens (mean cosine between batches −0.045) and a push under a mean over episodes (0.873).
#
# **Try it.** Give the long episode of the toy more calls of fewer tokens. Which of the three rows moves?
# Then use a cost of 0.02 in the real batch: who lies between the means now?
