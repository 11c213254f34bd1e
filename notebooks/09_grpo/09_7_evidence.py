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
# other questions, and both move the figure. Here intervals are made that know about both and are put to the
# test where the truth is known; two arms are compared so that what they share drops out; and a rule says when
# a claim holds. Section [12.9](../12_multi_turn/12_9_what_holds.ipynb) applies all of it to every claim of
# chapter 12.
#
# **Time** 15 min. **Assumes** [9.3](09_3_arms.ipynb). **Afterwards you can** pair two arms by seed and
# task, give the difference an interval, and say whether it holds or is undecided.

# %%
#@save evidence
import numpy as np
import torch
from scipy.stats import bootstrap, norm, t, trim_mean

from agentrl.arms import EVALUATION, KEY, Study, policy_from, read_runs, train_arm
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate

# %% [markdown]
# ## A score for each seed and each task
#
# Every stored run was evaluated on the same ten held-out tasks, sixteen episodes each, and its counts are
# kept task by task. What follows works on such a table of scores: a row a training seed, a column a task.

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
        raise ValueError(f'no {table} of study={study.name!r} arm={arm!r} base={base} is stored; make it '
                         f'with `python -m tools.sweep --study {study.name} --arms "{arm}" --bases {base}`')
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
import pandas as pd

from agentrl.arms import GRPO

scores = task_scores(GRPO, 'default').loc[:2]
scores.round(2)

# %% [markdown]
# Tasks differ more than seeds do. A run that goes wrong, though, goes wrong on all of them: the rows hang
# together.
#
# ## Resample
#
# The bootstrap asks what else could have come out: it draws as many seeds again, with replacement, and
# averages anew. A seed is drawn with its whole row, since what one run does on ten tasks is no ten runs.
# Written down plainly:

# %%
def plain_bootstrap(scores, n_resamples, rng):
    """Averages of resampled tables, one at a time: whole rows of scores [S, T] drawn with replacement."""
    averages = []
    for _ in range(n_resamples):
        rows = rng.integers(len(scores), size=len(scores))
        averages.append(np.mean([scores[row] for row in rows]))
    return np.array(averages)


drawn = plain_bootstrap(scores.to_numpy(), 2000, np.random.default_rng(0))
print(f'mean {scores.to_numpy().mean():.3f}, standard error {drawn.std():.4f}')

# %% [markdown]
# SciPy's `bootstrap` does the same, faster: its sample is the numbers of the rows, and the statistic looks
# the scores up. Given two samples it draws each on its own. So with the columns as the second sample, tasks
# are drawn as well (Owen 2007 calls this the pigeonhole bootstrap): that interval is about tasks *like*
# these, the first one about *these* tasks.
#
# With few seeds such intervals are too short, by a factor of $\sqrt{(n-1)/n}$ and by the difference between
# the normal distribution and Student's. Hesterberg (2015) repairs both by asking for a higher level:
# $\alpha'/2 = \Phi\big(-\sqrt{n/(n-1)}\; t_{1-\alpha/2,\,n-1}\big)$.

# %%
#@save
SETTINGS = {'method': 'percentile', 'vectorized': True, 'paired': False, 'n_resamples': 9999}


def check_confidence(confidence):
    """ValueError unless confidence is a number between 0 and 1."""
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise ValueError(f'confidence={confidence!r} must be a number between 0 and 1: 95% is 0.95')


def expanded_level(confidence, n):
    """The level to ask of a percentile interval of `n` values to get `confidence` (Hesterberg 2015)."""
    check_confidence(confidence)
    if n < 2:
        raise ValueError(f'n={n} values have no spread; an interval needs 2 or more')
    return float(1 - 2 * norm.cdf(-np.sqrt(n / (n - 1)) * t.ppf((1 + confidence) / 2, n - 1)))


def draw_seeds(scores, statistic, level):
    """SciPy's bootstrap of statistic(tables [..., S, T], axis) that draws the rows of scores [S, T]."""
    def of_drawn(rows, axis=-1):
        return statistic(scores[rows], axis=(-2, -1))

    return bootstrap([np.arange(len(scores))], of_drawn, confidence_level=level,
                     rng=np.random.default_rng(0), **SETTINGS)


