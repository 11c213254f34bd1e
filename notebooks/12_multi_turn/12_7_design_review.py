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
# # 12.7.1 Review a design before it is deployed
#
# A plan lies on the table: *train with 50 turns and the full history; deploy with 100 turns, and mask what is
# older than 30 turns to save tokens.* It sounds like a saving and a bonus. A review asks what the deployed
# policy will meet that the trained one never met, makes each of these shifts happen alone, measures what it
# costs, and tries a cure. Here is the review, run on the gym at a scale of one to eight: 6 turns, 12 turns,
# and the last 3 observations kept.
#
# **Time** 15 min. **Assumes** [9.3](../09_grpo/09_3_arms.ipynb), [12.4](12_4_context_management.ipynb).
# **Afterwards you can** list the shifts between a training plan and its deployment, isolate one in a pair
# of situations, and measure its cost.

# %%
#@save review
from functools import partial

import torch

from agentrl.arms import EVALUATION, STEPS, Study, policy_from, train_arm
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.context import (
    CONTEXTS,
    ContextEpisode,
    call_batch,
    mask_observations,
    pick,
    run_contexts,
    with_samples,
)
from agentrl.environment import make_env
from agentrl.episodes import OWNER
from agentrl.exercises import exercise
from agentrl.sampling import draw_tasks
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, heldout_stats, train_rl

# %% [markdown]
# ## List the shifts
#
# Read the plan slowly and write down every way in which a call at deployment differs from all calls in
# training:
#
# 1. **The budget** is larger. No text shows it, and its end is what no policy can see coming unless it learned
#    to count to six; so at first nothing should change.
# 2. **Late states**: turns 7 to 12, with histories and positions that training never reached.
# 3. **Placeholders**: an old observation is an empty pair of brackets, which the policy never saw.
# 4. **Forgetting**: what was read long ago, and is still needed, is gone.
#
# Shifts 2 to 4 happen only in *long* episodes. An evaluation whose episodes are short cannot see them,
# however many episodes it has. So we make episodes long: an episode may begin behind calls that somebody
# else made.

# %%
#@save
def start_behind(episode, calls):
    """Make these calls in a fresh episode, as if the policy had: they count as turns; returns the episode."""
    for call in calls:
        ids = episode.tok.encode(f'<call> {call} </call>')
        episode.act(ids, [0.0] * len(ids))
    return episode


def late_rollout(model, tasks, tok, cfg, generator, context, history):
    """One finished episode a task that begins behind the calls of `history`; its samples are its own calls."""
    named = [randomize_names(task, generator) for task in tasks]
    episodes = [start_behind(ContextEpisode(make_env(cfg), task, tok, cfg.max_turns, model.max_len, context),
                             history) for task in named]
    noise = torch.rand(len(tasks), model.max_len, generator=generator, dtype=torch.float64)
    run_contexts(model, episodes, cfg.temperature, noise)
    return [with_samples(episode, len(history)) for episode in episodes]


# %%
tok, tasks = build_tokenizer(make_tasks('all')), make_tasks('train')
base, keep_3 = make_rl_base(tok), partial(mask_observations, keep_obs=3)
trajs = late_rollout(base, tasks[:1], tok, RLConfig(max_turns=12), torch.Generator().manual_seed(0),
                     keep_3, ('read', *['test'] * 5))
sample = trajs[0].samples[0]
print(f'{len(trajs[0].samples)} of {trajs[0].info["n_turns"]} calls are its own; the first of them sees')
print(tok.decode(sample.ids[:len(sample.ids) - int(sample.action_mask.sum())].tolist()))

# %% [markdown]
# The source that `read` showed is gone from this view, two tests are placeholders, three are there.
#
# ## Isolate each shift
#
# A situation is a budget, a context, and a history of a length: useless tests, alone or behind a `read`. Any
# two situations that differ in one thing give the size of one shift, as a difference of pass rates. At most
# eight calls are made for the agent, so that four of twelve turns are left: one more than the careful
# episode needs.

# %%
#@save
FIELDS = ('max_turns', 'context', 'history', 'length')                 # of a situation
READ = build_tokenizer(make_tasks('all')).stoi['read']


