"""Compares Spark's writes of rows as tasks with a plain pipelined enqueue of the same keys and with `enqueue_many`.

    python -m benchmarks.spark_write --tasks 300000 --rounds 3

Three contenders take turns on an emptied server: redis-py's pipeline, which writes for each row the hash and the place
in line that a task has (one process, chunks of 1 000, no check of anything), `Queue.push_many`, and a DataFrame written
through the data source. The figures are medians; the ratio is of the medians. After each turn the queue must hold
exactly the tasks. Beside the rates stand processor times for each row, of server, Python and Java together, and the
longest time that the server was held up.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.results import write_json
from benchmarks.server import PrivateServer
from benchmarks.spark_read import cpu_s
from benchmarks.stalls import Stall, Watch
from jobrunner import Client

QUEUE, PREFIX = "orders", "spark-write"
TARGET, STALL_MS = 0.9, 10.0
_AT_ONCE = 1_000


def main() -> int:
    """Prints the table; 1 when a target is missed."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--tasks", type=int, default=300_000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    with PrivateServer() as server:
        figures = _measure(server, given.tasks, given.rounds, given.cores)
    if given.json:
        write_json(given.json, figures)
    return _print(figures, given.tasks)


def _measure(server: PrivateServer, tasks: int, rounds: int, cores: int) -> dict[str, Any]:
    server.redis.config_set("hash-max-listpack-value", 512)  # as the embedded server has it
    contenders = _contenders(server, tasks, cores)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    used: dict[str, list[float]] = {name: [] for name in contenders}
    stalls = dict.fromkeys(contenders, Stall())
    for number in range(rounds + 1):
        for name in list(contenders) if number % 2 else list(reversed(contenders)):
            server.clear()
            watch = Watch(server.redis)
            began, cpu = time.perf_counter(), cpu_s()
            contenders[name]()
            took, spent, stall = time.perf_counter() - began, cpu_s() - cpu, watch.stop()
            _check(server, tasks, name)
            if number:  # the first is for warming up
                times[name].append(took)
                used[name].append(spent)
                stalls[name] = stalls[name].or_worse(stall)
                print(f"{name}: {tasks / took:,.0f} rows/s", file=sys.stderr)
    return {"times_s": times, "cpu_s": used, "stalls": stalls, "load": os.getloadavg()[0]}


def _check(server: PrivateServer, tasks: int, name: str) -> None:
    base = f"{PREFIX}:{{{QUEUE}}}:"
    waiting = server.redis.zcard(f"{base}{QUEUE}:waiting")
    assert waiting == tasks, f"{name}: {waiting} of {tasks} tasks arrived"
    some = server.redis.zrange(f"{base}{QUEUE}:waiting", 0, 0)[0].decode()
    assert server.redis.hget(f"{base}task:{some}", "payload"), f"{name}: a task has no payload"


def _row(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "customer": f"customer-{number % 1000}",
        "amount": number * 0.25,
        "express": number % 7 == 0,
    }


def _contenders(server: PrivateServer, tasks: int, cores: int) -> dict[str, Callable[[], None]]:
    from jobrunner.spark import spark_session

    spark = spark_session(master=f"local[{cores},4]", **{"spark.driver.memory": "2g"})
    rows = spark.range(0, tasks, 1, cores).selectExpr(
        "id as number", "concat('customer-', id % 1000) as customer", "id * 0.25d as amount", "id % 7 = 0 as express"
    )

    def plain() -> None:
        _pipelined(server.redis, tasks)

    def pushed() -> None:
        with Client(server.url, PREFIX, retry_timeout=60) as client:
            queue = client.queue(QUEUE)
            for first in range(0, tasks, _AT_ONCE):
                queue.push_many(map(_row, range(first, min(first + _AT_ONCE, tasks))))

    def written() -> None:
        writer = rows.write.format("jobrunner").options(url=server.url, prefix=PREFIX, queue=QUEUE)
        writer.mode("append").save()

    return {"plain pipeline": plain, "push_many": pushed, "data source": written}


def _pipelined(redis: Any, tasks: int) -> None:
    base, encode, process = f"{PREFIX}:{{{QUEUE}}}:", msgspec.json.Encoder().encode, os.urandom(6).hex()
    waiting = f"{base}{QUEUE}:waiting"
    for first in range(0, tasks, _AT_ONCE):
        pipeline = redis.pipeline(transaction=False)
        now = time.time() * 1000
        for number in range(first, min(first + _AT_ONCE, tasks)):
            task_id = f"{(int(now) << 16) + number - first:016x}{process}-{QUEUE}"
            fields = {
                "id": task_id, "place": now, "payload": encode(_row(number)), "enqueue_time": now, "retry_count": 0,
                "queue": QUEUE, "type": "", "encoding": "json", "more": 1,
            }  # fmt: skip
            pipeline.hset(f"{base}task:{task_id}", mapping=fields)
            pipeline.zadd(waiting, {task_id: now + (number - first) / 1024})
        pipeline.execute()


def _print(figures: dict[str, Any], tasks: int) -> int:
    rates = {name: tasks / statistics.median(times) for name, times in figures["times_s"].items()}
    for name, rate in rates.items():
        cpu_us = statistics.median(figures["cpu_s"][name]) / tasks * 1e6
        print(f"{name:<16} {rate:>10,.0f} rows/s  {cpu_us:>6.1f} µs of processors/row")
        print(f"{'':<16} {figures['stalls'][name]}")
    ratio, stall = rates["data source"] / rates["plain pipeline"], figures["stalls"]["data source"].own_ms
    print(f"data source / plain pipeline: {ratio:.2f} (target {TARGET})")
    print(f"longest stall of it: {stall:.1f} ms (target {STALL_MS:g})")
    print(f"load at the end: {figures['load']:.1f}")
    return 0 if ratio >= TARGET and stall <= STALL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
