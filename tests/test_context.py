from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.context import (
    CONTEXTS,
    ContextEpisode,
    call_batch,
    call_sample,
    check_compaction,
    context_groups,
    context_rollout_batch,
    context_step,
    context_view,
    cut_head,
    evaluate_context,
    mask_observations,
    note_of,
    read_notes,
    summarise,
    tokens_read,
    with_samples,
)
from agentrl.environment import STOPS, EditBudgetEnv, make_env
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, collate
from agentrl.model import TinyAgent
from agentrl.packing import action_log_probs
from agentrl.sampling import PlainReader, rollout_batch, sample_groups, sample_step
from agentrl.tasks import apply_op, compact_source, infer_op, make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, group_batch

TASKS = make_tasks("train")
TOK = build_tokenizer(make_tasks("all"))
MODEL = TinyAgent(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32)
CFG = RLConfig(prompts_per_step=2, group_size=3)
each_context = pytest.mark.parametrize("name", CONTEXTS)


class Scripted(TinyAgent):
    """Makes plausible calls: all logits 0 but for words of calls, so that episodes read, test and edit."""

    def extend(self, new_ids, cache):
        logits, cache = super().extend(new_ids, cache)
        last = [ids[-1] for ids in new_ids if ids]
        return logits + torch.stack([NEXT[TOK.itos[token]] for token in last]), cache

    def forward(self, ids):
        return super().forward(ids) + torch.stack(
            [torch.stack([NEXT[TOK.itos[i]] for i in row]) for row in ids.tolist()]
        )


def bonus(*words):
    out = torch.zeros(len(TOK), dtype=torch.float64)
    out[TOK.encode(" ".join(words))] = 8.0
    return out


