"""Stations and sinks on Spark: the outcomes of items, batch by batch."""

import json
import threading
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.client.item import Item
from jobrunner.outcome import Snooze
from jobrunner.retry import Backoff
from jobrunner.spark import checked
from jobrunner.spark.station import members
from jobrunner.spark.station.driver import StationDriver
from tests.support.waiting import wait_for

NOTHING = dict.fromkeys(("waiting", "scheduled", "pending", "dead", "done"), 0)
FALSY = [0, "", None, False, [], {}, 0.0]


@pytest.fixture(params=["through the driver", "on the executors"])
def way(request, monkeypatch):
    """Both ways in which a batch is read."""
    if request.param == "on the executors":
        monkeypatch.setattr(members, "THROUGH_DRIVER", 0)
        monkeypatch.setattr(members, "CHUNK", 2)


def test_items_move_on_with_a_new_payload_under_their_ids(flights, drive, found, audit, way):
    @flights.spark_station("clean", to="late", max_wait=0, schema="day int, carrier string, dep_delay double")
    def enrich(df, spark):
        return df.withColumn("late", F.col("dep_delay") > 15)

    flights.declare("late")
    ids = flights.push_many("clean", [{"day": n, "carrier": "UA", "dep_delay": n * 10} for n in range(5)])
    assert drive("clean") == 1
    assert audit("flights/clean") == NOTHING
    assert audit("flights/late")["waiting"] == 5
    assert found("late") == {
        task_id: {"day": n, "carrier": "UA", "dep_delay": n * 10.0, "late": n > 1} for n, task_id in enumerate(ids)
    }


def test_without_a_schema_falsy_payloads_travel_as_they_are(flights, drive, found, way):
    @flights.spark_station("clean", to="late", max_wait=0)
    def leave(df, spark):
        return df

    flights.declare("late")
    ids = flights.push_many("clean", FALSY)
    drive("clean")
    assert found("late") == dict(zip(ids, FALSY, strict=True))


@pytest.fixture
def counts(monkeypatch):
    """How many items each round trip of this process asks for."""
    counts, read = [], members.read_members

    def counted(access, start, count, payloads):
        counts.append(count)
        return read(access, start, count, payloads)

    monkeypatch.setattr(members, "read_members", counted)
    return counts


def test_large_payloads_are_read_few_at_a_time(flights, drive, found, counts, monkeypatch):
    """The server, Python and Java held 2 000 of them at once."""
    monkeypatch.setattr(members, "_CHUNK_BYTES", 50_000)
    flights.spark_station("clean", to="late", max_wait=0)(lambda df, spark: df)
    flights.declare("late")
    flights.push_many("clean", ["-" * size for size in [10_000] * 40 + [1] * 160])
    drive("clean")
    assert counts[0] == 32
    assert counts[1:3] == [4, 4]
    assert counts[-1] > 50, "small payloads are read many at a time again"
    assert len(found("late")) == sum(counts) == 200


def test_a_batch_of_large_payloads_does_not_pass_through_the_driver(flights, drive, found, counts, client, monkeypatch):
    """The thread of Java that starts Spark tasks ran out of memory, and the station stood still for ever."""
    monkeypatch.setattr(members, "THROUGH_DRIVER_BYTES", 100_000)
    flights.spark_station("clean", to="late", max_wait=0, schema="text string")(lambda df, spark: df)
    flights.declare("late")
    flights.push_many("clean", [{"text": n if n == 50 else "-" * 10_000} for n in range(60)])
    drive("clean")
    assert counts == [32]
    assert list(found("late").values()) == [{"text": "-" * 10_000}] * 59
    assert client.queue("flights/clean").counts()["dead"] == 1


