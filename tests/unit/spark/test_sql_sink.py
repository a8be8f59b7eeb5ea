"""Batches of a sink in tables of SQLite and of PostgreSQL: each row once, whichever attempt comes when."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row, namedtuple_row, scalar_row

from jobrunner.errors import BatchLost, InvalidOption, MicroBatchChanged, StationError, TableError
from jobrunner.spark import SinkBatch, micro_batch, sql_record, sql_transaction, write_sql
from jobrunner.spark.sql_dialect import is_in_autocommit
from tests.support.postgres import binaries, postgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def postgres_server():
    found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres(found) as where:
        yield where


def on_sqlite(request):
    path = request.getfixturevalue("tmp_path") / "sink.sqlite"
    return f"import sqlite3; connect = lambda: sqlite3.connect({str(path)!r})"


def on_postgres(request):
    where = request.getfixturevalue("postgres_server")
    with psycopg.connect(where, autocommit=True) as made:
        made.execute("drop table if exists late, sums, bare, strict, jobrunner_batches")
    return f"import psycopg; connect = lambda: psycopg.connect({where!r})"


@pytest.fixture(params=[on_sqlite, on_postgres])
def database(request):
    """`connect` returns a new connection, `rows(sql)` reads; `code` defines `connect` in a program."""
    names = {}
    exec(code := request.param(request), names)
    connect = names["connect"]

    def rows(statement="select n, batch_id from late order by 1, 2"):
        connection = connect()
        try:
            return [tuple(row) for row in connection.cursor().execute(statement).fetchall()]
        finally:
            connection.close()

    def run(statement):
        connection = connect()
        connection.cursor().execute(statement)
        connection.commit()
        connection.close()

    run("create table late (n bigint, batch_id varchar(100))")
    error = (sqlite3 if "sqlite" in code else psycopg).OperationalError
    return SimpleNamespace(connect=connect, rows=rows, run=run, code=code, is_sqlite="sqlite" in code, error=error)


def batch(name, epoch=1, renew=lambda: None):
    parts = name.split(".")
    supersedes = tuple(".".join(parts[:n]) for n in range(1, len(parts)))
    return SinkBatch(id=name, epoch=epoch, supersedes=supersedes, size=0, renew=renew)


def numbers(*found):
    return pa.table({"n": pa.array(found, pa.int64())})


def test_the_table_of_the_recipe_is_made_by_each_database(database):
    page = (Path(__file__).parents[3] / "docs" / "recipes" / "sql-tables.md").read_text()
    for statement in ["drop table late", *page.partition("```sql\n")[2].partition("```")[0].split(";")[:-1]]:
        database.run(statement)
    rows = {"carrier": ["UA"], "origin": ["JFK"], "dep_delay": [31.0]}
    write_sql(pa.table(rows), batch("b1"), database.connect, "late")
    assert database.rows("select * from late") == [("UA", "JFK", 31.0, "b1")]


def test_a_repeated_batch_replaces_its_rows_and_an_earlier_attempt_changes_nothing(database):
    write_sql(numbers(9), batch("other"), database.connect, "late")
    write_sql(numbers(1, 2), batch("a"), database.connect, "late")
    write_sql(numbers(1, 2, 3), batch("a", 3), database.connect, "late")
    with pytest.raises(BatchLost, match="batch a was written to late by attempt 3; attempt 2 changed nothing"):
        write_sql(numbers(7), batch("a", 2), database.connect, "late")
    assert database.rows() == [(1, "a"), (2, "a"), (3, "a"), (9, "other")]
    assert database.rows("select target, batch, epoch from jobrunner_batches order by 2") == [
        ("late", "a", 3),
        ("late", "other", 1),
    ]


def as_dict(cursor, row):
    return dict(zip([one[0] for one in cursor.description], row, strict=True))


@pytest.mark.parametrize("form", ["dict", "named", "value"])
def test_rows_of_a_connection_may_have_any_form(database, monkeypatch, form):
    """psycopg's `dict_row`, MySQL's DictCursor: the second micro-batch ended with `KeyError: 0`, and a late attempt
    counted against items."""
    of_sqlite = {"dict": as_dict, "named": sqlite3.Row, "value": lambda _, row: row[0]}
    of_postgres = {"dict": dict_row, "named": namedtuple_row, "value": scalar_row}

    def connect():
        made = database.connect()
        made.row_factory = (of_sqlite if database.is_sqlite else of_postgres)[form]
        return made

    write_sql(numbers(1), batch("a", 3), connect, "late")
    with pytest.raises(BatchLost, match="batch a was written to late by attempt 3; attempt 2 changed nothing"):
        write_sql(numbers(7), batch("a", 2), connect, "late")
    monkeypatch.setattr(sql_record, "query_of_this_run", lambda: "one")
    for number in (0, 1, 1):
        write_sql(numbers(number), micro_batch("topic", number), connect, "late")
    assert database.rows() == [(0, "topic-0"), (1, "a"), (1, "topic-1")]


def test_a_micro_batch_is_replaced_only_while_it_is_the_last_and_by_its_own_query(database, monkeypatch):
    """With a checkpoint from a backup, or a new one, it took the place of other rows, which were in no table then."""

    def write(rows, number, query):
        monkeypatch.setattr(sql_record, "query_of_this_run", lambda: query)
        write_sql(rows, micro_batch("topic-a", number), database.connect, "late")

    for number in (0, 1, 1):
        write(numbers(number), number, "one")
    rows = [(0, "topic-a-0"), (1, "topic-a-1")]
    assert database.rows() == rows

    with pytest.raises(MicroBatchChanged, match="'topic-a-0' was written to table late before, and a later one, too"):
        write(numbers(5, 6), 0, "one")
    for number in (0, 1):
        with pytest.raises(MicroBatchChanged, match=f"'topic-a-{number}' was written by a query with another checkpo"):
            write(numbers(7), number, "two")
    with pytest.raises(MicroBatchChanged, match="and a later one, too; nothing is written"):
        write(numbers(5), 0, "")  # under Spark Connect
    assert database.rows() == rows
    write(numbers(5, 6), 1, "one")
    assert database.rows() == [rows[0], (5, "topic-a-1"), (6, "topic-a-1")]


@pytest.mark.parametrize("whole_wrote", [True, False])
def test_parts_replace_the_whole_which_can_write_no_more(database, whole_wrote):
    if whole_wrote:
        write_sql(numbers(1, 2, 3, 4), batch("a", 2), database.connect, "late")
    write_sql(numbers(1), batch("a.1.1"), database.connect, "late")
    with pytest.raises(BatchLost, match="batch a was written to late by its parts"):
        write_sql(numbers(1, 2, 3, 4), batch("a", 9), database.connect, "late")
    write_sql(numbers(3, 4), batch("a.2"), database.connect, "late")
    write_sql(numbers(2), batch("a.1.2"), database.connect, "late")
    write_sql(numbers(1), batch("a.1.1", 2), database.connect, "late")
    with pytest.raises(BatchLost):
        write_sql(numbers(1, 2), batch("a.1", 5), database.connect, "late")
    assert database.rows() == [(1, "a.1.1"), (2, "a.1.2"), (3, "a.2"), (4, "a.2")]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_second_write_of_one_attempt_is_refused_and_keeps_the_rows_of_the_first(database, epoch, tmp_path):
    write_sql(numbers(9), batch("b1"), database.connect, "late")
    attempt = SinkBatch(id="b1", epoch=epoch, supersedes=(), size=3)
    write_sql(numbers(1, 2), attempt, database.connect, "late")
    with pytest.raises(StationError, match="one batch was written twice to late in one attempt"):
        write_sql(numbers(3), attempt, database.connect, "late")
    assert database.rows() == [(1, "b1"), (2, "b1")]

    def other():
        return sqlite3.connect(tmp_path / "other.sqlite")

    with closing(other()) as made:
        made.execute("create table late (n int, batch_id text)")
    write_sql(numbers(3), attempt, other, "late")
    with closing(other()) as there:
        assert there.execute("select n from late").fetchall() == [(3,)], "a table of another database"


def test_an_attempt_that_lost_its_lease_changes_nothing(database):
    def lost():
        raise BatchLost("another attempt may have begun")

    write_sql(numbers(1), batch("a", 1), database.connect, "late")
    with pytest.raises(BatchLost, match="may have begun"):
        write_sql(numbers(2), batch("a", 2, lost), database.connect, "late")
    assert database.rows() == [(1, "a")]
    assert database.rows("select epoch from jobrunner_batches") == [(1,)]


def test_several_tables_in_one_transaction(database):
    database.run("create table sums (total bigint, batch_id varchar(100))")
    marker = "?" if database.is_sqlite else "%s"

    def store(epoch, total):
        with sql_transaction(database.connect, batch("a", epoch), "late", "sums") as cursor:
            cursor.execute(f"insert into late values ({marker}, {marker})", (total, "a"))
            cursor.execute(f"insert into sums values ({marker}, {marker})", (total, "a"))
            if total == 2:
                raise RuntimeError("the function failed")

    store(1, 1)
    with pytest.raises(RuntimeError, match="the function failed"):
        store(2, 2)
    store(3, 3)
    assert database.rows() == database.rows("select * from sums") == [(3, "a")]


@pytest.mark.parametrize("by_cursor", [False, True])
def test_a_second_call_of_the_sink_for_another_writer_takes_no_rows_away(database, by_cursor):
    """After a failover `write_batch` finds rows of a member in its folder, and asks for a call without that member."""
    marker = "?" if database.is_sqlite else "%s"
    attempt = SinkBatch(id="b1", epoch=1, supersedes=(), size=2)

    def sink(rows):
        attempt.left_out.fits("/path", frozenset({"m1"}))
        if not by_cursor:
            write_sql(rows, attempt, database.connect, "late")
            return
        with sql_transaction(database.connect, attempt, "late") as cursor:
            for n in rows["n"].to_pylist():
                cursor.execute(f"insert into late values ({marker}, {marker})", (n, "b1"))

    sink(numbers(1, 2))
    assert attempt.left_out.next_run()
    sink(numbers(2))
    assert not attempt.left_out.next_run()
    assert database.rows() == [(1, "b1"), (2, "b1")]
    assert sum(attempt.written) == (0 if by_cursor else 2)


def test_of_two_attempts_at_once_the_later_epoch_counts(database):
    """The zombie has written and not committed when the next attempt begins; then the other way round."""
    for name, first, second in (("a", 1, 2), ("b", 2, 1)):
        entered, go_on, ended = threading.Event(), threading.Event(), []

        def held(entered=entered, go_on=go_on):
            entered.set()
            assert go_on.wait(60)

        def write(epoch, renew, name=name, ended=ended):
            try:
                write_sql(numbers(epoch), batch(name, epoch, renew), database.connect, "late")
            except BatchLost:
                ended.append(epoch)

        slow = threading.Thread(target=write, args=(first, held))
        slow.start()
        assert entered.wait(60)
        other = threading.Thread(target=write, args=(second, lambda: None))
        other.start()
        if not database.is_sqlite:
            waits = "select count(*) from pg_locks where not granted"
            wait_for(lambda: database.rows(waits) != [(0,)])  # noqa: B023  called in this turn
        go_on.set()
        slow.join(60), other.join(60)
        assert ended == ([] if second > first else [second])
    assert database.rows() == [(2, "a"), (2, "b")]


def test_halves_that_supersede_the_same_whole_at_once_both_write(database):
    entered, go_on = threading.Event(), threading.Event()

    def held():
        entered.set()
        assert go_on.wait(60)

    errors = []

    def write(name, n, renew):
        try:
            write_sql(numbers(n), batch(name, 1, renew), database.connect, "late")
        except Exception as error:
            errors.append(error)

    write_sql(numbers(0), batch("first"), database.connect, "late")  # so that the table of records exists
    slow = threading.Thread(target=write, args=("a.1", 1, held))
    slow.start()
    assert entered.wait(60)
    other = threading.Thread(target=write, args=("a.2", 2, lambda: None))
    other.start()
    if not database.is_sqlite:
        wait_for(lambda: database.rows("select count(*) from pg_locks where not granted") != [(0,)])
    go_on.set()
    slow.join(60), other.join(60)
    assert errors == []
    assert database.rows() == [(0, "first"), (1, "a.1"), (2, "a.2")]


KILLED = """
import os, signal
import pyarrow as pa
from jobrunner.spark import SinkBatch, write_sql
{code}
rows = pa.table({{"n": list(range(3000))}})
write_sql(rows, SinkBatch(id="a", epoch=1, supersedes=(), size=0, renew=lambda: os.kill(os.getpid(), signal.SIGKILL)),
          connect, "late")
