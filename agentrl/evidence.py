# Made by tools/export.py from notebooks/09_grpo/09_7_evidence.py. Do not edit: change it there, then `make export`.
# Body: fc0444b4272451d6
"""9.7 Say how sure you are, over seeds and over tasks."""

import numpy as np
import torch
from scipy.stats import bootstrap, norm, t, trim_mean

from agentrl.arms import EVALUATION, KEY, Study, policy_from, read_runs, train_arm
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate

# 09_grpo/09_7_evidence, cell 2
RATES = {                                                               # score: counts above and below
    'pass_rate': ('passes', 'episodes'), 'submit_rate': ('submits', 'episodes'),
    'reads': ('reads', 'episodes'), 'tests': ('tests', 'episodes'), 'edits': ('edits', 'episodes'),
    'turns': ('calls', 'episodes'), 'malformed': ('malformed', 'calls'),
}


# 09_grpo/09_7_evidence, cell 2
def stored_rows(study, table, arm, base=0):
    """The rows of a stored table for an arm and base that this code made; ValueError if there are none."""
    rows = read_runs(study, table)
    rows = rows[(rows['arm'] == arm) & (rows['base'] == base) & (rows['version'] == study.version(arm))]
    if rows.empty:
        raise ValueError(f'no {table} of study={study.name!r} arm={arm!r} base={base} is stored; make it '
                         f'with `python -m tools.sweep --study {study.name} --arms "{arm}" --bases {base}`')
    return rows


# 09_grpo/09_7_evidence, cell 2
def task_scores(study, arm, metric='pass_rate', base=0, evaluated=None):
    """One of RATES for each run and held-out task: table [seeds, tasks].

    `evaluated` names one of a run's evaluations, where it has several.
    """
    rows, heldout = stored_rows(study, 'tasks', arm, base), stored_rows(study, 'heldout', arm, base)
    if evaluated is not None:
        number = heldout.groupby(KEY).cumcount()[heldout['evaluated'] == evaluated].unique()
        rows = rows[rows['evaluation'].isin(number)]
    above, below = RATES[metric]
    return (rows.set_index(['seed', 'task'])[above] / rows.set_index(['seed', 'task'])[below]).unstack()


# 09_grpo/09_7_evidence, cell 5
SETTINGS = {'method': 'percentile', 'vectorized': True, 'paired': False, 'n_resamples': 9999}


# 09_grpo/09_7_evidence, cell 5
def check_confidence(confidence):
    """ValueError unless confidence is a number between 0 and 1."""
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise ValueError(f'confidence={confidence!r} must be a number between 0 and 1: 95% is 0.95')


# 09_grpo/09_7_evidence, cell 5
def expanded_level(confidence, n):
    """The level to ask of a percentile interval of `n` values to get `confidence` (Hesterberg 2015)."""
    check_confidence(confidence)
    if n < 2:
        raise ValueError(f'n={n} values have no spread; an interval needs 2 or more')
    return float(1 - 2 * norm.cdf(-np.sqrt(n / (n - 1)) * t.ppf((1 + confidence) / 2, n - 1)))


# 09_grpo/09_7_evidence, cell 5
def draw_seeds(scores, statistic, level):
    """SciPy's bootstrap of statistic(tables [..., S, T], axis) that draws the rows of scores [S, T]."""
    def of_drawn(rows, axis=-1):
        return statistic(scores[rows], axis=(-2, -1))

    return bootstrap([np.arange(len(scores))], of_drawn, confidence_level=level,
                     rng=np.random.default_rng(0), **SETTINGS)


# 09_grpo/09_7_evidence, cell 5
def draw_seeds_and_tasks(scores, statistic, level):
    """The same, but rows and columns are drawn, each on their own (Owen 2007); at least two columns."""
    def of_drawn(rows, columns, axis=-1):
        return statistic(scores[rows[..., :, None], columns[..., None, :]], axis=(-2, -1))

    return bootstrap([np.arange(n) for n in scores.shape], of_drawn, confidence_level=level,
                     rng=np.random.default_rng(0), **SETTINGS)


