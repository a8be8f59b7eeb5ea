"""A batch enters a table once, whichever attempts at it and at its parts come, and in which order."""

import threading
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from jobrunner.clock import unix_ms
from jobrunner.errors import BatchLost, PipelineError, TableError
from jobrunner.etl.table_sink import address_of
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake import files as lake_files
from jobrunner.spark.lake import identity
from jobrunner.spark.lake.commit import TableCommit, commit, commit_merge, open_table, prepare, rows_before, settle
from jobrunner.spark.lake.identity import attempt_of
from jobrunner.spark.lake.services import compact_table
from jobrunner.spark.lake.tables import CommitConflict
from jobrunner.spark.lake.write import _check_visible
from tests.unit.spark.lake.conftest import part


def test_a_repeated_commit_is_skipped_and_leaves_no_file(lake, numbers):
    first = lake.write(part("b"), numbers(1, 2))
    again = lake.write(part("b", epoch=2), numbers(1, 2))
    assert (first.rows, first.files, first.repeated) == (2, 1, False)
    assert (again.rows, again.version, again.repeated) == (0, None, True)
    assert lake.column() == [1, 2]
    assert len(lake.data_files()) == 1


def test_the_version_of_a_commit_has_its_rows(lake, numbers):
    versions = [lake.write(part(f"b{n}"), numbers(n)).version for n in range(3)]
    assert [sorted(lake.read(version).column("n").to_pylist()) for version in versions] == [[0], [0, 1], [0, 1, 2]]


def test_parts_of_a_batch_that_was_written_are_skipped(lake, numbers):
    lake.write(part("b"), numbers(1, 2))
    assert lake.write(part("b.1"), numbers(1)).repeated
    assert lake.write(part("b.2.1"), numbers(2)).repeated
    assert lake.column() == [1, 2]


def test_a_zombie_of_a_whole_whose_part_was_written_is_refused(lake, numbers):
    zombie = lake.prepare(part("b"), numbers(1, 2))
    files = lake.files(zombie, numbers(1, 2))
    inner = lake.prepare(part("b.2"), numbers(2))
    lake.write(part("b.2.1"), numbers(2))
    with pytest.raises(BatchLost, match="'b' was split"):
        commit(zombie, files)
    with pytest.raises(BatchLost, match=r"'b\.2' was split"):
        commit(inner, lake.files(inner, numbers(2)))
    lake.write(part("b.1"), numbers(1))
    assert lake.column() == [1, 2]
    assert len(lake.data_files()) == 2


@pytest.mark.parametrize("lake", ["delta", "iceberg"], indirect=True)  # a bucket is the same for all machines
def test_files_that_another_attempt_removed_at_its_commit_are_not_taken_for_those_of_another_machine(lake, numbers):
    one, two = (lake.prepare(part("b", epoch), numbers(1)) for epoch in (1, 2))
    files, others = lake.files(one, numbers(1)), lake.files(two, numbers(1))
    one.table.storage.remove(files[0].name)
    with pytest.raises(TableError, match="which is not on this machine"):
        _check_visible(one, files)
    commit(two, others)
    _check_visible(one, files)
    assert commit(one, files).repeated
    assert lake.column() == [1]


@pytest.mark.parametrize("ids", [("b", "b"), ("b", "b.1"), ("b.1", "b"), ("b.1", "b.1"), ("b.1.2", "b.1")])
def test_of_two_drivers_that_commit_at_the_same_time_one_does(ids, lake, numbers, monkeypatch):
    """The second commits between the look of the first at the marks and its transaction."""
    lake.write(part("other"), numbers(0))
    one, two = (lake.prepare(part(batch_id, epoch), numbers(1)) for epoch, batch_id in enumerate(ids, 1))
    files, others = lake.files(one, numbers(1)), lake.files(two, numbers(1))
    append, done = one.table.append, []

    def second_comes_first(files, attempt):
        if not done:
            done.append(commit(two, others))
        return append(files, attempt)

    monkeypatch.setattr(one.table, "append", second_comes_first)
    try:
        done.append(commit(one, files))
    except BatchLost:
        done.append(None)
    assert [None if one is None else one.rows for one in done] == [1, None if len(ids[0]) < len(ids[1]) else 0]
    assert lake.column() == [0, 1]
    assert len(lake.data_files()) == 2


def test_commits_of_other_batches_do_not_disturb_and_threads_all_get_through(lake, numbers):
    lake.write(part("first"), numbers(0))
    errors, started = [], threading.Barrier(4)

    def run(number):
        try:
            started.wait()
            for turn in range(3):
                lake.write(part(f"b{number}-{turn}"), numbers(number * 10 + turn))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 5)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert errors == []
    assert lake.column() == [0, *(number * 10 + turn for number in range(1, 5) for turn in range(3))]


