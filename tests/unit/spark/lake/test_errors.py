"""Tables that cannot be reached: each error names the table and the cause, and writing goes on when that is mended."""

import errno
import gc
import io
import os
import socket
import sys

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

from jobrunner.errors import SparkMissing, TableError
from jobrunner.etl import table_sink
from jobrunner.spark.lake import iceberg_catalog
from jobrunner.spark.lake.commit import commit, open_table
from jobrunner.spark.lake.delta import DeltaLake
from jobrunner.spark.lake.services import clean_up_table
from jobrunner.spark.lake.storage import Storage
from jobrunner.spark.lake.tables import reason
from tests.unit.spark.lake.conftest import Lake, part


def test_a_path_through_a_file(tmp_path, numbers):
    (tmp_path / "file").write_text("")
    lake = Lake(f"delta:{tmp_path}/file/late")
    with pytest.raises(TableError, match=f"table {lake.table}: .* failed: .*{tmp_path}/file/late"):
        lake.write(part("a"), numbers(1))
    (tmp_path / "file").unlink()
    assert lake.write(part("a"), numbers(1)).rows == 1


class FullDisk(io.BytesIO):
    """Takes the first bytes of a file."""

    def write(self, content):
        if self.tell() + len(content) > 64:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


def test_a_full_disk_is_one_error_without_a_traceback_beside_it(tmp_path, monkeypatch):
    lake, beside = Lake(f"delta:{tmp_path}/late"), []
    ready = lake.prepare(part("a"), rows := pa.table({"s": ["no space for this"] * 9}))
    monkeypatch.setattr(sys, "unraisablehook", beside.append)
    with monkeypatch.context() as full:
        full.setattr(Storage, "create", lambda *_: pa.PythonFile(FullDisk(), "w"))
        with pytest.raises(TableError, match=r"no data file can be written: .*No space left on device"):
            lake.files(ready, rows)
    gc.collect()
    assert beside == []
    assert lake.write(part("a"), rows).rows == 9


def test_a_catalog_that_nobody_configured_and_one_that_is_away(catalog, numbers, tmp_path):
    unknown = Lake("iceberg:nowhere.db.late")
    with pytest.raises(TableError, match=r"table iceberg:nowhere\.db\.late: opening its catalog failed: .*NOWHERE"):
        unknown.write(part("a"), numbers(1))
    away = Lake(f"iceberg:{catalog('away', uri='http://127.0.0.1:9/', type='rest')}.db.late")
    with pytest.raises(TableError, match=r"table iceberg:away\.db\.late: opening its catalog failed: "):
        away.write(part("a"), numbers(1))


