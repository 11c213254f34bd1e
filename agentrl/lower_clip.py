# Made by tools/export.py from notebooks/13_staying_alive/13_1_what_the_lower_clip_does.py. Do not edit: change it there, then `make export`.
# Body: 0ef9ee8d87cd8098
"""13.1.2 A lower clip of 0.5 ends the run."""

from agentrl.arms import EVALUATION, Study
from agentrl.lagged import train_weighed

# 13_staying_alive/13_1_what_the_lower_clip_does, cell 2
PAIR = ('low 0.5', 'low 0')
LOWER_CLIP_ARMS = {name: {'weighing': name} for name in PAIR}
KNOB_ARMS = {name: {'weighing': name} for name in ('floor, A < 0', 'floor, A > 0', 'no weight', 'IcePop')}
KNOB_ARMS |= {'no lag': {'lag': 0}}
KNOB_ARMS |= {f'{name}, lag {2 * lag}': {'weighing': name, 'lag': lag} for lag in (4, 8) for name in PAIR}
KNOB_ARMS |= {f'{name}, 20 tasks': {'weighing': name, 'n_tasks': 20} for name in PAIR}
KNOB_ARMS |= {f'{name}, Adam': {'weighing': name, 'optimizer': 'Adam', 'lr': 5e-4} for name in PAIR}


# 13_staying_alive/13_1_what_the_lower_clip_does, cell 2
def train_lower_clip_arm(arm, seed=0, base_seed=0):
    """`train_weighed` for an arm of either study."""
    return train_weighed((LOWER_CLIP_ARMS | KNOB_ARMS)[arm], seed, base_seed, EVALUATION)


LOWER_CLIP = Study('lower_clip', LOWER_CLIP_ARMS, train_lower_clip_arm, ('lagged', 'base'), tuple(range(4, 12)))
CLIP_KNOBS = Study('clip_knobs', KNOB_ARMS, train_lower_clip_arm, ('lagged', 'base'), (4, 5, 6))