def test_falsy_columns_and_nulls_stay_in_a_payload_of_columns(flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int, s string, b boolean, l array<int>, x double")
    def leave(df, spark):
        return df

    flights.declare("late")
    flights.push("clean", {"n": 0, "s": "", "b": False, "l": []})
    drive("clean")
    assert list(found("late").values()) == [{"n": 0, "s": "", "b": False, "l": [], "x": None}]


NAMES = ["a`b", "a.b", "a b", "`", "a'b", "ñ 名 😀", "payload", "nonce", "a,b", "%s{}"]


@pytest.mark.parametrize("kind", ["int", "decimal(5,0)"], ids=["read by Python", "parsed by Spark"])
def test_columns_have_any_names(flights, drive, found, kind):
    quoted = ["`" + name.replace("`", "``") + "`" for name in NAMES]

    @flights.spark_station("clean", to="late", max_wait=0, schema=", ".join(f"{name} {kind}" for name in quoted))
    def add(df, spark):
        return df.withColumn("more`", checked(F.lit(7), "_attempts"))

    flights.declare("late")
    task_id = flights.push("clean", dict.fromkeys(NAMES, 5))
    drive("clean")
    assert found("late") == {task_id: dict.fromkeys(NAMES, 5) | {"more`": 7}}


def test_a_column_of_the_name_of_that_for_corrupt_records_is_kept(spark, flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="raw string, x decimal(5,1)")
    def leave(df, spark):
        return df

    flights.declare("late")
    task_id = flights.push("clean", {"raw": "kept", "x": 1.5})
    spark.conf.set("spark.sql.columnNameOfCorruptRecord", "raw")
    try:
        drive("clean")
    finally:
        spark.conf.unset("spark.sql.columnNameOfCorruptRecord")
    assert found("late") == {task_id: {"raw": "kept", "x": 1.5}}


def test_a_variant_is_any_payload_and_goes_on_as_one(flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="variant")
    def leave(df, spark):
        return df.withColumn("kind", F.schema_of_variant("payload")).drop("kind")

    flights.declare("late")
    ids = flights.push_many("clean", [{"a": [1, {"b": None}]}, 5, "x"])
    drive("clean")
    assert found("late") == dict(zip(ids, [{"a": [1, {"b": None}]}, 5, "x"], strict=True))


def test_instants_keep_their_zone_and_microseconds(flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="at timestamp")
    def leave(df, spark):
        return df

    flights.declare("late")
    flights.push("clean", {"at": "2013-01-01T05:00:00.000001+02:00"})
    drive("clean")
    (payload,) = found("late").values()
    assert datetime.fromisoformat(payload["at"]) == datetime(2013, 1, 1, 3, 0, 0, 1, UTC)


@pytest.mark.parametrize("kind", ["timestamp", "array<timestamp>"])
def test_an_instant_of_a_zone_whose_offset_had_seconds_is_kept(spark, flights, drive, found, kind):
    @flights.spark_station("clean", to="late", max_wait=0, schema=f"at {kind}")
    def leave(df, spark):
        return df

    flights.declare("late")
    at = "1889-12-31T23:06:32.5Z"
    flights.push("clean", {"at": at if kind == "timestamp" else [at]})
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        drive("clean")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (payload,) = found("late").values()
    (made,) = [payload["at"]] if kind == "timestamp" else payload["at"]
    assert datetime.fromisoformat(made) == datetime(1889, 12, 31, 23, 6, 32, 500_000, UTC)


def test_a_column_names_the_target_of_each_item(flights, drive, audit, found):
    @flights.spark_station("clean", to=("late", "on_time"), max_wait=0, schema="n int")
    def route(df, spark):
        return df.withColumn("_to", F.when(df.n > 6, "late").otherwise("flights/on_time"))

    flights.declare("late")
    flights.declare("on_time")
    flights.push_many("clean", [{"n": n} for n in range(10)])
    drive("clean")
    assert audit("flights/clean") == NOTHING
    assert sorted(one["n"] for one in found("late").values()) == [7, 8, 9]
    assert sorted(one["n"] for one in found("on_time").values()) == [0, 1, 2, 3, 4, 5, 6]


def test_an_item_without_a_row_is_counted_as_dropped(flights, drive, audit, found, client):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def even(df, spark):
        return df.where("n % 2 = 0")

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(10)])
    drive("clean")
    assert client.stats()["flights/clean"].totals["dropped"] == 5
    assert len(found("late")) == 5


@pytest.mark.parametrize("history", [None, 3600])
def test_members_that_were_deleted_meanwhile_are_no_rows_and_not_missing(flights, take, client, found, way, history):
    seen = []

    @flights.spark_station("clean", to="late", max_wait=0, missing="fail")
    def leave(df, spark):
        seen.extend(row._id for row in df.collect())
        return df

    flights.declare("late")
    queue = client.queue("flights/clean")
    queue.configure(history=history)
    ids = flights.push_many("clean", [1, 2, 3])
    run = take("clean")
    queue.delete(ids[1])

    run.run()

    assert sorted(seen) == [ids[0], ids[2]]
    while not run.lease.advance().done:
        pass
    assert found("late") == {ids[0]: 1, ids[2]: 3}


