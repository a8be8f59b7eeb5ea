"""Compares the flights' pipeline with the same work in plain PySpark, both from nothing to the files.

    python -m benchmarks.spark_flights --rounds 3
    python -m benchmarks.spark_flights --months 1 --rounds 1

The pipeline is that of `jobs_example.flights`: the rows of a file are pushed into a queue, cleaned by the Python
station, joined by the Spark station and written by three sinks; the time is that of the push and of
`pipeline run --burst` together. "chained" is the same pipeline with `flights.chain("raw")`, so that no item is in a
queue between two stations. The other side is one program without a queue: Spark reads the rows from the same file,
cleans them by the same function, joins and writes the same three tables. All start a session of their own, and all are
checked to have written every flight once. They take turns; the table has medians, and processor times of server, Python
and Java, which mean something on a busy machine, too.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.child import whole_environment
from benchmarks.processes import cpu_seconds
from benchmarks.results import Summary, Table, write_json
from benchmarks.server import PrivateServer

TARGET = 1.5
_TABLES = ("on_time", "late", "cancelled")
_ROWS = "flights.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Wall time, processor time without the server, and that of the server, in seconds."""

    seconds: float
    cpu_s: float
    server_cpu_s: float = 0.0
    push_s: float = 0.0


def main() -> int:
    """Prints the table; 1 when the target is missed."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.spark_flights", description=__doc__.splitlines()[0])
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--months", type=int, default=12, help="of the year, from January on")
    asked.add_argument("--chained", action="store_true", help="without the pipeline that is not chained")
    asked.add_argument("--json", type=Path)
    asked.add_argument("--part", choices=("push", "plain"), help=argparse.SUPPRESS)
    asked.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.part is not None:
        {"push": push, "plain": plain}[given.part](given.months, given.folder)
        return 0
    load = os.getloadavg()[0]
    how: dict[str, Callable[[int, Path], Side]] = {
        "plain PySpark": plain_side,
        "pipeline": partial(pipeline_side, "jobs_example.flights"),
        "chained": partial(pipeline_side, "benchmarks.flights_chained"),
    }
    if given.chained:
        del how["pipeline"]
    sides: dict[str, list[Side]] = {name: [] for name in how}
    for number in range(given.rounds):
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                write_rows(given.months, Path(folder))
                found = how[name](given.months, Path(folder))
                check(given.months, Path(folder))
            sides[name].append(found)
            print(f"round {number + 1}: {name:14} {found.seconds:6.1f} s, CPU {found.cpu_s:6.1f} s", file=sys.stderr)
    if given.json:
        write_json(given.json, {name: [vars_of(one) for one in found] for name, found in sides.items()})
    return report(sides, load)


def vars_of(side: Side) -> dict[str, float]:
    """Its fields by name."""
    return {name: getattr(side, name) for name in Side.__slots__}


def report(sides: dict[str, list[Side]], load: float) -> int:
    """Prints the table; returns the exit code."""
    plain_s = Summary.of([one.seconds for one in sides["plain PySpark"]])
    rows = []
    for name, found in sides.items():
        seconds = Summary.of([one.seconds for one in found])
        parts = ([getattr(one, part) for one in found] for part in ("cpu_s", "server_cpu_s", "push_s"))
        cells = (Summary.of(values).text(1) for values in parts)
        rows.append((name, seconds.text(1), seconds.spread(1), f"{seconds.ratio(plain_s):.2f}", *cells))
    print(Table(("side", "s", "spread", "÷ plain", "CPU s", "server CPU s", "push s"), rows, left=(0, 2)).text())
    ratios = {name: Summary.of([one.seconds for one in found]).ratio(plain_s) for name, found in sides.items()}
    missed = [name for name, ratio in ratios.items() if ratio > TARGET]
    said = f"; MISSED: {', '.join(missed)}" if missed else ""
    print(f"load before: {load:.1f}; target: at most {TARGET} times plain PySpark{said}")
    return int(bool(missed))


def write_rows(months: int, folder: Path) -> None:
    """Writes the file that each side reads; it is in no side's time."""
    from jobs_example import dataset

    with (folder / _ROWS).open("w", encoding="utf-8", newline="") as file:
        rows = (row for month in range(1, months + 1) for row in dataset.raw_flights(month))
        first = next(rows)
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        writer.writerows(chain([first], rows))


