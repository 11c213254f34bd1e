"""Zombies counted on the real line, and a queue model that agrees with a walk in small steps of time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.model import TinyAgent
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.zombies import Queue, QueueConfig, advance, happen, queue_hours, queue_means, run_zombie_arm

pytestmark = pytest.mark.timeout(60)
TOK = build_tokenizer(make_tasks("all"))
POLICY = TinyAgent(len(TOK), n_layers=1, d=32)


@pytest.mark.parametrize(
    "server, client, expected",
    [  # started, retries, peak, cancelled, unused, answered, tokens for nobody
        ("decodes on", "short limit, 2 retries", (12, 6, 9, 0, 9, 0, 36)),
        ("decodes on", "short limit, 0 retries", (6, 0, 3, 0, 3, 0, 12)),
        ("notices", "short limit, 0 retries", (6, 0, 3, 3, 3, 0, 0)),
        ("notices", "long limit, 0 retries", (6, 0, 3, 0, 0, 3, 0)),
    ],
)
def test_what_the_engine_counts(server, client, expected):
    counts = run_zombie_arm(POLICY, TOK, server, client, samples=3, n_tokens=4)
    names = ("started", "retries", "peak", "cancelled", "unused", "answered", "tokens_for_nobody")
    assert tuple(counts[name] for name in names) == expected
    assert counts["wasted"] == counts["tokens_for_nobody"] / counts["tokens"]


def in_small_steps(cfg, seconds, dt=0.01):
    """The model with sigma 0 and tool_seconds 0, by brute force: (answers, started, on the engine)."""
    requests = [[1.0, 0.0, 0, True] for _ in range(cfg.samples)]  # work left, begin, tries, has a reader
    coming, answers, started = [], 0, cfg.samples
    for step in range(1, round(seconds / dt) + 1):
        now, share = step * dt, cfg.capacity * dt / max(1, len(requests))
        for request in requests:
            request[0] -= share
        for request in [r for r in requests if r[0] <= 1e-9]:
            requests.remove(request)
            if request[3]:
                answers += 1
                coming.append((now, 0))
        for request in list(requests):
            if request[3] and now - request[1] >= cfg.timeout - 1e-9:
                request[3] = False
                if cfg.notices:
                    requests.remove(request)
                retry = request[2] < cfg.retries
                coming.append((now + 0.5 * 2 ** request[2], request[2] + 1) if retry else (now, 0))
        for event in [event for event in coming if event[0] <= now + 1e-9]:
            coming.remove(event)
            requests.append([1.0, now, event[1], True])
            started += 1
    return answers, started, len(requests)


@pytest.mark.parametrize("notices", [False, True])
@pytest.mark.parametrize("capacity, timeout, retries, samples", [(0.1, 4.0, 2, 1), (0.5, 7.0, 1, 3), (1.0, 2.5, 0, 2)])
def test_the_events_agree_with_small_steps(capacity, timeout, retries, samples, notices):
    cfg = QueueConfig(capacity, timeout, retries, notices, sigma=0.0, samples=samples, tool_seconds=0.0)
    queue = Queue(cfg, seed=0)
    while queue.now < 60.3:
        _, ended, event = advance(queue, 60.3)
        if queue.now < 60.3:
            happen(queue, ended, event)
    answers, started, left = in_small_steps(cfg, 60.3)
    assert abs(queue.counts["answers"] - answers) <= 1
    assert abs(queue.counts["started"] - started) <= 1
    assert abs(len(queue.active) - left) <= 1


@settings(max_examples=30)
@given(st.floats(0.01, 5), st.floats(0.5, 50), st.integers(0, 3), st.booleans(), st.floats(0, 2), st.integers(1, 9))
def test_readers_and_zombies_add_up(capacity, timeout, retries, notices, sigma, samples):
    queue = Queue(QueueConfig(capacity, timeout, retries, notices, sigma, samples, tool_seconds=1.0), seed=1)
    for _ in range(200):
        _, ended, event = advance(queue, float("inf"))
        happen(queue, ended, event)
        readers = [sample for sample in queue.active.values() if sample is not None]
        assert len(readers) == len(set(readers)) <= samples
        assert queue.zombies == len(queue.active) - len(readers) and (not notices or queue.zombies == 0)
    counts = queue.counts
    assert counts["useful"] <= capacity * queue.now + 1e-6 and counts["started"] >= counts["answers"] + counts["lost"]


def test_one_patient_sample_gets_all_of_the_engine():
    cfg = QueueConfig(0.1, timeout=1e6, sigma=0.0, samples=1, tool_seconds=0.0)
    hour = queue_hours(cfg, hours=2)[1]
    assert hour["answers"] == pytest.approx(360, abs=1) and hour["wasted"] == 0 and hour["duplicates"] == 0
    assert hour["active"] == pytest.approx(1.0) and hour["unread"] == pytest.approx(0, abs=0.01)


def test_hopeless_requests_come_as_often_as_the_limits_say():
    """Three attempts take 600 + 0.5 + 600 + 1 + 600 s; two of them are duplicates."""
    means = queue_means(QueueConfig(1e-4, sigma=0.0), hours=30)
    assert means["started"] == pytest.approx(128 * 3 * 3600 / 1801.5, rel=0.01)
    assert means["duplicates"] == pytest.approx(means["started"] * 2 / 3, rel=0.01) and means["answers"] == 0


def test_seeds_decide_and_nothing_else():
    cfg = QueueConfig(0.22, samples=16)
    random.seed(7)
    first = queue_hours(cfg, hours=2, seed=3)
    random.seed(8)
    assert queue_hours(cfg, hours=2, seed=3) == first != queue_hours(cfg, hours=2, seed=4)


@pytest.mark.parametrize(
    "name, value",
    [
        ("capacity", 0),
        ("capacity", float("nan")),
        ("timeout", -600),
        ("timeout", float("inf")),
        ("retries", -1),
        ("retries", 1.5),
        ("sigma", -0.1),
        ("samples", 0),
        ("tool_seconds", -30),
    ],
)
def test_absurd_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        QueueConfig(**{"capacity": 1.0} | {name: value})
