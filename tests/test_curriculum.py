import pytest
import torch

from agentrl.arms import read_runs
from agentrl.base import make_rl_base
from agentrl.curriculum import CURRICULUM, CURRICULUM_ARMS, budget_of, check_budget, scheduled, train_stages
from agentrl.environment import make_env
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, train_rl

SMALL = {"prompts_per_step": 2, "group_size": 2}


def test_budget_of_stages_by_counting_steps_one_by_one():
    stages = [(2, 6), (3, 4), (1, 3)]
    one_by_one = [turns for n, turns in stages for _ in range(n)]
    assert [budget_of(stages)(step) for step in range(6)] == one_by_one
    assert budget_of(stages)(1000) == 3  # the last stage lasts


def test_each_step_samples_with_its_own_budget():
    tok, tasks = build_tokenizer(make_tasks("all")), make_tasks("train")
    policy, seen = make_rl_base(tok), []
    sample = scheduled(lambda step: seen.append(step) or (1 if step == 1 else 6))
    cfg, rng = RLConfig(**SMALL), torch.Generator().manual_seed(0)
    turns = [[traj.info["n_turns"] for traj in sample(policy, tasks, tok, cfg, rng, make_env)] for _ in range(3)]
    assert seen == [0, 1, 2]
    assert max(turns[1]) == 1 < max(turns[0])


def test_a_constant_schedule_is_the_sampler_itself():
    tok, tasks = build_tokenizer(make_tasks("all")), make_tasks("train")
    policy, cfg = make_rl_base(tok), RLConfig(**SMALL, max_turns=3)
    one, other = (
        sample(policy, tasks, tok, cfg, torch.Generator().manual_seed(1), make_env)
        for sample in (sample_step, scheduled(lambda step: 3))
    )
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("budget", [0, -1, 2.5, None])
def test_a_bad_budget_is_refused_by_name(budget):
    tok = build_tokenizer(make_tasks("all"))
    with pytest.raises(ValueError, match=f"max_turns={budget!r}"):
        train_rl(make_rl_base(tok), make_tasks("train"), tok, RLConfig(**SMALL), 1, sample=scheduled(lambda _: budget))


def test_stages_train_and_are_evaluated_under_the_last_budget():
    run = train_stages.__wrapped__([(1, 6), (1, 1)], RLConfig(**SMALL), 0, {"seed": 0, "samples": 1})
    assert [row["step"] for row in run["history"]] == [0, 1]
    assert run["history"][1]["turns"] == 1 == run["heldout"]["turns"]


@pytest.mark.parametrize("arm", CURRICULUM_ARMS)
def test_stored_runs_follow_their_schedule(arm):
    history = read_runs(CURRICULUM, "history").query("arm == @arm")
    budget = budget_of(CURRICULUM_ARMS[arm]["stages"])
    assert set(history["seed"]) >= set(CURRICULUM.seeds) and (history.groupby("seed").size() == 60).all()
    assert (history["turns"] <= history["step"].map(budget)).all()


def test_the_check_says_what_is_wrong():
    def unwritten(step):
        raise NotImplementedError

    assert check_budget(lambda step: 6 if step < 20 else 3).startswith("right")
    assert check_budget(lambda step: 6 if step <= 20 else 3) == ("not yet: step 20 (the first is 0) has 3 turns, not 6")
    assert check_budget(lambda step: 3).startswith("not yet: step 0")
    assert check_budget(unwritten).startswith("not written yet")
