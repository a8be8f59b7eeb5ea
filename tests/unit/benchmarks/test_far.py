"""The comparison on a far server: ratios of the table, void figures, and its options."""

import argparse

import pytest

from benchmarks.child import ChildFailed
from benchmarks.contender import Contender
from benchmarks.contenders import jobrunner, jobrunner_asyncio
from benchmarks.far import Found, Way, round_trips, some_of, table
from benchmarks.server import PrivateServer


def _peer(*, coroutines: bool = False) -> Contender:
    return Contender(
        name="peer", produce=[], work=lambda _task, _count: [], left=lambda _server: 0, coroutines=coroutines
    )


def _found(measure: str, rates: dict[str, tuple[float, float]]) -> Found:
    found = Found()
    for name, (near, far) in rates.items():
        found.rates[(name, measure, "near")] = [near]
        found.rates[(name, measure, "2 ms")] = [far]
    return found


def test_each_is_divided_by_its_near_figure_and_jobrunner_by_each_on_the_far_one() -> None:
    found = _found("drain", {"jobrunner": (60_000, 54_000), "peer": (3_000, 600)})

    ours, peer = table(found, "drain", [jobrunner(), _peer()], ["near", "2 ms"]).rows

    assert ours == ("jobrunner", "60,000", "54,000", "0.90", "")
    assert peer == ("peer", "3,000", "600", "0.20", "90")


def test_a_drain_that_loses_too_much_to_the_distance_is_marked() -> None:
    found = _found("drain", {"jobrunner": (60_000, 30_000)})

    assert table(found, "drain", [jobrunner()], ["near", "2 ms"]).rows[0][3] == "0.50 (missed)"


def test_a_client_of_asyncio_is_compared_with_ours_of_asyncio() -> None:
    rates = {"jobrunner": (9_000.0, 4_000.0), "jobrunner, asyncio": (6_000.0, 3_000.0), "peer": (5_000.0, 1_500.0)}
    contenders = [jobrunner(), jobrunner_asyncio(), _peer(coroutines=True)]

    rows = table(_found("wide", rates), "wide", contenders, ["near", "2 ms"]).rows

    assert [row[-2:] for row in rows] == [("", "threads"), ("", "coroutines"), ("2.0", "coroutines")]


def test_an_error_voids_the_figures_of_all_rounds_and_ends_them() -> None:
    found, key = Found(), ("peer", "drain", "2 ms")
    found.take(key, lambda: 100.0)

    def fail() -> float:
        raise ChildFailed("it ended with 1")

    found.take(key, fail)
    found.take(key, lambda: pytest.fail("measured again"))

    assert found.void == {key: "it ended with 1"}
    assert found.summary(*key) is None
    assert table(found, "drain", [_peer()], ["near", "2 ms"]).rows == []


def test_only_the_contender_sees_the_server_through_the_proxy() -> None:
    server = PrivateServer()
    contender = Contender(name="x", produce=[], work=lambda _task, _count: [], left=lambda _server: 0)

    assert Way("2 ms", 1234).environment(contender, server) == {"BENCHMARK_URL": "redis://127.0.0.1:1234/0"}
    assert Way("near").environment(contender, server) == {"BENCHMARK_URL": server.url}
    assert str(server.address[1]) in server.url


def test_an_unknown_contender_and_a_strange_delay_are_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"hue: choose of jobrunner, huey"):
        some_of(("jobrunner", "huey"))("jobrunner, hue")
    for text in ("-1", "2,x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="give milliseconds of 0 or more"):
            round_trips(text)
