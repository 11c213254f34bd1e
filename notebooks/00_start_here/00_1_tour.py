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
# # 0.1 Watch an agent learn to look before it acts
#
# A language model that may call tools is an agent, and reinforcement learning (RL) is how it learns which
# calls pay. This tour takes five minutes: a broken function, its repair by hand, a small policy that mostly
# fails at it, and what six and then forty steps of training make of that policy. Nobody tells it to read the
# code first. We will watch it find out.
#
# Nothing is explained here in full; the table at the end says where it is. Run the cells from the top with
# Shift+Enter. Only the first run is slow, because it trains the starting policy and keeps it.
#
# **Time** 5 min. **Assumes** no other section. **Afterwards you can** play an episode by hand, train the
# policy for some steps, and find the section that answers a question of yours.

# %% [markdown]
# ## A broken function
#
# The gym of this book holds thirty little functions with one bug each. Here is one that should add up the
# numbers above a threshold. The agent sees nothing but the issue; to see the code, it must ask.

# %%
from agentrl.tasks import EDIT_OPS, apply_op, make_tasks
from agentrl.testing import run_tests

task = make_tasks('all')[7]
print(task.issue)
print(task.source)
for (numbers, k), total in task.visible_tests:
    print('test: the numbers of', numbers, 'above', k, 'add up to', total)

# %% [markdown]
# Five edits can be applied by name, and one of them is right. The judge is a set of hidden tests, which are
# really executed, in a process of their own.

# %%
print('as it is:', run_tests(task.source, task.hidden_tests))
for op in EDIT_OPS:
    print(f'{op:15}', run_tests(apply_op(task.source, op), task.hidden_tests).passed)

# %% [markdown]
# ## An agent, played by hand
#
# An agent has four tools, `read`, `test`, `edit` and `submit`, six calls, and one edit. It is paid 1 if it
# submits and the hidden tests pass, else 0. Let us play it ourselves: read, edit, check, submit.

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode, make_trajectory
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
episode = Episode(EditBudgetEnv(), task, tok, max_turns=6, max_len=256)
for call in ('read', 'edit fix_operator', 'test', 'submit'):
    ids = tok.encode(f'<call> {call} </call>')
    episode.act(ids, [0.0] * len(ids))                                  # not sampled: probability 1
print('reward:', episode.reward)
make_trajectory(episode)

# %% [markdown]
# This is a *trajectory*. Its colours say who wrote what: the issue, our calls, the answers of the tools, and
# the template around them. Only the calls, underlined, are decisions of the agent, and only they will be
# trained. Point at a token to see its turn and its probability.
#
# ## A policy that mostly fails
#
# Now a model plays. It is a transformer of some 150 thousand parameters that has seen imperfect examples: it
# knows how to make calls, but seldom the ones that help. Ten of the training tasks, one try each; every
# episode gets new names, so that there is nothing to learn by heart.

# %%
import torch

from agentrl.base import make_rl_base
from agentrl.sampling import sample_groups
from agentrl.step_groups import call_texts
from agentrl.training import RLConfig


def calls_of(traj):
    """The calls of a trajectory in words."""
    return ' | '.join(text.removeprefix('<call> ').removesuffix(' </call>') for text in call_texts(traj))


policy, train, cfg = make_rl_base(tok), make_tasks('train'), RLConfig()
for traj in sample_groups(policy, train[::2], tok, cfg, torch.Generator().manual_seed(0), n=1):
    print(f"{traj.reward:.0f}  {traj.info['stop']:11}  {calls_of(traj)}")

# %% [markdown]
# The first column is the reward, the second says how the episode ended. Some submit at once, some edit
# without looking, some fiddle until their calls are used up; now and then a blind edit is lucky. More
# episodes give numbers: eight of each of the twenty training tasks, each number a mean over episodes.

# %%
import pandas as pd

from agentrl.training import behavior_stats

SHOWN = ['pass_rate', 'reads', 'tests', 'edits', 'turns']
before = behavior_stats(sample_groups(policy, train, tok, cfg, torch.Generator().manual_seed(0)))
pd.DataFrame([before])[['episodes', *SHOWN]].round(3)

