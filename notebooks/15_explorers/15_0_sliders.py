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
# # 15.0 Put a slider on a plain function, and keep a page that reads without it
#
# A slider helps to understand a formula, and harms a book: what it shows depends on where somebody left it,
# it is gone on a rendered page, and no test compares it. So in this chapter the work is done by plain
# functions, whose results are shown and compared like all others; an *explorer* only calls such a function
# again when a control moves. Here is the one class that all explorers share, on a function of two lines.
#
# **Time** 10 min. **Assumes** no other section. **Afterwards you can** put a slider beside a plain
# function, with a picture that stays where no kernel runs.

# %%
#@save explorer
import base64
import html
import io

import matplotlib.pyplot as plt
from ipywidgets import HTML, Dropdown, FloatSlider, HBox, IntSlider, Layout, Play, VBox, jslink

WIDE = {'description_width': 'initial'}                                 # labels are never cut

# %% [markdown]
# ## A plain function first
#
# It takes settings and returns a figure, or HTML. Nothing in it knows of sliders, so that it can be shown
# in a cell of its own, tested, and printed on paper: what a 95% interval of a pass rate looks like for a
# number of episodes (Wald's, the plain one: $p \pm 1.96\sqrt{p\,(1-p)/n}$).

# %%
from agentrl.plotting import arm_color, use_style

use_style()


def interval(rate, episodes):
    """(low, high) of the 95% interval of a pass rate."""
    half = 1.96 * (rate * (1 - rate) / episodes) ** 0.5
    return rate - half, rate + half


def interval_figure(rate, episodes):
    """The interval as a bar."""
    low, high = interval(rate, episodes)
    fig, ax = plt.subplots(figsize=(6.4, 1.5))
    ax.plot((low, high), (0, 0), color=arm_color('default'), linewidth=8, solid_capstyle='butt')
    ax.plot(rate, 0, 'o', color='black')
    ax.set(xlim=(0, 1), ylim=(-1, 1), yticks=(), xlabel='pass rate',
           title=f'{episodes} episodes: {low:.3f} to {high:.3f}')
    return fig


for n in (16, 64, 256):
    print(f'{n:3} episodes', *(f'{end:.3f}' for end in interval(0.7, n)))
_ = interval_figure(0.7, 64)

# %% [markdown]
# ## Pictures inside a widget
#
# A widget's text box takes HTML, so a figure has to become some: an SVG inside an `img`, sharp at every
# size, with words for readers who do not see it. The figure is closed afterwards, since matplotlib would
# otherwise keep every one that a slider ever drew.

# %%
#@save
def figure_bytes(fig, kind):
    """The figure as bytes of 'svg' or 'png'; it is closed."""
    picture = io.BytesIO()
    with plt.rc_context({'svg.hashsalt': 'explorer'}):
        fig.savefig(picture, format=kind, metadata={'Date': None, 'Creator': None} if kind == 'svg' else None)
    plt.close(fig)
    return picture.getvalue()


def picture_html(view, words):
    """HTML for what a plain function returned: a figure as an image described by `words`, text as it is."""
    if isinstance(view, str):
        return view
    data = base64.b64encode(figure_bytes(view, 'svg')).decode()
    return f'<img alt="{html.escape(words)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


# %%
print(picture_html(interval_figure(0.7, 64), 'the interval of a pass rate')[:90], '...')
print(picture_html('<b>text stays as it is</b>', ''))

# %% [markdown]
# ## Two kinds of control
#
# Sliders and menus are all that we use, because both work by keyboard: Tab goes from one control to the
# next, the arrow keys move a slider by one step or choose from a menu, Page Up and Page Down move a slider
# by larger steps, Home and End go to its ends. The steps of a slider are whole numbers if all its numbers
# are.

# %%
#@save
def slider(label, value, low, high, step=1):
    """A slider from low to high, in steps; of whole numbers if all numbers given are."""
    kind = IntSlider if all(isinstance(n, int) for n in (value, low, high, step)) else FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=label, style=WIDE)


def menu(label, options, value=None):
    """A menu of options (a list, or {shown: value}); the first one is chosen unless `value` is given."""
    values = list(options.values()) if isinstance(options, dict) else list(options)
    first = values[0] if value is None else value
    return Dropdown(options=options, value=first, description=label, style=WIDE)