NEXT = {word: bonus("<call>") for word in TOK.itos}
NEXT["<call>"] = bonus("read", "test", "edit")
NEXT["edit"] = bonus("fix_boundary", "fix_operator")
NEXT |= {word: bonus("</call>") for word in ("read", "test", "submit", "fix_boundary", "fix_operator")}
ACTOR = Scripted(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rollout(sampler, model=ACTOR, n=8, max_turns=5, seed=0, **more):
    return sampler(model, [EditBudgetEnv() for _ in range(n)], TASKS[:n], TOK, max_turns, 1.0, seeded(seed), **more)


def played(calls, max_turns=9, task=TASKS[0]):
    episode = Episode(EditBudgetEnv(), task, TOK, max_turns, 256)
    for call in calls:
        ids = TOK.encode(f"<call> {call} </call>")
        episode.act(ids, [0.0] * len(ids))
    return episode.ids, episode.owner, episode.turn


# Views, against brute force


@st.composite
def records(draw):
    """A prompt, then turns of random length, of calls, template and tool tokens in any order; and a call number."""
    prompt, n_turns = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    lengths = draw(st.lists(st.integers(1, 7), min_size=n_turns, max_size=n_turns))
    turn = [-1] * prompt + [j for j, length in enumerate(lengths) for _ in range(length)]
    owner = [1] * prompt + draw(st.lists(st.sampled_from([0, 2, 3]), min_size=sum(lengths), max_size=sum(lengths)))
    ids = draw(st.lists(st.integers(0, 999), min_size=len(turn), max_size=len(turn)))
    return ids, owner, turn, draw(st.integers(0, n_turns))


@given(records(), st.none() | st.integers(0, 8))
def test_masking_is_its_definition(record, keep_obs):
    ids, owner, turn, k = record
    expected, rows = [], []
    for j in range(-1, k):
        age = k - j  # the last turn has age 1
        for token, who, when in zip(ids, owner, turn):
            if when == j and not (j >= 0 and who == 3 and keep_obs is not None and age > keep_obs):
                expected.append(token)
                rows.append((who, when))
    view = mask_observations(*record, keep_obs)
    assert context_view(*record, keep_obs) == view.ids == expected
    assert list(zip(view.owner, view.turn)) == rows


@given(records(), st.integers(1, 40))
def test_the_head_cut_is_its_definition(record, window):
    ids, owner, turn, k = record
    turns = [[t for t in range(len(ids)) if turn[t] == j] for j in range(k)]
    prompt = [t for t in range(len(ids)) if turn[t] == -1]
    if len(prompt) > window:
        with pytest.raises(ValueError, match=f"window={window}.*at least {len(prompt)}"):
            cut_head(*record, window)
        return
    while len(prompt) + sum(map(len, turns)) > window:
        turns.pop(0)
    kept = prompt + [t for positions in turns for t in positions]
    assert cut_head(*record, window) == ([ids[t] for t in kept], [owner[t] for t in kept], [turn[t] for t in kept])


@given(st.lists(st.sampled_from(["read", "test", "edit fix_return", "edit fix_init"]), max_size=6), st.data())
def test_the_summary_is_its_definition(calls, data):
    record, k = played(calls), data.draw(st.integers(0, len(calls)))
    ids, owner, turn = record
    words, edited = [], None
    for j in range(-1, k):
        call = [TOK.itos[i] for i, who, when in zip(ids, owner, turn) if when == j and who == 2]
        rest = [TOK.itos[i] for i, who, when in zip(ids, owner, turn) if when == j and who != 2]
        if j >= 0 and calls[j].startswith("edit") and edited is None:
            edited = calls[j].split()[1]
        if j >= 0 and calls[j] == "read" and j < k - 1:
            source = apply_op(TASKS[0].source, edited) if edited else TASKS[0].source
            rest = ["<obs>", *(infer_op(source) or "no error").split(), "</obs>"]
        words += call + rest
    view = summarise(*record, k, TOK)
    assert [TOK.itos[i] for i in view.ids] == words
    assert len(view.ids) == len(view.owner) == len(view.turn) and view.turn == sorted(view.turn)


@given(records(), st.sampled_from([name for name in CONTEXTS if name != "summary"]), st.data())
def test_a_view_does_not_see_the_future(record, name, data):
    ids, owner, turn, k = record
    end = sum(when < k for when in turn)
    garbled = [i if t < end else 1000 for t, i in enumerate(ids)]
    past = CONTEXTS[name](ids[:end], owner[:end], turn[:end], k)
    assert CONTEXTS[name](ids, owner, turn, k) == CONTEXTS[name](garbled, owner, turn, k) == past


def test_a_summary_does_not_see_the_future():
    ids, owner, turn = played(["read", "test", "read", "edit fix_init"])
    for k in range(5):
        end = sum(when < k for when in turn)
        assert summarise(ids, owner, turn, k, TOK) == summarise(ids[:end], owner[:end], turn[:end], k, TOK)


def test_notes_are_right_for_every_task():
    for task in make_tasks("all"):
        assert note_of(compact_source(task.source)) == task.edit
        assert note_of(compact_source(apply_op(task.source, task.edit))) == "no error"
    assert read_notes(*played(["test", "read", "read"]), 2, TOK) == {1: TOK.encode(TASKS[0].edit)}


def test_wrong_values_are_refused():
    record = played(["test"])
    for keep_obs in (-1, 0.5, True):
        with pytest.raises(ValueError, match="^keep_obs="):
            context_view(*record, 1, keep_obs)
    with pytest.raises(ValueError, match="k=-1"):
        context_view(*record, -1)
    with pytest.raises(ValueError, match="window=0"):
        cut_head(*record, 1, 0)


def test_rows_of_a_record_must_be_of_one_length():
    ids, owner, turn = played(["test"])
    for view in (
        lambda *record: mask_observations(*record, 1),
        lambda *record: read_notes(*record, 1, TOK),
        lambda *record: summarise(*record, 1, TOK),  # no call is old enough for a note: its own loop
    ):
        view(ids, owner, turn)
        with pytest.raises(ValueError, match="shorter|longer"):
            view(ids, owner, turn[:-1])


# Episodes and windows


# calls of any words, well formed or not, of one token to the longest that a sampler lets pass
any_calls = st.lists(
    st.sampled_from(["read", "test", "edit fix_init"]).map(lambda call: TOK.encode(f"<call> {call} </call>"))
    | st.lists(st.integers(0, len(TOK) - 1), min_size=1, max_size=MAX_CALL_TOKENS),
    min_size=1,
    max_size=7,
)


def act_all(episode, calls):
    """Make the calls as long as the episode runs; how many were made."""
    for n, ids in enumerate(calls):
        if episode.done:
            return n
        episode.act(ids, [-1.0] * len(ids))
    return len(calls)


@given(any_calls, st.integers(13, 120))
def test_with_nothing_dropped_episodes_are_cut_as_before(calls, max_len):
    plain = Episode(EditBudgetEnv(), TASKS[0], TOK, 6, max_len)
    ours = ContextEpisode(EditBudgetEnv(), TASKS[0], TOK, 6, max_len, CONTEXTS["full"])
    assert act_all(plain, calls) == act_all(ours, calls)
    assert (plain.ids, plain.owner, plain.turn, plain.logp) == (ours.ids, ours.owner, ours.turn, ours.logp)
    assert (plain.done, plain.info, plain.reward) == (ours.done, ours.info, ours.reward)


@given(any_calls, st.sampled_from(list(CONTEXTS)), st.integers(41, 120))
def test_the_window_is_about_what_is_seen(calls, name, max_len):
    """Against an episode without a window: it is cut at the first view that leaves no room for a call."""
    free = ContextEpisode(EditBudgetEnv(), TASKS[0], TOK, 6, 10_000, CONTEXTS[name])
    ours = ContextEpisode(EditBudgetEnv(), TASKS[0], TOK, 6, max_len, CONTEXTS[name])
    made = act_all(free, calls)
    views = [CONTEXTS[name](free.ids, free.owner, free.turn, k).ids for k in range(made + (not free.done))]
    last = next((k for k, view in enumerate(views) if len(view) + MAX_CALL_TOKENS > max_len), None)
    assert act_all(ours, calls) == (made if last is None else last)
    if last is None:
        assert (ours.ids, ours.info) == (free.ids, free.info)
        return
    assert ours.done and ours.info["stop"] == "context" and not ours.info["submitted"]
    assert not ours.reward  # a cut episode was not submitted
    kept = len(views[last]) <= max_len  # the last observation, which no call can follow
    upto = [
        t
        for t, (j, who) in enumerate(zip(free.turn, free.owner))
        if j < last - 1 or (j == last - 1 and (kept or who == OWNER["policy"]))
    ]
    assert ours.ids == [free.ids[t] for t in upto]
    assert len(ours.ids) == len(ours.owner) == len(ours.turn) == len(ours.logp)
    assert sum(logp == -1.0 for logp in ours.logp) == ours.owner.count(OWNER["policy"])


@each_context
def test_what_fills_the_window_exactly_is_kept(name):
    record = played(["test", "read"])
    seen = len(CONTEXTS[name](*record, 2).ids)
    for room, kept, stop in ((-1, False, "context"), (0, True, "context"), (5, True, "context"), (6, True, None)):
        episode = ContextEpisode(EditBudgetEnv(), TASKS[0], TOK, 9, max(seen + room, 21), CONTEXTS[name])
        if seen + room < 21:
            continue
        for call in ("test", "read"):
            episode.act(TOK.encode(f"<call> {call} </call>"), [0.0] * 3)
        assert (episode.ids == record[0], episode.info["stop"]) == (kept, stop)


def test_head_cut_keeps_a_turn_that_fills_its_window_exactly():
    record = played(["test", "read"])
    length = len(record[0])
    assert cut_head(*record, 2, length).ids == record[0]
    assert cut_head(*record, 2, length - 1).ids == record[0][:7] + record[0][15:]


@each_context
@pytest.mark.parametrize("max_len", [40, 47, 60, 256])
def test_no_call_is_cut_and_stop_reasons_add_up(name, max_len):
    model = Scripted(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32, max_len=max_len)
    trajs = rollout(context_rollout_batch, model, n=12, max_turns=12, context=CONTEXTS[name])
    stops = [traj.info["stop"] for traj in trajs]
    assert sum(stops.count(stop) for stop in STOPS) == len(trajs) == 12
    for traj in trajs:
        assert len(traj.samples) == traj.info["n_turns"] == int(traj.turn.max()) + 1
        for sample in traj.samples:
            call = sample.ids[1:][sample.action_mask].tolist()
            assert len(sample.ids) <= max_len
            assert call[-1] == TOK.call_end_id or len(call) == MAX_CALL_TOKENS


class Babbler(TinyAgent):
    """Never ends a call: any word but `</call>`, so each call is cut at MAX_CALL_TOKENS in its middle."""

    def extend(self, new_ids, cache):
        logits, cache = super().extend(new_ids, cache)
        logits[:, TOK.call_end_id] = -float("inf")
        return logits, cache


# {window: (calls made, is the last answer kept)}; a prompt has 7 tokens, a call 6, an answer 3 between 2
WHOLE = {13: (1, False), 17: (1, False), 18: (1, True), 23: (1, True), 24: (2, False), 28: (2, False), 29: (2, True)}
MIDDLE = dict.fromkeys(CONTEXTS, WHOLE) | {
    "keep 1": {
        13: (1, False),
        17: (1, False),
        18: (1, True),
        23: (1, True),
        24: (2, False),
        25: (2, False),
        26: (2, True),
    },
    "keep 0": {
        13: (1, False),
        14: (1, False),
        15: (1, True),
        20: (1, True),
        21: (2, False),
        22: (2, False),
        23: (2, True),
    },
}


@each_context
def test_an_episode_cut_in_the_middle_of_a_call(name):
    for max_len, (made, answered) in MIDDLE[name].items():
        model = Babbler(len(TOK), d=16, n_layers=1, n_heads=2, d_mlp=32, max_len=max_len)
        trajs = rollout(context_rollout_batch, model, n=3, max_turns=4, context=CONTEXTS[name])
        for traj in trajs:
            assert (traj.info["stop"], traj.info["n_turns"], traj.info["n_invalid"]) == ("context", made, made)
            assert len(traj.samples) == made and not traj.info["submitted"] and traj.reward == 0
            assert (traj.owner[-1] == OWNER["policy"]) == (not answered)
            for sample in traj.samples:  # whole: all that was sampled is trained on, though no call was finished
                assert len(sample.ids) <= max_len and TOK.call_end_id not in sample.ids[-MAX_CALL_TOKENS:]
                assert sample.action_mask[-MAX_CALL_TOKENS:].all() and sample.action_mask.sum() == MAX_CALL_TOKENS
        batch, advantages = call_batch(trajs, TOK, CFG)
        assert batch["action_mask"].sum() == 3 * made * MAX_CALL_TOKENS and not advantages.any()


def test_masking_outlives_a_record_longer_than_the_window():
    model = Scripted(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32, max_len=64)
    full, masked = (
        rollout(context_rollout_batch, model, max_turns=20, context=CONTEXTS[name]) for name in ("full", "head cut")
    )
    assert max(len(traj.ids) for traj in full) <= 64 < max(len(traj.ids) for traj in masked)
    assert {traj.info["stop"] for traj in full} == {"context"}
    assert "turn_budget" in {traj.info["stop"] for traj in masked}


# The sampler and its laws


@pytest.mark.parametrize("model", [MODEL, ACTOR], ids=["rubbish", "calls"])
def test_with_nothing_dropped_the_sampler_is_the_default(model):
    for name in ("full", "keep 2"):  # two turns: nothing is old enough to be dropped
        turns = 8 if name == "full" else 2
        default = rollout(rollout_batch, model, max_turns=turns)
        ours = rollout(context_rollout_batch, model, max_turns=turns, context=CONTEXTS[name])
        for a, b in zip(default, ours):
            assert torch.equal(a.ids, b.ids) and a.info == b.info and a.reward == b.reward
            torch.testing.assert_close(a.logp, b.logp, rtol=0, atol=1e-12)


@each_context
def test_each_sampled_token_is_trained_once_where_it_was_sampled(name):
    trajs = rollout(context_rollout_batch, seed=3, context=CONTEXTS[name])
    batch = collate([sample for traj in trajs for sample in traj.samples], TOK.pad_id)
    assert batch["action_mask"].sum() == sum(int(traj.action_mask.sum()) for traj in trajs)
    for traj in trajs:
        trained = torch.cat([sample.ids[1:][sample.action_mask] for sample in traj.samples])
        assert torch.equal(trained, traj.ids[1:][traj.action_mask])
    with torch.no_grad():
        for sample in (sample for traj in trajs for sample in traj.samples):
            logp = ACTOR(sample.ids[None])[0, :-1].log_softmax(-1).gather(1, sample.ids[1:, None])[:, 0]
            torch.testing.assert_close(logp[sample.action_mask], sample.logp[sample.action_mask], rtol=0, atol=1e-12)
            assert not sample.logp[~sample.action_mask].any()


def test_another_context_gives_other_probabilities():
    trajs = rollout(context_rollout_batch, context=CONTEXTS["keep 1"])
    other = [call_sample(traj, k, CONTEXTS["full"]) for traj in trajs for k in range(len(traj.samples))]
    batch = collate(other, TOK.pad_id)
    with torch.no_grad():
        logp = action_log_probs(MODEL, batch["ids"], batch["length"], batch["action_mask"])
    own = collate([sample for traj in trajs for sample in traj.samples], TOK.pad_id)
    with torch.no_grad():
        there = action_log_probs(MODEL, own["ids"], own["length"], own["action_mask"])
    gap = (logp[batch["action_mask"]] - there[own["action_mask"]]).abs()
    assert gap.max() > 1e-3 and (gap < 1e-12).any()  # first calls see the same in both


@each_context
def test_the_plain_reader_gives_the_same(name):
    made = []

    def plain_reader(model, n_rows):
        made.append(n_rows)
        return PlainReader(model, n_rows)

    cached, plain = (
        rollout(context_rollout_batch, n=4, context=CONTEXTS[name], **more) for more in ({}, {"reader": plain_reader})
    )
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(cached, plain)) and made[0] == 4


