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
# # 9.7 Say how sure you are, over seeds and over tasks
#
# One run of an arm is an anecdote. Another seed draws other episodes, another set of held-out tasks would ask
# other questions, and both move the figure. Here an interval is made that knows both, two arms are compared so
# that what they share drops out, the interval is put to the test on agents that are known to be equal, and a
# rule says when a claim holds. Section [12.8](../12_multi_turn/12_8_what_holds.ipynb) applies all of it to every
# claim of chapter 12.

# %%
#@save evidence
import numpy as np
import pandas as pd
import torch
from scipy.stats import bootstrap, norm, t, trim_mean

from agentrl.arms import EVALUATION, KEY, Study, policy_from, read_runs, train_arm
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate

# %% [markdown]
# ## A score for each seed and each task
#
# Every stored run was evaluated on the same ten held-out tasks, sixteen episodes each, and its counts are kept
# task by task. What follows works on such a table of scores: a row a training seed, a column a task.

# %%
#@save
RATES = {                                                               # score: counts above and below
    'pass_rate': ('passes', 'episodes'), 'submit_rate': ('submits', 'episodes'),
    'reads': ('reads', 'episodes'), 'tests': ('tests', 'episodes'), 'edits': ('edits', 'episodes'),
    'turns': ('calls', 'episodes'), 'malformed': ('malformed', 'calls'),
}


def stored_rows(study, table, arm, base=0):
    """The rows of a stored table for an arm and base that this code made; ValueError if there are none."""
    rows = read_runs(study, table)
    rows = rows[(rows['arm'] == arm) & (rows['base'] == base) & (rows['version'] == study.version(arm))]
    if rows.empty:
        raise ValueError(f'no {table} of study={study.name!r} arm={arm!r} base={base} is stored; make it with '
                         f'`python -m tools.sweep --study {study.name} --arms "{arm}" --bases {base}`')
    return rows


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


# %%
from agentrl.arms import GRPO

scores = task_scores(GRPO, 'default').loc[:2]
scores.round(2)

# %% [markdown]
# Tasks differ more than seeds do. An average over ten tasks is an average over *these* ten.
#
# ## Resample both
#
# The bootstrap asks what else could have come out: it draws the seeds again, with replacement, and averages
# anew. If only the seeds are drawn, the answer is about these tasks; if the tasks are drawn as well, each on
# its own, it is about tasks like these (Owen 2007 calls this the pigeonhole bootstrap). Written down plainly:

# %%
def plain_bootstrap(scores, n_resamples, rng):
    """Averages of resampled tables: rows and columns drawn with replacement, one table at a time."""
    n_seeds, n_tasks = scores.shape
    averages = []
    for _ in range(n_resamples):
        seeds = rng.integers(n_seeds, size=n_seeds)
        tasks = rng.integers(n_tasks, size=n_tasks)
        averages.append(np.mean([scores[seed, task] for seed in seeds for task in tasks]))
    return np.array(averages)


drawn = plain_bootstrap(scores.to_numpy(), 2000, np.random.default_rng(0))
print(f'mean {scores.to_numpy().mean():.3f}, standard error {drawn.std():.3f}')

# %% [markdown]
# SciPy's `bootstrap` draws several samples independently. So its two samples are the numbers of the rows and the
# numbers of the columns, and the statistic looks the scores up.
#
# With few seeds such an interval is too short, by a factor of $\sqrt{(n-1)/n}$ and by the difference between the
# normal distribution and Student's. Hesterberg (2015) repairs both by asking for a higher level:
# $\alpha'/2 = \Phi\big(-\sqrt{n/(n-1)}\; t_{1-\alpha/2,\,n-1}\big)$.

# %%
#@save
N_RESAMPLES = 9999


def expanded_level(confidence, n):
    """The level to ask of a percentile interval of `n` values to get `confidence` (Hesterberg 2015)."""
    return 1 - 2 * norm.cdf(-np.sqrt(n / (n - 1)) * t.ppf((1 + confidence) / 2, n - 1))


def resample(scores, statistic=np.mean, confidence=0.95):
    """SciPy's bootstrap of statistic(tables [..., S, T], axis) for scores [S, T], rows and columns drawn apart."""
    def of_drawn(rows, columns, axis=-1):
        return statistic(scores[rows[..., :, None], columns[..., None, :]], axis=(-2, -1))

    return bootstrap([np.arange(n) for n in scores.shape], of_drawn, paired=False, vectorized=True,
                     method='percentile', confidence_level=confidence, n_resamples=N_RESAMPLES,
                     rng=np.random.default_rng(0))


# %%
print(f'standard error {resample(scores.to_numpy()).standard_error:.3f}')
print({n: round(float(expanded_level(0.95, n)), 4) for n in (3, 10, 30, 1000)})

# %%
#@save
def interval(scores, statistic=np.mean, confidence=0.95):
    """{estimate, low, high, seeds, tasks} of scores [seeds, tasks]; one seed has no interval (nan).

    Tasks are drawn again along with the seeds; for a table of one column only the seeds are.
    """
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or not table.size or np.isnan(table).any():
        raise ValueError(f'scores of shape {table.shape} with {int(np.isnan(table).sum())} missing values; '
                         'give a full table [seeds, tasks]')
    low = high = float('nan')
    if len(table) > 1:
        low, high = resample(table, statistic, expanded_level(confidence, len(table))).confidence_interval
    return {'estimate': float(statistic(table, axis=(-2, -1))), 'low': float(low), 'high': float(high),
            'seeds': len(table), 'tasks': table.shape[1]}


def interquartile_mean(scores, axis=(-2, -1)):
    """Mean of the middle half of all scores, which single failed runs do not move (Agarwal et al. 2021)."""
    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


