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
# # 9.3 Name every experiment once
#
# A comparison is worth something when both sides differ in one thing and everybody agrees what that thing is.
# In this book every experiment is an *arm*: a name and the parameters in which it departs from the default.
# Arms that the same function trains form a *study*. The sections, the tests and the tables read the arms from
# one place. We also store what a run gave, as tidy rows a seed and arm, so that a table can be drawn again
# without training.
#
# **Time** 15 min. **Assumes** [9.2](09_2_training_loop.ipynb). **Afterwards you can** add an experiment in
# one line, train it on several seeds, and say what makes a stored run out of date.

# %%
#@save arms
import csv
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import joblib
import pandas as pd
import torch
from filelock import FileLock
from tqdm import tqdm

from agentrl.base import DEMONSTRATED, make_rl_base
from agentrl.cache import cached, parts_of
from agentrl.model import TinyAgent
from agentrl.pieces import digest
from agentrl.plotting import figures_dir
from agentrl.tasks import EDIT_OPS, make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, train_rl
from agentrl.versions import code_version

# %% [markdown]
# ## The arms
#
# Only the difference to the default is written down. `edits` are those that the base was shown (section 5.5),
# everything else is a field of `RLConfig`.

# %%
#@save
ARMS = {
    'default': {},
    'penalty 0.05': {'step_penalty': 0.05},
    'penalty 0.3': {'step_penalty': 0.3},
    'penalty 0.05, no std': {'step_penalty': 0.05, 'std_normalize': False},             # section 9.6
    'penalty 0.3, no std': {'step_penalty': 0.3, 'std_normalize': False},
    'max_turns 3': {'max_turns': 3},
    'max_turns 4': {'max_turns': 4},                                    # the careful episode and no more (12.5)
    'invalid_penalty 0.05': {'invalid_penalty': 0.05},                  # a price on malformed calls (12.5)
    'invalid_penalty 0.2': {'invalid_penalty': 0.2},
    'wrong_submit -1': {'wrong_submit': -1.0},                          # an exit that costs nothing (12.7)
    'fixed names': {'fresh_names': False},                              # the name gives the edit away (9.4)
    'fixed names, 3 turns': {'fresh_names': False, 'max_turns': 3},
    'all edits shown': {'edits': tuple(EDIT_OPS)},
}


def arm_config(arm, seed=0):
    """The RLConfig of a named arm; ValueError for a name that is not in ARMS."""
    if arm not in ARMS:
        raise ValueError(f'arm={arm!r} is not known; choose one of {", ".join(ARMS)}')
    return RLConfig(seed=seed, **{name: value for name, value in ARMS[arm].items() if name != 'edits'})


# %%
arm_config('penalty 0.05', seed=2)

# %% [markdown]
# ## Train an arm
#
# Forty steps from the RL base, then sixteen episodes of each of the ten held-out tasks. Their names and
# uniforms are the same for all arms of a run seed (but for arms with fixed names, which draw none), so that
# arms can be compared in pairs, and others for each seed: shared by all, their luck would be in every run,
# and no number of runs would take it out (section 9.7 shows it). The result is kept on disk (section 0.4)
# under its configuration and the version of the code, so no section trains what another one has trained.

# %%
#@save
STEPS = 40
SEEDS = tuple(range(10))                                                # of the runs stored with the book
EVALUATION = {'seed': 12345, 'samples': 16}                             # the first run seed's; of each held-out task


@cached
def train_config(cfg, edits=DEMONSTRATED, base_seed=0, steps=STEPS, evaluation=EVALUATION):
    """Train the RL base under `cfg`: dict of weights, history (a row a step) and heldout (behaviour)."""
    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok, base_seed, edits)
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps)
    rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg)
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


def train_arm(arm, seed=0, base_seed=0):
    """`train_config` for a named arm."""
    cfg = arm_config(arm, seed)
    return train_config(cfg, ARMS[arm].get('edits', DEMONSTRATED), base_seed)


def trained_policy(arm, seed=0, base_seed=0):
    """The policy of an arm after training."""
    return policy_from(train_arm(arm, seed, base_seed)['weights'])


