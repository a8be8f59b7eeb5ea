"""Rows of a DataFrame become tasks: all or none, and each once, also when Spark runs a task again."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobrunner import Client
from jobrunner.client.current import pinned
from jobrunner.errors import InvalidOption, OutcomeUnknown, ParameterError
from jobrunner.spark import enqueue
from jobrunner.spark.running import running_session
from jobrunner.spark.session import spark_session
from jobrunner.spark.station import members
from jobs_example.jobs import QuoteFare


@pytest.fixture
def options(server: Any, keys: Any) -> dict[str, str]:
    return {"url": server.url, "prefix": keys.prefix, "queue": "orders"}


@pytest.fixture
def numbers(client: Any) -> Any:
    """The numbers that are in the payloads of queue orders, each as often as it is there."""

    def read() -> list[int]:
        found: list[int] = []
        while items := client.queue("orders").pop(1000):
            found += [item.payload["id"] for item in items]
        return sorted(found)

    return read


def leftovers(raw: Any, keys: Any) -> set[bytes]:
    found = set(raw.scan_iter(match=f"{keys.prefix}:*:batch:*", count=1000))
    return {key for key in found if raw.type(key) != b"hash" or raw.hget(key, "state") != b"done"}


def test_each_row_is_a_task_once_though_spark_tasks_are_killed(
    spark: Any, options: Any, numbers: Any, raw: Any, keys: Any, tmp_path: Path
) -> None:
    marks = str(tmp_path)

    def dies_once(rows: Any) -> Any:
        import os
        import signal
        from pathlib import Path

        for part, batch in enumerate(rows):
            yield batch
            mark = Path(marks, str(batch.column(0)[0].as_py() // 1000))
            if part == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 200)
    try:
        frame = spark.range(0, 2_000, 1, 2).mapInArrow(dies_once, "id long")
        frame.write.format("jobrunner").options(**options).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert len(list(tmp_path.iterdir())) == 2, "a worker of each partition was killed"
    assert numbers() == list(range(2_000))
    assert leftovers(raw, keys) == set()


def test_a_write_that_fails_leaves_nothing_and_says_where(
    spark: Any, options: Any, client: Any, raw: Any, keys: Any
) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr("id", "if(id = 777, 5, 1) as _priority")
    with pytest.raises(Exception, match=r"row 278 of its partition .*column '_priority' is 5; give 0, 1 or 2") as told:
        frame.write.format("jobrunner").options(**options).mode("append").save()
    assert "Traceback" not in str(told.value)

    assert client.queue("orders").counts()["waiting"] == 0
    assert leftovers(raw, keys) == set()


def test_what_is_wrong_is_said_before_spark_starts(spark: Any, options: Any, raw: Any) -> None:
    frame = spark.range(3)
    with pytest.raises(Exception, match="did you mean 'idFrom'"):
        frame.write.format("jobrunner").options(**options, idForm="id").mode("append").save()
    with pytest.raises(Exception, match="cannot overwrite tasks"):
        frame.write.format("jobrunner").options(**options).mode("overwrite").save()
    assert raw.dbsize() == 0


def test_rows_are_enqueued_as_a_job_and_checked_by_its_types(spark: Any, client: Any) -> None:
    with pinned(client):
        rows = [(f"JFK-{n}", "http://partner", "/tmp") for n in range(20)]
        frame = spark.createDataFrame(rows, "route string, partner string, folder string")
        for columns in ("route", ["route"]):
            enqueue(frame, QuoteFare, id_from=columns)
        with pytest.raises(
            ParameterError, match="column 'route' does not fit job 'QuoteFare': Expected `str`, got `int`"
        ):
            enqueue(frame.selectExpr("1 as route", "partner", "folder"), QuoteFare)
        with pytest.raises(ParameterError, match="needs a column for its parameter 'folder'"):
            enqueue(frame.drop("folder"), QuoteFare)
    found = client.queue("partner").tasks("waiting", limit=100)
    assert len(found) == 20
    assert {(task.type, task.fields["max_attempts"]) for task in found} == {("QuoteFare", b"8")}


def test_a_new_thread_writes_and_so_does_a_sink_whose_batch_the_executors_read(
    spark: Any, options: Any, client: Any, take: Any, flights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark looks for the format of a write in the active session of the thread, and a new thread has none."""

    @flights.spark_sink("late", schema="n int")
    def store(df: Any, spark: Any, batch: Any) -> None:
        df.select("n").write.format("jobrunner").options(**options | {"queue": "from_sink"}).mode("append").save()

    def by_function() -> None:
        with pinned(client):
            enqueue(spark.range(3).selectExpr("string(id) as route", "'' as partner", "'' as folder"), QuoteFare)

    def by_session() -> None:
        spark_session().range(3).write.format("jobrunner").options(**options).mode("append").save()

    flights.push_many("late", [{"n": n} for n in range(3)])
    monkeypatch.setattr(members, "THROUGH_DRIVER", 0)
    for do in (by_function, by_session, take("late").run):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(do).result()

    assert [client.queue(name).counts()["waiting"] for name in ("partner", "orders", "from_sink")] == [3, 3, 3]


