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
# # 4.3 Let an agent act: the BugFix environment
#
# Here a task becomes a place to act in. The agent sees an issue, makes calls (`read`, `test`, `edit`,
# `submit`), gets an observation for each, and is paid at the end. The environment speaks Gymnasium's
# interface and passes its checker. We will walk through an episode by hand and throw rubbish at it: any
# string is at worst a wasted turn.
#
# **Time** 15 min. **Assumes** [3.1](../03_model/03_1_tokenizer.ipynb), [4.1](04_1_isolated_tests.ipynb),
# [4.2](04_2_rewards.ipynb). **Afterwards you can** step through an episode in Gymnasium's interface, and
# say what each call returns and what ends the episode.

# %%
#@save environment
import string

import gymnasium as gym
import torch

from agentrl.rewards import make_reward
from agentrl.tasks import EDIT_OPS, apply_op, compact_source, make_tasks, randomize_names
from agentrl.testing import run_tests
from agentrl.tokenizer import CALL, CALL_END, TOOLS

# %% [markdown]
# ## Reading a call
#
# A call is `<call> tool </call>`, or `<call> edit NAME </call>`. Everything else a policy may write, from a
# missing bracket to an edit of unknown name, is *malformed*: not an exception, since the policy is supposed
# to make such errors while it learns.

# %%
#@save
def parse_call(text):
    """(tool, edit or None) of a well-formed call, ('invalid', None) for any other string."""
    match text.split():
        case [first, tool, last] if first == CALL and last == CALL_END and tool in TOOLS and tool != 'edit':
            return tool, None
        case [first, 'edit', op, last] if first == CALL and last == CALL_END and op in EDIT_OPS:
            return 'edit', op
    return 'invalid', None


# %%
texts = ('<call> read </call>', '<call> edit fix_init </call>', '<call> edit </call>',
         '<call> rm -rf </call>', '')
for text in texts:
    print(f'{text!r:32} {parse_call(text)}')

# %% [markdown]
# ## What each call does
#
# One small function for each tool. It changes the environment's state, counts itself in `info`, and returns
# the observation. `info` counts what the agent did, and the book's statistics of behaviour (reads, tests,
# turns, passes) come from it; only tokens are counted on the row itself.

# %%
#@save
def passes(env, kind):
    """Does the present source pass the task's 'hidden' or 'visible' tests?"""
    return run_tests(env.source, getattr(env.task, f'{kind}_tests')).passed


def do_read(env, _):
    env.info['n_reads'] += 1
    return compact_source(env.source)


def do_test(env, _):
    env.info['n_tests'] += 1
    return f'visible tests {"pass" if passes(env, "visible") else "fail"}'


def do_edit(env, op):
    if env.info['n_edits'] >= env.max_edits:
        return 'error no edits left'
    env.info['n_edits'] += 1
    env.source = apply_op(env.source, op)
    return 'applied'


def do_submit(env, _):
    env.info |= {'submitted': True, 'hidden_pass': passes(env, 'hidden')}
    return ''


def do_invalid(env, _):
    env.info['n_invalid'] += 1
    return 'error malformed call'


ACTIONS = {'read': do_read, 'test': do_test, 'edit': do_edit, 'submit': do_submit, 'invalid': do_invalid}

# %% [markdown]
# ## The environment
#
# `terminated` means that the agent ended the episode by `submit`; `truncated` means that it was cut off, by
# the turn budget or by whatever runs the agent (a full context: method `cut`). The two are never mixed: what
# a cut-off episode *would have* been worth is an open question, what a finished one was worth is not (Pardo
# et al. 2018).

# %%
#@save
STOPS = ('submit', 'turn_budget', 'context', 'length', 'invalid', 'graded')
COUNTS = ('n_turns', 'n_invalid', 'n_reads', 'n_tests', 'n_edits')


