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
# The sections, the tests and the tables read the arms from this one place. We also store what a run gave, as
# one tidy row a seed and arm, so that a table can be drawn again without training.

# %%
#@save arms
import hashlib
import json
import os
from dataclasses import asdict
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from unittest.mock import patch

import joblib
import pandas as pd
import torch
from filelock import FileLock
from tqdm import tqdm

from agentrl.base import DEMONSTRATED, make_rl_base
from agentrl.cache import cached, code_version
from agentrl.model import TinyAgent
from agentrl.tasks import EDIT_OPS, make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, train_rl

# %% [markdown]
# ## The arms
#
# Only the difference to the default is written down.

# %%
#@save
ARMS = {
    'default': {},
    'penalty 0.05': {'step_penalty': 0.05},
    'penalty 0.3': {'step_penalty': 0.3},
    'max_turns 3': {'max_turns': 3},
    'fixed names': {'fresh_names': False},                              # the name gives the edit away (9.4)
    'fixed names, 3 turns': {'fresh_names': False, 'max_turns': 3},
    'all edits shown': {},                                              # its base was shown all five edits
}
BASE_EDITS = {'all edits shown': tuple(EDIT_OPS)}                       # other arms: the base of section 5.5


def arm_config(arm, seed=0):
    """The RLConfig of a named arm; ValueError for a name that is not in ARMS."""
    if arm not in ARMS:
        raise ValueError(f'arm={arm!r} is not known; choose one of {", ".join(ARMS)}')
    return RLConfig(seed=seed, **ARMS[arm])


# %%
arm_config('penalty 0.05', seed=2)

# %% [markdown]
# ## Train an arm
#
# Forty steps from the RL base, then sixteen episodes of each of the ten held-out tasks, under a seed that is
# the same for all arms. The result is kept on disk (section 0.3) under its configuration and the version of
# the code, so no section trains what another one has trained.

# %%
#@save
STEPS = 40
SEEDS = (0, 1, 2)                                                       # of the runs stored with the book
EVALUATION = {'seed': 12345, 'samples': 16}                             # of each held-out task, in all arms


@cached('training', 'base')
def train_config(cfg, edits=DEMONSTRATED, base_seed=0, steps=STEPS, evaluation=EVALUATION):
    """Train the RL base under `cfg`: dict of weights, history (a row a step) and heldout (behaviour)."""
    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok, base_seed, edits)
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps)
    rng = torch.Generator().manual_seed(evaluation['seed'])
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg)
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


def train_arm(arm, seed=0):
    """`train_config` for a named arm."""
    return train_config(arm_config(arm, seed), BASE_EDITS.get(arm, DEMONSTRATED))


def trained_policy(arm, seed=0):
    """The policy of an arm after training."""
    policy = TinyAgent(len(build_tokenizer(make_tasks('all'))))
    policy.load_state_dict(train_arm(arm, seed)['weights'])
    return policy


# %% [markdown]
# ## Store what it gave
#
# Two tables under `figures/data`: `heldout.csv` with a row a run, `history.csv` with a row a step. Each row
# names arm, seed and the version of code and configuration that made it. A row of another version is not
# used, it is made again.

# %%
#@save
@lru_cache(maxsize=1)
def training_code():
    """The version of the code that trains, read once a session."""
    return code_version('training', 'base')


def run_version(arm):
    """A short text that changes with the arm's configuration or with any code that its result depends on."""
    config = [asdict(arm_config(arm)), BASE_EDITS.get(arm), STEPS, EVALUATION]
    text = json.dumps([*config, training_code()])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# %%
print('each arm has a version of its own:', len({run_version(arm) for arm in ARMS}) == len(ARMS))

# %%
#@save
def runs_path(name):
    """Where the table `name` of runs is stored."""
    return Path(files('agentrl')).parent / 'figures' / 'data' / f'{name}.csv'


def read_runs(name):
    """A stored table, empty if there is none yet."""
    path = runs_path(name)
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=['arm', 'seed', 'version'])


def store_run(arm, seed, run):
    """Put a run's rows into both tables, in place of older rows of the same arm and seed.

    The row in `heldout` says that a run is complete, so it is written last: a run that is interrupted between
    the tables is made again.
    """
    label = {'arm': arm, 'seed': seed, 'version': run_version(arm)}
    fresh = {'history': run['history'], 'heldout': [run['heldout']]}
    runs_path('heldout').parent.mkdir(parents=True, exist_ok=True)
    with FileLock(runs_path('heldout').with_suffix('.lock')):
        for name, rows in fresh.items():
            old = read_runs(name)
            old = old[(old['arm'] != arm) | (old['seed'] != seed)]
            rows = pd.DataFrame([label | row for row in rows])
            table = pd.concat([old, rows]) if len(old) else rows
            order = ['arm', 'seed', *(['step'] if name == 'history' else [])]
            part = runs_path(name).with_suffix('.part')
            table.sort_values(order).to_csv(part, index=False, lineterminator='\n')
            os.replace(part, runs_path(name))


# %% [markdown]
# ## Several arms, several seeds
#
# `arm_results` returns both tables for the arms and seeds asked for. What is stored is read; what is missing
# is trained, two runs at a time with one thread each, and stored as soon as it is ready, so that an
# interrupted call loses only the runs under way.

# %%
#@save
def train_and_label(arm, seed):
    """What a worker process does: one run on one thread."""
    torch.set_num_threads(1)
    return arm, seed, train_arm(arm, seed)


def arm_results(arms, seeds, jobs=2):
    """(heldout, history) of these arms and seeds as tidy tables; trains what is not stored, with progress."""
    stored = read_runs('heldout')
    done = set(zip(stored['arm'], stored['seed'], stored['version'], strict=True))
    missing = [(arm, seed) for arm in arms for seed in seeds if (arm, seed, run_version(arm)) not in done]
    if missing:
        with patch.dict(os.environ, TQDM_DISABLE='1'):                  # one bar for all, none from workers
            runs = joblib.Parallel(n_jobs=jobs, return_as='generator_unordered')(
                joblib.delayed(train_and_label)(arm, seed) for arm, seed in missing)
            for arm, seed, run in tqdm(runs, desc='training runs', total=len(missing)):
                store_run(arm, seed, run)
    tables = [read_runs(name) for name in ('heldout', 'history')]
    return tuple(table[table['arm'].isin(arms) & table['seed'].isin(seeds)].reset_index(drop=True)
                 for table in tables)


# %% [markdown]
# ## A stored number is a computed number
#
# Here are three seeds of the default arm. To see that the table holds what the code gives, we train the first
# steps of seed 0 again and compare with the stored history, digit by digit.

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
# An arm is a name in one table; a run is two rows in two files that say which code made them; the first three
# steps, trained again, are equal to the stored ones in every digit.
#
# **Try it.** Add an arm of your own to `ARMS`, say `{'group_size': 4}`, run the cell that exports it, and
# call `arm_results` with its name.