def test_a_reader_with_a_row_too_many_is_refused():
    class Double(PlainReader):
        def next_logits(self, new_ids):
            return super().next_logits(new_ids).repeat(2, 1)

    with pytest.raises(ValueError, match=r"logits have shape \[2, .*noise \[1\]"):
        rollout(context_rollout_batch, n=1, reader=Double)


def test_an_episode_does_not_depend_on_its_company():
    trajs = rollout(context_rollout_batch, n=8, context=CONTEXTS["summary"])
    alone = rollout(context_rollout_batch, n=1, context=CONTEXTS["summary"])
    assert torch.equal(trajs[0].ids, alone[0].ids)


def test_more_turns_than_a_window_of_uniforms_can_serve():
    model = Scripted(len(TOK), d=16, n_layers=2, n_heads=2, d_mlp=32, max_len=48)
    trajs = rollout(context_rollout_batch, model, n=2, max_turns=40, context=CONTEXTS["head cut"])
    assert max(int(traj.action_mask.sum()) for traj in trajs) > 48


# Training


def test_an_episode_counts_once_in_its_group():
    trajs = rollout(context_rollout_batch, n=6, context=CONTEXTS["keep 1"])
    for n, traj in enumerate(trajs):
        traj.samples, traj.reward = traj.samples[: 1 + n], 0.7 * (n % 3 == 0)  # 0.7: no number of single precision
    for std_normalize in (True, False):
        batch, advantages = call_batch(trajs, TOK, replace(CFG, std_normalize=std_normalize))
        per_sample = advantages.sum(1) / batch["action_mask"].sum(1)
        rewards = torch.tensor([traj.reward for traj in trajs], dtype=torch.float64).reshape(2, 3)
        expected = rewards - rewards.mean(1, keepdim=True)
        expected = (expected / rewards.std(1, keepdim=True) if std_normalize else expected).flatten()
        expected = torch.cat([row.expand(len(traj.samples)) for row, traj in zip(expected, trajs)])
        torch.testing.assert_close(per_sample, expected, rtol=0, atol=1e-12)
        assert not advantages[~batch["action_mask"]].any()


