"""What a table remembers, for how long, and what compaction and clean-up leave of it."""

import os
import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import visitors
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, snapshot

from jobrunner.clock import unix_ms
from jobrunner.errors import BatchLost, TableError, UsageError
from jobrunner.spark.lake import iceberg
from jobrunner.spark.lake.commit import commit, open_table
from jobrunner.spark.lake.services import clean_up_table, compact_table
from jobrunner.spark.lake.storage import local_path
from jobrunner.spark.lake.tables import CommitConflict
from tests.unit.spark.lake.conftest import Lake, part


def test_files_of_attempts_that_are_over_are_removed_at_once_and_others_by_age(lake, numbers):
    running = lake.prepare(part("slow"), numbers(7))
    files = lake.files(running, numbers(7))
    for batch in ("whole", "split", "split.1", "written.2.1"):
        lake.files(lake.prepare(part(batch), numbers(1)), numbers(1))
    lake.write(part("whole", epoch=2), numbers(1))
    lake.write(part("split.2"), numbers(2))
    lake.write(part("written"), numbers(3))
    dead = lake.prepare(part("gone"), numbers(9))
    lake.files(dead, numbers(9))

    seen = clean_up_table(lake.table, dry_run=True)
    done = clean_up_table(lake.table)
    assert seen == done
    assert [name.rpartition("/")[2].partition("@")[0] for name in done.files] == ["written.2.1"]
    left = sorted(name.rpartition("/")[2].partition("@")[0] for name in lake.data_files())
    assert left == ["gone", "slow", "split.1", "split.2", "whole", "written"]
    assert commit(running, files).rows == 1
    assert lake.column() == [1, 2, 3, 7]

    clean_up_table(lake.table, older_than=timedelta(0))
    assert len(lake.data_files()) == 4
    assert lake.column() == [1, 2, 3, 7]


def test_many_small_files_become_one_and_the_table_still_knows_its_batches(lake, numbers):
    for turn in range(5):
        lake.write(part(f"b{turn}"), numbers(turn, day=["mon" if turn else "tue"]), partition_by=["day"])
    lake.write(part("c.1"), numbers(9, day=["mon"]))
    assert compact_table(lake.table) == 5
    assert compact_table(lake.table) == 0
    assert lake.column() == [0, 1, 2, 3, 4, 9]
    assert len(lake.data_files()) == 7
    assert lake.write(part("b3", epoch=2), numbers(3, day=["mon"])).repeated
    with pytest.raises(BatchLost):
        lake.write(part("c"), numbers(9, day=["mon"]))

    time.sleep(0.01)  # behind the instant of the last snapshot
    clean_up_table(lake.table, older_than=timedelta(0))
    assert lake.column() == [0, 1, 2, 3, 4, 9]
    assert len(lake.data_files()) == 2
    assert lake.write(part("b3", epoch=2), numbers(3, day=["mon"])).repeated
    with pytest.raises(BatchLost):
        lake.write(part("c"), numbers(9, day=["mon"]))


def test_of_two_compactions_at_once_one_is_refused_and_no_row_is_doubled(lake, numbers, monkeypatch):
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn))
    kind, said = type(open_table(lake.address)), []
    compact = kind.compact

    def meet_another(table):
        monkeypatch.setattr(kind, "compact", compact)
        try:
            compact_table(lake.table)
        except UsageError as error:
            said.append(str(error))
        return compact(table)

    monkeypatch.setattr(kind, "compact", meet_another)
    done = compact_table(lake.table)
    assert lake.column() == [0, 1, 2]
    if lake.table.startswith("iceberg") and lake.is_in_bucket:
        assert (done, said) == (0, [])  # the catalog took the commit of the other one
    else:
        assert done == 3
        assert re.fullmatch(r"another process compacts .+/late; wait until it ends(, or until .+ if it died)?", *said)
    assert compact_table(lake.table) == 0


@pytest.mark.parametrize("before", ["late~{}-chain", "{}-mix@1", "name/{}"])
def test_files_of_batches_of_chains_partitions_and_named_writes_become_one(lake, numbers, before):
    for turn in range(3):
        lake.write(part(before.format(turn)), numbers(turn))
    assert compact_table(lake.table) == 3
    assert lake.column() == [0, 1, 2]
    assert lake.write(part(before.format(1), epoch=2), numbers(1)).repeated