def plain_side(months: int, folder: Path) -> Side:
    """One program without a queue."""
    seconds, cpu = _run([sys.executable, "-m", "benchmarks.spark_flights", "--part", "plain"], months, folder, {})
    return Side(seconds=seconds, cpu_s=cpu)


def pipeline_side(module: str, months: int, folder: Path) -> Side:
    """A push, then the pipeline, as that module declares it, until it is empty."""
    with PrivateServer() as server:
        server.redis.config_set("hash-max-listpack-value", 512)  # as the embedded server has it
        where = {"JOBRUNNER_URL": server.url, "FLIGHTS_FOLDER": str(folder)}
        before = server.usage()
        pushing = [sys.executable, "-m", "benchmarks.spark_flights", "--part", "push"]
        push_s, push_cpu = _run(pushing, months, folder, where)
        running = [sys.executable, "-m", "jobrunner", "pipeline", "run", "flights", module, "--burst"]
        run_s, run_cpu = _run([*running, "--log-level", "warning"], None, folder, where)
        server_s = (server.usage() - before).cpu_us / 1e6
    return Side(seconds=push_s + run_s, cpu_s=push_cpu + run_cpu, server_cpu_s=server_s, push_s=push_s)


def _run(command: list[str], months: int | None, folder: Path, variables: dict[str, str]) -> tuple[float, float]:
    """(seconds, CPU seconds of it and all its children)."""
    if months is not None:
        command = [*command, "--months", str(months), "--folder", str(folder)]
    began, cpu = time.perf_counter(), 0.0
    running = subprocess.Popen(command, env=whole_environment(variables), start_new_session=True)
    try:
        while running.poll() is None:
            cpu = max(cpu, cpu_seconds([running.pid]) or 0.0)
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):  # nothing is left behind when this is interrupted
            os.killpg(running.pid, signal.SIGKILL)
    if running.returncode:
        raise SystemExit(f"VOID: {' '.join(command)} ended with {running.returncode}")
    return time.perf_counter() - began, cpu


def push(_months: int, folder: Path) -> None:
    """Pushes the flights of the file."""
    from jobs_example import flights

    with (folder / _ROWS).open(encoding="utf-8", newline="") as file:
        flights.push(csv.DictReader(file))


def plain(_months: int, folder: Path) -> None:
    """Cleans, joins and writes the flights of a file."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from jobrunner.spark import spark_session
    from jobs_example import flights

    spark = spark_session()
    schema = to_arrow_schema(StructType.fromDDL(flights.FLIGHT), timezone="UTC")
    rows = spark.read.csv(str(folder / _ROWS), header=True).mapInArrow(partial(_typed, schema), flights.FLIGHT)
    departed = flights.enrich(rows.where(F.col("dep_time").isNotNull()), spark).cache()
    for table in ("on_time", "late"):
        departed.where(F.col("_to") == table).drop("_to").write.parquet(str(folder / table))
    rows.where(F.col("dep_time").isNull()).write.parquet(str(folder / "cancelled"))


def _typed(schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    from datetime import datetime

    import pyarrow as pa

    from jobs_example import cleaning

    for batch in batches:
        rows = [cleaning.typed(row) for row in batch.to_pylist()]
        for row in rows:
            row["time_hour"] = datetime.fromisoformat(row["time_hour"])
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def check(months: int, folder: Path) -> None:
    """Every flight is in one of the tables, once."""
    import pyarrow.dataset as ds

    from jobs_example import dataset

    tables = (ds.dataset(str(folder / table), format="parquet", partitioning="hive") for table in _TABLES)
    found = sum(table.count_rows() for table in tables)
    wanted = sum(1 for month in range(1, months + 1) for _ in dataset.raw_flights(month))
    if found != wanted:
        raise SystemExit(f"VOID: {found} of {wanted} flights are in the tables")


if __name__ == "__main__":
    sys.exit(main())
