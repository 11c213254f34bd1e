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
# # 15.5 Train while you watch, and stop when you have seen enough
#
# A run of forty steps takes minutes, and the first ten often say enough: the agent has begun to read, or to
# give up. So here is the training loop of 9.2 as something one can watch and stop. It gives exactly the
# numbers of the loop that it follows, draws a curve after each step beside those of the stored runs, and
# takes any price of a call, any number of turns, group size and number of kept observations.
#
# **Time** 15 min. **Assumes** [9.3](../09_grpo/09_3_arms.ipynb),
# [12.4.1](../12_multi_turn/12_4_context_training.ipynb), [15.0](15_0_sliders.ipynb). **Afterwards you can**
# watch a run while it learns, stop it, and set another one beside it.

# %%
#@save live_training
import html
from functools import lru_cache, partial
from threading import Event, Thread

import matplotlib.pyplot as plt
from ipywidgets import HTML, Button, HBox, IntProgress, Layout, VBox

from agentrl.arms import GRPO, SEEDS, STEPS, run_study
from agentrl.base import make_rl_base
from agentrl.context import CONTEXTS, call_batch, context_step
from agentrl.context_study import CONTEXT
from agentrl.explorer import Explorer, encoded, figure_bytes, menu, picture_html, slider
from agentrl.plotting import arm_color, use_style
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_steps

# %% [markdown]
# ## The loop, one step at a time
#
# `train_rl` returns when all is done. The generator below it, `train_steps`, gives back each step's row as
# soon as it is there, and does nothing more until it is asked for the next: to stop, one stops asking. With
# the full context it samples and compares as in 9.2; under another context policy each call is a sample of
# its own, as in 12.4.1.

# %%
#@save
def base_steps(cfg, context='full', steps=STEPS):
    """`train_steps` of the RL base under a context policy of CONTEXTS."""
    tok, parts = build_tokenizer(make_tasks('all')), {}
    if context != 'full':
        parts = {'sample': partial(context_step, context=CONTEXTS[context]), 'prepare': call_batch}
    return train_steps(make_rl_base(tok), make_tasks('train'), tok, cfg, steps, **parts)


# %%
from agentrl.training import train_rl

tok = build_tokenizer(make_tasks('all'))
small = RLConfig(prompts_per_step=2, group_size=4, step_penalty=0.05)
rows = list(base_steps(small, steps=2))
print('as train_rl:', rows == train_rl(make_rl_base(tok), make_tasks('train'), tok, small, steps=2))
rows = list(base_steps(small, 'keep 1', steps=2))
sample = partial(context_step, context=CONTEXTS['keep 1'])
plain = train_rl(make_rl_base(tok), make_tasks('train'), tok, small, 2, sample=sample, prepare=call_batch)
print('as train_rl, one observation kept:', rows == plain)

# %% [markdown]
# ## What forty steps lead to
#
# Live steps show a beginning. For the end there are stored runs: for three knobs three settings each,
# trained for forty steps with ten seeds, and evaluated on tasks that were never trained on. There is none
# for the group size; that knob is for live training.

# %%
#@save
TURNED = {                                                              # {knob: {setting: (study, arm)}}
    'price of a call': {'0': (GRPO, 'default'), '0.05': (GRPO, 'penalty 0.05'), '0.3': (GRPO, 'penalty 0.3')},
    'turns': {'3': (GRPO, 'max_turns 3'), '4': (GRPO, 'max_turns 4'), '6': (GRPO, 'default')},
    'observations kept': {'the last 1': (CONTEXT, 'keep 1'), 'notes': (CONTEXT, 'summary'),
                          'all': (CONTEXT, 'full')},
}
BEHAVIOR = {'pass_rate': 'pass rate', 'reads': 'reads', 'tests': 'tests', 'turns': 'calls'}


@lru_cache
def knob_runs(knob, setting):
    """(behaviour on held-out tasks, a mean over seeds; history) of one setting of a knob of TURNED."""
    study, arm = TURNED[knob][setting]
    heldout, history = run_study(study, [arm], SEEDS)
    if 'evaluated' in heldout:                                          # where it was trained
        heldout = heldout[heldout['evaluated'] == arm]
    return heldout[list(BEHAVIOR)].mean(), history