def test_delta_rewrites_a_partition_whose_text_has_a_tilde_once_and_the_others_again(tmp_path, numbers):
    lake = Lake(f"delta:{tmp_path}/t")
    rewritten = []
    for turn in range(4):
        rows = numbers(turn, turn, day=["~ann", "mon"], of=["a", "a"])
        lake.write(part(f"b{turn}"), rows, partition_by=["day", "of"])
        rewritten.append(compact_table(lake.table))
    assert rewritten == [0, 4, 2, 2]
    assert lake.column() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_commit_between_the_plan_of_a_rewrite_and_its_end_stays(lake, numbers, monkeypatch):
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn))
    table = open_table(lake.address)
    table.load()
    lake.write(part("late"), numbers(9))
    with suppress(CommitConflict):
        table.compact()
    assert lake.column() == [0, 1, 2, 9]
    assert lake.mark("late") is not None
    compact_table(lake.table)
    assert lake.column() == [0, 1, 2, 9]


def test_delta_remembers_batches_behind_checkpoints_and_removed_entries_of_the_log(tmp_path, numbers):
    from deltalake import DeltaTable

    lake = Lake(f"delta:{tmp_path}/t")
    for turn in range(4):
        lake.write(part(f"b{turn}"), numbers(turn))
    table = DeltaTable(tmp_path / "t")
    table.create_checkpoint()
    for version in range(4):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    assert lake.write(part("b0", epoch=2), numbers(0)).repeated
    assert table.metadata().configuration["delta.setTransactionRetentionDuration"] == "interval 8 days"


def test_iceberg_forgets_marks_by_age_and_number(catalog, numbers, monkeypatch):
    lake = Lake(f"iceberg:{catalog()}.db.t")
    lake.write(part("b0.1"), numbers(0))
    later = unix_ms() + 7 * 86_400_000
    monkeypatch.setattr(iceberg, "unix_ms", lambda: later)
    lake.write(part("b1"), numbers(1))
    assert lake.write(part("b0.1", epoch=2), numbers(0)).repeated
    assert lake.mark("b0") == 0
    monkeypatch.setattr(iceberg, "unix_ms", lambda: later + 2 * 86_400_000)
    monkeypatch.setattr(iceberg, "_MARKS_BEYOND_A_DAY", 1)
    lake.write(part("b2"), numbers(2))
    assert [lake.mark(batch) is not None for batch in ("b0", "b0.1", "b1", "b2")] == [False, False, True, True]


def test_statistics_of_partitions_that_the_metadata_names_stay(catalog, numbers):
    lake = Lake(f"iceberg:{catalog()}.db.t")
    lake.write(part("b"), numbers(1))
    at = open_table(lake.address)
    at.load()
    folder = Path(local_path(at._table.location())) / "metadata"
    for name in ("named", "other"):
        pq.write_table(pa.table({"partition": [1]}), folder / f"{name}.parquet")
        os.utime(folder / f"{name}.parquet", (1, 1))
    told = {"snapshot-id": at.version, "statistics-path": f"{folder}/named.parquet", "file-size-in-bytes": 9}
    update = SetPartitionStatisticsUpdate(partition_statistics=PartitionStatisticsFile.model_validate(told))
    with at._table.transaction() as transaction:
        transaction._apply((update,))

    assert [name.rpartition("/")[2] for name in clean_up_table(lake.table).files] == ["other.parquet"]
    assert (folder / "named.parquet").exists()


@pytest.mark.parametrize("text", ["[1]", "", None])
def test_marks_that_another_program_destroyed_end_the_commit(catalog, numbers, text):
    """Without the property no batch passed for written: one that came again was there twice."""
    from pyiceberg.catalog import load_catalog

    lake = Lake(f"iceberg:{catalog()}.db.t")
    lake.write(part("a"), numbers(0))
    with load_catalog("lake").load_table("db.t").transaction() as change:
        if text is None:
            change.remove_properties(iceberg.MARKS)
        else:
            change.set_properties({iceberg.MARKS: text})
    with pytest.raises(TableError, match=f"table {lake.table}: its property jobrunner.batches was changed"):
        lake.write(part("a", 2), numbers(0))
    with load_catalog("lake").load_table("db.t").transaction() as change:
        change.set_properties({iceberg.MARKS: "{}"})
    lake.write(part("b"), numbers(1))
    assert lake.column() == [0, 1]


