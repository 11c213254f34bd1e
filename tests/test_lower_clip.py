"""The study of the lower clip: arms that are what they are called, whole stored runs, batches shared by the pair."""

import pandas as pd
import pytest

from agentrl import lower_clip
from agentrl.arms import KEY, read_runs
from agentrl.lagged import LAGGED, OPTIMIZERS, WEIGHINGS
from agentrl.lower_clip import CLIP_KNOBS, KNOB_ARMS, LOWER_CLIP, LOWER_CLIP_ARMS, PAIR, train_lower_clip_arm

CHOSEN_ON = {0, 1, 2, 3}  # seeds on which setting and step size were chosen


def test_no_seed_was_used_to_choose_the_setting():
    assert len(set(LOWER_CLIP.seeds)) == 8 and CLIP_KNOBS.seeds == LOWER_CLIP.seeds
    assert not CHOSEN_ON & set(LOWER_CLIP.seeds)


def test_every_arm_departs_in_known_settings():
    assert not LOWER_CLIP_ARMS.keys() & KNOB_ARMS.keys()
    for arm, settings in (LOWER_CLIP_ARMS | KNOB_ARMS).items():
        assert settings.keys() <= LAGGED.keys() and settings != {}
        assert settings.get("weighing", "low 0.5") in WEIGHINGS
        assert settings.get("optimizer", "SGD") in OPTIMIZERS
        if "weighing" in settings:
            assert arm.startswith(settings["weighing"])
        if ", lag" in arm:  # updates, two a step
            assert settings["lag"] * 2 == int(arm.rsplit(" ", 1)[1])
    versions = {study.version(arm) for study in (LOWER_CLIP, CLIP_KNOBS) for arm in study.arms}
    assert len(versions) == len(LOWER_CLIP_ARMS) + len(KNOB_ARMS)


def test_an_arm_is_trained_with_its_settings(monkeypatch):
    called = []
    monkeypatch.setattr(lower_clip, "train_weighed", lambda *args: called.append(args))
    train_lower_clip_arm("no lag", 5, 1)
    train_lower_clip_arm("low 0", 6)
    assert [call[:3] for call in called] == [({"lag": 0}, 5, 1), ({"weighing": "low 0"}, 6, 0)]
    with pytest.raises(KeyError):
        train_lower_clip_arm("low 1")


@pytest.mark.parametrize("study", [LOWER_CLIP, CLIP_KNOBS], ids=lambda study: study.name)
def test_stored_runs_are_whole(study):
    heldout, history = read_runs(study, "heldout"), read_runs(study, "history")
    wanted = {(arm, 0, seed) for arm in study.arms for seed in study.seeds}
    assert wanted == {tuple(row) for row in heldout[KEY].values}
    for (arm, _, _), run in history.groupby(KEY):
        steps = (LAGGED | study.arms[arm])["steps"]
        assert run["step"].tolist() == list(range(steps))
        looks = run["own_pass_rate"].notna()
        assert run.loc[looks, "step"].tolist() == list(range(0, steps, 4))
    assert (heldout["episodes"] >= 256).all() and (history["episodes"] == 64).all()


def test_arms_of_a_seed_see_the_same_batches_until_the_sampler_has_trained():
    """With a sampler 16 steps old the first 17 batches are the base's, so they are the same in both arms."""
    history = read_runs(LOWER_CLIP, "history")
    same = ["pass_rate", "submit_rate", "tokens", "policy_tokens"]
    half, zero = (
        history[(history["arm"] == arm) & (history["step"] <= 16)].reset_index(drop=True)[[*same, "seed", "step"]]
        for arm in PAIR
    )
    pd.testing.assert_frame_equal(half, zero)
    later = history[history["step"] == 30].pivot(index="seed", columns="arm", values="policy_tokens")
    assert (later["low 0.5"] != later["low 0"]).all()
