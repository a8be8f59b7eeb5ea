"""A batch write that is named after a micro-batch, step by step as Spark uses its writer, without Spark."""

import pickle
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from jobrunner.errors import BatchLost, InvalidOption, MicroBatchChanged, UnknownOption
from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget
from jobrunner.spark.sink.micro_batch import OncePerRun, as_options
from jobrunner.spark.sink.options import write_options
from jobrunner.spark.sink.writer import BatchWriter, MicroBatchWriter, batch_writer

ROWS = pa.table({"n": [1, 2, 3, 4]})
RUN = "5f0d1339-adb0-43bf-bfdc-e98837c0f6fb"


@pytest.fixture
def writer(server, keys):
    """writer(microBatch="7"): the writer of one attempt at the write of a micro-batch of query q."""

    def made(table=ROWS, **options):
        given = {"url": server.url, "prefix": keys.prefix, "queue": "orders", "queryId": "q", **options}
        given = {name: value for name, value in given.items() if value is not None}
        return pickle.loads(pickle.dumps(batch_writer(from_arrow_schema(table.schema), given, False)))

    return made


def stage(writer, table=ROWS):
    return [writer.write(iter(part.to_batches())) for part in (table[:2], table[2:])]


def numbers(client, queue="orders"):
    return [msgspec.json.decode(task.raw_payload)["n"] for task in client.queue(queue).tasks("waiting", limit=100)]


def leftovers(raw, keys):
    found = set(raw.scan_iter(match=f"{keys.prefix}:*:batch:*", count=1000))
    return {key for key in found if raw.type(key) != b"hash" or raw.hget(key, "state") != b"done"}


def test_a_repeated_micro_batch_adds_nothing_and_the_next_one_does(writer, client, raw, keys):
    for number in ("0", "0", "1", "0"):
        made = writer(microBatch=number)
        made.commit(stage(made))
    assert numbers(client) == [1, 2, 3, 4] * 2
    assert leftovers(raw, keys) == set()


def test_a_number_of_a_micro_batch_that_is_none_is_refused_with_its_option(writer):
    for number in ("²", "9" * 5000, "-1"):
        with pytest.raises(InvalidOption, match=r"microBatch='.{0,200}: give the number that foreachBatch passes"):
            writer(microBatch=number)


def test_another_micro_batch_under_the_number_of_an_earlier_one_is_refused(writer, client):
    """As after a checkpoint was restored from a copy: skipped as repeated, its rows would be lost."""
    first = writer(microBatch="0")
    first.commit(stage(first))
    other = writer(microBatch="0")
    with pytest.raises(MicroBatchChanged, match="to orders before with 4 rows, and has 3 now"):
        other.commit(stage(other, ROWS[:3]))
    assert numbers(client) == [1, 2, 3, 4]
    again = writer(microBatch="0")
    again.commit(stage(again))
    assert numbers(client) == [1, 2, 3, 4]


def test_a_micro_batch_of_which_an_earlier_version_kept_no_number_is_taken_as_repeated(writer, client, raw, keys):
    first = writer(microBatch="0")
    first.commit(stage(first))
    (noted,) = raw.scan_iter(match=f"{keys.prefix}:*:batch:*")
    assert raw.hdel(noted, "rows") == 1
    other = writer(microBatch="0")
    other.commit(stage(other, ROWS[:3]))
    assert numbers(client) == [1, 2, 3, 4]


def test_another_query_or_another_queue_is_another_write(writer, client):
    for options in ({}, {"queryId": "other"}, {"queue": "mails"}):
        made = writer(microBatch="0", **options)
        made.commit(stage(made))
    assert numbers(client) == [1, 2, 3, 4] * 2
    assert numbers(client, "mails") == [1, 2, 3, 4]


def test_two_jobs_in_one_queue_are_two_writes(writer, client):
    @job(queue="orders", name="Bill")
    def bill(n: int) -> None:
        """Bills."""

    try:
        for options in ({"type": "Bill"}, {}, {"type": "Bill"}):
            made = writer(microBatch="0", **options)
            made.commit(stage(made))
    finally:
        forget("Bill")
    assert numbers(client) == [1, 2, 3, 4] * 2


def test_a_driver_that_died_before_the_decision_left_nothing_that_counts(writer, client, raw, keys):
    stage(writer(microBatch="0"))  # and the driver is gone
    second = writer(microBatch="0")
    second.commit(stage(second))
    assert numbers(client) == [1, 2, 3, 4]
    assert leftovers(raw, keys) == set()


def test_a_zombie_that_was_fenced_off_cannot_decide(writer, client):
    zombie, second = writer(microBatch="0"), writer(microBatch="0")
    told = stage(zombie)
    second.commit(stage(second))
    with pytest.raises(BatchLost):
        zombie.commit(told)
    assert numbers(client) == [1, 2, 3, 4]