def test_a_micro_batch_that_is_written_again_adds_nothing(
    spark: Any, options: Any, numbers: Any, raw: Any, keys: Any, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def stream() -> None:
        rows = spark.readStream.schema("id long").parquet(str(source))
        query = rows.writeStream.format("jobrunner").options(**options).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    spark.range(0, 100).write.mode("append").parquet(str(source))
    stream()
    for note in (checkpoint / "commits").glob("*0*"):  # as if the driver had died before Spark noted the commit
        note.unlink()
    spark.range(100, 150).write.mode("append").parquet(str(source))
    stream()

    assert numbers() == list(range(150))
    assert leftovers(raw, keys) == set()
    shutil.rmtree(checkpoint)


def test_a_micro_batch_that_foreach_batch_repeats_is_in_each_queue_once(
    spark: Any, options: Any, client: Any, numbers: Any, tmp_path: Path
) -> None:
    """A second write of it into the same queue is an error, because the server would take it for the repetition."""
    source, checkpoint, ran = tmp_path / "source", tmp_path / "checkpoint", []

    def store(frame: Any, number: int) -> None:
        enqueue(frame.selectExpr("string(id) as route", "'' as partner", "'' as folder"), QuoteFare, micro_batch=number)
        frame.write.format("jobrunner").options(**options, microBatch=number).mode("append").save()
        with pytest.raises(InvalidOption, match="was written to partner as QuoteFare before"):
            enqueue(frame, QuoteFare, micro_batch=number)
        ran.append(number)

    def stream() -> None:
        query = spark.readStream.schema("id long").parquet(str(source)).writeStream.foreachBatch(store)
        query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    spark.range(0, 5).write.parquet(str(source))
    with pinned(client):
        stream()
        for note in (checkpoint / "commits").glob("*0*"):  # as if the driver had died before Spark noted the commit
            note.unlink()
        stream()

    assert running_session() is spark, "not the copy that a stream has of it"
    assert ran == [0, 0]
    assert numbers() == list(range(5))
    quotes = client.queue("partner").tasks("waiting", limit=100)
    assert sorted(msgspec.json.decode(task.raw_payload)["route"] for task in quotes) == list("01234")


def test_a_durability_of_the_client_is_waited_for(spark: Any, server: Any, keys: Any) -> None:
    """A write returned before its tasks were safe, whatever the client asked for."""
    frame = spark.range(3).selectExpr("string(id) as route", "'' as partner", "'' as folder")
    lonely = Client(server.url, keys.prefix, durability="replicated", durability_timeout=0.2)
    with lonely, pinned(lonely):
        with pytest.raises(OutcomeUnknown, match="replica"):
            enqueue(frame, QuoteFare)
        assert lonely.queue(QuoteFare.definition.options.queue).counts()["waiting"] == 3, "they were added"