def test_sinks_that_make_one_table_at_once_leave_the_columns_of_the_first(tmp_path):
    """Those of a later one would hide columns that the first has rows for by now."""
    for turn in range(5):
        started, tables = threading.Barrier(4), [open_table(address_of(f"delta:{tmp_path}/{turn}")) for _ in range(4)]

        def make(table, columns, started=started):
            started.wait()
            table.create(columns, ())

        threads = [
            threading.Thread(target=make, args=(table, pa.schema([("n", pa.int64()), (f"of_{place}", pa.string())])))
            for place, table in enumerate(tables)
        ]
        [one.start() for one in threads]
        [one.join() for one in threads]
        assert {(table.version, table.unique_id) for table in tables} == {(0, tables[0].unique_id)}


def test_conflicts_without_end_are_an_error_that_names_the_table(lake, numbers, monkeypatch):
    monkeypatch.setattr(lake_commit, "RETRIES_S", 0.0)
    ready = lake.prepare(part("b"), numbers(1))

    def conflict(files, attempt):
        raise CommitConflict("somebody appended")

    files = lake.files(ready, numbers(1))
    monkeypatch.setattr(ready.table, "append", conflict)
    with pytest.raises(TableError, match=rf"{lake.table}: 1 commits met others .*somebody appended"):
        commit(ready, files)


def test_a_lease_that_is_lost_before_the_commit_ends_it_and_its_files(lake, numbers):
    def lost():
        raise BatchLost("another driver holds it")

    with pytest.raises(BatchLost):
        lake.write(part("b", renew=lost), numbers(1))
    assert lake.data_files() == []
    assert lake.read().num_rows == 0


def test_an_error_behind_the_commit_is_none(lake, numbers, monkeypatch):
    ready = lake.prepare(part("b"), numbers(1))
    append = ready.table.append

    def fails_late(files, attempt):
        append(files, attempt)
        raise OSError("no checkpoint")

    monkeypatch.setattr(ready.table, "append", fails_late)
    assert commit(ready, lake.files(ready, numbers(1))).rows == 1
    assert lake.write(part("b", epoch=2), numbers(1)).repeated
    assert lake.column() == [1]


def test_an_error_of_the_commit_keeps_its_files_as_the_outcome_may_be_unknown(lake, numbers, monkeypatch):
    ready = lake.prepare(part("b"), numbers(1))
    files = lake.files(ready, numbers(1))

    def fails(files, attempt):
        raise OSError("the catalog is away")

    monkeypatch.setattr(ready.table, "append", fails)
    with pytest.raises(TableError, match=f"{lake.table}: the commit failed: OSError: the catalog is away"):
        commit(ready, files)
    assert lake.data_files() == [files[0].name]
    lake.write(part("b", epoch=2), numbers(1))
    assert lake.column() == [1]
    assert len(lake.data_files()) == 1


def test_files_of_a_task_that_ran_twice_and_of_dead_attempts_are_removed_with_the_commit(lake, numbers):
    dead = lake.prepare(part("b"), numbers(1))
    lake.files(dead, numbers(1))
    sibling = lake.prepare(part("b.2"), numbers(2))
    kept = lake.files(sibling, numbers(2))
    ready = lake.prepare(part("b.1"), numbers(1))
    lake.files(ready, numbers(1))
    commit(ready, lake.files(ready, numbers(1)))
    assert len(lake.data_files()) == 2
    commit(sibling, kept)
    assert lake.column() == [1, 2]


def test_a_batch_under_a_forgotten_name_takes_no_file_from_the_table(lake, numbers, monkeypatch):
    """After eight days a new checkpoint under an old name, or a repeated micro-batch, was committed again, and removed
    the files of the first, which the table still named: nobody could read it any more."""
    monkeypatch.setattr(identity.WriteAttempt, "marks", lambda _attempt: {"another": 1})  # that of "b" is forgotten
    lake.write(part("b"), numbers(1, 2))
    monkeypatch.setattr(lake_files, "unix_ms", lambda: unix_ms() + 13 * 3_600_000)

    lake.write(part("b"), numbers(1, 2, 3))

    assert lake.column() == [1, 1, 2, 2, 3]


