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
# # 12.6 Count tokens before you mix single-turn and multi-turn tasks
#
# Training sets are seldom of one kind. Here the same repair is asked in two formats: as an episode in which
# the agent must call `read` to see the function, and as a single question whose prompt shows it, answered by
# one call. We will mix them half and half and see who pays for what. Half of the episodes is not half of the
# loss: a single-turn episode has four tokens of the policy, a multi-turn episode three times as many, and
# how the loss is averaged (section 6.2) decides which format the gradient hears.
#
# **Time** 20 min. **Assumes** [6.2](../06_policy_gradient/06_2_loss_aggregation.ipynb),
# [12.5](12_5_tool_errors.ipynb). **Afterwards you can** compute from counts of tokens which share of the
# loss each format gets, and compare it with the share of the signal.

# %%
#@save mixture
from dataclasses import replace
from functools import partial

import torch

from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.environment import ACTIONS, EditBudgetEnv, parse_call, passes
from agentrl.exercises import exercise
from agentrl.rewards import make_reward
from agentrl.sampling import copy_tasks, draw_tasks, sample_groups
from agentrl.tasks import compact_source, make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, group_batch, heldout_stats, train_rl

# %% [markdown]
# ## One task, two prompts
#
# A single-turn task carries its compact source in the prompt. That it is one is a field of the task, not a
# sign in its text: text is what the policy sees, and what it sees must not decide how it is graded.
#
# There is a trap. Names are drawn afresh for every episode, and `randomize_names` writes the issue anew, so
# a prompt made before is lost or, worse, would speak of other names than the source. So names are drawn
# first and the prompt is made after that.

# %%
#@save
def single_turn(task):
    """The task as a single question: `single_turn` is set, and the prompt ends with the compact source."""
    view = compact_source(task.source)
    issue = task.issue if task.issue.endswith(view) else f'{task.issue} {view}'
    return replace(task, single_turn=True, issue=issue)


def draw_names(task, rng):
    """Fresh names for a task of either format; a single-turn prompt is made after they are drawn."""
    fresh = randomize_names(task, rng)
    return single_turn(fresh) if task.single_turn else fresh

# %%
task, rng = single_turn(make_tasks('train')[0]), torch.Generator().manual_seed(0)
print('made first:      ', task.issue)
print('renamed after:   ', randomize_names(task, rng).issue)
print('names, then made:', draw_names(task, rng).issue)

# %% [markdown]
# ## One call, graded
#
# `MixedTurnEnv` treats a multi-turn task as before. For a single-turn task the first call is the answer: it
# is carried out, the hidden tests are run on what the source then is, and the episode ends with stop
# `graded`. An agent that answers `read` has learned nothing that it could still use. It pays the price of
# one call; a malformed call is no answer and gets no verdict.

# %%
#@save
class MixedTurnEnv(EditBudgetEnv):
    """EditBudgetEnv in which the first call of a single-turn task is carried out and graded, stop 'graded'.

    A well-formed call counts as submitted: an edit is judged by what it made, any other call by the source
    as it is. A malformed call is no answer and not submitted. Either ends the episode (terminated) and costs
    what one call costs.
    """

    def step(self, action):
        if self.info['stop'] or not self.task.single_turn:
            return super().step(action)
        tool, op = parse_call(action)
        self.info['n_turns'] += 1
        ACTIONS[tool](self, op)
        answer = 'invalid' if tool == 'invalid' else 'submit'
        if tool not in ('invalid', 'submit'):
            ACTIONS['submit'](self, None)
        self.info['stop'] = 'graded'
        return '', self.reward(answer, lambda kind: passes(self, kind)), True, False, dict(self.info)


def make_mixed_env(cfg):
    """The MixedTurnEnv of a configuration."""
    reward = make_reward(cfg.reward, cfg.step_penalty, cfg.wrong_submit, cfg.invalid_penalty)
    return MixedTurnEnv(cfg.max_turns, reward, cfg.max_edits)

# %%
import pandas as pd

env, rows = MixedTurnEnv(), []
for call in (f'edit {task.edit}', 'edit fix_init', 'read', 'submit', 'raed'):
    env.reset(options={'task': task})
    _, reward, terminated, _, info = env.step(f'<call> {call} </call>')
    rows.append((call, reward, terminated, info['stop'], info['submitted'], info['hidden_pass']))
pd.DataFrame(rows, columns=['call', 'reward', 'terminated', 'stop', 'submitted', 'hidden_pass'])

