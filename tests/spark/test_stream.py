"""History as a stream: every finished task once, over restarts, and no silent gap."""

import math
import re
from datetime import UTC, datetime, timedelta
from itertools import chain

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import _parse_datatype_string

from jobrunner.broker.calls import queues
from jobrunner.errors import HistoryTrimmed, InvalidOption, NaiveDatetime, UnknownOption
from jobrunner.spark.data_source import prepare
from jobrunner.spark.source.history_stream import HistoryStream
from jobrunner.spark.source.options import shape_of, stream_options
from jobrunner.spark.source.scan import slices_of

NOW_MS = 1_700_000_000_000.0
ALL = ReadAllAvailable()


@pytest.fixture
def orders(client):
    queue = client.queue("orders")
    queue.configure(history=timedelta(hours=1))
    return queue


def finish(queue, *ids):
    for one in ids:
        queue.push({"n": one}, id=one)
    held = []
    while len(held) < len(ids):
        held += queue.reserve(100)
    queue.commit_many(held)


@pytest.fixture
def stream(spark, server, keys):
    """stream(history="orders"): the stream reader that Spark builds from the options, without a query."""

    def made(**options):
        settled = stream_options({"url": server.url, "prefix": keys.prefix} | options)
        return HistoryStream(settled, shape_of(_parse_datatype_string("_id string, _finished_at timestamp")))

    return made


def ids_between(stream, start, end):
    found = []
    for piece in stream.partitions(start, end):
        for batch in stream.read(piece):
            found += [row["_id"] for row in pa.Table.from_batches([batch]).to_pylist()]
    return found


def drained(stream, start, limit):
    """Ids by micro-batch until nothing is left, and the last offset."""
    batches = []
    while (end := stream.latestOffset(start, limit)) != start:
        batches.append(ids_between(stream, start, end))
        start = end
    return batches, start


@pytest.fixture
def run(spark, server, keys, tmp_path):
    """run(maxRowsPerTrigger=2): reads what there is under one checkpoint; ids by micro-batch."""

    def once(**options):
        batches = []
        frame = spark.readStream.format("jobrunner").options(url=server.url, prefix=keys.prefix, **options).load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batches.append([row["_id"] for row in batch.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [sorted(batch) for batch in batches if batch]

    return once


def test_a_query_goes_on_where_its_checkpoint_says(orders, run):
    finish(orders, "a", "b", "c")
    assert run(history="orders") == [["a", "b", "c"]]
    assert run(history="orders") == []
    finish(orders, "d")
    assert run(history="orders") == [["d"]]


def test_rows_per_trigger_bound_a_micro_batch(orders, run):
    for n in range(5):
        finish(orders, f"t{n}")
    assert run(history="orders", maxRowsPerTrigger=2) == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_a_gap_ends_the_query(orders, run, raw, keys):
    finish(orders, "a")
    assert run(history="orders") == [["a"]]
    finish(orders, "b")
    assert orders.purge("done") == 2
    gap = r"history of queue 'orders' was trimmed up to .* begin anew"
    with pytest.raises(StreamingQueryException, match=gap):
        run(history="orders")
    finish(orders, "c")
    with pytest.raises(StreamingQueryException, match=gap):
        run(history="orders")


def test_a_later_task_with_the_id_of_one_that_is_gone_is_no_row(orders, stream, raw, keys, clock):
    clock.set(NOW_MS)
    finish(orders, "again")
    clock.advance(1000)
    raw.delete(keys.queue("orders").task("again"))
    orders.push({"n": "later"}, id="again")
    made = stream(history="orders", startingOffset=datetime.fromtimestamp(NOW_MS / 1000, UTC).isoformat())
    at = made.initialOffset()
    clock.advance(1)
    with pytest.raises(HistoryTrimmed, match="1 tasks in the history of 'orders' were deleted"):
        ids_between(made, at, made.latestOffset(at, ALL))


def test_the_instant_in_the_message_of_a_gap_goes_on_with_what_is_left(orders, stream):
    """Also for a micro-batch that was planned, and is read again after a crash: its rows are gone."""
    made = stream(history="orders")
    finish(orders, "read")
    _, at = drained(made, made.initialOffset(), ALL)
    finish(orders, "gone")
    planned = made.latestOffset(at, ALL)
    orders.configure(history_max=1)
    finish(orders, "left")
    assert orders.reserve() == [], "which trims history"
    with pytest.raises(HistoryTrimmed) as gap:
        made.partitions(at, planned)
    (instant,) = re.findall(r"startingOffset=(\S+) goes on behind", str(gap.value))

    anew = stream(history="orders", startingOffset=instant)
    assert drained(anew, anew.initialOffset(), ALL)[0] == [["left"]]


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ("ordres", "there is no queue 'ordres'; did you mean 'orders'"),
        ("order/*", r"no queue matches 'order/\*'"),
        ("orders,mail", r"queue 'mail' keeps no history, so no row would come: set configure\(history="),
    ],
)
def test_a_query_that_would_wait_in_vain_is_refused(orders, client, stream, run, history, told):
    """It waited for ever, and said nothing."""
    client.queue("mail").push(1)
    with pytest.raises(InvalidOption, match=told):
        stream(history=history).initialOffset()
    assert stream(history=history, missingQueues="ignore").initialOffset() == stream(history="orders").initialOffset()
    assert stream(history="mail,*", missingQueues="ignore").initialOffset()
    client.queue("mail").configure(history_max=5)
    assert stream(history="mail,*").initialOffset()
    with pytest.raises(StreamingQueryException, match="there is no queue 'ordres'"):
        run(history="ordres")