# %% [markdown]
# ## Six steps of reinforcement learning
#
# A step samples eight episodes of each of eight tasks, compares each episode with the others of its task, and
# makes the calls of the better ones more probable. That is all: nobody says *why* an episode was better.
# Watch `pass_rate` and `reads`.

# %%
from agentrl.training import train_rl

learner = make_rl_base(tok)
history = train_rl(learner, train, tok, cfg, steps=6)
pd.DataFrame(history)[['step', *SHOWN]].round(3)

# %% [markdown]
# Each row is 64 episodes, so it is noisy. Here are the same ten tasks as above, with the same random numbers,
# after these six steps.

# %%
for traj in sample_groups(learner, train[::2], tok, cfg, torch.Generator().manual_seed(0), n=1):
    print(f"{traj.reward:.0f}  {traj.info['stop']:11}  {calls_of(traj)}")

# %% [markdown]
# ## Forty steps
#
# A whole run takes forty steps. Ten of them, with different seeds, are stored with the book, so there is
# nothing to wait for; section 9.3 shows how they are made, and that they are what the code gives.

# %%
from agentrl.arms import SEEDS, arm_results
from agentrl.plotting import plot_panels, use_style

heldout, steps = arm_results(['default'], SEEDS)
use_style()
labels = {'pass_rate': 'pass rate', 'reads': 'reads an episode'}
_ = plot_panels(steps, ['default'], labels, f'It learns to read, and passes more (mean and range of {len(SEEDS)} seeds)')

# %% [markdown]
# And on ten tasks that it never trained on, beside the best that one can do there without looking: one edit
# for all of them.

# %%
unseen = make_tasks('heldout')
blind = [sum(run_tests(apply_op(task.source, op), task.hidden_tests).passed for task in unseen) / len(unseen)
         for op in EDIT_OPS]
passed, reads = heldout['pass_rate'].mean(), heldout['reads'].mean()
print(f"before training, train tasks:     pass {before['pass_rate']:.3f}, reads {before['reads']:.3f}")
print(f'after forty steps, held-out ones: pass {passed:.3f}, reads {reads:.3f}')
print(f'best blind edit, held-out ones:   pass {max(blind):.3f}')
heldout[['seed', *SHOWN]].round(3)