# %% [markdown]
# ## A step of the mixture
#
# A step draws eight of the twenty tasks as always; the first four of them become single-turn. So a group
# holds episodes of one format only, and advantages never compare a question with an episode. `sample_named`
# gives the names to `sample_groups` ready made. With no single-turn prompts the default sampler must come
# out, token for token.

# %%
#@save
def sample_named(policy, tasks, tok, cfg, generator, env_factory=make_mixed_env, n=None):
    """`sample_groups` for tasks of both formats, names drawn for each episode: list of Trajectory."""
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [draw_names(task, generator) for task in copies]
    return sample_groups(policy, named, tok, replace(cfg, fresh_names=False), generator, env_factory, n=1)


def sample_mixture(policy, tasks, tok, cfg, generator, env_factory=make_mixed_env, n_single=4):
    """`sample_step`, but the first `n_single` of the prompts drawn are single-turn: list of Trajectory."""
    if not 0 <= n_single <= cfg.prompts_per_step:
        raise ValueError(f'n_single={n_single} must be from 0 to prompts_per_step={cfg.prompts_per_step}')
    picked = draw_tasks(tasks, cfg, generator)
    mixed = [single_turn(task) for task in picked[:n_single]] + picked[n_single:]
    return sample_named(policy, mixed, tok, cfg, generator, env_factory)

# %%
from agentrl.sampling import sample_step

tok = build_tokenizer(make_tasks('all'))
policy, cfg = make_rl_base(tok), RLConfig()
trajs = sample_mixture(policy, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(0))
default = sample_step(policy, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(0))
plain = sample_mixture(policy, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(0), n_single=0)
print('without single-turn prompts the default:', all(
    torch.equal(a.ids, b.ids) for a, b in zip(plain, default, strict=True)))
print('the multi-turn half of the mixture too: ', all(
    torch.equal(a.ids, b.ids) for a, b in zip(trajs[32:], default[32:], strict=True)))

# %% [markdown]
# The base was never shown a source in a prompt. What does it answer? And do the reasons to end add up?

# %%
from agentrl.tool_errors import stop_counts

answers = pd.Series([tok.decode(traj.ids[1:][traj.action_mask].tolist()) for traj in trajs[:32]])
print(answers.value_counts(sort=False).sort_index().sort_values(ascending=False, kind='stable').head(5))
stops = stop_counts(trajs)
print(stops, 'together', sum(stops.values()), 'of', len(trajs))

# %% [markdown]
# Two in three of its answers are a bare `</call>`, and none of the 32 passes. Where every group fails,
# advantages are zero: at the start the single-turn half has loss weight and nothing to say.
#
# ## Half of the episodes, how much of the loss?
#
# The weight of a token is that of section 6.2. Under `token_mean` each token counts the same, so a format's
# share of the loss is its share of the policy's tokens; `seq_mean_token_sum` differs by a factor that is the
# same for all; `seq_mean_token_mean` gives each episode the same.

# %%
#@save
def is_single(trajs):
    """Which episodes were single-turn, read from their stop 'graded': bool [B]."""
    return torch.tensor([traj.info['stop'] == 'graded' for traj in trajs])


def single_share(weights, single):
    """Share of weights [B, T-1] that lies on the rows where single [B] is true; nan if all weights are 0."""
    return (weights[single].sum() / weights.sum()).item()

# %%
from agentrl.plotting import (
    beside_book,
    plot_panels,
    save_figure,
    save_table,
    side_by_side,
    use_style,
    with_interval,
)


def base_shares(seed):
    """Shares of the single-turn episodes in a step of the base."""
    trajs = sample_mixture(policy, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(seed))
    mask, single = group_batch(trajs, tok, cfg)[0]['action_mask'], is_single(trajs)
    shares = {f'share_{mode}': single_share(loss_weights(mask, mode), single) for mode in AGGREGATIONS}
    return {'arm': 'single-turn', 'seed': seed, 'share_of_episodes': single.double().mean().item()} | shares


weights = pd.DataFrame([base_shares(seed) for seed in range(3)])
weights = weights.rename(columns={'share_seq_mean_token_mean': 'share_seq_mean'})
weights.round(3)

# %%
table = beside_book(weights, '12.6', 'loss_weight')
save_table(table, '12_6_loss_weight')
side_by_side(table)