# %%
for control in (slider('episodes', 64, 8, 512, 8), slider('pass rate', 0.7, 0.0, 1.0, 0.05),
                menu('task', ['a', 'b'])):
    print(f'{type(control).__name__:12} {control.description:10} {control.value}')

# %% [markdown]
# ## The explorer
#
# It holds the controls and a picture, and draws the picture anew when a control moves. A setting that the
# function refuses is answered with the function's own words. What the notebook stores is not the widget,
# which needs a kernel, but the first picture: that is what a rendered page shows, whatever anybody did to
# the controls. With `play`, the name of a slider, buttons step through its values; Enter or the space bar
# presses them.

# %%
#@save
class Explorer(VBox):
    """Controls by name, and the picture that `view(**values)` makes of their values, again on every move."""

    def __init__(self, view, words, play=None, **controls):
        self.draw_view, self.words, self.controls, self.picture = view, words, controls, HTML()
        first = view(**self.values())
        self.picture.value = picture_html(first, words)
        self.static = first if isinstance(first, str) else figure_bytes(first, 'png')
        for control in controls.values():
            control.observe(self.draw, 'value')
        row = [*controls.values()]
        if play:
            row.append(play_buttons(controls[play]))
        super().__init__([HBox(row, layout=Layout(flex_flow='row wrap')), self.picture])

    def values(self):
        """{name: value} of all controls."""
        return {name: control.value for name, control in self.controls.items()}

    def draw(self, change=None):
        """Show the view of the present values, or why there is none."""
        try:
            self.picture.value = picture_html(self.draw_view(**self.values()), self.words)
        except ValueError as error:
            self.picture.value = f'<p role="alert">{html.escape(str(error))}</p>'

    def _repr_mimebundle_(self, **kwargs):
        kind = 'text/html' if isinstance(self.static, str) else 'image/png'
        words = f'Run this cell in JupyterLab to change: {", ".join(self.controls)}.'
        return super()._repr_mimebundle_(**kwargs) | {'text/plain': words, kind: encoded(self.static)}


# %%
#@save
def encoded(picture):
    """HTML as it is, bytes in base64, as notebooks store them."""
    return picture if isinstance(picture, str) else base64.b64encode(picture).decode()


def play_buttons(control):
    """Buttons that step through a slider of whole numbers, in the browser; ValueError for another control."""
    if not isinstance(control, IntSlider):
        raise ValueError(f'play steps through whole numbers, and {control.description!r} is a '
                         f'{type(control).__name__}; give the name of a slider of integers')
    play = Play(value=control.value, min=control.min, max=control.max, interval=1000)
    jslink((play, 'value'), (control, 'value'))
    jslink((control, 'max'), (play, 'max'))
    return play


# %% [markdown]
# ## At work
#
# The same function, by hand and by explorer. A test may move a control as a hand would, since a control is
# an object with a value; here a cell does it. The last setting is refused by the function, and the reader
# sees why.

# %%
def checked_figure(rate, episodes):
    if not 0 < rate < 1:
        raise ValueError(f'rate={rate}: an interval of this kind needs a pass rate between 0 and 1')
    return interval_figure(rate, episodes)


tried = Explorer(checked_figure, 'interval', rate=slider('pass rate', 0.7, 0.0, 1.0, 0.05),
                 episodes=slider('episodes', 64, 8, 512, 8))
before = tried.picture.value
print('as the plain function:', before == picture_html(checked_figure(0.7, 64), 'interval'))
tried.controls['episodes'].value = 256
expected = picture_html(checked_figure(0.7, 256), 'interval')
print('changed by the slider:', before != tried.picture.value == expected)
tried.controls['rate'].value = 1.0
print(tried.picture.value)

# %% tags=["nbval-ignore-output"]
Explorer(checked_figure, 'the 95% interval of a pass rate', rate=slider('pass rate', 0.7, 0.0, 1.0, 0.05),
         episodes=slider('episodes', 64, 8, 512, 8))

# %% [markdown]
# ## What was seen
#
# An explorer is a function, controls, and a picture. At a pass rate of 0.7 the interval of 64 episodes is
# 0.588 to 0.812; four times as many episodes halve it. The stored page holds the first picture and never
# changes; with a kernel, the arrow keys do.
#
# **Try it.** Put a slider on a function of your own: `Explorer(f, 'in words', x=slider('x', 1, 0, 9))`.
# Then one whose function is slow: what happens while you hold an arrow key?
