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
# # 12.4 Solution: compact the history
#
# The exercise of section 12.4 asks for a context that replaces the history by a short note and keeps only
# the last turn. Here is one way, checked, and then what it is worth: the policy that was trained with its
# whole history is moved into it, and we count what it passes and what it reads.
#
# **Time** 5 min. **Assumes** [12.4](../12_multi_turn/12_4_context_management.ipynb),
# [12.4.1](../12_multi_turn/12_4_context_training.ipynb). **Afterwards you can** write a note that stands
# for the history of an episode, and measure what a policy passes that never trained with it.

# %%
from agentrl.context import check_compaction, read_notes
from agentrl.tokenizer import OBS, OBS_END


def my_compaction(ids, owner, turn, k, tok):
    """The prompt, the note of the latest `read` before the last turn (if any), the last turn."""
    def of_turn(j):
        return [i for i, when in zip(ids, turn, strict=True) if when == j]

    view, notes = of_turn(-1), read_notes(ids, owner, turn, k - 1, tok)
    if notes:
        view += tok.encode(OBS) + notes[max(notes)] + tok.encode(OBS_END)
    return view + of_turn(k - 1) if k > 0 else view


print(check_compaction(my_compaction))

# %% [markdown]
# Two edges are easy to miss. Before call 0 there is no last turn, and turn $k - 1 = -1$ is the prompt, which
# must not stand there twice. And `read_notes` is asked for the first $k - 1$ turns, not $k$: the last turn
# is still there in full, so a note about it would say the same thing twice.
#
# ## As a context policy
#
# The sampler wants a `View`: ids, and who wrote each in which turn. We give the note the turn and the owners
# of an observation. Nothing else is needed to sample, evaluate or train under the new context.

# %%
import torch

from agentrl.arms import EVALUATION, SEEDS, trained_policy
from agentrl.context import CONTEXTS, View, evaluate_context
from agentrl.episodes import OWNER
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

tok = build_tokenizer(make_tasks('all'))


def compaction(ids, owner, turn, k):
    """`my_compaction` as a View: the note belongs to the turn before the last."""
    seen = my_compaction(ids, owner, turn, k, tok)
    prompt, last = turn.count(-1), turn.count(k - 1) if k else 0
    note = len(seen) - prompt - last
    owners = owner[:prompt] + [OWNER['tool']] * note + [o for o, j in zip(owner, turn) if j == k - 1 >= 0]
    return View(seen, owners, [-1] * prompt + [k - 2] * note + [k - 1] * last)


# %% [markdown]
# ## What it is worth without training
#
# Three seeds of the default run of section 9.3, eight episodes of each held-out task, in four contexts.

# %%
import pandas as pd

contexts = {name: CONTEXTS[name] for name in ('full', 'head cut', 'summary')} | {'compaction': compaction}
rows = []
for seed in SEEDS[:3]:
    policy = trained_policy('default', seed)
    for name, context in contexts.items():
        rng = torch.Generator().manual_seed(EVALUATION['seed'] + seed)
        stats = evaluate_context(policy, make_tasks('heldout'), tok, 8, rng, RLConfig(), context)
        rows.append({'context': name, 'seed': seed} | stats)
table = pd.DataFrame(rows)
table.pivot(index='context', columns='seed', values='pass_rate').loc[list(contexts)].round(3)

# %%
columns = ['pass_rate', 'reads', 'edits', 'turns', 'tokens_read', 'tokens_new']
table.groupby('context', sort=False)[columns].mean().round(3)

# %% [markdown]
# ## What was seen
#
# The checker agrees in all seven cases. Without training for it, the policies pass 0.675, 0.762 and 0.238
# under compaction, against 0.762, 0.800 and 0.800 with everything in view. And the smallest views are not
# the cheapest episodes: an agent that no longer sees what it has done starts over, with 1.421 reads an
# episode and 88.462 tokens read, where a cut head takes 62.167.
#
# **Try it.** Let the note also say whether an edit was `applied`. Does the agent still start over?