def check_count(name, value, least=1):
    """`value` if it is a whole number of at least `least`, else a ValueError that names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f'{name}={value!r} must be a whole number >= {least}')
    return value


def random_task(np_random):
    """A train task with fresh names, drawn from a NumPy generator (Gymnasium's)."""
    tasks = make_tasks('train')
    rng = torch.Generator().manual_seed(int(np_random.integers(2**31)))
    return randomize_names(tasks[int(np_random.integers(len(tasks)))], rng)


# %%
#@save
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


# %% [markdown]
# ## Two budgets
#
# The book's agent has six turns and *one* edit. Without the second limit one could try edits and let `test`
# decide: two of them in six turns, since a wrong one has to be taken back, and all five in fifteen. With
# it, one has to read first.

# %%
#@save
class EditBudgetEnv(BugFixEnv):
    """BugFixEnv with a limit on edits; a further edit is a valid call that fails."""

    def __init__(self, max_turns=6, reward='hidden', max_edits=1):
        super().__init__(max_turns, reward, max_edits)


def make_env(cfg):
    """The environment of a configuration (its max_turns, max_edits and the four fields of the reward)."""
    reward = make_reward(cfg.reward, cfg.step_penalty, cfg.wrong_submit, cfg.invalid_penalty)
    return EditBudgetEnv(cfg.max_turns, reward, cfg.max_edits)


# %% [markdown]
# ## An episode by hand
#
# A call that makes no sense, the right edit, a second edit that is refused, a test, and the submission.

# %%
import pandas as pd

env = EditBudgetEnv()
observation, info = env.reset(options={'task': make_tasks()[1]})
print(observation)
rows = []
for call in ('read', 'raed', 'edit fix_boundary', 'edit fix_init', 'test', 'submit'):
    observation, reward, terminated, truncated, info = env.step(f'<call> {call} </call>')
    rows.append((call, observation, reward, terminated, truncated, info['stop'] or 'running'))
print(info)
pd.DataFrame(rows, columns=['call', 'observation', 'reward', 'terminated', 'truncated', 'stop'])

# %% [markdown]
# Six turns were used, but the sixth *submitted*: the episode is terminated, not truncated. Were the sixth
# another test, it would be truncated, with reward 0.
#
# ## Gymnasium agrees
#
# The library's own checker looks at spaces, seeding, types and the five values of `step`.

# %%
import warnings

from gymnasium.utils.env_checker import check_env

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    check_env(EditBudgetEnv(), skip_render_check=True)
print('check_env passed,', len(caught), 'warning(s)')

# %% [markdown]
# ## Rubbish in, a lost turn out
#
# Random words of the gym's own vocabulary, brackets at random places, and random characters: every one costs
# one turn, and the environment stands.

# %%
from agentrl.tokenizer import build_tokenizer

tok, rng, stops = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(0), []
for episode in range(200):
    _, info = env.reset(options={'task': make_tasks()[episode % 30]})
    while info['stop'] is None:
        length = int(torch.randint(7, (1,), generator=rng))
        words = [tok.itos[i] for i in torch.randint(len(tok), (length,), generator=rng)]
        *_, info = env.step(' '.join(words) if episode % 2 else ''.join(words)[::-1])
    stops.append((info['stop'], info['n_turns'], info['n_invalid']))
print(pd.Series(stops).value_counts())

# %% [markdown]
# ## Keeping a log
#
# `LoggedEnv` wraps an environment and appends the final `info` of every episode to a list. `log_by_step` cuts
# that list into training steps, so that any quantity of `info` can be drawn against time without touching the
# training loop.

# %%
#@save
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


def log_by_step(history, log):
    """The infos of each training step: `history` rows say in `episodes` how many there were."""
    counts = [row['episodes'] for row in history]
    if sum(counts) != len(log):
        raise ValueError(f'the history counts {sum(counts)} episodes but the log holds {len(log)}; '
                         'log exactly the episodes of this training run')
    infos = iter(log)
    return [[next(infos) for _ in range(count)] for count in counts]


# %%
log = []
logged = LoggedEnv(EditBudgetEnv(max_turns=2), log)
for calls in (['submit'], ['read', 'test'], ['edit fix_init', 'submit']):
    logged.reset(options={'task': make_tasks()[3]})
    for call in calls:
        logged.step(f'<call> {call} </call>')
for step, infos in enumerate(log_by_step([{'episodes': 1}, {'episodes': 2}], log)):
    print(step, [(info['stop'], info['hidden_pass']) for info in infos])

# %% [markdown]
# ## Wrong input

# %%
for attempt in (lambda: EditBudgetEnv(max_turns=0), lambda: EditBudgetEnv(reward='hiden'),
                lambda: env.cut('bored')):
    try:
        attempt()
    except ValueError as error:
        print(error)

# %% [markdown]
# ## What was seen
#
# An episode of six calls was repaired and paid 1.0; Gymnasium's checker passed; 200 episodes of rubbish all
# ended by their turn budget, with six turns and six malformed calls each.
#
# **Try it.** Set `max_edits=None` and `max_turns=15`, and write a blind agent that tries edits until
# `test` says `pass`, and takes back what did not help by making the same edit again. How often does it
# pass the hidden tests, and how many turns does it need?
