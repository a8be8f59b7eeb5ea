"""The cost of many queues, of many partitions at their limit, and of a large group.

Row R40 of docs/reliability.md (tests/reliability/rows/scale.py) fills its server by the same functions.

    python -m benchmarks.scale                                  # 100 000 of each; about six minutes
    python -m benchmarks.scale --count 10000 --only keys,groups # smaller, some parts

Each part runs on a server of its own. A stall is the longest time that the server's own work held others up; the next
row has what the machine did to both sides as well (stalls.py).
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import cpu_seconds
from benchmarks.server import PrivateServer
from benchmarks.stalls import Stall, Watch
from jobrunner import Client, Item, Queue, RateLimit, Worker, chain, group, job
from jobrunner.broker.calls import flows
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import within
from jobrunner.client.operations.flow_relay import relaying
from jobrunner.client.operations.operation import EachReply
from jobrunner.join import Arrival, Ended, Join, write_onward
from jobrunner.task import Task, new_id

_SETTLE_S, _WATCHED_S = 100.0, 60.0
_CALL = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `target` None: nothing is promised."""

    what: str
    found: float
    unit: str
    target: float | None = None

    def __str__(self) -> str:
        verdict = "" if self.target is None else f"(at most {self.target:g})"
        verdict += " MISSED" if self.target is not None and self.found > self.target else ""
        return f"{self.what:58}{self.found:10.2f} {self.unit:10}{verdict}"


@job(queue="members")
def member(n: int) -> str:
    """A step of the group; its result has about a hundred bytes."""
    return f"{n:0100d}"


@job(queue="callback")
def callback() -> int:
    """The callback of the group, which runs when all its members ended."""
    return 0


def drain_queues(client: Client, count: int) -> None:
    """Makes `count` queues that had work once and are drained."""
    names = [f"upload-{n:06d}" for n in range(count)]
    for first in range(0, count, _CALL):
        some = names[first : first + _CALL]
        client.enqueue_many([Task(id=new_id(name), queue=name, type="upload", payload=b"{}") for name in some])
        for name in some:
            client.queue(name).pop()


def block_keys(queue: Queue, count: int) -> None:
    """Makes `count` partitions without a token, each with a waiting task."""
    queue.configure(rate_per_partition=RateLimit(max_tokens=1, interval=3600))
    _push_keys(queue, count)
    while held := queue.reserve(500):
        queue.commit_many(held)
    _push_keys(queue, count)


def _push_keys(queue: Queue, count: int) -> None:
    for first in range(0, count, _CALL):
        queue.push_many([Item(n, partition=f"k{n}") for n in range(first, min(first + _CALL, count))])


def run_group(client: Client, count: int) -> tuple[int, int]:
    """One worker runs a group of `count` members to its callback. Returns how many members and callbacks succeeded."""
    with within(client):
        flow = group(*(member.bind(n) for n in range(count)), on_complete=callback.bind()).enqueue()
        Worker(client=client, queues=["members", "callback"]).run(burst=True)
    return flow.progress().succeeded, client.queue("callback").totals().get("succeeded", 0)


def queues(server: PrivateServer, count: int, settle_s: float) -> list[Row]:
    """An idle leader, on a server with `count` drained queues."""
    with Client(server.url) as client:
        drain_queues(client, count)
    words = [sys.executable, "-m", "jobrunner", "work", "benchmarks.scale", "-q", "callback", "--url", server.url]
    worker = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        time.sleep(settle_s)
        watch, before, served = Watch(server.redis), cpu_seconds([worker.pid]), _server_cpu_s(server)
        time.sleep(_WATCHED_S)
        after, stall, used = cpu_seconds([worker.pid]), watch.stop(), _server_cpu_s(server) - served
    finally:
        worker.terminate()
        worker.wait()
    assert before is not None
    assert after is not None
    return [
        Row(f"{count} drained queues: an idle leader's processes", 100 * (after - before) / _WATCHED_S, "% of core", 2),
        Row(f"{count} drained queues: the server", 100 * used / _WATCHED_S, "% of core"),
        *_stalled(f"{count} drained queues", stall),
    ]


