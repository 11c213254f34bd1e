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
# # 14.2 Let no observation stand between a call and its reward
#
# The reward of an agent comes at the end, and must travel back over calls and observations to the tokens that
# earned it. Three ways to lose it on the journey are shown here on rows of six tokens: a decay that runs
# while the environment speaks, a reward that is put where the mask does not look, and a sum that starts anew
# at every observation. All three leave the reward curve as it was and take the learning out of it.
#
# **Time** 10 min. **Assumes** [7.3](../07_advantages/07_3_turn_advantages.ipynb),
# [8.3](../08_ppo/08_3_whitening.ipynb), [14.1](14_1_masks.ipynb). **Afterwards you can** test a trainer's
# advantages for decay across observations, rewards outside the mask, and sums that start anew.

# %%
#@save credit_faults
import torch

from agentrl.credit import gae_advantages
from agentrl.gradient import keep_only
from agentrl.mask_faults import Finding, first_place
from agentrl.turns import turn_advantages
from agentrl.whitening import masked_whiten

# %% [markdown]
# The row by hand: two calls of two tokens, and an observation of two tokens between them.

# %%
mask = torch.tensor([[1, 1, 0, 0, 1, 1]], dtype=torch.bool)  # [1, 6]

from agentrl.credit import outcome_rewards, returns_to_go

rewards = outcome_rewards([1.0], mask)  # at the last kept token
no_critic = torch.zeros(1, 6, dtype=torch.float64)
print(rewards.tolist())

# %% [markdown]
# ## Exhibit: the decay that does not stop for observations
#
# **Symptom.** With λ < 1 the first call of an episode learns slowly, the slower the longer the tools talk;
# setting λ = 1 cures it. **Reported** in miles, pull request 1827: GAE took every response token for a step
# of the decision process, masked or not. **The wrong version** is 7.1's loop without its two `where`.


# %%
#@save
def decaying_gae(rewards, values, mask, gamma, lam):
    """WRONG, for comparison: GAE in which the environment's tokens are steps too; [B, T-1] each."""
    advantages, advantage, next_value = torch.zeros_like(values), *values.new_zeros(2, len(values))
    for t in reversed(range(values.shape[1])):
        advantage = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * advantage
        next_value = values[:, t]
        advantages[:, t] = advantage
    return keep_only(advantages, mask), keep_only(advantages + values, mask)


# %%
for name, estimate in (('ours', gae_advantages), ('wrong', decaying_gae)):
    a, _ = estimate(rewards, no_critic, mask, 1.0, 0.95)
    print(f'{name:6}', [round(x, 3) for x in a[0].tolist()])

# %% [markdown]
# The last call is unharmed; the first one gets 0.774 instead of 0.857, since two observation tokens took
# 5% each. Real observations are longer. What is left of a reward of 1 for the last token of the first call:

# %%
import pandas as pd

table = []
for n in (0, 2, 27, 100, 400):
    long = torch.cat([mask[:, :2], torch.zeros(1, n, dtype=torch.bool), mask[:, 4:]], 1)
    given, nothing = outcome_rewards([1.0], long), torch.zeros(long.shape, dtype=torch.float64)
    table.append([
        n,
        *(f(given, nothing, long, 1.0, 0.95)[0][0, 1].item() for f in (gae_advantages, decaying_gae)),
    ])
pd.DataFrame(table, columns=['observation tokens', 'ours', 'wrong']).round(4)

# %% [markdown]
# 27 tokens is one `read` of the gym, 400 a short log file: with the wrong version it hides the reward
# completely. (7.6 measures what this does to real credit; RL with γ = λ = 1 is blind to the fault, which is
# why it lives long.)
#
# **The check** computes the advantages once more from rewards and values. It accepts token steps (7.1) and
# call steps (7.3), before or after whitening (8.3), and otherwise says whether the decaying version explains
# what it found. Truncated rows are left to 14.4.


# %%
#@save
def same_advantages(a, b, mask, tolerance=1e-3):
    """Do two advantages [B, T-1] agree on the mask, as they are or whitened?"""
    a, b = keep_only(a, mask), keep_only(b, mask)
    scale = max(1.0, b.abs().max().item())
    whitened = (masked_whiten(a, mask) - masked_whiten(b, mask)).abs().max() < 10 * tolerance
    return bool((a - b).abs().max() < tolerance * scale or whitened)


def check_token_gae(advantages, rewards, values, action_mask, gamma, lam, turn=None, truncated=None):
    """Advantages [B, T-1] are GAE over kept tokens (or calls, given turn [B, T]), or a Finding."""
    rows = torch.ones(len(action_mask), dtype=torch.bool) if truncated is None else ~truncated.bool()
    if advantages.dim() == 1:  # one a row
        advantages = advantages[:, None].expand(action_mask.shape)
    given, mask = advantages[rows], action_mask[rows].bool()
    if not mask.any():
        return None
    inputs = keep_only(rewards[rows], mask), values[rows], mask
    right = [gae_advantages(*inputs, gamma, lam)[0]]
    if turn is not None:
        right.append(turn_advantages(*inputs, turn[rows][:, 1:], gamma, lam)[0])
    if any(same_advantages(given, a, mask) for a in right):
        return None
    wrong = keep_only((given - right[0]).abs(), mask)
    place = first_place(wrong > 0.5 * wrong.max())
    place['row'] = int(rows.nonzero()[place['row']])
    decays = same_advantages(given, decaying_gae(*inputs, gamma, lam)[0], mask)
    fault = 'advantages decay across observations' if decays else 'advantages are not GAE of these rewards'
    return Finding(fault, f'largest difference from GAE over kept tokens {wrong.max():.3g}', **place)


