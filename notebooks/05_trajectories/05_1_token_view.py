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
# # 5.1 Look at a trajectory: who wrote each token, and is it trained on?
#
# Nearly every bug of a multi-turn training loop is a column that is off by one, a mask that covers the
# wrong tokens, or a token credited to the wrong author. Averages hide all three; a look at one episode
# shows them. So before there is anything to train, here are two views of a trajectory: a coloured one for
# notebooks and a plain one for terminals. Section 5.2 gives them to the `Trajectory` class, which then
# shows itself.
#
# **Time** 15 min. **Assumes** no other section. **Afterwards you can** read off a coloured row who wrote
# each token and which predictions are trained on, and spot a shifted mask.

# %%
#@save display
import html
from math import exp

from agentrl.plotting import OWNER_COLORS

# %% [markdown]
# ## An episode made by hand
#
# Six pieces, each with an owner and a turn. The prompt has turn −1; call k and the observation that answers
# it have turn k. The policy writes its calls, from `<call>` to `</call>`; the environment writes what a
# tool says, and the brackets around it, which are the template.

# %%
READ = 's = 0 for i in range len a - 1 : if a i > k : s += a i end end return s'
PIECES = [
    ('<bos>', 'template', -1), ('please fix the function zeta .', 'prompt', -1),
    ('<call> read </call>', 'policy', 0),
    ('<obs>', 'template', 0), (READ, 'tool', 0), ('</obs>', 'template', 0),
    ('<call> edit fix_boundary </call>', 'policy', 1),
    ('<obs>', 'template', 1), ('applied', 'tool', 1), ('</obs>', 'template', 1),
    ('<call> submit </call>', 'policy', 2),
]
words = [(word, owner, turn) for text, owner, turn in PIECES for word in text.split()]
tokens = [word for word, _, _ in words]                                 # [T]
owners = [list(OWNER_COLORS).index(owner) for _, owner, _ in words]     # [T] codes, template is 0
turns = [turn for _, _, turn in words]                                  # [T]
print(len(tokens), tokens[:4], owners[:9], turns[:9])

# %% [markdown]
# A model *predicts* token t+1 from the tokens before it, so for T tokens there are T−1 predictions, and
# column t speaks of token t+1. The first token is given, not predicted. The mask is 1 where the policy
# wrote the token, and the log-probability is the one at which it was sampled (here invented: an even chance
# for the tool's name, 0.9 for all else).

# %%
from math import log

mask = [owner == 2 for owner in owners[1:]]                             # [T-1]
logps = [log(0.5 if token in ('read', 'edit', 'submit') else 0.9) if trained else 0.0
         for token, trained in zip(tokens[1:], mask)]                   # [T-1]
print('tokens', len(tokens), ' predictions', len(mask), ' trained on', sum(mask))

# %% [markdown]
# ## Wrong lengths are refused
#
# A column too many is the very bug that we want to see, so a wrong length is an error which says what the
# length should be.

# %%
#@save
OWNER_NAMES = tuple(OWNER_COLORS)                                       # the place of a name is its code


def check_view(tokens, owners, turns, **predicted):
    """ValueError unless owners and turns have length T, predicted rows T-1, and owners are known codes."""
    if not tokens:
        raise ValueError('tokens is empty; a trajectory has at least its first token')
    for name, row in (('owners', owners), ('turns', turns)):
        if len(row) != len(tokens):
            raise ValueError(f'{name} has length {len(row)}, tokens has {len(tokens)}: give one a token')
    for name, row in predicted.items():
        if len(row) != len(tokens) - 1:
            raise ValueError(f'{name} has length {len(row)}, it must be {len(tokens) - 1}, one less than '
                             'tokens: column t speaks of token t+1')
    for owner in owners:
        if int(owner) not in range(len(OWNER_NAMES)):
            known = ', '.join(f'{code} {name}' for code, name in enumerate(OWNER_NAMES))
            raise ValueError(f'owners holds {int(owner)}; the codes are {known}')


# %%
try:
    check_view(tokens, owners, turns, mask=[False, *mask])
except ValueError as error:
    print(error)

# %% [markdown]
# ## What is known of a token
#
# One record a token, from which both views are drawn. The shift by one is made here and nowhere else.

# %%
#@save
def token_records(tokens, owners, turns, mask, logps, values=None):
    """A dict a token: position, token, owner, turn, trained, logp and value (None where there is none)."""
    rows = {'mask': mask, 'logps': logps, 'values': values}
    check_view(tokens, owners, turns, **{name: row for name, row in rows.items() if row is not None})
    records = []
    for t, token in enumerate(tokens):
        owner = OWNER_NAMES[int(owners[t])]
        sampled = owner == 'policy' and t > 0
        records.append({
            'position': t, 'token': token, 'owner': owner, 'turn': int(turns[t]),
            'trained': t > 0 and bool(mask[t - 1]),
            'logp': float(logps[t - 1]) if sampled else None,
            'value': float(values[t - 1]) if values is not None and t > 0 else None,
        })
    return records


