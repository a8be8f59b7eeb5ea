"""The cost of errors for batches: real batches on a stopped clock, and a function whose errors the test decides."""

import errno
import os
import sqlite3
import threading
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable, OperationalError, SerializationFailure, UndefinedTable
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import (
    IllegalArgumentException,
    NumberFormatException,
    PySparkException,
    PythonException,
    SparkRuntimeException,
)
from structlog.testing import capture_logs

from jobrunner.client.batches import Batches
from jobrunner.client.item import Item
from jobrunner.errors import (
    BatchLost,
    FolderError,
    InvalidOption,
    PipelineError,
    ServerFull,
    ServerRefused,
    StationError,
    TableError,
)
from jobrunner.etl import Pipeline
from jobrunner.spark import failures, write_sql
from jobrunner.spark.failures import Cause, SparkTaskError, cause_of, comes_again
from jobrunner.spark.station import batch_failures, batch_reports, failure_verdict
from jobrunner.spark.station.batch_failures import BatchFailures
from jobrunner.spark.station.batch_reports import BatchReports
from jobrunner.spark.station.exactly_once import write_folder
from jobrunner.spark.station.failure_verdict import CircuitBreaker
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import LocalFolders

QUEUE = "flights/clean"
LEASE_S = 60.0


CALLING = "An error occurred while calling o1.save.\n: "
WORKER = "org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker:\n"


def of_python(words, frame="File x"):
    return SparkTaskError(f"{WORKER}Traceback (most recent call last):\n  {frame}\n{words}\n")


class MySQLError(Exception):
    """As drivers of MySQL raise it."""


MySQLError.__module__ = "pymysql.err"


class Stopping:
    """Pauses pass at once."""

    def __init__(self, clock):
        self.paused = []
        self._clock = clock

    def wait(self, seconds):
        self.paused.append(seconds)
        self._clock.advance(seconds * 1000)
        return False

    def is_set(self):
        return False


class Station:
    """A driver without Spark: `errors(members)` is what the function raises for them, or None."""

    def __init__(self, client, broker, keys, clock, **options):
        pipeline = Pipeline("flights", client)
        pipeline.spark_station("clean", to="late", **options)(lambda df, spark: df)
        self.batches = Batches(broker, keys.queue(QUEUE))
        self.stopping, self.clock, self.seen, self.runs = Stopping(clock), clock, [], []
        reports = BatchReports(
            pipeline.spark_stations[QUEUE], broker, keys.queue(QUEUE), self.seen.append, threading.Event()
        )
        self.failures = BatchFailures(QUEUE, reports, self.stopping)

    def step(self, errors, n=1000):
        lease = self.failures.others.take(self.batches, n, lease_s=LEASE_S)
        if lease is None:
            return False
        members = lease.members(0, lease.size)
        self.runs.append(len(members))
        if (error := errors(members)) is not None:
            self.failures.set_back(None, lease, error, self.failures.cause_of(None, lease, error), 0.0)
            self.failures.wait_out_pause()
            return True
        lease.stage_all("n", [word for one in members for word in (one, "late", b"1", "")], after=0)
        lease.decide(["n"], rest="dropped")
        self.failures.succeeded()
        while not lease.advance().done:
            pass
        return True

    def run(self, errors, n=1000, most=1000):
        """Until nothing is open, passing the time when nothing is due."""
        for _ in range(most):
            if not self.step(errors, n):
                if not self.batches.broker.run(_open(self.batches.keys)):
                    return
                self.clock.advance(60_000)
        raise AssertionError(f"not done after {most} steps: {self.runs[-20:]}")


def _open(keys):
    from jobrunner.broker.call import command

    return command("ZCARD", keys.batches, read=int)


@pytest.fixture
def station(client, broker, keys, clock, monkeypatch):
    clock.set()
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    for module in (batch_failures, batch_reports, failure_verdict):
        monkeypatch.setattr(module, "monotonic", lambda: clock.ms / 1000)
    return lambda **options: Station(client, broker, keys, clock, **options)


def raises_for(bad, error=None):
    bad = set(bad)
    return lambda members: None if bad.isdisjoint(members) else error or of_python("ValueError: bad")


def test_three_bad_rows_of_many_are_isolated_in_few_runs_without_a_pause(station, client, audit):
    served = station(batch=12_000)
    ids = client.queue(QUEUE).push_many(range(13_000))
    bad = [ids[17], ids[9_000], ids[11_999]]

    served.run(raises_for(bad), n=12_000)

    assert sorted(client.queue(QUEUE).ids("dead")) == bad
    assert client.queue("flights/late").counts()["waiting"] == 12_997
    assert len(served.runs) < 100
    assert served.runs[:2] == [12_000, 750], "it waits for no backoff"
    assert served.stopping.paused == []
    audit(QUEUE)


def test_bad_rows_in_a_row_pause_nothing_once_other_parts_have_worked(station, client):
    served = station()
    ids = client.queue(QUEUE).push_many(range(1000))

    served.run(raises_for(ids[500:540]))

    assert sorted(client.queue(QUEUE).ids("dead")) == ids[500:540]
    assert served.stopping.paused == []


def sink_into(database, batch_ids):
    """The function of a sink that writes each member into a SQL table."""
    connect = partial(sqlite3.connect, database)
    with closing(connect()) as made, made:
        made.execute("create table late (id text, batch_id text)")

    def store(lease):
        batch_ids.append(lease.id)
        larger = [lease.root] if lease.root != lease.id else []
        batch = SinkBatch(
            id=lease.id, epoch=lease.epoch, supersedes=tuple(larger), size=lease.size, renew=lease.renew, lease=lease
        )
        write_sql(pa.table({"id": lease.members(0, lease.size)}), batch, connect, "late")

    return store