def test_a_queue_that_was_deleted_is_read_as_one_that_begins_later(orders, stream):
    finish(orders, "read")
    made = stream(history="orders")
    _, at = drained(made, made.initialOffset(), ALL)
    finish(orders, "unread")
    assert orders.delete(force=True)
    orders.configure(history=timedelta(hours=1))
    finish(orders, "new")
    assert drained(made, at, ALL)[0] == [["new"]]


def test_all_queues_of_a_pattern_are_read_by_one_offset(client, stream):
    for name in ("flights/raw", "flights/clean"):
        client.queue(name).configure(history=60)
        finish(client.queue(name), name.replace("/", "."))
    made = stream(history="flights/*")
    batches, at = drained(made, made.initialOffset(), ALL)
    assert sorted(batches[0]) == ["flights.clean", "flights.raw"]
    client.queue("flights/late").configure(history=60)
    finish(client.queue("flights/late"), "late")
    assert drained(made, at, ALL)[0] == [["late"]]


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_rows_with_one_instant_stay_together_and_no_row_is_lost(client, clock, stream, most):
    """Instants with 1, 4, 2, 5, 1 tasks in two queues."""
    expected, one, two = [], client.queue("one"), client.queue("two")
    for queue in (one, two):
        queue.configure(history=timedelta(days=1))
    for n, count in enumerate((1, 4, 2, 5, 1)):
        clock.set(NOW_MS + n / 4)
        expected.append([f"t{n}.{m}" for m in range(count)])
        for m in range(count):
            finish((one, two)[m % 2], f"t{n}.{m}")
    made = stream(history="one,two")
    batches, _ = drained(made, made.initialOffset(), ReadMaxRows(most))
    assert sorted(chain(*batches)) == sorted(chain(*expected))
    for batch in batches:
        instants = {name.split(".")[0] for name in batch}
        assert len(batch) == sum(len([1 for one in group if one.split(".")[0] in instants]) for group in expected)
        assert len(batch) <= most or len(instants) == 1


def test_nothing_new_leaves_the_offset_where_it_is(orders, stream):
    made = stream(history="orders")
    start = made.initialOffset()
    assert made.latestOffset(start, ALL) == start
    finish(orders, "a")
    _, at = drained(made, start, ALL)
    assert made.latestOffset(at, ALL) == at


def test_available_now_leaves_what_finishes_later_to_the_next_run(orders, stream):
    finish(orders, "a")
    made = stream(history="orders")
    made.prepareForTriggerAvailableNow()
    finish(orders, "b")
    batches, at = drained(made, made.initialOffset(), ALL)
    assert batches == [["a"]]
    assert drained(stream(history="orders"), at, ALL)[0] == [["b"]]


def test_a_range_that_was_read_reads_the_same_again(orders, stream):
    finish(orders, *(f"t{n}" for n in range(30)))
    made = stream(history="orders", rowsPerPartition="7")
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    first = ids_between(made, start, end)
    finish(orders, "later")
    assert ids_between(stream(history="orders"), start, end) == first
    assert len(first) == 30


