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
# # 9.6 Group normalisation hides the size of a penalty
#
# A cost of 0.05 a call is small beside a verdict of 1, and a cost of 0.3 is not. GRPO's division by the
# group's standard deviation makes them equal wherever a whole group fails, and a policy that starts out
# failing has many such groups. We see it by hand in a group of four; in the first training batch, where a
# cost of 0.05 turns the gradient nearly as far as one of 0.3; and in training runs with and without the
# division. We also ask what the smaller gradient without it changes, given that Adam rescales it anyway.
#
# **Time** 10 min. **Assumes** [9.1](09_1_group_advantages.ipynb), [9.3](09_3_arms.ipynb). **Afterwards you
# can** say in which groups two costs give the same advantages, and measure how far a small one turns the
# gradient.

# %%
import pandas as pd
import torch

from agentrl.advantages import group_advantages

# %% [markdown]
# ## A group that fails
#
# Four episodes of one task, all failed, of 1, 2, 4 and 5 calls; each call costs $c$, so the rewards are
# $-cK$. The mean is $-3c$. The deviations from it are $2c, c, -c, -2c$, their squares add up to $10c^2$, and
# the sample standard deviation is $c\sqrt{10/3} = 1.826\,c$. Divide, and $c$ is gone: $2/1.826 = 1.095$ and
# $1/1.826 = 0.548$, whether a call costs a cent or a fortune.

# %%
calls = torch.tensor([1.0, 2.0, 4.0, 5.0], dtype=torch.float64)


def four_ways(verdict):
    """Group advantages of rewards verdict - c * calls, for two costs, with the division and without."""
    rows = {(deviation, c): (group_advantages(verdict - c * calls, 4, deviation == 'divided') + 0.0).tolist()
            for deviation in ('divided', 'not divided') for c in (0.05, 0.3)}
    table = pd.DataFrame(rows, index=[f'{k:.0f} calls' for k in calls]).T
    return table.assign(squares=(table ** 2).sum(axis=1)).rename_axis(['', 'cost'])


four_ways(torch.zeros(4, dtype=torch.float64)).round(3)

# %% [markdown]
# *squares* is the sum of the squared advantages, a measure of how loud a group is in the batch. Divided, it
# is $G - 1 = 3$ in every group with spread. Not divided, this group grows 36 times as loud when the cost
# grows six times.
#
# ## A group with a success
#
# Now the five-call episode passed. Its reward is $1 - 5c$: 0.75 and −0.5. At 0.05 it is the best of its
# group in both ways. At 0.3 it is worse than giving up at once, −0.3, which is no fault of the division:
# that is what a price of 0.3 says.

# %%
four_ways(torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)).round(3)

# %% [markdown]
# Compare the rows for 0.05 in both tables. Divided, a group that fails is as loud as a group with a success,
# 3 and 3. Not divided, it is 0.025 against 0.575: when there is a success somewhere in the batch, what is
# said about cents is nearly drowned out. The division does not only change the size of all advantages, which
# would not matter much; it changes the weight of groups *against each other*. (Section 9.1 has the same for
# groups of eight.)
#
# ## The first batch of training
#
# How many groups fail at the start? Here are the first batches of three seeds, 8 tasks × 8 episodes.
# Before the first update all arms sample the same episodes, so one batch serves for all costs.

# %%
from agentrl.aggregation import loss_weights
from agentrl.arms import SEEDS
from agentrl.base import make_rl_base
from agentrl.episodes import collate
from agentrl.packing import action_log_probs
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

tok, tasks, cfg = build_tokenizer(make_tasks('all')), make_tasks('train'), RLConfig()
policy, first = make_rl_base(tok), {}
for seed in SEEDS[:3]:
    trajs = sample_step(policy, tasks, tok, cfg, torch.Generator().manual_seed(seed))
    batch = collate(trajs, tok.pad_id)
    batch['calls'] = torch.tensor([traj.info['n_turns'] for traj in trajs], dtype=torch.float64)
    batch['failed'] = batch['reward'].reshape(-1, 8).sum(1).eq(0).repeat_interleave(8)  # [64]
    first[seed] = batch
    print(f'seed {seed}: passes in each group', batch['reward'].reshape(-1, 8).sum(1).long().tolist())

