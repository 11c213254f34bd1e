# Made by tools/export.py from notebooks/00_start_here/00_2_figures_and_tables.py. Do not edit: change it there, then `make export`.
# Body: 81c710d12c31fc47
"""0.2 Draw every figure from a table that is kept beside it."""

import io
import os
import re
import zlib
from functools import reduce
from importlib.resources import files
from operator import add
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.text import Annotation

# 00_start_here/00_2_figures_and_tables, cell 2
ARM_COLORS = {
    'base': '#888888',                                          # the policy that training starts from
    'default': '#0072B2', 'full': '#0072B2', 'multi-turn only': '#0072B2', 'as planned': '#0072B2',
    'penalty 0.05': '#E69F00', 'outcome (GRPO)': '#E69F00',     # one run: outcome-level credit, 0.05 a call
    'penalty 0.3': '#D55E00',
    'penalty 0.05, no std': '#7B3294', 'penalty 0.3, no std': '#E7298A',
    'max_turns 3': '#009E73', '3 turns, 60 steps': '#009E73',
    '6 turns, then 3': '#8C510A', '6 turns, 4, then 3': '#35978F',
    'wrong_submit -1': '#CC79A7', 'truncation = 0': '#CC79A7',
    'token GAE': '#56B4E9', 'turn GAE': '#000000',
    'keep_obs 1': '#332288',
    'truncation masked': '#882255', 'truncation priced': '#228833', 'truncation dropped': '#00BBAA',
    'truncation bootstrapped': '#DDAA33',
    'turns left shown': '#4477AA', 'turns left priced': '#222288',
    'cost annealed in': '#004488', 'four calls free': '#33BBEE',
    'as deployed': '#A65628', 'rehearsed': '#117755', 'rehearsed, read kept': '#AA4466',
    'mixture': '#999933', '50/50 mixture': '#999933',
    'mixture, equal token weight': '#EE7733', 'mixture, seq_mean': '#AA3377', 'single-turn only': '#222255',
    'invalid_penalty 0.05': '#CC6677', 'invalid_penalty 0.2': '#994455',
    'max_turns 4': '#225555', 'early stop': '#666633',
    'fixed names': '#AA4499', 'fixed names, 3 turns': '#117733',
    'all edits shown': '#6699CC',
    'low 0.5': '#CC3311', 'low 0': '#0077BB', 'no weight': '#555555', 'IcePop': '#009988',  # chapter 13
    'floor, A < 0': '#EE3377', 'floor, A > 0': '#88CCEE',
    'no limit': '#004488', 'limit 4': '#DDAA33', 'limit 1': '#BB5566', 'limit 1, retry': '#228833',
}
SPARE_COLORS = ('#661100', '#44AA99', '#DDCC77')


# 00_start_here/00_2_figures_and_tables, cell 3
def arm_color(arm):
    """The colour of an arm in the whole book; an unknown arm gets `SPARE_COLORS[crc32(name) % 3]`."""
    return ARM_COLORS.get(arm, SPARE_COLORS[zlib.crc32(arm.encode()) % len(SPARE_COLORS)])


# 00_start_here/00_2_figures_and_tables, cell 5
OWNER_COLORS = {
    'template': '#888888',
    'prompt': '#56B4E9',
    'policy': '#E69F00',
    'tool': '#009E73',
}


# 00_start_here/00_2_figures_and_tables, cell 6
STYLE = {
    'axes.grid': True, 'axes.axisbelow': True, 'grid.color': '#E5E5E5', 'grid.linewidth': 0.8,
    'axes.spines.top': False, 'axes.spines.right': False,
    'axes.titlelocation': 'left', 'axes.titlesize': 'medium', 'axes.labelcolor': '#333333',
    'xtick.color': '#333333', 'ytick.color': '#333333',
    'xtick.labelsize': 'small', 'ytick.labelsize': 'small', 'font.size': 10.0, 'lines.linewidth': 2.0,
    'figure.constrained_layout.use': True, 'figure.figsize': (6.4, 3.6), 'figure.dpi': 110,
    'figure.facecolor': 'white', 'savefig.facecolor': 'white', 'svg.fonttype': 'path',
}


