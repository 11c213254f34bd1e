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
# # 15.1 Play an episode call by call, and see what each call saw
#
# An average says that an agent reads more; an episode shows where, and with what in view. Here are two
# policies on one task with the same random numbers, call by call: the context that the call saw, in the
# colours of 5.1, and for each token of the call its mask, its probability, two ratios, the critic's value
# and its advantage by two methods. First as plain tables and pages, then with a slider.
#
# **Time** 15 min. **Assumes** [12.2](../12_multi_turn/12_2_credit_across_turns.ipynb),
# [12.4](../12_multi_turn/12_4_context_management.ipynb), [15.0](15_0_sliders.ipynb). **Afterwards you can**
# step through an episode call by call, and say what each call saw, weighed and earned.

# %%
#@save player
from collections import namedtuple
from functools import lru_cache
from html import escape

import pandas as pd
import torch

from agentrl.advantages import group_advantages
from agentrl.arms import policy_from, trained_policy
from agentrl.base import make_rl_base
from agentrl.call_credit import train_critic_arm
from agentrl.context import CONTEXTS, call_sample, context_groups
from agentrl.credit import gae_advantages
from agentrl.critic import critic_values, make_base_critic, make_critic
from agentrl.display import legend_html, tokens_html
from agentrl.explorer import Explorer, menu, slider
from agentrl.model import sequence_log_probs
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

# %% [markdown]
# ## Three players
#
# The RL base, before any training; the agent of the arm `default`, which pays nothing for a call; and the
# agent trained with turn-level GAE of 12.2, which pays 0.05. A player needs a critic for its values. The
# base and the 12.2 agent have their own; `default` was trained without one and borrows the base's, so its
# values are what the *base* would expect in its place.

# %%
#@save
Player = namedtuple('Player', 'policy critic cost')                     # the price of a call in its rewards


@lru_cache
def players():
    """{name: Player}."""
    tok = build_tokenizer(make_tasks('all'))
    base, run = make_rl_base(tok), train_critic_arm('turn GAE')
    critic = make_critic(base)
    critic.load_state_dict(run['critic'])
    borrowed = make_base_critic(tok)
    return {'RL base': Player(base, borrowed, 0.0),
            'default': Player(trained_policy('default'), borrowed, 0.0),
            'turn GAE': Player(policy_from(run['weights']), critic, 0.05)}


# %% [markdown]
# ## The same luck for all
#
# `lucky_group` lets a player play a task eight times under a context policy of 12.4. Names and uniforms
# come from a generator of a fixed seed, so episode 3 of one player and episode 3 of another meet the same
# function under the same names, and draw their tokens with the same numbers. What differs is the policy.

# %%
#@save
TASKS = {task.name: number for number, task in enumerate(make_tasks('all'))}


@lru_cache(maxsize=64)
def lucky_group(name, task, context='full', seed=0):
    """Eight ContextTrajectories of a player on task number `task` under one of CONTEXTS."""
    player, tok = players()[name], build_tokenizer(make_tasks('all'))
    cfg, rng = RLConfig(step_penalty=player.cost), torch.Generator().manual_seed(seed)
    return context_groups(player.policy, [make_tasks('all')[task]], tok, cfg, rng, context=CONTEXTS[context])


def said(traj, k):
    """The words of call k, without the marks around it."""
    sample = traj.samples[k]
    words = traj.tok.decode(sample.ids[1:][sample.action_mask].tolist())
    return words.removeprefix('<call> ').removesuffix(' </call>')


# %%
print(*list(TASKS)[:4], '...')
for name in players():
    group = lucky_group(name, 0)
    print(f'\n{name}, {sum(traj.info["hidden_pass"] for traj in group)} of {len(group)} pass')
    for traj in group[:3]:
        print(f'  {traj.reward:5.2f}', ' | '.join(said(traj, k) for k in range(len(traj.samples))))

# %% [markdown]
# ## What a call is worth
#
# The advantage of a call by turn GAE (7.3) needs the value of each call at its first token and the reward
# of each call: the price, and at the end the verdict. Every call saw a context of its own, so each value is
# taken in the context of its call. The group's advantage (9.1) is one number for the whole episode.

# %%
#@save
@torch.no_grad()
def values_of(traj, critic):
    """The critic's value before each token of each call, in the context that the call saw: K tensors."""
    return [critic_values(critic, sample.ids[None])[0][sample.action_mask] for sample in traj.samples]