"""


def test_a_driver_that_is_killed_before_the_commit_leaves_nothing(database):
    done = subprocess.run([sys.executable, "-c", KILLED.format(code=database.code)], timeout=60, check=False,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert database.rows() == []
    write_sql(numbers(*range(3000)), batch("a", 2), database.connect, "late")
    assert database.rows("select count(*), count(distinct n) from late") == [(3000, 3000)]


def test_values_and_names_that_need_care(database):
    kind = "double precision" if database.is_sqlite else "numeric"
    database.run("drop table late")
    database.run(f'create table late ("order" bigint, "50%" {kind}, "a b" text, batch_id text)')
    price = 0.5 if database.is_sqlite else Decimal("0.5")
    table = pa.table({"order": [1, None], "50%": [price, None], "a b": ["50% ?", "'"]})
    write_sql(table, batch("x:1"), database.connect, "late")
    assert database.rows('select * from late order by "a b"') == [
        (None, None, "'", "x:1"),
        (1, price, "50% ?", "x:1"),
    ]
    write_sql(table[:0], batch("x:1", 2), database.connect, "late")
    assert database.rows("select * from late") == []


@pytest.mark.parametrize("column", ['"order"', '"batchId"', "Batch_Id"])
def test_the_column_of_the_batch_is_named_as_the_user_writes_it(database, column):
    """The insert put it in quotes, with the quotes that it had, and the delete did not."""
    database.run("drop table late")
    database.run(f"create table late (n bigint, {column} text)")
    for epoch, rows in ((1, numbers(1, 2)), (2, numbers(3))):
        write_sql(rows, batch("a", epoch), database.connect, "late", batch_column=column)
    assert database.rows(f"select n, {column} from late") == [(3, "a")]


def test_rows_without_a_column_are_refused(database):
    """As `df.select()` has them: the batch counted as written, and no row was."""
    frame = SimpleNamespace(toArrow=lambda: pa.table({}))
    with pytest.raises(InvalidOption, match="the rows have no column"):
        write_sql(frame, Mock(quarantine=lambda rows: rows, may_repeat=False), database.connect, "late")


class TracedConnection(sqlite3.Connection):
    """As programs derive one from that of their driver, to set it up or to trace it."""


def test_a_connection_of_a_class_of_the_program_is_one_of_its_driver(tmp_path):
    connect = partial(sqlite3.connect, tmp_path / "sink.sqlite", factory=TracedConnection)
    with closing(connect()) as made:
        made.execute("create table late (n integer, batch_id text)")

    write_sql(numbers(1, 2), batch("a"), connect, "late")

    with closing(connect()) as read:
        assert read.execute("select n, batch_id from late order by n").fetchall() == [(1, "a"), (2, "a")]


def test_errors_name_what_to_do_and_change_nothing(database):
    database.run("create table bare (n bigint)")
    for epoch in (1, 2):
        with pytest.raises(InvalidOption, match=r"refused column 'batch_id' .*add a text column of that name to bare"):
            write_sql(numbers(1), batch("a", epoch), database.connect, "bare")
    with pytest.raises(InvalidOption, match="the rows have a column 'n', which is that of the batch's id"):
        write_sql(numbers(1), batch("a"), database.connect, "late", batch_column="n")
    with pytest.raises(InvalidOption, match="the rows have a column 'BATCH_ID', which is that of the batch's id"):
        write_sql(pa.table({"n": [1], "BATCH_ID": ["x"]}), batch("a"), database.connect, "late")
    for other in ("N", "n"):
        with pytest.raises(InvalidOption, match=f"the rows have columns 'n' and '{other}', one name to a database"):
            write_sql(pa.table([[1], [2]], names=["n", other]), batch("a"), database.connect, "late")
    with pytest.raises(InvalidOption, match="'late; drop table late' is no name of a table"):
        write_sql(numbers(1), batch("a"), database.connect, "late; drop table late")
    with pytest.raises(InvalidOption, match="connect\\(\\) returned SimpleNamespace, which is of no DB-API module"):
        write_sql(numbers(1), batch("a"), lambda: SimpleNamespace(close=lambda: None), "late")
    with pytest.raises(InvalidOption, match=r"column 'a\"b' has a quote"):
        write_sql(pa.table({'a"b': [1]}), batch("a"), database.connect, "late")
    with (
        pytest.raises(InvalidOption, match="sql_transaction without a table"),
        sql_transaction(database.connect, batch("a")),
    ):
        pass
    with pytest.raises(TableError, match=r"^table batches takes no rows: .*batches"):
        write_sql(numbers(1), batch("a"), database.connect, "batches", batch_column="batch")
    database.run("create unique index late_batch_id on late (batch_id, n)")
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match="batch_id"):
        write_sql(numbers(1, 1), batch("a"), database.connect, "late")
    assert database.rows() == database.rows("select * from bare") == []
    assert database.rows("select * from jobrunner_batches") == []


def test_what_no_row_is_to_blame_for_is_an_error_of_the_table(database):
    """So a station stops with the reason. The last items of a queue died of a database that was away."""

    def away():
        raise database.error("connection refused\nIs the server running?")

    for epoch in (1, 2):
        with pytest.raises(TableError, match=r"^table late: connect\(\) failed: OperationalError: connection refused$"):
            write_sql(numbers(1), batch("a", epoch), away, "late")
        with pytest.raises(TableError, match=r"^table late: connect\(\) failed: KeyError: 'DATABASE_URL'$"):
            write_sql(numbers(1), batch("a", epoch), lambda: {}["DATABASE_URL"], "late")
        with pytest.raises(TableError, match=r"^table missing takes no rows: \w+: .*missing"):
            write_sql(numbers(1), batch("a", epoch), database.connect, "missing")
        with pytest.raises(TableError, match=r"^table late takes no rows: \w+: .*carrier"):
            write_sql(pa.table({"n": [1], "carrier": ["UA"]}), batch("a", epoch), database.connect, "late")
        with (
            pytest.raises(TableError, match=r"^table late and sums takes no rows: .*sums"),
            sql_transaction(database.connect, batch("a", epoch), "late", "sums") as cursor,
        ):
            cursor.execute("insert into sums values (1, 'a')")
    assert database.rows() == []


def test_an_error_of_a_row_is_that_of_the_database(database):
    database.run("create table strict (n bigint, batch_id varchar(100), check (n < 5))")
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        write_sql(numbers(1, 9), batch("a"), database.connect, "strict")
    with pytest.raises((sqlite3.ProgrammingError, psycopg.ProgrammingError)):
        write_sql(pa.table({"n": [[1]]}), batch("a"), database.connect, "strict")
    with (
        pytest.raises((sqlite3.OperationalError, psycopg.ProgrammingError), match="slect"),
        sql_transaction(database.connect, batch("a"), "strict") as cursor,
    ):
        cursor.execute("slect 1")
    assert database.rows("select * from strict") == []


def test_a_connection_in_autocommit_mode_is_refused(database):
    def connect():
        connection = database.connect()
        if database.is_sqlite:
            connection.isolation_level = None
        else:
            connection.autocommit = True
        return connection

    with pytest.raises(InvalidOption, match="autocommit"):
        write_sql(numbers(1), batch("a"), connect, "late")
    write_sql(numbers(1, 2), batch("a"), database.connect, "late")
    with pytest.raises(InvalidOption, match="autocommit"):
        write_sql(numbers(1), batch("a", 2), connect, "late")
    assert database.rows() == [(1, "a"), (2, "a")], "the rows of the earlier attempt"
    assert database.rows("select epoch from jobrunner_batches") == [(1,)]


def test_the_autocommit_mode_of_a_driver_for_mysql_is_asked_for():
    class Connection:
        def __init__(self, mode):
            self.get_autocommit = lambda: mode

        def autocommit(self, value):
            """As that of pymysql, which sets the mode."""

    assert [is_in_autocommit(Connection(mode)) for mode in (True, False)] == [True, False]


class MySQL:
    """A connection like those of pymysql, upon SQLite: parameters and quotes of its own, and only rows that an update
    changes count."""

    def __init__(self, path, refuses=None):
        self._inner = sqlite3.connect(path)
        self.commit, self.rollback, self.close = self._inner.commit, self._inner.rollback, self._inner.close
        self.get_autocommit = lambda: False
        self.refuses = refuses
        self.said = []

    def cursor(self):
        return MySQLCursor(self, self._inner.cursor())


MySQL.__module__ = "pymysql.connections"


class MySQLCursor:
    def __init__(self, connection, inner):
        self._connection, self._inner = connection, inner
        self.rowcount = -1
        self.close, self.fetchone = inner.close, inner.fetchone

    def execute(self, statement, values=()):
        self._connection.said.append(statement)
        assert '"' not in statement, "a text, and no name"
        if self._connection.refuses and statement.startswith(self._connection.refuses):
            raise sqlite3.OperationalError("CREATE command denied to user")
        if statement.startswith("set transaction"):
            return
        if statement.startswith("update"):
            epoch, target, batch_id, _ = values
            self.execute("select epoch from jobrunner_batches where target = %s and batch = %s", (target, batch_id))
            is_same = self.fetchone() == (epoch,)
        self._inner.execute(statement.replace("%s", "?").replace("%%", "%"), values)
        self.rowcount = self._inner.rowcount
        if statement.startswith("update") and is_same:
            self.rowcount = 0  # in the same second

    def executemany(self, statement, rows):
        for row in rows:
            self.execute(statement, row)


@pytest.fixture
def mysql(tmp_path, monkeypatch):
    module = ModuleType("pymysql")
    module.paramstyle, module.Error, module.IntegrityError = "pyformat", sqlite3.Error, sqlite3.IntegrityError
    monkeypatch.setitem(sys.modules, "pymysql", module)
    path = tmp_path / "mysql.sqlite"
    with closing(sqlite3.connect(path)) as made:
        made.execute("create table late (`order` int, `50%` real, batch_id text)")
    made = []

    def connect(**options):
        made.append(MySQL(path, **options))
        return made[-1]

    def rows():
        with closing(sqlite3.connect(path)) as reading:
            return reading.execute("select `order`, batch_id from late order by 1").fetchall()

    return SimpleNamespace(connect=connect, rows=rows, made=made)


def test_mysql_gets_names_in_its_quotes_and_reads_what_others_committed(mysql):
    write_sql(pa.table({"order": [1], "50%": [0.5]}), batch("a"), mysql.connect, "`late`")
    assert mysql.rows() == [(1, "a")]
    said = mysql.made[0].said
    assert "insert into `late` (`order`, `50%%`, batch_id) values (%s, %s, %s)" in said
    begun = said.index("set transaction isolation level read committed")
    assert said[begun + 1].startswith("update jobrunner_batches"), "the first statement of the transaction"
    with pytest.raises(InvalidOption, match="has a quote"):
        write_sql(pa.table({"a`b": [1]}), batch("b"), mysql.connect, "late")


def test_an_update_of_mysql_that_changes_nothing_found_the_record(mysql):
    """The second part of a whole within a second, and an attempt that a failover hands out under the same epoch."""
    for name, n in (("a.1", 1), ("a.2", 2), ("a.2", 3)):
        write_sql(pa.table({"order": [n]}), batch(name), mysql.connect, "late")
    assert mysql.rows() == [(1, "a.1"), (3, "a.2")]
    with pytest.raises(BatchLost, match="by its parts"):
        write_sql(pa.table({"order": [4]}), batch("a"), mysql.connect, "late")


def test_a_table_of_records_that_cannot_be_made_fails_with_the_reason(mysql):
    with pytest.raises(sqlite3.OperationalError, match="CREATE command denied to user"):
        write_sql(pa.table({"order": [1]}), batch("a"), lambda: mysql.connect(refuses="create table"), "late")
