import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.environment import EditBudgetEnv
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, make_trajectory
from agentrl.model import TinyAgent, sequence_log_probs
from agentrl.sampling import (
    CachedReader,
    PlainReader,
    rollout_batch,
    run_episodes,
    sample_groups,
    sample_next,
    sample_step,
)
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

TASKS = make_tasks("train")
TOK = build_tokenizer(make_tasks("all"))
MODEL = TinyAgent(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rollout(reader, order, noise, max_turns=4):
    episodes = [Episode(EditBudgetEnv(), TASKS[n], TOK, max_turns, 256) for n in order]
    run_episodes(reader(MODEL, len(order)), episodes, 1.0, noise[list(order)])
    return {n: make_trajectory(episode) for n, episode in zip(order, episodes, strict=True)}


@settings(max_examples=8)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True), st.integers(0, 100))
def test_an_episode_does_not_depend_on_its_company(order, seed):
    noise = torch.rand(10, 256, generator=seeded(seed), dtype=torch.float64)
    everyone, some = rollout(CachedReader, range(10), noise), rollout(PlainReader, order, noise)
    for n in order:
        assert torch.equal(everyone[n].ids, some[n].ids)
        torch.testing.assert_close(everyone[n].logp, some[n].logp, rtol=0, atol=1e-12)


def test_stored_log_probs_are_those_of_a_full_forward_pass_at_the_temperature():
    for temperature in (0.5, 1.0, 2.0):
        trajs = rollout_batch(MODEL, [EditBudgetEnv() for _ in range(4)], TASKS[:4], TOK, 3, temperature, seeded())
        for traj in trajs:
            logp = sequence_log_probs(MODEL, traj.ids[None], temperature)[0]
            torch.testing.assert_close(logp[traj.action_mask], traj.logp[traj.action_mask], rtol=0, atol=1e-12)


def test_calls_end_with_their_marker_or_at_the_limit():
    for traj in rollout_batch(MODEL, [EditBudgetEnv() for _ in range(20)], TASKS, TOK, 6, 1.0, seeded()):
        for k in range(traj.info["n_turns"]):
            call = traj.ids[(traj.owner == OWNER["policy"]) & (traj.turn == k)].tolist()
            assert TOK.call_end_id not in call[:-1]
            assert call[-1] == TOK.call_end_id or len(call) == MAX_CALL_TOKENS


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 1, exclude_max=True))
def test_sample_next_inverts_the_cdf(logits, u):
    logits = torch.tensor([logits], dtype=torch.float64)
    ids, logp = sample_next(logits, 1.0, torch.tensor([u], dtype=torch.float64))
    cdf = logits[0].softmax(-1).cumsum(-1).tolist()
    expected = next((n for n, c in enumerate(cdf) if c > u), len(cdf) - 1)
    assert ids.item() == expected
    assert logp.item() == pytest.approx(logits.log_softmax(-1)[0, expected].item(), abs=1e-12)


def test_a_word_ends_where_the_next_one_begins():
    logits = torch.zeros(1, 4, dtype=torch.float64)
    noise = [0.0, 0.25, 0.4, 0.5, 0.75, 0.99, 1.0]  # 1.0 stands for what rounding leaves above the last word
    ids = [sample_next(logits, 1.0, torch.tensor([u], dtype=torch.float64))[0].item() for u in noise]
    assert ids == [0, 1, 1, 2, 3, 3, 3]


class Fair:
    """A reader that finds all words equally likely, and keeps what it was given to read."""

    def __init__(self, n_rows, made):
        self.read = [[] for _ in range(n_rows)]
        made.append(self)

    def next_logits(self, new_ids):
        for row, ids in new_ids.items():
            self.read[row] += ids
        return torch.zeros(len(new_ids), len(TOK), dtype=torch.float64)


@pytest.fixture
def readers():
    """(a factory of fair readers, the readers that it has made)."""
    made = []
    return lambda model, n_rows: Fair(n_rows, made), made


def test_the_nth_word_of_an_episode_is_chosen_by_its_nth_uniform(readers):
    fair, made = readers
    noise = torch.rand(3, 256, generator=seeded(), dtype=torch.float64)
    trajs = rollout(fair, range(3), noise)
    for n, traj in trajs.items():
        said = traj.ids[1:][traj.action_mask]
        assert len(said) > 12 and said.tolist() == (noise[n, : len(said)] * len(TOK)).long().tolist()
        assert made[0].read[n] == traj.ids[: len(made[0].read[n])].tolist()  # all, once, in order


def test_a_batch_draws_a_row_of_uniforms_in_double_precision_for_each_episode(readers):
    fair, _ = readers
    envs = [EditBudgetEnv() for _ in range(3)]
    trajs = rollout_batch(MODEL, envs, TASKS[:3], TOK, 4, 1.0, seeded(5), reader=fair)
    again = rollout(fair, range(3), torch.rand(3, MODEL.max_len, generator=seeded(5), dtype=torch.float64))
    assert all(torch.equal(traj.ids, again[n].ids) for n, traj in enumerate(trajs))
    with pytest.raises(ValueError, match="shorter|longer"):
        rollout_batch(MODEL, envs, TASKS[:2], TOK, 4, 1.0, seeded())


def test_a_reader_with_a_row_too_many_is_refused():
    class Double(Fair):
        def next_logits(self, new_ids):
            return super().next_logits(new_ids).repeat(2, 1)

    with pytest.raises(ValueError, match=r"logits have shape \[2, .*noise \[1\]"):
        rollout(lambda model, n_rows: Double(n_rows, []), [0], torch.zeros(1, 256, dtype=torch.float64))