# %%
import pandas as pd

found = {(knob, setting): knob_runs(knob, setting)[0] for knob in TURNED for setting in TURNED[knob]}
pd.DataFrame(found).T.round(2)

# %% [markdown]
# ## The curve
#
# Three panels over the steps: how many episodes pass, how often the agent reads, how many calls an episode
# has. Behind them, in grey, the range of the ten stored runs of the default arm, so that a change of the
# price or of the turns has something to be compared with.

# %%
#@save
CURVE = {'pass_rate': 'pass rate', 'reads': 'reads an episode', 'turns': 'calls an episode'}


def curve_figure(rows, steps):
    """The rows of a run of `steps` steps as three curves, before the range of the stored default runs."""
    use_style()
    stored = knob_runs('turns', '6')[1].groupby('step')
    fig, axes = plt.subplots(1, 3, figsize=(10, 2.6))
    for ax, (column, label) in zip(axes, CURVE.items()):
        low, high = stored[column].min()[:steps], stored[column].max()[:steps]
        ax.fill_between(low.index, low, high, color='#DDDDDD', linewidth=0)
        ax.plot([row['step'] for row in rows], [row[column] for row in rows], color=arm_color('default'),
                marker='o', markersize=4)
        top = {'pass_rate': 1, 'reads': 2.5, 'turns': 6.5}[column]
        ax.set(title=label, xlabel='training step', xlim=(-0.5, max(steps, 2) - 0.5),
               ylim=(0, max([top, *(row[column] * 1.05 for row in rows)])))
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes[1].text(0.97, 0.9, 'grey: stored runs, default settings', transform=axes[1].transAxes,
                 ha='right', color='#666666', fontsize='small')
    return fig


# %%
_ = curve_figure(rows, 10)

# %% [markdown]
# ## The panel
#
# A thread does the training, so that the buttons answer while it runs. After each step it moves the
# progress bar and draws the curve; Stop asks it to end after the step under way. `run` is the work itself,
# and may be called without any thread: so the tests do it.

# %%
#@save
def still_curve():
    """What a page without a kernel shows in place of a live training."""
    picture = encoded(figure_bytes(curve_figure([], 10), 'png'))
    return {'text/plain': 'Run this cell in JupyterLab to train here.', 'image/png': picture}


KEPT = {'all': 'full', 'the last 2': 'keep 2', 'the last 1': 'keep 1', 'none': 'keep 0'}


def training_controls():
    """The controls of a live training, by the names of what they set."""
    return {'step_penalty': slider('price of a call', 0.0, 0.0, 0.5, 0.05),
            'max_turns': slider('turns', 6, 1, 12), 'group_size': slider('group size', 8, 2, 16),
            'context': menu('observations kept', KEPT), 'steps': slider('steps', 10, 1, STEPS)}


# %%
#@save
class LiveTraining(VBox):
    """Sliders, Train and Stop, a progress bar and a live curve; `rows` are those of the last run."""

    def __init__(self):
        self.controls, self.rows, self.asked_to_stop = training_controls(), [], Event()
        self.train, self.stop = Button(description='Train'), Button(description='Stop', disabled=True)
        self.bar, self.note, self.picture = IntProgress(), HTML('not started'), HTML()
        self.train.on_click(lambda _: Thread(target=self.run, daemon=True).start())
        self.stop.on_click(lambda _: self.asked_to_stop.set())
        self.show()
        super().__init__([HBox([*self.controls.values()], layout=Layout(flex_flow='row wrap')),
                          HBox([self.train, self.stop, self.bar, self.note]), self.picture])

    def show(self):
        """Draw the curve and say where the run is."""
        self.bar.max, self.bar.value = self.controls['steps'].value, len(self.rows)
        self.picture.value = picture_html(curve_figure(self.rows, self.bar.max), 'pass rate, reads, calls')

    def run(self):
        """Train with the present values until the last step or Stop; errors are shown as text."""
        settings = {name: control.value for name, control in self.controls.items()}
        steps, context = settings.pop('steps'), settings.pop('context')
        self.asked_to_stop.clear()
        self.rows, self.train.disabled, self.stop.disabled, self.note.value = [], True, False, 'first step'
        try:
            for row in base_steps(RLConfig(**settings), context, steps):
                self.rows = [*self.rows, row]
                self.note.value = f'step {len(self.rows)} of {steps}: pass rate {row["pass_rate"]:.2f}'
                self.show()
                if self.asked_to_stop.is_set():
                    break
            self.note.value += ', stopped' if len(self.rows) < steps else ', done'
        except ValueError as error:
            self.note.value = html.escape(str(error))
        finally:
            self.train.disabled, self.stop.disabled = False, True

    def _repr_mimebundle_(self, **kwargs):
        return super()._repr_mimebundle_(**kwargs) | still_curve()