def keys(server: PrivateServer, count: int) -> list[Row]:
    """`count` partitions without a token, each with a waiting task, and a task of a free partition, again and again."""
    with Client(server.url) as client:
        queue = client.queue("tenants")
        block_keys(queue, count)
        watch, waits = Watch(server.redis), []
        for n in range(200):
            queue.push(Item(n, partition=f"free{n}"))
            began = time.perf_counter()
            (lease,) = queue.reserve(1, wait=30)
            waits.append(1000 * (time.perf_counter() - began))
            lease.commit()
        stall = watch.stop()
    return [
        Row(f"{count} blocked keys: a free key is handed out after (median)", median(waits), "ms"),
        Row(f"{count} blocked keys: the same, slowest of 200", max(waits), "ms", 50),
        *_stalled(f"{count} blocked keys", stall),
    ]


@job(queue="callback")
def following() -> int:
    """A step of the group behind a group."""
    return 0


def members(server: PrivateServer, count: int) -> list[Row]:
    """A group of `count` members, run by one worker to its callback."""
    with Client(server.url) as client:
        watch = Watch(server.redis)
        succeeded = run_group(client, count)
        stall = watch.stop()
        assert succeeded == (count, 1)
    return _stalled(f"a group of {count}", stall)


def groups(server: PrivateServer, count: int) -> list[Row]:
    """A group of `count` members, then a group of ten, each member of which receives all results."""
    with Client(server.url) as client, within(client):
        behind = group(*(following.bind() for _ in range(10)))
        flow = chain(group(*(member.bind(n) for n in range(count))), behind).enqueue()
        watch = Watch(server.redis)
        Worker(client=client, queues=["members", "callback"]).run(burst=True)
        stall = watch.stop()
        assert flow.progress().succeeded == count + 10
    return [*_stalled(f"a group of {count} before another", stall), *relayed(server, count)]


def relayed(server: PrivateServer, count: int) -> list[Row]:
    """The cost of the same for the server's main thread, for each exchange of the relay, which is one script. It is
    processor time, which other load of the machine does not increase."""
    with Client(server.url) as client:
        broker, keys, week_ms = broker_of(client), keys_of(client), 604_800_000
        task = Task(id="behind", queue="callback", payload=b"{}", type="following")
        after = Join(id="after", queue="callback", rule="success", total=1, ttl_ms=week_ms, task=task, results=b"*")
        onward = write_onward([Arrival("callback", "after", 0)])
        before = Join(id="before", queue="members", rule="pass", total=count, ttl_ms=week_ms, onward=onward)
        broker.run_many([flows.prepare(keys.queue(one.queue), one) for one in (after, before)])
        ends = [
            Ended("members", "succeeded", write_onward([Arrival("members", "before", n)]), b'"%0100d"' % n)
            for n in range(count)
        ]
        steps: Any = relaying(keys, ended=ends)
        replies, most = None, 0.0
        clock = Path(f"/proc/{server.redis.info('server')['process_id']}/schedstat")
        with suppress(StopIteration):
            while True:
                asked = steps.send(replies)
                assert isinstance(asked, EachReply)
                began = int(clock.read_text().split()[0])
                replies = broker.run_each(asked.calls)
                most = max(most, (int(clock.read_text().split()[0]) - began) / 1e6)
        assert client.queue("callback").counts()["waiting"] == 1
    return [Row(f"a group of {count} before another: most processor time of a call", most, "ms", 20)]


def _stalled(what: str, stall: Stall) -> list[Row]:
    return [
        Row(f"{what}: longest stall (slowest command: {stall.command})", stall.own_ms, "ms", 20),
        Row(f"{what}: the same with the machine's own", stall.with_machine_ms, "ms"),
    ]


def _server_cpu_s(server: PrivateServer) -> float:
    found = server.redis.info("cpu")
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


def main() -> int:
    """Exit code: 0. A target that is missed is marked in the table."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--count", type=int, default=100_000)
    asked.add_argument("--only", default="queues,keys,group,groups")
    asked.add_argument("--settle", type=float, default=_SETTLE_S, help="seconds before an idle worker is watched")
    given = asked.parse_args()
    parts: dict[str, Callable[[PrivateServer], list[Row]]] = {
        "queues": lambda server: queues(server, given.count, given.settle),
        "keys": lambda server: keys(server, given.count),
        "group": lambda server: members(server, given.count),
        "groups": lambda server: groups(server, given.count),
    }
    os.chdir(Path(__file__).parents[1])
    for name in given.only.split(","):
        with PrivateServer() as server:
            for row in parts[name](server):
                print(row, flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