def test_hooks_draw_what_the_default_draws():
    ours, default = context_step(ACTOR, TASKS, TOK, CFG, seeded(2)), sample_step(ACTOR, TASKS, TOK, CFG, seeded(2))
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(ours, default))
    rng, other = seeded(2), seeded(2)
    context_groups(ACTOR, TASKS[:2], TOK, CFG, rng), sample_groups(ACTOR, TASKS[:2], TOK, CFG, other)
    assert torch.equal(rng.get_state(), other.get_state())
    batch, advantages = call_batch(ours, TOK, CFG)
    _, whole = group_batch(default, TOK, CFG)
    torch.testing.assert_close(advantages.sum(), whole.sum())
    with pytest.raises(ValueError, match="prompts_per_step=2.*the 1 tasks"):
        context_step(ACTOR, TASKS[:1], TOK, CFG, seeded())


def test_settings_and_environments_reach_the_sampler():
    made = []

    def env_factory(cfg):
        made.append(cfg)
        return make_env(cfg)

    cfg = replace(CFG, max_turns=2, temperature=0.5, fresh_names=False)
    groups = context_groups(ACTOR, TASKS[:2], TOK, cfg, seeded(), env_factory, context=CONTEXTS["keep 0"])
    assert [TOK.decode(traj.ids[1:7].tolist()) for traj in groups] == [TASKS[0].issue] * 3 + [TASKS[1].issue] * 3
    assert made == [cfg] * 6 and max(traj.info["n_turns"] for traj in groups) == 2
    for traj in groups:
        sample = traj.samples[-1]
        view = context_view(traj.ids.tolist(), traj.owner.tolist(), traj.turn.tolist(), len(traj.samples) - 1, 0)
        assert sample.ids[: len(view)].tolist() == view and sample.info == traj.info and sample.tok is TOK
        with torch.no_grad():
            logp = (ACTOR(sample.ids[None])[0, :-1] / 0.5).log_softmax(-1).gather(1, sample.ids[1:, None])[:, 0]
        torch.testing.assert_close(logp[sample.action_mask], sample.logp[sample.action_mask], rtol=0, atol=1e-12)
    steps = context_step(ACTOR, TASKS[:2], TOK, cfg, seeded(), env_factory, CONTEXTS["keep 0"])  # all tasks there are
    assert made == [cfg] * 12 and {TOK.decode(t.ids[1:7].tolist()) for t in steps} == {t.issue for t in TASKS[:2]}
    seen = [sample.ids.tolist() for traj in steps for sample in traj.samples]
    assert seen == [call_sample(traj, k, CONTEXTS["keep 0"]).ids.tolist() for traj in steps for k in (0, 1)]
    evaluate_context(ACTOR, TASKS[:2], TOK, 1, seeded(), cfg, CONTEXTS["full"], env_factory)
    assert made == [cfg] * 14


