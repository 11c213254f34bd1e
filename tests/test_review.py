import pytest
import torch

from agentrl.arms import read_runs
from agentrl.base import make_rl_base
from agentrl.context import CONTEXTS, call_batch, context_groups
from agentrl.environment import make_env
from agentrl.review import (
    FIELDS,
    HISTORIES,
    REVIEW,
    REVIEW_ARMS,
    SITUATIONS,
    VIEWS,
    check_pair,
    late_rollout,
    no_history,
    pin_read,
    random_history,
    rehearsed_step,
)
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

TOK, TASKS = build_tokenizer(make_tasks("all")), make_tasks("train")
CFG = RLConfig(max_turns=12, group_size=2, prompts_per_step=2)


@pytest.fixture(scope="module")
def base():
    return make_rl_base(TOK)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def view_of(sample):
    return TOK.decode(sample.ids[: len(sample.ids) - int(sample.action_mask.sum())].tolist())


def test_the_history_counts_as_turns_but_is_not_trained_on(base):
    calls = HISTORIES["read, tests"](4)
    trajs = late_rollout(base, TASKS[:3], TOK, CFG, rng(), CONTEXTS["full"], calls)
    for traj in trajs:
        assert traj.info["n_turns"] == 4 + len(traj.samples) <= 12 and traj.info["stop"]
        assert traj.info["n_reads"] >= 1 and traj.info["n_tests"] >= 3
        assert [int(sample.turn[-1]) for sample in traj.samples] == list(range(4, traj.info["n_turns"]))
    batch, advantages = call_batch(trajs[:2], TOK, CFG)
    own = sum(int(sample.action_mask.sum()) for traj in trajs[:2] for sample in traj.samples)
    assert int(batch["action_mask"].sum()) == own
    assert not advantages[~batch["action_mask"]].any()


def test_without_a_history_it_is_the_context_sampler(base):
    ours = late_rollout(base, TASKS[:4], TOK, CFG, rng(), VIEWS["keep 3"], ())
    theirs = context_groups(base, TASKS[:4], TOK, CFG, rng(), make_env, n=1, context=VIEWS["keep 3"])
    assert [traj.ids.tolist() for traj in ours] == [traj.ids.tolist() for traj in theirs]
    assert all(torch.equal(a.logp, b.logp) for a, b in zip(ours, theirs, strict=True))


def test_masking_hides_the_read_but_not_the_last_three_observations(base):
    calls = HISTORIES["read, tests"](4)
    (full,) = late_rollout(base, TASKS[:1], TOK, CFG, rng(), CONTEXTS["full"], calls)
    (kept,) = late_rollout(base, TASKS[:1], TOK, CFG, rng(), VIEWS["keep 3"], calls)
    assert view_of(kept.samples[0]).count("<obs> </obs>") == 1
    assert view_of(full.samples[0]).count("<obs> </obs>") == 0


def test_pinning_keeps_what_the_last_read_showed(base):
    calls = ("read", "test", "read", "test", "test", "test", "test")
    (kept,) = late_rollout(base, TASKS[:1], TOK, CFG, rng(), VIEWS["keep 3"], calls)
    (pinned,) = late_rollout(base, TASKS[:1], TOK, CFG, rng(), VIEWS["keep 3 and the read"], calls)
    source = TOK.decode([int(t) for t, who, when in zip(kept.ids, kept.owner, kept.turn) if (who, when) == (3, 2)])
    assert source not in view_of(kept.samples[0]) and view_of(pinned.samples[0]).count(source) == 1


def test_pinning_is_masking_where_nothing_was_read_or_the_read_is_recent(base):
    for calls in (("test",) * 6, ("test",) * 4 + ("read",)):
        (traj,) = late_rollout(base, TASKS[:1], TOK, CFG, rng(), VIEWS["keep 3"], calls)
        rows = [row.tolist() for row in (traj.ids, traj.owner, traj.turn)]
        assert pin_read(*rows, len(calls), 3) == VIEWS["keep 3"](*rows, len(calls))


def test_groups_share_their_history(base):
    trajs = rehearsed_step(base, TASKS, TOK, CFG, rng(3), draw_history=random_history)
    assert len(trajs) == 4
    for group in (trajs[:2], trajs[2:]):
        assert len({traj.info["n_turns"] - len(traj.samples) for traj in group}) == 1


def test_random_histories_are_of_the_listed_kinds_and_lengths():
    drawn = {random_history(rng(seed)) for seed in range(300)}
    assert drawn == {kind(n) for kind in HISTORIES.values() for n in range(1, 9)}
    assert no_history(rng()) == ()


def test_situations_fit_their_budget():
    for max_turns, _, history, length in SITUATIONS:
        assert len(HISTORIES[history](length)) == length <= max_turns - 4 or history == "nothing"


@pytest.mark.parametrize("arm", REVIEW_ARMS)
def test_each_stored_run_was_reviewed_in_every_situation(arm):
    rows = read_runs(REVIEW, "heldout").query("arm == @arm")
    assert len(rows) == len(SITUATIONS) * rows["seed"].nunique() and set(rows["seed"]) >= set(REVIEW.seeds)
    assert set(rows[list(FIELDS)].itertuples(index=False, name=None)) == set(SITUATIONS)
    assert (rows["episodes"] == 160).all() and (rows["own_turns"] > 0).all()


def test_the_check_says_what_is_wrong():
    right = {
        "budget": ((12, "full", "nothing", 0), (6, "full", "nothing", 0)),
        "late state": ((12, "full", "read, tests", 8), (12, "full", "read, tests", 1)),
        "placeholders": ((12, "keep 3", "tests", 4), (12, "full", "tests", 4)),
        "forgetting": ((12, "keep 3", "read, tests", 4), (12, "full", "read, tests", 4)),
    }

    def unwritten(shift):
        raise NotImplementedError

    assert check_pair(right.get).startswith("right")
    assert check_pair((right | {"budget": right["late state"]}).get) == (
        "budget: the two differ in length, but should in max_turns alone"
    )
    assert "is not a pair of SITUATIONS" in check_pair((right | {"budget": ((7, "full", "nothing", 0),) * 2}).get)
    swapped = right | {"budget": right["budget"][::-1]}
    assert check_pair(swapped.get) == "budget: take max_turns=12 for the situation with the shift, not 6"
    assert check_pair((right | {"forgetting": right["placeholders"]}).get).startswith("forgetting: take history=")
    assert check_pair(unwritten).startswith("not written yet")
