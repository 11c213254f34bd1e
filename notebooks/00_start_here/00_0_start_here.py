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
# # 0.0 Start here: watch an agent, train one, and turn one knob
#
# A language model that may call tools is an agent; reinforcement learning decides which calls it makes.
# This page takes ten minutes and assumes nothing. You will watch one repair a broken function, token by
# token; train one for a few steps, with a curve that grows; change a price, a limit or a memory, and see it
# behave otherwise; and find the section for the question, or the symptom, that you came with.
#
# Run the cells from the top with Shift+Enter, or all at once with *Run, Run All Cells*. Below some cells
# there are controls: click them, or reach them with Tab and move them with the arrow keys. Only the very
# first run is slow, since it trains what others then reuse.
#
# **Time** 10 min. **Assumes** no other section. **Afterwards you can** watch an episode token by token,
# train an agent, move one number and predict what it does to the agent.

# %% [markdown]
# ## Watch one episode
#
# An *episode* is one attempt. The environment writes the issue (blue); the agent writes calls (orange,
# underlined: only these are its decisions, and only these are trained); the tools answer (green). The agent
# can `read` the code, `test` it, make one `edit`, and `submit`. It is paid 1 if hidden tests pass then.
# Here is a whole episode of a trained agent.

# %%
from IPython.display import HTML

from agentrl.player import explore_tokens, tokens_so_far

HTML(tokens_so_far('default', tokens=120))

# %% [markdown]
# An agent was not born like this. These are eight attempts of the policy that training starts from, on the
# same task and with the same luck: first what it was paid, then its calls. It submits at once, edits
# without a look, fiddles until its six calls are used up, or reads and picks the wrong edit; two of the eight
# read and pick the right one.

# %%
from agentrl.player import lucky_group, said

for traj in lucky_group('RL base', 0):
    print(f'{traj.reward:.0f}', ' | '.join(said(traj, k) for k in range(len(traj.samples))))

# %% [markdown]
# Watch any of these episodes being written: press Play, or move the slider `tokens` with the arrow keys.
# The agent `default` is the trained one, `RL base` the one before training; there are thirty tasks.

# %% tags=["nbval-ignore-output"]
explore_tokens()

# %% [markdown]
# ## Train one
#
# Training repeats one step: sample some episodes of each of some tasks, compare each episode with the
# others of its task, and make the calls of the better ones more probable. Nobody says why an episode was
# better. Here are three real steps, smaller than usual: four tasks, eight episodes each. With so few,
# expect noise.

# %%
import pandas as pd

from agentrl.live_training import base_steps
from agentrl.training import RLConfig

rows = list(base_steps(RLConfig(prompts_per_step=4), steps=3))
pd.DataFrame(rows)[['step', 'episodes', 'pass_rate', 'reads', 'turns']].round(3)

# %% [markdown]
# The first tens of steps, as stored runs had them, are the grey bands; the three steps above are the dots.

# %%
from agentrl.live_training import LiveTraining, curve_figure

_ = curve_figure(rows, 20)

# %% [markdown]
# Now you. Press Train: after each step (some seconds; 64 episodes) the bar moves and the curve grows; Stop
# ends it after the step under way. Then change one slider and train again. A call may cost something, there
# may be fewer turns, smaller groups, or an agent that sees only its last observations.

# %% tags=["nbval-ignore-output"]
LiveTraining()

# %% [markdown]
# ## Turn one knob
#
# Ten steps show a beginning. What forty steps lead to is stored, ten runs a setting: here at a price of
# 0.3 a call, at which the agent learns that it is cheapest to give up.

# %%
from agentrl.live_training import explore_knobs, knob_figure, knob_runs

_ = knob_figure('price of a call', 2)

# %% [markdown]
# Choose a knob, and move through its three settings with the arrow keys. Watch the reads: an agent looks
# before it acts only where looking pays and is allowed. One that keeps only its last observation does not
# look less often: it looks again.