# %%
def loudness(batch, cost, divide):
    """Share of the batch's squared advantages that lies in groups that failed."""
    squares = group_advantages(batch['reward'] - cost * batch['calls'], 8, divide) ** 2
    return (squares[batch['failed']].sum() / squares.sum()).item()


ways = [(divide, cost) for divide in (True, False) for cost in (0.0, 0.05, 0.3)]
rows = {('divided' if divide else 'not divided', cost):
        [loudness(first[seed], cost, divide) for seed in first] for divide, cost in ways}
pd.DataFrame(rows, index=[f'seed {seed}' for seed in first]).T.rename_axis(['', 'cost']).round(3)

# %% [markdown]
# Without a cost the groups that fail are silent. With one of 0.05 and the division they have a quarter to a
# half of the say, the same as with 0.3. Without the division, two per cent.
#
# ## Where the gradient points
#
# What counts is the direction of the policy's gradient. We take the gradient without a cost as one landmark
# (*look at verdicts only*) and the one with a cost of 0.3 as the other (*be short*), each with the same
# treatment of the deviation, and ask where the gradient with a cost of 0.05 lies between them. `length` is
# the norm. The last column is the length of Adam's first step with this gradient, at our learning rate.

# %%
def gradient(batch, cost, divide):
    """Flat gradient of the loss on a batch before any update (ratio 1), token mean."""
    logp = action_log_probs(policy, batch['ids'], batch['length'], batch['action_mask'])  # [64, T-1]
    weights = loss_weights(batch['action_mask'], 'token_mean')
    advantages = group_advantages(batch['reward'] - cost * batch['calls'], 8, divide)
    loss = -(weights * logp).sum(1) @ advantages
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])


rows = []
for seed in first:
    for divide in (True, False):
        free, small, large = (gradient(first[seed], cost, divide) for cost in (0.0, 0.05, 0.3))
        near = [torch.cosine_similarity(small, other, dim=0).item() for other in (free, large)]
        adam = [(cfg.lr * g / (g.abs() + 1e-5)).norm().item() for g in (small, large)]
        rows.append([seed, 'divided' if divide else 'not divided', *near, small.norm().item(),
                     large.norm().item(), *adam])
columns = ['seed', '', 'cosine with no cost', 'cosine with 0.3', 'length, 0.05', 'length, 0.3',
           'Adam step, 0.05', 'Adam step, 0.3']
pd.DataFrame(rows, columns=columns).set_index(['seed', '']).round(3)

# %% [markdown]
# With the division, a cost of 0.05 already points where 0.3 points. Without it the gradient keeps to the
# verdicts.
#
# And the size? The gradient is 0.31 to 0.4 times as long without the division. One might fear that this is
# merely a smaller learning rate. It is not: Adam divides each component by its own running size, so its
# first step is only a tenth shorter. Nor does the bound on the gradient's norm, 1, have a hand in it: both
# lengths are below it. What changes is the direction.
#
# ## Forty steps
#
# The arms of section 12.3 with a cost, and the same without the division, ten seeds each: the held-out tasks,
# and numbers from the way there, above all calls an episode in steps 0 to 4, when the price is first felt, and
# the pass rate in steps 5 to 9. First how many agents gave up, which is to say that they make fewer than 1.5
# calls, and how many dropped the test; then the lowest seed, the middle one (the median) and the highest.

# %%
from agentrl.arms import ARMS, STEPS, arm_results
from agentrl.plotting import plot_panels, save_figure, save_table, use_style, with_interval

PAIRS = {'penalty 0.05': 'penalty 0.05, no std', 'penalty 0.3': 'penalty 0.3, no std'}
FIVE = ['default', *PAIRS, *PAIRS.values()]
print({arm: ARMS[arm] for arm in PAIRS.values()})
heldout, history = arm_results(FIVE, SEEDS)
key, early = ['arm', 'seed'], history['step'] < 5
runs = heldout.set_index(key)[['pass_rate', 'tests', 'turns']].add_prefix('held-out ')
runs['calls, steps 0-4'] = history[early].groupby(key)['turns'].mean()
runs['pass, steps 5-9'] = history[history['step'].between(5, 9)].groupby(key)['pass_rate'].mean()
runs['gradient norm, steps 0-4'] = history[early].groupby(key)['grad_norm'].mean()
runs = runs.loc[FIVE]
above = history.assign(over=history['grad_norm'] > 1).groupby('arm')['over'].sum().loc[FIVE]
print(f'of {STEPS * len(SEEDS)} steps, mean gradient norm above the bound of 1:', above.to_dict())
save_table(runs.reset_index(), '09_6_hidden_penalty')
ends = {'gave up': runs['held-out turns'] < 1.5, 'tests below 0.1': runs['held-out tests'] < 0.1}
pd.DataFrame(ends).groupby('arm', sort=False).sum().T