@pytest.mark.parametrize("max_len, max_turns, more", [(48, 7, 0), (48, 8, 6), (47, 7, 1)])
def test_uniforms_are_those_of_the_default_sampler_and_more_only_where_calls_may_outnumber_them(
    max_len, max_turns, more
):
    model, rng = Scripted(len(TOK), d=16, n_layers=1, n_heads=2, d_mlp=16, max_len=max_len), seeded(1)
    envs = [EditBudgetEnv() for _ in range(2)]
    context_rollout_batch(model, envs, TASKS[:2], TOK, max_turns, 1.0, rng)
    other = seeded(1)
    for n in (max_len, more):
        torch.rand(2, n, generator=other, dtype=torch.float64)
    assert torch.equal(rng.get_state(), other.get_state())
    with pytest.raises(ValueError, match="shorter|longer"):
        context_rollout_batch(model, envs, TASKS[:1], TOK, max_turns, 1.0, rng)


def test_tokens_read_by_hand():
    trajs = rollout(context_rollout_batch, n=1, max_turns=3)
    ids, owner, turn = (row.tolist() for row in (trajs[0].ids, trajs[0].owner, trajs[0].turn))
    seen = [sum(when < k for when in turn) for k in range(3)]
    called = [sum(when < k and who == 2 for when, who in zip(turn, owner)) for k in range(3)]
    assert tokens_read(trajs[0]) == (sum(seen), seen[2] - called[2])  # full: all but the calls is new once
    masked = rollout(context_rollout_batch, n=8, max_turns=5, context=CONTEXTS["keep 1"])
    for traj in masked:
        total, new, before = 0, 0, []
        for k in range(len(traj.samples)):
            view = context_view(traj.ids.tolist(), traj.owner.tolist(), traj.turn.tolist(), k, 1)
            same = next(
                (t for t, pair in enumerate(zip(view, before)) if pair[0] != pair[1]), min(len(view), len(before))
            )
            total, new, before = total + len(view), new + len(view) - same, traj.samples[k].ids.tolist()
        assert tokens_read(traj) == (total, new)


