"""The producer's side that all contenders share."""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from benchmarks.produce import one_after_another, serve, serve_async, so_many_at_once


class Sent:
    """Notes what a producer sends."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def send(self, task: str, number: int) -> None:
        self.calls.append((task, number))

    async def send_async(self, task: str, number: int) -> None:
        self.calls.append((task, number))


def _asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["app", *words])


def test_one_by_one_every_number_is_sent_and_the_seconds_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _asked(monkeypatch, "one", "noop", "3")
    sent = Sent()

    serve(sent.send, one_after_another(sent.send))

    assert sent.calls == [("noop", 0), ("noop", 1), ("noop", 2)]
    assert 0 < float(capsys.readouterr().out) < 1


def test_many_go_in_the_bulk_way(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "many", "wait", "5")
    bulks: list[tuple[str, list[int]]] = []

    def send_many(task: str, numbers: Sequence[int]) -> None:
        bulks.append((task, list(numbers)))

    serve(Sent().send, send_many)

    assert bulks == [("wait", [0, 1, 2, 3, 4])]


def test_wide_every_number_is_sent_once_by_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "wide", "noop", "7", "3")
    all_there, callers, numbers = threading.Barrier(3, timeout=10), set(), []

    def send(_task: str, number: int) -> None:
        if number < 3:
            all_there.wait()  # only threads that run at the same time come past this
        callers.add(threading.get_ident())
        numbers.append(number)

    serve(send, one_after_another(send))

    assert sorted(numbers) == list(range(7))
    assert len(callers) == 3


def test_wide_every_number_is_sent_once_by_as_many_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "wide", "noop", "7", "3")
    at_once, most, numbers = 0, 0, []

    async def send(_task: str, number: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        numbers.append(number)

    asyncio.run(serve_async(send, so_many_at_once(send, 2)))

    assert sorted(numbers) == list(range(7))
    assert most == 3


def test_a_caller_that_fails_fails_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "wide", "noop", "4", "2")

    def send(_task: str, number: int) -> None:
        if number == 3:
            raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"):
        serve(send, one_after_another(send))


def test_paced_tasks_carry_the_instant_of_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "paced", "stamp", "2")
    sent, before = Sent(), time.time_ns()

    serve(sent.send, one_after_another(sent.send))

    (_, first), (_, second) = sent.calls
    assert before <= first < second <= time.time_ns()
    assert second - first >= 20_000_000


def test_tasks_by_the_clock_carry_the_instant_they_were_due_and_none_is_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = time.time_ns() + 2_000_000
    _asked(monkeypatch, "due", "stamp", "3", str(first), "1000000000")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    sent = Sent()

    serve(sent.send, one_after_another(sent.send))

    assert sent.calls == [("stamp", first + number * 1_000_000_000) for number in range(3)]
    assert capsys.readouterr().out == "3\n"


def test_a_producer_that_is_behind_sends_at_once_and_gives_up_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0, 25, 25, 50])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    _asked(monkeypatch, "due", "stamp", "5", "0", "10")
    sent = Sent()

    asyncio.run(serve_async(sent.send_async, so_many_at_once(sent.send_async, 2)))

    assert sent.calls == [("stamp", 0), ("stamp", 10), ("stamp", 20)]
    assert capsys.readouterr().out == "3\n"


@pytest.mark.parametrize("way", ["one", "many"])
def test_a_client_of_asyncio_sends_the_same(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    _asked(monkeypatch, way, "noop", "5")
    sent = Sent()

    asyncio.run(serve_async(sent.send_async, so_many_at_once(sent.send_async, 2)))

    assert sorted(sent.calls) == [("noop", number) for number in range(5)]


def test_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, "some", "noop", "5")

    with pytest.raises(SystemExit, match="choose one, many, wide, paced or due"):
        serve(Sent().send, one_after_another(Sent().send))