# %%
pd.DataFrame({'mean': interval(scores), 'interquartile mean': interval(scores, interquartile_mean)}).round(3)

# %% [markdown]
# ## Is the interval right?
#
# *Where the truth is known.* We make tables of our own: seeds and tasks that shift the chance to pass, sixteen
# episodes in each cell. The truth is the average over all seeds and tasks that could be; an interval at 95%
# should contain it in 95 of 100 tables. Three intervals are counted: over seeds alone, over both at the plain
# level, and over both at the expanded one.

# %%
def make_scores(rng, n_seeds=10, n_tasks=10, episodes=16, between_seeds=0.05, between_tasks=0.15, truth=0.6):
    """Shares of passes [S, T] whose chances are truth + a shift of the seed + a shift of the task."""
    chances = (truth + between_seeds * rng.uniform(-1, 1, (n_seeds, 1))
               + between_tasks * rng.uniform(-1, 1, (1, n_tasks)))
    return rng.binomial(episodes, chances) / episodes


def covers(found, truth):
    """Does an interval (low, high) contain the truth?"""
    return bool(found[0] <= truth <= found[1])


# %%
from agentrl.plotting import mean_interval

rng, rows = np.random.default_rng(1), []
for _ in range(200):
    made = make_scores(rng)
    rows.append({'seeds alone, t': covers(mean_interval(made.mean(1))[1:], 0.6),
                 'both, plain level': covers(resample(made).confidence_interval, 0.6),
                 'both, expanded': covers((interval(made)['low'], interval(made)['high']), 0.6)})
coverage = pd.DataFrame(rows)
coverage.mean()

# %% [markdown]
# An interval over seeds alone speaks of these ten tasks only, and as a statement about tasks like these it is
# far too short. Drawing both is right, or somewhat careful.
#
# *Where nothing differs.* The trained default agents, one a seed, are evaluated forty times, each time with
# names and uniforms of its own. Any two of these evaluations are of the same agents, so the interval of their
# difference should contain 0. If it did not in more than one pair of twenty, no verdict of this book could be
# believed.

# %%
#@save
N_REPEATS = 40


def train_and_repeat(arm, seed=0, base_seed=0):
    """A run of section 9.3 whose heldout has N_REPEATS evaluations, each with a seed of its own."""
    run = train_arm(arm, seed, base_seed)
    policy, tasks, tok = policy_from(run['weights']), make_tasks('heldout'), build_tokenizer(make_tasks('all'))
    return run | {'heldout': [
        {'evaluated': n} | evaluate(policy, tasks, tok, EVALUATION['samples'],
                                    torch.Generator().manual_seed(EVALUATION['seed'] + 1 + n), RLConfig())
        for n in range(N_REPEATS)]}


REPEATS = Study('repeats', {'default': {}}, train_and_repeat, ('training', 'base'))

# %%
from itertools import combinations

repeats = [task_scores(REPEATS, 'default', evaluated=n) for n in range(N_REPEATS)]
pairs = list(combinations(range(N_REPEATS), 2))
chosen = np.random.default_rng(2).choice(len(pairs), 200, replace=False)
same = pd.DataFrame([interval(repeats[one] - repeats[other]) for one, other in (pairs[n] for n in chosen)])
zero = (same['low'] <= 0) & (0 <= same['high'])
print(f'{zero.sum()} of {len(same)} intervals contain 0; half their width is {(same["high"] - same["low"]).mean() / 2:.3f}')

# %% [markdown]
# ## Compare two arms on what they share
#
# Two arms with the same seed start from the same base, draw the same prompts in the first step, and are judged
# on the same tasks with the same names. So we subtract first, cell by cell, and resample the differences.

# %%
#@save
def difference(one, other):
    """Scores of one arm minus those of another, for the seeds and tasks that both have; ValueError if none."""
    seeds, tasks = one.index.intersection(other.index), one.columns.intersection(other.columns)
    if not len(seeds) or not len(tasks):
        raise ValueError(f'nothing to pair: seeds {list(one.index)} and {list(other.index)}, tasks '
                         f'{list(one.columns)} and {list(other.columns)}')
    return one.loc[seeds, tasks] - other.loc[seeds, tasks]


# %%
blind = task_scores(GRPO, 'max_turns 3')
apart = interval(task_scores(GRPO, 'default')), interval(blind)
paired = interval(difference(task_scores(GRPO, 'default'), blind))
pd.DataFrame([*apart, paired], index=['default', 'max_turns 3', 'difference, paired']).round(3)

# %% [markdown]
# ## A rule, written before the numbers
#
# A claim says that one number lies in a region: that a difference is above 0, that a pass rate is within 0.05
# of a value, that something happens in at least half of the episodes. Then:
#
# * the whole interval lies inside the region: the claim **holds**;
# * the whole interval lies outside: it **does not hold**;
# * otherwise it is **undecided**, and more seeds or tasks are needed.
#
# Two numbers count as *the same* if they differ by less than 0.05 in a rate, or by less than 0.1 in calls an
# episode. This rule and the regions of section 12.8 were written down when three seeds had been seen, before
# we looked at any other.

# %%
#@save
def verdict(found, region):
    """'holds', 'does not hold' or 'undecided' for an interval {low, high} and a region (low, high), ends outside."""
    low, high = found['low'], found['high']
    if low > region[0] and high < region[1]:
        return 'holds'
    return 'does not hold' if high <= region[0] or low >= region[1] else 'undecided'


# %%
for low, high in ((0.02, 0.3), (-0.1, 0.3), (-0.2, 0.0), (float('nan'), float('nan'))):
    print(f'above 0? {low} to {high}:', verdict({'low': low, 'high': high}, (0, float('inf'))))