# %% [markdown]
# ## Equal weight for the two formats
#
# A further arm keeps `token_mean` and gives each format half of the weight, whatever the lengths: within a
# minibatch, all tokens of a format with share $s$ are multiplied by $1/(2s)$. The factor goes to the
# advantages. That is the same as to put it into the weights, since the clip of section 8.1 looks at ratios
# and at the sign of the advantage alone. The sum of all weights stays 1. Within a format all tokens still
# count the same, which `seq_mean_token_mean` does not promise.

# %%
#@save
def format_scale(mask, single, mode):
    """Factors [B] that give each format half of the loss weight; 1 where only one format is there."""
    share = single_share(loss_weights(mask, mode), single)
    if share in (0.0, 1.0):
        return torch.ones(len(mask), dtype=torch.float64)
    return torch.where(single, 0.5 / share, 0.5 / (1 - share)).double()


def balanced_batch(trajs, tok, cfg):
    """`group_batch` with the advantages of each format scaled to half of each minibatch's loss weight."""
    batch, advantages = group_batch(trajs, tok, cfg)
    single, scale = is_single(trajs), torch.ones(len(trajs), dtype=torch.float64)
    for first in range(cfg.minibatches):
        rows = slice(first, None, cfg.minibatches)                      # as rl_update cuts them
        scale[rows] = format_scale(batch['action_mask'][rows], single[rows], cfg.loss_agg)
    return batch, advantages * scale[:, None]

# %%
batch, plain = group_batch(trajs, tok, cfg)
_, balanced = balanced_batch(trajs, tok, cfg)
single = is_single(trajs)
for first in range(cfg.minibatches):
    rows = slice(first, None, cfg.minibatches)
    weights_of_rows = loss_weights(batch['action_mask'][rows], cfg.loss_agg)
    scale = format_scale(batch['action_mask'][rows], single[rows], cfg.loss_agg)
    agree = torch.allclose(balanced[rows], plain[rows] * scale[:, None], rtol=0, atol=1e-12)
    print(f'minibatch {first}: single-turn share {single_share(weights_of_rows, single[rows]):.3f}, scaled',
          f'{single_share(weights_of_rows * scale[:, None], single[rows]):.3f}; advantages agree: {agree}')

# %% [markdown]
# ## Five arms
#
# The pass rate of a mixed batch is a mean of two things. So each step also records what each format did, and
# the single-turn share of the *signal*, weight times size of the advantage: a format whose groups all fail
# or all pass has weight and says nothing.

# %%
#@save
def format_row(trajs, batch, advantages, cfg):
    """What each format did in a step (nan if absent); single-turn shares of policy tokens and of signal.

    The signal is the sum of loss weight times |advantage|, as trained; nan if all advantages are 0.
    """
    single, row = is_single(trajs), {}
    for name, wanted in (('single_turn', True), ('multi_turn', False)):
        part = [traj for traj, is_one in zip(trajs, single.tolist(), strict=True) if is_one == wanted]
        stats = behavior_stats(part) if part else {}
        row |= {f'{name}_{key}': stats.get(key, float('nan'))
                for key in ('pass_rate', 'reads', 'tests', 'edits', 'malformed')}
    weights = loss_weights(batch['action_mask'], cfg.loss_agg)
    return row | {'single_share_tokens': single_share(batch['action_mask'].double(), single),
                  'single_share_signal': single_share(weights * advantages.abs(), single)}


def recording(prepare, rows):
    """`prepare`, which also appends the `format_row` of each step to `rows`."""
    def recorded(trajs, tok, cfg):
        batch, advantages = prepare(trajs, tok, cfg)
        rows.append(format_row(trajs, batch, advantages, cfg))
        return batch, advantages

    return recorded

# %%
row = format_row(trajs, batch, plain, cfg)
pd.Series(row).round(3)

# %% [markdown]
# The exercise at the end of this section asks for such shares. Its check comes here, where the loss weights
# are at hand; it tries a function on six episodes under each aggregation. Counting tokens is right under two
# of the three.

# %%
#@save
@exercise
def check_single_share(attempt):
    """Try `attempt(lengths, single, mode)` on all aggregations: 'right', or what is wrong, in words."""
    rng = torch.Generator().manual_seed(0)
    for mode in AGGREGATIONS:
        lengths = torch.randint(1, 20, (6,), generator=rng)
        single = torch.tensor([True, True, False, True, False, False])
        right = single_share(loss_weights(torch.arange(20) < lengths[:, None], mode), single)
        given = attempt(lengths.tolist(), single.tolist(), mode)
        if not isinstance(given, float) or abs(given - right) > 1e-9:
            return (f'{mode}: six episodes of {lengths.tolist()} policy tokens, single-turn where '
                    f'{single.tolist()}: the share is {right:.6f}, not {given!r}')
    return 'right, under ' + ', '.join(AGGREGATIONS)