def test_evaluation_is_the_default_one_and_counts_reading():
    args = (ACTOR, TASKS[:2], TOK, 3)
    stats = evaluate_context(*args, seeded(4), CFG, CONTEXTS["full"])
    default = evaluate(*args, seeded(4), CFG)
    assert stats.items() >= default.items() and stats.keys() - default.keys() == {"tokens_read", "tokens_new"}
    trajs = context_groups(*args[:3], CFG, seeded(4), make_env, 3, CONTEXTS["keep 1"])
    masked = evaluate_context(*args, seeded(4), CFG, CONTEXTS["keep 1"])
    total, new = map(sum, zip(*map(tokens_read, trajs)))
    assert (masked["tokens_read"], masked["tokens_new"]) == (total / 6, new / 6)
    assert masked.items() >= behavior_stats(trajs).items()


def test_owners_of_a_sample_are_those_of_its_view():
    traj = rollout(context_rollout_batch, n=1, context=CONTEXTS["summary"])[0]
    for k, sample in enumerate(traj.samples):
        assert (sample.turn[1:][sample.action_mask] == k).all() and (sample.turn <= k).all()
        assert (sample.owner[1:][sample.action_mask] == OWNER["policy"]).all()
        assert (sample.owner[sample.turn == -1][1:] == OWNER["prompt"]).all()
        assert "trained on" in repr(sample) and sample.reward == traj.reward


