import re

import matplotlib.pyplot as plt
import pytest

from agentrl.explorer import Explorer, figure_bytes, menu, picture_html, play_buttons, slider


def text(x, name):
    if x > 3:
        raise ValueError(f"x={x} <is> too large")
    return f"<b>{name} {x}</b>"


def figure(x):
    fig, ax = plt.subplots()
    ax.plot([0, x])
    return fig


def test_a_moved_control_shows_what_the_plain_function_says():
    explorer = Explorer(text, "words", x=slider("x", 1, 0, 5), name=menu("name", ["a", "b"]))
    assert explorer.picture.value == text(1, "a")
    explorer.controls["x"].value = 2
    assert explorer.picture.value == text(2, "a")
    explorer.controls["name"].value = "b"
    assert explorer.picture.value == text(2, "b")


def test_a_setting_that_is_refused_is_answered_with_the_reason_and_left_again():
    explorer = Explorer(text, "words", x=slider("x", 1, 0, 5), name=menu("name", ["a"]))
    explorer.controls["x"].value = 4
    assert "x=4 &lt;is&gt; too large" in explorer.picture.value and 'role="alert"' in explorer.picture.value
    explorer.controls["x"].value = 3
    assert explorer.picture.value == text(3, "a")


def test_what_is_stored_is_the_first_picture_whatever_was_moved():
    explorer = Explorer(text, "words", x=slider("x", 1, 0, 5), name=menu("name", ["a"]))
    explorer.controls["x"].value = 2
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/html"] == text(1, "a")
    assert not re.search(r"[0-9a-f]{16}", bundle["text/plain"])  # no id of a widget
    drawn = Explorer(figure, "a line", x=slider("x", 1, 0, 5))._repr_mimebundle_()
    assert drawn["image/png"].startswith("iVBOR") and "text/html" not in drawn


def test_a_figure_is_drawn_the_same_twice_described_and_closed():
    before = plt.get_fignums()
    assert figure_bytes(figure(1), "svg") == figure_bytes(figure(1), "svg") != figure_bytes(figure(2), "svg")
    assert plt.get_fignums() == before
    assert 'alt="a &lt;line&gt;"' in picture_html(figure(1), "a <line>")


def test_play_steps_through_whole_numbers_only():
    buttons = play_buttons(slider("x", 2, 0, 5))
    assert (buttons.value, buttons.min, buttons.max) == (2, 0, 5)
    with pytest.raises(ValueError, match="'price'.*integers"):
        Explorer(lambda x: "", "", play="x", x=slider("price", 0.1, 0.0, 1.0, 0.1))


def test_a_slider_is_of_whole_numbers_only_if_all_its_numbers_are():
    assert isinstance(slider("x", 1, 0, 5).value, int)
    assert slider("x", 1, 0, 5, 0.5).step == 0.5
    assert menu("m", {"one": 1, "two": 2}, 2).value == 2
