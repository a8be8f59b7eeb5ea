"""Tables of Apache Iceberg, through the library `pyiceberg` and a catalog in its configuration.

Marks of batches are in the table property `jobrunner.batches`, as a JSON object: batch → [mark, Unix seconds]. Each
commit writes the property together with its snapshot, so marks outlast expired snapshots. A commit asserts the snapshot
that it is based on, so it never overwrites marks that another commit wrote since the table was loaded.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertLastAssignedFieldId

from jobrunner.clock import unix_ms
from jobrunner.errors import TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.files import DataFile
from jobrunner.spark.lake.iceberg_catalog import make_namespace, open_catalog
from jobrunner.spark.lake.iceberg_files import live_files, named_files, unquoted
from jobrunner.spark.lake.iceberg_repairs import keep_nulls, keep_partitions
from jobrunner.spark.lake.iceberg_rewrites import merge_small_files, replace_rows
from jobrunner.spark.lake.identity import KEPT_DAYS, PARTS, WriteAttempt
from jobrunner.spark.lake.schema_rules import SchemaPlan, plain
from jobrunner.spark.lake.storage import Storage
from jobrunner.spark.lake.tables import CommitConflict, LiveFile, Orphans

MARKS = "jobrunner.batches"
_BATCH = "jobrunner.batch"
"""Of a snapshot: the batch whose rows it added."""
_DAY_S = 86_400
_KEPT_S = KEPT_DAYS * _DAY_S
_MARKS_BEYOND_A_DAY = 2_000
"""The most marks older than a day that a table keeps: each version of its metadata has them, some 60 bytes each."""
_NO_RETRIES = {"commit.retry.num-retries": "0"}
_OWN = ("jobrunner.", "schema.")

keep_nulls()
keep_partitions()


class IcebergLake:
    """An Iceberg table, see LakeTable."""

    folder = "data/"
    keeps_partitions = True
    widens = True
    merges_whole_rows = True

    def __init__(self, address: TableAddress) -> None:
        self.address = address
        catalog, _, self._name = address.where.partition(".")
        self._catalog = open_catalog(catalog)
        self._loaded: Table | None = None
        self._plan: SchemaPlan | None = None

    @property
    def _table(self) -> Table:
        assert self._loaded is not None
        return self._loaded

    def load(self) -> bool:
        try:
            self._loaded = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return False
        # pyiceberg would retry a commit on the newest snapshot without a check of its marks. This changes only the copy
        # in memory.
        self._loaded.metadata.properties.update(_NO_RETRIES)
        return True

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        self._checked(f"{self._catalog.properties.get('warehouse', '')}/{self._name.replace('.', '/')}")
        make_namespace(self._catalog, self._name.rpartition(".")[0])
        try:
            making = self._catalog.create_table_transaction(self._name, schema=columns)
            with making, making.update_spec() as by:
                for name in partition_by:
                    by.add_identity(name)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another process made it
        if not self.load():
            raise TableError(f"table {self.address} was made and is gone again")

    @property
    def unique_id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def columns(self) -> pa.Schema:
        return self.plain(self._table.schema().as_arrow())

    @property
    def partition_by(self) -> tuple[str, ...]:
        schema, names = self._table.schema(), []
        for one in self._table.spec().fields:
            if str(one.transform) != "identity":
                raise TableError(
                    f"table {self.address} is partitioned by {one.transform} of "
                    f"{schema.find_column_name(one.source_id)!r}: a sink writes partitions of whole values (identity)"
                )
            names.append(str(schema.find_column_name(one.source_id)))
        return tuple(names)

    @property
    def _root(self) -> str:
        return self._checked(self._table.location().rstrip("/"))

    def _checked(self, location: str) -> str:
        if sign := next((one for one in "#?" if one in location), None):
            raise TableError(f"table {self.address} is at {location}, and pyiceberg ends a path at {sign!r}: give it "
                             "another name, or its catalog another warehouse")  # fmt: skip
        path = location.removeprefix("file://")
        if not path.startswith("/") and (path != location or "://" not in path):
            raise TableError(f"table {self.address} is at {location}, which is no absolute path: give its catalog a "
                             "warehouse as in file:///lake/warehouse")  # fmt: skip
        return location

    @property
    def storage(self) -> Storage:
        if "://" not in (root := self._root) or root.startswith("file:"):
            return Storage(unquoted(root))
        access = {name: value for name, value in self._table.io.properties.items() if not name.startswith(_OWN)}
        return Storage(root, library="pyiceberg", properties=access)

    def plain(self, schema: pa.Schema) -> pa.Schema:
        return plain(schema, smallest=pa.int32())

    def mark_of(self, batch_id: str) -> int | None:
        found = _read_marks(self._table, self.address).get(batch_id)
        return None if found is None else found[0]

    @property
    def version(self) -> int:
        snapshot = self._table.current_snapshot()
        return 0 if snapshot is None else snapshot.snapshot_id

    def evolve(self, plan: SchemaPlan) -> bool:
        """Keeps the plan: the transaction that adds the rows changes the columns."""
        self._plan = plan
        return False

    def check_new(self, names: Sequence[str]) -> None:
        """Raises TableError for a new column with the name of an earlier one, whose values would reappear: data files
        of sinks have no column ids."""
        before = {one.name for schema in self._table.schemas().values() for one in schema.fields}
        if (mapping := self._table.name_mapping()) is not None:
            current = {one.field_id: one.name for one in self._table.schema().fields}
            before |= {name for one in mapping.root for name in one.names if name != current.get(one.field_id or 0)}
        if again := [name for name in names if name in before]:
            raise TableError(
                f"table {self.address} had a column {again[0]!r} that was renamed or dropped, and older data files "
                "have it under this name: give the column of the rows another name, or the one that the table has"
            )

    def append(self, files: Sequence[DataFile], attempt: WriteAttempt) -> int:
        transaction = self._begin(attempt)
        transaction.add_files(
            [f"{self._root}/{one.name}" for one in files], snapshot_properties=_about(attempt),
            check_duplicate_files=False,
        )  # fmt: skip
        return self._commit(transaction)

    def merge(self, rows: pa.Table, merge_on: Sequence[str], attempt: WriteAttempt) -> int:
        transaction = self._begin(attempt)
        columns = transaction.table_metadata.schema().as_arrow()
        replace_rows(transaction, rows.select(columns.names).cast(columns), merge_on, _about(attempt))
        return self._commit(transaction)

    def fence(self, batch_id: str) -> None:
        transaction = self._table.transaction()
        transaction.set_properties(_with_marks(self._table, self.address, {batch_id: PARTS}))
        with transaction.update_snapshot({"jobrunner.fenced": batch_id}).fast_append():
            pass
        self._commit(transaction)

    def only_compaction(self) -> AbstractContextManager[None]:
        return nullcontext()  # no lock: of two commits that replace the same file, the catalog refuses the second

    def compact(self) -> int:
        transaction = self._table.transaction()
        merged = merge_small_files(self._table, transaction)
        if merged:
            self._commit(transaction)
        return merged

    def expire(self, older_than_s: float) -> None:
        before = datetime.fromtimestamp(unix_ms() / 1000 - older_than_s, UTC)
        old = [one.snapshot_id for one in self._table.snapshots() if one.timestamp_ms < before.timestamp() * 1000]
        if set(old) - {one.snapshot_id for one in self._table.refs().values()}:
            try:
                self._table.maintenance.expire_snapshots().older_than(before).commit()
            except CommitFailedException as error:
                raise CommitConflict(str(error)) from error
            self.load()

    def live_files(self, column: str = "", value: str = "") -> list[LiveFile]:
        return live_files(self._table, self.address, column, value)

    def orphans(self) -> Orphans:
        storage, root = self.storage, unquoted(self._root)
        named = {unquoted(one).removeprefix(root).lstrip("/") for one in named_files(self._table)}
        found = {
            one.path: one.mtime_ns / 1e9
            for one in storage.list("")
            if one.path not in named and one.path.endswith((".parquet", ".avro", ".metadata.json"))
        }
        return Orphans(names=found, storage=storage)

    def _begin(self, attempt: WriteAttempt) -> Transaction:
        transaction = self._table.transaction()
        self._change_columns(transaction)
        return transaction.set_properties(_with_marks(self._table, self.address, attempt.marks()))

    def _change_columns(self, transaction: Transaction) -> None:
        if self._plan is not None and self._plan.changes_table:
            with transaction.update_schema() as change:
                change.union_by_name(pa.schema([*self._plan.new, *self._plan.widened]))
            # pyiceberg compares the current schema alone, which is the same again when another program added and
            # dropped a column meanwhile: the commit would then make the schema with that column the current one.
            last = {"last-assigned-field-id": self._table.metadata.last_column_id}
            transaction._requirements += (  # noqa: SLF001 - `_stage` would compare it with the new columns
                AssertLastAssignedFieldId.model_validate(last),
            )

    def _commit(self, transaction: Transaction) -> int:
        try:
            self._loaded = transaction.commit_transaction()
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error
        return self.version


def _about(attempt: WriteAttempt) -> dict[str, str]:
    return {_BATCH: attempt.batch_id, "jobrunner.epoch": str(attempt.epoch)}


def _read_marks(table: Table, address: TableAddress) -> dict[str, list[int]]:
    """Reads batch → [mark, Unix seconds]. Raises TableError when another program changed the property."""
    text = table.properties.get(MARKS, "")
    if not text and not _has_batches(table):
        return {}
    try:
        found: dict[str, list[int]] = json.loads(text)
        if all(len(one) == 2 for one in found.values()):
            return found
    except (ValueError, TypeError, AttributeError):
        pass
    raise TableError(
        f"table {address}: its property {MARKS} was changed by another program, and says no more which "
        "batches are written; restore it from an earlier version of the metadata, or set it to {} while no batch of a "
        "sink is open"
    )


def _has_batches(table: Table) -> bool:
    """Whether a snapshot has the rows of a batch, so that the table had marks."""
    return any(one.summary is not None and one.summary.get(_BATCH) for one in table.snapshots())


def _with_marks(table: Table, address: TableAddress, new: Mapping[str, int]) -> dict[str, str]:
    """The property to set: the marks of a table and new marks, without expired marks. Raises TableError."""
    there, now = _read_marks(table, address), unix_ms() // 1000
    kept = {batch: one for batch, one in there.items() if now - one[1] < _DAY_S}
    older = [(batch, one) for batch, one in there.items() if _DAY_S <= now - one[1] < _KEPT_S]
    kept |= dict(sorted(older, key=lambda pair: -pair[1][1])[:_MARKS_BEYOND_A_DAY])
    marks = kept | {batch: [mark, now] for batch, mark in new.items()}
    return {MARKS: json.dumps(marks, separators=(",", ":"))}
