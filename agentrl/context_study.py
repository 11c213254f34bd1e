# Made by tools/export.py from notebooks/12_multi_turn/12_4_context_training.py. Do not edit: change it there, then `make export`.
# Body: effdf368a6298b9c
"""12.4.1 Train in the context in which you deploy."""

from functools import partial

import torch

from agentrl.arms import EVALUATION, STEPS, Study, policy_from, train_arm
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.context import CONTEXTS, call_batch, context_step, evaluate_context
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl


# 12_multi_turn/12_4_context_training, cell 2
@cached
def train_context(context, seed=0, base_seed=0, steps=STEPS):
    """Train the RL base under a named context policy: dict of weights and history (a row a step)."""
    tok, tasks = build_tokenizer(make_tasks('all')), make_tasks('train')
    policy, sample = make_rl_base(tok, base_seed), partial(context_step, context=CONTEXTS[context])
    history = train_rl(policy, tasks, tok, RLConfig(seed=seed), steps, sample=sample, prepare=call_batch)
    return {'weights': policy.state_dict(), 'history': history}


# 12_multi_turn/12_4_context_training, cell 4
CONTEXT_ARMS = {
    'full': {},                                                         # the arm 'default' of section 9.3
    'keep 1': {'context': 'keep 1'},
    'summary': {'context': 'summary'},
    'head cut': {'context': 'head cut'},
    'full, by calls': {'context': 'full'},                              # each call a sample: a control
}


# 12_multi_turn/12_4_context_training, cell 4
def train_and_cross(arm, seed=0, base_seed=0):
    """A run of CONTEXT_ARMS; its 'heldout' is a list of rows, one for each context of evaluation."""
    context = CONTEXT_ARMS[arm].get('context')
    run = train_context(context, seed, base_seed) if context else train_arm('default', seed, base_seed)
    return run | {'heldout': cross_evaluate(policy_from(run['weights']), seed)}


# 12_multi_turn/12_4_context_training, cell 4
def cross_evaluate(policy, seed=0):
    """Behaviour on the held-out tasks under each of CONTEXTS, with the names and uniforms of a run seed."""
    tok, tasks, rows = build_tokenizer(make_tasks('all')), make_tasks('heldout'), []
    for name, context in CONTEXTS.items():
        rng = torch.Generator().manual_seed(EVALUATION['seed'] + seed)
        stats = evaluate_context(policy, tasks, tok, EVALUATION['samples'], rng, RLConfig(), context)
        rows.append({'evaluated': name} | stats)
    return rows


CONTEXT = Study('context', CONTEXT_ARMS, train_and_cross)
