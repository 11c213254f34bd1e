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
# # 9.5 Make a step fast by computing nothing twice and nothing for nobody
#
# A training step of this book can be written in twenty lines that sample by a full forward pass for every
# token and update on a padded batch. Ours gives the same episodes and the same gradient with a seventh of the
# work. Here the work is counted, not timed, so that you see where it goes; then come the times, as ratios
# measured in one run, and what is left between us and the processor's limit.
#
# **Time** 10 min. **Assumes** [3.3](../03_model/03_3_packed_rows.ipynb),
# [5.3](../05_trajectories/05_3_lockstep_sampler.ipynb), [9.2](09_2_training_loop.ipynb). **Afterwards you
# can** count the operations of sampling and of the update, and say how much each of the savings brings.

# %%
#@save work
from contextlib import contextmanager

import torch

# %% [markdown]
# ## Count the work
#
# A forward hook on four places of the network sees all that passes: how often the model is called, how many
# tokens enter it, how many leave its last block, and for how many the head scores the whole vocabulary.
# Sampling needs no gradient and the update does, which tells the two apart.

# %%
#@save
@contextmanager
def count_work(policy):
    """Count what a TinyAgent computes inside: a dict of calls, tokens, last block and head, a phase each."""
    phases = ('sampling', 'update')
    work = {f'{phase}: {what}': 0 for phase in phases for what in ('calls', 'tokens', 'last block', 'head')}

    def count(what, unit):
        def hook(module, inputs, output):
            work[f'{phases[torch.is_grad_enabled()]}: {what}'] += unit or output[..., 0].numel()
        return hook

    places = ((policy.blocks[0].norm1, 'calls', 1), (policy.blocks[0].norm1, 'tokens', None),
              (policy.blocks[-1].norm2, 'last block', None), (policy.head, 'head', None))
    hooks = [module.register_forward_hook(count(what, unit)) for module, what, unit in places]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()


# %% [markdown]
# One step of the default run, from the RL base, in both ways. The plain way differs in two arguments: the
# reader of section 5.3, and the log-probabilities of section 3.3.

# %%
import pandas as pd

from agentrl.base import make_rl_base
from agentrl.packing import action_log_probs, padded_log_probs
from agentrl.sampling import CachedReader, PlainReader, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, group_batch, rl_update

tok, tasks = build_tokenizer(make_tasks('all')), make_tasks('train')


def one_step(reader, log_probs, cfg):
    """The trajectories and the policy after one training step, and the work that it took."""
    policy, rng = make_rl_base(tok), torch.Generator().manual_seed(0)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5)
    with count_work(policy) as work:
        trajs = sample_step(policy, tasks, tok, cfg, rng, reader=reader)
        rl_update(policy, opt, *group_batch(trajs, tok, cfg), cfg, log_probs)
    return trajs, policy, work


ours = one_step(CachedReader, action_log_probs, RLConfig())
plain = one_step(PlainReader, padded_log_probs, RLConfig(bucket_size=64))     # a minibatch is one rectangle

# %%
same = all(torch.equal(a.ids, b.ids) for a, b in zip(ours[0], plain[0], strict=True))
gap = max((a - b).abs().max().item() for a, b in zip(ours[1].parameters(), plain[1].parameters(), strict=True))
print('same ids:', same, ' parameters after the step agree:', gap < 1e-9)
pd.DataFrame({'plain': plain[2], 'ours': ours[2]}).assign(ratio=lambda t: (t['plain'] / t['ours']).round(1))

# %% [markdown]
# In sampling the plain loop sends each token through the network once for every later token of its episode.
# In the update, more than half of what it computes is padding, and for seven in ten of the real positions
# nobody asks what the next token is. The number of calls is equal in sampling: one a round, because a token
# cannot be sampled before the one in front of it. That is what keeps small batches from being fast.
#
# ## Which change brings what?

# %%
from torch.utils.flop_counter import FlopCounterMode


def operations(reader, log_probs, cfg):
    """Operations of one step's matrix products, attention left out (3.3), in thousands of millions."""
    with FlopCounterMode(display=False) as counter:
        one_step(reader, log_probs, cfg)
    return counter.get_total_flops() / 1e9


ways = {'plain': (PlainReader, padded_log_probs, RLConfig(bucket_size=64)),
        'and a cache in sampling': (CachedReader, padded_log_probs, RLConfig(bucket_size=64)),
        'and buckets of similar length': (CachedReader, padded_log_probs, RLConfig(bucket_size=8)),
        'packed rows instead of buckets (ours)': (CachedReader, action_log_probs, RLConfig())}