# %%
by_arm = runs.groupby('arm', sort=False).agg(['min', 'median', 'max']).stack(future_stack=True)
by_arm.rename_axis(['arm', 'over seeds']).round(3)

# %% [markdown]
# Then the means, in brackets a 95% t interval over the seeds.

# %%
runs.groupby('arm', sort=False).agg(with_interval).T

# %% [markdown]
# Runs with the same seed start from the same first batch and are tested on the same episodes, so the difference
# of a pair, with the division minus without, is the fairest comparison. And what does the partner do of an
# agent that gave up at 0.05?

# %%
differences = {with_std: (runs.loc[with_std] - runs.loc[without]).agg(with_interval)
               for with_std, without in PAIRS.items()}
pd.DataFrame(differences).rename_axis('divided minus not divided')

# %%
cents = runs.loc[['penalty 0.05', 'penalty 0.05, no std']].unstack('arm')
cents.loc[ends['gave up'].loc['penalty 0.05'], ['held-out pass_rate', 'held-out turns']].round(3)

# %%
use_style(dashes=True)
labels = {'pass_rate': 'pass rate', 'turns': 'calls an episode', 'tests': 'tests an episode',
          'grad_norm': 'norm of the gradient'}
shown = ['default', 'penalty 0.05', 'penalty 0.05, no std']
fig = plot_panels(history, shown, labels, 'With and without the division (line: mean of seeds, band: range)')
drawn = history.loc[history['arm'].isin(shown), ['arm', 'seed', 'step', *labels]]
save_figure(fig, '09_6_with_and_without', drawn)

# %% [markdown]
# The pass rates end alike on nine seeds; the way differs. With the division the agent first shortens its
# episodes, as if the price were high, and its pass rate rises a few steps later than that of the default. On
# one seed the shortening does not end, and the agent gives up: it is the lower edge of the band. Without the
# division the curve of the pass rate is a little behind that of the default, and the price does its work
# later, when most groups pass and their episodes differ in calls only: the useless test goes, on eight of ten
# seeds within the forty steps. (With the division it goes sooner for the same reason that hurts at the start: once
# all pass, too, cents are blown up to deviation 1.)
#
# At 0.3 nothing helps. An attempt of the starting policy is then worth less than giving up, with or without
# the division (12.3), and all twenty runs give up within a few steps.
#
# ## What was seen
#
# | claim | here | verdict |
# |---|---|---|
# | in a group that fails, 0.05 pushes as hard as 0.3 when divided | advantages 1.095, 0.548, −0.548, −1.095 for both | holds, exactly |
# | so the batch hears it as loudly | three first batches: 0.25 to 0.5 of the squared advantages, against 0.016 to 0.026 without the division | holds |
# | and a small price bends the gradient like a large one | cosine with that of 0.3: 0.934 to 0.976 divided, 0.806 to 0.9 not | holds for these batches |
# | the division costs calls early on | ten seeds: 0.362 fewer in steps 0 to 4 (0.226 to 0.497) | holds |
# | and delays learning | pass rate in steps 5 to 9 lower by 0.205 (0.115 to 0.295) | holds |
# | without it a collapse at 0.05 is avoided | one seed of ten collapses with the division, none without; held-out pass 0.68 and 0.757, a difference of −0.077 (−0.244 to 0.091) | undecided |
# | 0.3 collapses only because of the division | all twenty runs give up, held-out pass at most 0.006 | does not hold |
#
# Without the division the gradient is less than half as long, yet Adam's first step is 0.2 against 0.226. The
# bound on the norm is seldom reached: at 0.05 in 14 of 400 steps with the division, in none without.
#
# The delay, likely with three seeds, is decided with ten. The collapse is not: on the seed that gave up, the
# run without the division passes 0.738, but one case in ten may be chance. A base that fails more, or a price
# between the two, would be the place to look for more of them.
#
# **Try it.** Repeat the first table with a cost of 0.0001. Then add an arm with a `step_penalty` of 0.15 and
# one of 0.15 without the division: is there a seed on which only one of them gives up?