def test_with_missing_fail_an_item_without_a_row_is_an_error_that_names_it(flights, attempt):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int", missing="fail")
    def most(df, spark):
        return df.where("n <> 3")

    flights.declare("late")
    ids = flights.push_many("clean", [{"n": n} for n in range(5)])
    assert attempt("clean") == (
        "PipelineError: station 'flights/clean' returned no row for 1 of 5 items, such as "
        f"{ids[3]}: return a row for each, or declare missing='drop'"
    )


def test_with_missing_fail_neither_misfits_nor_cancelled_items_are_missing(flights, drive, client, audit):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int", missing="fail")
    def leave(df, spark):
        return df

    flights.declare("late")
    ids = flights.push_many("clean", [{"n": "x"}, {"n": 1}, {"n": 2}])
    driver_took = client.task(ids[1])
    assert driver_took.cancel()
    drive("clean")
    assert audit("flights/clean") == {**NOTHING, "dead": 1}
    assert audit("flights/late")["waiting"] == 1


@pytest.mark.parametrize("missing", ["drop", "fail"])
def test_an_item_that_is_cancelled_between_two_attempts_begins_no_other(flights, drive, client, audit, way, missing):
    seen = []

    @flights.spark_station("clean", to="late", max_wait=0, missing=missing, history=3600)
    def leave(df, spark):
        seen.append(sorted(row._id for row in df.collect()))
        if len(seen) == 1:
            client.task(ids[1]).cancel()
            raise Snooze(in_=0)
        return df

    flights.declare("late")
    ids = flights.push_many("clean", [1, 2, 3])
    drive("clean")
    assert seen == [sorted(ids), sorted([ids[0], ids[2]])]
    assert audit("flights/clean") == NOTHING | {"done": 1}
    assert (audit("flights/late")["waiting"], client.task(ids[1]).state) == (2, "cancelled")


def test_a_sink_does_not_write_what_was_cancelled_before_its_attempt(flights, drive, client, way):
    seen = []

    @flights.spark_sink("clean", max_wait=0, history=3600)
    def write(df, spark, batch):
        if batch.epoch == 1:
            client.task(ids[1]).cancel()
            client.task(ids[3]).cancel()
            client.queue("flights/clean").delete(ids[3])
            raise Snooze(in_=0)
        client.task(ids[2]).cancel()  # after its attempt began: it ends as the sink does
        seen.extend(sorted(row._id for row in df.collect()))

    ids = flights.push_many("clean", [1, 2, 3, 4])
    assert drive("clean") == 2
    assert seen == sorted([ids[0], ids[2]])
    assert [client.task(one).state for one in ids[:3]] == ["succeeded", "cancelled", "succeeded"]


def test_what_columns_say_of_an_item_is_done(flights, drive, client):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def steer(df, spark):
        return df.select(
            "_id",
            "n",
            F.when(df.n == 1, 3600).alias("_delay"),
            F.when(df.n == 0, 2).alias("_priority"),
            F.create_map(F.lit("by"), F.concat(F.lit("n"), df.n)).alias("_headers"),
        )

    flights.declare("late")
    ids = flights.push_many("clean", [Item({"n": 0}, headers={"trace": "t0", "by": "x"}), {"n": 1}])
    drive("clean")
    first, second = (client.task(task_id).record() for task_id in ids)
    assert (first.state, first.priority, second.state, second.priority) == ("waiting", 2, "scheduled", 1)
    assert json.loads(first.fields["headers"]) == {"trace": "t0", "by": "n0"}
    assert json.loads(second.fields["headers"]) == {"by": "n1"}