# 09_grpo/09_7_evidence, cell 7
LEAST_SEEDS = 6                                             # with fewer, no percentile reaches 95%


# 09_grpo/09_7_evidence, cell 7
def interval(scores, statistic=np.mean, confidence=0.95, draw=draw_seeds):
    """{estimate, low, high, seeds, tasks} of scores [seeds, tasks]; no interval (nan) under LEAST_SEEDS.

    ValueError for a table that is empty or has gaps, and for a confidence outside (0, 1).
    """
    check_confidence(confidence)
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(f'scores of shape {table.shape} with {int((~np.isfinite(table)).sum())} missing values; '
                         'give a full table [seeds, tasks] of finite numbers')
    low = high = float('nan')
    if len(table) >= LEAST_SEEDS:
        level = expanded_level(confidence, len(table))
        low, high = map(float, draw(table, statistic, level).confidence_interval)
    return {'estimate': float(statistic(table, axis=(-2, -1))), 'low': low, 'high': high,
            'seeds': len(table), 'tasks': table.shape[1]}


# 09_grpo/09_7_evidence, cell 7
def interquartile_mean(scores, axis=(-2, -1)):
    """Mean of the middle half of all scores, which single failed runs do not move (Agarwal et al. 2021)."""
    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


# 09_grpo/09_7_evidence, cell 11
N_REPEATS = 40
REPEAT_ARMS = {'shared draws': {'stride': 0}, 'own draws': {'stride': N_REPEATS}}


# 09_grpo/09_7_evidence, cell 11
def train_and_repeat(arm, seed=0, base_seed=0):
    """The default run of section 9.3; its heldout has N_REPEATS evaluations, each from another stream."""
    run = train_arm('default', seed, base_seed)
    first = EVALUATION['seed'] + 1000 + REPEAT_ARMS[arm]['stride'] * seed         # far from all stored runs
    policy, tok, heldout = policy_from(run['weights']), build_tokenizer(make_tasks('all')), []
    for n in range(N_REPEATS):
        rng = torch.Generator().manual_seed(first + n)
        stats = evaluate(policy, make_tasks('heldout'), tok, EVALUATION['samples'], rng, RLConfig())
        heldout.append({'evaluated': n} | stats)
    return run | {'heldout': heldout}


REPEATS = Study('repeats', REPEAT_ARMS, train_and_repeat)


# 09_grpo/09_7_evidence, cell 13
def difference(one, other):
    """Scores of one arm minus another's, for the seeds and tasks that both have; ValueError if none."""
    seeds, tasks = one.index.intersection(other.index), one.columns.intersection(other.columns)
    if not len(seeds) or not len(tasks):
        raise ValueError(f'nothing to pair: seeds {list(one.index)} and {list(other.index)}, tasks '
                         f'{list(one.columns)} and {list(other.columns)}')
    return one.loc[seeds, tasks] - other.loc[seeds, tasks]


# 09_grpo/09_7_evidence, cell 15
SAME = 'the same within δ'


# 09_grpo/09_7_evidence, cell 15
def verdict(found, region, delta=0):
    """'holds', 'does not hold' or 'undecided': interval {low, high} against an open region (low, high).

    With `delta`, an interval that the region leaves undecided but that lies inside (-delta, delta) is SAME. An
    interval that is not there (nan) decides nothing. ValueError for bounds that are not in order.
    """
    low, high = found['low'], found['high']
    if not region[0] < region[1] or low > high:
        raise ValueError(f'interval from {low} to {high}, region {tuple(region)}: the lower bound of each comes first')
    if low > region[0] and high < region[1]:
        return 'holds'
    if high <= region[0] or low >= region[1]:
        return 'does not hold'
    return SAME if -delta < low and high < delta else 'undecided'