def test_a_batch_that_was_split_before_the_server_forgot_it_is_split_again_at_once(
    station, client, raw, clock, tmp_path
):  # fmt: skip
    """Its sink refuses the whole, as it has parts of it. Each refusal cost the length of a lease and an attempt of all
    items, until they had none left."""
    served, batch_ids = station(max_attempts=3), []
    client.queue(QUEUE).configure(max_attempts=3)
    ids = client.queue(QUEUE).push_many(range(4))
    store = sink_into(tmp_path / "late.sqlite", batch_ids)

    def write(lease, *, fails=False):
        try:
            store(lease)
            if fails:
                raise ConnectionError("the catalogue is away")
        except Exception as error:
            return served.failures.set_back(None, lease, error, served.failures.cause_of(None, lease, error), 0.0)[0]
        lease.decide([], rest="succeeded")
        served.failures.succeeded()
        while not lease.advance().done:
            pass
        return "decided"

    assert write(served.batches.take(9, lease_s=LEASE_S), fails=True) == "failed"
    clock.advance(60_000)
    lease = served.batches.take(9, lease_s=LEASE_S)
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    assert write(lease, fails=True) == "split"
    assert write(served.batches.take(9, lease_s=LEASE_S)) == "decided"
    raw.flushdb()
    for key, content in before.items():
        raw.restore(key, 0, content)
    clock.advance(LEASE_S * 1000)

    outcomes = []
    while (lease := served.batches.take(9, lease_s=LEASE_S)) is not None:
        outcomes.append(write(lease))
    assert outcomes == ["split", "decided", "decided", "decided", "decided"]
    with closing(sqlite3.connect(tmp_path / "late.sqlite")) as made:
        assert sorted(one for (one,) in made.execute("select id from late")) == sorted(ids)


def end_spark(served, clock, monkeypatch, beside=0):
    """The outcome of an attempt at the batch that is due first, in which Spark ends; `beside`: the attempt at another
    batch that runs then."""
    clock.advance(60_000)
    lease = served.batches.take(1, lease_s=LEASE_S)
    monkeypatch.setattr(batch_failures, "on_spark", {lease.id: lease.epoch, "another": beside})
    return served.failures.set_back(Mock(), lease, Py4JError("gone"), Cause.ENGINE, 0.0)[0]


@pytest.mark.parametrize(("others", "beside"), [(0, 0), (20, 0), (20, 2)])
def test_an_item_that_ends_spark_at_each_attempt_dies_of_it(station, client, clock, monkeypatch, others, beside):
    """It was handed back uncounted, due at once, and ended each new process for ever, before any other item ran."""
    served = station()
    client.queue(QUEUE).configure(max_attempts=2)
    killer = client.queue(QUEUE).push(1)
    client.queue(QUEUE).push_many(range(others))
    if others:
        served.failures.succeeded()

    outcomes = [end_spark(served, clock, monkeypatch, beside) for _ in range(4)]
    assert outcomes == ["released", "released", "failed", "dead"]

    assert client.queue(QUEUE).ids("dead") == [killer]
    assert client.task(killer).record().error.endswith("gone, as in each attempt at this item")


@pytest.mark.parametrize(("others", "beside", "works"), [(20, 0, False), (20, 3, True), (0, 3, False)])
def test_an_end_of_spark_that_may_be_of_another_batch_counts_against_no_item_and_lets_others_pass(
    station, client, clock, monkeypatch, others, beside, works
):  # fmt: skip
    served = station()
    client.queue(QUEUE).configure(max_attempts=1)
    client.queue(QUEUE).push_many(range(1 + others))
    if works:
        served.failures.succeeded()

    assert [end_spark(served, clock, monkeypatch, beside) for _ in range(9)] == ["released"] * 9

    clock.advance(29_000)
    following = served.batches.take(1, lease_s=LEASE_S)
    assert following is None if not others else following.epoch == 1
    assert client.queue(QUEUE).counts()["dead"] == 0


@pytest.mark.parametrize("size", [1, 4])
def test_a_batch_that_another_driver_holds_is_left_to_it(station, client, clock, size):
    served = station()
    client.queue(QUEUE).push_many(range(size))
    late = served.batches.take(9, lease_s=LEASE_S)
    clock.advance(LEASE_S * 1000)
    other = served.batches.take(9, lease_s=LEASE_S)

    error = BatchLost("a newer attempt has written")
    assert served.failures.set_back(None, late, error, Cause.LOST, 0.0)[0] == "lost"

    other.renew()
    assert served.batches.take(9, lease_s=LEASE_S) is None


@pytest.mark.parametrize("has_worked", [True, False])
@pytest.mark.parametrize(("bad_items", "run_s"), [(100, 0.2), (250, 0.2), (3, 5), (3, 50)])
def test_bad_items_in_a_row_hold_up_those_behind_them_for_no_more_than_minutes(
    station, client, bad_items, run_s, has_worked
):  # fmt: skip
    """A producer was wrong for a while: no part of the first batch works, and its parts are due before new ones."""
    served = station(quarantine=True)
    if has_worked:
        client.queue(QUEUE).push("first")
        served.run(raises_for([]))
    ids = client.queue(QUEUE).push_many(range(600))
    fails = raises_for(ids[:bad_items])

    def errors(members):
        served.clock.advance(run_s * 1000)
        return fails(members)

    served.run(errors, n=min(bad_items, 100))

    assert sorted(client.queue(QUEUE).ids("dead", limit=600)) == ids[:bad_items]
    assert client.queue("flights/late").counts()["waiting"] == 600 - bad_items + has_worked


def test_an_outage_gets_a_bounded_number_of_batches_out_of_line(station, client):
    served, outage = station(), ConnectionError("down")
    client.queue(QUEUE).push_many(range(6_000))
    for _ in range(200):
        served.step(lambda members: outage, n=100)
        served.clock.advance(60_000)

    counts = client.queue(QUEUE).counts()
    assert (counts["pending"], counts["waiting"], counts["dead"]) == (1_716, 4_284, 0)

    served.run(raises_for([]), n=100)
    assert client.queue("flights/late").counts()["waiting"] == 6_000


def test_a_table_that_takes_no_rows_is_tried_with_one_batch(station, client):
    served, runs = station(), 20
    client.queue(QUEUE).push_many(range(1_000))
    for _ in range(runs):
        served.step(lambda members: TableError("gone"), n=100)
        served.clock.advance(60_000)

    assert (client.queue(QUEUE).counts()["pending"], served.runs) == (100, [100] * runs)