# %%
rng = torch.Generator().manual_seed(0)
values = torch.rand(1, 6, generator=rng, dtype=torch.float64)
for name, estimate in (('ours', gae_advantages), ('wrong', decaying_gae)):
    a, _ = estimate(rewards, values, mask, 1.0, 0.95)
    print(f'{name:6}', check_token_gae(a, rewards, values, mask, 1.0, 0.95) or 'nothing found')

# %% [markdown]
# ## Exhibit: the reward that nobody is there to collect
#
# **Symptom.** Episodes that end with an observation (a turn budget, a full context) teach nothing, whatever
# they earned. **Reported** in the same pull request, miles 1827: the terminal reward went to the last
# response token regardless of the mask. **The wrong version** looks for the last token instead of the last
# *kept* one.


# %%
def reward_at_the_end(verdict, mask):
    """WRONG, for comparison: the verdict [B] in the last column, kept or not."""
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[:, -1] = torch.as_tensor(verdict, dtype=torch.float64)
    return rewards


cut = torch.tensor([[1, 1, 0, 0, 0, 0]], dtype=torch.bool)  # ends with an observation
lost = reward_at_the_end([1.0], cut)
print('wrong:', lost.tolist(), ' under the mask:', (lost * cut).sum().item())
print('ours: ', outcome_rewards([1.0], cut).tolist())

# %% [markdown]
# A loss that multiplies by the mask sees a sum of 0. A GAE that runs over all tokens still delivers a part
# of it, γλ to the power of the gap, and with γ = 0 nothing. **The check**: rewards stand where the mask
# does, and add up to what the episode earned if that is known.


# %%
#@save
def check_token_rewards(rewards, action_mask, reward=None):
    """Token rewards [B, T-1] stand on kept tokens and, given reward [B], add up to it, or a Finding."""
    stray = (rewards != 0) & ~action_mask.bool()
    if stray.any():
        return Finding(
            'reward where the mask is not set',
            f'{int(stray.sum())} rewards, {keep_only(rewards, stray).sum():.3g} in all, stand on tokens '
            'that are not trained',
            **first_place(stray),
        )
    if reward is not None and (off := (rewards.sum(1) - reward).abs() > 1e-4).any():
        row = first_place(off)['row']
        return Finding(
            'token rewards do not add up',
            f'{int(off.sum())} of {len(off)} rows; in the first the tokens '
            f'hold {rewards[row].sum():.3g}, the episode earned {reward[row]:.3g}',
            row,
        )
    return None


# %%
print('wrong:', check_token_rewards(lost, cut))
print('half of it:', check_token_rewards(rewards / 2, mask, torch.tensor([1.0])))
print('ours:', check_token_rewards(rewards, mask, torch.tensor([1.0])) or 'nothing found')

# %% [markdown]
# ## Exhibit: the return that starts anew
#
# **Symptom.** The last call of an episode is learned, the ones before it drift. **The wrong version**
# multiplies the running sum by the mask, which was right for one response with padding behind it: the sum is
# reset at padding. In an episode of many turns it is reset at every observation. One word is out of place.


# %%
#@save
def returns_with_reset(rewards, mask):
    """WRONG, for comparison: the running sum is set to 0 where the mask is."""
    result, running = torch.zeros_like(rewards), rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        running = (running + rewards[:, t]) * mask[:, t]
        result[:, t] = running
    return result


# %%
print('wrong:', returns_with_reset(rewards, mask).tolist())
print('ours: ', returns_to_go(rewards, mask).tolist())

# %% [markdown]
# `read` looked up the answer and gets nothing for it, `submit` gets it all. **The check** sums again in a way
# that cannot make this mistake: for each kept token, the rewards of the kept tokens from there on, and no
# running sum.


# %%
#@save
def check_returns(returns, rewards, action_mask, gamma=1.0):
    """Returns [B, T-1] are sums of rewards to the row's end, gamma a kept token, or a Finding."""
    mask, right, running = action_mask.bool(), torch.zeros_like(rewards), rewards.new_zeros(len(rewards))
    for t in reversed(range(mask.shape[1])):  # one pass, however long the row
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        right[:, t] = running
    wrong = keep_only((returns - right).abs(), mask) > 1e-4 * max(1.0, right.abs().max().item())
    if not wrong.any():
        return None
    place = first_place(wrong)
    had, should = returns[place['row'], place['column']], right[place['row'], place['column']]
    return Finding(
        'returns are lost on the way back',
        f'{int(wrong.sum())} of {int(mask.sum())} kept tokens; the '
        f'first has {had:.3g} and should have {should:.3g}',
        **place,
    )


# %%
print('wrong:', check_returns(returns_with_reset(rewards, mask), rewards, mask))
print('ours:', check_returns(returns_to_go(rewards, mask), rewards, mask) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# Two observation tokens took the first call's share from 0.857 to 0.774, and the gym's 27 took that of its
# last token from 0.9025 to 0.2259. A reward in the last column of an episode that ends with an observation
# leaves a sum of 0.0 under the mask. A running sum that is multiplied by the mask pays the last call only.
# Each check names its fault and finds nothing in ours.
#
# **Try it.** Set λ to 1 in the first exhibit: which of the three checks still sees its fault? Then run
# `check_token_gae` on your own trainer's advantages with the γ and λ of your configuration.
