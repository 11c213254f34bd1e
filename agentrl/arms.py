# Made by tools/export.py from notebooks/09_grpo/09_3_arms.py. Do not edit: change it there, then `make export`.
# Body: 0abdac47d94cc48d
"""9.3 Name every experiment once."""

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

# 09_grpo/09_3_arms, cell 2
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


# 09_grpo/09_3_arms, cell 2
def arm_config(arm, seed=0):
    """The RLConfig of a named arm; ValueError for a name that is not in ARMS."""
    if arm not in ARMS:
        raise ValueError(f'arm={arm!r} is not known; choose one of {", ".join(ARMS)}')
    return RLConfig(seed=seed, **ARMS[arm])


# 09_grpo/09_3_arms, cell 4
STEPS = 40
SEEDS = (0, 1, 2)                                                       # of the runs stored with the book
EVALUATION = {'seed': 12345, 'samples': 16}                             # of each held-out task, in all arms


# 09_grpo/09_3_arms, cell 4
@cached('training', 'base')
def train_config(cfg, edits=DEMONSTRATED, base_seed=0, steps=STEPS, evaluation=EVALUATION):
    """Train the RL base under `cfg`: dict of weights, history (a row a step) and heldout (behaviour)."""
    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok, base_seed, edits)
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps)
    rng = torch.Generator().manual_seed(evaluation['seed'])
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg)
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 09_grpo/09_3_arms, cell 4
def train_arm(arm, seed=0):
    """`train_config` for a named arm."""
    return train_config(arm_config(arm, seed), BASE_EDITS.get(arm, DEMONSTRATED))


# 09_grpo/09_3_arms, cell 4
def trained_policy(arm, seed=0):
    """The policy of an arm after training."""
    policy = TinyAgent(len(build_tokenizer(make_tasks('all'))))
    policy.load_state_dict(train_arm(arm, seed)['weights'])
    return policy


# 09_grpo/09_3_arms, cell 5
@lru_cache(maxsize=1)
def training_code():
    """The version of the code that trains, read once a session."""
    return code_version('training', 'base')


# 09_grpo/09_3_arms, cell 5
def run_version(arm):
    """A short text that changes with the arm's configuration or with any code that its result depends on."""
    config = [asdict(arm_config(arm)), BASE_EDITS.get(arm), STEPS, EVALUATION]
    text = json.dumps([*config, training_code()])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# 09_grpo/09_3_arms, cell 7
def runs_path(name):
    """Where the table `name` of runs is stored."""
    return Path(files('agentrl')).parent / 'figures' / 'data' / f'{name}.csv'


# 09_grpo/09_3_arms, cell 7
def read_runs(name):
    """A stored table, empty if there is none yet."""
    path = runs_path(name)
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=['arm', 'seed', 'version'])


# 09_grpo/09_3_arms, cell 7
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


# 09_grpo/09_3_arms, cell 8
def train_and_label(arm, seed):
    """What a worker process does: one run on one thread."""
    torch.set_num_threads(1)
    return arm, seed, train_arm(arm, seed)


# 09_grpo/09_3_arms, cell 8
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
