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
# # 15.3 Move a token past the clip, then watch a whole batch do it
#
# PPO's clip (8.1) is four cases for one token and a cloud for a batch. First one token under sliders: its
# ratio, its advantage, the clip, and the gradient that is left. Then the tokens of eight real episodes,
# updated again and again on the same batch: how far do their ratios go, which of them does the clip stop,
# and how many cross the line all the same?
#
# **Time** 10 min. **Assumes** [8.1](../08_ppo/08_1_clipped_update.ipynb),
# [9.2](../09_grpo/09_2_training_loop.ipynb), [15.0](15_0_sliders.ipynb). **Afterwards you can** move a
# ratio and a clip, and point at the places where the clipped objective has no slope.

# %%
#@save clip_explorer
from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
import torch

from agentrl.base import make_rl_base
from agentrl.explorer import Explorer, menu, slider
from agentrl.packing import action_log_probs
from agentrl.plotting import arm_color, use_style
from agentrl.ppo import clipped_loss
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, group_batch, rl_update

# %% [markdown]
# ## One token
#
# The objective of a token of advantage $A$ at ratio $r$ is $\min(rA, \operatorname{clip}(r, 1-\epsilon,
# 1+\epsilon)A)$ (Schulman et al. 2017). We take it and its slope from the very loss that trains, by
# differentiating with respect to the log-probability; where the slope is 0, the token is left alone.

# %%
#@save
def token_objective(ratios, advantage, clip):
    """Objective of one token, and its derivative by the log-probability, at each of the ratios: two [N]."""
    logp = torch.as_tensor(ratios, dtype=torch.float64).log()[None].requires_grad_()         # [1, N]
    ones = torch.ones_like(logp)
    terms = [clipped_loss(logp[:, n:n + 1], torch.zeros(1, 1), advantage * ones[:, :1], ones[:, :1], clip)
             for n in range(logp.shape[1])]
    slope = -torch.autograd.grad(sum(terms), logp)[0][0]
    return [-term.item() + 0.0 for term in terms], (slope + 0.0).tolist()


# %%
import pandas as pd

ratios = (0.5, 0.9, 1.0, 1.1, 1.5)
table = {}
for advantage in (1.0, -1.0):
    objective, slope = token_objective(ratios, advantage, 0.2)
    table |= {(f'A = {advantage:+.0f}', 'objective'): objective, (f'A = {advantage:+.0f}', 'slope'): slope}
pd.DataFrame(table, index=pd.Index(ratios, name='ratio')).T.round(3)

# %% [markdown]
# Two of the ten slopes are zero, as in 8.1: a ratio of 1.5 with a positive advantage, 0.5 with a negative
# one.
#
# ## Its picture
#
# At the left the objective, with the token on it; the dotted line is what it would be without the clip. At
# the right the slope. The title says in words what an update would do to the token.

# %%
#@save
GOOD, BAD = arm_color('default'), arm_color('penalty 0.3')              # positive and negative advantages


def in_words(advantage, slope, ratio):
    """What the next update does to a token."""
    if advantage == 0:
        return 'no advantage: nothing to learn from this token'
    if slope == 0:
        return 'past the clip: no gradient, the token is left alone'
    way = 'more' if advantage > 0 else 'less'
    back = (ratio - 1) * advantage < 0
    return f'the update makes it {way} probable' + (', back from the wrong way' if back else '')


def clip_figure(ratio=1.5, advantage=1.0, clip=0.2):
    """Objective and slope of a token over its ratio, and where the token stands."""
    use_style()
    grid = np.arange(2, 81) / 40                                        # 0.05 to 2
    color = GOOD if advantage >= 0 else BAD
    (here,), (slope_here,) = token_objective([ratio], advantage, clip)
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for ax, line, y in zip(axes, token_objective(grid, advantage, clip), (here, slope_here)):
        ax.axvspan(max(0, 1 - clip), 1 + clip, color='#F2F2F2', zorder=0)
        ax.plot(grid, advantage * grid, color='#999999', linewidth=1, linestyle=':')
        ax.plot(grid, line, color=color)
        ax.plot(ratio, y, 'o', color='black', markersize=8)
        ax.set(xlim=(0, 2), ylim=(-2.2, 2.2), xlabel='ratio of new to old probability')
    axes[0].set(ylabel='objective', title=in_words(advantage, slope_here, ratio))
    axes[1].set(ylabel='slope by the log-probability', title=f'slope {slope_here:.2f}')
    axes[1].text(1, -2.1, 'inside the clip', ha='center', color='#666666', fontsize='small')
    return fig


# %%
_ = clip_figure()

# %%
for ratio, advantage in ((1.5, 1.0), (1.5, -1.0), (0.5, 1.0), (0.5, -1.0), (1.0, 0.0)):
    slope = token_objective([ratio], advantage, 0.2)[1][0]
    print(f'ratio {ratio}, A {advantage:+.0f}: {in_words(advantage, slope, ratio)}')

# %% [markdown]
# Tab and the arrow keys: a step is 0.05 of the ratio, 0.25 of the advantage, 0.05 of the clip.

# %%
#@save
def explore_clip():
    """The explorer of one token."""
    return Explorer(
        clip_figure, 'objective and slope of a token', ratio=slider('ratio', 1.5, 0.05, 2.0, 0.05),
        advantage=slider('advantage', 1.0, -1.0, 1.0, 0.25), clip=slider('clip', 0.2, 0.05, 0.95, 0.05))


