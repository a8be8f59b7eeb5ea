"""Delta Lake tables through the library `deltalake`, which writes the log without a JVM.

A mark is an application transaction of the table (`txn`: an application id for the batch, its version the number of
the attempt). Checkpoints keep it for `delta.setTransactionRetentionDuration`; a commit whose transactions hold one that
was written since the table was loaded is refused by the library, whatever else its files are.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import ceil
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from jobrunner.clock import unix_ms
from jobrunner.errors import TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.delta_lease import compaction_lease
from jobrunner.spark.lake.files import DataFile
from jobrunner.spark.lake.identity import KEPT_DAYS, PARTS, WriteAttempt
from jobrunner.spark.lake.schema_rules import SchemaPlan, plain
from jobrunner.spark.lake.storage import Storage
from jobrunner.spark.lake.tables import CommitConflict, LiveFile, Orphans

APPLICATION = "jobrunner:"
"""Prefix of the application ids."""
_RETENTION = "delta.setTransactionRetentionDuration"
_LIBRARY_RETRIES = 15
_UNFIT_SETTINGS = ("delta.enableRowTracking", "delta.enableIcebergCompatV1", "delta.enableIcebergCompatV2")
_UNFIT_FIELDS = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "delta.columnMapping.id")
_APPEND_ONLY = "delta.appendOnly"
_TIMESTAMP_NTZ = "timestamp_ntz"
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features with which a table's data files still are its rows."""