# %%
def share_of_tokens(lengths, single, mode):
    return sum(n for n, one in zip(lengths, single, strict=True) if one) / sum(lengths)


print(check_single_share(share_of_tokens))

# %% [markdown]
# The arms: multi-turn only, which must be the default run of section 12.3; the mixture; the mixture with
# equal weights; the mixture under `seq_mean_token_mean`, one of the book's exercises; and single-turn only,
# to see what that format can reach. Each policy is evaluated on both formats of the held-out tasks.

# %%
#@save
MIXTURE_ARMS = {
    'multi-turn only': {'n_single': 0},
    '50/50 mixture': {'n_single': 4},
    'mixture, equal token weight': {'n_single': 4, 'balanced': True},
    'mixture, seq_mean': {'n_single': 4, 'loss_agg': 'seq_mean_token_mean'},
    'single-turn only': {'n_single': 8},
}


@cached
def train_mixture(cfg, n_single, balanced, base_seed, steps, evaluation):
    """Train the RL base on both formats: weights, history with a `format_row` a step, heldout by format."""
    tok = build_tokenizer(make_tasks('all'))
    policy, rows, heldout = make_rl_base(tok, base_seed), [], []
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, make_mixed_env,
                       sample=partial(sample_mixture, n_single=n_single),
                       prepare=recording(balanced_batch if balanced else group_batch, rows))
    multi = make_tasks('heldout')
    for name, tasks in (('multi-turn', multi), ('single-turn', [single_turn(task) for task in multi])):
        rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
        stats = heldout_stats(tasks, sample_named(policy, tasks, tok, cfg, rng, n=evaluation['samples']))
        heldout.append({'evaluated': name} | stats)
    history = [step | row for step, row in zip(history, rows, strict=True)]
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}

# %%
#@save
def train_mixture_arm(arm, seed=0, base_seed=0):
    """`train_mixture` for a named arm."""
    settings = {'balanced': False} | MIXTURE_ARMS[arm]
    n_single, balanced = settings.pop('n_single'), settings.pop('balanced')
    return train_mixture(RLConfig(seed=seed, **settings), n_single, balanced, base_seed, STEPS, EVALUATION)


MIXTURE = Study('mixture', MIXTURE_ARMS, train_mixture_arm)

# %%
from agentrl.arms import SEEDS, arm_results, run_study

heldout, history = run_study(MIXTURE, list(MIXTURE.arms), SEEDS)
same, _ = arm_results(['default'], SEEDS)
ours = heldout[(heldout['arm'] == 'multi-turn only') & (heldout['evaluated'] == 'multi-turn')]
counts = ['passes', 'submits', 'calls', 'reads', 'tests', 'edits']
print('multi-turn only is the default run:', bool((ours[counts].to_numpy() == same[counts].to_numpy()).all()))
by_format = heldout.pivot(index=['arm', 'seed'], columns='evaluated', values=['pass_rate', 'reads'])
runs = pd.DataFrame({f'{format.replace("-", "_")}_{name}': by_format[column, format]
                     for column, name in (('pass_rate', 'pass'), ('reads', 'reads'))
                     for format in ('multi-turn', 'single-turn')}).loc[list(MIXTURE.arms)]
in_book = runs.loc[['multi-turn only', '50/50 mixture']].reset_index()
table = beside_book(in_book, '12.6', 'single_and_multi_turn')
save_table(table, '12_6_single_and_multi_turn')
side_by_side(table)

# %%
runs.groupby('arm', sort=False).agg(with_interval)

# %%
plain, ways = runs.loc['50/50 mixture'], ['multi-turn only', 'mixture, equal token weight', 'mixture, seq_mean']
minus_plain = pd.concat({arm: runs.loc[arm] - plain for arm in ways}, names=['minus the plain mixture', 'seed'])
minus_plain.groupby(level=0, sort=False)[['multi_turn_pass', 'single_turn_pass']].agg(with_interval)

# %% [markdown]
# Multi-turn training alone does not teach the single question, but it does teach to answer with an edit: it
# passes about as often as a blind guess, 0.2, where the book's agent passes nothing. All mixtures are far
# above the blind rate, so they look at the prompt. And single-turn training alone unlearns to read: it
# answers an issue without a source by an edit, too.
#
# How does a format with so few tokens learn so much? The figure shows its share of the tokens and its share
# of the signal.