# %% [markdown]
# ## Where to go next
#
# | If you ask ... | go to |
# |---|---|
# | where do the tasks come from, and why must one read? | [2.1](../02_fundamentals/02_1_repair_tasks.ipynb) |
# | what would the best possible agent do, and when would it give up? | [2.2](../02_fundamentals/02_2_repair_mdp.ipynb) |
# | how does a model write and read tokens? | [3.1](../03_model/03_1_tokenizer.ipynb), [3.2](../03_model/03_2_tiny_agent.ipynb), [3.3](../03_model/03_3_packed_rows.ipynb) |
# | how is a stranger's program tested safely? | [4.1](../04_environment/04_1_isolated_tests.ipynb) |
# | what is the agent paid for? | [4.2](../04_environment/04_2_rewards.ipynb) |
# | what may an agent do, and what if it writes nonsense? | [4.3](../04_environment/04_3_bugfix_env.ipynb) |
# | what is in that coloured row of tokens? | [5.1](../05_trajectories/05_1_token_view.ipynb), [5.2](../05_trajectories/05_2_episodes.ipynb) |
# | how are many episodes sampled at once? | [5.3](../05_trajectories/05_3_lockstep_sampler.ipynb) |
# | why keep the ids and not the text? | [5.4](../05_trajectories/05_4_retokenization.ipynb) |
# | how was the starting policy made? | [5.5](../05_trajectories/05_5_rl_base.ipynb) |
# | why are only the calls trained? | [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb), [12.1](../12_multi_turn/12_1_observations_are_inputs.ipynb) |
# | what does a training step do? | [6.2](../06_policy_gradient/06_2_loss_aggregation.ipynb), [8.1](../08_ppo/08_1_clipped_update.ipynb), [9.1](../09_grpo/09_1_group_advantages.ipynb), [9.2](../09_grpo/09_2_training_loop.ipynb) |
# | which call deserves the credit, and what can a critic know? | [7.1](../07_advantages/07_1_returns_and_gae.ipynb), [7.2](../07_advantages/07_2_critic.ipynb), [7.3](../07_advantages/07_3_turn_advantages.ipynb), [7.6](../07_advantages/07_6_credit_lab.ipynb), [12.2](../12_multi_turn/12_2_credit_across_turns.ipynb) |
# | how does PPO differ, and what does normalising do? | [8.2](../08_ppo/08_2_value_loss.ipynb), [8.3](../08_ppo/08_3_whitening.ipynb), [8.5](../08_ppo/08_5_ppo_loop.ipynb), [9.6](../09_grpo/09_6_hidden_penalty.ipynb) |
# | the ratio is not 1 before any update: why? | [8.4](../08_ppo/08_4_temperature.ipynb), [5.4](../05_trajectories/05_4_retokenization.ipynb) |
# | why is a step fast, or slow? | [9.5](../09_grpo/09_5_speed.ipynb) |
# | how are experiments named, stored and checked? | [9.3](../09_grpo/09_3_arms.ipynb), [0.2](00_2_figures_and_tables.ipynb), [0.3](00_3_code_pieces.ipynb), [0.4](00_4_cache.ipynb) |
# | can an agent succeed without looking? | [9.4](../09_grpo/09_4_shortcuts.ipynb) |
# | what if calls cost something, or are few? | [12.3](../12_multi_turn/12_3_budget_and_penalty.ipynb) |
# | what if the agent cannot keep all that it has seen? | [12.4](../12_multi_turn/12_4_context_management.ipynb), [12.4.1](../12_multi_turn/12_4_context_training.ipynb) |
# | what if the agent writes calls that do not parse? | [12.5](../12_multi_turn/12_5_tool_errors.ipynb) |
# | what if some tasks take one call and others many? | [12.6](../12_multi_turn/12_6_mixtures.ipynb) |
# | it submits at once, or never, or is cut off: what now? | [12.7](../12_multi_turn/12_7_design_problems.ipynb) |
# | will it still work where it is deployed? | [12.7.1](../12_multi_turn/12_7_design_review.ipynb) |
# | may an importance weight have a lower limit? | [13.1](../13_staying_alive/13_1_truncated_importance_sampling.ipynb), [13.1.2](../13_staying_alive/13_1_what_the_lower_clip_does.ipynb) |
# | the divergence rises: on which tokens? | [13.2](../13_staying_alive/13_2_token_forensics.ipynb) |
# | how do 128 samples become 1,000 requests? | [13.0](../13_staying_alive/13_0_a_server_for_the_agent.ipynb), [13.3](../13_staying_alive/13_3_retries_and_zombies.ipynb) |
# | what if the token limit cuts a call, or the session? | [13.4](../13_staying_alive/13_4_a_call_cut_by_the_limit.ipynb), [13.5](../13_staying_alive/13_5_a_session_budget.ipynb) |
# | what if the sandbox says no? | [13.6](../13_staying_alive/13_6_quotas_and_backoff.ipynb) |
# | how old may a sample be? | [13.7](../13_staying_alive/13_7_staleness.ipynb) |
# | what can be known before a run starts? | [13.8](../13_staying_alive/13_8_fail_at_the_start.ipynb) |
# | how does my own model do in the gym? | [13.9](../13_staying_alive/13_9_a_real_model_in_the_gym.ipynb) |
# | may I play with it, and train while I watch? | [0.0](00_0_start_here.ipynb), [15.1](../15_explorers/15_1_episode_player.ipynb), [15.5](../15_explorers/15_5_live_training.ipynb) |
# | my own run is sick: where do I look? | [14.9](../14_faults/14_9_diagnose.ipynb), or the symptoms in the [README](../../README.md) |
#
# ## What was seen
#
# One of five edits repairs the function, and reading tells which. A policy that passed 0.219 of its episodes
# came to read about once in each and to pass 0.776 of episodes on tasks that it never saw, far beyond 0.200,
# the best blind edit; no seed of ten passes less than 0.7. Whether it keeps the `test` before `submit`, which
# changes nothing, is left to chance: calls are free here, and the seeds disagree, from 0.031 tests an episode
# to 0.925.
#
# **Try it.** Train six steps with `RLConfig(max_turns=3)`, too few calls to read and check: what happens to
# `reads`? Then with `RLConfig(step_penalty=0.3)`, where each call costs 0.3, and watch `turns`.