def test_df_has_the_columns_of_the_item(flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def show(df, spark):
        assert df.columns == ["n", "_id", "_type", "_attempts", "_enqueue_time", "_headers"]
        is_past = (df["_enqueue_time"] < F.now()).alias("is_past")
        seen = F.struct("_type", "_attempts", F.col("_headers.trace").alias("trace"), is_past)
        return df.withColumn("seen", seen)

    flights.declare("late")
    flights.push("clean", {"n": 0}, headers={"trace": "t0"})
    drive("clean")
    (payload,) = found("late").values()
    assert payload["seen"] == {"_type": "", "_attempts": 1, "trace": "t0", "is_past": True}


def test_fan_out_makes_items_of_rows_and_ends_their_parents(flights, drive, found, audit, client):
    @flights.spark_station("clean", to="late", max_wait=0, schema="legs array<string>", fan_out=True)
    def legs(df, spark):
        return df.select("_id", F.explode("legs").alias("leg"))

    flights.declare("late")
    ids = flights.push_many("clean", [{"legs": ["a", "b", "c"]}, {"legs": []}, {"legs": ["d"]}])
    drive("clean")
    assert audit("flights/clean") == NOTHING
    assert client.stats()["flights/clean"].totals["succeeded"] == 3
    made = found("late")
    assert sorted(one["leg"] for one in made.values()) == ["a", "b", "c", "d"]
    assert not set(made) & set(ids)


def test_rows_without_an_id_are_new_items(flights, drive, found, client):
    @flights.spark_station("clean", to="late", max_wait=0, schema="carrier string, n int", emits_new=True)
    def total(df, spark):
        return df.groupBy("carrier").agg(F.sum("n").alias("n"))

    flights.declare("late")
    flights.push_many("clean", [{"carrier": "AB"[n % 2], "n": n} for n in range(10)])
    drive("clean")
    assert sorted((one["carrier"], one["n"]) for one in found("late").values()) == [("A", 20), ("B", 25)]
    assert client.stats()["flights/clean"].totals["succeeded"] == 10


def test_with_emits_new_a_row_with_an_id_is_still_that_item(flights, drive, found):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int", emits_new=True)
    def both(df, spark):
        return df.select("_id", "n").unionByName(df.agg(F.sum("n").alias("n")), allowMissingColumns=True)

    flights.declare("late")
    ids = flights.push_many("clean", [{"n": n} for n in range(3)])
    drive("clean")
    came = found("late")
    assert {task_id: came.pop(task_id)["n"] for task_id in ids} == dict(zip(ids, range(3), strict=True))
    assert [one["n"] for one in came.values()] == [3]


def test_a_sink_is_the_end_and_a_replayed_batch_overwrites_what_it_wrote(flights, drive, spark, tmp_path, audit):
    tries = []

    @flights.spark_sink("late", max_wait=0, schema="n int", backoff=Backoff(base=0), batch=4)
    def store(df, spark, batch):
        tries.append((batch.id, batch.attempt, batch.size))
        df.write.mode("overwrite").parquet(f"{tmp_path}/batch={batch.id}")
        if len(tries) == 1:
            raise OSError("the disk went away behind the write")

    flights.push_many("late", [{"n": n} for n in range(6)])
    drive("late")
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path)).collect()) == list(range(6))
    again = [(batch_id, attempt) for batch_id, attempt, _ in tries if batch_id == tries[0][0]]
    assert again == [(tries[0][0], 1), (tries[0][0], 2)]
    assert audit("flights/late") == NOTHING


def test_a_batch_waits_for_room_in_its_target(flights, client, spark, driver_of, wait_until):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def leave(df, spark):
        return df

    flights.declare("late", max_size=3)
    flights.push_many("clean", [{"n": n} for n in range(5)])
    driver = driver_of("clean")
    driver.start()
    wait_until(lambda: client.stats()["flights/late"].waiting == 3, timeout_s=60)
    assert client.stats()["flights/clean"].pending == 2
    assert len(client.queue("flights/late").pop(3)) == 3
    wait_until(lambda: client.stats()["flights/late"].waiting == 2, timeout_s=60)
    driver.stop(10)


def test_a_batch_that_is_not_full_waits_for_more(flights, drive, client):
    @flights.spark_station("clean", to="late", max_wait=0.2, batch=5, schema="n int")
    def leave(df, spark):
        return df

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(7)])
    assert drive("clean") == 2


def test_a_drivers_loop_takes_what_comes_and_ends_when_told(flights, driver_of, client, wait_until):
    @flights.spark_station("clean", to="late", max_wait=0)
    def leave(df, spark):
        return df

    flights.declare("late")
    driver = driver_of("clean")
    driver.start()
    flights.push("clean", 1)
    wait_until(lambda: client.stats()["flights/late"].waiting == 1, timeout_s=60)
    flights.push("clean", 2)
    wait_until(lambda: client.stats()["flights/late"].waiting == 2, timeout_s=60)
    driver.ask_to_stop()
    driver.stop(10)
    assert (driver.in_hand, driver.failure) == (0, None)


