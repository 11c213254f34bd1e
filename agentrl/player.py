# Made by tools/export.py from notebooks/15_explorers/15_1_episode_player.py. Do not edit: change it there, then `make export`.
# Body: b1f90ada265b9533
"""15.1 Play an episode call by call, and see what each call saw."""

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

# 15_explorers/15_1_episode_player, cell 2
Player = namedtuple('Player', 'policy critic cost')                     # the price of a call in its rewards


# 15_explorers/15_1_episode_player, cell 2
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


# 15_explorers/15_1_episode_player, cell 3
TASKS = {task.name: number for number, task in enumerate(make_tasks('all'))}


# 15_explorers/15_1_episode_player, cell 3
@lru_cache(maxsize=64)
def lucky_group(name, task, context='full', seed=0):
    """Eight ContextTrajectories of a player on task number `task` under one of CONTEXTS."""
    player, tok = players()[name], build_tokenizer(make_tasks('all'))
    cfg, rng = RLConfig(step_penalty=player.cost), torch.Generator().manual_seed(seed)
    return context_groups(player.policy, [make_tasks('all')[task]], tok, cfg, rng, context=CONTEXTS[context])


# 15_explorers/15_1_episode_player, cell 3
def said(traj, k):
    """The words of call k, without the marks around it."""
    sample = traj.samples[k]
    words = traj.tok.decode(sample.ids[1:][sample.action_mask].tolist())
    return words.removeprefix('<call> ').removesuffix(' </call>')


# 15_explorers/15_1_episode_player, cell 5
@torch.no_grad()
def values_of(traj, critic):
    """The critic's value before each token of each call, in the context that the call saw: K tensors."""
    return [critic_values(critic, sample.ids[None])[0][sample.action_mask] for sample in traj.samples]


# 15_explorers/15_1_episode_player, cell 5
def turn_credit(traj, player, lam=0.95):
    """Advantage of each call by turn GAE, gamma 1: [K]."""
    first = torch.stack([values[0] for values in values_of(traj, player.critic)])[None]      # [1, K]
    rewards = torch.full_like(first, -player.cost)
    rewards[0, -1] += float(traj.info['hidden_pass'])
    return gae_advantages(rewards, first, torch.ones_like(first, dtype=torch.bool), 1.0, lam)[0][0]


# 15_explorers/15_1_episode_player, cell 7
@torch.no_grad()
def log_probs_of(policy, sample):
    """Log-probabilities of the tokens of a call behind what stands before it in `sample`."""
    return sequence_log_probs(policy, sample.ids[None])[0][sample.action_mask]


# 15_explorers/15_1_episode_player, cell 7
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


# 15_explorers/15_1_episode_player, cell 9
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


# 15_explorers/15_1_episode_player, cell 9
def in_short(value):
    """A float with two digits, anything else as text; safe in HTML."""
    return f'{round(value, 2) + 0.0:.2f}' if isinstance(value, float) else escape(str(value))


# 15_explorers/15_1_episode_player, cell 9
def small_table(rows):
    """A DataFrame as a narrow table."""
    cell = 'style="padding:1px 8px;line-height:1.5;text-align:right;border-bottom:1px solid #ccc'
    head = ''.join(f'<th {cell};font-weight:bold">{name}</th>' for name in rows)
    body = ''.join('<tr>' + ''.join(f'<td {cell}">{in_short(x)}</td>' for x in row) + '</tr>'
                   for row in rows.itertuples(index=False))
    style = 'font-size:85%;border-collapse:collapse;margin-top:6px'
    return f'<table style="{style}"><tr>{head}</tr>{body}</table>'


# 15_explorers/15_1_episode_player, cell 10
def player_html(left='RL base', right='default', task=0, context='full', episode=5, call=1):
    """The same call of the same episode of two players, side by side."""
    pairs = ((left, right), (right, left))
    pages = [call_html(name, other, lucky_group(name, task, context), episode, call) for name, other in pairs]
    return f'<div style="display:flex;flex-wrap:wrap;gap:16px">{"".join(pages)}</div>'


# 15_explorers/15_1_episode_player, cell 12
def explore_episode(call=1):
    """The explorer of this section."""
    return Explorer(
        player_html, 'two episodes', play='call', left=menu('left', [*players()]),
        right=menu('right', [*players()], 'default'), task=menu('task', TASKS),
        context=menu('context', [*CONTEXTS]), episode=slider('episode', 5, 0, 7),
        call=slider('call', call, 0, 5))


# 15_explorers/15_1_episode_player, cell 14
def tokens_so_far(name='default', task=0, episode=0, tokens=1):
    """The first `tokens` tokens of an episode, and how it ended once all of them are there."""
    traj = lucky_group(name, task)[episode]
    n = min(tokens, len(traj.ids))
    words, owner, turn, mask, logp = traj.view()
    page = tokens_html(words[:n], owner[:n], turn[:n], mask[:n - 1], logp[:n - 1])
    outcome = 'the hidden tests pass' if traj.info['hidden_pass'] else 'it does not pass'
    end = f'the end: {outcome}, reward {traj.reward:.2f}' if n == len(traj.ids) else '...'
    return f'{page}<div style="line-height:1.5">{n} of {len(traj.ids)} tokens; {end}</div>'


# 15_explorers/15_1_episode_player, cell 14
def explore_tokens(tokens=16):
    """The explorer of an episode token by token."""
    return Explorer(tokens_so_far, 'an episode', play='tokens', name=menu('agent', [*players()], 'default'),
                    task=menu('task', TASKS), episode=slider('episode', 0, 0, 7),
                    tokens=slider('tokens', tokens, 1, 120))


# 15_explorers/15_1_episode_player, cell 16
LEGEND = f'<div style="font-size:80%">{legend_html(with_values=False)}</div>'


# 15_explorers/15_1_episode_player, cell 16
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
