"""The record of batches in a SQL database: the table `jobrunner_batches` has the epoch under which each batch was
written into each table. Invariants:

1. an attempt whose epoch is below the recorded epoch changes nothing;
2. a later attempt replaces the rows of an earlier attempt. A part of a failed batch removes the rows of the whole batch
   and records it as superseded, so that a late attempt at the whole batch is refused, too;
3. of a stream, the last micro-batch alone is replaced, and by the same query, as Spark repeats no other.

The record is locked from its update to the commit, so of two concurrent attempts the second waits for the first.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobrunner.errors import BatchLost, MicroBatchChanged, StationError
from jobrunner.spark.sink.micro_batch import query_of_this_run
from jobrunner.spark.sql_dialect import Statements

if TYPE_CHECKING:
    from jobrunner.spark.station.sink_batch import SinkBatch

_CREATE = """create table jobrunner_batches (
  target varchar(200) not null, batch varchar(200) not null, epoch bigint not null,
  written_at timestamp default current_timestamp not null, primary key (target, batch)
)"""
_RAISE_EPOCH = (
    "update jobrunner_batches set epoch = ?, written_at = current_timestamp "
    "where target = ? and batch = ? and epoch <= ?"
)
_READ_EPOCH = "select epoch from jobrunner_batches where target = ? and batch = ?"
_FIRST_EPOCH = "insert into jobrunner_batches (target, batch, epoch) values (?, ?, ?)"
_MYSQL_BEGIN = "set transaction isolation level read committed"
"""Otherwise a read misses commits made since the first read, and a read of a missing record locks its neighbours, so
that two batches deadlock."""
_SUPERSEDED = 2**62
"""The recorded epoch of a batch whose parts are written, above that of any attempt."""
_TRIES = 5


class SqlRecord:
    """The record in the transaction of a cursor."""

    def __init__(self, connection: Any, cursor: Any, statements: Statements) -> None:
        self._connection = connection
        self._cursor = cursor
        self._statements = statements

    def create(self) -> None:
        """Creates the table of records when it is missing. Another process may create it at the same time."""
        missing = "select 1 from jobrunner_batches where 1 = 0"
        try:
            self._cursor.execute(missing)
        except self._statements.error:
            self._connection.rollback()
            try:
                self._cursor.execute(_CREATE)
            except self._statements.error as refused:
                self._connection.rollback()
                try:
                    self._cursor.execute(missing)
                except self._statements.error:
                    raise refused from None  # this error has the reason why there is no table
        self._connection.commit()

    def begin(self, batch: "SinkBatch", tables: tuple[str, ...], column: str) -> None:
        """Records an attempt at a batch, and deletes the rows of earlier attempts from the tables, in a new
        transaction. Raises BatchLost, StationError, MicroBatchChanged."""
        query = query_of_this_run() if batch.may_repeat else ""
        for tried in range(1, _TRIES + 1):
            try:
                if self._statements.is_mysql:
                    self._cursor.execute(_MYSQL_BEGIN)
                for table in tables:
                    self._check_first(table, batch)
                    if batch.may_repeat:
                        self._check_micro_batch(table, batch.id, query)
                    for larger in batch.supersedes:
                        self._replace(table, column, larger, _SUPERSEDED)
                    self._replace(table, column, batch.id, batch.epoch)
                break
            except self._statements.clash:  # another part of the same batch inserted the record of the whole meanwhile
                self._connection.rollback()
                if tried == _TRIES:
                    raise

    def _check_first(self, table: str, batch: "SinkBatch") -> None:
        """Raises StationError for a second write in one attempt. The record decides, as a table of another database may
        have the same name."""
        if batch.has_written(place_of(table)) and self._epoch(table, batch.id) == batch.epoch:
            raise StationError(
                f"one batch was written twice to {table} in one attempt, and the second write would replace the rows "
                "of the first: unite the rows, or insert all of them in one sql_transaction"
            )

    def _check_micro_batch(self, table: str, batch_id: str, query: str) -> None:
        """Raises MicroBatchChanged unless this micro-batch is new, or the last that this query wrote: its rows would
        take the place of others. Records the query, if it is known."""
        if query:
            record, own = f"{batch_id} query", _digest(query)
            known = self._epoch(table, record)
            if known not in (None, own):
                raise MicroBatchChanged.of_another_query(batch_id)
            if known is None:
                self._execute(_FIRST_EPOCH, table, record, own)
        name, _, number = batch_id.rpartition("-")
        later = f"{name}-{int(number) + 1}"
        if all(self._epoch(table, one) is not None for one in (later, batch_id)):
            raise MicroBatchChanged.of_an_old_checkpoint(batch_id, place_of(table))

    def _replace(self, table: str, column: str, batch_id: str, epoch: int) -> None:
        """Raises the recorded epoch of a batch, and deletes its rows. Raises BatchLost when it is higher."""
        self._execute(_RAISE_EPOCH, epoch, table, batch_id, epoch)
        found = None
        if not (is_raised := self._cursor.rowcount > 0):
            found = self._epoch(table, batch_id)
            is_raised = found == epoch  # MySQL counts only rows that are changed
        if is_raised:
            self._execute(f"delete from {table} where {column} = ?", batch_id)  # noqa: S608  checked
        elif found is None:
            self._execute(_FIRST_EPOCH, table, batch_id, epoch)
        else:
            by = "its parts" if found == _SUPERSEDED else f"attempt {found}"
            raise BatchLost(f"batch {batch_id} was written to {table} by {by}; attempt {epoch} changed nothing")

    def _epoch(self, table: str, batch_id: str) -> int | None:
        """The recorded epoch of a batch; None without a record."""
        self._execute(_READ_EPOCH, table, batch_id)
        return _only_value(self._cursor.fetchone())

    def _execute(self, statement: str, *words: object) -> None:
        self._cursor.execute(self._statements.of(statement), words)


def _digest(query: str) -> int:
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:7])


def place_of(table: str) -> str:
    """The name of a table among the places that a batch was written to."""
    return f"table {table}"


def _only_value(row: Any) -> int | None:
    """The value in a row of one column; None without a row. The connection may make rows of another form: dicts, or
    the value alone."""
    if row is None or isinstance(row, int):
        return row
    value: int | None = next(iter(row.values())) if isinstance(row, Mapping) else row[0]
    return value