def test_the_items_of_a_batch_count_and_share_its_time(spark, client, flights):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def keep_some(df, spark):
        return df.where("n < 15")

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(20)])
    told = []
    driver = StationDriver(flights.spark_stations["flights/clean"], client, told.append)

    driver.step(spark)
    driver.stop(20)

    ran, *slices = [one for one in told if one.record is None]
    assert ran.items == 20
    assert 0 < ran.run_s < 60
    assert sum(items for _, items in ran.waits_ms) == 20
    assert all(0 < ms < 60_000 for ms, _ in ran.waits_ms)
    assert sum(one.counts["moved"] for one in slices) == 15
    assert sum(one.counts["dropped"] for one in slices) == 5


def test_a_batch_that_fails_counts_its_items_as_failed(spark, client, flights):
    @flights.spark_sink("clean", max_wait=0, schema="n int", max_attempts=1)
    def refuse(df, spark, batch):
        raise ValueError("no")

    flights.push("clean", {"n": 1})
    told = []
    driver = StationDriver(flights.spark_stations["flights/clean"], client, told.append)

    driver.step(spark)
    driver.stop(20)

    (end,) = [one for one in told if one.record is None]
    assert (end.items, dict(end.counts)) == (1, {"failed": 1, "dead": 1})
    assert end.run_s > 0


def test_a_quiet_station_ends_the_batch_at_hand_and_takes_no_other(warm, client, flights):
    @flights.spark_station("clean", to="late", batch=100, max_wait=600, schema="n int")
    def keep(df, spark):
        return df

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(3)])
    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    driver.start()
    try:
        (batch,) = wait_for(lambda: driver.running)
        assert (batch.items, batch.attempt, driver.in_hand) == (3, 1, 3)

        driver.be_quiet(True)  # it waits for more items no longer
        wait_for(lambda: client.queue("flights/late").counts()["waiting"] == 3, timeout_s=60)
        flights.push_many("clean", [{"n": n} for n in range(2)])
        assert driver._turn(driver._lanes[0]) > 0
        assert client.queue("flights/clean").counts()["waiting"] == 2
        assert driver.failure is None

        driver.be_quiet(False)
        wait_for(lambda: driver.in_hand == 2, timeout_s=60)
    finally:
        driver.stop(20)


@pytest.mark.parametrize("parallel", [1, 2])
def test_batches_run_beside_each_other_in_as_many_lanes_as_declared(warm, client, flights, parallel):
    inside, most, both = [], [], threading.Event()

    @flights.spark_sink("clean", batch=2, parallel=parallel, max_wait=0)
    def store(df, spark, batch):
        inside.append(batch.id)
        most.append(len(inside))
        if len(inside) == 2 or parallel == 1:
            both.set()
        assert both.wait(60)
        inside.remove(batch.id)

    flights.push_many("clean", range(6))
    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    driver.start()
    try:
        wait_for(lambda: client.queue("flights/clean").counts()["pending"] == 0 and len(most) == 3, timeout_s=60)
    finally:
        driver.stop(20)
    assert max(most) == parallel


def test_a_trickle_makes_one_batch_however_many_lanes_are_free(warm, client, flights):
    sizes = []

    @flights.spark_sink("clean", batch=3, parallel=4, max_wait=600)
    def store(df, spark, batch):
        sizes.append(batch.size)

    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    driver.start()
    try:
        for number in (1, 2, 3):
            flights.push("clean", number)
            wait_for(lambda number=number: driver.in_hand == number or sizes, timeout_s=60)
        wait_for(lambda: sizes, timeout_s=60)
    finally:
        driver.stop(20)
    assert sizes == [3]


def test_a_batch_that_is_due_again_is_taken_while_another_is_gathered(warm, client, flights):
    tries = []

    @flights.spark_sink("clean", batch=9, min_rows=9, max_wait=600, backoff=Backoff(base=0))
    def store(df, spark, batch):
        tries.append(batch.attempt)
        if len(tries) == 1:
            flights.push("clean", 9)  # the other lane gathers it, and waits
            wait_for(lambda: driver._source.gathering.is_busy, timeout_s=60)
            raise OSError("the disk is full")

    flights.push_many("clean", range(9))
    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    driver.start()
    try:
        wait_for(lambda: tries == [1, 2], timeout_s=60)
        assert driver._source.gathering.is_busy
    finally:
        driver.stop(20)
    assert client.queue("flights/clean").counts()["waiting"] == 1, "what was gathered is back in line"
