import asyncio
import socket
import threading
from contextlib import contextmanager

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.quotas import (
    FatalRefusal,
    QuotaGaveUp,
    SandboxQuota,
    TransientRefusal,
    classify_answer,
    create_patiently,
    create_sandbox,
    group_survival,
    jittered_wait,
    lost_groups,
    plain_wait,
    play_samples,
    run_virtual,
    serve_quota,
    sockets_to,
)

ORDER = {"key": "secret", "image": "python", "CPU": 1}


@contextmanager
def serving(quota, timeout=30):
    with serve_quota(quota) as url, httpx.Client(base_url=url, timeout=timeout) as client:
        yield client


@contextmanager
def raw_server(answer):
    """A server that gives every connection these bytes and closes it; None: it never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(32)
        listener.settimeout(30)

        def serve():
            try:
                while answer is not None:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.2) as client:
            yield client
        listener.shutdown(socket.SHUT_RDWR)


class State:
    def __init__(self, attempt_number):
        self.attempt_number = attempt_number


def patiently(client, n_retries=8, seed=0, order=ORDER):
    wait = jittered_wait(torch.Generator().manual_seed(seed))

    async def timed():
        try:
            result = await create_patiently(client, order, wait, n_retries)
        except (QuotaGaveUp, FatalRefusal) as error:
            result = error
        return result, asyncio.get_running_loop().time()

    return run_virtual(timed())


@pytest.mark.parametrize(
    "status, text, verdict",
    [
        (201, "", "ok"),
        (429, "", "transient"),
        (403, "Total CPU limit exceeded: 16 of 16 in use", "transient"),
        (400, "total memory limit exceeded", "transient"),
        (400, "Total disk limit exceeded", "transient"),
        (400, "TOO MANY REQUESTS, slow down", "transient"),
        (502, "bad gateway", "transient"),
        (400, "CPU limit exceeded: asked for 64, limit 16", "fatal"),
        (400, "unknown image", "fatal"),
        (401, "invalid key; too many requests with it", "fatal"),
        (403, "forbidden", "fatal"),
        (422, "not valid", "fatal"),
        (301, "moved", "fatal"),
    ],
)
def test_answers_are_sorted(status, text, verdict):
    assert classify_answer(status, text) == verdict


def test_waits_follow_the_formula():
    rng = torch.Generator().manual_seed(0)
    for attempt in range(1, 12):
        base = min(30, 2 * 2 ** (attempt - 1))
        assert plain_wait(State(attempt)) == base
        waits = [jittered_wait(rng)(State(attempt)) / base for _ in range(300)]
        assert min(waits) >= 0.5 and max(waits) < 1.5 and min(waits) < 0.55 and max(waits) > 1.45
        assert abs(sum(waits) / 300 - 1) < 0.08


def test_the_generator_alone_decides_the_waits():
    def draw(seed):
        wait = jittered_wait(torch.Generator().manual_seed(seed))
        return [wait(State(1)) for _ in range(3)]

    assert draw(1) == draw(1) != draw(2)


def test_the_service_books_totals_and_gives_them_back():
    quota = SandboxQuota(cpu=2, memory=9, disk=9)
    assert [quota.create(ORDER)[0] for _ in range(3)] == [201, 201, 403]
    quota.open.popitem()
    assert quota.create(ORDER)[0] == 201
    assert quota.create(ORDER | {"CPU": 0, "memory": 8}) == (403, "Total memory limit exceeded: 2 of 9 in use")
    assert quota.create(ORDER | {"CPU": 0, "disk": 8}) == (403, "Total disk limit exceeded: 2 of 9 in use")
    assert quota.create(ORDER | {"CPU": 3})[0] == 400 and quota.requests == 7


@pytest.mark.parametrize("wrong", [{"cpu": -1}, {"disk": 1.5}, {"throttle": -1}, {"memory": True}])
def test_absurd_quotas_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match="CPU|memory|disk|throttle"):
        SandboxQuota(**wrong)


def test_throttling_is_waited_for_and_time_is_virtual():
    quota = SandboxQuota(throttle=3)
    with serving(quota) as client:
        sandbox, seconds = patiently(client)
    assert sandbox in quota.open and quota.requests == 4 and 0.5 * 14 <= seconds < 1.5 * 14


@pytest.mark.parametrize("n_retries", [0, 2, 8])
def test_a_quota_that_never_clears_gives_up_after_its_budget_and_says_so(n_retries):
    quota = SandboxQuota(cpu=0)
    with serving(quota) as client:
        error, seconds = patiently(client, n_retries)
    assert isinstance(error, QuotaGaveUp) and quota.requests == n_retries + 1
    assert f"after {n_retries + 1} attempts and {seconds:.0f} s" in str(error) and "Total CPU limit" in str(error)
    assert isinstance(error.__cause__, TransientRefusal)


@pytest.mark.parametrize(
    "order", [{"key": "no"}, {"image": "rust"}, {"CPU": 99}, {"key": "no", "throttled": True}], ids=str
)
def test_what_is_wrong_with_the_order_is_fatal_at_once(order):
    quota = SandboxQuota(throttle=5 if "throttled" in order else 0)
    with serving(quota) as client:
        error, seconds = patiently(client, order=ORDER | order)
    assert isinstance(error, FatalRefusal) and quota.requests == 1 and seconds == 0


def test_a_server_that_never_answers_is_given_up():
    with raw_server(None) as client:
        error, seconds = patiently(client, n_retries=2)
    assert isinstance(error, QuotaGaveUp) and "no answer (ReadTimeout)" in str(error) and 3 <= seconds < 9


@pytest.mark.parametrize(
    "bytes_sent, kind",
    [
        (b"rubbish\r\n\r\n", TransientRefusal),  # no HTTP
        (b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{", TransientRefusal),  # dies in the middle
        (b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nyes", FatalRefusal),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n[]", FatalRefusal),
    ],
    ids=["no HTTP", "cut", "no JSON", "no id"],
)
def test_garbage_is_an_error_of_ours(bytes_sent, kind):
    with raw_server(bytes_sent) as client, pytest.raises(kind):
        create_sandbox(client, ORDER)


@pytest.mark.parametrize("url, kind", [("127.0.0.1:1", FatalRefusal), ("http://127.0.0.1:1", TransientRefusal)])
def test_no_address_is_fatal_and_no_server_is_not(url, kind):
    with httpx.Client(base_url=url, timeout=1) as client, pytest.raises(kind):
        create_sandbox(client, ORDER)


def test_the_server_ends_by_itself():
    with serve_quota(SandboxQuota(), lifetime=0.3) as url, httpx.Client(base_url=url, timeout=5) as client:
        with pytest.raises(TransientRefusal):
            for _ in range(10_000):
                create_sandbox(client, ORDER | {"CPU": 0, "memory": 0, "disk": 0})


def test_the_virtual_clock_keeps_order_and_refuses_to_wait_for_nothing():
    async def work():
        loop, seen = asyncio.get_running_loop(), []

        async def sleeper(seconds):
            await asyncio.sleep(seconds)
            seen.append((seconds, round(loop.time(), 6)))

        await asyncio.gather(*(sleeper(seconds) for seconds in (1e6, 3, 0.25, 3, 0)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 50)
        return seen, loop.time()

    seen, end = run_virtual(work())
    assert [pair[0] for pair in seen] == [0, 0.25, 3, 3, 1e6] and all(a == b for a, b in seen)
    assert end == pytest.approx(1e6 + 50)

    async def stuck():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        run_virtual(stuck())


def test_an_error_in_a_coroutine_comes_through():
    async def wrong():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtual(wrong())


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 5))
def test_one_aborted_sample_loses_its_group(aborted, n):
    errors = [f"error {i}" if one else None for i, one in enumerate(aborted * n)]
    lost = lost_groups(errors, n)
    for group in range(len(aborted)):
        first = [error for error in errors[group * n : group * n + n] if error]
        assert lost.get(group) == (first[0] if first else None)


def test_survival_is_the_chance_of_no_abort():
    for p, n in ((0.0, 8), (1.0, 8), (0.1, 2)):
        by_hand = 1.0
        for _ in range(n):
            by_hand *= 1 - p
        assert group_survival(p, n) == pytest.approx(by_hand)
    for wrong in ({"p": 1.2}, {"p": -0.1}, {"p": 0.5, "n": 0}):
        with pytest.raises(ValueError):
            group_survival(**wrong)
    with pytest.raises(ValueError, match="7 samples"):
        lost_groups([None] * 7, 8)


@pytest.mark.parametrize("n_retries, survive", [(0, 1), (8, 4)])
def test_waiting_keeps_groups(n_retries, survive):
    """Four samples for a quota of one; each holds its sandbox for ten seconds."""
    quota, wait = SandboxQuota(cpu=1), jittered_wait(torch.Generator().manual_seed(3))
    with serving(quota) as client:
        errors, _ = run_virtual(play_samples(client, ORDER, [(n, 10) for n in range(4)], wait, n_retries))
    assert errors.count(None) == survive and len(lost_groups(errors, n=2)) == (2 if survive == 1 else 0)
    assert quota.open == {}


def test_one_client_keeps_one_socket_and_one_a_try_keeps_many():
    with serve_quota(SandboxQuota()) as url:
        with httpx.Client(base_url=url, timeout=30) as client:
            for _ in range(5):
                create_sandbox(client, ORDER)
            assert sockets_to(url) == 1
        assert sockets_to(url) == 0
        clients = [httpx.Client(base_url=url, timeout=30) for _ in range(5)]
        for client in clients:
            create_sandbox(client, ORDER)
        assert sockets_to(url) == 5
        for client in clients:
            client.close()