# %% tags=["nbval-ignore-output"]
explore_clip()

# %% [markdown]
# ## A batch, again and again
#
# Eight episodes of the RL base on one task; two pass. Their group advantages are positive for the two and
# negative for the six. Then six updates on these same episodes with Adam, as in the training loop, and
# after each the ratio of every trained token. The clip acts in the loss of the update, so each clip is a
# run of its own.

# %%
#@save
UPDATES = 6
NO_CLIP = 1e9


@lru_cache(maxsize=16)
def ratio_path(clip, lr=7e-4, task=0):
    """(advantages [N], ratios [UPDATES + 1, N]) of the tokens of one batch that is used UPDATES times."""
    tok = build_tokenizer(make_tasks('all'))
    policy, cfg = make_rl_base(tok), RLConfig(clip=clip, lr=lr, minibatches=1)
    rng = torch.Generator().manual_seed(0)
    batch, advantages = group_batch(sample_groups(policy, [make_tasks('all')[task]], tok, cfg, rng), tok, cfg)
    opt, mask, path = torch.optim.Adam(policy.parameters(), lr=lr, eps=1e-5), batch['action_mask'], []
    for update in range(UPDATES + 1):
        with torch.no_grad():
            logp = action_log_probs(policy, batch['ids'], batch['length'], mask)
        path.append((logp - batch['logp'])[mask].exp())
        if update < UPDATES:
            rl_update(policy, opt, batch, advantages, cfg)
    return advantages[mask].numpy(), torch.stack(path).numpy()


# %%
#@save
def ratio_stats(update, clip, lr=7e-4):
    """What the ratios of that batch are after some updates, in numbers."""
    advantages, path = ratio_path(clip, lr)
    ratio, up = path[update], advantages > 0
    stopped = np.where(up, ratio > 1 + clip, ratio < 1 - clip)
    return {'tokens': len(ratio), 'past the clip': int(stopped.sum()), 'lowest': float(ratio.min()),
            'highest': float(ratio.max()), 'pass, mean': float(ratio[up].mean()),
            'fail, mean': float(ratio[~up].mean())}


# %%
CLIPS = {'clip 0.05': 0.05, 'clip 0.2': 0.2, 'no clip': NO_CLIP}
pd.DataFrame({name: ratio_stats(UPDATES, clip) for name, clip in CLIPS.items()}).T.round(2)

# %% [markdown]
# Each dot is a token: to the right of 1 it has become more probable. In the band the gradient is alive; a
# ring marks a token which the clip has stopped. The height within a half only keeps dots apart.

# %%
#@save
def batch_figure(update=4, clip=0.2, lr=7e-4):
    """The ratios of all tokens of one batch after some updates; those past the clip are ringed."""
    use_style()
    advantages, path = ratio_path(clip, lr)
    ratio, place = np.clip(path[update], 0.02, 20), np.arange(len(advantages)) * 0.618 % 1
    fig, ax = plt.subplots(figsize=(10, 3.4))
    if clip < NO_CLIP:
        ax.axvspan(max(0.02, 1 - clip), 1 + clip, color='#F2F2F2', zorder=0)
    for side, color, words in ((advantages > 0, GOOD, 'A > 0'), (advantages < 0, BAD, 'A < 0')):
        stop = ratio > 1 + clip if words == 'A > 0' else ratio < 1 - clip
        height = place + (1.3 if words == 'A > 0' else 0)
        ax.scatter(ratio[side & ~stop], height[side & ~stop], s=18, color=color)
        ax.scatter(ratio[side & stop], height[side & stop], s=30, facecolors='none', edgecolors=color)
    stats = ratio_stats(update, clip, lr)
    ticks = {0.02: '0.02 or less', 0.1: '0.1', 0.5: '0.5', 1: '1', 2: '2', 10: '10'}
    ax.set(xscale='log', xlim=(0.018, 20), ylim=(-0.15, 2.45), yticks=(0.5, 1.8),
           yticklabels=('A < 0', 'A > 0'), xlabel='ratio of the new probability to that at sampling',
           title=f'{update} updates: {stats["past the clip"]} of {stats["tokens"]} tokens past the clip')
    ax.set_xticks(list(ticks), ticks.values())
    ax.minorticks_off()
    return fig


# %%
_ = batch_figure()

# %%
#@save
def explore_batch():
    """The explorer of a batch that is used again; a new clip or step size trains for some seconds."""
    return Explorer(
        batch_figure, 'ratios of the tokens of a batch', play='update',
        update=slider('updates', 4, 0, UPDATES),
        clip=menu('clip', {'0.05': 0.05, '0.1': 0.1, '0.2': 0.2, '0.5': 0.5, 'none': NO_CLIP}, 0.2),
        lr=menu('step size', {'0.0002': 2e-4, '0.0007 (default)': 7e-4, '0.002': 2e-3}, 7e-4))


# %% tags=["nbval-ignore-output"]
explore_batch()

# %% [markdown]
# ## What was seen
#
# One token: of ten slopes two are zero. A batch: after six updates on 103 tokens with a clip of 0.2, 27 are
# past the line, and the lowest ratio is 0.05, far beyond it: the clip takes a token's gradient, but not
# those of the other tokens, which move the same weights. Without a clip the ratios go on to 0.01 and 3.38.
#
# **Try it.** Set a step size of 0.002 and step through the updates: after which one do tokens first cross
# the line? Then find the tokens outside the band that are *not* ringed: which way would an update move
# them?