@pytest.mark.parametrize("error", [of_python("KeyError: 'price'"), StationError("typo"), ConnectionError("down")])
def test_an_error_that_begins_in_the_middle_kills_no_item_and_stops_the_station(station, client, keys, raw, error):
    """A table that was altered, a bad value in a file that the function reads, a database that is down."""
    served = station(max_attempts=3)
    client.queue(QUEUE).configure(max_attempts=3)
    client.queue(QUEUE).push_many(range(6_000))
    works = raises_for([])
    for _ in range(3):
        served.step(works, n=500)

    for _ in range(200):
        if not served.step(lambda members: error, n=500):
            served.clock.advance(60_000)

    counts = client.queue(QUEUE).counts()
    assert (counts["dead"], counts["waiting"] + counts["pending"]) == (0, 4_500)
    assert max(served.stopping.paused) == pytest.approx(60)
    assert served.failures.reason == failures.error_line(error)

    served.run(works, n=500)

    assert served.failures.reason is None
    assert client.queue("flights/late").counts()["waiting"] == 6_000
    assert client.queue(QUEUE).counts()["dead"] == 0


def test_a_fault_in_the_code_whose_errors_have_values_of_items_kills_few(station, client):
    """A bad version was deployed: each item has an error text of its own, from one line of the function."""
    served = station(max_attempts=3)
    client.queue(QUEUE).configure(max_attempts=3)
    client.queue(QUEUE).push_many(range(6_000))
    for _ in range(3):
        served.step(raises_for([]), n=500)

    def errors(members):
        return of_python(f"ValueError: {members[0]!r} is no price", 'File "/srv/orders.py", line 12, in price')

    for _ in range(2_000):
        if not served.step(errors, n=500):
            served.clock.advance(60_000)

    dead = client.queue(QUEUE).counts()["dead"]
    assert dead < 64
    served.run(raises_for([]), n=500)
    assert client.queue("flights/late").counts()["waiting"] == 6_000 - dead


@pytest.mark.parametrize("error", [of_python("KeyError: 'price'"), ConnectionRefusedError("down")])
@pytest.mark.parametrize(("batch", "max_attempts"), [(1, 2), (1, 5), (4, 1), (8, 2)])
def test_small_batches_outlive_an_error_that_all_items_have_and_restarts_of_their_worker(
    station, client, batch, max_attempts, error
):
    """Each process counted five failures anew, also where one more was the death of an item."""
    client.queue(QUEUE).configure(max_attempts=max_attempts)
    client.queue(QUEUE).push_many(range(40))
    for _ in range(7):
        served = station(max_attempts=max_attempts)
        for _ in range(25):
            if not served.step(lambda members: error, n=batch):
                served.clock.advance(5_000)
    counts = client.queue(QUEUE).counts()
    assert (counts["dead"], counts["waiting"] + counts["pending"]) == (0, 40)

    station(max_attempts=max_attempts).run(raises_for([]), n=batch)

    assert client.queue("flights/late").counts()["waiting"] == 40


@pytest.mark.parametrize("others", [40, 1])
def test_an_item_that_ends_its_python_dies_when_others_succeed_in_between_or_cannot_run(station, client, others):
    """Others cannot run while it fills the limit of the queue."""
    served = station(max_attempts=2)
    client.queue(QUEUE).configure(max_attempts=2, max_inflight=1 if others == 1 else None)
    (killer,) = client.queue(QUEUE).push_many([0])
    client.queue(QUEUE).push_many(range(others))
    served.run(raises_for([killer], SparkTaskError("the Python worker crashed")), n=1)
    assert client.queue(QUEUE).ids("dead") == [killer]
    assert client.task(killer).record().retry_count == 2
    assert served.runs == [1] * (2 + others)
    assert served.stopping.paused == []


@pytest.mark.parametrize("has_worked", [True, False])
def test_the_last_items_of_a_queue_die_of_one_error_though_no_other_item_shows_that_the_function_works(
    station, client, has_worked
):
    served = station(max_attempts=2)
    client.queue(QUEUE).configure(max_attempts=2)
    if has_worked:
        client.queue(QUEUE).push(0)
        served.run(raises_for([]))
    bad = client.queue(QUEUE).push_many(range(3))
    served.run(raises_for(bad))
    assert sorted(client.queue(QUEUE).ids("dead")) == sorted(bad)


def test_a_part_counts_when_another_driver_decided_one_of_the_same_batch(station, client):
    first, second = station(max_attempts=2), station(max_attempts=2)
    client.queue(QUEUE).configure(max_attempts=2)
    bad = client.queue(QUEUE).push_many(range(8))[1:]
    for _ in range(2):
        first.step(raises_for(bad), n=8)
    assert first.runs == [8, 1], "it dies behind the first good part"
    second.run(raises_for(bad), n=8)
    assert sorted(client.queue(QUEUE).ids("dead")) == sorted(bad)


def test_dense_bad_rows_with_one_error_are_isolated_all_the_same(station, client):
    """All larger parts fail as if no item worked. So one path of parts is followed down to items that do."""
    served = station()
    ids = client.queue(QUEUE).push_many(range(600))
    bad = ids[::3]

    served.run(raises_for(bad, of_python("KeyError: 'price'")), most=3000)

    assert sorted(client.queue(QUEUE).ids("dead", limit=1000)) == bad
    assert client.queue("flights/late").counts()["waiting"] == 400


@pytest.mark.parametrize(("quarantine", "attempts"), [(True, 1), (False, 4)])
def test_an_item_alone_dies_when_its_attempts_are_spent_or_at_once_in_quarantine(station, client, quarantine, attempts):
    served = station(quarantine=quarantine)
    client.queue(QUEUE).configure(max_attempts=4)
    ids = client.queue(QUEUE).push_many([1])
    served.run(raises_for(ids))
    assert client.task(ids[0]).record().retry_count == attempts == len(served.runs)
    assert client.task(ids[0]).record().error == "ValueError: bad"
    assert sum(end.counts["dead"] for end in served.seen) == 1


def test_an_error_of_planning_counts_when_others_have_worked_since(station, client):
    """A function may plan by what it collected: then parts without the bad item work."""
    served = station(max_attempts=2)
    client.queue(QUEUE).configure(max_attempts=2)
    ids = client.queue(QUEUE).push_many(range(400))

    served.run(raises_for([ids[200]], StationError("no column m")), n=100)

    assert client.queue(QUEUE).ids("dead") == [ids[200]]
    assert client.queue("flights/late").counts()["waiting"] == 399
    assert served.stopping.paused == []