def test_a_stream_begins_where_it_is_told_to(orders, clock, stream):
    for n in range(3):
        clock.set(NOW_MS + 1000 * n)
        finish(orders, f"t{n}")
    at = datetime.fromtimestamp(NOW_MS / 1000 + 1, UTC).isoformat()
    made = stream(history="orders", startingOffset=at)
    assert drained(made, made.initialOffset(), ALL)[0] == [["t1", "t2"]]
    latest = stream(history="orders", startingOffset="latest")
    assert drained(latest, latest.initialOffset(), ALL)[0] == []


def trim_by_age(orders, clock, **_):
    clock.advance(3_600_000)
    orders.counts()


def trim_by_number(orders, clock, **_):
    orders.configure(history_max=1)
    finish(orders, "newer")
    orders.counts()


def expire_index(orders, raw, mail, **_):
    raw.delete(mail.done)


def expire_index_and_finish(orders, raw, mail, **_):
    raw.delete(mail.done)
    finish(orders, "newer")


def expire_hash(orders, raw, mail, **_):
    raw.delete(mail.task("unread"))


@pytest.mark.parametrize("lose", [trim_by_age, trim_by_number, expire_index, expire_index_and_finish, expire_hash])
def test_entries_that_went_before_they_were_read_are_an_error(orders, clock, stream, raw, keys, lose):
    clock.set(NOW_MS)
    finish(orders, "read")
    made = stream(history="orders")
    _, at = drained(made, made.initialOffset(), ALL)
    clock.set(float(at["at"]))
    finish(orders, "unread")
    lose(orders, clock=clock, raw=raw, mail=keys.queue("orders"))
    clock.advance(1)
    end = {"at": repr(clock.ms + 10_000)}
    with pytest.raises(HistoryTrimmed):
        ids_between(made, at, end)


@pytest.mark.parametrize("lose", [trim_by_age, trim_by_number, expire_index, expire_index_and_finish])
def test_entries_that_went_after_they_were_read_are_no_error(orders, clock, stream, raw, keys, lose):
    clock.set(NOW_MS)
    finish(orders, "read")
    made = stream(history="orders")
    at = {"at": repr(math.nextafter(NOW_MS, math.inf))}
    clock.advance(1)
    lose(orders, clock=clock, raw=raw, mail=keys.queue("orders"))
    clock.advance(3_600_000)
    found = ids_between(made, at, {"at": repr(clock.ms)})
    assert found in ([], ["newer"])


def test_entries_that_go_while_a_slice_is_read_are_an_error(orders, clock, stream, broker, keys):
    clock.set(NOW_MS)
    finish(orders, "a")
    made = stream(history="orders", startingOffset="2020-01-01T00:00:00Z")
    pieces = made.partitions(made.initialOffset(), {"at": repr(NOW_MS + 1)})
    broker.run(queues.purge(keys.queue("orders"), "done"))
    with pytest.raises(HistoryTrimmed):
        list(made.read(pieces[0]))


def test_entries_that_go_while_a_micro_batch_is_planned_are_an_error(
    orders, clock, stream, broker, keys, monkeypatch
):
    clock.set(NOW_MS)
    finish(orders, "a")
    made = stream(history="orders", startingOffset="2020-01-01T00:00:00Z")

    def slices_of_what_is_left(*given):
        broker.run(queues.purge(keys.queue("orders"), "done"))
        return slices_of(*given)

    monkeypatch.setattr("jobrunner.spark.source.history_stream.slices_of", slices_of_what_is_left)
    with pytest.raises(HistoryTrimmed):
        made.partitions(made.initialOffset(), {"at": repr(NOW_MS + 1)})