def policy_from(weights):
    """A TinyAgent with these weights."""
    policy = TinyAgent(len(build_tokenizer(make_tasks('all'))))
    policy.load_state_dict(weights)
    return policy


# %% [markdown]
# ## A study, and the version of a run
#
# A study is what one function can train. The *version* of a run changes with the settings of its arm and with any
# code that decides its result: section 0.3.1 starts at the function `train` and follows the code, definition by
# definition. A stored row of another version is not used, it is made again.

# %%
#@save
@dataclass(frozen=True)
class Study:
    """Arms that one function trains: {arm: settings} and train(arm, seed, base_seed) -> run.

    `seeds` are those of the runs that the book stores.
    """
    name: str
    arms: dict
    train: Callable
    seeds: tuple = SEEDS

    def version(self, arm):
        """Twelve hex digits that change with the settings of an arm or with any code that decides its result."""
        if arm not in self.arms:
            raise ValueError(f'arm={arm!r} is not in the study {self.name!r}; '
                             f'choose one of {", ".join(self.arms)}')
        words = {arm} | {part for part in parts_of(self.arms[arm]) if isinstance(part, str)}
        return digest(json.dumps([self.arms[arm], code_version(self.train, words)], sort_keys=True))


GRPO = Study('grpo', ARMS, train_arm)

# %%
print('each arm has a version of its own:', len({GRPO.version(arm) for arm in ARMS}) == len(ARMS))

# %% [markdown]
# ## Store what a run gave
#
# Three tables a study under `figures/data`: `<study>_heldout.csv` for what the trained policy does, a row an
# evaluation; `<study>_tasks.csv` with the counts of each held-out task behind it; and `<study>_history.csv`
# with a row a step. Each row names arm, seeds of base and run, and the version.

# %%
#@save
KEY = ['arm', 'base', 'seed']
TABLES = ('history', 'tasks', 'heldout')                                # in the order in which they are written


def runs_path(study, table):
    """Where one of the TABLES of a study is stored."""
    return figures_dir() / 'data' / f'{study.name}_{table}.csv'


# %% [markdown]
# A table that a merge, an editor or a full disk has damaged must not pass for one with fewer runs, which would be
# made again for hours. So a table is checked when it is read: each row has as many fields as the header, seeds
# are whole numbers, and no row stands there twice. An error names the file, the line and what to do.

# %%
#@save
class DamagedTable(ValueError):
    """A stored table that cannot be used: which file and line, what is wrong, what to do."""

    def __init__(self, path, line, wrong):
        super().__init__(f'{path}, line {line}: {wrong}; restore the file (git restore figures/data), or delete '
                         'the rows of that run from all tables of its study to have it made again')


# %%
#@save
ROW_KEYS = {'history': ('step',), 'tasks': ('evaluation', 'task'), 'heldout': ('evaluated', 'length', 'context',
                                                                               'max_turns', 'history')}


def wrong_with(row, header, seen, table):
    """What is wrong with a row of a stored table, [texts]; `seen` holds the keys of the rows above it."""
    if len(row) != len(header):
        return [f'{len(row)} fields, the header has {len(header)}']
    given = dict(zip(header, row))
    found = [f'{name}={given[name]!r} is no whole number' for name in ('base', 'seed', 'step', 'evaluation')
             if not given.get(name, '0').isdigit()]
    found += [f'{name} is empty' for name in ('arm', 'version') if not given[name]]
    key = tuple(given.get(name) for name in (*KEY, *ROW_KEYS[table]))
    found += [f'the row of line {seen[key]} once more'] if key in seen else []
    seen.setdefault(key, len(seen) + 2)
    return found


# %%
#@save
def check_table(path, table):
    """DamagedTable unless the file holds one of TABLES, whole."""
    text = path.read_text(encoding='utf-8')
    header, *rows = list(csv.reader(text.splitlines())) or [[]]
    if missing := [name for name in (*KEY, 'version') if name not in header]:
        raise DamagedTable(path, 1, f'the header has no {", ".join(missing)}')
    if len(set(header)) < len(header) or not text.endswith('\n'):
        raise DamagedTable(path, *((1, 'two columns of one name') if len(set(header)) < len(header) else
                                   (len(rows) + 1, 'the file ends within a line')))
    seen = {}
    for line, row in enumerate(rows, start=2):
        if wrong := wrong_with(row, header, seen, table):
            raise DamagedTable(path, line, ', '.join(wrong))