def test_an_item_alone_of_whose_kind_nothing_worked_since_waits_and_holds_nothing_up(station, client):
    served = station()
    client.queue(QUEUE).configure(max_attempts=1)
    served.run(raises_for([]))
    client.queue(QUEUE).push_many(range(3))
    served.run(raises_for([]), n=1)
    (bad,) = client.queue(QUEUE).push_many([4])
    errors = raises_for([bad], StationError("no column m"))
    for _ in range(30):
        served.clock.advance(60_000)
        served.step(errors)
    assert client.task(bad).record().retry_count == 0
    assert served.stopping.paused == []

    client.queue(QUEUE).push_many([5])
    served.step(errors, n=1)
    served.run(errors)

    assert client.queue(QUEUE).ids("dead") == [bad]


@pytest.mark.parametrize("error", [SparkTaskError("the Python worker crashed"), ConnectionError("down")])
def test_an_item_whose_error_may_pass_is_isolated_by_repeated_failures(station, client, error):
    """One that kills its Python worker, or that a database refuses."""
    served = station()
    ids = client.queue(QUEUE).push_many(range(300))
    served.run(raises_for([ids[7]], error))
    assert client.queue(QUEUE).ids("dead") == [ids[7]]
    assert client.queue("flights/late").counts()["waiting"] == 299
    assert served.runs[:3] == [300, 300, 75]


def test_a_function_that_never_worked_is_not_searched_for_items_that_do(station, client):
    served = station()
    client.queue(QUEUE).push_many(range(100))
    for _ in range(8):
        served.step(lambda members: StationError("typo"), n=100)
        served.clock.advance(60_000)
    assert set(served.runs) == {100}
    assert served.stopping.paused[:4] == pytest.approx([1, 2, 4, 8])


def test_batches_that_fail_beside_each_other_make_one_pause(station, client):
    served = station()
    client.queue(QUEUE).push_many(range(100))
    held = [served.batches.take(1, lease_s=LEASE_S) for _ in range(40)]
    served.stopping.wait = served.stopping.paused.append
    for n, lease in enumerate(held):
        error = ConnectionError(f"down {n}")
        served.failures.set_back(None, lease, error, Cause.ITEMS, served.clock.ms / 1000)
    assert served.stopping.paused == [], "a lane that pauses holds no batch that it handed back"
    served.failures.wait_out_pause()
    assert 0 < served.stopping.paused[0] <= 1


def test_a_server_that_takes_no_rows_pauses_the_station_and_says_so_once(station, client):
    """It is full, say: it hands batches out and takes them back, but no row is staged."""
    served = station()
    ids = client.queue(QUEUE).push_many(range(3))
    full = ServerFull("at its maxmemory")
    with capture_logs() as told:
        for _ in range(9):
            assert served.step(lambda members: full)
    assert served.stopping.paused == pytest.approx([1, 2, 4, 8, 10, 10, 10, 10])
    assert [one["event"] for one in told if one["log_level"] == "error"] == ["station stops: an outage"]
    assert served.failures.reason == "ServerFull: at its maxmemory"
    assert client.task(ids[0]).record().retry_count == 0

    served.step(lambda members: None)
    assert served.failures.reason is None
    assert client.queue("flights/late").counts()["waiting"] == 3
    client.queue(QUEUE).push_many(range(3))
    served.step(lambda members: full)
    assert len(served.stopping.paused) == 8, "a lone outage costs no pause"


def of_java_function(reason):
    """An error of a function in Java, as Spark Connect sends it: without the causes."""
    return PySparkException(
        "[FAILED_EXECUTE_UDF] User defined function (`Where (geo.Where$1)`: (string) => string) failed due to: "
        f"{reason}. SQLSTATE: 39000"
    )


BRIEF = SparkTaskError(f"{WORKER}jobrunner.errors.InvalidOption: row 3: x")
"""An error of the data source, which hides its traceback."""
CAUSES = {
    Cause.ROWS: [of_python("ValueError: x"), of_python("pkg.BadRow: x"), BRIEF, PipelineError("item a"),
                 NumberFormatException("x"), of_java_function("java.lang.IllegalStateException: x"),
                 of_java_function("a.Bad: x\nfailed due to: java.lang.NoClassDefFoundError: x")],
    Cause.CODE: [of_python("ModuleNotFoundError: No module named 'x'"), of_python("NameError: x"), StationError("x"),
                 InvalidOption("files=0"), IllegalArgumentException("header flag can be true or false"),
                 UndefinedTable("x"), sqlite3.NotSupportedError("x"),
                 *map(Py4JError, [
                     f"{CALLING}java.lang.RuntimeException: java.lang.ClassNotFoundException: Class a.B not found",
                     f"{CALLING}org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme s3",
                     f"{CALLING}java.sql.SQLException: No suitable driver",
                     f"{CALLING}a.SparkException: Lost task 0.0 in stage 0.0 (TID 0) (vm): Class a.Lzo was not found",
                 ]), of_java_function("java.lang.NoClassDefFoundError: org/geo/Point"),
                 of_java_function("java.lang.NoClassDefFoundError: Could not initialize class geo.Point")],
    Cause.ITEMS: [of_python("ConnectionRefusedError: x"), of_python("requests.exceptions.ReadTimeout: x"), OSError("x"),
                  of_python("psycopg.OperationalError: x"), SparkTaskError("java.io.EOFException: worker crashed"),
                  MySQLError(2013, "Lost connection to server during query"),
                  Py4JError("[USER_RAISED_EXCEPTION] Class 7b not found"), OperationalError("x")],
    Cause.OUTAGE: [of_python("jobrunner.errors.ServerUnavailable: x"), of_python("jobrunner.errors.ServerRefused: x"),
                   of_python("jobrunner.errors.ServerFull: x"), of_python("jobrunner.errors.UnsafeServer: x"),
                   of_python("psycopg.errors.DeadlockDetected: x"), SerializationFailure("x"), LockNotAvailable("x"),
                   MySQLError(1213, "Deadlock found when trying to get lock")],
    Cause.LOST: [of_python("jobrunner.errors.BatchLost: x")],
}  # fmt: skip