@pytest.mark.parametrize("told", [{"type": "rest"}, {"type": ""}])
def test_a_catalog_that_takes_requests_and_answers_none(catalog, numbers, monkeypatch, told):
    monkeypatch.setattr(iceberg_catalog, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = catalog("silent", uri=f"http://127.0.0.1:{server.getsockname()[1]}", **told)
        lake = Lake(f"iceberg:{silent}.db.late")
        with pytest.raises(TableError, match=r"table iceberg:silent\.db\.late: opening its catalog .*timed out"):
            lake.write(part("a"), numbers(1))


def test_a_catalog_whose_database_is_no_folder(catalog, numbers, tmp_path):
    (tmp_path / "file").write_text("")
    lake = Lake(f"iceberg:{catalog('lake', uri=f'sqlite:///{tmp_path}/file/catalog.db')}.db.late")
    with pytest.raises(TableError, match=r"table iceberg:lake\.db\.late: .*unable to open database file"):
        lake.write(part("a"), numbers(1))
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    assert lake.write(part("a"), numbers(1)).rows == 1


@pytest.mark.parametrize("warehouse", ["lake/warehouse", "file://lake/warehouse"])
def test_a_warehouse_that_is_no_absolute_path(catalog, numbers, tmp_path, monkeypatch, warehouse):
    """pyiceberg takes it for a folder below the current one, and the files were in one below the root."""
    monkeypatch.chdir(tmp_path)
    lake = Lake(f"iceberg:{catalog('lake', warehouse=warehouse)}.db.late")
    with pytest.raises(TableError, match=f"is at {warehouse}/db/late, which is no absolute path: give its "):
        lake.write(part("a"), numbers(1))


def test_two_processes_that_begin_with_an_empty_catalog(catalog, numbers, monkeypatch):
    """The other one makes the tables of the catalog, and later the namespace, where this one has just looked for it."""
    tables, exists, made = SqlCatalog.create_tables, SqlCatalog.namespace_exists, []

    def made_by_the_other(self):
        if "tables" in made:
            return tables(self)
        made.append("tables")
        tables(self)
        return SqlCatalogBaseTable.metadata.create_all(self.engine, checkfirst=False)

    def looked_before_the_other(self, namespace):
        if "namespace" in made:
            return exists(self, namespace)
        made.append("namespace")
        self.create_namespace(namespace)
        return False

    monkeypatch.setattr(SqlCatalog, "create_tables", made_by_the_other)
    monkeypatch.setattr(SqlCatalog, "namespace_exists", looked_before_the_other)
    lake = Lake(f"iceberg:{catalog()}.db.late")
    assert lake.write(part("a"), numbers(1)).rows == 1
    assert made == ["tables", "namespace"]


@pytest.mark.parametrize("lake", ["delta", "iceberg"], indirect=True)  # a bucket has no folders
def test_a_folder_of_data_files_that_cannot_be_written(lake, numbers):
    lake.write(part("a"), numbers(1))
    table = open_table(lake.address)
    table.load()
    storage = table.storage
    for one in storage.list(f"{table.folder}jobrunner"):
        storage.remove(one.path)
    storage.remove_empty(f"{table.folder}jobrunner/a")
    storage.remove_empty(f"{table.folder}jobrunner")
    system, root = storage._system
    in_the_way = f"{root}/{table.folder}jobrunner"
    with system.open_output_stream(in_the_way) as file:
        file.write(b"a file is in the way")
    with pytest.raises(TableError, match=f"table {lake.table}: no data file can be written: .*{in_the_way}"):
        lake.write(part("b"), numbers(2))
    system.delete_file(in_the_way)
    assert lake.write(part("b"), numbers(2)).rows == 1


def test_a_data_file_that_is_gone_before_the_commit_is_written_again(lake, numbers):
    lake.write(part("a"), numbers(1))
    ready = lake.prepare(part("b"), numbers(2))
    files = lake.files(ready, numbers(2))
    ready.table.storage.remove(files[0].name)
    with pytest.raises(TableError, match=f"table {lake.table}: .*{files[0].name} was removed before its commit"):
        commit(ready, files)
    assert lake.write(part("b", epoch=2), numbers(2)).rows == 1
    assert lake.column() == [1, 2]


def test_the_cause_that_deltalake_draws_below_an_error_is_in_its_line():
    drawn = (
        "Generic LocalFileSystem error\n          \x1b[31m↳\x1b[0m Unable to open file /lake/late/_delta_log/1.json\n"
        "           \x1b[31m↳\x1b[0m Permission denied (os error 13)\n"
    )
    assert reason(OSError(drawn)) == (
        "OSError: Generic LocalFileSystem error: Unable to open file /lake/late/_delta_log/1.json: "
        "Permission denied (os error 13)"
    )
    assert reason(ValueError("one\ntwo")) == "ValueError: one"
    assert reason(ValueError()) == "ValueError"


def test_a_panic_of_the_library_is_an_error_of_the_table(tmp_path, numbers, monkeypatch):
    """It is no Exception, and would end the thread of a station without a word."""

    class PanicException(BaseException):
        pass

    def panics(*_):
        raise PanicException("Already shut down")

    lake = Lake(f"delta:{tmp_path}/late")
    with monkeypatch.context() as fault:
        fault.setattr(DeltaLake, "append", panics)
        with pytest.raises(TableError, match="the commit failed: RuntimeError: PanicException: Already shut down"):
            lake.write(part("a"), numbers(1))
    assert lake.write(part("a"), numbers(1)).rows == 1


def test_a_library_that_is_missing(monkeypatch, lake):
    monkeypatch.setattr(table_sink, "find_spec", lambda name: None)
    library = {"delta": "deltalake", "iceberg": "pyiceberg"}[lake.address.format]
    with pytest.raises(SparkMissing, match=rf'the table {lake.table} needs {library}: pip install ".*\[lake\]"'):
        clean_up_table(lake.table)
