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
# # 15.4 Give each call its credit, by each method, beside the truth
#
# The lab of 7.6 knows the true advantage of every call of sixty episodes, from a thousand continuations
# before and after it, and what ten methods said of the same calls. There it was averaged. Here one looks at
# one episode at a time: which call made the difference, who noticed, who blamed the wrong one; and what λ
# does to it.
#
# **Time** 10 min. **Assumes** [7.6](../07_advantages/07_6_credit_lab.ipynb), [15.0](15_0_sliders.ipynb).
# **Afterwards you can** compare what each estimator credits to one call, and say which of them needs a
# critic.

# %%
#@save credit_explorer
from functools import lru_cache
from html import escape

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from agentrl.credit import gae_advantages
from agentrl.credit_lab import LAB_COSTS, lab_critic, lab_group, lab_results
from agentrl.critic import critic_values
from agentrl.explorer import Explorer, menu, slider
from agentrl.plotting import spread_labels, use_style
from agentrl.tasks import make_tasks
from agentrl.turns import call_starts

# %% [markdown]
# ## One episode of the lab
#
# A row a method, a column a call. The truth comes first. *Draw* takes of each method one estimate, which is
# what a training step would see; *mean* takes the mean over its replays, which leaves only its bias. A draw
# plays on anew from its call, so its ending may be another one than that of the episode.

# %%
#@save
@lru_cache
def lab_table():
    """The lab's rows of episodes of which every call was measured."""
    table = lab_results()
    return table[table['whole']].assign(mean=(table['mean_1'] + table['mean_2']) / 2)


def episode_credit(task=0, episode=0, cost=0.0, estimate='draw'):
    """Advantages in a lab episode: a DataFrame, a row a method (the truth first), a column a call."""
    table = lab_table()
    rows = table[(table['task'] == task) & (table['episode'] == episode) & (table['cost'] == cost)]
    if rows.empty:
        raise ValueError(f'task={task}, episode={episode}, cost={cost} is not in the lab; it has tasks 0 to '
                         f'{table["task"].max()}, episodes 0 to 2 and costs {", ".join(map(str, LAB_COSTS))}')
    methods = rows.pivot(index='method', columns='call', values=estimate).loc[rows['method'].unique()]
    truth = rows.drop_duplicates('call').set_index('call')['truth']
    return pd.concat([truth.to_frame('truth').T, methods])


def episode_calls(task, episode):
    """The calls of a lab episode in words, and whether it passed."""
    found = lab_group(task)[episode]
    calls = [text.replace('<call> ', '').replace(' </call>', '') for text in found.texts]
    return calls, found.traj.reward > 0


# %%
calls, passed = episode_calls(4, 1)
print(' | '.join(calls), '- passes' if passed else '- fails')
episode_credit(4, 1).round(2)

# %% [markdown]
# ## The same with colours
#
# Blue is credit and vermillion blame, as in 5.1, and the strength of the colour is that of the number. A
# cross marks an estimate whose sign is wrong where the truth is clear (beyond 0.05), so that nothing
# depends on the colour alone. The last column is the mean distance from the truth.

# %%
#@save
CLEAR = 0.05                                                            # a truth that has a sign


def credit_cell(value, truth, largest):
    """An advantage as a coloured cell, with a cross where its sign is wrong."""
    strength = min(1.0, abs(value) / largest) if largest else 0.0
    fill = f'{"#0072B2" if value > 0 else "#D55E00"}{round(150 * strength):02x}'
    wrong = ' ×' if abs(truth) > CLEAR and value * truth < 0 else ''
    style = f'background-color:{fill};padding:1px 10px;text-align:right'
    return f'<td style="{style}">{round(value, 2) + 0.0:+.2f}{wrong}</td>'


def credit_html(task=4, episode=1, cost=0.0, estimate='draw'):
    """The credit of each call of a lab episode by each method, as a coloured table."""
    table, (calls, passed) = episode_credit(task, episode, cost, estimate), episode_calls(task, episode)
    largest, truth = table.abs().max().max(), table.loc['truth']
    head = ''.join(f'<th style="padding:1px 10px">{k}: {escape(call)}</th>' for k, call in enumerate(calls))
    lines = [f'<tr><th></th>{head}<th style="padding:1px 10px">mean distance</th></tr>']
    for method, row in table.iterrows():
        cells = ''.join(credit_cell(value, truth[k], largest) for k, value in row.items())
        away = '' if method == 'truth' else f'{(row - truth).abs().mean():.2f}'
        lines.append(f'<tr><th style="text-align:left;padding:1px 10px">{method}</th>{cells}'
                     f'<td style="padding:1px 10px;text-align:right">{away}</td></tr>')
    name = make_tasks('train')[task].name
    end = 'passes' if passed else 'fails'
    return (f'<div style="line-height:1.6"><b>{name}</b>: the episode {end}; a call costs {cost:g}'
            f'<table style="border-collapse:collapse">{"".join(lines)}</table></div>')


# %%
from IPython.display import HTML

HTML(credit_html())

# %%
#@save
def explore_credit():
    """The explorer of one episode's credit."""
    tasks = {task.name: number for number, task in enumerate(make_tasks('train'))}
    return Explorer(
        credit_html, 'credit of each call', play='episode', task=menu('task', tasks, 4),
        episode=slider('episode', 1, 0, 2), cost=menu('price of a call', list(LAB_COSTS)),
        estimate=menu('show', {'one draw': 'draw', 'mean over replays': 'mean'}))