def test_an_item_does_not_die_of_other_transactions_in_a_database_while_batches_beside_it_succeed(
    tmp_path, station, client
):
    served, path = station(max_attempts=3), tmp_path / "late.sqlite"
    connect = partial(sqlite3.connect, path, timeout=0, isolation_level=None)
    with closing(connect()) as holder, closing(connect()) as sink:
        holder.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="database is locked") as locked:
            sink.execute("begin immediate")
    (unlucky,) = client.queue(QUEUE).push_many([0])
    for error in [locked.value, DeadlockDetected("x"), SerializationFailure("x"), LockNotAvailable("x")] * 5:
        served.step(lambda members, error=error: error)
        client.queue(QUEUE).push_many([1])
        assert served.step(lambda members, error=error: error if unlucky in members else None)
        served.clock.advance(60_000)
    served.run(lambda members: None)
    assert client.queue("flights/late").counts()["waiting"] == 21
    assert client.queue(QUEUE).counts()["dead"] == 0


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_of_errors(monkeypatch, cause):
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    assert {error: cause_of(error, None) for error in CAUSES[cause]} == dict.fromkeys(CAUSES[cause], cause)


TRACEBACK = "Traceback (most recent call last):\n  File x\n"
HOSTILE = [
    *(f"w 7: jobrunner.errors.{name}: x" for name in ("ServerFull", "BatchLost", "InvalidOption")),
    *(f"{WORKER}jobrunner.errors.{name}: x" for name in ("ServerFull", "BatchLost", "TableError")),
    *(f"b\n\n{chained}:\n\n{TRACEBACK}{words}\n" for words in (
        "ModuleNotFoundError: x", "NameError: x", "jobrunner.errors.ServerFull: x", "jobrunner.errors.BatchLost: x",
        "psycopg.errors.DeadlockDetected: x", "jobrunner.errors.TableError: x",
    ) for chained in (
        "During handling of the above exception, another exception occurred",
        "The above exception was the direct cause of the following exception",
    )),
    f"{TRACEBACK}ModuleNotFoundError: No module named 'nix'", "\nModuleNotFoundError: x",
    "java.lang.ClassNotFoundException: a.B", "x\n\tat a.b(C.java:1)\nCaused by: java.lang.ClassNotFoundException: a.B",
    "SQLException: No suitable driver", "Class a.b.C not found", "[DATA_SOURCE_NOT_FOUND] x", "[INVALID_CONF_VALUE] x",
    'java.io.IOException: Cannot run program "x": no', "[SPARK_JOB_CANCELLED] Job 7 killed via the Web UI",
    "[TASK_WRITE_FAILED] x\nCaused by: a.b.ServerFull: x", "[TASK_WRITE_FAILED] x\nCaused by: a.TableError: x",
    "Lost task 0.0 in stage 0.0 (TID 0) (vm): a.b.ServerFull: x", "SQLSTATE: 22018\nValueError: x",
]  # fmt: skip
"""Values of items that imitate errors which are not those of items."""


def of_cast(value, kind=NumberFormatException):
    error = kind(f"[CAST_INVALID_INPUT] The value '{value}' of the type \"STRING\" cannot be cast. SQLSTATE: 22018")
    error.getCondition = lambda: "CAST_INVALID_INPUT"
    return error


QUOTING = {
    "cast": of_cast,
    "raise_error": partial(of_cast, kind=SparkRuntimeException),
    "parse_json": lambda value: Py4JError(
        f"{CALLING}org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING] Malformed records: {value}"
    ),
    "message": lambda value: of_python(f"ValueError: bad {value}"),
    "message on Connect": lambda value: PythonException(
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {TRACEBACK}ValueError: bad {value}"
    ),
    "error of this package": lambda value: SparkTaskError(f"{WORKER}jobrunner.errors.InvalidOption: row 1 ({value})"),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUOTING)
def test_a_value_that_imitates_another_error_is_the_fault_of_its_row(monkeypatch, tmp_path, kind):
    """One such payload stopped a station for ever, or made its batch a lost one."""
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    errors = {value: QUOTING[kind](value) for value in HOSTILE}
    assert {value: cause_of(error, None) for value, error in errors.items()} == dict.fromkeys(HOSTILE, Cause.ROWS)
    assert not any(map(failures.is_never_of_items, errors.values()))
    full = QUOTING[kind](os.strerror(errno.ENOSPC))
    batch = SinkBatch(id="a", supersedes=(), epoch=1, size=1)
    with pytest.raises(type(full)):
        write_folder(LocalFolders(tmp_path), batch, "/data/late", Mock(side_effect=full))
    if kind.startswith("message"):
        assert {failures.error_line(error).partition(":")[0] for error in errors.values()} == {"ValueError"}


def test_an_error_in_the_handler_of_another_is_the_one_that_counts():
    handled = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert failures.error_line(of_python(f"KeyError: 1{handled}{TRACEBACK}a.BadRow: x")) == "BadRow: x"
    assert failures.error_line(of_python(f"ImportError: ujson{handled}{TRACEBACK}ValueError: x")) == "ValueError: x"


def test_an_error_of_a_group_is_named():
    text = f"{WORKER}  + Exception Group Traceback (most recent call last):\n  |   File x\n  | ExceptionGroup: a (1)\n"
    assert failures.error_line(SparkTaskError(f"{text}  +-+-- 1 --\n    | ValueError: b")) == "ExceptionGroup: a (1)"


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        (True, "the Spark session of this process was stopped: register(spark) a new one"),
        (False, "Spark has ended, or does not answer: ConnectionRefusedError: no JVM"),
    ],
)
def test_an_engine_that_is_gone_is_named_and_not_the_call_that_met_it(station, client, monkeypatch, stopped, words):
    monkeypatch.setattr(failures, "is_alive", lambda *_: False)
    monkeypatch.setattr(failures, "is_over", lambda session: stopped)
    monkeypatch.setattr(failures, "is_classic", lambda session: True)
    served = station()
    client.queue(QUEUE).push_many(range(3))
    met = AttributeError("no attribute 'addJobTag'") if stopped else ConnectionRefusedError("no JVM")
    with capture_logs() as logs:
        served.step(lambda members: met)
    assert words in str(served.failures.failure)
    assert served.failures.failure.__cause__ is met
    assert [words in line["error"] for line in logs] == [True, True]
    assert client.queue(QUEUE).counts()["dead"] == 0


