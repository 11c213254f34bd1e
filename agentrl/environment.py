# Made by tools/export.py from notebooks/04_environment/04_3_bugfix_env.py. Do not edit: change it there, then `make export`.
# Body: f60fb0667e88808f
"""4.3 Let an agent act: the BugFix environment."""

import string

import gymnasium as gym
import torch

from agentrl.rewards import make_reward
from agentrl.tasks import EDIT_OPS, apply_op, compact_source, make_tasks, randomize_names
from agentrl.testing import run_tests
from agentrl.tokenizer import CALL, CALL_END, TOOLS


# 04_environment/04_3_bugfix_env, cell 2
def parse_call(text):
    """(tool, edit or None) of a well-formed call, ('invalid', None) for any other string."""
    match text.split():
        case [first, tool, last] if first == CALL and last == CALL_END and tool in TOOLS and tool != 'edit':
            return tool, None
        case [first, 'edit', op, last] if first == CALL and last == CALL_END and op in EDIT_OPS:
            return 'edit', op
    return 'invalid', None


# 04_environment/04_3_bugfix_env, cell 4
def passes(env, kind):
    """Does the present source pass the task's 'hidden' or 'visible' tests?"""
    return run_tests(env.source, getattr(env.task, f'{kind}_tests')).passed


# 04_environment/04_3_bugfix_env, cell 4
def do_read(env, _):
    env.info['n_reads'] += 1
    return compact_source(env.source)


# 04_environment/04_3_bugfix_env, cell 4
def do_test(env, _):
    env.info['n_tests'] += 1
    return f'visible tests {"pass" if passes(env, "visible") else "fail"}'


# 04_environment/04_3_bugfix_env, cell 4
def do_edit(env, op):
    if env.info['n_edits'] >= env.max_edits:
        return 'error no edits left'
    env.info['n_edits'] += 1
    env.source = apply_op(env.source, op)
    return 'applied'


# 04_environment/04_3_bugfix_env, cell 4
def do_submit(env, _):
    env.info |= {'submitted': True, 'hidden_pass': passes(env, 'hidden')}
    return ''


# 04_environment/04_3_bugfix_env, cell 4
def do_invalid(env, _):
    env.info['n_invalid'] += 1
    return 'error malformed call'


ACTIONS = {'read': do_read, 'test': do_test, 'edit': do_edit, 'submit': do_submit, 'invalid': do_invalid}


# 04_environment/04_3_bugfix_env, cell 5
STOPS = ('submit', 'turn_budget', 'context', 'length', 'invalid', 'graded')
COUNTS = ('n_turns', 'n_invalid', 'n_reads', 'n_tests', 'n_edits')


# 04_environment/04_3_bugfix_env, cell 5
def check_count(name, value, least=1):
    """`value` if it is a whole number of at least `least`, else a ValueError that names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f'{name}={value!r} must be a whole number >= {least}')
    return value


# 04_environment/04_3_bugfix_env, cell 5
def random_task(np_random):
    """A train task with fresh names, drawn from a NumPy generator (Gymnasium's)."""
    tasks = make_tasks('train')
    rng = torch.Generator().manual_seed(int(np_random.integers(2**31)))
    return randomize_names(tasks[int(np_random.integers(len(tasks)))], rng)


# 04_environment/04_3_bugfix_env, cell 6
class BugFixEnv(gym.Env):
    """Repair a function by text calls; `reset(options={'task': t, 'max_turns': n})` sets both for an episode.

    info: submitted, hidden_pass, stop (None while running, else one of STOPS), and the COUNTS.
    """
    observation_space = gym.spaces.Text(max_length=1024, min_length=0, charset=string.printable)
    action_space = gym.spaces.Text(max_length=64, min_length=0, charset=string.printable)

    def __init__(self, max_turns=6, reward='hidden', max_edits=None):
        self.max_turns = check_count('max_turns', max_turns)
        self.max_edits = float('inf') if max_edits is None else check_count('max_edits', max_edits, least=0)
        self.reward = reward if callable(reward) else make_reward(reward)
        self.info = {'stop': 'never reset'}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task = (options := options or {}).get('task') or random_task(self.np_random)
        self.budget = check_count('max_turns', options.get('max_turns', self.max_turns))
        self.source = self.task.source
        self.info = {'submitted': False, 'hidden_pass': False, 'stop': None} | dict.fromkeys(COUNTS, 0)
        return self.task.issue, dict(self.info)

    def step(self, action):
        if self.info['stop']:
            raise RuntimeError(f"no episode is running ({self.info['stop']}); call reset() first")
        tool, op = parse_call(action)
        self.info['n_turns'] += 1
        observation, reward = ACTIONS[tool](self, op), self.reward(tool, lambda kind: passes(self, kind))
        terminated = self.info['submitted']
        truncated = not terminated and self.info['n_turns'] >= self.budget
        self.info['stop'] = 'submit' if terminated else 'turn_budget' if truncated else None
        return observation, reward, terminated, truncated, dict(self.info)

    def cut(self, stop='context'):
        """End a running episode from outside, as truncated; returns its final info."""
        if stop not in STOPS:
            raise ValueError(f'stop={stop!r} is not known; choose one of {", ".join(STOPS)}')
        self.info['stop'] = stop
        return dict(self.info)


# 04_environment/04_3_bugfix_env, cell 7
class EditBudgetEnv(BugFixEnv):
    """BugFixEnv with a limit on edits; a further edit is a valid call that fails."""

    def __init__(self, max_turns=6, reward='hidden', max_edits=1):
        super().__init__(max_turns, reward, max_edits)


# 04_environment/04_3_bugfix_env, cell 7
def make_env(cfg):
    """The environment of a configuration (its max_turns, max_edits and the four fields of the reward)."""
    reward = make_reward(cfg.reward, cfg.step_penalty, cfg.wrong_submit, cfg.invalid_penalty)
    return EditBudgetEnv(cfg.max_turns, reward, cfg.max_edits)


# 04_environment/04_3_bugfix_env, cell 11
class LoggedEnv(gym.Wrapper):
    """Appends the final info of each episode to `log`."""

    def __init__(self, env, log):
        super().__init__(env)
        self.log = log

    def step(self, action):
        result = self.env.step(action)
        if result[4]['stop']:
            self.log.append(result[4])
        return result

    def cut(self, stop='context'):
        self.log.append(self.env.get_wrapper_attr('cut')(stop))
        return self.log[-1]


# 04_environment/04_3_bugfix_env, cell 11
def log_by_step(history, log):
    """The infos of each training step: `history` rows say in `episodes` how many there were."""
    counts = [row['episodes'] for row in history]
    if sum(counts) != len(log):
        raise ValueError(f'the history counts {sum(counts)} episodes but the log holds {len(log)}; '
                         'log exactly the episodes of this training run')
    infos = iter(log)
    return [[next(infos) for _ in range(count)] for count in counts]
