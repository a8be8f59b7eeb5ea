"""Writes the batch of a sink into tables of a SQL database, each row once, in one transaction that records the batch.

For drivers of the DB-API: PostgreSQL, MySQL, MariaDB, SQLite and others with their SQL. Invariants, besides those of
the record (sql_record.py):

1. rows and record are committed together;
2. only the call of the sink's function with all rows writes, see `LeftOut`: after a failover another writer may request
   a call without some members, whose rows are in that writer's folder and not in this database.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobrunner.errors import InvalidOption, TableError
from jobrunner.formatting import describe
from jobrunner.spark.failures import error_line, met_another_transaction
from jobrunner.spark.sql_dialect import Statements, is_in_autocommit
from jobrunner.spark.sql_record import SqlRecord, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobrunner.spark.station.sink_batch import SinkBatch

_AT_ONCE = 1_000
_PART = r'(\w[\w$]*|"[^"?%]+"|`[^`?%]+`)'
_NAME = re.compile(rf"{_PART}(\.{_PART}){{0,2}}")


def write_sql(
    rows: "DataFrame | pa.Table",
    batch: "SinkBatch",
    connect: Callable[[], Any],
    table: str,
    *,
    batch_column: str = "batch_id",
) -> None:
    """Inserts the rows of a sink's batch into a table of a SQL database, replacing the rows of an earlier attempt.

    Rows of a DataFrame with errors are left out, and their items are dead with the error, see `SinkBatch.quarantine`.
    `connect` returns a new connection of a DB-API driver. `table` has the columns of the rows, and a text column for
    the id of the batch: `batch_column`, with quotes where SQL needs some. Spark's driver collects the rows and inserts
    them in one transaction, see `sql_transaction` for the errors; a table that lacks a column of the rows raises
    TableError, too. For more rows than fit in the driver's memory, let Spark write a staging table, and insert from it.
    """
    if not _has_all_rows(batch, (table,)):
        return
    found = rows if isinstance(rows, pa.Table) else batch.quarantine(rows).toArrow()
    if found.column_names or not isinstance(rows, pa.Table):  # a table of no rows may have no column
        _check_names(found.column_names, batch_column)
    with _transaction(connect, batch, (table,), batch_column, found.column_names) as (cursor, statements):
        statement = statements.insert(table, found.column_names, batch_column)
        for piece in found.to_batches(max_chunksize=_AT_ONCE):
            columns = [column.to_pylist(maps_as_pydicts="strict") for column in piece.columns]
            cursor.executemany(statement, list(zip(*columns, [batch.id] * piece.num_rows, strict=True)))
    batch.written.append(found.num_rows)


def _check_names(names: list[str], batch_column: str) -> None:
    """Raises InvalidOption for names that differ only in case, which a database takes for the same name: SQLite inserts
    the value of the first, and a batch that comes again would not find its rows."""
    if not names:
        raise InvalidOption("the rows have no column: select at least one")
    own = str(batch_column).strip('"`').lower()
    before: dict[str, str] = {}
    for name in names:
        if name.lower() == own:
            raise InvalidOption(f"the rows have a column {name!r}, which is that of the batch's id; rename it")
        if (other := before.get(name.lower())) is not None:
            raise InvalidOption(f"the rows have columns {other!r} and {name!r}, one name to a database; rename one")
        before[name.lower()] = name


@contextmanager
def sql_transaction(
    connect: Callable[[], Any], batch: "SinkBatch", *tables: str, batch_column: str = "batch_id"
) -> Iterator[Any]:
    """A transaction for the batch of a sink. Yields a cursor to insert its rows, with `batch.id` in `batch_column`.

    Rows of earlier attempts at this batch, and of batches that it supersedes, are deleted from the `tables` first. At
    the end the transaction renews the lease of the batch and commits. The table jobrunner_batches is created when it is
    missing. Raises BatchLost when a later attempt has written, InvalidOption, StationError for a table that this
    attempt wrote before, MicroBatchChanged for a number that another checkpoint wrote, TableError when `connect` fails
    or a table takes no rows at all (it is missing, for example), and the errors of the database; then no table was
    changed.

    When the function is called again after a failover, because another writer needs fewer rows, the transaction rolls
    back instead: the tables have all rows.
    """
    with _transaction(connect, batch, tables, batch_column) as (cursor, _):
        yield cursor


@contextmanager
def _transaction(
    connect: Callable[[], Any], batch: "SinkBatch", tables: tuple[str, ...], column: str, names: Sequence[str] = ()
) -> Iterator[tuple[Any, Statements]]:
    for name in (*tables, column):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidOption(f"{describe(name)} is no name of a table or column: give one like late, or sales.late")
    if not tables:
        raise InvalidOption("sql_transaction without a table: name each one that it writes to")
    has_all_rows = _has_all_rows(batch, tables)
    with _connected(connect, tables) as connection:
        statements = Statements(connection)
        if is_in_autocommit(connection):
            raise InvalidOption(
                "connect() returned a connection in autocommit mode, which cannot write a batch as a whole"
            )
        try:
            with closing(connection.cursor()) as cursor:
                record = SqlRecord(connection, cursor, statements)
                record.create()
                record.begin(batch, tables, column)
                yield cursor, statements
                batch.renew()
            if not has_all_rows:
                _roll_back(connection)
                return
            connection.commit()
            for table in tables:
                batch.note_written(place_of(table))
        except statements.error as error:
            _roll_back(connection)
            if told := _of_no_row(error, connection, statements, tables, column, names):
                raise told from error
            raise
        except BaseException:
            _roll_back(connection)
            raise


@contextmanager
def _connected(connect: Callable[[], Any], tables: tuple[str, ...]) -> Iterator[Any]:
    """Opens a connection and closes it after the block. Raises TableError when `connect` fails, as no row is to blame
    for that."""
    try:
        connection = connect()
    except Exception as error:
        raise TableError(f"{_told(tables)}: connect() failed: {error_line(error)}") from error
    try:
        yield connection
    finally:
        if connection is not None:
            connection.close()


def _of_no_row(
    error: Exception, connection: Any, statements: Statements, tables: tuple[str, ...], column: str,
    names: Sequence[str],
) -> InvalidOption | TableError | None:  # fmt: skip
    """The error to raise for an error of the database that no row is to blame for; None for any other error."""
    reason = str(error).partition("\n")[0]
    if _names_column(reason, column) and not isinstance(error, statements.clash):
        return InvalidOption(
            f"the database refused column {column!r} ({reason}): add a text column of that name to "
            f"{' and '.join(tables)}, or name another by batch_column"
        )
    is_of_others = met_another_transaction(error, type(error).__name__)
    if is_of_others or _takes_rows(connection, statements, tables, column, names):
        return None
    return TableError(f"{_told(tables)} takes no rows: {error_line(error)}")


def _takes_rows(
    connection: Any, statements: Statements, tables: tuple[str, ...], column: str, names: Sequence[str]
) -> bool:
    """Whether the tables exist with these columns. Checked after an error, by statements that insert no row: if they
    fail, too, no row caused the error."""
    try:
        with closing(connection.cursor()) as cursor:
            for table in tables:
                cursor.execute(statements.insert_nothing(table, names, column))
        return True
    except Exception:
        return False
    finally:
        _roll_back(connection)


def _told(tables: tuple[str, ...]) -> str:
    return f"table {' and '.join(tables)}"


def _has_all_rows(batch: "SinkBatch", tables: tuple[str, ...]) -> bool:
    """Whether this call of the sink's function has the rows for these tables; else an earlier or later call has them.
    """
    found = [batch.left_out.fits(batch.named(place_of(table)), frozenset()) for table in tables]
    return all(found)


def _names_column(reason: str, column: str) -> bool:
    """Whether a message of a database names this column, not a table or an index whose name contains the column's."""
    name = re.escape(column.strip('"`'))
    return re.search(rf"(?<![\w$]){name}(?![\w$])", reason) is not None


def _roll_back(connection: Any) -> None:
    with suppress(Exception):  # report the first error; the server rolls back a lost connection
        connection.rollback()