@pytest.mark.parametrize("sampler", [sample_groups, sample_step])
def test_every_draw_is_from_the_generator_that_is_given(sampler):
    state = torch.get_rng_state()
    sampler(MODEL, TASKS[:3], TOK, RLConfig(group_size=2, max_turns=1, prompts_per_step=2), seeded())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_cache_forgets_rows_once_a_third_of_them_is_done():
    reader = CachedReader(MODEL, 6)
    reader.next_logits({row: [row + 1] for row in range(6)})
    sizes = []
    for rows in ((0, 1, 2, 4, 5), (1, 2, 4, 5), (1, 4, 5), (4, 5), (4,)):
        logits = reader.next_logits({row: [7] for row in rows})
        sizes.append((len(reader.rows), len(logits)))
    assert [held for held, _ in sizes] == [6, 4, 4, 2, 1]


def test_hooks_and_settings_reach_the_sampler(readers):
    (fair, read), made = readers, []

    def env_factory(cfg):
        made.append(cfg)
        return EditBudgetEnv(cfg.max_turns)

    cfg = RLConfig(group_size=2, max_turns=2, prompts_per_step=3, temperature=0.5)
    groups = sample_groups(MODEL, TASKS[:2], TOK, cfg, seeded(), env_factory, n=3, reader=fair)
    assert made == [cfg] * 6 == [cfg] * len(groups) and [len(reader.read) for reader in read] == [6]
    assert max(traj.info["n_turns"] for traj in groups) == 2
    steps = sample_step(MODEL, TASKS, TOK, cfg, seeded(), env_factory, reader=fair)
    assert made == [cfg] * 12 and len(steps) == 6 and [len(reader.read) for reader in read] == [6, 6]
    traj = sample_groups(MODEL, TASKS[:1], TOK, cfg, seeded())[0]
    logp = sequence_log_probs(MODEL, traj.ids[None], 0.5)[0]
    torch.testing.assert_close(logp[traj.action_mask], traj.logp[traj.action_mask], rtol=0, atol=1e-12)


def test_groups_are_contiguous_and_names_differ():
    cfg = RLConfig(group_size=3, max_turns=1)
    trajs = sample_groups(MODEL, TASKS[:2], TOK, cfg, seeded())
    assert len(trajs) == 6 and len({TOK.decode(t.ids[1:7].tolist()) for t in trajs}) > 3
    fixed = sample_groups(MODEL, TASKS[:2], TOK, replace(cfg, fresh_names=False), seeded())
    assert [TOK.decode(t.ids[1:7].tolist()) for t in fixed] == [TASKS[0].issue] * 3 + [TASKS[1].issue] * 3


def test_a_step_draws_without_replacement():
    cfg = RLConfig(prompts_per_step=20, group_size=2, max_turns=1, fresh_names=False)
    issues = [TOK.decode(t.ids[1:7].tolist()) for t in sample_step(MODEL, TASKS, TOK, cfg, seeded())]
    assert sorted(set(issues)) == sorted(task.issue for task in TASKS) and len(issues) == 40
    with pytest.raises(ValueError, match="prompts_per_step=20.*5 tasks"):
        sample_step(MODEL, TASKS[:5], TOK, cfg, seeded())


def test_wrong_temperature_and_vocabulary():
    with pytest.raises(ValueError, match="temperature=0"):
        sample_next(torch.zeros(1, 2, dtype=torch.float64), 0, torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="vocabulary|words"):
        rollout_batch(TinyAgent(20, d=8, n_heads=2), [EditBudgetEnv()], TASKS[:1], TOK, 6, 1.0, seeded())


@pytest.mark.parametrize("temperature", [-1.0, 0.0, math.nan, math.inf])
def test_a_temperature_that_is_not_positive_is_named(temperature):
    with pytest.raises(ValueError, match="temperature="):
        sample_next(torch.zeros(1, 4), temperature, torch.zeros(1))
    with pytest.raises(ValueError, match="temperature="):
        rollout_batch(MODEL, [], [], TOK, 4, temperature, seeded())


def test_one_uniform_does_not_serve_four_rows():
    with pytest.raises(ValueError, match=r"logits have shape \[4, 3\], noise \[1\]"):
        sample_next(torch.zeros(4, 3), 1.0, torch.zeros(1))
    with pytest.raises(ValueError, match=r"noise has shape \[1, 256\]; allowed: \[2, N\]"):
        run_episodes(None, [None, None], 1.0, torch.zeros(1, 256))


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1])
def test_noise_outside_its_range_is_refused(bad):
    with pytest.raises(ValueError, match="noise goes from"):
        sample_next(torch.zeros(2, 3), 1.0, torch.tensor([0.5, bad]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_give_no_token(bad):
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(ValueError, match="logits of row 1"):
        sample_next(logits, 1.0, torch.full((3,), 0.5))


def test_a_policy_with_a_weight_that_is_nan_does_not_play():
    model = copy.deepcopy(MODEL)
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="weights of the policy"):
        sample_groups(model, TASKS[:1], TOK, RLConfig(group_size=2), seeded())


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_a_number_of_samples_below_one_is_refused(n):
    with pytest.raises(ValueError, match=f"n={n}"):
        sample_groups(MODEL, TASKS[:1], TOK, RLConfig(group_size=2), seeded(), n=n)
    with pytest.raises(ValueError, match="tasks is empty"):
        sample_groups(MODEL, [], TOK, RLConfig(group_size=2), seeded())


def test_logits_of_three_axes_are_named():
    with pytest.raises(ValueError, match=r"logits have shape \[1, 2, 3\]"):
        sample_next(torch.zeros(1, 2, 3, dtype=torch.float64), 1.0, torch.zeros(1, dtype=torch.float64))