def test_samples_may_start_at_a_later_call():
    episode = ContextEpisode(EditBudgetEnv(), TASKS[0], TOK, 6, 256, CONTEXTS["keep 1"])
    assert act_all(episode, [TOK.encode(f"<call> {call} </call>") for call in ("read", "test", "submit")]) == 3
    every, later = with_samples(episode).samples, with_samples(episode, 1).samples
    assert (len(every), len(later)) == (3, 2)
    assert [sample.ids.tolist() for sample in later] == [sample.ids.tolist() for sample in every[1:]]
    with pytest.raises(ValueError, match="shorter|longer"):  # a view has three rows
        call_sample(with_samples(episode), 0, lambda *record: (*CONTEXTS["full"](*record), []))


def test_the_vocabulary_must_fit():
    with pytest.raises(ValueError, match="words"):
        rollout(context_rollout_batch, TinyAgent(20, d=8, n_heads=2))


# The exercise


def compaction(ids, owner, turn, k, tok, last_read=max, age=1):
    notes = read_notes(ids, owner, turn, k - age, tok)
    note = notes[last_read(notes)] if notes else None
    shown = tok.encode("<obs>") + note + tok.encode("</obs>") if note else []
    return [i for i, j in zip(ids, turn) if j == -1] + shown + [i for i, j in zip(ids, turn) if j == k - 1 >= 0]


def test_the_exercise_knows_right_from_wrong():
    assert check_compaction(compaction).startswith("Right")
    wrong = [
        lambda *args: compaction(*args, last_read=min),
        lambda *args: compaction(*args, age=0),
        lambda ids, *rest: ids,
        lambda ids, owner, turn, k, tok: context_view(ids, owner, turn, k, 1),
    ]
    for view in wrong:
        assert check_compaction(view).startswith("Not yet")

    def unwritten(*args):
        raise NotImplementedError

    assert check_compaction(unwritten).startswith("not written yet")


def test_views_before_the_first_call_are_refused():
    for view in (lambda: cut_head([1], [1], [-1], -1, 8), lambda: mask_observations([1], [1], [-1], -1)):
        with pytest.raises(ValueError, match="k=-1 must be"):
            view()


def test_a_trajectory_of_calls_knows_its_words():
    assert all(traj.tok is TOK for traj in rollout(context_rollout_batch, n=2))