def turn_credit(traj, player, lam=0.95):
    """Advantage of each call by turn GAE, gamma 1: [K]."""
    first = torch.stack([values[0] for values in values_of(traj, player.critic)])[None]      # [1, K]
    rewards = torch.full_like(first, -player.cost)
    rewards[0, -1] += float(traj.info['hidden_pass'])
    return gae_advantages(rewards, first, torch.ones_like(first, dtype=torch.bool), 1.0, lam)[0][0]


# %%
for name in players():
    traj = lucky_group(name, 0)[0]
    credit, values = turn_credit(traj, players()[name]), values_of(traj, players()[name].critic)
    print(name)
    for k, (value, advantage) in enumerate(zip(values, credit.tolist(), strict=True)):
        print(f'  value {value[0]:.2f}  advantage {advantage:+.2f}  {said(traj, k)}')

# %% [markdown]
# ## A row for each token
#
# Two ratios say two different things. *Another policy's* ratio is its probability of the token over that at
# which it was sampled: far from 1 where the two would act differently. The ratio *in the record* scores the
# call with the very policy that wrote it, but behind the whole record instead of the context that it saw.
# It must be 1, and is 1 only if nothing was left out: the law of 12.4.

# %%
#@save
@torch.no_grad()
def log_probs_of(policy, sample):
    """Log-probabilities of the tokens of a call behind what stands before it in `sample`."""
    return sequence_log_probs(policy, sample.ids[None])[0][sample.action_mask]


def call_rows(name, other, traj, group, k):
    """A DataFrame with a row for each token of call k: mask, ratios, value and advantages."""
    sample, whole = traj.samples[k], call_sample(traj, k, CONTEXTS['full'])
    player, logp = players()[name], sample.logp[sample.action_mask]
    rewards = torch.tensor([each.reward for each in group], dtype=torch.float64)
    of_group = group_advantages(rewards, len(group))[[each is traj for each in group].index(True)]
    return pd.DataFrame({
        'token': [traj.tok.itos[i] for i in sample.ids[1:][sample.action_mask].tolist()],
        'mask': 1,
        'probability': logp.exp().tolist(),
        f'ratio: {other}': (log_probs_of(players()[other].policy, sample) - logp).exp().tolist(),
        'ratio: in the record': (log_probs_of(player.policy, whole) - logp).exp().tolist(),
        'value': values_of(traj, player.critic)[k].tolist(),
        'A, turn GAE': turn_credit(traj, player)[k].item(),
        'A, group': of_group.item(),
    })


# %%
for context in ('full', 'keep 1'):
    group = lucky_group('RL base', 0, context)
    print(context, '-', ' | '.join(said(group[5], k) for k in range(len(group[5].samples))))
call_rows('RL base', 'default', group[5], group, 3).round(2)

# %% [markdown]
# ## A page for a call
#
# The page puts together what a reader needs at one look: who plays, how it ends, how much of the record the
# call saw, the tokens in the colours of their owners, and the rows from above. Two of them side by side are
# the player. An episode that has ended shows its last call, and says so.

# %%
#@save
def call_html(name, other, group, episode, k):
    """One call of an episode of a group: outcome, context, and a row a token."""
    traj = group[episode]
    last = min(k, len(traj.samples) - 1)
    rows = call_rows(name, other, traj, group, last)
    seen = len(traj.samples[last].ids) - len(rows)
    record = int((traj.turn < last).sum())
    outcome = 'passes' if traj.info['hidden_pass'] else 'fails'
    note = f'call {last} of 0 to {len(traj.samples) - 1}' + ('' if k == last else ' (the last one)')
    stop = traj.info['stop'].replace('_', ' ')
    head = (f'<b>{name}</b>: {outcome}, reward {traj.reward:.2f}, ended by {stop}'
            f'<br>{note}; it saw {seen} of the {record} tokens so far')
    page = tokens_html(*traj.samples[last].view())
    return f'<div style="flex:1 1 28em;min-width:0;line-height:1.5">{head}{page}{small_table(rows)}</div>'


def in_short(value):
    """A float with two digits, anything else as text; safe in HTML."""
    return f'{round(value, 2) + 0.0:.2f}' if isinstance(value, float) else escape(str(value))


def small_table(rows):
    """A DataFrame as a narrow table."""
    cell = 'style="padding:1px 8px;line-height:1.5;text-align:right;border-bottom:1px solid #ccc'
    head = ''.join(f'<th {cell};font-weight:bold">{name}</th>' for name in rows)
    body = ''.join('<tr>' + ''.join(f'<td {cell}">{in_short(x)}</td>' for x in row) + '</tr>'
                   for row in rows.itertuples(index=False))
    style = 'font-size:85%;border-collapse:collapse;margin-top:6px'
    return f'<table style="{style}"><tr>{head}</tr>{body}</table>'