def test_files_in_folders_whose_names_are_quoted_stay(lake, numbers):
    """A rewrite puts files into folders that the library names after the values of the partition."""
    for turn in range(2):
        queues = pa.array(["orders/raw", "a b%2F~ü"])
        lake.write(part(f"b{turn}"), numbers(turn, turn, queue=queues), partition_by=["queue"])
    assert compact_table(lake.table) == 4
    clean_up_table(lake.table, older_than=timedelta(0))
    assert lake.column() == [0, 0, 1, 1]


def test_services_of_no_table(lake):
    for service in (compact_table, clean_up_table):
        with pytest.raises(TableError, match=f"there is no table {lake.table}"):
            service(lake.table)


def test_metadata_that_a_killed_commit_left_is_removed_by_age(catalog, numbers, tmp_path):
    lake = Lake(f"iceberg:{catalog()}.db.t")
    lake.write(part("a"), numbers(0))
    folder = tmp_path / "lake" / "warehouse" / "db" / "t" / "metadata"
    left = folder / "snap-1-0-x.avro"
    left.write_text("")
    assert clean_up_table(lake.table).files == ()
    os.utime(left, (1, 1))
    assert clean_up_table(lake.table).files == ("metadata/snap-1-0-x.avro",)
    assert lake.write(part("b"), numbers(1)).rows == 1


@pytest.mark.parametrize("name", ["my table", "tä", "%20", "a'b", "[x]"])
def test_an_iceberg_table_whose_location_is_no_url_as_it_stands(catalog, name, numbers, tmp_path):
    """pyiceberg takes what is behind `file://` as a path, and quotes nothing in it."""
    lake = Lake(f"iceberg:{catalog(warehouse=f'file://{tmp_path}/ware house')}.db.{name}")
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn, day=["mon"]), partition_by=["day"])
    lake.write(part("m"), numbers(2, 3, day=["tue", "tue"]), merge_on=["n"])
    dead = lake.prepare(part("d"), numbers(5, day=["x"]))
    lake.files(dead, numbers(5, day=["x"]))
    assert compact_table(lake.table) > 0
    assert lake.write(part("b1", epoch=2), numbers(1, day=["mon"])).repeated
    time.sleep(0.01)  # behind the instant of the last snapshot
    clean_up_table(lake.table, older_than=timedelta(0))
    assert lake.column() == [0, 1, 2, 3]
    assert len(lake.data_files()) == 2


def test_a_location_with_a_sign_that_ends_a_path_is_refused(catalog, numbers, tmp_path):
    """pyiceberg would cut it off there, and write all metadata to one file."""
    lake = Lake(f"iceberg:{catalog(warehouse=f'file://{tmp_path}/a#b')}.db.late")
    with pytest.raises(TableError, match=r"table iceberg:lake\.db\.late is at file://.*/a#b/db/late, .* '#'"):
        lake.write(part("a"), numbers(1))


def test_versions_are_never_given_up_before_their_age(tmp_path, numbers):
    """The library counts in hours, of which there may be a part."""
    lake = Lake(f"delta:{tmp_path}/t")
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn))
    compact_table(lake.table)
    for age in (timedelta(minutes=20), timedelta(hours=1)):
        clean_up_table(lake.table, older_than=age)
        assert len(lake.data_files()) == 4
    clean_up_table(lake.table, older_than=timedelta(0))
    assert len(lake.data_files()) == 1


def test_a_clean_up_that_meets_commits_of_sinks_is_tried_again(catalog, numbers, monkeypatch):
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    lake, met = Lake(f"iceberg:{catalog()}.db.late"), []
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn))
    commits = ExpireSnapshots.commit

    def meets_another(self):
        if len(met) < 2:
            met.append(self)
            raise CommitFailedException("updated by another process")
        commits(self)

    monkeypatch.setattr(ExpireSnapshots, "commit", meets_another)
    time.sleep(0.01)  # behind the instant of the last snapshot
    assert clean_up_table(lake.table, older_than=timedelta(0)).files != ()
    assert lake.column() == [0, 1, 2]


def test_the_commands_compact_and_clean(lake, numbers, cli):
    for turn in range(3):
        lake.write(part(f"b{turn}"), numbers(turn))
    lake.files(lake.prepare(part("other"), numbers(1)), numbers(1))
    assert cli("spark", "compact", lake.table).line == "3 small files rewritten"
    assert cli("spark", "compact", lake.table, "--json").value == {"table": lake.table, "files": 0}
    assert cli("spark", "clean", lake.table, "--dry-run").line == "0 files would be removed"
    done = cli("spark", "clean", lake.table, "--older-than", "0s", "--json").value
    assert any("other@" in name for name in done["files"])
    assert lake.column() == [0, 1, 2]
    refused = cli("spark", "clean", "late:/x")
    assert (refused.code, "'late' is no table format" in refused.line) == (2, True)


