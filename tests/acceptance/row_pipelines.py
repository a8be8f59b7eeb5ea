"""Pipelines that workers of the tests serve in processes of their own."""

import random
from multiprocessing.connection import Connection
from typing import Any

from jobrunner import Client, Worker, configure
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import within
from jobrunner.etl import Drop, Pipeline, To
from jobrunner.log_output import log_to_stderr
from jobrunner.worker.report.report_calls import report_calls
from jobrunner.worker.run.runner import Runner

SAFE: Any = {"max_attempts": 0, "keepalive": 1}
"""Killing a worker spends an attempt. These tests are about moves, so attempts are unlimited."""

pair = Pipeline("pair")


@pair.station("a", to="b", **SAFE)
def moved(item: Any) -> list[Any]:
    """Goes on, with a stamp."""
    return [*item.payload, "moved"]


pair.declare("b")

maze = Pipeline("maze")
"""Five stations: enter → work ⇄ again, work → route → left or right → out; numbers that end with 9 are dropped."""


@maze.station("enter", to="work", **SAFE)
def enter(item: Any) -> dict[str, Any]:
    """Begins a trail."""
    return {"n": item.payload, "trail": ["enter"], "rounds": 0}


@maze.station("work", to=("again", "route"), **SAFE)
def work(item: Any) -> To:
    """Sends an item round as often as its number says."""
    n, rounds = item.payload["n"], item.payload["rounds"]
    return To("again" if rounds < n % 4 else "route", stamped(item))


@maze.station("again", to="work", **SAFE)
def again(item: Any) -> dict[str, Any]:
    """One round more."""
    return {**stamped(item), "rounds": item.payload["rounds"] + 1}


@maze.station("route", to=("left", "right"), **SAFE)
def route(item: Any) -> To | Drop:
    """The fork."""
    n = item.payload["n"]
    if n % 10 == 9:
        return Drop("nines are not wanted")
    return To("left" if n % 2 else "right", stamped(item))


@maze.station("left", to="out", **SAFE)
def left(item: Any) -> dict[str, Any]:
    """The odd ones, to an end that is a queue."""
    return stamped(item)


@maze.sink("right", history=3600, **SAFE)
def right(item: Any) -> dict[str, Any]:
    """The even ones, to an end that is history."""
    return stamped(item)


maze.declare("out")


def stamped(item: Any) -> dict[str, Any]:
    """The payload with the queue it is taken from."""
    return {**item.payload, "trail": [*item.payload["trail"], item.queue.partition("/")[2]]}


def right_trail(n: int) -> list[str]:
    """The way of an item that has ended well."""
    return ["enter", "work", *["again", "work"] * (n % 4), "route", "left" if n % 2 else "right"]


def serve(told: Connection, url: str, prefix: str, queues: list[str]) -> None:
    """A worker, until it is killed."""
    log_to_stderr("console")
    Worker(queues=queues, concurrency=4, client=configure(url, prefix)).run()


def take_turns(told: Connection, url: str, prefix: str, queues: list[str]) -> None:
    """Serves queues as a worker does, without threads and lease keeper, so that it starts at once.

    Until it is killed.
    """
    with Client(url, prefix) as client, within(client):
        runner = Runner(client, lambda token: False)
        lines = [client.queue(name) for name in queues]
        while True:
            random.shuffle(lines)
            for line in lines:
                reports = [(lease._attempt, runner.run(lease._attempt)) for lease in line.reserve(20)]
                for settlement in report_calls(keys_of(client), reports):
                    broker_of(client).run(settlement.call)
