"""Spark stations whose driver dies, hangs or loses its lease: every item moves on once, by any driver."""

import threading
from asyncio import CancelledError

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.connect import Endpoint
from jobrunner.client.batches import Batches
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import BatchLost, ServerRefused, ServerUnavailable, SparkMissing
from jobrunner.outcome import Retry, Snooze
from jobrunner.retry import Backoff
from jobrunner.spark.failures import Cause, cause_of, error_line, is_alive
from jobrunner.spark.station import batch_failures
from jobrunner.spark.station import driver as station_driver
from jobrunner.spark.station import lane as station_lane
from jobrunner.spark.station.background import LeaseRenewal
from jobrunner.spark.station.batch_jobs import SparkJobs
from jobrunner.spark.station.driver import StationDriver

NOTHING = dict.fromkeys(("waiting", "scheduled", "pending", "dead", "done"), 0)


@pytest.fixture
def leave(flights):
    """A station that leaves items as they are, with three in its queue."""

    @flights.spark_station("clean", to="late", max_wait=0, backoff=Backoff(base=0))
    def leave(df, spark):
        return df

    flights.declare("late")
    return flights.push_many("clean", [1, 2, 3])


@pytest.fixture
def overtake(server, client, clock):
    """overtake(): another driver, for which the leases have ended, takes the batch over."""

    def take(hours=1.0):
        clock.ms = clock.ms or float(broker_of(client).run(_server_time())) * 1000
        later = Broker(Endpoint(server.url), now_ms=lambda: repr(clock.ms + hours * 3_600_000).encode())
        return Batches(later, keys_of(client).queue("flights/clean")).take(1, lease_s=1.0)

    return take


def _server_time():
    return command("TIME", read=lambda reply: reply[0])


def leftovers(raw, keys):
    """Keys of batches but for the tombstones of those that are done."""
    found = [key.decode() for key in raw.scan_iter(match=keys.queue("flights/clean").batch + b"*")]
    return [key for key in found if raw.type(key) != b"hash" or raw.hget(key, "state") not in (b"done", b"split")]


def test_a_batch_that_was_taken_over_is_refused_when_it_stages(leave, take, overtake, drive, audit, raw, keys, spark):
    slow = take("clean")
    other = overtake()
    assert (other.id, other.epoch, other.size) == (slow.lease.id, 2, 3)
    with pytest.raises(Exception) as caught:
        slow.stage()
    assert cause_of(caught.value, spark) is Cause.LOST
    assert error_line(caught.value).startswith("BatchLost: batch")
    assert audit("flights/clean")["pending"] == 3


def test_a_batch_that_was_taken_over_is_refused_when_it_decides(leave, take, overtake, audit):
    slow = take("clean")
    slow.stage()
    slow.check()
    assert overtake().epoch == 2
    with pytest.raises(BatchLost):
        slow.decide()
    assert audit("flights/late")["waiting"] == 0


def test_a_driver_that_died_before_the_decision_has_its_batch_done_by_the_next(
    leave, take, drive, found, raw, keys, audit, clock, client
):
    dead = take("clean", lease_s=0.001)
    with pytest.raises(Exception, match="BatchLost"):
        dead.stage()
    assert drive("clean") >= 1
    assert found("late") == dict(zip(leave, [1, 2, 3], strict=True))
    assert audit("flights/clean") == NOTHING
    assert leftovers(raw, keys) == []


def test_a_driver_that_died_between_stage_and_decision_leaves_nothing_behind(
    leave, take, drive, found, raw, keys, audit, client
):
    dead = take("clean", lease_s=3600)
    dead.stage()
    dead.check()
    raw.zadd(keys.queue("flights/clean").batches, {dead.lease.id: 0})  # the lease ends now
    raw.hset(keys.queue("flights/clean").batch + dead.lease.id.encode(), "ends", 1)
    assert drive("clean") >= 1
    assert found("late") == dict(zip(leave, [1, 2, 3], strict=True))
    assert audit("flights/clean") == NOTHING
    assert leftovers(raw, keys) == []