def pin_read(ids, owner, turn, k, keep_obs):
    """View before call k: as `mask_observations`, but what the last `read` showed is kept as well."""
    reads = [when for token, who, when in zip(ids, owner, turn, strict=True)
             if token == READ and who == OWNER['policy'] and when < k]
    oldest, pinned = k - keep_obs, max(reads, default=None)
    return pick(ids, owner, turn, [t for t, (who, when) in enumerate(zip(owner, turn, strict=True))
                                   if when < k and (who != OWNER['tool'] or when >= oldest or when == pinned)])


VIEWS = {
    'full': CONTEXTS['full'],
    'keep 3': partial(mask_observations, keep_obs=3),
    'keep 3 and the read': partial(pin_read, keep_obs=3),
}
HISTORIES = {
    'nothing': lambda n: (),
    'tests': lambda n: ('test',) * n,
    'read, tests': lambda n: ('read',) + ('test',) * (n - 1),
}
SITUATIONS = [(6, 'full', 'nothing', 0)] + [
    (12, context, history, length) for context in VIEWS
    for history in HISTORIES for length in ((0,) if history == 'nothing' else (1, 4, 8))]


def review_row(policy, seed, max_turns, context, history, length):
    """Behaviour of held-out episodes in a situation; `own_` counts leave out the calls of the history."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(EVALUATION['seed'] + seed)
    copies = [task for task in make_tasks('heldout') for _ in range(EVALUATION['samples'])]
    calls, situation = HISTORIES[history](length), (max_turns, context, history, length)
    trajs = late_rollout(policy, copies, tok, RLConfig(max_turns=max_turns), rng, VIEWS[context], calls)
    views = [len(sample.ids) - int(sample.action_mask.sum()) for traj in trajs for sample in traj.samples]
    return dict(zip(FIELDS, situation, strict=True)) | heldout_stats(make_tasks('heldout'), trajs) | {
        'own_reads': sum(traj.info['n_reads'] for traj in trajs) / len(trajs) - calls.count('read'),
        'own_turns': sum(len(traj.samples) for traj in trajs) / len(trajs),
        'seen_mean': sum(views) / len(views), 'seen_max': max(views)}


# %%
print(len(SITUATIONS), 'situations; the calls of one:', HISTORIES['read, tests'](4))

# %% [markdown]
# ## Four trainings
#
# - *as planned*: the default run, six turns and the full history.
# - *as deployed*: twelve turns and the deployed context from the first step. The usual advice.
# - *rehearsed*: as deployed, and most groups begin behind a history of random length. All episodes of a group
#   share their history, since they share a baseline; the calls of the history were not sampled by the policy
#   and are not trained on.
# - *rehearsed, read kept*: the same under a context policy that never hides what the last `read` showed.

# %%
#@save
def no_history(generator):
    """Always the start of an episode."""
    return ()


def random_history(generator, longest=8):
    """A history of HISTORIES of 1 to `longest` calls (or of none), each kind with the same chance."""
    kind, n = (int(torch.randint(m, (), generator=generator)) for m in (len(HISTORIES), longest))
    return list(HISTORIES.values())[kind](n + 1)


STARTS = {'the start': no_history, 'anywhere': random_history}


def rehearsed_step(policy, tasks, tok, cfg, generator, env_factory=make_env, context=VIEWS['keep 3'],
                   draw_history=no_history):
    """A `sample` for train_rl: groups of episodes under a context policy, each group behind one history."""
    return [traj for task in draw_tasks(tasks, cfg, generator) for traj in late_rollout(
        policy, [task] * cfg.group_size, tok, cfg, generator, context, draw_history(generator))]


@cached
def train_review(context, starts, cfg, base_seed=0, steps=STEPS):
    """Train the RL base in one of VIEWS, behind histories of one of STARTS: dict of weights and history."""
    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok, base_seed)
    sample = partial(rehearsed_step, context=VIEWS[context], draw_history=STARTS[starts])
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, sample=sample, prepare=call_batch)
    return {'weights': policy.state_dict(), 'history': history}

# %%
#@save
REVIEW_ARMS = {
    'as planned': {},
    'as deployed': {'context': 'keep 3', 'starts': 'the start'},
    'rehearsed': {'context': 'keep 3', 'starts': 'anywhere'},
    'rehearsed, read kept': {'context': 'keep 3 and the read', 'starts': 'anywhere'},
}


def train_and_review(arm, seed=0, base_seed=0):
    """A run of REVIEW_ARMS; its 'heldout' is a list of rows, one for each of SITUATIONS."""
    settings = REVIEW_ARMS[arm]
    run = (train_review(**settings, cfg=RLConfig(max_turns=12, seed=seed), base_seed=base_seed) if settings
           else train_arm('default', seed, base_seed))
    policy = policy_from(run['weights'])
    return run | {'heldout': [review_row(policy, seed, *situation) for situation in SITUATIONS]}


REVIEW = Study('review', REVIEW_ARMS, train_and_review)

# %% [markdown]
# ## Exercise: isolate the shifts yourself
#
# Before you read on: for each shift, which two situations differ in it and in nothing else? Write `my_pair`,
# which returns the two as (with the shift, without it), each a tuple of `SITUATIONS`. Placeholders and
# forgetting need an observation that is hidden, and only forgetting one that the agent still needs. The check
# says what else differs; [a solution](../solutions/s_12_7_design_review.ipynb) turns the pairs into sizes.

# %%
#@save
SHIFTS = {                                          # shift: what differs, what both have, what is new
    'budget': ('max_turns', {'context': 'full', 'history': 'nothing'}, 12),
    'late state': ('length', {'max_turns': 12, 'context': 'full', 'history': 'read, tests'}, 8),
    'placeholders': ('context', {'max_turns': 12, 'history': 'tests', 'length': 4}, 'keep 3'),
    'forgetting': ('context', {'max_turns': 12, 'history': 'read, tests', 'length': 4}, 'keep 3'),
}


@exercise
def check_pair(attempt):
    """Try `attempt(shift)` -> two of SITUATIONS on every shift: 'right', or what is wrong, in words."""
    for shift, (field, shared, new) in SHIFTS.items():
        pair = [dict(zip(FIELDS, situation, strict=True)) for situation in attempt(shift)]
        if len(pair) != 2 or any(tuple(one.values()) not in SITUATIONS for one in pair):
            return f'{shift}: {attempt(shift)!r} is not a pair of SITUATIONS'
        if (differ := [name for name in FIELDS if pair[0][name] != pair[1][name]]) != [field]:
            return f'{shift}: the two differ in {", ".join(differ) or "nothing"}, but should in {field} alone'
        for name, value in (shared | {field: new}).items():
            if pair[0][name] != value:
                return f'{shift}: take {name}={value!r} for the situation with the shift, not {pair[0][name]!r}'
    return 'right: four pairs, each of which differs in its own shift alone'


# %%
def my_pair(shift):
    """(with the shift, without it), two of SITUATIONS."""
    raise NotImplementedError


print(check_pair(my_pair))

# %% [markdown]
# ## What the review finds
#
# First the evaluation that the plan would have had: held-out episodes from their start, under the deployed
# budget and context. Ten seeds an arm; in brackets the 95% t interval over them.

# %%
import pandas as pd

from agentrl.arms import run_study
from agentrl.plotting import mean_interval, save_figure, save_table, use_style, with_interval

rows, history = run_study(REVIEW, list(REVIEW_ARMS), REVIEW.seeds)
rows['situation'] = list(rows[list(FIELDS)].itertuples(index=False, name=None))

plan = [(6, 'full', 'nothing', 0), (12, 'keep 3', 'nothing', 0)]
shown = rows[rows['situation'].isin(plan)]
shown.groupby(['arm', 'situation'], sort=False)[['pass_rate', 'own_turns']].agg(with_interval)

# %% [markdown]
# By this table the plan is safe. But these episodes end after four or five calls; hardly one of them sees an
# observation masked. Now the shifts, one by one: the pass rate with the shift minus the pass rate without it,
# seed by seed. Two rows go beyond the list: a late state in which nothing was read yet, and the same masking
# when what was read is kept.

# %%
PAIRS = {
    'budget': ((12, 'full', 'nothing', 0), (6, 'full', 'nothing', 0)),
    'late state': ((12, 'full', 'read, tests', 8), (12, 'full', 'read, tests', 1)),
    'late state, nothing read': ((12, 'full', 'tests', 8), (12, 'full', 'tests', 1)),
    'placeholders': ((12, 'keep 3', 'tests', 4), (12, 'full', 'tests', 4)),
    'forgetting': ((12, 'keep 3', 'read, tests', 4), (12, 'full', 'read, tests', 4)),
    'masking, read kept': ((12, 'keep 3 and the read', 'read, tests', 4), (12, 'full', 'read, tests', 4)),
}
passes = rows.pivot(index='situation', columns=['arm', 'seed'], values='pass_rate')
table = pd.DataFrame([
    {'shift': shift, 'arm': arm} | dict(zip(('mean', 'low', 'high'), mean_interval(
        passes.loc[[new], arm].iloc[0] - passes.loc[[old], arm].iloc[0]), strict=True))
    for shift, (new, old) in PAIRS.items() for arm in REVIEW_ARMS])
save_table(table, '12_7_design_review')
table.round(3)

# %% [markdown]
# Pass rates behind a `read` and useless tests, one panel a context of evaluation.

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import arm_color, spread_labels

use_style(dashes=True)
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), sharey=True)
mean = rows[rows['history'] == 'read, tests'].groupby(['arm', 'context', 'length'])['pass_rate'].mean()
for ax, context in zip(axes, VIEWS, strict=True):
    for arm in REVIEW_ARMS:
        curve = mean[arm, context]
        ax.plot(curve.index, curve, marker='o', markersize=4, color=arm_color(arm))
    ax.set(xlabel='calls already made', title=f'sees: {context}', xticks=(1, 4, 8), ylim=(0, 1))
for arm, y in mean[:, 'keep 3 and the read', 8].items():
    axes[2].annotate(arm, (8, y), xytext=(6, 0), textcoords='offset points', va='center', fontsize='small',
                     color=arm_color(arm), label='line end')
spread_labels(axes[2])
axes[0].set_ylabel('held-out pass rate, read at the first call')
save_figure(fig, '12_7_design_review', rows.drop(columns=['version', 'situation']))

# %% [markdown]
# What do they do in the last situation of a panel, eight calls in? Reads and edits of their own, calls of
# their own, and the longest view.

# %%
late = rows[(rows['context'] != 'full') & (rows['history'] == 'read, tests') & (rows['length'] == 8)]
late.groupby(['arm', 'context'], sort=False)[['pass_rate', 'own_reads', 'edits', 'own_turns', 'seen_max']].mean().round(3)

# %% [markdown]
# ## What was seen
#
# | shift, on the agent as planned | size | verdict |
# |---|---|---|
# | a larger budget | 0.001 (−0.001 to 0.003) | nothing |
# | a late state, all in view | −0.433 (−0.556 to −0.310) | a loss |
# | a placeholder for a useless test | −0.022 (−0.080 to 0.037) | undecided, small |
# | a placeholder for the source | −0.216 (−0.374 to −0.057) | a loss |
#
# The evaluation that a team would run, held-out episodes in the deployed setting, says 0.776 before and 0.773
# after: its episodes are short, and none of the shifts is in them. Behind eight calls, masked, the same agent
# passes 0.072. It mostly submits, without an edit (0.317 edits, 0.070 reads): after so many calls it has
# always submitted.
#
# Training as deployed does not cure it, and is no better: 0.027. What decides is not the setting but what the
# training *visits*, and a policy that is good at short episodes visits no long ones. Rehearsing late starts
# makes the late state cost 0.144 instead of 0.433. It also teaches the agent to read again when the source is
# gone (1.002 reads), though not well enough: 0.378. A context that keeps what the last `read` showed removes
# most of the loss without any training, 0.607, and together with the rehearsal nearly all of it: 0.726 behind
# eight calls, against 0.747 from the start. The rehearsal may have a price where episodes are short: there
# the agents that rehearsed pass 0.722 and 0.726, the one as planned 0.776.
#
# So the answer of the review: do not ask whether masking is safe, ask which observation the next decision
# needs; keep that one; start a part of the training episodes where only deployment gets to; and evaluate
# there, too. A caution: our histories are useless tests that the agent itself would hardly make. Real late
# states come from hard tasks, and are milder or worse.
#
# **Try it.** Let `random_history` draw up to eleven calls (`longest=11`), so that some episodes have one turn
# left. What should the advantage of those groups be, and what does it do to the pass rate?
