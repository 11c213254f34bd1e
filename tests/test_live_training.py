from functools import partial
from itertools import islice

import pytest

from agentrl.arms import SEEDS, arm_results
from agentrl.base import make_rl_base
from agentrl.context import CONTEXTS, call_batch, context_step
from agentrl.live_training import KEPT, TURNED, LiveTraining, base_steps, explore_knobs, knob_runs
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl

SMALL = RLConfig(prompts_per_step=2, group_size=2, step_penalty=0.05, max_turns=3)
TOK = build_tokenizer(make_tasks("all"))


@pytest.fixture
def small():
    """A live training of two steps of few episodes."""
    live = LiveTraining()
    live.controls["steps"].value, live.controls["group_size"].value, live.controls["max_turns"].value = 2, 2, 3
    return live


def test_a_loop_that_yields_is_the_loop_of_training():
    assert list(base_steps(SMALL, steps=2)) == train_rl(make_rl_base(TOK), make_tasks("train"), TOK, SMALL, 2)
    sample = partial(context_step, context=CONTEXTS["keep 1"])
    plain = train_rl(make_rl_base(TOK), make_tasks("train"), TOK, SMALL, 1, sample=sample, prepare=call_batch)
    assert list(islice(base_steps(SMALL, "keep 1"), 1)) == plain


def test_a_run_fills_the_bar_and_changes_the_curve(small):
    before = small.picture.value
    small.run()
    assert (len(small.rows), small.bar.value, small.bar.max) == (2, 2, 2)
    assert small.note.value.endswith("done") and small.picture.value != before
    assert (small.train.disabled, small.stop.disabled) == (False, True)
    assert small.rows[0]["turns"] <= 3  # the slider's turns


def test_stop_ends_after_the_step_under_way(small):
    small.bar.observe(lambda change: small.stop.click(), "value")  # pressed when the first step is drawn
    small.run()
    assert len(small.rows) == 1 and small.note.value.endswith("stopped")


def test_all_knobs_of_the_panel_are_known():
    assert set(KEPT.values()) <= set(CONTEXTS)
    assert LiveTraining()._repr_mimebundle_()["text/plain"] == "Run this cell in JupyterLab to train here."


def test_stored_settings_are_those_of_the_arms():
    heldout, history = arm_results(["penalty 0.3"], SEEDS)
    behavior, curve = knob_runs("price of a call", "0.3")
    assert behavior["pass_rate"] == heldout["pass_rate"].mean() and len(curve) == len(history)
    for knob, settings in TURNED.items():
        assert len(settings) == 3 and all(len(knob_runs(knob, setting)[1]) == len(SEEDS) * 40 for setting in settings)


def test_moving_a_knob_changes_the_figure():
    explorer = explore_knobs()
    before = explorer.picture.value
    explorer.controls["place"].value = 2
    after = explorer.picture.value
    explorer.controls["knob"].value = "turns"
    assert len({before, after, explorer.picture.value}) == 3
