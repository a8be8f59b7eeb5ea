"""The data files of a table's newest version, as a reader of Parquet can take them."""

import datetime as dt

import pyarrow as pa
import pytest

from jobrunner.errors import InvalidOption, TableError
from jobrunner.etl.table_sink import address_of
from jobrunner.spark.history.archive_tables import place_of
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.lake.services import clean_up_table, compact_table
from tests.unit.spark.lake.conftest import Lake, part

QUEUES = ["orders/raw", "a b%2F~ü", None]


def live(lake, *bound):
    table = open_table(lake.address)
    assert table.load()
    return table.live_files(*bound)


def rows_in(lake, files):
    return sorted(n for one in files for n in lake.read_file(one.path).column("n").to_pylist())


def write(lake, batch, numbers, *values):
    day = pa.array([dt.date(2026, 11, 20)] * len(values))
    window = pa.array([batch] * len(values))
    queue = pa.array([QUEUES[n % 3] for n in values], pa.string())
    lake.write(part(batch), numbers(*values, day=day, queue=queue, window=window), partition_by=["day", "queue"])


def test_each_file_is_named_once_with_its_partition_and_excluded_by_its_bounds(lake, numbers):
    for batch, values in {"0-5": (0, 1, 2, 3), "5-9": (4, 5)}.items():
        write(lake, batch, numbers, *values)
    found = live(lake)
    assert rows_in(lake, found) == [0, 1, 2, 3, 4, 5]
    assert {one.partition["day"] for one in found} == {"2026-11-20"}
    assert {one.partition["queue"]: rows_in(lake, [one]) for one in live(lake, "window", "0-5")} == {
        "orders/raw": [0, 3], QUEUES[1]: [1], None: [2],
    }  # fmt: skip
    assert live(lake, "window", "9-10") == []

    assert compact_table(lake.table) == 4  # into names that the library makes, with the values in folders
    found = live(lake, "window", "5-9")
    assert rows_in(lake, found) == [1, 2, 4, 5]
    assert {one.partition["queue"] for one in found} == set(QUEUES[1:])
    clean_up_table(lake.table, older_than=dt.timedelta(0))
    assert lake.column() == [0, 1, 2, 3, 4, 5]


def test_a_table_whose_files_alone_are_not_its_rows_is_refused(catalog, numbers, tmp_path):
    renamed = Lake(f"iceberg:{catalog()}.db.late")
    renamed.write(part("b1"), numbers(1))
    table = open_table(renamed.address)
    table.load()
    with table._table.update_schema() as change:
        change.rename_column("n", "number")
    with pytest.raises(TableError, match=r"column 'n' of table .* had another name before|column 'number' of table"):
        live(renamed)

    from deltalake import DeltaTable, TableFeatures

    lake = Lake(f"delta:{tmp_path}/late")
    lake.write(part("b1"), numbers(1))
    change = DeltaTable(f"{tmp_path}/late").alter
    change.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(TableError, match="has the feature deletionVectors, so that its data files alone"):
        live(lake)


def test_the_place_of_an_archive_is_a_table_a_folder_or_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_of("history") == f"{tmp_path}/history"
    assert place_of("s3a://bucket/history") == "s3a://bucket/history"
    assert place_of("delta:history/") == address_of(f"delta:{tmp_path}/history")
    assert place_of("delta:s3://bucket/history") == address_of("delta:s3://bucket/history")
    assert place_of("iceberg:lake.db.history") == address_of("iceberg:lake.db.history")
    for wrong, said in {
        "detla:/lake/history": "neither a table nor a folder or URL: give delta:/lake/history",
        "Iceberg:lake.db.history": "neither a table nor a folder",
        "iceberg:history": "name catalog, namespace and table",
        "delta:": "absolute path",
        "delta:~nobody-of-this-name/lake": "no such home directory is known; give an absolute path",
    }.items():
        with pytest.raises(InvalidOption, match=said):
            place_of(wrong)
