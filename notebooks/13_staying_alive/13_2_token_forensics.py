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
# # 13.2 Find a collapse token by token
#
# A dashboard shows means over thousands of tokens. When one of them bends, the question is *which tokens*,
# and a mean cannot say. So training writes down every token: what both policies thought of it, what it was
# worth and what weight it got. We make such a dump of a run with a lower clip of 0.5, and find in it, with
# pandas alone, where the trouble sits, when it began and what came before. The dump can be read while the run
# goes on, and a run that is killed leaves no half file under a dump's name.
#
# **Time** 20 min. **Assumes** [5.2](../05_trajectories/05_2_episodes.ipynb),
# [13.1.1](13_1_weights_in_the_loop.ipynb). **Afterwards you can** write a dump that survives a killed run,
# and find in it the first bad step and the tokens that carry the KL.

# %%
#@save dumps
import os
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.episodes import OWNER

# %% [markdown]
# ## One row a token
#
# All tokens of an episode are written, not only those of the policy: without the observation before it one
# cannot see why a call was made. What only policy tokens have is NaN elsewhere. Token-level arrays have T−1
# columns, column $t$ speaking of token $t+1$; here they are moved to the token that they speak of.

# %%
#@save
TOKEN_VALUES = ('train_logp', 'rollout_logp', 'entropy', 'advantage', 'ratio', 'weight')
DUMP_COLUMNS = ('step', 'version', 'episode', 'turn', 'position', 'token', 'owner', 'mask', *TOKEN_VALUES,
                'reward', 'truncated')


def token_table(step, version, trajs, tokens):
    """A row for each token of each episode, with DUMP_COLUMNS; what only policy tokens have is NaN elsewhere.

    tokens: the TOKEN_VALUES, [B, T-1] each, column t for token t + 1. version: updates that the sampling policy
    had seen. truncated: the episode ended without a submission.
    """
    names, rows = {code: name for name, code in OWNER.items()}, []
    for episode, traj in enumerate(trajs):
        mask = [False, *traj.action_mask.tolist()]
        table = pd.DataFrame({
            'step': step, 'version': version, 'episode': episode, 'turn': traj.turn.tolist(),
            'position': range(len(mask)), 'token': [traj.tok.itos[i] for i in traj.ids.tolist()],
            'owner': [names[code] for code in traj.owner.tolist()], 'mask': mask,
            'reward': float(traj.reward), 'truncated': not traj.info['submitted']})
        for name in TOKEN_VALUES:
            table[name] = pd.Series([float('nan'), *tokens[name][episode, :len(mask) - 1].tolist()]).where(mask)
        rows.append(table)
    return pd.concat(rows, ignore_index=True)[list(DUMP_COLUMNS)]

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch

from agentrl.base import make_rl_base
from agentrl.lagged import few_tasks, train_lagged, weigh_batch
from agentrl.plotting import save_figure, save_table, use_style
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, group_batch

tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(prompts_per_step=4, group_size=16, lr=0.3, seed=1)
base = make_rl_base(tok)
trajs = sample_step(base, few_tasks(4), tok, cfg, torch.Generator().manual_seed(0))
batch, advantages = group_batch(trajs, tok, cfg)
tokens, _ = weigh_batch(base, batch, advantages, 'low 0.5', cfg)
table = token_table(0, 0, trajs, tokens)
columns = ['turn', 'position', 'token', 'owner', 'train_logp', 'rollout_logp', 'advantage', 'weight']
table.loc[table['episode'] == 1, columns].iloc[5:16].round(3)

# %% [markdown]
# ## Whole or not at all
#
# A file that is half written when somebody opens it, or when the writer dies, is the usual end of such dumps.
# The cure is old: write under another name, then rename. On one file system a rename happens at once, so
# under its own name a file is either absent or whole. One file a step keeps steps independent, and parquet
# keeps types and compresses columns.

# %%
#@save
def dump_path(folder, step):
    """The file of a step, `step_00007.parquet`."""
    return Path(folder) / f'step_{step:05d}.parquet'