def test_no_bound_of_a_delta_table_leaves_nan_out(tmp_path):
    """Spark and others rank NaN above all numbers: by a bound below 5 they passed over such rows for x > 5."""
    lake = Lake(f"delta:{tmp_path}/t")
    nested = pa.array([{"x": 1.0, "n": 1}] * 3)
    for turn, x in enumerate([[1.0, 2.0, None], [-0.0, 3.0, float("nan")], [0.0, 4.0, 4.5]]):
        lake.write(part(f"b{turn}"), pa.table({"n": [turn] * 3, "x": x, "y": [1.5, None, 2.5], "s": nested}))
    assert bounds(lake, "x") == [(-0.0, 4.5), (1.0, 2.0), None]
    assert str(bounds(lake, "x")[0][0]) == "-0.0"
    assert bounds(lake, "y") == [(1.5, 2.5)] * 3
    assert bounds(lake, "n") == [(0, 0), (1, 1), (2, 2)]
    assert {column for column in with_statistics(lake) if column[0] in "xys"} == {"s.n"}
    assert compact_table(lake.table) == 3
    assert (bounds(lake, "x"), bounds(lake, "y")) == ([None], [(1.5, 2.5)])
    assert with_statistics(lake) >= {"n", "y"}
    assert "x" not in with_statistics(lake)
    rows = pa.table({"n": [0, 7], "x": [0.5, 1.0], "y": [1.0, float("nan")], "s": nested[:2]})
    lake.write(part("m"), rows, merge_on=["n"])
    assert (bounds(lake, "x"), bounds(lake, "y")) == ([None], [None])
    assert not with_statistics(lake) & {"x", "y"}


def test_a_column_with_a_dot_has_no_bounds_of_a_field_in_a_struct(tmp_path):
    """By those of the field a reader passed over the rows."""
    lake = Lake(f"delta:{tmp_path}/t")
    fields = pa.array([{"b": 1}, {"b": 2}])
    lake.write(part("first"), pa.table({"a.b": [100, 200], "a": fields, "n": [1, 2]}))
    table = open_table(lake.address)
    assert table.load()
    rows = table._table.to_pyarrow_dataset().to_table(filter=pc.field("a.b") > 150)
    assert rows.column("n").to_pylist() == [2]


def bounds(lake, column):
    """Those in the log, of each file."""
    table = open_table(lake.address)
    assert table.load()
    actions = pa.table(table._table.get_add_actions(flatten=True)).to_pylist()
    pairs = [(one.get(f"min.{column}"), one.get(f"max.{column}")) for one in actions]
    return sorted((None if None in pair else pair for pair in pairs), key=lambda pair: pair or (10**9,))


def with_statistics(lake):
    """Columns that have some in one of the data files."""
    root, found = Path(lake.address.where), set()
    for name in lake.named_files():
        footer = pq.ParquetFile(root / name).metadata
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        columns = [group.column(at) for group in groups for at in range(footer.num_columns)]
        found |= {one.path_in_schema for one in columns if one.statistics is not None}
    return found


@pytest.mark.parametrize("change", ["a compaction", "a merge"])
def test_no_two_manifests_are_asked_about_at_once(catalog, numbers, monkeypatch, change):
    """The library asks in several threads. An evaluator that two of them shared passed over the file to replace, and
    the change failed as if that was missing."""
    table = Lake(f"iceberg:{catalog()}.db.late")
    asked, ask = [], visitors._ManifestEvalVisitor.eval

    def note(evaluator, manifest):
        if threading.current_thread() is not threading.main_thread():
            asked.append(evaluator)
        return ask(evaluator, manifest)

    of = {"partition_by": ["day"], "merge_on": ("n",)}
    for turn in range(4):
        table.write(part(f"b{turn}"), numbers(turn, day=[turn % 2]), **of)
    monkeypatch.setattr(visitors._ManifestEvalVisitor, "eval", note)
    if change == "a compaction":
        compact_table(table.table)
    else:
        table.write(part("again"), numbers(0, 1, day=[0, 1]), **of)

    assert sorted(table.column()) == [0, 1, 2, 3]
    if hasattr(snapshot._OverwriteFiles, "_build_manifest_evaluator"):  # since 0.12
        assert len(asked) >= 4
    assert len(set(map(id, asked))) == len(asked)