def test_a_table_that_is_dropped_is_not_made_anew_by_who_wrote_to_it(lake, numbers):
    lake.write(part("a"), numbers(1))
    ready = lake.prepare(part("b"), numbers(2))
    files = lake.files(ready, numbers(2))
    _drop(lake)
    with pytest.raises(TableError, match=f"{lake.table} was dropped or replaced"):
        commit(ready, files)
    with pytest.raises(TableError, match=f"{lake.table} is gone, and this process wrote to it before: restore it, or"):
        lake.write(part("c"), numbers(3))
    lake_commit._seen.clear()  # as the worker starts again
    lake.write(part("b", epoch=2), numbers(2))
    assert lake.column() == [2]


@pytest.mark.processes
@pytest.mark.parametrize("lake", ["delta in a bucket", "iceberg in a bucket"], indirect=True)
def test_a_batch_in_a_bucket_leaves_no_object_for_a_folder(lake, numbers, bucket):
    for turn in range(2):
        lake.write(part(f"b{turn}"), numbers(turn))
    table = open_table(lake.address)
    assert table.load()
    keys = bucket.keys(table.storage.root.removeprefix(f"s3://{bucket.name}/"))
    assert len([key for key in keys if key.endswith(".parquet")]) == 2
    assert [key for key in keys if key.endswith("/")] == []


def _drop(lake):
    if lake.address.format == "delta":
        storage = open_table(lake.address).storage
        for one in storage.list(""):
            storage.remove(one.path)
    else:
        from pyiceberg.catalog import load_catalog

        load_catalog("lake").drop_table("db.late")


@pytest.mark.parametrize("merges", [False, True])
def test_a_micro_batch_is_noted_with_its_number_of_rows(lake, numbers, merges):
    """Those of a checkpoint that is older than the table have its numbers, and other rows."""
    rows = numbers(1, 1, 2, v=["a", "b", "c"])
    ready = prepare(lake.address, attempt_of(part("stream-0"), counts_rows=True), rows.schema,
                    merge_on=["n"] if merges else [])  # fmt: skip
    done = commit_merge(ready, rows, ["v"]) if merges else commit(ready, lake.files(ready, rows))
    assert (done.rows, rows_before(lake.address, "stream-0")) == (2 if merges else 3, 3)
    assert lake.write(part("stream-0", epoch=2), rows).repeated
    lake.write(part("b"), numbers(4, v=["d"]))
    assert rows_before(lake.address, "b") is None


def test_a_batch_without_rows_commits_nothing(lake, numbers):
    done = lake.write(part("b"), numbers())
    assert done == TableCommit(table=lake.table, rows=0, files=0, version=None)
    assert lake.mark("b") is None


