"""Writes the batch of a sink into tables of a SQL database, each row once, in one transaction that records the batch.

For drivers of the DB-API: PostgreSQL, MySQL, MariaDB, SQLite and others with their SQL. The table `jobrunner_batches`
of the same database has the epoch under which each batch was written into each table. Invariants:

1. rows and record are committed together; an attempt whose epoch is below the recorded epoch changes nothing;
2. a later attempt replaces the rows of an earlier attempt. A part of a failed batch removes the rows of the whole batch
   and records it as superseded, so that a late attempt at the whole batch is refused, too;
3. of a stream, the last micro-batch alone is replaced, and by the same query, as Spark repeats no other;
4. only the call of the sink's function with all rows writes, see `LeftOut`: after a failover another writer may request
   a call without some members, whose rows are in that writer's folder and not in this database.

The record is locked from its update to the commit, so of two concurrent attempts the second waits for the first.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobrunner.errors import BatchLost, InvalidOption, MicroBatchChanged, StationError, TableError
from jobrunner.formatting import describe
from jobrunner.spark.failures import MYSQL_DRIVERS, error_line, met_another_transaction
from jobrunner.spark.sink.micro_batch import query_of_this_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
_AT_ONCE = 1_000
_TRIES = 5
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
) -> Iterator[tuple[Any, "_Statements"]]:
    for name in (*tables, column):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidOption(f"{describe(name)} is no name of a table or column: give one like late, or sales.late")
    if not tables:
        raise InvalidOption("sql_transaction without a table: name each one that it writes to")
    has_all_rows = _has_all_rows(batch, tables)
    with _connected(connect, tables) as connection:
        statements = _Statements(connection)
        if _is_in_autocommit(connection):
            raise InvalidOption(
                "connect() returned a connection in autocommit mode, which cannot write a batch as a whole"
            )
        try:
            with closing(connection.cursor()) as cursor:
                _create_record(connection, cursor, statements)
                _begin(connection, cursor, statements, batch, tables, column)
                yield cursor, statements
                batch.renew()
            if not has_all_rows:
                _roll_back(connection)
                return
            connection.commit()
            for table in tables:
                batch.note_written(_place(table))
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
    error: Exception, connection: Any, statements: "_Statements", tables: tuple[str, ...], column: str,
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
    connection: Any, statements: "_Statements", tables: tuple[str, ...], column: str, names: Sequence[str]
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
    found = [batch.left_out.fits(batch.named(_place(table)), frozenset()) for table in tables]
    return all(found)


def _names_column(reason: str, column: str) -> bool:
    """Whether a message of a database names this column, not a table or an index whose name contains the column's."""
    name = re.escape(column.strip('"`'))
    return re.search(rf"(?<![\w$]){name}(?![\w$])", reason) is not None


def _roll_back(connection: Any) -> None:
    with suppress(Exception):  # report the first error; the server rolls back a lost connection
        connection.rollback()


class _Statements:
    """Statements in the parameter style of a connection's driver, and names in the quotes of its database."""

    def __init__(self, connection: Any) -> None:
        module = _module_of(connection)
        self.error: type[Exception] = module.Error
        self.clash: type[Exception] = module.IntegrityError
        self._style: str = module.paramstyle
        self.is_mysql = module.__name__.partition(".")[0] in MYSQL_DRIVERS
        self._quote = "`" if self.is_mysql else '"'

    def insert(self, table: str, names: Sequence[str], batch_column: str) -> str:
        """An insert of one row. The columns of the rows are quoted; the batch column is as the user wrote it, as in the
        delete."""
        values = ", ".join("?" * (len(names) + 1))
        return self.of(f"{self._into(table, names, batch_column)} values ({values})")

    def insert_nothing(self, table: str, names: Sequence[str], batch_column: str) -> str:
        """An insert into the same columns that adds no row."""
        nulls = ", ".join(["null"] * (len(names) + 1))
        into = self._into(table, names, batch_column)
        return self.of(f"{into} select {nulls} from {table} where 1 = 0")  # noqa: S608  checked

    def _into(self, table: str, names: Sequence[str], batch_column: str) -> str:
        return f"insert into {table} ({', '.join([*map(self._quoted, names), batch_column])})"

    def of(self, statement: str) -> str:
        """Converts a statement with `?` for parameters to the driver's parameter style."""
        if self._style == "qmark":
            return statement
        if self._style in ("format", "pyformat"):
            return statement.replace("?", "%s")
        first, *others = statement.split("?")  # numeric, and named, whose drivers take positions as well
        return first + "".join(f":{number}{text}" for number, text in enumerate(others, 1))

    def _quoted(self, name: str) -> str:
        if self._quote in name or "?" in name:
            raise InvalidOption(f"column {name!r} has a quote or a question mark in its name; rename it")
        name = name.replace("%", "%%") if self._style in ("format", "pyformat") else name
        return f"{self._quote}{name}{self._quote}"