def draw_seeds_and_tasks(scores, statistic, level):
    """The same, but rows and columns are drawn, each on their own (Owen 2007); at least two columns."""
    def of_drawn(rows, columns, axis=-1):
        return statistic(scores[rows[..., :, None], columns[..., None, :]], axis=(-2, -1))

    return bootstrap([np.arange(n) for n in scores.shape], of_drawn, confidence_level=level,
                     rng=np.random.default_rng(0), **SETTINGS)


# %%
for draw in (draw_seeds, draw_seeds_and_tasks):
    print(f'{draw.__name__}: standard error {draw(scores.to_numpy(), np.mean, 0.95).standard_error:.4f}')
print({n: round(expanded_level(0.95, n), 4) for n in (3, 10, 30, 1000)})

# %%
#@save
LEAST_SEEDS = 6                                             # with fewer, no percentile reaches 95%


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


def interquartile_mean(scores, axis=(-2, -1)):
    """Mean of the middle half of all scores, which single failed runs do not move (Agarwal et al. 2021)."""
    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


# %%
every = task_scores(GRPO, 'default')
pd.DataFrame({'mean': interval(every), 'interquartile mean': interval(every, interquartile_mean),
              'mean, tasks drawn too': interval(every, draw=draw_seeds_and_tasks)}).round(3)

# %% [markdown]
# ## Is the interval right?
#
# *Where the truth is known.* We make tables of our own: seeds and tasks that shift the chance to pass, and
# sixteen episodes in each cell. There are two truths: the average over all seeds that could be, on the ten
# tasks at hand; and the average over all tasks as well. An interval at 95% should contain its truth in 95
# of 100 tables. A third way is counted beside ours: each task's scores drawn on their own, as is right if
# the scores of different tasks come from different runs (Agarwal et al. 2021), which here they do not.

# %%
def make_scores(rng, n_seeds=10, n_tasks=10, episodes=16):
    """Shares of passes [S, T], and the average chance of these tasks; over all seeds and tasks it is 0.6."""
    seeds, tasks = 0.1 * rng.uniform(-1, 1, (n_seeds, 1)), 0.25 * rng.uniform(-1, 1, (1, n_tasks))
    return rng.binomial(episodes, 0.6 + seeds + tasks) / episodes, 0.6 + tasks.mean()


def draw_in_each_task(scores, statistic, level):
    """The third way: SciPy draws the seeds of each column on their own."""
    def of_drawn(*columns, axis=-1):
        return statistic(np.stack(columns, -1), axis=(-2, -1))

    return bootstrap(list(scores.T), of_drawn, confidence_level=level,
                     rng=np.random.default_rng(0), **SETTINGS)


# %%
rng, rows = np.random.default_rng(1), []
for _ in range(200):
    made, these = make_scores(rng)
    for draw in (draw_in_each_task, draw_seeds, draw_seeds_and_tasks):
        found = interval(made, draw=draw)
        rows.append({'drawn': draw.__name__, 'these tasks': found['low'] <= these <= found['high'],
                     'tasks like these': found['low'] <= 0.6 <= found['high']})
pd.DataFrame(rows).groupby('drawn', sort=False).mean()

# %% [markdown]
# Each row is right for its own question. We ask about these tasks, which are the book's setting too, and draw
# seeds; where something is said about other tasks, tasks have to be drawn as well, and the interval is wide.
#
# *Where nothing differs.* The trained default agents, one a seed, are evaluated forty times. Any two of
# these evaluations are of the same agents, so the interval of their difference should contain 0, in 95 of
# 100 pairs. It is done twice: with names and uniforms that are drawn once for all agents, and with draws of
# each agent's own, as in the stored runs.

# %%
#@save
N_REPEATS = 40
REPEAT_ARMS = {'shared draws': {'stride': 0}, 'own draws': {'stride': N_REPEATS}}


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

# %%
from itertools import combinations

from scipy.stats import binomtest

