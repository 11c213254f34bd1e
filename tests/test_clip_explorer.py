import numpy as np
import pytest

from agentrl.clip_explorer import (
    NO_CLIP,
    UPDATES,
    clip_figure,
    explore_batch,
    explore_clip,
    in_words,
    ratio_path,
    ratio_stats,
    token_objective,
)
from agentrl.explorer import picture_html


@pytest.mark.parametrize(
    "ratio, advantage, objective, slope",
    [(1.5, 1, 1.2, 0), (1.5, -1, -1.5, -1.5), (0.5, 1, 0.5, 0.5), (0.5, -1, -0.8, 0), (1, 0.5, 0.5, 0.5)],
)
def test_the_cases_of_the_clip(ratio, advantage, objective, slope):
    found = token_objective([ratio], advantage, 0.2)
    assert np.allclose(found, [[objective], [slope]])


def test_words_say_what_the_update_does():
    assert "no gradient" in in_words(1, 0.0, 1.5)
    assert in_words(1, 0.5, 0.5) == "the update makes it more probable, back from the wrong way"
    assert in_words(-1, -0.9, 0.9) == "the update makes it less probable"


def test_moving_a_token_changes_the_figure():
    explorer = explore_clip()
    before = explorer.picture.value
    explorer.controls["ratio"].value = 0.5
    expected = picture_html(clip_figure(0.5, 1.0, 0.2), "objective and slope of a token")
    assert before != explorer.picture.value == expected


@pytest.mark.slow
def test_a_batch_starts_at_ratio_one_and_the_clip_holds_it_back():
    advantages, path = ratio_path(0.2)
    assert path.shape == (UPDATES + 1, len(advantages)) and np.allclose(path[0], 1)
    assert ratio_stats(0, 0.2)["past the clip"] == 0 < ratio_stats(UPDATES, 0.2)["past the clip"]
    assert ratio_stats(UPDATES, NO_CLIP)["highest"] > ratio_stats(UPDATES, 0.2)["highest"]
    assert np.allclose(path[1], ratio_path(NO_CLIP)[1][1])  # the first update is not clipped
    explorer = explore_batch()
    before = explorer.picture.value
    explorer.controls["update"].value = 0
    assert before != explorer.picture.value