# %%
#@save
def read_runs(study, table):
    """A stored table, empty if there is none yet; DamagedTable if it cannot be used."""
    path = runs_path(study, table)
    if not path.exists():
        return pd.DataFrame(columns=[*KEY, 'version'])
    check_table(path, table)
    return pd.read_csv(path)


# %% [markdown]
# The three tables also have to agree: a run whose row says that it is complete has its whole history, step by step.

# %%
#@save
def check_study(study):
    """DamagedTable if a run of `heldout` lacks its history or a step of it, or its counts by task."""
    runs = set(read_runs(study, 'heldout')[KEY].itertuples(index=False, name=None))
    for table in ('history', 'tasks'):
        path, rows = runs_path(study, table), read_runs(study, table)
        parts = {run: part for run, part in rows.groupby(KEY)}
        if path.exists() and (lost := sorted(runs - parts.keys())):
            raise DamagedTable(path, len(rows) + 1, f'no rows of arm={lost[0][0]!r} base={lost[0][1]} '
                               f'seed={lost[0][2]} ({len(lost)} such runs), which {study.name}_heldout.csv has')
        for run, part in parts.items() if table == 'history' else ():
            if part['step'].tolist() != list(range(len(part))):
                raise DamagedTable(path, int(part.index[0]) + 2, f'the steps of arm={run[0]!r} base={run[1]} '
                                   f'seed={run[2]} are not 0 to {len(part) - 1}')


# %%
#@save
def run_tables(run):
    """The rows of a run for each of TABLES that has some; `evaluation` numbers the rows of heldout from 0."""
    evaluations = run['heldout'] if isinstance(run['heldout'], list) else [run['heldout']]
    tasks = [{'evaluation': n} | row for n, stats in enumerate(evaluations) for row in stats.get('by_task', [])]
    heldout = [{name: value for name, value in stats.items() if name != 'by_task'} for stats in evaluations]
    tables = {'history': run['history'], 'tasks': tasks, 'heldout': heldout}
    return {name: tables[name] for name in TABLES if tables[name]}


def store_run(study, arm, base, seed, run):
    """Put a run's rows into its tables, in place of older rows of the same arm and seeds.

    The rows in `heldout` say that a run is complete, so they are written last: a run that is interrupted
    between the tables is made again.
    """
    key = dict(zip(KEY, (arm, base, seed), strict=True))
    runs_path(study, 'heldout').parent.mkdir(parents=True, exist_ok=True)
    with FileLock(runs_path(study, 'heldout').with_suffix('.lock')):
        for name, rows in run_tables(run).items():
            rows = pd.DataFrame([key | {'version': study.version(arm)} | row for row in rows])
            old = read_runs(study, name)
            old = old[(old[KEY] != list(key.values())).any(axis=1)]
            table = pd.concat([old, rows]) if len(old) else rows
            part = runs_path(study, name).with_suffix('.part')
            table.sort_values(KEY, kind='stable').to_csv(part, index=False, lineterminator='\n')
            os.replace(part, runs_path(study, name))


# %% [markdown]
# ## Several arms, several seeds
#
# `run_study` returns the tables heldout and history for the arms and seeds asked for. What is stored is
# read; what is missing is trained, two runs at a time with one thread each, and stored as soon as it is
# ready, so that an interrupted call loses only the runs under way. A run that fails does not stop the
# others, and the error at the end names all that failed. A worker ends by itself when its parent is gone, also
# one that has not begun a task. (Section 13.8 has a launcher that also survives a killed worker.)

# %%
#@save
def end_with(parent):
    """Let this worker process end within a second after its parent is gone."""
    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def worker_pool(jobs, **how):
    """joblib's Parallel with `jobs` worker processes that end with this one; it yields results as they come."""
    own = {'initializer': end_with, 'initargs': (os.getpid(),)} if jobs > 1 else {}
    return joblib.Parallel(jobs, 'loky', return_as='generator_unordered', **how, **own)


