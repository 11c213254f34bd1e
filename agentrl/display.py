# Made by tools/export.py from notebooks/05_trajectories/05_1_token_view.py. Do not edit: change it there, then `make export`.
# Body: 6c9e654d01f6b3a9
"""5.1 Look at a trajectory: who wrote each token, and is it trained on?."""

import html
from math import exp

from agentrl.plotting import OWNER_COLORS

# 05_trajectories/05_1_token_view, cell 4
OWNER_NAMES = tuple(OWNER_COLORS)                                       # the place of a name is its code


# 05_trajectories/05_1_token_view, cell 4
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


# 05_trajectories/05_1_token_view, cell 6
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


# 05_trajectories/05_1_token_view, cell 8
def token_title(record):
    """What the pointer shows: position, owner, turn, whether trained on, probability at sampling, value."""
    parts = [f'position {record["position"]}', record['owner'], turn_name(record['turn'])]
    parts.append('trained on' if record['trained'] else 'not trained on')
    if record['logp'] is not None:
        parts.append(f'log-probability {record["logp"] + 0.0:.3f} (probability {exp(record["logp"]):.3f})')
    if record['value'] is not None:
        parts.append(f'value {record["value"] + 0.0:.3f}')
    return ', '.join(parts)


# 05_trajectories/05_1_token_view, cell 8
def turn_name(turn):
    """'prompt' for turn -1, else 'turn k'."""
    return 'prompt' if turn < 0 else f'turn {turn}'


# 05_trajectories/05_1_token_view, cell 10
BORDERS = {'template': 'dotted', 'prompt': 'none', 'policy': 'solid', 'tool': 'dashed'}


# 05_trajectories/05_1_token_view, cell 10
def token_style(owner, trained, strength=None):
    """Inline CSS of a token; `strength` from -1 to 1 takes over the fill: vermillion below 0, blue above."""
    color, opacity = OWNER_COLORS[owner], 0.25
    border = f'1px {BORDERS[owner]} {color}' if BORDERS[owner] != 'none' else '1px solid transparent'
    if strength is not None:
        color, opacity = '#0072B2' if strength > 0 else '#D55E00', 0.6 * min(1.0, abs(strength))
    fill = f'{color}{round(255 * opacity):02x}'
    style = f'background-color:{fill};border:{border};border-radius:3px;padding:0 3px'
    return style + (';font-weight:bold;text-decoration:underline' if trained else '')


# 05_trajectories/05_1_token_view, cell 12
def split_turns(records):
    """The records in blocks of one turn each, in order."""
    blocks = []
    for record in records:
        if not blocks or blocks[-1][0]['turn'] != record['turn']:
            blocks.append([])
        blocks[-1].append(record)
    return blocks


# 05_trajectories/05_1_token_view, cell 12
def token_span(record, largest):
    """One token as HTML; `largest` is the largest absolute value of all, or 0."""
    strength = record['value'] / largest if largest and record['value'] is not None else None
    style = token_style(record['owner'], record['trained'], strength)
    title, text = html.escape(token_title(record)), html.escape(record['token'])
    return f'<span style="{style}" title="{title}">{text}</span>'


# 05_trajectories/05_1_token_view, cell 14
def legend_html(with_values):
    """One line that explains colours, borders and the underline."""
    owners = [f'<span style="{token_style(name, False)}">{name}</span>' for name in OWNER_NAMES]
    trained = '<span style="font-weight:bold;text-decoration:underline">trained on</span>'
    fill = ['fill: value, blue above 0, vermillion below'] if with_values else []
    return ' '.join([*owners, trained, *fill])


# 05_trajectories/05_1_token_view, cell 14
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


# 05_trajectories/05_1_token_view, cell 18
MARKS = {'template': '.', 'prompt': ' ', 'policy': 'p', 'tool': '-'}


# 05_trajectories/05_1_token_view, cell 18
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


# 05_trajectories/05_1_token_view, cell 19
def tokens_text(tokens, owners, turns, mask, logps, width=88):
    """A trajectory as text: tokens, owners, turns [T]; mask, logps [T-1]. ValueError for wrong lengths."""
    lines = ['^ trained on   p policy, not trained on   - tool   . template   (no mark) prompt']
    for block in split_turns(token_records(tokens, owners, turns, mask, logps)):
        sampled = [record['logp'] for record in block if record['logp'] is not None]
        logp = f' (log-probability {sum(sampled) + 0.0:.3f})' if sampled else ''
        lines.append(f'{turn_name(block[0]["turn"])}{logp}')
        lines += [f'  {line}'.rstrip() for line in marked_lines(block, width)]
    return '\n'.join(lines)
