# Made by tools/export.py from notebooks/12_multi_turn/12_3_budget_and_penalty.py. Do not edit: change it there, then `make export`.
# Body: b3e1bdac5f206343
"""12.3 A turn budget and a cost for each call decide what is learned."""

from dataclasses import replace
from itertools import count

import torch

from agentrl.arms import EVALUATION, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.environment import check_count
from agentrl.exercises import exercise
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, train_rl


# 12_multi_turn/12_3_budget_and_penalty, cell 10
def scheduled(budget):
    """A `sample` for train_rl whose step n has `budget(n)` turns."""
    steps = count()

    def sample(policy, tasks, tok, cfg, generator, env_factory):
        max_turns = check_count('max_turns', budget(next(steps)))
        return sample_step(policy, tasks, tok, replace(cfg, max_turns=max_turns), generator, env_factory)

    return sample


# 12_multi_turn/12_3_budget_and_penalty, cell 10
def budget_of(stages):
    """The budget as a function of the step, from stages (steps, max_turns); the last one lasts."""
    ends = [sum(n for n, _ in stages[:k + 1]) for k in range(len(stages) - 1)]
    return lambda step: stages[sum(step >= end for end in ends)][1]


# 12_multi_turn/12_3_budget_and_penalty, cell 12
CURRICULUM_ARMS = {
    '3 turns, 60 steps': {'stages': [(60, 3)]},
    '6 turns, then 3': {'stages': [(20, 6), (40, 3)]},
    '6 turns, 4, then 3': {'stages': [(20, 6), (20, 4), (20, 3)]},
}


# 12_multi_turn/12_3_budget_and_penalty, cell 12
@cached
def train_stages(stages, cfg, base_seed, evaluation):
    """Train the RL base through stages of turn budgets; evaluated under the last one, as in 9.3."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
    policy, steps = make_rl_base(tok, base_seed), sum(n for n, _ in stages)
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, sample=scheduled(budget_of(stages)))
    final = replace(cfg, max_turns=stages[-1][1])
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, final)
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 12_multi_turn/12_3_budget_and_penalty, cell 12
def train_curriculum(arm, seed=0, base_seed=0):
    """`train_stages` for an arm of CURRICULUM."""
    return train_stages(CURRICULUM_ARMS[arm]['stages'], RLConfig(seed=seed), base_seed, EVALUATION)


CURRICULUM = Study('curriculum', CURRICULUM_ARMS, train_curriculum)


# 12_multi_turn/12_3_budget_and_penalty, cell 13
@exercise
def check_budget(attempt):
    """Try `attempt(step)` as six turns for 20 steps, then three: 'right', or what is wrong, in words."""
    right = budget_of(CURRICULUM_ARMS['6 turns, then 3']['stages'])
    for step in (0, 1, 19, 20, 21, 59, 1000):
        if (given := attempt(step)) != right(step):
            return f'not yet: step {step} (the first is 0) has {right(step)} turns, not {given!r}'
    return 'right: six turns in steps 0 to 19, three from step 20 on'