# %% tags=["nbval-ignore-output"]
explore_credit()

# %% [markdown]
# ## What λ does
#
# Turn GAE (7.3) mixes two ways to judge a call. At λ = 0 it is what the critic says right after it, minus
# what it said before; at λ = 1 what came of it in the end, minus what the critic said before. For one
# episode that is a curve for each call, computed here from the critic of 7.2 with free calls; the plain
# formula first.

# %%
#@save
@torch.no_grad()
def call_values_of(task, episode):
    """The critic's value before each call of a lab episode, and its verdict: ([K], float)."""
    traj = lab_group(task)[episode].traj
    first = call_starts(traj.action_mask[None], traj.turn[None, 1:])[0]
    return critic_values(lab_critic(0), traj.ids[None])[0][first], traj.reward


def credit_by_lambda(task, episode, lam):
    """Turn-GAE advantage of each call at this lambda, gamma 1, calls free: [K]."""
    values, verdict = call_values_of(task, episode)
    rewards = torch.zeros_like(values)[None]
    rewards[0, -1] = verdict
    mask = torch.ones_like(rewards, dtype=torch.bool)
    return gae_advantages(rewards, values[None], mask, 1.0, lam)[0][0]


# %%
values, verdict = call_values_of(4, 1)
steps = torch.cat([values[1:], torch.tensor([verdict], dtype=torch.float64)]) - values
plain = [sum(0.5 ** (j - k) * steps[j].item() for j in range(k, len(steps))) for k in range(len(steps))]
print('values before each call   ', *(f'{value:.2f}' for value in values.tolist()))
print('lambda 0: their differences', *(f'{x:+.2f}' for x in credit_by_lambda(4, 1, 0.0).tolist()))
print('lambda 1: verdict - value  ', *(f'{x:+.2f}' for x in credit_by_lambda(4, 1, 1.0).tolist()))
print('plain sum agrees at 0.5:', np.allclose(plain, credit_by_lambda(4, 1, 0.5)))

# %%
#@save
def lambda_figure(task=4, episode=1, lam=0.95):
    """A line a call: its advantage by turn GAE over lambda; diamonds: the truth; dots: at `lam`."""
    use_style()
    grid, (calls, passed) = np.arange(21) / 20, episode_calls(task, episode)
    lines = np.array([credit_by_lambda(task, episode, x).tolist() for x in grid])            # [21, K]
    truth, here = episode_credit(task, episode).loc['truth'], credit_by_lambda(task, episode, lam)
    fig, ax = plt.subplots(figsize=(10, 3.8))
    for k, call in enumerate(calls):
        color = plt.cm.viridis(0.9 * k / max(1, len(calls) - 1))
        ax.plot(grid, lines[:, k], color=color)
        ax.plot(lam, here[k].item(), 'o', color=color)
        ax.plot(1.02, truth[k], 'D', color=color, clip_on=False)
        ax.annotate(f'{k}: {call}', (1.02, truth[k]), xytext=(10, 0), textcoords='offset points', va='center',
                    fontsize='small', label='line end')
    ax.axvline(lam, color='#333333', linewidth=1, linestyle='--')
    ax.set(xlim=(0, 1.03), xlabel='lambda', ylabel='advantage of a call',
           title=f'The episode {"passes" if passed else "fails"}; diamonds: the true advantages')
    spread_labels(ax, gap=13)
    return fig


# %%
_ = lambda_figure()

# %%
#@save
def explore_lambda():
    """The explorer of lambda."""
    tasks = {task.name: number for number, task in enumerate(make_tasks('train'))}
    return Explorer(lambda_figure, 'advantages over lambda', task=menu('task', tasks, 4),
                    episode=slider('episode', 1, 0, 2), lam=slider('lambda', 0.95, 0.0, 1.0, 0.05))


# %% tags=["nbval-ignore-output"]
explore_lambda()

# %% [markdown]
# ## All sixty episodes
#
# Is what one sees in an episode the rule? For each method the share of calls with a clear truth whose sign
# one draw gets wrong, and the mean distance of a draw from the truth.

# %%
rows = lab_table()
rows = rows.assign(wrong=rows['draw'] * rows['truth'] < 0, distance=(rows['draw'] - rows['truth']).abs())
clear = rows[(rows['truth'].abs() > CLEAR) & (rows['cost'] == 0)].groupby('method', sort=False)
clear.agg(calls=('wrong', 'size'), wrong_sign=('wrong', 'mean'), distance=('distance', 'mean')).round(2)

# %% [markdown]
# ## What was seen
#
# In the episode above the edit was worth most (0.42), and reading a second time was a mistake (−0.17),
# since it only used up calls. Nine continuations find both (0.44, −0.22). Turn GAE on the episode as it
# ended, with its critic's values near 0, gives nearly all the credit to every call, the second read
# included (1.01 at λ = 1); the draw in the table played the calls on to other endings, and differs.
# Over all clear calls turn GAE at 0.95 has the wrong sign in 0.21 of them, step groups in 0.11 (a 0 is
# not counted as wrong), nine continuations in 0.05.
#
# **Try it.** Show the mean over replays instead of a draw: which crosses stay? These are bias, not noise.
# Then find an episode that fails although its first call was good, and a λ at which turn GAE says so.