def test_what_a_driver_decided_before_it_died_is_rolled_forward_by_the_next(
    leave, take, drive, found, raw, keys, audit, flights, client
):
    dead = take("clean", lease_s=3600)
    dead.run()
    assert audit("flights/late")["waiting"] == 0
    raw.zadd(keys.queue("flights/clean").finishing, {dead.lease.id: 0})
    calls = []
    station = flights.spark_stations["flights/clean"]
    object.__setattr__(station, "function", lambda df, spark: calls.append(1))
    assert drive("clean") == 1
    assert calls == [], "only what is open is transformed"
    assert found("late") == dict(zip(leave, [1, 2, 3], strict=True))
    assert leftovers(raw, keys) == []


def test_a_lost_lease_cancels_what_spark_runs_for_the_batch(leave, take, spark, monkeypatch):
    run = take("clean", lease_s=0.3)
    gone = threading.Event()
    monkeypatch.setattr(run.lease, "renew", lambda: (gone.set(), (_ for _ in ()).throw(BatchLost("gone")))[1])

    def forever(batches):
        from time import sleep

        for batch in batches:
            sleep(600)
            yield batch

    jobs = SparkJobs(spark, "jobrunner-test")
    with jobs, LeaseRenewal(run.lease, 0.3, jobs) as keeping, pytest.raises(Exception, match="cancelled"):
        spark.range(2).mapInArrow(forever, "id long").collect()
    assert keeping.lost
    assert gone.is_set()


@pytest.mark.parametrize(("how", "told"), [("all", "as all jobs of this Spark were"), ("web UI", "in Spark's web UI")])
def test_jobs_that_somebody_cancels_are_known_as_such(flights, take, spark, how, told):
    def forever(batches):
        from time import sleep

        for batch in batches:
            sleep(600)
            yield batch

    flights.spark_station("clean", to="late", schema="n int")(lambda df, spark: df.mapInArrow(forever, df.schema))
    flights.declare("late")
    flights.push("clean", {"n": 1})
    scala, over = spark.sparkContext._jsc.sc(), threading.Event()

    def cancel():
        while not over.wait(0.1):
            for job in scala.statusTracker().getActiveJobIds():
                scala.cancelAllJobs() if how == "all" else scala.cancelJob(job, "killed via the Web UI")

    other = threading.Thread(target=cancel)
    other.start()
    try:
        with pytest.raises(Exception, match="cancelled") as caught:
            take("clean").run()
    finally:
        over.set()
        other.join()
    assert told in error_line(caught.value)
    assert cause_of(caught.value, spark) is Cause.OUTAGE


@pytest.mark.parametrize("steering", [Snooze(in_=3600), Retry(in_=3600)])
@pytest.mark.parametrize("how", ["raised", "returned"])
def test_a_batch_that_asks_for_it_is_due_again_later_and_not_halved(flights, drive, raw, keys, steering, how, audit):
    @flights.spark_sink("late", max_wait=0)
    def store(df, spark, batch):
        if how == "raised":
            raise steering
        return steering

    flights.push_many("late", [1, 2, 3])
    for _ in range(3):
        assert drive("late") <= 1
        queue = keys.queue("flights/late")
        assert raw.zcard(queue.batches) == 1
    ((batch_id, due),) = raw.zrange(queue.batches, 0, -1, withscores=True)
    assert due / 1000 - raw.time()[0] > 3500
    assert raw.hget(queue.batch + batch_id, "failures") == b"0"


def test_an_outage_of_the_server_is_no_failure_of_items(flights, drive, raw, keys, audit):
    @flights.spark_sink("late", max_wait=0)
    def store(df, spark, batch):
        if batch.attempt < 4:
            raise ServerUnavailable("no server")

    flights.push_many("late", [1, 2])
    assert drive("late") == 4
    assert audit("flights/late") == NOTHING