# %% [markdown]
# By keyboard: Tab to a control, the arrow keys to change it, Tab on to Train, and Enter or the space bar.
# Two steps of it here, without a thread, as the button would make them.

# %%
live = LiveTraining()
live.controls['steps'].value, live.controls['group_size'].value = 2, 2
live.controls['max_turns'].value = 3
live.run()
print(live.note.value, '|', live.bar.value, 'of', live.bar.max)
pd.DataFrame(live.rows)[['step', 'episodes', 'pass_rate', 'reads', 'turns']].round(3)

# %% tags=["nbval-ignore-output"]
LiveTraining()

# %% [markdown]
# ## One knob, forty steps
#
# And the stored runs as a picture: the pass rate and the reads of the chosen setting over the steps, those
# of the others thin, and at the right what its agent does in the end.

# %%
#@save
def knob_figure(knob='price of a call', place=0):
    """Setting number `place` (0 to 2) of a knob: its curves among those of the others, and its behaviour."""
    use_style()
    settings = list(TURNED[knob])
    fig, axes = plt.subplots(1, 3, figsize=(10, 3.2))
    for n, setting in enumerate(settings):
        runs = knob_runs(knob, setting)[1].groupby('step')
        chosen = n == place
        for ax, column in zip(axes, ('pass_rate', 'reads')):
            mean, color = runs[column].mean(), arm_color('default') if chosen else '#AAAAAA'
            ax.plot(mean.index, mean, color=color, linewidth=2.5 if chosen else 1, zorder=3 if chosen else 2)
            if chosen:
                ax.fill_between(mean.index, runs[column].min(), runs[column].max(), color=color, alpha=0.2)
    for ax, (column, high) in zip(axes, {'pass_rate': 1, 'reads': 2}.items()):
        ax.set(title=f'{BEHAVIOR[column]} in training', xlabel='training step', xlim=(0, STEPS - 1),
               ylim=(0, high))
    behavior = knob_runs(knob, settings[place])[0]
    axes[2].barh(range(4), behavior, color=arm_color('default'))
    for row, value in enumerate(behavior):
        axes[2].annotate(f'{value:.2f}', (value, row), xytext=(4, 0), textcoords='offset points', va='center')
    axes[2].set(yticks=range(4), yticklabels=BEHAVIOR.values(), xlim=(0, 6),
                title='on unseen tasks, an episode')
    axes[2].invert_yaxis()
    others = ' and '.join(setting for setting in settings if setting != settings[place])
    fig.suptitle(f'{knob}: {settings[place]} (grey: {others})', x=0.01, ha='left')
    return fig


# %%
_ = knob_figure('price of a call', 2)

# %%
#@save
def explore_knobs():
    """The explorer of the stored runs."""
    return Explorer(knob_figure, 'training curves and behaviour for one setting',
                    knob=menu('knob', [*TURNED]), place=slider('setting', 0, 0, 2))


# %% tags=["nbval-ignore-output"]
explore_knobs()

# %% [markdown]
# ## What was seen
#
# A loop that yields is the same loop, with a place to stop. Of the knobs, the price has the largest effect:
# at 0.05 a call the agent drops its tests (0.00) and passes 0.68, a mean of nine runs that pass like the
# default and one that gave up (section 12.2); at 0.3 every run submits at once and passes 0.00. With three
# turns none learns to read (0.00 reads), and they pass 0.20. Keeping only the last observation costs little
# once the agent was trained so: 0.72 against 0.78.
#
# **Try it.** Train ten steps at a price between 0.05 and 0.3, and find by trial where `reads` begins to
# fall. Then set the group size to 2: what happens to the noise of the curve, and to the time of a step?