def test_a_batch_that_ends_one_engine_after_the_other_is_split_and_nothing_is_counted(
    station, client, monkeypatch, audit
):
    """It needed more memory than Java has, was handed back each time, and ended the next process for ever."""
    monkeypatch.setattr(failures, "is_alive", lambda *_: False)
    monkeypatch.setattr(failures, "is_over", lambda session: False)
    monkeypatch.setattr(failures, "is_classic", lambda session: True)
    served = station()
    client.queue(QUEUE).push_many(range(100))

    served.run(lambda members: ConnectionRefusedError("no JVM") if len(members) > 30 else None, most=50)

    assert served.runs == [100, 100, 100, 25, 25, 25, 25]
    assert client.queue("flights/late").counts()["waiting"] == 100
    assert client.queue(QUEUE).counts()["dead"] == 0
    audit(QUEUE)


UNREACHABLE = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:15002: Connection refused"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""


def test_a_spark_connect_server_that_was_away_for_all_retries_is_not_asked_again(monkeypatch):
    """Each call to it takes ten minutes."""
    monkeypatch.setattr(failures, "is_alive", lambda *_: pytest.fail("asked"))
    error = PySparkException(UNREACHABLE)
    error.getGrpcStatusCode = lambda: Enum("StatusCode", ["UNAVAILABLE"]).UNAVAILABLE
    session = SimpleNamespace(is_stopped=False)
    assert cause_of(error, session) is Cause.ENGINE
    assert str(failures.engine_gone(session, error)).endswith("127.0.0.1:15002: Connection refused")


def test_a_spark_connect_server_that_does_not_know_the_session_is_no_stop_of_the_user():
    """PySpark closes the session for it."""
    error = PySparkException("[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid.")
    assert "or its server was restarted" in str(failures.engine_gone(SimpleNamespace(is_stopped=True), error))


ENDED = " '/bin/false': it ended or printed something as it started, see the log of the executors; "
FULL = "/data/late cannot be written: No space left on device"


@pytest.mark.parametrize(
    "error", [FolderError(FULL), TableError(FULL), of_python(f"jobrunner.errors.TableError: {FULL}")],
    ids=["a folder", "a table", "a table, written by an executor"],
)  # fmt: skip
def test_a_disk_that_is_almost_full_and_takes_small_rows_kills_no_item(station, client, error):
    """That others fit says nothing about those that do not."""
    served = station(max_attempts=1)
    client.queue(QUEUE).configure(max_attempts=1)
    large = client.queue(QUEUE).push_many(range(41))[1::2]
    for _ in range(41):
        served.step(raises_for(large, error), n=1)
        served.clock.advance(500)
    assert client.queue(QUEUE).counts()["dead"] == 0
    assert client.queue("flights/late").counts()["waiting"] > 2
    served.run(raises_for([]), n=1)
    assert client.queue("flights/late").counts()["waiting"] == 41


def test_a_table_that_does_not_take_the_rows_of_one_worker_stops_it_and_splits_no_batch(station, client):
    """Beside one with a newer version of the pipeline, which would process the parts, item by item."""
    old, new = station(), station()
    client.queue(QUEUE).push_many(range(400))
    works, misfits = raises_for([]), lambda members: TableError("table late has a column 'c' and the rows have not")
    old.step(works, n=20)
    for _ in range(9):
        old.step(misfits, n=20)
        new.step(works, n=20)
    assert set(old.runs + new.runs) == {20}
    assert sum(old.stopping.paused) > 1
    assert old.failures.reason == "TableError: table late has a column 'c' and the rows have not"


@pytest.mark.parametrize("error", [TableError("table late is gone"), StationError("no column m")])
def test_a_station_whose_only_batch_fails_again_and_again_says_that_it_stops(station, client, error):
    """In a trickle no second batch comes that fails as well; a log of errors and `pipeline show` had nothing of it."""
    served = station()
    client.queue(QUEUE).push(0)
    served.run(raises_for([]))
    client.queue(QUEUE).push(1)
    with capture_logs() as logs:
        for _ in range(20):
            served.step(lambda members: error)
            served.clock.advance(60_000)
    told = [(one["event"], one["error"]) for one in logs if one["log_level"] == "error"]
    assert told == [("station stops: the error is no item's", failures.error_line(error))]
    assert served.failures.reason == failures.error_line(error)
    served.run(raises_for([]))
    assert served.failures.reason is None


def test_a_commit_that_fails_for_some_rows_holds_up_no_others(station, client):
    """Libraries of tables do not say which value they refuse."""
    served = station()
    served.run(raises_for([]))
    ids = client.queue(QUEUE).push_many(range(100))
    refused = TableError("table late: the commit failed: OverflowError: date value out of range")
    refused.may_be_of_rows = True
    served.step(raises_for([]), n=1)
    for _ in range(60):
        if not served.step(raises_for([ids[50]], refused), n=99):
            served.clock.advance(60_000)
    assert client.queue("flights/late").counts()["waiting"] == 99
    assert client.queue(QUEUE).counts()["dead"] == 0


def test_a_function_that_returns_each_row_twice_kills_no_item(station, client):
    """Such as one whose join meets a key twice. The error names an item, another one in each batch, and all died."""
    served = station(batch=10)
    client.queue(QUEUE).push_many([Item(n, max_attempts=2) for n in range(80)])

    def twice(members):
        return PipelineError(f"station 'x' returned 2 rows for item {members[0]} ({len(members)} such items): drop")

    with capture_logs() as logs:
        for _ in range(90):
            served.step(twice, n=10)
            served.clock.advance(1_000)
    assert client.queue(QUEUE).counts()["dead"] == 0
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["station stops: the error is no item's"]
    assert served.failures.reason.startswith("PipelineError: station 'x' returned 2 rows for item")
    served.run(raises_for([]), n=10)
    assert client.queue("flights/late").counts()["waiting"] == 80