# %%
use_style(dashes=True)
MIXED = [arm for arm in MIXTURE.arms if arm not in ('multi-turn only', 'single-turn only')]
labels = {'single_turn_pass_rate': 'pass rate, single-turn', 'multi_turn_pass_rate': 'pass rate, multi-turn',
          'single_share_tokens': 'single-turn share of tokens',
          'single_share_signal': 'single-turn share of signal'}
smooth = history.copy()
smooth[list(labels)] = history.groupby(['arm', 'seed'])[list(labels)].transform(
    lambda curve: curve.rolling(5, min_periods=1).mean())
fig = plot_panels(smooth, MIXED, labels, f'Figure 12.6  Three mixtures, {len(SEEDS)} seeds (means of five steps)')
save_figure(fig, '12_6_mixtures', history[['arm', 'seed', 'step', *labels]])

# %%
last = history[history['step'] >= 30].groupby(['arm', 'seed'])[
    ['single_share_tokens', 'single_share_signal', 'single_turn_malformed', 'multi_turn_malformed']].mean()
by_arm = last.groupby('arm', sort=False)
by_arm.agg(['mean', 'min', 'max']).loc[list(MIXTURE.arms)].round(3).T

# %%
quarter = (last[['single_turn_malformed', 'multi_turn_malformed']] >= 0.25).groupby('arm', sort=False)
quarter.sum().assign(runs=by_arm.size()).loc[list(MIXTURE.arms)]

# %% [markdown]
# ## Exercise
#
# A colleague mixes two data sets and asks how much of the loss each one gets. Write `my_single_share`: from
# the numbers of policy tokens of the episodes and from which of them are single-turn, the single-turn share
# of the loss under each aggregation of section 6.2. Then say, before you look at the table above, what
# `seq_mean` should do to the single-turn pass rate. The check tells you what is wrong; [a
# solution](../solutions/s_12_6_mixture.ipynb) is at the end of the book.

# %%
def my_single_share(lengths, single, mode):
    """Share of the loss on single-turn episodes: lengths [B], single [B] of bools, mode of section 6.2."""
    raise NotImplementedError


print(check_single_share(my_single_share))

# %% [markdown]
# ## What was seen
#
# | finding of the book | here, ten seeds | verdict |
# |---|---|---|
# | multi-turn only passes no single-turn task | 0.251, interval 0.202 to 0.299: like blind guessing | does not hold |
# | the mixture learns single-turn above the blind rate | 0.592, interval 0.565 to 0.618; the book 0.256 | holds, clearly |
# | at some cost to multi-turn | 0.767 against 0.776, a difference of 0.009 (−0.022 to 0.039) | undecided, and small |
# | half of the episodes are less of the loss under `token_mean` | 0.205 of the trained mixture's tokens, steps 30 to 39; the book 0.19, of its trained mixture | holds |
# | the share moves as episodes change | 0.131 of the base's tokens, 0.205 at the end | holds |
# | and half of it under `seq_mean` | 0.5 | holds |
# | equal token weight (ours) | single-turn gains 0.054 (−0.036 to 0.143), multi-turn −0.005 | undecided |
# | `seq_mean` (the exercise) | single-turn gains 0.052 (−0.019 to 0.123), multi-turn 0.006 | undecided |
#
# The weights matter less than the shares suggest. In the last ten steps the plain mixture gives the
# single-turn format 0.205 of its tokens but 0.685 of the signal (by seed 0.370 to 1.000): probably because
# most multi-turn groups agree by then and are silent, so the format that still fails is heard anyway. What
# we did not expect is in the last tables: under the plain mixture 0.306 of the single answers are malformed
# at the end, and in 4 of the 30 mixed runs a quarter or more of the multi-turn calls are. Trained on
# multi-turn alone no run drifts that far (0.161 at most). Both prices are free (section 12.5); whether the
# bad answers of one format leak into the other, 4 runs cannot say.
#
# The same findings with intervals and one rule for all: [section 12.9](12_9_what_holds.ipynb).
#
# **Try it.** Make the mixture unequal: `'n_single': 1` and `'n_single': 7` as arms of `MIXTURE_ARMS`. How
# few single-turn prompts teach the format, and how few multi-turn prompts keep the reading alive?
