"""Tables in a folder of the test, and batches that write to them without Spark or a server."""

from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobrunner.etl.table_sink import address_of
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake.commit import TableCommit, commit, commit_merge, discard, open_table, prepare
from jobrunner.spark.lake.files import write_files
from jobrunner.spark.lake.identity import attempt_of
from jobrunner.spark.lake.storage import local_path


@dataclass
class Batch:
    """An attempt at a batch, whose lease is held."""

    id: str
    epoch: int = 1
    supersedes: tuple[str, ...] = ()
    renew: object = field(default=lambda: None)


def part(batch_id, epoch=1, **others):
    """The batch of this id, which is a part of those that its name tells."""
    larger, rest = [], batch_id
    while "." in rest:
        rest = rest.rpartition(".")[0]
        larger.append(rest)
    return Batch(batch_id, epoch, tuple(larger), **others)


class Lake:
    """One table: writes batches to it as a sink does, and reads it as anybody would."""

    def __init__(self, table, *, is_in_bucket=False):
        self.table = table
        self.is_in_bucket = is_in_bucket
        self.address = address_of(table)

    def prepare(self, batch, rows, **options):
        return prepare(self.address, attempt_of(batch), rows.schema, **options)

    def files(self, ready, rows, per_file=1_000_000):
        columns = [(name, "ascending") for name in ready.partition_by]
        ordered = rows.sort_by(columns) if columns else rows
        try:
            return list(write_files(ready.target(per_file), ordered.to_batches()))
        except BaseException:
            discard(ready)
            raise

    def write(self, batch, rows, order=(), **options):
        ready = self.prepare(batch, rows, **options)
        if isinstance(ready, TableCommit):
            return ready
        if ready.merge_on:
            return commit_merge(ready, rows, order)
        return commit(ready, self.files(ready, rows))

    def read(self, version=None):
        table = open_table(self.address)
        assert table.load()
        if self.address.format == "delta":
            if version is not None:
                table._table.load_as_version(version)
            return table._table.to_pyarrow_table()
        return table._table.scan(snapshot_id=version).to_arrow()

    def column(self, name="n"):
        return sorted(self.read().column(name).to_pylist())

    def mark(self, batch_id):
        table = open_table(self.address)
        table.load()
        return table.mark_of(batch_id)

    def data_files(self):
        table = open_table(self.address)
        table.load()
        storage = table.storage
        return [one.path for one in storage.list("") if one.path.endswith(".parquet") and "_delta_log" not in one.path]


    def named_files(self):
        """Names of the data files that the newest version names."""
        table = open_table(self.address)
        table.load()
        root = f"{local_path(table.storage.root)}/"
        if self.address.format == "delta":
            return {local_path(one).removeprefix(root) for one in table._table.file_uris()}
        paths = [one.file.file_path.removeprefix("file://") for one in table._table.scan().plan_files()]
        return {path.removeprefix(root) for path in paths}

    def read_file(self, path):
        """The rows of a data file, by its path or URL, or its name below the root."""
        table = open_table(self.address)
        assert table.load()
        storage = table.storage
        name = path.removeprefix("file://").removeprefix(f"{local_path(storage.root)}/")
        with storage._system[0].open_input_file(storage._path(name)) as file:
            return pq.ParquetFile(file).read()


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """catalog("lake"): a catalog of that name, in SQLite in the test's folder; returns its name."""
    from pyiceberg.catalog import Config  # what the environment held is read when it is imported

    def make(name="lake", **properties):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        known = Config.get_catalog_config

        def found(self, wanted):
            return settings | properties if wanted == name else known(self, wanted)

        monkeypatch.setattr(Config, "get_catalog_config", found)
        return name

    return make


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch):
    """Other tests had tables of these names."""
    monkeypatch.setattr(lake_commit, "_seen", set())


BUCKETS = [pytest.param(f"{name} in a bucket", marks=pytest.mark.processes) for name in ("delta", "iceberg")]
"""Their server is a process, and each of its answers takes milliseconds."""


@pytest.fixture(params=["delta", "iceberg", *BUCKETS])
def lake(request, tmp_path, catalog, monkeypatch):
    """A table of each format, in a folder and in an object store."""
    if not request.param.endswith("bucket"):
        return Lake(f"delta:{tmp_path}/late" if request.param == "delta" else f"iceberg:{catalog()}.db.late")
    bucket = request.getfixturevalue("bucket")
    where = f"s3://{bucket.name}/{uuid4().hex}"
    if request.param.startswith("delta"):
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        return Lake(f"delta:{where}/late", is_in_bucket=True)
    return Lake(f"iceberg:{catalog(warehouse=where, **bucket.properties)}.db.late", is_in_bucket=True)


@pytest.fixture
def numbers():
    """numbers(3): rows with n from 0 to 2; other columns may be given."""

    def make(*values, **columns):
        return pa.table({"n": pa.array(values, pa.int64()), **columns})

    return make