def test_a_batch_that_is_cancelled_at_a_stop_says_so(station, client, monkeypatch):
    served = station()
    client.queue(QUEUE).push_many(range(3))
    monkeypatch.setattr(served.stopping, "is_set", lambda: True)
    cancelled = Py4JError("org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled")
    with capture_logs() as logs:
        served.step(lambda members: cancelled)
    (line,) = logs
    assert (line["error"], line["cause"]) == ("SparkError: its jobs were cancelled", "stop")


CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 7 cancelled"
BY_OTHERS = [
    (" as part of cancellation of all jobs SQLSTATE: XXKDA",
     ", as all jobs of this Spark were: by cancelAllJobs(), a Ctrl-C or a stopped cell"),
    (" killed via the Web UI", " in Spark's web UI"),
    (" because Stage 9 was cancelled: killed via the Web UI", " in Spark's web UI"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "told"), BY_OTHERS)
def test_jobs_that_somebody_cancelled_are_no_failure_of_their_items(station, client, said, told):
    """As a notebook does whose cell is interrupted, for all jobs of its Spark."""
    served = station(max_attempts=2)
    (only,) = client.queue(QUEUE).push_many([1])
    for _ in range(4):
        assert served.step(lambda members: Py4JError(f"{CANCELLED}{said}"))
    assert served.failures.reason == f"SparkError: its jobs were cancelled{told}"
    assert (client.task(only).state, client.task(only).record().retry_count) == ("pending", 0)
    served.step(lambda members: None)
    assert client.queue("flights/late").counts()["waiting"] == 1


def test_jobs_that_a_function_cancelled_itself_are_a_failure_of_its_items(monkeypatch):
    """Such as those of an item that takes too long."""
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    assert cause_of(Py4JError(f"{CANCELLED} part of cancelled job tags [slow]"), None) is Cause.ITEMS


def test_a_spark_whose_jobs_somebody_cancels_is_alive():
    """Else two interrupts of a notebook end its worker, the second one in the check behind the first."""
    said = f"{CANCELLED} as part of cancellation of all jobs"

    class Cancelling:
        addTag = removeTag = lambda *_: None  # noqa: N815 - as sessions of Spark Connect have it

        def range(self, *_):
            raise Py4JError(said)

    assert failures.is_alive(Cancelling())
    said = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
    assert not failures.is_alive(Cancelling())


def test_a_format_that_is_misspelt_is_no_item_s_fault_and_reads_as_one_error(monkeypatch):
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    error = Py4JError("An error occurred while calling o7.save.\n: org.apache.spark.SparkClassNotFoundException: "
                      "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: parquett. SQLSTATE: 42K02")  # fmt: skip
    assert cause_of(error, None) is Cause.CODE
    assert failures.error_line(error) == (
        "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: parquett."
    )