def write_dump(folder, table):
    """Write the table of one step; under its own name it is there whole or not at all. Returns its path.

    It is written as `<name>.part` beside it and renamed. One writer a folder.
    """
    if set(DUMP_COLUMNS) - set(table) or table['step'].nunique() != 1:
        raise ValueError(f'a dump is the table of one step with the columns {", ".join(DUMP_COLUMNS)}; given '
                         f'are {table.get("step", pd.Series()).nunique()} steps, columns {", ".join(table)}')
    path = dump_path(folder, int(table['step'].iloc[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.parquet.part')
    with part.open('wb') as file:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), file)
        file.flush()
        os.fsync(file.fileno())                         # the name must not be there before the bytes are
    os.replace(part, path)
    return path

# %% [markdown]
# The reader takes what is whole and *says* what is still being written. That is the normal state of a running
# job and no error. A file that is damaged under its own name is one, and is named.

# %%
#@save
def read_dump(path):
    """The table of one step; ValueError that names the file if it is no whole dump of that step."""
    path = Path(path)
    try:
        table = pq.read_table(path).to_pandas()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f'{path.name} is no whole parquet file ({type(error).__name__}); delete it, or copy '
                         'it again from where the run wrote it') from error
    if missing := [name for name in DUMP_COLUMNS if name not in table]:
        raise ValueError(f'{path.name} lacks the columns {", ".join(missing)}; a dump has {", ".join(DUMP_COLUMNS)}')
    if path.name != dump_path('.', table['step'].iloc[0]).name or table['step'].nunique() != 1:
        raise ValueError(f'{path.name} holds steps {sorted(set(table["step"]))}; its name must say its step')
    return table