def _module_of(connection: Any) -> Any:
    """The DB-API module of a connection, also when the program derives the connection's class from the driver's."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            module = sys.modules.get(name)
            if hasattr(module, "paramstyle"):
                return module
            name = name.rpartition(".")[0]
    raise InvalidOption(
        f"connect() returned {type(connection).__qualname__}, which is of no DB-API module: return a connection of the "
        "driver itself, such as psycopg.connect(...) or sqlite3.connect(...)"
    )


def _is_in_autocommit(connection: Any) -> bool:
    """Whether a connection commits each statement. Checked before the first statement, which would be committed. The
    DB-API defines no attribute for it, so each driver has its own."""
    if hasattr(connection, "in_transaction"):  # sqlite3; its `autocommit`, from Python 3.12 on, is -1 unless it is set
        own = getattr(connection, "autocommit", -1)
        return own is True or (own == -1 and connection.isolation_level is None)
    if hasattr(connection, "get_autocommit"):  # MySQL
        return bool(connection.get_autocommit())
    return getattr(connection, "autocommit", False) is True


def _create_record(connection: Any, cursor: Any, statements: _Statements) -> None:
    """Creates the table of records when it is missing. Another process may create it at the same time."""
    missing = "select 1 from jobrunner_batches where 1 = 0"
    try:
        cursor.execute(missing)
    except statements.error:
        connection.rollback()
        try:
            cursor.execute(_CREATE)
        except statements.error as refused:
            connection.rollback()
            try:
                cursor.execute(missing)
            except statements.error:
                raise refused from None  # this error has the reason why there is no table
    connection.commit()


def _begin(
    connection: Any, cursor: Any, statements: _Statements, batch: "SinkBatch", tables: tuple[str, ...], column: str
) -> None:
    query = query_of_this_run() if batch.may_repeat else ""
    for tried in range(1, _TRIES + 1):
        try:
            if statements.is_mysql:
                cursor.execute(_MYSQL_BEGIN)
            for table in tables:
                _check_first(cursor, statements, table, batch)
                if batch.may_repeat:
                    _check_micro_batch(cursor, statements, table, batch.id, query)
                for larger in batch.supersedes:
                    _replace(cursor, statements, table, column, larger, _SUPERSEDED)
                _replace(cursor, statements, table, column, batch.id, batch.epoch)
            break
        except statements.clash:  # another part of the same batch inserted the record of the whole meanwhile
            connection.rollback()
            if tried == _TRIES:
                raise


def _check_first(cursor: Any, statements: _Statements, table: str, batch: "SinkBatch") -> None:
    """Raises StationError for a second write in one attempt. The record decides, as a table of another database may
    have the same name."""
    if batch.has_written(_place(table)) and _recorded(cursor, statements, table, batch.id) == batch.epoch:
        raise StationError(
            f"one batch was written twice to {table} in one attempt, and the second write would replace the rows of "
            "the first: unite the rows, or insert all of them in one sql_transaction"
        )


def _check_micro_batch(cursor: Any, statements: _Statements, table: str, batch_id: str, query: str) -> None:
    """Raises MicroBatchChanged unless this micro-batch is new, or the last that this query wrote: its rows would take
    the place of others. Records the query, if it is known."""
    if query:
        record, own = f"{batch_id} query", _digest(query)
        known = _recorded(cursor, statements, table, record)
        if known not in (None, own):
            raise MicroBatchChanged.of_another_query(batch_id)
        if known is None:
            cursor.execute(statements.of(_FIRST_EPOCH), (table, record, own))
    name, _, number = batch_id.rpartition("-")
    later = f"{name}-{int(number) + 1}"
    if all(_recorded(cursor, statements, table, one) is not None for one in (later, batch_id)):
        raise MicroBatchChanged.of_an_old_checkpoint(batch_id, _place(table))


def _digest(query: str) -> int:
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:7])


def _recorded(cursor: Any, statements: _Statements, table: str, batch_id: str) -> int | None:
    cursor.execute(statements.of(_READ_EPOCH), (table, batch_id))
    epoch: int | None = _only_value(cursor.fetchone())
    return epoch


def _only_value(row: Any) -> int | None:
    """The value in a row of one column; None without a row. The connection may make rows of another form: dicts, or
    the value alone."""
    found: Any = next(iter(row.values())) if isinstance(row, Mapping) else row
    value: int | None = found[0] if isinstance(found, Sequence) else found
    return value


def _place(table: str) -> str:
    return f"table {table}"


def _replace(cursor: Any, statements: _Statements, table: str, column: str, batch_id: str, epoch: int) -> None:
    cursor.execute(statements.of(_RAISE_EPOCH), (epoch, table, batch_id, epoch))
    found = None
    if not (is_raised := cursor.rowcount > 0):
        found = _recorded(cursor, statements, table, batch_id)
        is_raised = found == epoch  # MySQL counts only rows that are changed
    if is_raised:
        cursor.execute(statements.of(f"delete from {table} where {column} = ?"), (batch_id,))  # noqa: S608  checked
        return
    if found is not None:
        by = "its parts" if found == _SUPERSEDED else f"attempt {found}"
        raise BatchLost(f"batch {batch_id} was written to {table} by {by}; attempt {epoch} changed nothing")
    cursor.execute(statements.of(_FIRST_EPOCH), (table, batch_id, epoch))