# %% tags=["nbval-ignore-output"]
explore_knobs()

# %% [markdown]
# The same in numbers, for tasks that were never trained on: the share of episodes that pass, and how often
# an agent reads, tests and calls in an episode.

# %%
settings = [('price of a call', '0'), ('price of a call', '0.05'), ('price of a call', '0.3'), ('turns', '3'),
            ('observations kept', 'the last 1')]
pd.DataFrame({' '.join(setting): knob_runs(*setting)[0] for setting in settings}).T.round(2)

# %% [markdown]
# ## Where to go with a symptom
#
# If you came with a run of your own that is sick, look for what you see; the same list is in the
# [README](../../README.md), and section [14.9](../14_faults/14_9_diagnose.ipynb) looks for it in your own
# data. "My agent submits at once" is there as "the agent gives up early"; see also
# [12.7](../12_multi_turn/12_7_design_problems.ipynb).

# %%
import json
from pathlib import Path


def section_links(folder):
    """{'14.9': a link to its notebook} for all sections whose notebooks lie in the folders of `folder`."""
    links = {}
    for path in sorted(Path(folder).glob('[0-9]*/*.ipynb')):
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        number = ''.join(cells[0]['source']).split()[1]
        links[number] = f'[{number}](../{path.parent.name}/{path.name})'
    return links


# %%
links = section_links('..')
print('12.3 is', links['12.3'])

# %%
from IPython.display import Markdown

from agentrl.symptoms import symptom_table

Markdown(symptom_table(links))

# %% [markdown]
# ## Where to go with a question
#
# | chapter | question | begin with |
# |---|---|---|
# | 0 | the whole book in five minutes, by hand and by code | [0.1](00_1_tour.ipynb) |
# | 2 | what would the best possible agent do? | [2.1](../02_fundamentals/02_1_repair_tasks.ipynb) |
# | 3 | how does a model write and read tokens? | [3.1](../03_model/03_1_tokenizer.ipynb) |
# | 4 | what may an agent do, and what is it paid for? | [4.1](../04_environment/04_1_isolated_tests.ipynb) |
# | 5 | who wrote which token, and how are episodes sampled? | [5.1](../05_trajectories/05_1_token_view.ipynb) |
# | 6 | what is trained, and with which weight? | [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb) |
# | 7 | which call deserves the credit? | [7.1](../07_advantages/07_1_returns_and_gae.ipynb) |
# | 8 | what does PPO add? | [8.1](../08_ppo/08_1_clipped_update.ipynb) |
# | 9 | how does GRPO train, and how are runs stored? | [9.1](../09_grpo/09_1_group_advantages.ipynb) |
# | 12 | what is special with many turns? | [12.1](../12_multi_turn/12_1_observations_are_inputs.ipynb) |
# | 13 | how does a long run stay alive? | [13.0](../13_staying_alive/13_0_a_server_for_the_agent.ipynb) |
# | 14 | my run is sick: where do I look? | [14.1](../14_faults/14_1_masks.ipynb), [14.9](../14_faults/14_9_diagnose.ipynb) |
# | 15 | may I play with it? | [15.0](../15_explorers/15_0_sliders.ipynb) to [15.5](../15_explorers/15_5_live_training.ipynb) |
#
# New to reinforcement learning? Take the [tour](00_1_tour.ipynb), then 2.1, 2.2, 4.2, 4.3, 3.1, 3.2, 5.1, 5.2,
# 6.1, 9.1, 9.2, 12.1 and 12.3, in this order.
#
# ## What was seen
#
# A trained agent reads, edits and submits. Trained with free calls it passes 0.78 of its episodes on tasks
# that it never saw; at a price of 0.3 a call it submits at once and passes 0.00; with three turns it edits
# blindly and passes 0.20. Nothing but one number of the setting differs.
#
# **Try it.** Before you move a slider, guess what will happen to `reads`. Then let ten live steps decide.
