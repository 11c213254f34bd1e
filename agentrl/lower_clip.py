# Made by tools/export.py from notebooks/13_staying_alive/13_1_what_the_lower_clip_does.py. Do not edit: change it there, then `make export`.
# Body: 42933d447aed3da4
"""13.1.2 A lower clip of 0.5 ends the run."""

from agentrl.arms import EVALUATION, Study
from agentrl.lagged import train_weighed

# 13_staying_alive/13_1_what_the_lower_clip_does, cell 2
PAIR = ('low 0.5', 'low 0')
SIDES = ('floor, A < 0', 'floor, A > 0', 'no weight', 'IcePop')
LOWER_CLIP_ARMS = {name: {'weighing': name} for name in PAIR + SIDES}
KNOBS = {
    'lag 4': {'lag': 2}, 'lag 8': {'lag': 4}, 'lag 16': {'lag': 8},     # in updates, two a step
    '20 tasks': {'n_tasks': 20}, 'per-sample mean': {'loss_agg': 'seq_mean_token_mean'},
    'Adam': {'optimizer': 'Adam', 'lr': 5e-4},
    'Adam, 100 steps': {'optimizer': 'Adam', 'lr': 5e-4, 'steps': 100},
}
KNOB_ARMS = {'no lag': {'lag': 0}}
KNOB_ARMS |= {f'{name}, {knob}': {'weighing': name} | settings
              for knob, settings in KNOBS.items() for name in PAIR}


# 13_staying_alive/13_1_what_the_lower_clip_does, cell 2
def train_lower_clip_arm(arm, seed=0, base_seed=0):
    """`train_weighed` for an arm of either study."""
    return train_weighed((LOWER_CLIP_ARMS | KNOB_ARMS)[arm], seed, base_seed, EVALUATION)


FRESH_SEEDS = tuple(range(4, 12))
LOWER_CLIP = Study('lower_clip', LOWER_CLIP_ARMS, train_lower_clip_arm, FRESH_SEEDS)
CLIP_KNOBS = Study('clip_knobs', KNOB_ARMS, train_lower_clip_arm, FRESH_SEEDS)
