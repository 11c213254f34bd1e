"""The lab's parts by hand and against slow derivations, and its table against itself."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl import credit_lab
from agentrl.credit_lab import (
    CALL_KINDS,
    LAB_COSTS,
    LabConfig,
    LabEpisode,
    call_kind,
    call_means,
    call_probability,
    continuation_estimates,
    cost_rewards,
    critic_estimates,
    distinct_values,
    group_estimates,
    lab_calls,
    lab_path,
    lab_results,
    lab_rng,
    lab_task,
    measure_calls,
    minus_group_mean,
    returns_from,
    summarize_estimates,
    true_advantage,
)
from agentrl.critic import batch_values, make_critic
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import collate
from agentrl.model import TinyAgent
from agentrl.sampling import rollout_batch
from agentrl.step_groups import step_advantages
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.versions import code_version

TASKS = make_tasks()
TOK = build_tokenizer(TASKS)
MODEL = TinyAgent(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32, seed=3)
SMALL = LabConfig(group=8, whole=2, truth=8, siblings=3)


def ended(passed, calls):
    return SimpleNamespace(info={"hidden_pass": passed, "n_turns": calls})


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def episodes(n, max_turns=4):
    rng = torch.Generator().manual_seed(0)
    return rollout_batch(MODEL, [EditBudgetEnv() for _ in range(n)], TASKS[:n], TOK, max_turns, 1.0, rng)


@pytest.mark.parametrize(
    "before, call, kind",
    [
        ([], "read", ("read", False)),
        ([], "edit fix_boundary", ("right edit", False)),
        ([], "edit fix_init", ("wrong edit", False)),
        (["edit fix_init"], "edit fix_boundary", ("refused edit", False)),
        (["edit fix_boundary"], "edit fix_boundary", ("refused edit", True)),
        (["edit fix_boundary"], "test", ("test", True)),
        (["edit fix_boundary"], "submit", ("submit", True)),
        (["edit fix_init"], "submit", ("submit", False)),
        ([], "edit", ("malformed", False)),
    ],
)
def test_kinds_of_calls(before, call, kind):
    env = EditBudgetEnv()
    env.reset(options={"task": TASKS[1], "max_turns": 6})
    for earlier in before:
        env.step(f"<call> {earlier} </call>")
    assert call_kind(env, f"<call> {call} </call>") == kind and kind[0] in CALL_KINDS


def test_returns_count_only_what_is_still_to_come():
    finished = [ended(True, 4), ended(False, 2), ended(True, 2)]
    assert returns_from(0, finished, 0.1).tolist() == pytest.approx([0.6, -0.2, 0.8])
    assert returns_from(2, finished, 0.1).tolist() == pytest.approx([0.8, 0.0, 0.0])


def test_the_true_advantage_by_hand():
    before, after = [ended(True, 2), ended(False, 2)], [ended(True, 3), ended(True, 2)]
    value, error = true_advantage(1, -0.1, before, after, 0.1)
    assert value == pytest.approx(-0.1 + (0.9 + 0.0) / 2 - (0.9 - 0.1) / 2)
    assert error == pytest.approx(((0.5 + 0.405) / 2) ** 0.5)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=3, max_size=3), min_size=1, max_size=5))
def test_group_means_leave_out_the_absent(groups):
    mine = [float(n) for n in range(len(groups))]
    expected = []
    for own, theirs in zip(mine, groups, strict=True):
        all_of_them = [own, *(x for x in theirs if x is not None)]
        expected.append(own - sum(all_of_them) / len(all_of_them))
    theirs = torch.tensor([[float("nan") if x is None else x for x in group] for group in groups]).double()
    assert minus_group_mean(doubles(*mine), theirs).tolist() == pytest.approx(expected, abs=1e-12)


def test_group_estimates_are_those_of_sections_9_1_and_7_4():
    """With all others as siblings there is one possible group, and it can be judged as a batch."""
    keys = [["s", "a", "b"], ["s", "a"], ["s", "c", "b"], ["s"]]
    passed = [True, False, False, True]
    group = [LabEpisode(ended(ok, len(names)), [], [], names) for ok, names in zip(passed, keys, strict=True)]
    cfg, cost = LabConfig(siblings=3), 0.1
    to_go = [[ok - cost * (len(names) - k) for k in range(len(names))] for ok, names in zip(passed, keys, strict=True)]
    flat = step_advantages(sum(to_go, []), sum(keys, []), std_normalize=False).tolist()
    whole = doubles(*(returns[0] for returns in to_go))
    place = 0
    for m, names in enumerate(keys):
        for i in range(len(names)):
            found = group_estimates(group, m, i, 4 * [group[m].traj], cost, cfg, lab_rng(cfg, "test"))
            assert found["step groups"].tolist() == pytest.approx(4 * [flat[place]], abs=1e-12)
            assert found["outcome"].tolist() == pytest.approx(4 * [(whole[m] - whole.mean()).item()], abs=1e-12)
            torch.testing.assert_close(found["outcome + step"], found["outcome"] + found["step groups"])
            place += 1


def test_siblings_are_drawn_without_replacement_and_never_the_episode_itself():
    group = [LabEpisode(ended(n == 0, 1), [], [], ["s"]) for n in range(8)]
    cfg = LabConfig(siblings=7)
    found = group_estimates(group, 0, 0, 20 * [group[0].traj], 0.0, cfg, lab_rng(cfg, "test"))
    assert found["outcome"].tolist() == pytest.approx(20 * [7 / 8])


def test_costs_stand_at_the_last_token_of_each_call():
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    turn = torch.tensor([[-1, 0, 0, 0, 1, 1, 2], [-1, -1, 0, -1, -1, -1, -1]])
    rewards = cost_rewards({"action_mask": mask, "turn": turn, "reward": doubles(1.0, 0.0)}, 0.1)
    torch.testing.assert_close(rewards, torch.tensor([[0, -0.1, 0, 0, -0.1, 0.9], [0, -0.1, 0, 0, 0, 0]]).double())


def test_costs_add_up_to_the_calls_of_real_episodes():
    trajs = episodes(12)
    rewards = cost_rewards(collate(trajs, TOK.pad_id), 0.05)
    expected = [traj.reward - 0.05 * traj.info["n_turns"] for traj in trajs]
    assert rewards.sum(1).tolist() == pytest.approx(expected)
    torch.testing.assert_close(rewards.sum(1), returns_from(0, trajs, 0.05))


def test_means_over_calls():
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    turn = torch.tensor([[-1, 0, 0, 0, 1, 1, 2], [-1, -1, 0, -1, -1, -1, -1]])
    tokens = torch.tensor([[1.0, 2, 9, 3, 4, 8], [7.0, 6, 7, 7, 7, 7]])
    means = call_means(tokens, {"action_mask": mask, "turn": turn})
    assert means.tolist()[0] == [1.5, 3.5, 8.0] and means.tolist()[1][0] == 6.0 and means[1, 1:].isnan().all()


def test_equal_rows_are_valued_once_and_alike():
    critic, trajs = make_critic(MODEL), episodes(5)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    batch = collate([trajs[n] for n in (0, 3, 0, 1, 2, 3, 4, 3)], TOK.pad_id)
    seen = []
    critic.trunk.tokens.register_forward_hook(lambda layer, ids, out: seen.append(ids[0].shape[0]))
    values = distinct_values(critic, batch)
    assert sum(seen) == 5
    kept = batch["action_mask"]
    torch.testing.assert_close(values[kept], batch_values(critic, batch)[kept], rtol=0, atol=1e-12)


def test_with_lambda_1_the_critic_is_a_baseline(monkeypatch):
    critic = make_critic(MODEL)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(credit_lab, "lab_critic", lambda cost, n: critic)
    monkeypatch.setattr(credit_lab, "lab_policy", lambda: (TOK, MODEL))
    trajs = episodes(6)
    found = critic_estimates({2: trajs[:3], 5: trajs[3:]}, 0.05)
    assert list(found) == [2, 5]
    batch = collate(trajs, TOK.pad_id)
    values = batch_values(critic, batch)
    for n, traj in enumerate(trajs):
        for k in range(traj.info["n_turns"]):
            start = (batch["action_mask"][n] & (batch["turn"][n, 1:] == k)).nonzero()[0, 0]
            expected = returns_from(k, [traj], 0.05).item() - values[n, start].item()
            assert found[2 if n < 3 else 5]["turn GAE 1"][n % 3, k].item() == pytest.approx(expected)


def test_estimates_from_continuations():
    before, after = torch.arange(36.0).double(), 2 * torch.arange(36.0).double()
    found = continuation_estimates(0.5, before, after)
    assert found["MC 4"].shape == (9,) and found["MC 9"].tolist() == pytest.approx([0.5 + 4 + 9 * n for n in range(4)])


def test_summaries_by_hand():
    row = summarize_estimates(doubles(1.0, -1.0, 0.0, 2.0), doubles(0.0, 1.0))
    expected = {"mean_1": 0.0, "mean_2": 1.0, "fresh_1": 0.0, "fresh_2": 1.0}
    assert row == pytest.approx(expected | {"var": 5 / 3, "draw": 1.0, "up": 0.5, "down": 0.25})


def test_halves_hold_whole_fours_and_nines():
    with pytest.raises(ValueError, match="replays=36.*72"):
        LabConfig(replays=36)


@pytest.fixture
def small_lab(monkeypatch):
    critic = make_critic(MODEL)
    monkeypatch.setattr(credit_lab, "lab_critic", lambda cost, n: critic)
    monkeypatch.setattr(credit_lab, "lab_policy", lambda: (TOK, MODEL))
    credit_lab.lab_group.cache_clear()
    yield
    credit_lab.lab_group.cache_clear()


def test_a_call_is_measured_alike_whatever_else_is_measured(small_lab):
    (m, calls), *_ = lab_calls(0, SMALL)
    together = pd.DataFrame(measure_calls(0, m, calls, SMALL))
    assert len(together) == len(calls) * len(LAB_COSTS) * 10
    for k in calls[:2]:
        alone = pd.DataFrame(measure_calls(0, m, [k], SMALL))
        rows = together[together["call"] == k].reset_index(drop=True)
        numbers = alone.select_dtypes("number").columns
        assert (alone["method"] == rows["method"]).all()
        np.testing.assert_allclose(alone[numbers], rows[numbers], rtol=0, atol=1e-12)


def test_probabilities_of_calls_are_those_at_which_they_were_sampled(small_lab):
    for episode in credit_lab.lab_group(0, SMALL):
        for k, text in enumerate(episode.texts):
            logp = episode.traj.logp[episode.traj.action_mask & (episode.traj.turn[1:] == k)].sum()
            assert call_probability(episode.cuts[k], text) == pytest.approx(logp.exp().item(), rel=1e-9)


def test_each_cut_has_its_own_draws_and_a_call_and_its_fresh_calls_share_their_siblings(small_lab, monkeypatch):
    drawn = []

    def recorded(cfg, *what):
        drawn.append(what)
        return lab_rng(cfg, *what)

    monkeypatch.setattr(credit_lab, "lab_rng", recorded)
    measure_calls(0, 0, [0, 1], SMALL)
    counts = Counter(drawn)
    assert counts["play on", 0, 0, 0] == counts["play on", 0, 0, 1] == counts["play on", 0, 0, 2] == 1
    assert counts["siblings", 0, 0, 0] == counts["siblings", 0, 0, 1] == 2 * len(LAB_COSTS)


def test_only_one_malformed_call_more_is_measured(small_lab):
    chosen = lab_calls(0, SMALL)
    assert [m for m, _ in chosen[:2]] == [0, 1] and len(chosen) <= 3
    assert all(len(calls) == 1 for _, calls in chosen[2:])


def test_results_of_other_code_are_measured_again(tmp_path, monkeypatch):
    measured = []

    def fake(n):
        measured.append(n)
        return [{"task": n, "truth": 1 / 3}]

    monkeypatch.setattr(credit_lab, "lab_task", fake)
    monkeypatch.setattr(credit_lab, "lab_path", lambda: tmp_path / "data" / "lab.csv")
    table = lab_results(jobs=1)
    assert list(table.columns) == ["task", "truth"] and sorted(measured) == list(range(20))
    lab_results(jobs=1)
    assert len(measured) == 20
    monkeypatch.setattr(credit_lab, "code_version", lambda *_: "another")
    lab_results(jobs=1)
    assert len(measured) == 40


def test_the_stored_table_is_of_this_code_and_complete():
    """If this fails, code that the lab depends on has changed: `make figures` measures it again."""
    table = pd.read_csv(lab_path())
    assert set(table["version"]) == {code_version(lab_task)}
    calls = table.groupby(["task", "episode", "call", "cost"])
    assert (calls.size() == 10).all() and (calls["truth"].nunique() == 1).all()
    assert table.drop(columns="version").notna().all(axis=None)
    whole = table[table["whole"]].groupby(["task", "episode"])["call"]
    assert len(whole) == 60 and (whole.max() + 1 == whole.nunique()).all()
    assert (table["error"] < 0.03).all() and set(table["kind"]) <= set(CALL_KINDS)


def test_methods_that_must_agree_on_the_same_replays_do():
    """Turn GAE with lambda 1 follows what MC says; MC with 4 and with 9 have one mean; outcome is 7/8 of it."""
    table = pd.read_csv(lab_path())
    follows = {
        (method, half): (rows[f"mean_{half}"] - rows[f"fresh_{half}"]).to_numpy()
        for method, rows in table.groupby("method")
        for half in (1, 2)
    }
    for half in (1, 2):
        exact = follows["MC 9", half]
        np.testing.assert_allclose(follows["MC 4", half], exact, atol=1e-4)
        np.testing.assert_allclose(follows["turn GAE 1", half], exact, atol=1e-4)
        np.testing.assert_allclose(follows["outcome", half], 7 / 8 * exact, atol=1e-4)


def test_continuations_are_unbiased_against_the_independent_truth():
    rows = pd.read_csv(lab_path()).query("method == 'MC 9'")
    off = (rows["mean_1"] + rows["mean_2"]) / 2 - rows["truth"]
    noise = rows["var"] / 8 + rows["error"] ** 2
    assert 0.5 < (off**2).mean() / noise.mean() < 1.5
    assert abs(off.mean()) < 4 * noise.sum() ** 0.5 / len(rows)
