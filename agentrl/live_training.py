# Made by tools/export.py from notebooks/15_explorers/15_5_live_training.py. Do not edit: change it there, then `make export`.
# Body: 51226fabd55cad26
"""15.5 Train while you watch, and stop when you have seen enough."""

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


# 15_explorers/15_5_live_training, cell 2
def base_steps(cfg, context='full', steps=STEPS):
    """`train_steps` of the RL base under a context policy of CONTEXTS."""
    tok, parts = build_tokenizer(make_tasks('all')), {}
    if context != 'full':
        parts = {'sample': partial(context_step, context=CONTEXTS[context]), 'prepare': call_batch}
    return train_steps(make_rl_base(tok), make_tasks('train'), tok, cfg, steps, **parts)


# 15_explorers/15_5_live_training, cell 4
TURNED = {                                                              # {knob: {setting: (study, arm)}}
    'price of a call': {'0': (GRPO, 'default'), '0.05': (GRPO, 'penalty 0.05'), '0.3': (GRPO, 'penalty 0.3')},
    'turns': {'3': (GRPO, 'max_turns 3'), '4': (GRPO, 'max_turns 4'), '6': (GRPO, 'default')},
    'observations kept': {'the last 1': (CONTEXT, 'keep 1'), 'notes': (CONTEXT, 'summary'),
                          'all': (CONTEXT, 'full')},
}
BEHAVIOR = {'pass_rate': 'pass rate', 'reads': 'reads', 'tests': 'tests', 'turns': 'calls'}


# 15_explorers/15_5_live_training, cell 4
@lru_cache
def knob_runs(knob, setting):
    """(behaviour on held-out tasks, a mean over seeds; history) of one setting of a knob of TURNED."""
    study, arm = TURNED[knob][setting]
    heldout, history = run_study(study, [arm], SEEDS)
    if 'evaluated' in heldout:                                          # where it was trained
        heldout = heldout[heldout['evaluated'] == arm]
    return heldout[list(BEHAVIOR)].mean(), history


# 15_explorers/15_5_live_training, cell 6
CURVE = {'pass_rate': 'pass rate', 'reads': 'reads an episode', 'turns': 'calls an episode'}


# 15_explorers/15_5_live_training, cell 6
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


# 15_explorers/15_5_live_training, cell 8
def still_curve():
    """What a page without a kernel shows in place of a live training."""
    picture = encoded(figure_bytes(curve_figure([], 10), 'png'))
    return {'text/plain': 'Run this cell in JupyterLab to train here.', 'image/png': picture}


KEPT = {'all': 'full', 'the last 2': 'keep 2', 'the last 1': 'keep 1', 'none': 'keep 0'}


# 15_explorers/15_5_live_training, cell 8
def training_controls():
    """The controls of a live training, by the names of what they set."""
    return {'step_penalty': slider('price of a call', 0.0, 0.0, 0.5, 0.05),
            'max_turns': slider('turns', 6, 1, 12), 'group_size': slider('group size', 8, 2, 16),
            'context': menu('observations kept', KEPT), 'steps': slider('steps', 10, 1, STEPS)}


# 15_explorers/15_5_live_training, cell 9
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


# 15_explorers/15_5_live_training, cell 12
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


# 15_explorers/15_5_live_training, cell 14
def explore_knobs():
    """The explorer of the stored runs."""
    return Explorer(knob_figure, 'training curves and behaviour for one setting',
                    knob=menu('knob', [*TURNED]), place=slider('setting', 0, 0, 2))