def test_a_damaged_item_costs_the_others_of_its_batch_nothing(flights, take, drive, raw, keys, audit):
    """The error reply for its hash must not fail the batch, and must not be repeated as an outage for ever."""
    seen = []

    @flights.spark_sink("late", max_wait=0, schema="n int")
    def store(df, spark, batch):
        seen.append((batch.attempt, sorted(row.n for row in df.collect())))

    _, second, _ = flights.push_many("late", [{"n": n} for n in range(3)])
    lease = take("late").lease
    raw.set(keys.queue("flights/late").task(second), "no hash")
    lease.release()

    assert drive("late") == 1

    assert seen == [(2, [0, 2])]
    assert audit("flights/late") == NOTHING


def test_a_refusal_of_one_row_does_not_keep_a_station_from_the_others(flights, driver_of, spark, audit):
    """As of a function that writes to a queue which its user may not write to. It was handed out first each time."""
    done = []

    @flights.spark_sink("late", max_wait=0, batch=1, parallel=1, schema="n int")
    def store(df, spark, batch):
        (row,) = df.collect()
        if row.n == 0:
            raise ServerRefused("no rights to one queue")
        done.append(row.n)

    flights.push_many("late", [{"n": n} for n in range(4)])
    driver = driver_of("late")
    for _ in range(12):
        driver.step(spark)
        if len(done) == 3:
            break
    driver.stop(20)

    assert sorted(done) == [1, 2, 3]
    found = audit("flights/late")
    assert (found["pending"], found["dead"]) == (1, 0)


def test_an_item_whose_batch_is_refused_again_and_again_while_others_succeed_dies_of_that(
    flights, driver_of, spark, audit, clock, client
):
    """Its batch came again for ever, with no attempt counted."""
    done = []

    @flights.spark_sink("late", max_wait=0, batch=2, schema="n int", max_attempts=3, backoff=Backoff(base=1))
    def store(df, spark, batch):
        found = [row.n for row in df.collect()]
        if 0 in found:
            raise ServerRefused("no rights to one queue")
        done.extend(found)

    clock.set(float(broker_of(client).run(_server_time())) * 1000)
    bad, _ = flights.push_many("late", [{"n": 0}, {"n": 1}])
    driver = driver_of("late")
    driver._failures.wait_out_pause = lambda: None
    for turn in range(1, 40):
        driver.step(spark)
        if 1 in done and client.queue("flights/late").counts()["dead"]:  # no audit: members are moved meanwhile
            break
        flights.push("late", {"n": 2 * turn})
        driver.step(spark)
        clock.advance(100_000)
    while driver.step(spark):
        pass
    driver.stop(20)

    assert client.task(bad, queue="flights/late").record().error.startswith("ServerRefused: no rights to one queue")
    assert sorted(done) == [1, *range(2, 2 * turn, 2)]
    assert audit("flights/late") == NOTHING | {"dead": 1}


@pytest.fixture
def outage(monkeypatch):
    """outage(driver, n): the next n calls of the driver find no server; returns a list that is empty when they were."""

    def begin(driver, calls):
        left, run = list(range(calls)), driver._broker.run

        def refused(call):
            if not left:
                return run(call)
            left.pop()
            raise ServerUnavailable("no server")

        monkeypatch.setattr(driver._broker, "run", refused)
        return left

    return begin


@pytest.mark.parametrize(
    ("error", "failures"),
    [(ServerUnavailable("no server"), b"0"), (Snooze(in_=0), b"0"), (ValueError("bad"), b"1")],
)
def test_an_outage_while_a_batch_is_handed_back_costs_the_items_nothing(
    flights, driver_of, spark, outage, raw, keys, error, failures
):
    left = []

    @flights.spark_sink("late", max_wait=0, backoff=Backoff(base=0))
    def store(df, spark, batch):
        left.append(outage(driver, 3))
        raise error

    flights.push_many("late", [1, 2])
    driver = driver_of("late")

    assert driver.step(spark)

    assert left == [[]]
    driver.stop(0)
    queue = keys.queue("flights/late")
    ((batch_id, _),) = raw.zrange(queue.batches, 0, -1, withscores=True)
    assert raw.hmget(queue.batch + batch_id, "failures", "expiries", "ends") == [
        failures,
        b"0" if failures == b"1" else None,
        b"0",
    ]