pairs = list(combinations(range(N_REPEATS), 2))
chosen = [pairs[n] for n in np.random.default_rng(2).choice(len(pairs), 200, replace=False)]


def count_zeros(arm):
    """How many of the chosen pairs of evaluations have an interval with 0 in it, and how wide they are."""
    repeats = [task_scores(REPEATS, arm, evaluated=n) for n in range(N_REPEATS)]
    same = pd.DataFrame([interval(repeats[one] - repeats[other]) for one, other in chosen])
    found = int(((same['low'] <= 0) & (0 <= same['high'])).sum())
    share = binomtest(found, len(same)).proportion_ci(method='wilson')
    return {'pairs': len(same), 'contain 0': found, 'share, low': share.low, 'share, high': share.high,
            'half of the width': (same['high'] - same['low']).mean() / 2,
            'deviation of the mean': np.std([table.to_numpy().mean() for table in repeats], ddof=1)}


pd.DataFrame({arm: count_zeros(arm) for arm in REPEAT_ARMS}).round(4)

# %% [markdown]
# With draws of their own the agents' evaluations are independent, and the interval keeps its promise as far as
# 200 pairs can tell: 185, where 190 are due, and Wilson's interval of that share goes from 0.880 to 0.954. (The
# pairs share forty evaluations, so they know less than 200 independent ones would.) With shared draws it falls
# short, 150 of 200: a lucky set of names is lucky for all agents, and no resampling of seeds can see that. That
# is why the stored runs draw names and uniforms for each seed. All arms of a seed still share theirs, so in the
# difference of two arms that luck cancels, as far as they act alike.

# %% [markdown]
# ## Compare two arms on what they share
#
# Two arms with the same seed start from the same base, draw the same prompts in the first step, and are
# judged on the same tasks with the same names. So we subtract first, cell by cell, and resample the
# differences.

# %%
#@save
def difference(one, other):
    """Scores of one arm minus another's, for the seeds and tasks that both have; ValueError if none."""
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
# Two numbers count as *the same* if they differ by less than δ: 0.05 in a rate, or 0.1 in calls per episode.
# This rule and the regions of section 12.9 were written down when three seeds had been seen, before we looked
# at any other.
#
# A claim of a direction (a difference is above 0, or below) leaves a gap there. An interval from −0.014 to
# 0.006 crosses 0, and yet more seeds are not what it needs: it has decided that the difference, whatever its
# sign, is smaller than δ. So such claims have a fourth outcome. Where the rule above would say undecided and
# the whole interval lies inside (−δ, δ), the two numbers are **the same within δ**. This outcome was added
# later, when ten seeds were known. Its δ is the one named before, it is given to every claim of a direction
# about passes or calls per episode, and it never takes back that a claim holds or does not hold.

# %%
#@save
SAME = 'the same within δ'


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


# %%
for low, high in ((0.02, 0.3), (-0.1, 0.3), (-0.2, 0.0), (float('nan'), float('nan'))):
    print(f'above 0? {low} to {high}:', verdict({'low': low, 'high': high}, (0, float('inf'))))
print('above 0? -0.014 to 0.006, δ 0.05:', verdict({'low': -0.014, 'high': 0.006}, (0, float('inf')), 0.05))

# %% [markdown]
# ## What was seen
#
# The default agent passes 0.776 of the held-out episodes, 0.751 to 0.792 over ten seeds on these ten tasks,
# and 0.465 to 0.995 if the question is about tasks like them: it passes nearly all of eight and none of
# two. On tables whose truth is known, drawing whole seeds covers it in 0.95 of the cases and drawing tasks
# as well in 0.985; drawing each task's seeds apart, as if its scores came from other runs, in 0.82 only.
#
# Agents that are evaluated twice differ by nothing but luck, and 185 of 200 intervals say so with draws of
# each agent's own, as many as 95 in 100 allow; with draws that all agents share only 150 do. An evaluation
# on one fixed set of episodes makes all seeds lucky together, and no number of seeds mends it.
#
# **Try it.** Give `make_scores` two seeds that fail on every task (a row of zeros). Which of the three
# intervals still holds its truth, and what does the interquartile mean say?