# %%
records = token_records(tokens, owners, turns, mask, logps)
for record in records[6:10]:
    print({**record, 'logp': record['logp'] and round(record['logp'], 3)})

# %% [markdown]
# Everything that a person may want to know of one token fits into a line, shown when the pointer rests on
# it.

# %%
#@save
def token_title(record):
    """What the pointer shows: position, owner, turn, whether trained on, probability at sampling, value."""
    parts = [f'position {record["position"]}', record['owner'], turn_name(record['turn'])]
    parts.append('trained on' if record['trained'] else 'not trained on')
    if record['logp'] is not None:
        parts.append(f'log-probability {record["logp"] + 0.0:.3f} (probability {exp(record["logp"]):.3f})')
    if record['value'] is not None:
        parts.append(f'value {record["value"] + 0.0:.3f}')
    return ', '.join(parts)


def turn_name(turn):
    """'prompt' for turn -1, else 'turn k'."""
    return 'prompt' if turn < 0 else f'turn {turn}'


# %%
for position in (0, 7, 8, 10):
    print(f'{tokens[position]:7}', token_title(records[position]))

# %% [markdown]
# ## Coloured, for a notebook
#
# The owner is a colour *and* a border, so that it can be told without seeing colours: template dotted,
# prompt without, policy solid, tool dashed. A token that is trained on is bold and underlined. The fill is
# transparent, and letters keep the page's colour, so the view reads on light and on dark pages. All styles
# are inline and plain: JupyterLab removes anything else from a notebook that it does not trust yet.
#
# If values are given, say advantages, they take over the fill: blue above zero, vermillion below, stronger
# the larger.

# %%
#@save
BORDERS = {'template': 'dotted', 'prompt': 'none', 'policy': 'solid', 'tool': 'dashed'}


def token_style(owner, trained, strength=None):
    """Inline CSS of a token; `strength` from -1 to 1 takes over the fill: vermillion below 0, blue above."""
    color, opacity = OWNER_COLORS[owner], 0.25
    border = f'1px {BORDERS[owner]} {color}' if BORDERS[owner] != 'none' else '1px solid transparent'
    if strength is not None:
        color, opacity = '#0072B2' if strength > 0 else '#D55E00', 0.6 * min(1.0, abs(strength))
    fill = f'{color}{round(255 * opacity):02x}'
    style = f'background-color:{fill};border:{border};border-radius:3px;padding:0 3px'
    return style + (';font-weight:bold;text-decoration:underline' if trained else '')


# %%
print(token_style('tool', trained=False))
print(token_style('policy', trained=True, strength=-0.5))

# %% [markdown]
# Each turn becomes a block of its own with its name in front. Tokens are text of unknown origin, so they
# are escaped: `<obs>` must not become an HTML element.

# %%
#@save
def split_turns(records):
    """The records in blocks of one turn each, in order."""
    blocks = []
    for record in records:
        if not blocks or blocks[-1][0]['turn'] != record['turn']:
            blocks.append([])
        blocks[-1].append(record)
    return blocks


def token_span(record, largest):
    """One token as HTML; `largest` is the largest absolute value of all, or 0."""
    strength = record['value'] / largest if largest and record['value'] is not None else None
    style = token_style(record['owner'], record['trained'], strength)
    title, text = html.escape(token_title(record)), html.escape(record['token'])
    return f'<span style="{style}" title="{title}">{text}</span>'


# %%
print([len(block) for block in split_turns(records)], 'tokens a turn')
print(token_span(records[10], largest=0))

# %% [markdown]
# A legend, so that a page can be read by someone who has not read this one, and all of it together.

# %%
#@save
def legend_html(with_values):
    """One line that explains colours, borders and the underline."""
    owners = [f'<span style="{token_style(name, False)}">{name}</span>' for name in OWNER_NAMES]
    trained = '<span style="font-weight:bold;text-decoration:underline">trained on</span>'
    fill = ['fill: value, blue above 0, vermillion below'] if with_values else []
    return ' '.join([*owners, trained, *fill])


def tokens_html(tokens, owners, turns, mask, logps, values=None):
    """A trajectory as HTML: tokens, owners, turns [T]; mask, logps and, for the fill, values [T-1].

    Column t of the rows of length T-1 speaks of token t+1. ValueError for wrong lengths and unknown owners.
    """
    records = token_records(tokens, owners, turns, mask, logps, values)
    largest = max((abs(record['value']) for record in records if record['value'] is not None), default=0)
    block_style, lines = 'border-left:2px solid #888888;margin:4px 0;padding-left:6px', []
    for block in split_turns(records):
        name = f'<span style="font-size:80%;opacity:0.7">{turn_name(block[0]["turn"])}</span>'
        spans = ' '.join(token_span(record, largest) for record in block)
        lines.append(f'<div style="{block_style}">{name} {spans}</div>')
    legend = f'<div style="font-size:80%">{legend_html(values is not None)}</div>'
    return f'<div style="font-family:monospace;line-height:1.8">{legend}{"".join(lines)}</div>'


# %%
from IPython.display import HTML

