"""Failing records and dying drivers of a station while more items wait than a batch holds.

Each item ends once, where it should, and nothing is left over.
"""

import os
import threading
from time import monotonic, sleep

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import IntegerType

from jobrunner.errors import BatchLost
from jobrunner.retry import Backoff
from jobrunner.spark.station.batch_run import BatchRun
from jobrunner.spark.station.exactly_once import write_batch

AT_ONCE = Backoff(base=0)


def leftovers(raw, keys, queue):
    """Keys of batches but for tombstones, which expire."""
    found = list(raw.scan_iter(match=keys.queue(f"flights/{queue}").batch + b"*", count=1000))
    return [key for key in found if raw.type(key) not in (b"hash", b"none") or raw.pttl(key) == -1]


def written(path):
    return sorted(pq.read_table(path, columns=["n"])["n"].to_pylist())


def raises_at(poison):
    @F.udf(IntegerType())
    def check(n):
        if n == poison:
            raise ValueError(f"cannot read {n}")
        return n

    return check


@pytest.mark.timeout(900)
def test_one_raising_record_costs_no_other_its_place_in_a_sink(flights, drive, spark, raw, keys, audit, tmp_path):
    """Halves that were topped up left 3 200 of 4 000 items in pending for a week."""
    check = raises_at(77)

    @flights.spark_sink("late", batch=40, max_wait=0.05, schema="n int", backoff=AT_ONCE)
    def store(df, spark, batch):
        write_batch(df.withColumn("n", check("n")), batch, str(tmp_path / "late"))

    ids = flights.push_many("late", [{"n": n} for n in range(400)])

    drive("late", at_most=500)

    assert written(tmp_path / "late") == [n for n in range(400) if n != 77]
    books = audit("flights/late")
    assert (books["waiting"], books["pending"], books["dead"]) == (0, 0, 1)
    assert raw.zrange(keys.queue("flights/late").dead, 0, -1) == [ids[77].encode()]
    assert leftovers(raw, keys, "late") == []
    # A task that Spark was still ending may make the folder of its attempt anew, without rows: compaction removes it.
    assert not list((tmp_path / "late").glob("_attempt-*/*.parquet"))


@pytest.fixture
def dies_at(monkeypatch):
    """dies_at({2, 5}): the drivers of these attempts die behind what they wrote, before they decide or report."""

    def arrange(turns):
        count, lock = [0], threading.Lock()
        decide = BatchRun.decide

        def dying(self):
            with lock:
                count[0] += 1
                dies = count[0] in turns
            if dies:
                raise _Died
            decide(self)

        monkeypatch.setattr(BatchRun, "decide", dying)
        return count

    return arrange


class _Died(KeyboardInterrupt):
    """The driver is gone: nothing of it runs any more. Any other error would be one of the function, and reported."""


@pytest.mark.timeout(900)
def test_two_drivers_with_a_record_that_raises_a_misfit_deaths_and_lost_leases(
    flights, driver_of, spark, raw, keys, audit, client, dies_at, tmp_path
):
    """Two drivers of a sink take turns. Some of them die behind their write, and their leases end."""
    check = raises_at(123)

    @flights.spark_sink("late", batch=100, max_wait=0.05, schema="n int", lease=1.0, backoff=AT_ONCE)
    def store(df, spark, batch):
        write_batch(df.withColumn("n", check("n")), batch, str(tmp_path / "late"))

    flights.push_many("late", [{"n": n} for n in range(400)])
    flights.push("late", {"n": "misfit"})
    flights.push_many("late", [{"n": n} for n in range(400, 600)])
    dies_at({1, 3, 4, 8})
    drivers, idle, deaths = [driver_of("late"), driver_of("late")], 0, 0
    late = client.queue("flights/late")
    while late.counts()["pending"] + late.counts()["waiting"] and idle < 10_000:
        for n, driver in enumerate(drivers):
            try:
                idle = 0 if driver.step(spark) else idle + 1
            except _Died:
                drivers[n] = driver_of("late")
                deaths += 1
            except BatchLost:
                pass

    assert deaths == 4
    told = {record.payload["n"]: record.error for record in late.tasks("dead")}
    assert written(tmp_path / "late") == [n for n in range(600) if n != 123], told
    books = audit("flights/late")
    assert (books["waiting"], books["pending"], books["dead"]) == (0, 0, 2)
    for driver in drivers:
        driver.stop(20)
    assert leftovers(raw, keys, "late") == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_row_that_fails_is_tried_once_by_spark_and_one_that_kills_its_python_as_often_as_spark_is_set_to(
    flights, drive, spark, raw, keys, audit, tmp_path
):
    """Of two bad ones among 40: the first raises, the second ends its process. Each row is written once."""
    tries = tmp_path / "tries"

    @F.udf(IntegerType())
    def check(n):
        if n in (3, 38):
            with tries.open("a") as file:
                file.write(f"{n} ")
        if n == 3:
            began = monotonic()
            while monotonic() < began + 2:  # longer than an interval of the polls
                sleep(0.05)
            raise ValueError(n)
        if n == 38:
            os._exit(1)
        return n

    @flights.spark_sink("late", batch=40, max_wait=0.05, schema="n int", backoff=AT_ONCE, quarantine=True)
    def store(df, spark, batch):
        write_batch(df.repartition(1).withColumn("n", check("n")), batch, str(tmp_path / "late"))

    flights.push_many("late", [{"n": n} for n in range(40)])
    drive("late", at_most=1)
    assert tries.read_text().count("3 ") <= 2, "the job goes on after the first failure"
    drive("late", at_most=100)

    assert written(tmp_path / "late") == [n for n in range(40) if n not in (3, 38)]
    assert audit("flights/late")["dead"] == 2
    assert leftovers(raw, keys, "late") == []


def test_a_part_passes_over_members_that_another_part_has_ended(flights, drive, take, client, raw, keys):
    """As ranges of an earlier version overlap. Neither is a row of an ended member missing."""
    seen = []

    @flights.spark_station("clean", to="late", batch=16, max_wait=0, schema="n int", missing="fail", backoff=AT_ONCE)
    def leave(df, spark):
        seen.append(sorted(row["n"] for row in df.select("n").collect()))
        return df

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(16)])
    for _ in range(2):
        take("clean").lease.fail("no", delay_s=0)
    left, right, *others = [take("clean") for _ in range(4)]
    raw.hset(keys.queue("flights/clean").batch + left.lease.id.encode(), mapping={"first": 0, "size": 8})
    left.lease.first, left.lease.size = 0, 8
    for part in (left, right, *others):
        part.run()
        while not part.lease.advance().done:
            pass

    assert seen == [[*range(8)], [], [*range(8, 12)], [*range(12, 16)]]
    assert client.queue("flights/late").counts()["waiting"] == 16
    assert client.queue("flights/clean").counts()["pending"] == 0

