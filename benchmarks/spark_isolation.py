"""How long a few bad items among many hold up a station on Spark.

    python -m benchmarks.spark_isolation                       # 3 bad of 100 000, in batches of 100 000 and of 10 000

A function raises for the bad items, so their batch fails as a whole and is split until they are alone. The table has
the seconds until they are dead and all others are in the next queue, the time when half of the others were, how many
batches Spark ran, and the processor time of everything but the server. Each row is measured without a bad item, too.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from benchmarks.results import Table, write_json
from benchmarks.server import PrivateServer
from benchmarks.spark_read import cpu_s
from benchmarks.spark_station import emptied
from jobrunner.broker.calls import queues
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.spark.session import spark_session
from jobrunner.spark.station.driver import StationDriver

TARGET_S = 90.0
BAD = 3
_AT_ONCE = 2_000
_PATIENCE_S = 900.0


def main() -> int:
    """Exit code: 0 when the bad items were isolated within the target, 1 when not."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.spark_isolation", description=__doc__.splitlines()[0])
    asked.add_argument("--items", type=int, default=100_000)
    asked.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), default=(100_000, 10_000))
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    load = os.getloadavg()[0]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    measured: list[dict[str, float]] = []
    with PrivateServer() as server:
        spark_session("benchmark")
        turn(server, 2_000, 1_000, 0)  # warms up
        for batch in given.batches:
            for bad in (0, BAD):
                measured.append(turn(server, given.items, batch, bad))
                print(f"batches of {batch}, {bad} bad: {measured[-1]['seconds']:.1f} s", file=sys.stderr)
    if given.json:
        write_json(given.json, {"turns": measured, "load": load})
    names = ("batch", "bad", "seconds", "half_s", "batches", "cpu_s")
    rows = [tuple(f"{one[name]:,.1f}".removesuffix(".0") for name in names) for one in measured]
    print(Table(("batch", "bad", "s", "half of them, s", "runs", "CPU s"), rows, left=()).text())
    slowest = max(one["seconds"] for one in measured if one["bad"])
    print(f"load before: {load:.1f}; target: {TARGET_S:g} s{' MISSED' if slowest > TARGET_S else ''}")
    return int(slowest > TARGET_S)


def turn(server: PrivateServer, items: int, batch: int, bad: int) -> dict[str, float]:
    """One station, from its first batch until nothing is left in its queue."""
    client, flights = emptied(server)
    wrong = frozenset(items * (2 * n + 1) // (2 * max(bad, 1)) for n in range(bad))
    check = _check(wrong)

    @flights.spark_station("clean", to="enriched", batch=batch, max_wait=0, schema="n int")
    def clean(df: Any, spark: Any) -> Any:  # noqa: ARG001 - as it is called
        return df.withColumn("m", check("n"))

    for first in range(0, items, _AT_ONCE):
        flights.push_many("clean", [{"n": n} for n in range(first, min(first + _AT_ONCE, items))])
    ends: list[Any] = []
    driver = StationDriver(flights.spark_stations["flights/clean"], client, ends.append)
    began, cpu = time.perf_counter(), cpu_s()
    driver.start()
    half_s = _wait(lambda: _moved(client) >= (items - bad) // 2) - began
    seconds = _wait(lambda: _moved(client) == items - bad and _dead(client) == bad) - began
    used = cpu_s() - cpu
    driver.stop(30)
    client.close()
    runs = sum(1 for end in ends if end.record is not None)
    return {"batch": batch, "bad": bad, "seconds": seconds, "half_s": half_s, "batches": runs, "cpu_s": used}


def _check(wrong: frozenset[int]) -> Callable[..., Any]:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
    from pyspark.sql.types import IntegerType

    def check(n: int) -> int:
        if n in wrong:
            raise ValueError(f"no such number: {n}")
        return n + 1

    return F.udf(check, IntegerType())


def _moved(client: Client) -> int:
    found: int = broker_of(client).run(queues.counts(keys_of(client).queue("flights/enriched"))).waiting
    return found


def _dead(client: Client) -> int:
    found: int = broker_of(client).run(queues.counts(keys_of(client).queue("flights/clean"))).dead
    return found


def _wait(until: Callable[[], bool]) -> float:
    """The instant at which it holds."""
    ends = time.perf_counter() + _PATIENCE_S
    while not until():
        if time.perf_counter() > ends:
            raise SystemExit(f"VOID: not done after {_PATIENCE_S:g} s")
        time.sleep(0.05)
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
