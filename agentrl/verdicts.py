# Made by tools/export.py from notebooks/12_multi_turn/12_8_what_holds.py. Do not edit: change it there, then `make export`.
# Body: 7a957dee2dcdd953
"""12.8 Ask every claim of this chapter what the seeds say."""

import math
import re
from importlib.resources import files
from pathlib import Path

import pandas as pd
import torch

import agentrl
from agentrl.arms import Study
from agentrl.base import make_rl_base
from agentrl.environment import make_env
from agentrl.episodes import OWNER, collate
from agentrl.evidence import difference, interval, stored_rows, task_scores, verdict
from agentrl.gradient import reinforce_loss
from agentrl.model import selected_log_probs
from agentrl.pathologies import CappedObservations, window_needed
from agentrl.plotting import book_results
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.tool_errors import error_stats, make_early_stop_env
from agentrl.training import RLConfig, behavior_stats


# 12_multi_turn/12_8_what_holds, cell 2
def gradient_shares(policy, trajs, tok):
    """Shares of predicted positions with a gradient at their logits (6.1): the policy's, and all others'."""
    batch = collate(trajs, tok.pad_id)
    logits = policy(batch['ids'][:, :-1])                                         # [B, T-1, V]
    logits.retain_grad()
    logp = selected_log_probs(logits, batch['ids'][:, 1:])
    reinforce_loss(logp, batch['reward'] - 0.5, batch['action_mask']).backward()
    policy.zero_grad()
    reached, owner = logits.grad.abs().sum(-1) > 0, batch['owner'][:, 1:]         # [B, T-1]
    own, others = owner == OWNER['policy'], (owner != OWNER['policy']) & (owner >= 0)
    return {'gradient_own': reached[own].double().mean().item(),
            'gradient_others': reached[others].double().mean().item()}


# 12_multi_turn/12_8_what_holds, cell 2
def length_stats(trajs):
    """The longest episode, the policy's share, and shares of episodes lost to the context or a smaller window."""
    n, predicted = len(trajs), sum(len(traj.ids) - 1 for traj in trajs)
    return {'max_tokens': max(len(traj.ids) for traj in trajs),
            'policy_share': sum(int(traj.action_mask.sum()) for traj in trajs) / predicted,
            'overflow': sum(traj.info['stop'] == 'context' for traj in trajs) / n,
            'lost_64': sum(window_needed(traj) > 64 for traj in trajs) / n,
            'lost_128': sum(window_needed(traj) > 128 for traj in trajs) / n,
            'lost_64_masked': sum(window_needed(traj, 1) > 64 for traj in trajs) / n}


# 12_multi_turn/12_8_what_holds, cell 3
BASE_ARMS = {'6 turns': {'max_turns': 6}, '12 turns': {'max_turns': 12}, '24 turns': {'max_turns': 24},
             'early stop': {'max_turns': 6}, 'cap 8': {'max_turns': 24}}
BASE_ENVS = {'early stop': make_early_stop_env, 'cap 8': lambda cfg: CappedObservations(make_env(cfg), 8)}


# 12_multi_turn/12_8_what_holds, cell 3
def measure_base(arm, seed=0, base_seed=0):
    """The RL base on the train tasks, eight episodes each, from one stream: its heldout is what it did."""
    tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(**BASE_ARMS[arm])
    policy, rng = make_rl_base(tok, base_seed), torch.Generator().manual_seed(1 + seed)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, rng, BASE_ENVS.get(arm, make_env))
    stats, errors = behavior_stats(trajs), error_stats(trajs)
    value = {'attempt_at_0.3': stats['pass_rate'] - 0.3 * stats['turns'], 'submit_at_0.3': -0.3}
    rates = {name: errors[name] for name in ('episodes_with_error', 'their_pass')}
    return {'history': [], 'heldout': stats | rates | value | length_stats(trajs)
            | gradient_shares(policy, trajs[:16], tok)}


BASE_STREAMS = Study('base_streams', BASE_ARMS, measure_base, ('verdicts', 'base'), tuple(range(10)))


# 12_multi_turn/12_8_what_holds, cell 5
def read_claims(section=None):
    """The claims of figures/claims.csv, or those of a section; bounds that are left open are infinite."""
    path = Path(files('agentrl')).parent / 'figures' / 'claims.csv'
    claims = pd.read_csv(path, dtype={'section': str}).fillna(
        {'low': -math.inf, 'high': math.inf, 'minus': '', 'book': '', 'book_minus': ''})
    if section and section not in set(claims['section']):
        raise ValueError(f'section={section!r} has no claims; there are {list(claims["section"].unique())}')
    return claims[claims['section'] == section].reset_index(drop=True) if section else claims


# 12_multi_turn/12_8_what_holds, cell 7
def find_study(name):
    """The exported study of this name."""
    known = {value.name: value for label in agentrl.__all__
             if isinstance(value := getattr(agentrl, label), Study)}
    if name not in known:
        raise ValueError(f'study={name!r} is not known; choose one of {", ".join(known)}')
    return known[name]


# 12_multi_turn/12_8_what_holds, cell 7
def read_number(text, base=0):
    """The table [seeds, tasks] behind `study:arm:column` with `:evaluation` or `:first-last` (of steps).

    What is not counted by task has a single column; seeds without a value are left out.
    """
    name, arm, column, *how = text.split(':')
    study = find_study(name)
    if how and (steps := re.fullmatch(r'(\d+)-(\d+)', how[0])):
        rows = stored_rows(study, 'history', arm, base)
        rows = rows[rows['step'].between(*map(int, steps.groups()))]
    elif study.name == 'base_streams':
        rows = stored_rows(study, 'heldout', arm, base)
    else:
        return task_scores(study, arm, column, base, *how)
    return rows.groupby('seed')[[column]].mean().dropna().set_axis(['all'], axis=1)


# 12_multi_turn/12_8_what_holds, cell 7
def read_book(text):
    """The book's value behind `section:experiment:arm:metric`; nan for an empty text."""
    if not text:
        return math.nan
    section, experiment, arm, metric = text.split(':')
    values = book_results(section, experiment).set_index(['arm', 'metric'])['value']
    if (arm, metric) not in values:
        raise ValueError(f'the book has no {metric!r} of arm={arm!r} in {experiment}; '
                         f'it has {list(values.index)}')
    return float(values[arm, metric])


# 12_multi_turn/12_8_what_holds, cell 9
def judge(claim, base=0, seeds=slice(None)):
    """The verdict on a row of the claims from its seeds, or some: dict of book, interval and verdict."""
    number, book = read_number(claim['number'], base), read_book(claim['book'])
    if claim['minus']:
        number = difference(number, read_number(claim['minus'], base))
        book -= read_book(claim['book_minus']) if claim['book_minus'] else 0
    found = interval(number.loc[seeds])
    return {'book': book} | found | {'verdict': verdict(found, (claim['low'], claim['high']))}


# 12_multi_turn/12_8_what_holds, cell 9
def judge_all(claims, **how):
    """`judge` for each row of the claims, beside its section, words and unit."""
    rows = claims[['section', 'claim', 'unit']].to_dict('records')
    return pd.DataFrame([row | judge(claim, **how) for row, (_, claim) in zip(rows, claims.iterrows())])