def test_an_outage_while_a_batch_waits_for_items_costs_them_nothing(flights, driver_of, spark, outage, drive, audit):
    attempts = []

    @flights.spark_sink("late", max_wait=0.05)
    def store(df, spark, batch):
        attempts.append(batch.attempt)

    flights.push_many("late", [1, 2])
    driver = driver_of("late")
    lease = driver._batches.take(9, lease_s=60)
    left = outage(driver, 1)

    driver._source.gathering.fill(lease)

    assert left == []
    lease.release()
    driver.stop(0)
    assert drive("late") == 1
    assert attempts == [2]


def test_an_item_that_came_in_by_a_reply_that_was_lost_is_run(flights, driver_of, spark, monkeypatch, audit):
    """The server is back for the attempt: it must not end members of whom its function knows nothing."""
    seen = []

    @flights.spark_sink("late", max_wait=0.05, schema="n int")
    def store(df, spark, batch):
        seen.extend(row.n for row in df.collect())

    flights.push_many("late", [{"n": 1}, {"n": 2}])
    driver = driver_of("late")
    run, top_up, lost = driver._broker.run, driver._batches.top_up, []

    def loses_its_reply(call):
        found = run(call)
        monkeypatch.setattr(driver._broker, "run", run)
        lost.append(found)
        raise ServerUnavailable("the reply was lost")

    def more_came(lease, n):
        flights.push("late", {"n": 3})
        if lease.size and not lost:
            monkeypatch.setattr(driver._broker, "run", loses_its_reply)
        return top_up(lease, n)

    monkeypatch.setattr(driver._batches, "top_up", more_came)
    assert driver.step(spark)
    driver.stop(20)
    assert lost[0][0] == 4
    assert sorted(seen) == [1, 2, 3, 3]
    assert audit("flights/late") == NOTHING


def test_an_outage_longer_than_the_lease_leaves_the_batch_to_its_end(flights, driver_of, outage, audit):
    @flights.spark_sink("late", lease=0.05)
    def store(df, spark, batch):
        """Never runs."""

    flights.push_many("late", [1, 2])
    driver = driver_of("late")
    lease = driver._batches.take(9, lease_s=0.05)
    outage(driver, 1000)

    with pytest.raises(ServerUnavailable):
        driver._failures.reports.send(lease.release)

    driver.stop(0)
    assert audit("flights/late")["pending"] == 2


def test_a_stop_while_a_decided_batch_is_rolled_forward_ends_quietly(flights, driver_of, monkeypatch, audit):
    @flights.spark_sink("late")
    def store(df, spark, batch):
        """Never runs."""

    flights.push_many("late", [1, 2])
    driver = driver_of("late")
    lease = driver._batches.take(9, lease_s=60)
    lease.decide([], rest="succeeded")
    asked, closed = threading.Event(), threading.Event()
    advance, close = lease.advance, driver._broker.close
    told, counted, raised = [], [], []

    def behind_the_close():
        asked.set()
        assert closed.wait(30)
        return advance()

    monkeypatch.setattr(driver._broker, "close", lambda: (close(), closed.set()))
    monkeypatch.setattr(lease, "advance", behind_the_close)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    driver._lanes[0].closing.hand(lease, lambda: told.append(1), counted.append)
    assert asked.wait(30)

    driver.stop(0)

    assert (raised, told, counted, driver.in_hand) == ([], [], [], 0)
    assert audit("flights/late")["pending"] == 2, "others finish it"