LOST = "An error occurred while calling o71.collectToPython.\n: org.apache.spark.SparkException: "
PORT = "reading the port number from"
INVALID = "preloaded_daemon's standard output. Invalid port number/socket path:\n  1751477356 (0x68656c6c)"
LOST_TASK = f"{LOST}Job aborted due to stage failure: Lost task 0.0 in stage 0.0 (TID 0) (vm executor driver): "


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f'{LOST_TASK}java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory\n\tat x',
         " '/no/python': error=2, No such file or directory; "),
        (f"{LOST}EOFException occurred while {PORT} pyspark.daemon's stdout.\n\tat x", ENDED),
        (f"{LOST}EOFException occurred while {PORT} pyspark.daemon's stdout and terminated with code: 1..", ENDED),
        (f"{LOST_TASK}org.apache.spark.SparkException: \nBad data in jobrunner.spark.{INVALID}", ENDED),
    ],
)  # fmt: skip
def test_a_python_of_executors_that_does_not_start_is_no_item_s_fault(station, client, monkeypatch, text, named):
    """All items died of it, one by one, as it has several texts."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(pythonExec="/bin/false"))
    served = station(max_attempts=1)
    client.queue(QUEUE).configure(max_attempts=1)
    client.queue(QUEUE).push_many(range(3))
    with capture_logs() as logs:
        for _ in range(5):
            served.step(lambda members: Py4JError(text))
            served.clock.advance(60_000)
    assert client.queue(QUEUE).counts()["dead"] == 0
    assert set(served.runs) == {3}
    (told,) = [one for one in logs if one["log_level"] == "error"]
    assert told["event"] == "station stops: the error is no item's"
    assert told["error"] == (
        f"SparkError: executors cannot start Python{named}name one that starts there by spark.pyspark.python, or "
        "PYSPARK_PYTHON"
    )


def test_an_error_of_python_that_says_the_same_is_that_of_a_row():
    error = of_python('ValueError: Cannot run program "x": no')
    assert failures.error_line(error) == 'ValueError: Cannot run program "x": no'
    assert not failures.is_never_of_items(PySparkException(str(error)))


@pytest.mark.parametrize("where", ["_attempt-a@1.12ab", "_attempt-b@3.34cd"])
def test_a_folder_that_cannot_be_made_is_the_same_error_for_each_batch(tmp_path, where):
    """Hadoop names the folder of the attempt: as many errors as batches would count against their items."""

    def save(_own):
        raise PythonException(f"Job aborted.\njava.io.IOException: Mkdirs failed to create file:{where} (exists=false)")

    with pytest.raises(FolderError) as told:
        write_folder(LocalFolders(tmp_path), SinkBatch(id="a", supersedes=(), epoch=1, size=1), "/data/late", save)
    assert str(told.value) == (
        "/data/late cannot be written: no folder can be made in it, which may be for lack of rights"
    )


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_path_that_is_no_folder_is_no_item_s_fault(tmp_path, kind):
    """Such as the link to a disk that is not mounted: a few items would die of it before it is."""
    at = tmp_path / "late"
    at.touch() if kind == "file" else at.symlink_to(tmp_path / "away")
    folders = LocalFolders(at)

    def save(_own):
        folders.write("_jobrunner/batches/note", b"")

    with pytest.raises(FolderError) as told:
        write_folder(folders, SinkBatch(id="a", supersedes=(), epoch=1, size=1), str(at), save)
    assert str(told.value) == f"{at} cannot be written: {at} is no folder, or a link to one that is away"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMLINK, os.strerror(errno.EMLINK), "/data/late/batch=a"), "Too many links"),
        (Py4JError("An error occurred while calling o7.rename.\n: java.net.ConnectException: Connection refused"),
         "ConnectException: Connection refused"),
    ],
)  # fmt: skip
def test_what_a_file_system_refuses_behind_the_rows_is_no_item_s_fault(tmp_path, monkeypatch, error, told):
    """Such as a store that is away. What it refuses while the rows are made may be an error of a row."""
    monkeypatch.setattr(LocalFolders, "rename", Mock(side_effect=error))
    batch = SinkBatch(id="a", supersedes=(), epoch=1, size=1)

    with pytest.raises(FolderError) as caught:
        write_folder(LocalFolders(tmp_path), batch, "/data/late", lambda own: (tmp_path / own).mkdir())
    assert str(caught.value) == f"/data/late cannot be written: {told}"
    with pytest.raises(type(error)) as raised:
        write_folder(LocalFolders(tmp_path), batch, "/data/late", Mock(side_effect=error))
    assert raised.value is error


def test_a_path_where_no_folder_can_be_made_is_no_item_s_fault():
    """Such as a file system that is mounted at its first use, and is away."""
    folders = LocalFolders(Path("/proc/nope/late"))

    def save(_own):
        folders.write("_jobrunner/batches/note", b"")

    with pytest.raises(FolderError) as told:
        write_folder(folders, SinkBatch(id="a", supersedes=(), epoch=1, size=1), "/proc/nope/late", save)
    assert str(told.value) == "folder /proc/nope cannot be made: No such file or directory"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("p=" + "x" * 254, "column 'p', and have a value longer than a name of 255 bytes: '" + "x" * 40 + "'"),
        ("a%2Fb=x\0y", "column 'a/b', and have a value with a zero byte: 'x\\x00y'"),
    ],
)
def test_a_value_that_no_folder_can_be_named_after_is_the_fault_of_its_item(tmp_path, name, told):
    """Else one item would stop the station for good."""

    def save(own):
        raise PythonException(
            f"Job aborted.\nCaused by: java.io.IOException: Mkdirs failed to create file:/data/late/{own}/_temporary/0/"
            f"attempt_7/{name} (exists=false, cwd=file:/)"
        )

    with pytest.raises(PipelineError) as error:
        write_folder(LocalFolders(tmp_path), SinkBatch(id="a", supersedes=(), epoch=1, size=1), "/data/late", save)
    assert str(error.value) == f"rows for /data/late are partitioned by {told}"


@pytest.mark.parametrize("attempt", ["a@1.12ab/_temporary/0/_temporary/attempt_1", "b@3.34cd/_temporary/0/attempt_2"])
def test_a_file_that_cannot_be_written_has_the_reason_and_the_same_words_for_each_batch(attempt):
    file = f"/data/late/_attempt-{attempt}/p=ñ/part-00001-1c384b3a-4969-43bc-9f52-7161eb612cb8.c000.snappy.parquet"
    error = Py4JError(
        f"An error occurred while calling o7.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed "
        f"while writing rows to file:/data/late/_attempt-{attempt}. SQLSTATE: 58030\n\tat a.B.c(B.scala:1)\n"
        f"Caused by: java.io.IOException: no\n\tat a.B.c(B.scala:1)\n"
        f"Caused by: java.nio.file.InvalidPathException: Malformed input or unmappable characters: {file}\n\tat a.B.c"
    )
    assert failures.error_line(error) == "InvalidPathException: Malformed input or unmappable characters: p=ñ"


def test_only_errors_that_come_again_end_a_task_at_its_first_try():
    again = {str(error) for errors in CAUSES.values() for error in errors if comes_again(str(error))}
    assert again == {str(error) for error in CAUSES[Cause.ROWS][:3] + CAUSES[Cause.CODE][:2]}


def test_when_everything_fails_the_driver_pauses_longer_and_longer():
    breaker = CircuitBreaker()
    pauses = [breaker.failed() for _ in range(30)]
    assert pauses[:9] == [0, 0, 0, 0, 0, 1, 2, 4, 8]
    assert max(pauses) == 60
    breaker.succeeded()
    assert breaker.failed() == 0


REFUSED = ServerRefused("no rights to one queue")


@pytest.mark.parametrize(("several", "bad"), [(1, 1), (200, 1), (200, 3), (5, 5)])
def test_items_that_the_server_refuses_for_ever_in_an_idle_station_die_of_that(station, client, raw, several, bad):
    """They came again every quarter of a minute, with the others of their batch, as nothing succeeded in between."""
    served = station(max_attempts=3)
    client.queue(QUEUE).configure(max_attempts=3)
    ids = client.queue(QUEUE).push_many(range(several))

    served.run(raises_for(ids[-bad:], REFUSED))

    assert sorted(client.queue(QUEUE).ids("dead")) == ids[-bad:]
    assert {client.task(one, queue=QUEUE).record().error for one in ids[-bad:]} == {f"ServerRefused: {REFUSED}"}
    assert client.queue("flights/late").counts()["waiting"] == several - bad
    assert served.runs.count(several) > 5, "the first refusals cost no attempt"
    assert served.failures.reason is None
    assert [*raw.scan_iter(match="*:rows:*"), *raw.scan_iter(match="*:nonces")] == []


@pytest.mark.parametrize(("several", "maxmemory"), [(3, 1), (200, 0)])
def test_refusals_of_a_server_that_takes_no_rows_and_of_all_items_kill_none(
    station, client, raw, several, maxmemory
):
    served = station(max_attempts=3)
    client.queue(QUEUE).configure(max_attempts=3)
    ids = client.queue(QUEUE).push_many(range(several))
    served.step(raises_for(ids, REFUSED))
    raw.config_set("maxmemory", maxmemory)
    try:
        for _ in range(150):
            if not served.step(raises_for(ids, REFUSED)):
                served.clock.advance(60_000)
    finally:
        raw.config_set("maxmemory", 0)

    assert served.failures.reason == f"ServerRefused: {REFUSED}"
    assert client.queue(QUEUE).counts()["dead"] == 0

    served.run(raises_for([]))

    assert client.queue("flights/late").counts()["waiting"] == several