def test_a_failed_write_may_be_repeated(writer, client, raw, keys):
    first = writer(microBatch="0")
    first.abort([*stage(first)[:1], None])
    assert leftovers(raw, keys) == set()
    again = writer(microBatch="0")
    again.commit(stage(again))
    assert numbers(client) == [1, 2, 3, 4]


def test_a_full_queue_takes_the_rest_later_and_a_repetition_adds_nothing(writer, client, raw, keys, monkeypatch):
    monkeypatch.setattr("jobrunner.spark.sink.writer._WAITED_FOR_ROOM_S", 0.0)
    client.queue("orders").configure(max_size=3)
    for _ in range(2):
        made = writer(microBatch="0")
        made.commit(stage(made))
        assert numbers(client) == [1, 2, 3]
    client.queue("orders").pop(3)
    again = writer(microBatch="0")
    again.commit(stage(again))  # or any worker's sweep
    assert numbers(client) == [4]
    assert leftovers(raw, keys) == set()


def test_a_micro_batch_without_rows_is_nothing_and_without_options_a_plain_append(writer):
    writer(microBatch="0").commit([])
    assert isinstance(writer(microBatch="0"), MicroBatchWriter)
    assert isinstance(writer(queryId=None), BatchWriter)


def test_outside_of_a_query_its_id_must_be_given(writer):
    with pytest.raises(InvalidOption, match=r"microBatch=3 without queryId: .* give queryId"):
        stage(writer(queryId=None, microBatch="3"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"microBatch": None}, "queryId='q' without microBatch"),
        ({"microBatch": "-1"}, "microBatch='-1': give the number"),
        ({"microBatch": "first"}, "microBatch='first': give the number"),
        ({"microBatch": "1", "queryId": " "}, "queryId=' ': give the id of the query"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(writer, raw, options, message):
    with pytest.raises(InvalidOption, match=message):
        writer(**options)
    assert raw.dbsize() == 0


def test_a_streaming_sink_needs_no_number_and_takes_none(server, keys):
    given = {"url": server.url, "prefix": keys.prefix, "queue": "orders", "microBatch": "1"}
    with pytest.raises(UnknownOption, match="unknown option 'microBatch' of a streaming write"):
        write_options(given, streams=True)


def frame(**properties):
    """A frame of a classic session in whose thread Spark set these properties."""
    context = SimpleNamespace(getLocalProperty=properties.get)
    return SimpleNamespace(sparkSession=SimpleNamespace(_jsparkSession=1, sparkContext=context))


def test_inside_foreach_batch_the_query_is_known():
    inside = frame(**{"sql.streaming.queryId": "q"})
    assert as_options(inside, 3) == {"queryId": "q", "microBatch": "3"}
    assert as_options(inside, ("mine", 3)) == {"queryId": "mine", "microBatch": "3"}
    assert as_options(inside, None) == {}
    for outside in (frame(), SimpleNamespace(sparkSession=SimpleNamespace())):
        with pytest.raises(InvalidOption, match=r"give micro_batch=\(query id, 3\)"):
            as_options(outside, 3)
    for wrong in (-1, True, "3", ("q",), ("q", "3")):
        with pytest.raises(InvalidOption, match=r"micro_batch=.*: give the number that foreachBatch passes"):
            as_options(inside, wrong)


def test_a_second_write_into_the_same_queue_by_the_same_run_is_refused_as_it_would_be_lost():
    options = {"queryId": "q", "microBatch": "3"}
    inside = frame(**{"spark.jobGroup.id": RUN})
    OncePerRun(inside, options, "orders", "Bill")  # failed: not noted
    OncePerRun(inside, options, "orders", "Bill").note()
    OncePerRun(inside, options, "orders", "Mail").note()
    with pytest.raises(InvalidOption, match=r"micro_batch=3 was written to orders as Bill before .* union the frames"):
        OncePerRun(inside, options, "orders", "Bill")
    OncePerRun(inside, options | {"microBatch": "4"}, "orders", "Bill").note()
    with pytest.raises(InvalidOption, match=r"micro_batch=4 was written to orders as Bill before"):
        OncePerRun(inside, options | {"microBatch": "4"}, "orders", "Bill")
    restarted = frame(**{"spark.jobGroup.id": RUN.replace("5", "6")})
    OncePerRun(restarted, options, "orders", "Bill").note()
    for own in (frame(), frame(**{"spark.jobGroup.id": "my group"})):
        for _ in range(2):
            OncePerRun(own, options, "orders", "Bill").note()