HTML(tokens_html(tokens, owners, turns, mask, logps))

# %% [markdown]
# Hover over `fix_boundary`: position, owner, turn, and the probability at which it was sampled. The call's
# last token, `</call>`, is trained on too: to stop writing is a decision like any other.
#
# Does the page say what the arrays say? We read it back: parse the HTML, collect the tokens with their
# titles and underlines, and rebuild the arrays.

# %%
from html.parser import HTMLParser


class ReadBack(HTMLParser):
    """Collects (token, title, underlined) of each token."""
    found, open_span = [], None

    def handle_starttag(self, tag, attributes):
        self.open_span = dict(attributes)

    def handle_data(self, text):
        if self.open_span and 'title' in self.open_span:
            title, style = self.open_span['title'].split(', '), self.open_span['style']
            self.found.append((text, title, 'underline' in style))
            self.open_span = None


page = ReadBack()
page.feed(tokens_html(tokens, owners, turns, mask, logps))
print('tokens:', [token for token, _, _ in page.found] == tokens)
print('owners:', [OWNER_NAMES.index(title[1]) for _, title, _ in page.found] == owners)
print('turns: ', [title[2] for _, title, _ in page.found] == [turn_name(turn) for turn in turns])
print('mask:  ', [underlined for _, _, underlined in page.found[1:]] == mask)

# %% [markdown]
# ## Any number for each token
#
# An advantage, a probability ratio, a difference between two models: whatever has T−1 columns can fill the
# tokens. Here an invented advantage, −0.5 for the first call and +1 for the others. Section 12.2 shows real
# ones.

# %%
advantages = [(-0.5 if turn == 0 else 1.0) * trained for turn, trained in zip(turns[1:], mask)]
HTML(tokens_html(tokens, owners, turns, mask, logps, advantages))

# %% [markdown]
# ## Plain, for a terminal
#
# The same in text. Under each token stands a letter for its owner, and `^` in its place where it is trained
# on; a policy token that is *not* trained on keeps its `p`, and that would be a finding. Behind each turn's
# name stands the log-probability of its call, the sum over its tokens.

# %%
#@save
MARKS = {'template': '.', 'prompt': ' ', 'policy': 'p', 'tool': '-'}


def marked_lines(block, width):
    """The tokens of a block in lines of at most `width` characters, each followed by its line of marks."""
    rows = [[]]
    for record in block:
        if rows[-1] and sum(len(other['token']) + 1 for other in rows[-1]) + len(record['token']) > width:
            rows.append([])
        rows[-1].append(record)
    lines = []
    for row in rows:
        lines.append(' '.join(record['token'] for record in row))
        marks = ['^' if record['trained'] else MARKS[record['owner']] for record in row]
        under = ' '.join(mark * len(record['token']) for mark, record in zip(marks, row, strict=True))
        lines.append(under.rstrip())
    return lines


# %%
#@save
def tokens_text(tokens, owners, turns, mask, logps, width=88):
    """A trajectory as text: tokens, owners, turns [T]; mask, logps [T-1]. ValueError for wrong lengths."""
    lines = ['^ trained on   p policy, not trained on   - tool   . template   (no mark) prompt']
    for block in split_turns(token_records(tokens, owners, turns, mask, logps)):
        sampled = [record['logp'] for record in block if record['logp'] is not None]
        logp = f' (log-probability {sum(sampled) + 0.0:.3f})' if sampled else ''
        lines.append(f'{turn_name(block[0]["turn"])}{logp}')
        lines += [f'  {line}'.rstrip() for line in marked_lines(block, width)]
    return '\n'.join(lines)


# %%
print(tokens_text(tokens, owners, turns, mask, logps))

# %% [markdown]
# A brute-force check of the marks: as many tokens carry `^` as the mask has ones, and the log-probabilities
# of the turns add up to that of the episode.

# %%
import re

text = tokens_text(tokens, owners, turns, mask, logps)
print('marked:', len(re.findall(r'\^+', text.split('\n', 1)[1])), ' in the mask:', sum(mask))
turn_sums = [float(number) for number in re.findall(r'log-probability (-?\d+\.\d+)', text)]
print(f'sum of turns: {sum(turn_sums):.3f}  episode: {sum(logps):.3f}')

# %% [markdown]
# And the bug that we started from: the mask shifted by one column, as happens when someone forgets that
# column t speaks of token t+1. An average over the mask would look normal. In the view, each `</call>`
# loses its mark, and the `</obs>` before a call, which the policy never wrote, gets one.

# %%
print(tokens_text(tokens, owners, turns, [*mask[1:], False], logps).split('turn 1')[1])

# %% [markdown]
# ## What was seen
#
# The episode has 48 tokens and 47 predictions; 10 tokens are the policy's and trained on, in three calls.
# Read back from the page, tokens, owners, turns and mask are those that went in, and the turns'
# log-probabilities add up to the episode's. A shifted mask is visible at once.
#
# **Try it.** Set one entry of `mask` at a policy token to `False` and look for the `p`. Give `logps` as
# `values`: which tokens was the policy unsure of?
