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
# # 12.2 Solution: what is left of GAE at γ = λ = 1
#
# The exercise of section 12.2 asks for the turn advantage at γ = λ = 1 without a TD error. Here are a proof of
# one line, the function, its check in exact fractions, and the same on real episodes.
#
# **Time** 5 min. **Assumes** [12.2](../12_multi_turn/12_2_credit_across_turns.ipynb). **Afterwards you
# can** prove what remains of GAE without discount and decay, and say how far λ below 1 moves an advantage.

# %%
import torch

from agentrl.base import make_rl_base
from agentrl.call_credit import check_call_advantages, per_call_rewards
from agentrl.critic import batch_values, make_base_critic
from agentrl.episodes import collate
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig
from agentrl.turns import call_starts, turn_advantages

# %% [markdown]
# ## Proof
#
# With K calls and $V(s_{K+1}) = 0$, the advantage at γ = λ = 1 is the plain sum of the TD errors from call k on:
#
# $$A_k = \sum_{j=k}^{K} \big(r_j + V(s_{j+1}) - V(s_j)\big)
#       = \sum_{j=k}^{K} r_j + \sum_{j=k+1}^{K+1} V(s_j) - \sum_{j=k}^{K} V(s_j)
#       = \sum_{j=k}^{K} r_j - V(s_k).$$
#
# The two sums of values differ only in their ends: the first has $V(s_{K+1})$, which is 0, the second has
# $V(s_k)$. Whatever the critic says about the calls after k is added once and subtracted once.

# %%
def my_call_advantages(rewards, values):
    """A_k of each call, lists of K, at gamma = lambda = 1."""
    return [sum(rewards[k:]) - value for k, value in enumerate(values)]


print(check_call_advantages(my_call_advantages))

# %% [markdown]
# ## On real episodes
#
# Eighty episodes of the base at a cost of 0.05 a call, with a critic from section 7.2. The tokens of each call
# have the advantage that the closed form gives for the call.

# %%
tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(step_penalty=0.05)
trajs = sample_groups(make_rl_base(tok), make_tasks('train'), tok, cfg, torch.Generator().manual_seed(0), n=4)
batch = collate(trajs, tok.pad_id)
mask, turn = batch['action_mask'], batch['turn'][:, 1:]
rewards, values = per_call_rewards(trajs, mask, cfg.step_penalty), batch_values(make_base_critic(tok), batch)
starts = call_starts(mask, turn)


def largest_difference(lam):
    """Between turn GAE and the closed form, over all calls of all episodes."""
    advantages, worst = turn_advantages(rewards, values, mask, turn, 1.0, lam)[0], 0.0
    for b in range(len(trajs)):
        at = starts[b].nonzero()[:, 0]
        earned = [rewards[b][mask[b] & (turn[b] == turn[b, t])].sum().item() for t in at]
        closed = my_call_advantages(earned, values[b, at].tolist())
        worst = max(worst, (advantages[b, at] - torch.tensor(closed, dtype=torch.float64)).abs().max().item())
    return worst


print(int(starts.sum()), 'calls; with lambda = 1 they agree:', largest_difference(1.0) < 1e-12)
print('with lambda = 0.95 the largest difference is', round(largest_difference(0.95), 3))

# %% [markdown]
# ## What was seen
#
# The check accepts the function, in fractions, so without any rounding. On 269 calls of real episodes it agrees
# with turn GAE at λ = 1, and differs by up to 0.126 at λ = 0.95: that is how far the critic's opinion of later
# calls, which cancels at λ = 1, moves a single advantage.
#
# **Try it.** Give the critic a constant error, `values + 1` under the mask. How much do the advantages at
# λ = 1 change, and how much at λ = 0.95? Only one of the answers is the same for every call.