class DeltaLake:
    """A Delta table, see LakeTable."""

    folder = ""
    keeps_partitions = False
    widens = False
    merges_whole_rows = False

    def __init__(self, address: TableAddress) -> None:
        self.address = address
        self._table: Any = None

    def load(self) -> bool:
        try:
            self._table = DeltaTable(self.address.where)
        except TableNotFoundError:
            return False
        self._check_features()
        return True

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        kept = {_RETENTION: f"interval {KEPT_DAYS} days"}
        # With retries, the library would overwrite the columns of a table that another process creates at this moment.
        alone = CommitProperties(max_commit_retries=0)
        with suppress(CommitFailedError):
            DeltaTable.create(
                self.address.where, Schema.from_arrow(columns), mode="ignore", partition_by=list(partition_by),
                configuration=kept, commit_properties=alone,
            )  # fmt: skip
        if not self.load():
            raise TableError(f"table {self.address} was not made, or is gone again")

    @property
    def unique_id(self) -> str:
        return str(self._table.metadata().id)

    @property
    def columns(self) -> pa.Schema:
        return plain(pa.schema(self._table.schema().to_arrow()))

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._table.metadata().partition_columns)

    @property
    def storage(self) -> Storage:
        is_local = "://" not in self.address.where or self.address.where.startswith("file:")
        return Storage(self.address.where, library="" if is_local else "deltalake")

    def plain(self, schema: pa.Schema) -> pa.Schema:
        return plain(schema)

    def mark_of(self, batch_id: str) -> int | None:
        found: int | None = self._table.transaction_version(f"{APPLICATION}{batch_id}")
        return found

    @property
    def version(self) -> int:
        return int(self._table.version())

    def evolve(self, plan: SchemaPlan) -> bool:
        """Adds the columns in a commit of their own: an empty column changes no row, so it may precede the rows."""
        if not plan.new:
            return False
        fields = Schema.from_arrow(pa.schema(plan.new)).fields
        if any(_TIMESTAMP_NTZ in one.to_json() for one in fields):
            self._check_ntz(fields)
        with _committing():
            self._table.alter.add_columns(fields)
        return True

    def check_new(self, names: Sequence[str]) -> None:
        """Only column mapping can rename or drop columns, and tables with it are refused."""

    def append(self, files: Sequence[DataFile], attempt: WriteAttempt) -> int:
        added = [AddAction(one.name, one.size, one.partition, unix_ms(), True, _statistics(one)) for one in files]
        with _committing():
            self._table.create_write_transaction(
                added, "append", self._table.schema(), partition_by=list(self.partition_by),
                commit_properties=_properties(attempt, retries=_LIBRARY_RETRIES),
            )  # fmt: skip
        self._table.update_incremental()  # the library leaves the table at the version before
        return self.version

    def merge(self, rows: pa.Table, merge_on: Sequence[str], attempt: WriteAttempt) -> int:
        if self._table.metadata().configuration.get(_APPEND_ONLY) == "true":  # deltalake would report a conflict
            raise TableError(f"table {self.address} has {_APPEND_ONLY}, and merge_on={list(merge_on)} replaces rows: "
                             "declare the sink without merge_on, or write to another table")  # fmt: skip
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in merge_on)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
        # No retry by the library: it would keep rows with the same key that a commit in between added.
        merging = self._table.merge(
            rows, same, source_alias="s", target_alias="t", commit_properties=_properties(attempt, retries=0),
            writer_properties=self._writing("SNAPPY", rows),
        )  # fmt: skip
        with _committing():
            merging.when_matched_update(values).when_not_matched_insert(values).execute()
        return self.version

    def fence(self, batch_id: str) -> None:
        mark = Transaction(f"{APPLICATION}{batch_id}", PARTS, unix_ms())
        done = CommitProperties(custom_metadata={"jobrunner.fenced": batch_id}, app_transactions=[mark])
        with _committing():
            self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=done)

    def only_compaction(self) -> AbstractContextManager[None]:
        return compaction_lease(self.address)

    def compact(self) -> int:
        with _committing():
            done = self._table.optimize.compact(
                partition_filters=self._without_tildes() or None, writer_properties=self._writing("ZSTD")
            )
        return int(done["numFilesRemoved"])

    def expire(self, older_than_s: float) -> None:
        """Removes files that newer versions do not name, once they are older than the retention of the table; the
        library removes old entries of the log with its checkpoints."""
        hours = max(ceil(older_than_s / 3600), 0)
        self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False)

    def live_files(self, column: str = "", value: str = "") -> list[LiveFile]:
        if others := sorted(set(self._table.protocol().reader_features or ()) - _PLAIN_FEATURES):
            raise TableError(f"table {self.address} has the feature {others[0]}, so that its data files alone are not "
                             "its rows: read it with Spark's Delta connector")  # fmt: skip
        found = pa.table(self._table.get_add_actions(flatten=True))
        low, high = f"min.{column}", f"max.{column}"
        if {low, high} <= set(found.column_names):
            bounds = [found.column(name).cast(pa.string()) for name in (low, high)]
            within = pc.and_(pc.less_equal(bounds[0], value), pc.greater_equal(bounds[1], value))
            found = found.filter(pc.fill_null(within, True))
        root, by = self.address.where, self.partition_by
        values = [found.column(f"partition.{name}").cast(pa.string()).to_pylist() for name in by]
        paths = [unquote(one) for one in found.column("path").to_pylist()]
        return [
            LiveFile(path=path if "://" in path or path.startswith("/") else f"{root}/{path}",
                     partition={name: texts[at] for name, texts in zip(by, values, strict=True)})
            for at, path in enumerate(paths)
        ]  # fmt: skip

    def orphans(self) -> Orphans:
        table = self._table
        unnamed = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
        unnamed -= set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))
        storage = self.storage
        found = {one.path: one.mtime_ns / 1e9 for one in storage.list("") if one.path in unnamed}
        return Orphans(names=found, storage=storage)

    def _writing(self, codec: Any, rows: pa.Table | None = None) -> WriterProperties | None:
        """Properties for files that the library writes: no statistics of a column of floats that may have NaN, because
        bounds ignore NaN. Such a column has NaN in new rows, or a live file has values of it and no bounds. None where
        the library's defaults suffice."""
        floats = [one.name for one in self.columns if pa.types.is_floating(one.type)]
        if not (names := [name for name in floats if name not in self.partition_by]):
            return None
        actions = pa.table(self._table.get_add_actions(flatten=True))
        with_nan = {name for name in names if rows is not None and name in rows.column_names
                    and pc.any(pc.is_nan(rows.column(name))).as_py()}  # fmt: skip
        odd = [name for name in names if name in with_nan or _lacks_bounds(actions, name)]
        none = ColumnProperties(statistics_enabled="NONE")
        return WriterProperties(compression=codec, column_properties=dict.fromkeys(odd, none)) if odd else None

    def _without_tildes(self) -> list[tuple[str, str, list[str]]]:
        """Filters that exclude partitions, and with them the partitions of null, with a file that the library named
        after a text with a `~`: it does not find such a file again, and would rewrite nothing."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        named = actions.filter(pc.match_substring(actions.column("path").cast(pa.string()), "~"))
        texts = {name: named.column(f"partition.{name}").unique().to_pylist() for name in self.partition_by}
        odd = {name: [one for one in found if isinstance(one, str) and "~" in one] for name, found in texts.items()}
        return [(name, "not in", sorted(found)) for name, found in odd.items() if found]

    def _check_ntz(self, fields: Sequence[Any]) -> None:
        features = self._table.protocol().writer_features or []
        if "timestampNtz" not in features:
            name = next(one.name for one in fields if _TIMESTAMP_NTZ in one.to_json())
            raise TableError(
                f"column {name!r} for table {self.address} is a timestamp without a time zone, and the table has not "
                "the feature timestampNtz: cast it to timestamp, or enable the feature"
            )

    def _check_features(self) -> None:
        """Raises TableError for a table that requires more of a writer than data files and a log."""
        settings = self._table.metadata().configuration
        used = [name for name in _UNFIT_SETTINGS if settings.get(name) == "true"]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            used.append("delta.columnMapping.mode")
        used += [name for name in settings if name.startswith("delta.constraints.")]
        with suppress(ValueError):
            for one in json.loads(self._table.schema().to_json())["fields"]:
                used += [f"{name} of {one['name']}" for name in _UNFIT_FIELDS if name in one.get("metadata", {})]
        if used:
            raise TableError(f"table {self.address} needs {sorted(used)[0]} of its writers, which this sink has not: "
                             "write to another table")  # fmt: skip


@contextmanager
def _committing() -> Iterator[None]:
    """Raises CommitConflict when another transaction came first."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(str(error)) from error


def _properties(attempt: WriteAttempt, *, retries: int) -> CommitProperties:
    now_ms = unix_ms()
    marks = [Transaction(f"{APPLICATION}{batch}", mark, now_ms) for batch, mark in attempt.marks().items()]
    about = {"jobrunner.batch": attempt.batch_id, "jobrunner.epoch": str(attempt.epoch)}
    return CommitProperties(custom_metadata=about, max_commit_retries=retries, app_transactions=marks)


def _statistics(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": dict(file.lowest), "maxValues": dict(file.highest),
                       "nullCount": dict(file.nulls)})  # fmt: skip


def _lacks_bounds(actions: pa.Table, name: str) -> bool:
    """Whether one of the files has values of this column, and no bounds."""
    if f"max.{name}" not in actions.column_names:
        return len(actions) > 0
    without = actions.filter(pc.is_null(actions.column(f"max.{name}")))
    nulls, rows = (without.column(one) for one in (f"null_count.{name}", "num_records"))
    return bool(pc.any(pc.fill_null(pc.less(nulls, rows), True)).as_py())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