# 00_start_here/00_2_figures_and_tables, cell 6
def use_style(dashes=False):
    """Draw in the style of this book from here on; with `dashes`, lines of an axes are apart in grey, too."""
    plt.rcParams.update(STYLE | ({'axes.prop_cycle': plt.cycler(linestyle=['-', '--', '-.', ':'])} if dashes else {}))


# 00_start_here/00_2_figures_and_tables, cell 9
def figures_dir():
    """The folder of figures: `$AGENTRL_FIGURES`, or figures/ in the repository."""
    return Path(files('agentrl')).parent / (os.environ.get('AGENTRL_FIGURES') or 'figures')


# 00_start_here/00_2_figures_and_tables, cell 9
def save_table(frame, name):
    """Write figures/tables/<name>.csv, without the index, floats with six digits; return that short path."""
    if not re.fullmatch(r'[\w-]+', name, flags=re.ASCII):
        raise ValueError(f'name={name!r} must be made of letters, digits, _ and -; it becomes a file name')
    path = figures_dir() / 'tables' / f'{name}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    text = frame.to_csv(index=False, lineterminator='\n', float_format=lambda value: f'{value + 0.0:.6g}')
    path.write_bytes(text.encode())
    return f'figures/tables/{name}.csv'


# 00_start_here/00_2_figures_and_tables, cell 11
def save_figure(fig, name, table):
    """Write figures/<name>.svg and its table, figures/tables/<name>.csv; return the picture's short path."""
    save_table(table, name)
    picture = io.BytesIO()
    with plt.rc_context({'svg.hashsalt': name}):
        fig.savefig(picture, format='svg', metadata={'Date': None, 'Creator': None})
    (figures_dir() / f'{name}.svg').write_bytes(picture.getvalue())
    return f'figures/{name}.svg'


# 00_start_here/00_2_figures_and_tables, cell 13
def mean_interval(values):
    """Mean of seeds and its 95% interval, (mean, low, high), by Student's t; one value has no interval (nan).

    The sample standard deviation is used. Seeds that all agree give an interval of width 0, which says no
    more than that.
    """
    from scipy.stats import sem, t  # takes half a second, and many notebooks need no interval

    values = [float(value) for value in values]
    if not values:
        raise ValueError('values is empty: give at least one number, one a seed')
    mean = reduce(add, values, 0.0) / len(values)
    half = t.ppf(0.975, len(values) - 1) * sem(values) if len(values) > 1 else float('nan')
    return mean, mean - half, mean + half


# 00_start_here/00_2_figures_and_tables, cell 13
def with_interval(values, digits=3):
    """`mean (low to high)` of `mean_interval` as text; the mean alone if all seeds agree, or there is one."""
    mean, low, high = (f'{round(value, digits) + 0.0:.{digits}f}' for value in mean_interval(values))  # no -0
    return mean if low == high else f'{mean} ({low} to {high})'


# 00_start_here/00_2_figures_and_tables, cell 15
def spread_labels(ax, gap=11):
    """Move the labels at line ends apart, as little as possible, until `gap` points are between them."""
    from scipy.optimize import isotonic_regression  # only drawing needs it, as above

    labels = [text for text in ax.texts if isinstance(text, Annotation) and text.get_label() == 'line end']
    labels.sort(key=lambda label: label.xy[1])
    ends = [ax.transData.transform(label.xy)[1] * 72 / ax.figure.dpi for label in labels]   # in points
    spaced = isotonic_regression([end - gap * i for i, end in enumerate(ends)]).x if labels else []
    for i, label in enumerate(labels):
        label.xyann = (6, spaced[i] + gap * i - ends[i])