@pytest.mark.parametrize("start", ["earliest", "2020-01-01T00:00:00Z"])
def test_a_slice_is_complete_or_an_error_whatever_goes_in_front_of_it(orders, clock, stream, start):
    """Slices of the first micro-batch, too: what `earliest` still has begins somewhere, and has no hole."""
    for n in range(4):
        clock.set(NOW_MS + n)
        finish(orders, f"t{n}")
    made = stream(history="orders", startingOffset=start, rowsPerPartition="1")
    first, second, _, fourth = made.partitions(made.initialOffset(), {"at": repr(NOW_MS + 10)})
    assert list(made.read(first))
    orders.configure(history_max=2)
    clock.set(NOW_MS + 20)
    finish(orders, "newer")  # t0 and t1 go
    with pytest.raises(HistoryTrimmed):
        list(made.read(second))
    assert [one for batch in made.read(fourth) for one in batch["_id"].to_pylist()] == ["t3"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, InvalidOption, "option history is missing"),
        ({"queue": "orders"}, InvalidOption, "a stream reads what has finished"),
        ({"history": "orders", "maxRowPerTrigger": "1"}, UnknownOption, "did you mean 'maxRowsPerTrigger'"),
        ({"history": "orders", "maxRowsPerTrigger": "none"}, InvalidOption, "give a whole number"),
        ({"history": "orders", "startingOffset": "soon"}, InvalidOption, "give earliest, latest or an instant"),
        ({"history": "orders", "startingOffset": "2026-01-01"}, NaiveDatetime, "zone; write 2026-01-01T00:00:00Z or "),
    ],
)
def test_a_wrong_option_says_what_is_right(stream, options, error, message):
    with pytest.raises(error, match=message):
        stream(**options)


def test_a_query_that_is_refused_says_why(spark, server, keys, tmp_path):
    """PySpark reports UnboundLocalError for an error that making the reader raises."""
    options = {"url": server.url, "prefix": keys.prefix, "queue": "orders"}
    query = spark.readStream.format("jobrunner").options(**options).load().writeStream.trigger(availableNow=True)
    query = query.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=r"\bInvalidOption: .*a stream reads what has finished"):
        query.awaitTermination(60)


def test_a_server_that_refuses_the_user_is_named_without_a_traceback(spark, server, keys, tmp_path):
    """At the first call of the reader, which is another one of a query with availableNow."""
    wrong = server.url.replace("unix://", "unix://nobody:no@")
    options = {"url": wrong, "prefix": keys.prefix, "history": "orders"}
    rows = spark.readStream.format("jobrunner").options(**options).load()
    for trigger in ({"availableNow": True}, {"processingTime": "1 second"}):
        query = rows.writeStream.trigger(**trigger).format("noop").option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(StreamingQueryException, match=r"ServerRefused: .* refused this user") as raised:
            query.awaitTermination(60)
        assert "Traceback" not in str(raised.value)


def test_micro_batch_0_from_earliest_that_was_written_before_a_trim_goes_on_as_the_page_says(
    orders, spark, client, server, keys, tmp_path
):
    """Its driver died between the decision and Spark's commit, and history was trimmed before the restart."""
    commits = tmp_path / "commits"

    def run():
        options = {"url": server.url, "prefix": keys.prefix}
        rows = spark.readStream.format("jobrunner").options(history="orders", columns="_id,payload", **options).load()
        options |= {"queue": "copies", "checkpointLocation": str(tmp_path)}
        query = rows.writeStream.format("jobrunner").options(**options)
        query.trigger(availableNow=True).start().awaitTermination(60)

    for n in range(3):
        finish(orders, f"t{n}")
    run()
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    orders.configure(history_max=2)
    finish(orders, "new")
    with pytest.raises(StreamingQueryException, match=r"with 3 rows, and has 2 now; .*or of history that was trimmed"):
        run()
    (commits / "0").write_bytes(b'v1\n{"nextBatchWatermarkMs":0}')
    run()
    assert sorted(item.id for item in client.queue("copies").pop(9)) == ["new", "t0", "t1", "t2"]


def test_a_query_registers_the_format_once(orders, spark, server, keys, tmp_path, monkeypatch):
    """Each micro-batch has a new object of the same session, and Spark warns of each repetition."""
    registered = []
    real = type(spark.dataSource).register

    def register(self, source):
        registered.append(source)
        real(self, source)

    for one in "abc":
        finish(orders, one)
    monkeypatch.setattr(type(spark.dataSource), "register", register)
    frame = spark.readStream.format("jobrunner").options(
        url=server.url, prefix=keys.prefix, history="orders", maxRowsPerTrigger=1
    )
    sessions = []

    def each(batch, _):
        sessions.append(id(batch.sparkSession))
        prepare(batch.sparkSession)

    writer = frame.load().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert len(sessions) == 3
    assert len(registered) == 1