def test_a_batch_in_hand_at_the_end_of_the_grace_is_handed_back(flights, driver_of, audit, wait_until, raw, keys):
    @flights.spark_station("clean", to="late", max_wait=0)
    def slow(df, spark):
        def forever(batches):
            from time import sleep

            for batch in batches:
                sleep(600)
                yield batch

        return df.mapInArrow(forever, df.schema)

    flights.declare("late")
    flights.push_many("clean", [1, 2])
    driver = driver_of("clean")
    driver.start()
    wait_until(lambda: driver.in_hand == 2, timeout_s=30)
    driver.stop(0.5)
    queue = keys.queue("flights/clean")
    ((batch_id, due),) = raw.zrange(queue.batches, 0, -1, withscores=True)
    assert due / 1000 <= raw.time()[0] + 1
    assert raw.hget(queue.batch + batch_id, "failures") == b"0"
    assert audit("flights/clean")["pending"] == 2


@pytest.mark.parametrize("error", [type("PanicException", (BaseException,), {}), CancelledError])
def test_an_error_that_is_no_exception_is_an_error_of_its_item(flights, drive, client, audit, error):
    @flights.spark_station("clean", to="late", max_wait=0, batch=1, max_attempts=2, backoff=Backoff(base=0))
    def panic(df, spark):
        if df.first()["payload"] == "2":
            raise error("index out of bounds")
        return df

    flights.declare("late")
    ids = flights.push_many("clean", [1, 2, 3])
    drive("clean")
    assert audit("flights/clean") == NOTHING | {"dead": 1}
    assert audit("flights/late")["waiting"] == 2
    (dead,) = client.queue("flights/clean").tasks("dead")
    assert (dead.id, dead.attempts) == (ids[1], 2)
    assert dead.error.startswith(f"{error.__name__}: index out of bounds (test_stations_faults.py:")


def test_a_ctrl_c_ends_the_process_and_not_the_item(flights, driver_of, spark, audit):
    @flights.spark_station("clean", to="late", max_wait=0)
    def interrupted(df, spark):
        raise KeyboardInterrupt

    flights.declare("late")
    flights.push("clean", 1)
    driver = driver_of("clean")
    with pytest.raises(KeyboardInterrupt):
        driver.step(spark)
    driver.stop(0)
    assert audit("flights/clean")["pending"] == 1


def test_when_the_engine_is_gone_the_driver_says_so_and_hands_the_batch_back(
    leave, driver_of, spark, monkeypatch, audit
):
    monkeypatch.setattr(batch_failures, "cause_of", lambda *_: Cause.ENGINE)
    driver = driver_of("clean")
    refused = ConnectionRefusedError("no JVM")
    monkeypatch.setattr(station_lane.BatchRun, "run", lambda self: (_ for _ in ()).throw(refused))
    assert driver.step(spark)
    assert isinstance(driver.failure.__cause__, ConnectionRefusedError)
    driver.stop(0)
    assert audit("flights/clean")["pending"] == 3


def test_a_driver_without_a_session_says_so(leave, driver_of, monkeypatch, wait_until, audit):
    def missing(app):
        raise SparkMissing("PySpark is not installed")

    monkeypatch.setattr(station_driver, "spark_session", missing)
    driver = driver_of("clean")
    driver.start()
    wait_until(lambda: driver.failure)
    driver.stop(5)
    assert isinstance(driver.failure, SparkMissing)
    assert audit("flights/clean")["waiting"] == 3


