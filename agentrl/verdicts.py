# Made by tools/export.py from notebooks/12_multi_turn/12_9_what_holds.py. Do not edit: change it there, then `make export`.
# Body: 621f520e1bcaa2ca
"""12.9 Ask every claim of this chapter what the seeds say."""

import math
import re
from importlib.resources import files
from pathlib import Path

import pandas as pd

from agentrl.arms import GRPO
from agentrl.base_streams import BASE_STREAMS
from agentrl.call_credit import CREDIT
from agentrl.context_study import CONTEXT
from agentrl.evidence import difference, draw_seeds_and_tasks, interval, stored_rows, task_scores, verdict
from agentrl.mixture import MIXTURE
from agentrl.pathologies import PATHOLOGIES
from agentrl.plotting import book_results
from agentrl.tool_errors import TOOL_ERRORS


# 12_multi_turn/12_9_what_holds, cell 2
def read_claims(section=None):
    """The claims of figures/claims.csv, or those of a section; bounds that are left open are infinite."""
    path = Path(files('agentrl')).parent / 'figures' / 'claims.csv'
    claims = pd.read_csv(path, dtype={'section': str}).fillna(
        {'low': -math.inf, 'high': math.inf, 'delta': 0, 'minus': '', 'book': '', 'book_minus': ''})
    if section and section not in set(claims['section']):
        raise ValueError(f'section={section!r} has no claims; there are {list(claims["section"].unique())}')
    return claims[claims['section'] == section].reset_index(drop=True) if section else claims


# 12_multi_turn/12_9_what_holds, cell 4
STUDIES = {study.name: study for study in (
    GRPO, BASE_STREAMS, CREDIT, CONTEXT, TOOL_ERRORS, MIXTURE, PATHOLOGIES)}                # of which claims speak


# 12_multi_turn/12_9_what_holds, cell 4
def find_study(name):
    """The study of this name; ValueError if no claim may speak of it."""
    if name not in STUDIES:
        raise ValueError(f'study={name!r} is not known; choose one of {", ".join(STUDIES)}')
    return STUDIES[name]


# 12_multi_turn/12_9_what_holds, cell 5
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


# 12_multi_turn/12_9_what_holds, cell 5
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


# 12_multi_turn/12_9_what_holds, cell 7
def judge(claim, base=0, seeds=slice(None)):
    """The verdict on a row of the claims, from all of its seeds or some: a dict."""
    number, book = read_number(claim['number'], base), read_book(claim['book'])
    if claim['minus']:
        number = difference(number, read_number(claim['minus'], base))
        book -= read_book(claim['book_minus']) if claim['book_minus'] else 0
    number, region, delta = number.loc[seeds], (claim['low'], claim['high']), claim.get('delta', 0)
    found, wider = interval(number), ''
    if number.shape[1] > 1:
        wider = verdict(interval(number, draw=draw_seeds_and_tasks), region, delta)
    return {'book': book} | found | {'verdict': verdict(found, region, delta), 'for other tasks': wider}


# 12_multi_turn/12_9_what_holds, cell 7
def judge_all(claims, **how):
    """`judge` for each row of the claims, beside its section, words and unit."""
    rows = claims[['section', 'claim', 'unit']].to_dict('records')
    return pd.DataFrame([row | judge(claim, **how) for row, (_, claim) in zip(rows, claims.iterrows())])
