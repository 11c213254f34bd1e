import os
import queue
import signal
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl import launch
from agentrl.arms import ARMS, Study
from agentrl.launch import (
    LaunchSettings,
    check_eval_interval,
    check_reachable,
    check_token_limits,
    evaluation_due,
    finished_runs,
    launch_problems,
    launch_settings,
    parse_address,
    parse_numbers,
)

GIVEN = {"arms": ["default"], "seeds": [0, 1]}


@pytest.mark.parametrize(
    "text, place",
    [
        ("127.0.0.1:6379", ("127.0.0.1", 6379)),
        ("ray://head.example:10001", ("head.example", 10001)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_read(text, place):
    assert parse_address(text) == place


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "http://host:1", "a b:1", None, 6379]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="address="):
        parse_address(text)


@pytest.fixture
def listening():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        yield server


def test_a_place_that_listens_is_reachable_and_a_closed_one_is_not(listening):
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    assert check_reachable(address, 5) == address
    listening.close()
    with pytest.raises(ValueError, match=f"'{address}' cannot be reached: nobody listens there"):
        check_reachable(address, 5)


def test_a_place_that_never_answers_is_given_up(listening):
    waiting = [socket.socket() for _ in range(4)]  # fill the queue of connections
    for client in waiting:
        client.setblocking(False)
        client.connect_ex(listening.getsockname())
    with pytest.raises(ValueError, match="no answer within 0.2 s"):
        check_reachable(f"127.0.0.1:{listening.getsockname()[1]}", 0.2)
    for client in waiting:
        client.close()


def test_a_name_that_is_never_looked_up_is_given_up(monkeypatch):
    released = threading.Event()

    def slow(*_, **__):
        released.wait(60)
        raise OSError("too late")

    monkeypatch.setattr(launch.socket, "create_connection", slow)
    with pytest.raises(ValueError, match="no answer within 0.1 s"):
        check_reachable("slow.example:1", 0.1)
    released.set()


@pytest.mark.parametrize("value", [-1, None, "never", 2.0, True])
def test_an_eval_interval_is_a_whole_number_and_not_negative(value):
    with pytest.raises(ValueError, match="eval_interval"):
        check_eval_interval(value)


def test_zero_means_off():
    assert [evaluation_due(step, 0) for step in range(4)] == [False] * 4
    assert [step for step in range(9) if evaluation_due(step, 3)] == [2, 5, 8]


@given(st.lists(st.integers(-2, 9), min_size=3, max_size=3))
def test_token_limits_fit_into_each_other(limits):
    if 1 <= limits[0] <= limits[1] <= limits[2]:
        check_token_limits(*limits)
    else:
        with pytest.raises(ValueError, match="turn_tokens|session_tokens|window"):
            check_token_limits(*limits)


@given(st.lists(st.integers(0, 500), min_size=1, unique=True))
def test_numbers_are_read(numbers):
    assert parse_numbers("seeds", ",".join(map(str, numbers))) == tuple(numbers)
    assert parse_numbers("seeds", f"{numbers[0]}-{numbers[0] + 2}") == tuple(range(numbers[0], numbers[0] + 3))


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "3-1", "1,,2", "0-1000", "1.5", "²", None])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="seeds="):
        parse_numbers("seeds", text)


def test_good_settings_come_through():
    assert launch_problems(GIVEN, ARMS) == []
    assert launch_settings(GIVEN, ARMS) == LaunchSettings(("default",), (0, 1))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"arms": []}, "arms is required"),
        ({"seeds": None}, "seeds is required"),
        ({"arms": ["defualt"]}, "did you mean 'default'"),
        ({"arms": ["x"]}, "choose from default"),
        ({"seeds": [-1]}, "seeds=-1"),
        ({"seeds": 3}, "seeds=3 must be a list"),
        ({"arms": "default"}, "arms='default' must be a list"),
        ({"bases": [0.5]}, "bases=0.5"),
        ({"jobs": 0}, "jobs=0"),
        ({"eval_interval": -1}, "eval_interval"),
        ({"turn_tokens": 300}, "turn_tokens=300"),
        ({"session_tokens": 999}, "session_tokens=999"),
        ({"window": 0}, "window=0"),
        ({"address": "nowhere"}, "address='nowhere'"),
        ({"sede": 1}, "setting='sede'"),
    ],
    ids=str,
)
def test_each_mistake_is_named(change, words):
    problems = launch_problems(GIVEN | change, ARMS)
    assert len(problems) == 1 and words in problems[0]


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ValueError, match="nothing was started, 4 to put right") as error:
        launch_settings({"jobs": 0, "eval_interval": -2, "arms": ["default"], "bases": [-3]}, ARMS)
    assert all(name in str(error.value) for name in ("jobs", "eval_interval", "seeds", "bases"))


def train(arm, seed, base):
    if arm == "fails":
        raise ValueError(f"seed {seed} is not for me")
    if arm == "kills" and seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"heldout": {"value": seed / 3}, "history": []}


STUB = Study("stub", {"fine": {}, "fails": {}, "kills": {}}, train)


@pytest.mark.slow
def test_a_failure_and_a_killed_worker_are_reported_and_do_not_stop_the_others():
    runs = [(arm, 0, seed) for arm in STUB.arms for seed in range(2)]
    ended = dict(finished_runs(STUB, runs, jobs=2))
    assert list(ended) and set(ended) == set(runs)
    assert ended["fails", 0, 1] == "ValueError: seed 1 is not for me"
    assert "killed" in ended["kills", 0, 1]
    assert ended["kills", 0, 0]["heldout"] == {"value": 0.0} and ended["fine", 0, 1]["heldout"] == {"value": 1 / 3}


def test_each_run_is_given_out_as_soon_as_it_ended():
    """With one job, the second run must not have begun when the first is in our hands."""
    begun = queue.Queue()
    study = Study("stub", {"fine": {}}, lambda arm, seed, base: begun.put(seed) or {"n": seed})
    ended = finished_runs(study, [("fine", 0, 0), ("fine", 0, 1), ("fine", 0, 2), ("fine", 0, 3)], jobs=1)
    assert next(ended) == (("fine", 0, 0), {"n": 0})
    assert begun.qsize() < 4
    ended.close()
