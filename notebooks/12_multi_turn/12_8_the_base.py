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
# # 12.8 Look at the base over many streams
#
# A few findings of this chapter are about the RL base, before any training: where the gradient is, how long
# episodes get, how often a call is malformed. Sections 12.1, 12.5 and 12.7 show them on one to three
# streams of random numbers. They need no training run, only more episodes: here are ten streams of 160
# episodes on the train tasks, stored like runs, so that [section 12.9](12_9_what_holds.ipynb) can put
# intervals to them.
#
# **Time** 5 min. **Assumes** [12.1](12_1_observations_are_inputs.ipynb), [12.5](12_5_tool_errors.ipynb),
# [12.7](12_7_design_problems.ipynb). **Afterwards you can** measure what a starting policy does before any
# training, and set each figure beside the one of the book.

# %%
#@save base_streams
import torch

from agentrl.arms import Study
from agentrl.base import make_rl_base
from agentrl.environment import make_env
from agentrl.episodes import OWNER, collate
from agentrl.gradient import reinforce_loss
from agentrl.model import selected_log_probs
from agentrl.pathologies import CappedObservations, window_needed
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.tool_errors import error_stats, make_early_stop_env
from agentrl.training import RLConfig, behavior_stats

# %% [markdown]
# ## Four kinds of figures
#
# What the episodes did and how many went wrong is counted by `behavior_stats` and `error_stats`. Two things
# are new as functions: the experiment of 12.1, which positions have a gradient at their logits, and what an
# episode takes of the context.

# %%
#@save
def gradient_shares(policy, trajs, tok):
    """Shares of predicted positions with a gradient at their logits (6.1): the policy's, and all others'."""
    batch = collate(trajs, tok.pad_id)
    logits = policy(batch['ids'][:, :-1])                                         # [B, T-1, V]
    logits.retain_grad()
    logp = selected_log_probs(logits, batch['ids'][:, 1:])
    reinforce_loss(logp, batch['reward'] - 0.5, batch['action_mask']).backward()
    policy.zero_grad()
    reached, owner = logits.grad.abs().sum(-1) > 0, batch['owner'][:, 1:]         # [B, T-1]
    own, others = owner == OWNER['policy'], (owner != OWNER['policy']) & (owner >= 0)
    return {'gradient_own': reached[own].double().mean().item(),
            'gradient_others': reached[others].double().mean().item()}


def length_stats(trajs):
    """The longest episode, the policy's share, shares of episodes lost to the context or a smaller window."""
    n, predicted = len(trajs), sum(len(traj.ids) - 1 for traj in trajs)
    return {'max_tokens': max(len(traj.ids) for traj in trajs),
            'policy_share': sum(int(traj.action_mask.sum()) for traj in trajs) / predicted,
            'overflow': sum(traj.info['stop'] == 'context' for traj in trajs) / n,
            'lost_64': sum(window_needed(traj) > 64 for traj in trajs) / n,
            'lost_128': sum(window_needed(traj) > 128 for traj in trajs) / n,
            'lost_64_masked': sum(window_needed(traj, 1) > 64 for traj in trajs) / n}


# %% [markdown]
# ## Five ways to play
#
# Three budgets, and two changes of the environment: the early stop of 12.5 and the observation cap of 12.7.
# An attempt is worth its chance to pass less its price; giving up at once costs one call (12.7).

# %%
#@save
BASE_ARMS = {'6 turns': {'max_turns': 6}, '12 turns': {'max_turns': 12}, '24 turns': {'max_turns': 24},
             'early stop': {'max_turns': 6}, 'cap 8': {'max_turns': 24}}
BASE_ENVS = {'early stop': make_early_stop_env, 'cap 8': lambda cfg: CappedObservations(make_env(cfg), 8)}


def measure_base(arm, seed=0, base_seed=0):
    """The RL base on the train tasks, eight episodes each, from one stream: its heldout is what it did."""
    tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(**BASE_ARMS[arm])
    policy, rng = make_rl_base(tok, base_seed), torch.Generator().manual_seed(1 + seed)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, rng, BASE_ENVS.get(arm, make_env))
    stats, errors = behavior_stats(trajs), error_stats(trajs)
    value = {'attempt_at_0.3': stats['pass_rate'] - 0.3 * stats['turns'], 'submit_at_0.3': -0.3}
    rates = {name: errors[name] for name in ('episodes_with_error', 'their_pass')}
    return {'history': [], 'heldout': stats | rates | value | length_stats(trajs)
            | gradient_shares(policy, trajs[:16], tok)}


BASE_STREAMS = Study('base_streams', BASE_ARMS, measure_base)

# %%
from agentrl.arms import run_study

streams, _ = run_study(BASE_STREAMS, list(BASE_ARMS), BASE_STREAMS.seeds)
shown = ['pass_rate', 'turns', 'tokens', 'max_tokens', 'policy_share', 'overflow', 'lost_64', 'lost_128',
         'lost_64_masked', 'episodes_with_error', 'their_pass', 'gradient_own', 'gradient_others']
streams.groupby('arm', sort=False)[shown].mean().round(3).T

# %% [markdown]
# Means hide how much a single stream may say. The rare event of 12.1, an episode that runs out of context,
# and the longest episode, stream by stream with 24 turns:

# %%
streams.loc[streams['arm'] == '24 turns', ['seed', 'overflow', 'max_tokens', 'pass_rate']].set_index('seed').T

# %% [markdown]
# ## What was seen
#
# All positions of the policy carry gradient and no other does, in every stream. From 6 to 24 turns the mean
# length goes from 40.1 to 43.9 tokens, and between 12 and 24 turns next to nothing happens, since the base
# has submitted by then. The overflow that section 12.1 shows comes from one stream of ten: of 1600
# episodes, one. A malformed call occurs in 0.036 of the episodes, and those pass less often (0.115 against
# 0.212). A window of 64 tokens would lose 0.228 of the episodes with 24 turns, one of 128 loses 0.017;
# masking all but the last observation leaves 0.07 at 64, and a cap of 8 words saves none (0.236).
#
# **Try it.** Add `'48 turns': {'max_turns': 48}` to `BASE_ARMS`. Does the mean grow? Then evaluate the agent
# of the arm `wrong_submit -1` (9.3) in the same way: the lengths are those of a policy, not of a budget.