def test_a_stop_while_spark_starts_does_not_wait_for_it(leave, driver_of, monkeypatch, wait_until, audit, spark):
    """Nothing is held then, and Java ignores a Ctrl-C that its process group gets."""
    starts, goes_on = threading.Event(), threading.Event()

    def slow(app):
        starts.set()
        goes_on.wait(60)
        return spark

    monkeypatch.setattr(station_driver, "spark_session", slow)
    driver = driver_of("clean")
    driver.start()
    wait_until(starts.is_set)
    stopping = threading.Thread(target=driver.stop, args=(600,))
    stopping.start()
    stopping.join(30)
    try:
        assert not stopping.is_alive()
        assert audit("flights/clean")["waiting"] == 3
    finally:
        goes_on.set()
    wait_until(lambda: not any(loop.is_alive for loop in driver._loops))
    assert driver.failure is None
    assert driver._spark is None, "it began nothing more"


def test_an_engine_that_died_between_two_batches_costs_the_items_nothing(
    leave, driver_of, spark, monkeypatch, raw, keys, audit
):
    monkeypatch.setattr(SparkJobs, "__enter__", lambda self: (_ for _ in ()).throw(ConnectionRefusedError("no JVM")))
    monkeypatch.setattr(batch_failures, "cause_of", lambda *_: Cause.ENGINE)
    driver = driver_of("clean")

    assert driver.step(spark)

    assert isinstance(driver.failure.__cause__, ConnectionRefusedError)
    driver.stop(0)
    queue = keys.queue("flights/clean")
    ((batch_id, _),) = raw.zrange(queue.batches, 0, -1, withscores=True)
    assert raw.hmget(queue.batch + batch_id, "failures", "ends") == [b"0", b"0"]
    assert audit("flights/clean")["pending"] == 3


def test_a_batch_may_wait_for_items_longer_than_its_lease(flights, client, clock, driver_of, monkeypatch):
    @flights.spark_station("clean", to="late", max_wait=0.3, lease=0.05)
    def leave(df, spark):
        return df

    flights.declare("late")
    flights.push_many("clean", [1])
    clock.set()
    driver = driver_of("clean")
    lease = Batches(broker_of(client), keys_of(client).queue("flights/clean")).take(9, lease_s=0.05)
    pause = driver._source.gathering._pause
    monkeypatch.setattr(pause, "wait", lambda seconds: clock.advance(seconds * 1000) and False)

    driver._source.gathering.fill(lease)

    assert lease.deadline.timestamp() * 1000 > clock.ms
    driver.stop(0)


def test_a_batch_that_a_failover_could_forget_is_not_run(flights, client, server, warm):
    """Its items would be taken under another id then, and a sink would write them twice."""
    ran = []
    flights.spark_sink("late", max_wait=0)(lambda df, spark, batch: ran.append(batch.id))
    flights.push("late", 1)
    with Client(server.url, keys_of(client).prefix, durability="replicated", durability_timeout=0.05) as careful:
        driver = StationDriver(flights.spark_stations["flights/late"], careful)
        assert driver.step(warm)
        driver.stop(5)
    assert ran == []

    lease = Batches(broker_of(client), keys_of(client).queue("flights/late")).take(1, lease_s=5)
    assert (lease.epoch, lease.failures, lease.size) == (2, 0, 1)


def test_a_session_that_stopped_is_not_alive(spark):
    class Stopped:
        def range(self, count):
            raise ConnectionRefusedError

    assert is_alive(spark)
    assert not is_alive(Stopped())
    assert cause_of(ValueError("x"), Stopped()) is Cause.ENGINE


def test_an_item_that_is_pushed_again_while_its_batch_is_open_is_written_once(flights, take, drive, client):
    """The open batch read the new item, and the next batch again."""
    written = []

    @flights.spark_sink("late", max_wait=0, schema="n int")
    def store(df, spark, batch):
        written.extend((row["_id"], row["n"]) for row in df.collect())

    queue = client.queue("flights/late")
    for n in range(3):
        queue.push({"n": n}, id=f"item{n}")
    run = take("late")
    queue.delete("item1")
    queue.push({"n": 100}, id="item1")

    run.run()
    while not run.lease.advance().done:
        pass
    drive("late")

    assert sorted(written) == [("item0", 0), ("item1", 100), ("item2", 2)]
    assert queue.counts() == NOTHING
