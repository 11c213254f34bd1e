"""agentrl.plotting: stable files, fixed colours, honest intervals, the book's values beside ours."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb

from agentrl import plotting
from agentrl.plotting import (
    ARM_COLORS,
    OWNER_COLORS,
    SPARE_COLORS,
    arm_color,
    beside_book,
    book_results,
    figures_dir,
    mean_interval,
    plot_bands,
    plot_panels,
    save_figure,
    save_table,
    side_by_side,
    spread_labels,
    use_style,
    with_interval,
)

ROOT = Path(plotting.__file__).resolve().parents[1]
# The arms that stand in one figure, by section.
TOGETHER = [
    ["outcome (GRPO)", "token GAE", "turn GAE"],
    ["default", "penalty 0.05", "penalty 0.3", "max_turns 3"],
    ["full", "keep_obs 1"],
    ["default", "mixture"],
    ["default", "invalid_penalty 0.05", "max_turns 4", "early stop"],
    ["50/50 mixture", "mixture, equal token weight", "mixture, seq_mean"],
    ["default", "penalty 0.3", "wrong_submit -1", "truncation masked"],
    ["penalty 0.3", "cost annealed in", "four calls free"],
    ["truncation = 0", "truncation masked", "truncation dropped", "truncation bootstrapped"],
    ["truncation = 0", "truncation priced", "turns left shown", "turns left priced"],
    ["3 turns, 60 steps", "6 turns, then 3", "6 turns, 4, then 3"],
    ["as planned", "as deployed", "rehearsed", "rehearsed, read kept"],
    ["default", "fixed names", "fixed names, 3 turns", "all edits shown"],
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_FIGURES", str(tmp_path))
    with plt.rc_context():
        yield tmp_path
    plt.close("all")


def runs(**columns):
    return pd.DataFrame({"arm": ["default"] * 3, "seed": [0, 1, 2], **columns})


# Colours


@pytest.mark.parametrize("arms", TOGETHER, ids=lambda arms: arms[0])
def test_arms_of_one_figure_differ(arms):
    colors = [np.array(to_rgb(arm_color(arm))) for arm in arms]
    assert min(np.linalg.norm(a - b) for i, a in enumerate(colors) for b in colors[:i]) > 0.2


def test_every_arm_has_its_colour_and_spares_are_not_taken():
    assert all(to_hex(color) == color.lower() for color in [*ARM_COLORS.values(), *OWNER_COLORS.values()])
    assert not set(SPARE_COLORS) & set(ARM_COLORS.values())
    assert list(OWNER_COLORS) == ["template", "prompt", "policy", "tool"]


def test_an_unknown_arm_has_a_colour_that_lasts():
    assert arm_color("my own arm") == SPARE_COLORS[3893571727 % len(SPARE_COLORS)]  # its crc32, in any process
    assert {arm_color(f"arm {i}") for i in range(50)} == set(SPARE_COLORS)


# Files


def draw():
    use_style()
    fig, ax = plt.subplots()
    rows = pd.concat([runs(step=step, pass_rate=[0.1, 0.2 + step / 7, 0.3]) for step in range(4)])
    plot_bands(ax, rows, "step", "pass_rate", "default")
    ax.plot([0, 5], [0, 1], clip_on=True, marker="o", label="marker")
    return fig, rows


def test_a_figure_is_the_same_to_the_last_byte(folder):
    fig, rows = draw()
    assert save_figure(fig, "four_arms", rows) == "figures/four_arms.svg"
    first = (folder / "four_arms.svg").read_bytes()
    save_figure(draw()[0], "four_arms", rows)
    assert (folder / "four_arms.svg").read_bytes() == first
    assert b"<clipPath" in first and b"\r" not in first and b"<dc:date>" not in first
    pd.testing.assert_frame_equal(
        pd.read_csv(folder / "tables" / "four_arms.csv"), rows.reset_index(drop=True), rtol=1e-5
    )


def test_a_figure_is_the_same_in_another_process(folder, tmp_path):
    fig, rows = draw()
    save_figure(fig, "four_arms", rows)
    other = tmp_path / "other"
    other.mkdir()
    code = "import test_plotting as t; t.save_figure(*t.draw()[:1], 'four_arms', t.draw()[1])"
    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    env = {**os.environ, "AGENTRL_FIGURES": str(other), "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
    for name in ("four_arms.svg", "tables/four_arms.csv"):
        assert (other / name).read_bytes() == (folder / name).read_bytes()


def test_tables_are_rounded_and_plain(folder):
    table = pd.DataFrame({"arm": ["a, b", "ä"], "x": [1 / 3, -0.0], "y": [2.1e-06, float("nan")], "n": [160, 3]})
    assert save_table(table, "t") == "figures/tables/t.csv"
    text = (folder / "tables" / "t.csv").read_bytes().decode()
    assert text == 'arm,x,y,n\n"a, b",0.333333,2.1e-06,160\nä,0,,3\n'


def test_the_last_bits_of_a_sum_do_not_show(folder):
    save_table(pd.DataFrame({"x": [0.1 + 0.2]}), "one")
    save_table(pd.DataFrame({"x": [0.3]}), "two")
    assert (folder / "tables/one.csv").read_bytes() == (folder / "tables/two.csv").read_bytes()


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a b", "a.svg"])
def test_a_name_must_be_a_file_name(folder, name):
    with pytest.raises(ValueError, match="must be made of letters, digits"):
        save_figure(plt.figure(), name, runs())
    assert not list(folder.rglob("*.*"))


def test_the_folder_is_the_repository_s_unless_named(monkeypatch, folder):
    assert figures_dir() == folder
    monkeypatch.delenv("AGENTRL_FIGURES")
    assert figures_dir() == ROOT / "figures"


# Intervals


def test_interval_of_three_seeds_by_hand():
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / 3**0.5  # t with 2 degrees of freedom; the sample standard deviation is 1
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))


def test_interval_of_one_or_no_or_equal_values():
    assert mean_interval([0.5])[0] == 0.5 and np.isnan(mean_interval([0.5])[1:]).all()
    assert mean_interval(pd.Series([0.25, 0.25, 0.25])) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="values is empty"):
        mean_interval([])


@pytest.mark.filterwarnings("error")
def test_the_interval_of_one_value_is_not_asked_of_scipy_which_would_warn():
    assert np.isnan(mean_interval([0.5])[1:]).all()


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9), st.floats(-10, 10), st.floats(0.1, 10))
def test_interval_shifts_and_scales_with_the_values(values, shift, scale):
    expected = [scale * bound + shift for bound in mean_interval(values)]
    found = mean_interval([scale * value + shift for value in values])
    assert found == pytest.approx(expected, abs=1e-6)


def test_an_interval_as_text():
    assert with_interval([0.762, 0.787, 0.775]) == "0.775 (0.744 to 0.806)"
    assert with_interval([1.0, 2.0, 3.0], digits=1) == "2.0 (-0.5 to 4.5)"
    assert with_interval([-0.00001, -0.00001]) == "0.000"  # without a minus, and without an interval of width 0
    assert with_interval([0.99999, 1.00001]) == "1.000"
    assert with_interval([0.5]) == "0.500"


# Curves


def test_bands_show_the_range_of_seeds():
    fig, ax = plt.subplots()
    rows = pd.concat([runs(step=step, reads=[0.0, 1.0, 5.0]) for step in (0, 1)])
    plot_bands(ax, rows, "step", "reads", "default")
    assert ax.lines[0].get_ydata().tolist() == [2.0, 2.0]
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.0, 5.0)
    assert [text.get_text() for text in ax.texts] == ["default"] and ax.texts[0].xy == (1, 2.0)
    with pytest.raises(ValueError, match=r"arm='penalty' is not in the table; it has \['default'\]"):
        plot_bands(ax, rows, "step", "reads", "penalty")


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.001, 0.2, 0.5, 1.0]), min_size=1, max_size=6))
def test_labels_do_not_overlap_and_keep_their_order(ends):
    fig, ax = plt.subplots()
    rows = pd.DataFrame({"arm": [f"arm {i}" for i in range(len(ends))], "seed": 0, "step": 0, "y": ends})
    for arm in rows["arm"]:
        plot_bands(ax, rows, "step", "y", arm)
    ax.set_ylim(-1, 2)
    spread_labels(ax)
    labels = sorted(ax.texts, key=lambda label: label.xy[1])
    places = [ax.transData.transform(label.xy)[1] * 72 / fig.dpi + label.xyann[1] for label in labels]
    assert all(upper - lower > 11 - 1e-6 for lower, upper in zip(places, places[1:]))
    if len(labels) == 1:
        assert labels[0].xyann == pytest.approx((6, 0))
    plt.close(fig)


def test_axes_without_labels_are_left_alone():
    fig, ax = plt.subplots()
    ax.annotate("a note", (0, 0))
    spread_labels(ax)
    assert ax.texts[0].xyann == (0, 0)


# The book


def test_book_results_are_the_file_s():
    path = ROOT / "figures" / "book_results.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    found = book_results("12.3", "budget_and_penalty")
    expected = [row for row in rows if row["experiment"] == "budget_and_penalty"]
    assert found["arm"].tolist() == [row["arm"] for row in expected] and len(found) == 25
    assert found["value"].tolist() == [float(row["value"]) for row in expected]
    assert set(book_results("2.9")["section"]) == {"2.9"}


def test_unknown_section_or_experiment_names_what_exists():
    with pytest.raises(ValueError, match=r"section='12\.9' .*'12\.3'"):
        book_results("12.9")
    with pytest.raises(ValueError, match=r"experiment='budget' .*'budget_and_penalty'"):
        book_results("12.3", "budget")


def test_ours_beside_the_book():
    ours = pd.concat([runs(heldout_pass=[0.7, 0.8, 0.9], own=1.0), runs(heldout_pass=0.0).assign(arm="new")])
    table = beside_book(ours, "12.3", "budget_and_penalty")
    assert table.columns.tolist() == ["arm", "metric", "ours", "low", "high", "seeds", "book"]
    assert table[["arm", "metric", "seeds"]].values.tolist() == [
        ["default", "heldout_pass", 3],
        ["new", "heldout_pass", 3],
    ]
    assert table.loc[0, "ours"] == pytest.approx(0.8) and table.loc[0, "book"] == 0.762
    assert table.loc[0, ["low", "high"]].tolist() == pytest.approx(mean_interval([0.7, 0.8, 0.9])[1:])
    assert table.loc[1, "ours"] == 0.0 and np.isnan(table.loc[1, "book"])


@pytest.mark.parametrize("change", [{"arm": "arm"}, {"metric": "metric"}])
def test_nothing_in_common_with_the_book_is_an_error(change):
    ours = runs(**{change.get("metric", "heldout_pass"): 0.5}).assign(arm=change.get("arm", "default"))
    with pytest.raises(ValueError, match="nothing to compare"):
        beside_book(ours, "12.3", "budget_and_penalty")


def test_side_by_side_shows_means_intervals_and_the_book():
    ours = pd.DataFrame({"arm": ["default", "default", "mine"], "seed": [0, 1, 0], "turns": [3.0, 5.0, 2.0]})
    table = side_by_side(beside_book(ours, "12.3", "budget_and_penalty"))
    assert (
        table.loc["turns", ("default", "ours")].startswith("4 (") and table.loc["turns", ("default", "book")] == "3.88"
    )
    assert table.loc["turns", ("mine", "ours")] == "2" and table.loc["turns", ("mine", "book")] == ""


def test_panels_show_every_arm_and_quantity():
    frame = pd.DataFrame(
        {"arm": arm, "seed": 0, "step": step, "turns": step, "reads": 1.0, "tests": 2.0}
        for arm in ("default", "mine")
        for step in range(3)
    )
    labels = {"turns": "calls an episode", "reads": "reads", "tests": "tests"}
    fig = plot_panels(frame, ["default", "mine"], labels, "a title")
    assert [ax.get_ylabel() for ax in fig.axes] == [*labels.values(), ""]
    assert [len(ax.lines) for ax in fig.axes] == [2, 2, 2, 0]
    plt.close(fig)