pd.Series({name: operations(*way) for name, way in ways.items()}, name='10^9 operations').round(1).to_frame()

# %% [markdown]
# ## Times
#
# Times belong to a machine and a moment, so none is measured here: a stored output could not be compared.
# `make bench` measures them, plain and ours in one process on one thread, and stores this table. *Floor* is
# the time that reading every token once and training on it once would take at the rate of a large matrix
# product in float64. Ratios are what to look at.

# %%
from importlib.resources import files
from pathlib import Path

bench = pd.read_csv(Path(files('agentrl')).parent / 'figures' / 'data' / 'bench.csv')
ratios = ['plain / ours', 'ours / floor', 'sampling, share of ours', 'sampling, plain / ours',
          'update, plain / ours']
bench.set_index(['varied', 'value'])[['tokens an episode', *ratios]].round(2)

# %%
from agentrl.plotting import save_figure, save_table, use_style

use_style()
import matplotlib.pyplot as plt

panels = [('group size', 'episodes in a group'), ('turns', 'turn budget'),
          ('context', 'context, tokens (untrained)'), ('width', 'width of the model (untrained)')]
fig, axes = plt.subplots(1, 4, figsize=(11, 3), sharey=True, layout='constrained')
for ax, (varied, label) in zip(axes, panels, strict=True):
    rows = bench[bench['varied'] == varied]
    for column, marker in (('plain / ours', 'o'), ('ours / floor', 's')):
        line, = ax.plot(rows['value'].astype(str), rows[column], marker=marker)
        if varied == 'turns':
            ax.annotate(column, (1, rows[column].iloc[1]), xytext=(0, 9), textcoords='offset points',
                        color=line.get_color(), ha='center')
    ax.set(xlabel=label)
ticks = [1, 2, 4, 8, 16]
axes[0].set(yscale='log', ylabel='ratio of times', ylim=(1, 20), yticks=ticks, yticklabels=ticks)
axes[0].minorticks_off()
save_figure(fig, '9_5_speed', bench[['varied', 'value', 'plain / ours', 'ours / floor']].round(3))

# %% [markdown]
# The same in numbers that belong to the machine that made them.

# %%
absolute = ['episodes a second', 'tokens a second', 's a step, sampling', 's a step, update', 's a step, plain',
            's a step, floor', 'MB a step, plain', 'MB a step, ours']
table = bench.set_index(['varied', 'value'])[absolute].round(3)
save_table(table.reset_index(), '9_5_speed_of_one_machine')
table

# %%
gain = bench['two processes, gain'].dropna().iloc[0]
print(f'two seeds in two processes of one thread each: {gain:.2f} times as fast as one after the other')

# %% [markdown]
# ## Where the rest of the time goes
#
# In the update, matrix products come first and attention second: its heads of 16 are so narrow that softmax
# is its limit and not multiplication. (PyTorch's profiler around `one_step` shows it.) In sampling each
# round has a price before the first token is computed, more than a hundred small operations. That is why
# large groups are cheaper a token than small ones (by a tenth). `make bench` also clocks the matrix
# products and the attention alone, at the shapes of the run: they are most of the update and only about half of
# the sampling, which is where those small operations show. What would help next is to sample in fewer
# rounds, by guessing the tokens that a call's grammar leaves no choice about and checking the guess. Tried
# and dropped: plain attention and masks made by hand (slower than the fused kernel at these lengths), masks
# as numbers instead of booleans, inference mode (hardly faster), and smaller buckets of packed rows
# (slower).
#
# ## What was seen
#
# One step with the same ids and the same parameters for far fewer operations. Over the whole default run ours
# is 3.22 times as fast as the plain loop (5.15 times in sampling, 1.72 in the update) and takes 2.64 times
# the floor. The gain grows with what one asks for: 6.71 with groups of 128, 18.46 with episodes that fill a
# context of 512. It is less on the default run than on its first steps (4.39) because the trained agent's
# episodes have nearly equal lengths, so there is little padding left to save. A step of the plain loop takes
# 4 times the memory. Sampling is still 0.44 of a step.
#
# **Try it.** Count the work of one step with `RLConfig(group_size=32)`: what grows with the group, and what
# does not? Then run `make bench` on your machine and compare the ratios.
