# Made by tools/export.py from notebooks/15_explorers/15_0_sliders.py. Do not edit: change it there, then `make export`.
# Body: f06152f0acc3dc9c
"""15.0 Put a slider on a plain function, and keep a page that reads without it."""

import base64
import html
import io

import matplotlib.pyplot as plt
from ipywidgets import HTML, Dropdown, FloatSlider, HBox, IntSlider, Layout, Play, VBox, jslink

# 15_explorers/15_0_sliders, cell 1
WIDE = {'description_width': 'initial'}                                 # labels are never cut


# 15_explorers/15_0_sliders, cell 3
def figure_bytes(fig, kind):
    """The figure as bytes of 'svg' or 'png'; it is closed."""
    picture = io.BytesIO()
    with plt.rc_context({'svg.hashsalt': 'explorer'}):
        fig.savefig(picture, format=kind, metadata={'Date': None, 'Creator': None} if kind == 'svg' else None)
    plt.close(fig)
    return picture.getvalue()


# 15_explorers/15_0_sliders, cell 3
def picture_html(view, words):
    """HTML for what a plain function returned: a figure as an image described by `words`, text as it is."""
    if isinstance(view, str):
        return view
    data = base64.b64encode(figure_bytes(view, 'svg')).decode()
    return f'<img alt="{html.escape(words)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


# 15_explorers/15_0_sliders, cell 5
def slider(label, value, low, high, step=1):
    """A slider from low to high, in steps; of whole numbers if all numbers given are."""
    kind = IntSlider if all(isinstance(n, int) for n in (value, low, high, step)) else FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=label, style=WIDE)


# 15_explorers/15_0_sliders, cell 5
def menu(label, options, value=None):
    """A menu of options (a list, or {shown: value}); the first one is chosen unless `value` is given."""
    values = list(options.values()) if isinstance(options, dict) else list(options)
    first = values[0] if value is None else value
    return Dropdown(options=options, value=first, description=label, style=WIDE)


# 15_explorers/15_0_sliders, cell 7
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


# 15_explorers/15_0_sliders, cell 8
def encoded(picture):
    """HTML as it is, bytes in base64, as notebooks store them."""
    return picture if isinstance(picture, str) else base64.b64encode(picture).decode()


# 15_explorers/15_0_sliders, cell 8
def play_buttons(control):
    """Buttons that step through a slider of whole numbers, in the browser; ValueError for another control."""
    if not isinstance(control, IntSlider):
        raise ValueError(f'play steps through whole numbers, and {control.description!r} is a '
                         f'{type(control).__name__}; give the name of a slider of integers')
    play = Play(value=control.value, min=control.min, max=control.max, interval=1000)
    jslink((play, 'value'), (control, 'value'))
    jslink((control, 'max'), (play, 'max'))
    return play
