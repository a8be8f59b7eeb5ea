"""The partner really fails, and fails alike under one seed; every call here goes over HTTP."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.client import RemoteDisconnected
from typing import Any

import pytest

from jobs_example.demos.jobs import partner
from jobs_example.demos.jobs.partner import MOST_FAILURES, Partner, refused, troubles
from jobs_example.office.fetch import BadReply, get_json, get_json_async

ROUTES = [f"{origin}-{dest}" for origin in ("EWR", "JFK", "LGA") for dest in ("IAH", "ATL", "ORD", "SFO", "BOS")]


@pytest.fixture
def running() -> Iterator[Partner]:
    with Partner(seed=2013) as started:
        yield started


def a_route_with(trouble: tuple[str, ...]) -> tuple[int, str]:
    """A seed and a route for which exactly this goes wrong."""
    return next((seed, route) for seed in range(10_000) for route in ROUTES if troubles(seed, route) == trouble)


def test_a_route_without_trouble_is_quoted_by_its_distance() -> None:
    seed, route = a_route_with(())
    with Partner(seed) as running:
        fare = get_json(f"{running.url}/fares/{route}", timeout=5)

    assert fare["route"] == route
    assert isinstance(fare["km"], int)
    assert fare["fare_cents"] == pytest.approx(3_900 + 9.5 * fare["km"], abs=6)


def test_an_error_is_over_at_the_next_call() -> None:
    seed, route = a_route_with(("error",))
    with Partner(seed) as running:
        with pytest.raises(BadReply, match="answered 500") as caught:
            get_json(f"{running.url}/fares/{route}", timeout=5)
        fare = get_json(f"{running.url}/fares/{route}", timeout=5)

    assert not caught.value.refused
    assert fare["route"] == route
    assert running.calls == {"error": 1, "quoted": 1}


def test_a_hang_up_is_a_connection_without_a_reply() -> None:
    seed, route = a_route_with(("hang-up",))
    with Partner(seed) as running, pytest.raises(RemoteDisconnected):
        get_json(f"{running.url}/fares/{route}", timeout=5)


def test_asyncio_meets_the_same_hang_up() -> None:
    seed, route = a_route_with(("hang-up",))
    with Partner(seed) as running, pytest.raises(ConnectionResetError, match="hung up"):
        asyncio.run(get_json_async(f"{running.url}/fares/{route}", timeout=5))


def test_a_caller_that_goes_away_costs_the_partner_nothing(
    running: Partner, wait_until: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))) as caller:
        caller.sendall(b"GET /weather/EWR/2013-03-01 HTTP/1.0\r\n\r\n")
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    wait_until(lambda: running.calls["weather"] == 1)
    get_json(f"{running.url}/weather/EWR/2013-03-02", timeout=5)
    wait_until(lambda: not [one for one in threading.enumerate() if "process_request_thread" in one.name])

    assert capfd.readouterr().err == ""


def test_a_late_reply_is_later_than_a_caller_waits_and_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed, route = a_route_with(("late",))
    started = time.monotonic()
    monkeypatch.setattr(partner, "LATE_S", 60.0)
    with Partner(seed) as running, pytest.raises(TimeoutError):
        get_json(f"{running.url}/fares/{route}", timeout=0.5)

    assert time.monotonic() - started < 30


def test_a_route_to_an_unknown_airport_is_refused_every_time(running: Partner) -> None:
    for _ in range(MOST_FAILURES + 1):
        with pytest.raises(BadReply, match="unknown airport SJU") as caught:
            get_json(f"{running.url}/fares/JFK-SJU", timeout=5)
        assert caught.value.refused

    assert running.calls == {"refused": MOST_FAILURES + 1}


def test_the_refused_routes_are_those_that_the_list_of_airports_lacks() -> None:
    assert refused(["JFK-SJU", "EWR-IAH", "JFK-PSE"]) == ["JFK-SJU", "JFK-PSE"]


def test_troubles_depend_on_the_seed_and_the_route_alone() -> None:
    once = [troubles(1, route) for route in ROUTES]

    assert once == [troubles(1, route) for route in ROUTES]
    assert once != [troubles(2, route) for route in ROUTES]


def test_about_a_third_of_the_routes_has_trouble_and_none_more_than_the_most() -> None:
    lengths = [len(troubles(seed, route)) for seed in range(200) for route in ROUTES]

    assert 0.29 < sum(map(bool, lengths)) / len(lengths) < 0.39
    assert max(lengths) == MOST_FAILURES


def test_the_weather_of_a_day_is_that_of_the_data_set(running: Partner) -> None:
    day = get_json(f"{running.url}/weather/JFK/2013-02-08", timeout=5)

    assert (day["origin"], day["day"], day["hours"]) == ("JFK", "2013-02-08", 24)
    assert day["min_visibility_miles"] == pytest.approx(0.5)  # the blizzard called Nemo


def test_many_calls_are_answered_at_once(running: Partner, monkeypatch: pytest.MonkeyPatch) -> None:
    all_are_there = threading.Barrier(30, timeout=30)
    reply = Partner.reply

    def reply_with_the_others(self: Partner, path: str) -> Any:
        all_are_there.wait()
        return reply(self, path)

    days = [f"2013-03-{day:02}" for day in range(1, 31)]

    async def fan() -> list[dict[str, Any]]:
        return await asyncio.gather(*(get_json_async(f"{running.url}/weather/LGA/{day}", timeout=60) for day in days))

    monkeypatch.setattr(Partner, "reply", reply_with_the_others)
    assert [day["day"] for day in asyncio.run(fan())] == days


@pytest.mark.parametrize("path", ["/", "/weather/EWR/2014-01-01", "/weather/EWR", "/fares"])
def test_what_is_not_there_is_a_refusal(running: Partner, path: str) -> None:
    with pytest.raises(BadReply, match="answered 404") as caught:
        get_json(running.url + path, timeout=5)

    assert caught.value.refused


def test_asyncio_sees_a_refusal_with_its_reason(running: Partner) -> None:
    with pytest.raises(BadReply, match="unknown airport STT"):
        asyncio.run(get_json_async(f"{running.url}/fares/EWR-STT", timeout=5))