# %%
#@save
def player_html(left='RL base', right='default', task=0, context='full', episode=5, call=1):
    """The same call of the same episode of two players, side by side."""
    pairs = ((left, right), (right, left))
    pages = [call_html(name, other, lucky_group(name, task, context), episode, call) for name, other in pairs]
    return f'<div style="display:flex;flex-wrap:wrap;gap:16px">{"".join(pages)}</div>'


# %% [markdown]
# Here is the second call of one episode. Both have read the same source, both edit, and both draw with the
# same numbers; the base picks an edit that does not fit what it has read.

# %%
from IPython.display import HTML

HTML(player_html(task=0, context='full', episode=5, call=1))

# %% [markdown]
# ## With a slider
#
# The player: Play steps through the calls, the slider goes to one (Tab to reach it, then the arrow keys),
# menus choose the two players, the task, the context and which of the eight episodes. A new choice samples
# anew, which takes half a second.

# %%
#@save
def explore_episode(call=1):
    """The explorer of this section."""
    return Explorer(
        player_html, 'two episodes', play='call', left=menu('left', [*players()]),
        right=menu('right', [*players()], 'default'), task=menu('task', TASKS),
        context=menu('context', [*CONTEXTS]), episode=slider('episode', 5, 0, 7),
        call=slider('call', call, 0, 5))


# %% tags=["nbval-ignore-output"]
explore_episode()

# %% [markdown]
# ## Token by token
#
# A slower look, for a first meeting: the first tokens of an episode and nothing else, so that one sees who
# writes when. Section 0.0 begins with it.

# %%
#@save
def tokens_so_far(name='default', task=0, episode=0, tokens=1):
    """The first `tokens` tokens of an episode, and how it ended once all of them are there."""
    traj = lucky_group(name, task)[episode]
    n = min(tokens, len(traj.ids))
    words, owner, turn, mask, logp = traj.view()
    page = tokens_html(words[:n], owner[:n], turn[:n], mask[:n - 1], logp[:n - 1])
    outcome = 'the hidden tests pass' if traj.info['hidden_pass'] else 'it does not pass'
    end = f'the end: {outcome}, reward {traj.reward:.2f}' if n == len(traj.ids) else '...'
    return f'{page}<div style="line-height:1.5">{n} of {len(traj.ids)} tokens; {end}</div>'


def explore_tokens(tokens=16):
    """The explorer of an episode token by token."""
    return Explorer(tokens_so_far, 'an episode', play='tokens', name=menu('agent', [*players()], 'default'),
                    task=menu('task', TASKS), episode=slider('episode', 0, 0, 7),
                    tokens=slider('tokens', tokens, 1, 120))


# %%
HTML(tokens_so_far(tokens=16))

# %% [markdown]
# ## One record, six contexts
#
# The player samples each episode in the context that is chosen. One can also hold the record fixed and ask
# what the same call *would* see under each policy of 12.4.

# %%
#@save
LEGEND = f'<div style="font-size:80%">{legend_html(with_values=False)}</div>'


def contexts_html(name='RL base', task=0, episode=5, call=3):
    """A call of an episode sampled with full context, behind what each of CONTEXTS would have shown it."""
    traj, lines = lucky_group(name, task)[episode], []
    k = min(call, len(traj.samples) - 1)
    for context, policy in CONTEXTS.items():
        sample = call_sample(traj, k, policy)
        seen = int((~sample.action_mask).sum()) + 1
        lines.append(f'<details open><summary><b>{context}</b>: {seen} tokens before the call</summary>'
                     f'{tokens_html(*sample.view()).replace(LEGEND, "", 1)}</details>')
    return LEGEND + ''.join(lines)


# %%
HTML(contexts_html())

# %% tags=["nbval-ignore-output"]
Explorer(contexts_html, 'one call in six contexts', play='call', name=menu('player', [*players()]),
         task=menu('task', TASKS), episode=slider('episode', 5, 0, 7), call=slider('call', 3, 0, 5))


# %% [markdown]
# ## What was seen
#
# In eight episodes with the same luck the base repairs the function twice and the trained agent every time.
# Where both have read the same source, the base's wrong edit has a ratio of nearly 0 under the trained
# agent. When only one observation is kept, a second `test` of the base has a ratio of 0.07 if it is scored
# in the whole record: before any update, and under the very weights that wrote it. In the context that the
# call saw it is 1.
#
# **Try it.** Play `default` against `turn GAE` with the context `keep 1`: which call do both leave out, and
# what did it see before? Then find an episode of the base that passes without a `read`, and look at its
# values.
