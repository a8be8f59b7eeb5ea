"""Compares Spark's reads through the data source with the fastest plain Python reader of the same data.

    python -m benchmarks.spark_read --tasks 1000000 --rounds 3

Three contenders take turns: the plain reader (plain_reader.py), the data source with all columns into a sink that
keeps nothing ("noop"), and the same into Parquet. The figures are medians; the ratio is of the medians. The table also
has processor times for each row, of server, Python and Java together: these mean something on a busy machine, too,
where rates do not. stalls.py measures how long the server was held up.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.plain_reader import read_all
from benchmarks.results import write_json
from benchmarks.server import PrivateServer
from benchmarks.stalls import Stall, Watch
from jobrunner import Client

QUEUE, PREFIX = "flights", "spark-read"
TARGET, STALL_MS = 0.85, 10.0
_PUSHED_AT_ONCE = 2_000
_WARM_UPS = 2


def main() -> int:
    """Prints the table; 1 when a target is missed."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--tasks", type=int, default=1_000_000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with PrivateServer() as server:
        figures = _measure(server, given.tasks, given.rounds, given.cores)
    if given.json:
        write_json(given.json, figures)
    return _print(figures, given.tasks)


def _measure(server: Any, tasks: int, rounds: int, cores: int) -> dict[str, Any]:
    server.redis.config_set("hash-max-listpack-value", 512)  # as the embedded server has it
    _fill(server.url, tasks)
    contenders = _contenders(server, cores, tasks)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    used: dict[str, list[float]] = {name: [] for name in contenders}
    stalls = dict.fromkeys(contenders, Stall())
    for number in range(-_WARM_UPS, rounds):
        for name in list(contenders) if number % 2 else list(reversed(contenders)):
            watch = Watch(server.redis)
            began, cpu = time.perf_counter(), cpu_s()
            contenders[name]()
            took, spent, stall = time.perf_counter() - began, cpu_s() - cpu, watch.stop()
            if number >= 0:
                times[name].append(took)
                used[name].append(spent)
                stalls[name] = stalls[name].or_worse(stall)
                print(f"{name}: {tasks / times[name][-1]:,.0f} rows/s", file=sys.stderr)
    return {"times_s": times, "cpu_s": used, "stalls": stalls, "load": os.getloadavg()[0]}


def cpu_s() -> float:
    """Processor time of this process and all below it, and of those of them that have ended."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)], ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def _fill(url: str, tasks: int) -> None:
    with Client(url, PREFIX, retry_timeout=60) as client:
        queue = client.queue(QUEUE)
        for first in range(0, tasks, _PUSHED_AT_ONCE):
            queue.push_many(_flight(n) for n in range(first, min(tasks, first + _PUSHED_AT_ONCE)))


def _flight(number: int) -> dict[str, Any]:
    carrier = ("AA", "B6", "DL", "UA", "WN")[number % 5]
    delay, distance = number % 60 - 10.5, number % 3000
    return {"number": number, "carrier": carrier, "origin": "JFK", "dep_delay": delay, "distance": distance}


def _contenders(server: Any, cores: int, tasks: int) -> dict[str, Callable[[], None]]:
    from jobrunner.spark import spark_session

    spark = spark_session(master=f"local[{cores},4]", **{"spark.driver.memory": "2g"})

    def frame() -> Any:
        reader = spark.read.format("jobrunner").options(url=server.url, prefix=PREFIX)
        return reader.options(queue=QUEUE, state="waiting").load()

    def plain() -> None:
        assert read_all(server.address, PREFIX, QUEUE, cores) == tasks

    def source() -> None:
        frame().write.format("noop").mode("overwrite").save()

    def parquet() -> None:
        folder = tempfile.mkdtemp(prefix="jr-bench-")
        frame().write.mode("overwrite").parquet(folder)
        shutil.rmtree(folder)

    assert frame().count() == tasks
    return {"plain reader": plain, "data source": source, "to Parquet": parquet}


def _print(figures: dict[str, Any], tasks: int) -> int:
    medians = {name: tasks / statistics.median(times) for name, times in figures["times_s"].items()}
    for name, rate in medians.items():
        rounds = ", ".join(f"{tasks / one / 1000:,.0f}k" for one in figures["times_s"][name])
        cpu = statistics.median(figures["cpu_s"][name]) / tasks * 1e6
        print(f"{name:14} {rate:10,.0f} rows/s   ({rounds})   {rate / medians['plain reader']:.2f}   {cpu:.1f} µs/row")
        print(f"{'':14} {figures['stalls'][name]}")
    ratio = medians["data source"] / medians["plain reader"]
    longest = figures["stalls"]["data source"].own_ms
    held = ratio >= TARGET and longest <= STALL_MS
    print(f"ratio {ratio:.2f} (target {TARGET}), longest stall {longest:.1f} ms (target {STALL_MS:g})")
    print(f"load after: {figures['load']:.1f}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
