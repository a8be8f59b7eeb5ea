"""Enqueueing: jobrunner and the bare script calls in turns, in one process, both in the same weather.

`python -m benchmarks.enqueue enqueue|bulk N WHO...` prints {"who": tasks per second}, for tasks sent one by
one or in bulk. A peer does it alone, with its own producer.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from redis import Redis

from benchmarks.child import ChildFailed, run_to_end
from benchmarks.contender import Contender
from benchmarks.contenders import jobrunner_environment, jobrunner_left
from benchmarks.drain import NotDelivered, check_arrived
from benchmarks.server import PrivateServer
from benchmarks.yardstick import URL, bare_enqueue, bare_enqueue_many, bare_left

BARE = "bare script call"
TURNS = 10


def measure(server: PrivateServer, way: str, tasks: int, who: Sequence[str]) -> dict[str, float | str]:
    """By name: tasks per second, or what is wrong: each task must be on the server, once."""
    server.clear()
    command = [sys.executable, "-m", "benchmarks.enqueue", way, str(tasks), *who]
    try:
        rates: dict[str, float] = json.loads(run_to_end(command, jobrunner_environment(server)))
    except ChildFailed as failed:
        return dict.fromkeys(who, str(failed))
    arrived = {name: bare_left(server.redis) if name == BARE else jobrunner_left(server.url) for name in who}
    wrong = {name: f"{count} of {tasks} tasks arrived" for name, count in arrived.items() if count != tasks}
    return {**rates, **wrong}


def measure_peer(server: PrivateServer, way: str, tasks: int, peer: Contender) -> float | str:
    """Tasks per second of a peer, without its start, or what is wrong."""
    server.clear()
    command = [*peer.produce, {"enqueue": "one", "bulk": "many"}[way], "noop", str(tasks)]
    try:
        seconds = float(run_to_end(command, peer.environment(server)))
        check_arrived(server, peer, tasks)
    except (ChildFailed, NotDelivered) as failed:
        return str(failed)
    return tasks / seconds


def _one_by_one(tasks: int, who: Sequence[str]) -> dict[str, float]:
    calls = {name: _enqueuer(name) for name in who}
    spent = dict.fromkeys(who, 0.0)
    slices = [range(start, min(start + tasks // TURNS, tasks)) for start in range(0, tasks, tasks // TURNS)]
    for numbers in slices:
        for name, call in calls.items():
            started = time.perf_counter()
            for n in numbers:
                call(n)
            spent[name] += time.perf_counter() - started
    return {name: tasks / spent[name] for name in who}


def _in_bulk(tasks: int, who: Sequence[str]) -> dict[str, float]:
    rates = {}
    for name in who:
        call = _bulk_enqueuer(name)
        started = time.perf_counter()
        call(tasks)
        rates[name] = tasks / (time.perf_counter() - started)
    return rates


def _enqueuer(name: str) -> Callable[[int], object]:
    if name == BARE:
        return bare_enqueue(Redis.from_url(os.environ[URL]))
    from benchmarks.noop_jobs import Noop

    return lambda n: Noop(n=n).enqueue()


def _bulk_enqueuer(name: str) -> Callable[[int], object]:
    if name == BARE:
        redis = Redis.from_url(os.environ[URL])
        return lambda tasks: bare_enqueue_many(redis, tasks)
    from benchmarks.noop_jobs import Noop

    return lambda tasks: Noop.enqueue_many([Noop(n=n) for n in range(tasks)])


def main(way: str, tasks: int, who: Sequence[str]) -> None:
    print(json.dumps({"enqueue": _one_by_one, "bulk": _in_bulk}[way](tasks, who)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
