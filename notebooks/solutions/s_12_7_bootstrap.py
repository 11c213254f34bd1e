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
# # 12.7 Solution: bootstrap where an episode was cut
#
# What should an episode count as that was cut off? Here is the function that the exercise asks for, its
# check, and a problem so small that every episode can be written down, in which one sees why: counted 0 and
# left out both prefer the wrong thing, and bootstrapping does not.
#
# **Time** 5 min. **Assumes** [12.7](../12_multi_turn/12_7_design_problems.ipynb). **Afterwards you can**
# enumerate the episodes of an agent that may wait, and compute which way each treatment of a cut pushes it.

# %%
import torch

from agentrl.pathologies import check_cut_rewards


def my_cut_rewards(reward, cut, value):
    """What each episode counts as: its reward, and beyond the cut what the critic expects. All [B]."""
    return reward + value.detach().where(cut, 0.0)


check_cut_rewards(my_cut_rewards)

# %% [markdown]
# `where`, not a product: a value that nobody asked for may be anything, also not a number. And `detach`: the
# value is here a measurement of the policy, and the policy's loss must not train the critic to please it.
#
# ## A problem that can be written down
#
# Each turn the agent may `try`, which ends the episode with +1 at probability $p$ and with −1 else, or
# `wait`. After two turns it is cut. With $x$ for the probability to wait, an episode is a try at once
# ($1-x$), a wait and a try ($x(1-x)$), or is cut ($x^2$). If there were time, it would sooner or later try,
# so the true value of a waiting agent is $2p-1$, at any $x$.

# %%
import pandas as pd


def slope(x, p, cut_reward, keep_cut):
    """Expected policy gradient for the logit of `wait`, by enumeration, baseline the mean reward."""
    x = torch.tensor(x, dtype=torch.float64)
    probability = torch.stack([1 - x, x * (1 - x), x * x])                      # try, wait and try, cut
    reward = torch.tensor([2 * p - 1, 2 * p - 1, cut_reward], dtype=torch.float64)
    score = torch.stack([-x, 1 - 2 * x, 2 * (1 - x)])                           # of the logit
    kept = torch.tensor([1.0, 1.0, float(keep_cut)], dtype=torch.float64)
    return (probability * kept * (reward - probability @ reward) * score).sum().item()


def slopes(p):
    """`slope` for each treatment of a cut episode (columns), at three chances to wait (rows)."""
    rows = {x: {'counted 0': slope(x, p, 0.0, True), 'masked': slope(x, p, 0.0, False),
                'priced -1': slope(x, p, -1.0, True), 'bootstrapped': slope(x, p, 2 * p - 1, True)}
            for x in (0.1, 0.5, 0.9)}
    return pd.DataFrame(rows).T.rename_axis('waits with').round(4) + 0.0


slopes(0.2)

# %% [markdown]
# A positive number means that the update makes waiting likelier. Counted 0 does so at a pass rate of 0.2,
# where trying is worth −0.6. Masked does so too, although no cut episode is trained on: tries are below the
# mean that the cut ones have raised, and what they lose goes to waiting. Priced pushes towards trying.
# Bootstrapped is exactly 0: waiting changes nothing, as is true if there is time. Only real differences
# remain.
#
# The same where trying pays, $p = 0.8$:

# %%
slopes(0.8)

# %% [markdown]
# Now everything but the bootstrap says: hurry. If the limit is part of the task, that is what one wants; if
# it only saves computing, it is a bias, which Pardo et al. (2018) remove.
#
# ## What was seen
#
# At a pass rate of 0.2, an agent that waits half of the time is pushed to wait more by 0.15 if the cut counts 0
# and by 0.0375 if it is masked, and to wait less by 0.1 if it is priced like a wrong submission. With the true
# value of going on, the push is 0 at every $x$ and for both pass rates: the limit has left the objective. At
# a pass rate of 0.8 the first two push the other way, by 0.15 and 0.0375, and the price pushes in the same
# direction as before, by 0.4.
#
# **Try it.** Give the bootstrap a critic that is wrong by 0.2 in either direction. Which error makes the
# policy wait?