# 00_start_here/00_2_figures_and_tables, cell 16
def plot_bands(ax, frame, x, y, arm):
    """Draw an arm: mean over seeds as a line, lowest to highest seed as a band, its name at the line's end.

    `frame` has a row for each arm, seed and x, with columns `arm`, `x`, `y`. After changing the limits
    call `spread_labels(ax)`.
    """
    rows = frame[frame['arm'] == arm]
    if rows.empty:
        raise ValueError(f'arm={arm!r} is not in the table; it has {sorted(set(frame["arm"]))}')
    seeds = rows.groupby(x)[y].agg(['mean', 'min', 'max'])
    ax.plot(seeds.index, seeds['mean'], color=arm_color(arm))
    ax.fill_between(seeds.index, seeds['min'], seeds['max'], color=arm_color(arm), alpha=0.2, linewidth=0)
    ink = [0.65 * part for part in to_rgb(arm_color(arm))]              # darker: text is thin
    ax.annotate(arm, (seeds.index[-1], seeds['mean'].iloc[-1]), xytext=(6, 0), textcoords='offset points',
                va='center', color=ink, fontsize='small', label='line end')
    spread_labels(ax)


# 00_start_here/00_2_figures_and_tables, cell 18
def plot_panels(history, arms, labels, title):
    """A figure with a panel for each column of `history` in `labels` (column: label of its axis)."""
    n_rows = -(-len(labels) // 2)
    fig, axes = plt.subplots(n_rows, 2, figsize=(10, 3.3 * n_rows), sharex=True, squeeze=False)
    for ax, (column, label) in zip(axes.flat, labels.items()):                # an odd panel stays empty
        for arm in arms:
            plot_bands(ax, history, 'step', column, arm)
        ax.set(ylabel=label, ylim=(0, None), xlim=(0, history['step'].max()))
        spread_labels(ax)
    for ax in axes[-1]:
        ax.set_xlabel('training step')
    fig.suptitle(title)
    return fig


# 00_start_here/00_2_figures_and_tables, cell 20
def book_results(section, experiment=None):
    """The book's values for a section, such as '12.3', and an experiment: rows of book_results.csv."""
    path = Path(files('agentrl')).parent / 'figures' / 'book_results.csv'
    book = pd.read_csv(path, dtype={'section': str})
    rows, known = book[book['section'] == section], list(book['section'].unique())
    if rows.empty:
        raise ValueError(f'section={section!r} has no results in the book; there are {known}')
    if experiment is None:
        return rows.reset_index(drop=True)
    known = list(rows['experiment'].unique())
    if experiment not in known:
        raise ValueError(f'experiment={experiment!r} is not in section {section}; there are {known}')
    return rows[rows['experiment'] == experiment].reset_index(drop=True)


# 00_start_here/00_2_figures_and_tables, cell 23
def beside_book(ours, section, experiment):
    """For each arm and metric: our mean over seeds, its 95% t interval, number of seeds, the book's value.

    `ours` has a row for each arm and seed, and columns `arm` and the metrics, named as in the book.
    """
    book = book_results(section, experiment)
    metrics = [metric for metric in book['metric'].unique() if metric in ours.columns]
    if not metrics or not set(ours['arm']) & set(book['arm']):
        raise ValueError(
            f'nothing to compare: ours has arms {list(ours["arm"].unique())}, columns {list(ours.columns)}; '
            f'the book has arms {list(book["arm"].unique())} and metrics {list(book["metric"].unique())}')
    values = book.set_index(['arm', 'metric'])['value']
    rows = []
    for arm in ours['arm'].unique():
        for metric in metrics:
            seeds = ours.loc[ours['arm'] == arm, metric].dropna()
            if len(seeds):
                value = values.get((arm, metric), float('nan'))
                rows.append((arm, metric, *mean_interval(seeds), len(seeds), value))
    return pd.DataFrame(rows, columns=['arm', 'metric', 'ours', 'low', 'high', 'seeds', 'book'])


# 00_start_here/00_2_figures_and_tables, cell 25
def side_by_side(compared):
    """The table of `beside_book` for reading: a row a metric; for each arm ours (interval) and the book's."""
    def show(value):
        return '' if pd.isna(value) else f'{round(value, 3) + 0.0:.3g}'

    ours = [show(row.ours) + (f' ({show(row.low)} to {show(row.high)})' if row.seeds > 1 else '')
            for row in compared.itertuples()]
    book = [show(value) for value in compared['book']]
    wide = compared.assign(ours=ours, book=book).pivot(index='metric', columns='arm', values=['ours', 'book'])
    return wide.swaplevel(axis=1)[list(compared['arm'].unique())].loc[compared['metric'].unique()].fillna('')