# %%
#@save
def train_and_label(train, arm, base, seed):
    """What a worker process does: one run of a study's `train` on one thread; if it fails, the error as text."""
    torch.set_num_threads(1)
    try:
        return arm, base, seed, train(arm, seed, base)
    except Exception as error:                                          # reported by the caller; others go on
        return arm, base, seed, f'{type(error).__name__}: {error}'


def missing_runs(study, arms, seeds, bases=(0,)):
    """(arm, base, seed) of the runs that are not stored, or were made by other code."""
    check_study(study)
    stored = read_runs(study, 'heldout')
    done = set(stored[[*KEY, 'version']].itertuples(index=False, name=None))
    versions = {arm: study.version(arm) for arm in arms}
    wanted = [(arm, base, seed) for arm in arms for base in bases for seed in seeds]
    return [run for run in wanted if (*run, versions[run[0]]) not in done]


# %%
#@save
def store_runs(study, runs, n):
    """Store `n` runs as they end, with progress; RuntimeError at the end that names those which failed."""
    failed = []
    for arm, base, seed, run in tqdm(runs, desc=f'training runs ({study.name})', total=n):
        if isinstance(run, str):
            failed.append(f'arm={arm!r} base={base} seed={seed}: {run}')
        else:
            store_run(study, arm, base, seed, run)
    if failed:
        raise RuntimeError('\n'.join([f'{len(failed)} of {n} runs of {study.name} failed, the others are '
                                      'stored:', *failed]))


def run_study(study, arms, seeds, bases=(0,), jobs=2):
    """(heldout, history) of these arms and seeds as tidy tables; trains what is not stored (`store_runs`)."""
    if missing := missing_runs(study, arms, seeds, bases):
        with patch.dict(os.environ, TQDM_DISABLE='1'):                  # one bar for all, none from workers
            runs = worker_pool(jobs)(joblib.delayed(train_and_label)(study.train, *run) for run in missing)
            store_runs(study, runs, len(missing))
    tables = [read_runs(study, name) for name in ('heldout', 'history')]
    wanted = {'arm': arms, 'base': bases, 'seed': seeds}
    return tuple(table[table[KEY].isin(wanted).all(axis=1)].reset_index(drop=True) for table in tables)


def arm_results(arms, seeds):
    """`run_study` for arms of this section."""
    return run_study(GRPO, arms, seeds)


# %% [markdown]
# ## A stored number is a computed number
#
# Here are the ten seeds of the default arm. To see that the table holds what the code gives, we train
# the first steps of seed 0 again and compare with the stored history, digit by digit. (All forty steps are equal on the
# processor that stored them. Another one may round the last digit of a matrix product differently, and training
# multiplies the difference until some token is another one: of 26 runs drawn at random and made again elsewhere, 23 had
# every count equal and three parted. `make sweep-check` says at which step.)

# %%
heldout, history = arm_results(['default'], SEEDS)
heldout[['arm', 'seed', 'pass_rate', 'reads', 'tests', 'edits', 'turns', 'malformed']].round(3)

# %%
tok = build_tokenizer(make_tasks('all'))
again = train_rl(make_rl_base(tok), make_tasks('train'), tok, arm_config('default', seed=0), steps=3)
stored = history[(history['seed'] == 0) & (history['step'] < 3)]
columns = ['passes', 'submits', 'calls', 'reads', 'tests', 'edits', 'tokens', 'reward']
print(bool((pd.DataFrame(again)[columns].to_numpy() == stored[columns].to_numpy()).all()))

# %% [markdown]
# ## What was seen
#
# An arm is a name in one table; a run is rows in three files that say which code made them; the first three
# steps, trained again, are equal to the stored ones in every digit.
#
# **Try it.** Add an arm of your own in a new cell, `ARMS['groups of 4'] = {'group_size': 4}`, and call
# `arm_results(['groups of 4'], (0,))`. Its rows are stored with the others; `git restore figures`
# removes them.