def read_dumps(folder):
    """(table of all whole steps, list of the steps still being written); both may be empty."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f'{folder.name}: there is no such folder; give the one that the run writes to')
    steps = {int(found[1]) for path in folder.iterdir()
             if (found := re.fullmatch(r'step_(\d+)\.parquet', path.name))}
    parts = {int(found[1]) for path in folder.iterdir()
             if (found := re.fullmatch(r'step_(\d+)\.parquet\.part', path.name))}
    tables = [read_dump(dump_path(folder, step)) for step in sorted(steps)]
    whole = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=DUMP_COLUMNS)
    return whole, sorted(parts)

# %%
def states(folder):
    """What a reader sees, as text."""
    table, writing = read_dumps(folder)
    return f'readable: {sorted(set(table["step"]))}, still writing: {writing}'


with tempfile.TemporaryDirectory() as folder:
    print(states(folder))
    write_dump(folder, table)
    part = dump_path(folder, 1).with_suffix('.parquet.part')
    part.write_bytes(dump_path(folder, 0).read_bytes()[:1000])                       # a writer, half way
    print(states(folder))
    write_dump(folder, table.assign(step=1))
    print(states(folder))
    dump_path(folder, 1).write_bytes(dump_path(folder, 0).read_bytes()[:1000])       # a copy that broke off
    try:
        states(folder)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## A run that collapses
#
# `train_lagged` of [section 13.1.1](13_1_weights_in_the_loop.ipynb) lets `look` see every token of a step
# before it is trained on. The run is like those of [section 13.1.2](13_1_what_the_lower_clip_does.ipynb)
# under a lower clip of 0.5, but larger steps and half the lag, so that it is lost within twenty steps. It is
# picked for that: one run, an illustration. Meanwhile we look into the folder, as one would from another
# window.

# %%
#@save
def dumping(folder):
    """A `look` for train_lagged that writes a dump a step."""
    def look(step, version, trajs, batch, tokens):
        write_dump(folder, token_table(step, version, trajs, tokens))

    return look

# %%
STEPS, SHOWN = 20, (4, 16)


def write_and_peek(folder):
    """`dumping`, which also shows now and then what a reader would see."""
    write = dumping(folder)

    def look(step, *rest):
        write(step, *rest)
        if step % 5 == 0:
            dump, writing = read_dumps(folder)
            print(f'during step {step:2}: {dump["step"].nunique():2} steps, {len(dump)} tokens readable')

    return look


with tempfile.TemporaryDirectory() as folder:
    history = train_lagged(make_rl_base(tok), few_tasks(4), tok, cfg, 'low 0.5', lag=8, steps=STEPS,
                           look=write_and_peek(folder))
    dump, writing = read_dumps(folder)
print(len(dump), 'tokens,', dump['mask'].sum(), 'of the policy; still writing:', writing)

# %% [markdown]
# ## The dashboard
#
# First what everybody has: means a step, made from the dump. With $x$ the log-ratio of train and rollout
# policy, a token's part in the KL estimate is $e^x - 1 - x$ (section 13.1).

# %%
policy = dump[dump['mask']].copy()
policy['x'] = policy['train_logp'] - policy['rollout_logp']
policy['kl'] = np.expm1(policy['x'].clip(-20, 20)) - policy['x'].clip(-20, 20)
policy['below'] = policy['ratio'] < 0.5
episodes = dump.groupby(['step', 'episode']).agg(reward=('reward', 'first'), truncated=('truncated', 'first'),
                                                 tokens=('mask', 'sum'))
dashboard = policy.groupby('step').agg(kl=('kl', 'mean'), below=('below', 'mean'), smallest=('x', 'min'),
                                       entropy=('entropy', 'mean'))
dashboard = dashboard.join(episodes.groupby('step').mean())
dashboard.round(3)

# %% [markdown]
# ## Which tokens carry it?
#
# `pandas` can now ask. Tokens are sorted into kinds, and each kind's share of the KL is put beside its share of
# the tokens, for the steps before anything shows in the episodes and for those after.

# %%
KINDS = {'<call>': 'call marker', '</call>': 'call end', 'edit': 'tool name', 'read': 'tool name',
         'test': 'tool name', 'submit': 'tool name'}
policy['kind'] = policy['token'].map(KINDS).fillna(
    policy['token'].where(~policy['token'].str.startswith('fix_'), 'edit name').where(
        policy['token'].str.startswith('fix_'), 'any other word'))
policy['when'] = pd.cut(policy['step'], [-1, 4, 9, STEPS], labels=['steps 0 to 4', 'steps 5 to 9', 'steps 10 to 19'])
mass = policy.pivot_table(index='kind', columns='when', values='kl', aggfunc='sum', observed=True).fillna(0)
count = policy.pivot_table(index='kind', columns='when', values='kl', aggfunc='size', observed=True).fillna(0)
by_kind = pd.concat({'share of KL': mass / mass.sum(), 'share of tokens': count / count.sum()}, axis=1)
by_kind.round(3)

# %% [markdown]
# Tool names, the word that says what to do next, are a third of the tokens and carry nearly all of the KL at
# first. Later the call's end and the call marker join in, which were a formality: after `submit` there was
# only one word to write.
#
# The public run's collapse began on *almost deterministic* tokens. Ours? Sort by how certain the sampler was.

# %%
certainty = pd.cut(policy['rollout_logp'].map(np.exp), [0, 0.1, 0.5, 0.9, 0.99, 1],
                   labels=['under 0.1', '0.1 to 0.5', '0.5 to 0.9', '0.9 to 0.99', 'over 0.99'])
mass = policy.pivot_table(index=certainty, columns='when', values='kl', aggfunc='sum', observed=False)
count = policy.pivot_table(index=certainty, columns='when', values='kl', aggfunc='size', observed=False)
sure = pd.concat({'share of KL': mass / mass.sum(), 'share of tokens': count / count.sum()}, axis=1)
sure.index.name = 'probability for the sampler'
sure.round(3)

# %% [markdown]
# ## When does it start, and what comes before?
#
# Importance sampling gives a token the weight $r$; the floor gives it 0.5. The difference times $|A|$ is push
# that should not be there. It can be read off the dump, token by token, and split by the sign of the
# advantage.

# %%
policy['lifted'] = (policy['weight'] - policy['ratio']).clip(lower=0) * policy['advantage'].abs()
policy['side'] = np.where(policy['advantage'] < 0, 'A < 0', 'A > 0')
push = policy.pivot_table(index='step', columns='side', values='lifted', aggfunc='sum').add_prefix('lifted, ')
whole = (policy['weight'] * policy['advantage'].abs()).groupby(policy['step']).sum()
push = push.div(whole, axis=0)                                                       # against all of sum |wA|
timeline = push.join(dashboard[['kl', 'smallest', 'truncated', 'reward']])
save_table(timeline.reset_index(), '13_2_timeline')
timeline.round(3)

# %%
first = policy[policy['below']].sort_values(['step', 'x']).groupby('step').head(3)
first.loc[first['step'] <= 4, ['step', 'episode', 'turn', 'token', 'rollout_logp', 'train_logp', 'advantage',
                               'ratio', 'weight', 'truncated']].round(3)

# %% [markdown]
# ## One episode, as a heat map
#
# A row is a call and a cell a token that the policy wrote; the colour is $x$, how much the trained policy has
# moved away from what was sampled.

# %%
def heat_map(ax, episode, title):
    """Calls down, tokens across, coloured by the log-ratio x, the words written in; returns the picture."""
    calls = [call for _, call in episode[episode['mask']].groupby('turn')]
    grid = np.full((len(calls), max(map(len, calls))), np.nan)
    for row, call in enumerate(calls):
        grid[row, :len(call)] = call['train_logp'] - call['rollout_logp']
        for column, (word, x) in enumerate(zip(call['token'], grid[row])):
            ax.text(column, row, word, ha='center', va='center', fontsize='x-small',
                    color='white' if abs(x) > 6 else 'black')
    picture = ax.imshow(grid, cmap='RdBu', vmin=-10, vmax=10, aspect='auto')
    ax.set(title=title, xticks=range(grid.shape[1]), yticks=range(len(calls)),
           xticklabels=range(1, grid.shape[1] + 1), yticklabels=range(1, len(calls) + 1), xlabel='token of the call')
    ax.grid(False)
    return picture


worst = policy.groupby(['step', 'episode'])['kl'].sum()
chosen = [worst.loc[step].idxmax() for step in SHOWN]
use_style()
fig, axes = plt.subplots(1, len(SHOWN), figsize=(10, 3.4))
for ax, step, number in zip(axes, SHOWN, chosen, strict=True):
    episode = dump[(dump['step'] == step) & (dump['episode'] == number)]
    verdict = 'passed' if episode['reward'].iloc[0] else 'failed'
    picture = heat_map(ax, episode, f'step {step}, an episode that {verdict}')
axes[0].set_ylabel('call')
fig.colorbar(picture, ax=axes, label='log(train / rollout), nats (cut at ±10)')
fig.suptitle('Figure 13.2  The episode with the largest KL, at two steps')
drawn = dump.merge(pd.DataFrame({'step': SHOWN, 'episode': chosen}))
save_figure(fig, '13_2_heat_map', drawn.loc[drawn['mask'], ['step', 'episode', 'turn', 'position', 'token',
                                                            'rollout_logp', 'train_logp', 'advantage', 'weight']])

# %% [markdown]
# ## What was seen
#
# *When.* The batch of step 15 earns 0.688, that of step 16 earns 0.094, and at step 17 nothing passes and
# 0.984 of the episodes are truncated. The sampler is 8 steps old, so the policy itself was still good at step
# 7 and lost at step 8.
#
# *What came before.* At steps 5, 6 and 7 the KL is 0.242, 0.446 and 0.848, and the smallest log-ratio falls
# from −5.360 to −12.972 to −13.170, while reward, truncation and length of the batches say nothing. The floor
# pushes from step 1 on; by step 7 what it lifts on tokens with a negative advantage is 0.048 of all $\sum
# |wA|$.
#
# *Which tokens.* At first tool names, 0.965 of the KL, of which the sampler was far from sure: 0.870 of the
# KL sits on probabilities between 0.1 and 0.5. After step 9 tool names have 0.225, the marker that begins a call
# 0.477 and the one that ends it 0.259, and tokens of which the sampler was over 0.9 sure have gone from 0.001 to
# 0.125 and 0.638 together. (A run that collapses multiplies the last digit of every product: on another processor these
# late shares are others, and nearly all of the KL sits on such markers and names all the same.) In the public run the growth was *seen* on almost deterministic tokens; here that is where it ends, not where it
# begins. This is one run, chosen because it collapses: an illustration. What causes it is settled in [section
# 13.1.2](13_1_what_the_lower_clip_does.ipynb).
#
# *The chain.* The public report names four links: loops that fail get negative advantages; these fall also on
# tokens that good episodes share with them, the scaffold of every call; the floor makes a gradient where their
# ratio has collapsed; and requests that nobody reads take the decoding away meanwhile. What is seen above fits
# the first three, since tool names and the call's end are such shared tokens, and the lifted push sits where
# the advantage is negative. Only the third is tested, in 13.1.2. That the *sharing* matters is not tested: it
# would take a run in which shared tokens get no negative advantage.
#
# The idea of a per-token dump is that of pull request 2581 of radixark/miles.
#
# **Try it.** Give `train_lagged` the weighing `'low 0'` and run the analysis again: `lifted` is 0 in
# every row. Do the same tokens carry the KL? Then kill the kernel in the middle of the run and open
# what is there.