@pytest.mark.parametrize("rows", [2, 5])
def test_a_file_for_each_partition_with_its_values_back(rows, lake, numbers):
    days = pa.array([None, "a/b é", "a=b", "", "%20"] * 2, pa.string())
    table = numbers(*range(10), day=days, ok=pa.array([True, False] * 5))
    done = lake.write(part("b"), table, partition_by=["day", "ok"])
    assert done.files == 10
    found = lake.read().sort_by("n").to_pydict()
    empty = None if lake.address.format == "delta" else ""  # the format has no partition of empty texts
    assert found["day"] == [None, "a/b é", "a=b", empty, "%20"] * 2
    assert found["ok"] == [True, False] * 5
    more = lake.prepare(part("c"), table)
    assert len(lake.files(more, table.slice(0, 1).take([0] * 7), per_file=rows)) == -(-7 // rows)


@pytest.mark.parametrize(("per_file", "sizes"), [(15, [15, 15, 15, 5]), (10, [10] * 5), (7, [7] * 7 + [1]), (60, [50])])
def test_a_file_has_as_many_rows_as_it_may_have(lake, per_file, sizes):
    """It could have those of one Arrow batch more."""
    table = pa.table({"n": [*range(50)]})
    pieces = pa.Table.from_batches([batch for at in range(0, 50, 10) for batch in table.slice(at, 10).to_batches()])
    ready = lake.prepare(part("a"), pieces)
    files = lake.files(ready, pieces, per_file=per_file)
    assert [one.rows for one in files] == sizes
    assert commit(ready, files).rows == 50
    assert sorted(lake.read()["n"].to_pylist()) == [*range(50)]


def test_values_of_all_types_come_back(lake):
    at, inner = datetime(2026, 1, 31, 1, 2, 3, 4), pa.struct([("c", pa.string())])
    rows = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()), "i": pa.array([-1, 2], pa.int32()),
            "f": pa.array([0.5, None], pa.float32()), "d": pa.array([float("nan"), 1e300]),
            "t": ["ä" * 100, None], "b": [b"\x00", None], "ok": [True, None], "day": [at.date(), None],
            "at": pa.array([at.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "local": pa.array([at, None], pa.timestamp("us")),
            "money": pa.array([Decimal("12.34"), None], pa.decimal128(10, 2)),
            "l": pa.array([["x", None], None], pa.list_(pa.string())),
            "s": pa.array([{"a": 1, "b": {"c": "x"}}, None], pa.struct([("a", pa.int32()), ("b", inner)])),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        }
    )  # fmt: skip
    lake.write(part("b"), rows)
    lake.write(part("c"), rows)
    found = lake.read()
    assert repr(found.slice(0, 2).to_pylist()) == repr(found.slice(2, 2).to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize("key", [(), ("n",)])
def test_a_value_that_cannot_partition_rows_is_the_fault_of_its_item(lake, numbers, key):
    """Also for a merge and for a compaction, which have folders of these names."""
    words = r"column 'day', by which table .* is partitioned, is longer than a name of 255 bytes: xxx"
    for day in ("x" * 252, "ä" * 42):
        with pytest.raises(PipelineError, match=words.replace("xxx", day[:3])) as error:
            lake.write(part("a"), numbers(1, day=[day]), partition_by=["day"], merge_on=key)
        assert not isinstance(error.value, TableError)
    for turn, day in enumerate(["x" * 251, "ä" * 41] * 2):
        lake.write(part(f"b{turn}"), numbers(turn, day=[day]), partition_by=["day"], merge_on=key)
    compact_table(lake.table)
    assert lake.column() == [0, 1, 2, 3]


@pytest.mark.parametrize("key", [(), ("n",)])
def test_a_decimal_below_zero_that_nobody_could_read_does_not_partition_a_delta_table(lake, numbers, key):
    """deltalake reads -0.5 of a path as 0.-50, and no row of the table any more."""
    of = {"partition_by": ["p"], "merge_on": key}
    money = pa.decimal128(12, 2)
    lake.write(part("a"), numbers(1, p=pa.array([Decimal("0.50")], money)), **of)
    below = numbers(2, p=pa.array([Decimal("-0.50")], money))
    if lake.address.format == "delta":
        with pytest.raises(PipelineError, match=r"is a decimal below 0, which deltalake cannot read: -0\.50"):
            lake.write(part("b"), below, **of)
        assert lake.column() == [1]
    else:
        lake.write(part("b"), below, **of)
        assert lake.column() == [1, 2]


@pytest.mark.parametrize("key", [(), ("n",)])
def test_the_name_of_null_as_a_text_does_not_partition_a_delta_table(lake, numbers, key):
    """deltalake took rows of null for rows of this text, or the text for null, once files were rewritten."""
    of = {"partition_by": ["day"], "merge_on": key}
    lake.write(part("a"), numbers(1, 2, day=["mon", None]), **of)
    name = "__HIVE_DEFAULT_PARTITION__"
    if lake.address.format == "delta":
        with pytest.raises(PipelineError, match=f"column 'day', by which .* is the name of null: {name}") as error:
            lake.write(part("b"), numbers(3, 4, day=["tue", name]), **of)
        assert not isinstance(error.value, TableError)
        assert lake.column() == [1, 2]
    else:
        lake.write(part("b"), numbers(3, 4, day=[name, name]), **of)
        compact_table(lake.table)
        days = {row["n"]: row["day"] for row in lake.read().to_pylist()}
        assert days == {1: "mon", 2: None, 3: name, 4: name}


def test_a_batch_that_the_server_lost_is_in_the_table_or_will_never_be(lake, numbers):
    zombie = lake.prepare(part("lost"), numbers(1))
    files = lake.files(zombie, numbers(1))
    lake.write(part("whole"), numbers(2))
    lake.write(part("split.1"), numbers(3))
    ready = lake.prepare(part("new"), numbers(1))
    table = ready.table
    found = {batch: settle(table, batch) for batch in ("lost", "whole", "whole.1.2", "split", "split.1", "split.2")}
    assert found == {"lost": False, "whole": True, "whole.1.2": True, "split": False, "split.1": True, "split.2": False}
    assert not any(settle(table, batch, root="other") for batch in ("other.p1of4", "others"))
    with pytest.raises(BatchLost, match="or it was fenced"):
        commit(zombie, files)
    with pytest.raises(BatchLost, match="or it was fenced"):
        lake.write(part("others"), numbers(4))
    lake.write(part("other.p1of4"), numbers(5))
    commit(ready, lake.files(ready, numbers(1)))
    assert lake.column() == [1, 2, 3, 5]
