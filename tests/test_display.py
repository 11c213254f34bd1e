"""agentrl.display: what the views show is what the arrays say, for any tokens."""

import re
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.display import OWNER_NAMES, token_records, token_style, tokens_html, tokens_text

EPISODE = {
    "tokens": ["<bos>", "fix", "<call>", "read", "</call>", "<obs>", "s", "</obs>", "<call>"],
    "owners": [0, 1, 2, 2, 2, 0, 3, 0, 2],
    "turns": [-1, -1, 0, 0, 0, 0, 0, 0, 1],
    "mask": [0, 1, 1, 1, 0, 0, 0, 0],  # the last call is the policy's, but not trained on
    "logps": [0.0, -0.1, -0.2, -0.3, 0.0, 0.0, 0.0, -0.5],
}


class Page(HTMLParser):
    """The tokens of a view: (text, title, style), and the nesting of all elements."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.names, self.title = [], [], [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        attributes = dict(attributes)
        assert tag in ("div", "span") and set(attributes) <= {"style", "title"}
        self.title, self.style = attributes.get("title"), attributes.get("style", "")
        if self.title is not None:
            self.found.append(["", self.title, self.style])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.title = None

    def handle_data(self, text):
        if self.title is not None:
            self.found[-1][0] += text


def read_back(text):
    """The arrays that a page shows: tokens, owners, turns, trained."""
    found = Page(text).found
    titles = [title.split(", ") for _, title, _ in found]
    assert [title[0] for title in titles] == [f"position {t}" for t in range(len(found))]
    owners = [OWNER_NAMES.index(title[1]) for title in titles]
    turns = [-1 if title[2] == "prompt" else int(title[2].removeprefix("turn ")) for title in titles]
    trained = [title[3] == "trained on" for title in titles]
    assert trained == ["underline" in style for _, _, style in found]
    return [token for token, _, _ in found], owners, turns, trained


ROWS = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=5),
        st.integers(0, 3),
        st.integers(-1, 3),
        st.booleans(),
        st.floats(-9, 0),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_a_page_can_be_read_back(rows):
    tokens, owners, turns, mask, logps = (list(column) for column in zip(*rows))
    text = tokens_html(tokens, owners, turns, mask[1:], logps[1:])
    assert text == tokens_html(tokens, owners, turns, mask[1:], logps[1:])
    shown = [re.sub("\r\n?", "\n", token).replace("\0", "�") for token in tokens]
    found, *rest = read_back(text)
    assert [re.sub("\r\n?", "\n", token).replace("\0", "�") for token in found] == shown
    assert rest == [owners, turns, [False, *mask[1:]]]
    plain = tokens_text(tokens, owners, turns, mask[1:], logps[1:])
    assert plain.split("\n", 1)[1].count("^") >= sum(mask[1:])


def test_column_t_speaks_of_token_t_plus_1():
    records = token_records(**EPISODE)
    assert [record["trained"] for record in records] == [False, False, True, True, True] + [False] * 4
    logps = [None, None, -0.1, -0.2, -0.3, None, None, None, -0.5]
    assert [record["logp"] for record in records] == logps
    values = token_records(**EPISODE, values=list(range(8)))
    assert [record["value"] for record in values] == [None, 0, 1, 2, 3, 4, 5, 6, 7]


def test_the_title_gives_the_probability_at_sampling():
    titles = [title for _, title, _ in Page(tokens_html(**EPISODE)).found]
    assert titles[3] == "position 3, policy, turn 0, trained on, log-probability -0.200 (probability 0.819)"
    assert titles[1] == "position 1, prompt, prompt, not trained on"
    assert "not trained on, log-probability -0.500" in titles[8]


def test_tensors_and_boolean_masks_give_the_same_page():
    tensors = {name: torch.tensor(row) for name, row in EPISODE.items() if name != "tokens"}
    page = tokens_html(**EPISODE)
    assert tokens_html(EPISODE["tokens"], **tensors) == page
    for kind in (torch.bool, torch.float64):
        assert tokens_html(EPISODE["tokens"], **{**tensors, "mask": tensors["mask"].to(kind)}) == page
    assert tokens_text(EPISODE["tokens"], **tensors) == tokens_text(**EPISODE)


def test_plain_text_in_full():
    assert tokens_text(**EPISODE).splitlines() == [
        "^ trained on   p policy, not trained on   - tool   . template   (no mark) prompt",
        "prompt",
        "  <bos> fix",
        "  .....",
        "turn 0 (log-probability -0.600)",
        "  <call> read </call> <obs> s </obs>",
        "  ^^^^^^ ^^^^ ^^^^^^^ ..... - ......",
        "turn 1 (log-probability -0.500)",
        "  <call>",
        "  pppppp",
    ]


@pytest.mark.parametrize("width", [1, 10, 20, 200])
def test_long_turns_are_wrapped_and_marks_stay_below_their_tokens(width):
    lines = tokens_text(**EPISODE, width=width).splitlines()
    body = [line[2:] for line in lines[1:] if line.startswith("  ") or not line]
    words, marks = body[0::2], body[1::2]
    assert " ".join(words).split() == EPISODE["tokens"]
    assert all(len(line) <= max(width, 7) for line in words)
    for line, below in zip(words, marks, strict=True):
        for match in re.finditer(r"\S+", line):
            assert len(set(below[match.start() : match.end()].strip())) <= 1
    assert sum(len(re.findall(r"\^+", line)) for line in marks) == sum(EPISODE["mask"])


def test_html_in_tokens_is_text():
    attack = "</span><script>alert(\"x\")</script>' onmouseover='y"
    text = tokens_html([attack, "&amp;"], [1, 2], [-1, 0], [1], [-0.1])
    assert "<script" not in text
    assert [token for token, _, _ in Page(text).found] == [attack, "&amp;"]


def test_owners_differ_in_more_than_colour():
    assert len({re.sub("#[0-9A-Fa-f]+", "", token_style(name, False)) for name in OWNER_NAMES}) == 4
    assert "underline" in token_style("policy", True) and "underline" not in token_style("policy", False)


def test_letters_keep_the_page_s_colour():
    assert not re.search(r"[;\"]color:", tokens_html(**EPISODE))  # readable on light and on dark pages


def test_values_fill_by_sign_and_size():
    values = [0.0, 2.0, -1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    fills = [
        re.search("background-color:(#[0-9A-F]{6})([0-9a-f]{2})", style)
        for *_, style in Page(tokens_html(**EPISODE, values=values)).found
    ]
    assert [fills[t][1] for t in (2, 3, 4)] == ["#0072B2", "#D55E00", "#0072B2"]
    assert int(fills[2][2], 16) == 153 and int(fills[3][2], 16) == 76 and int(fills[1][2], 16) == 0
    assert fills[0][1] == "#888888"  # the first token is not predicted: the owner's colour
    assert "value -1.000" in tokens_html(**EPISODE, values=values)
    assert tokens_html(**EPISODE, values=[0.0] * 8).count("value 0.000") == 8


@pytest.mark.parametrize("name", ["owners", "turns", "mask", "logps", "values"])
@pytest.mark.parametrize("extra", [-1, 1])
def test_wrong_lengths_are_named(name, extra):
    rows = {**EPISODE, "values": [0.0] * 8}
    rows[name] = [*rows[name], 0] if extra > 0 else rows[name][:-1]
    with pytest.raises(ValueError, match=f"{name} has length {len(rows[name])}"):
        tokens_html(**rows)
    if name != "values":
        del rows["values"]
        with pytest.raises(ValueError, match=f"{name} has length"):
            tokens_text(**rows)


@pytest.mark.parametrize("code", [-1, 4])
def test_unknown_owners_are_named(code):
    with pytest.raises(ValueError, match=f"owners holds {code}; the codes are 0 template, 1 prompt, 2 policy, 3 tool"):
        tokens_html(["a"], [code], [0], [], [])


def test_an_empty_episode_is_refused():
    with pytest.raises(ValueError, match="tokens is empty"):
        tokens_html([], [], [], [], [])


def test_codes_are_those_of_the_episodes():
    from agentrl.episodes import OWNER

    assert OWNER == {name: code for code, name in enumerate(OWNER_NAMES)}
