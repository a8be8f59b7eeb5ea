"""History in a table of a lakehouse: each task once, whatever stops the run, and read as a folder is."""

import hashlib
import shutil
import signal
import subprocess
import sys
from datetime import UTC, timedelta
from typing import Any

import pyarrow as pa
import pytest

from jobrunner.broker.calls import archives
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import utc_now
from jobrunner.errors import BatchLost, InvalidOption, TableError, UsageError
from jobrunner.etl.table_sink import address_of
from jobrunner.spark.history import archive as module
from jobrunner.spark.history.archive import archive
from jobrunner.spark.history.archive_claim import ArchiveClaim
from jobrunner.spark.history.archive_files import read_archive
from jobrunner.spark.history.replay import count, select
from jobrunner.spark.history.report_aggregates import measured
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake import write as lake_write
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.lake.services import clean_up_table, compact_table


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def kept(client: Any) -> None:
    for name in ("mail", "orders/raw"):
        client.queue(name).configure(history=3600)


def rows(spark: Any, path: str, **chosen: Any) -> list[dict[str, Any]]:
    found = [row.asDict() for row in read_archive(spark, path, **chosen).drop("window").collect()]
    return sorted(found, key=lambda row: (row["_id"], row["_finished_at"]))


def ids(spark: Any, path: str) -> list[str]:
    return [row["_id"] for row in rows(spark, path)]


def test_a_table_has_what_a_folder_has(spark: Any, client: Any, finish: Any, table: str, tmp_path: Any) -> None:
    """Its rows, the report on it, and what is replayed from it; also when its files were rewritten."""
    folder = str(tmp_path / "folder")
    every = finish("mail", 5) + finish("orders/raw", 3) + finish("mail", 2, dies=True)
    first = archive(spark, client, table, lag_s=0)
    assert (first.rows, first.path, first.warnings) == ({"mail": 7, "orders/raw": 3}, table, ())
    every += finish("mail", 2)
    archive(spark, client, folder, lag_s=0)
    done = archive(spark, client, table, likes=["mail"], trim=True, lag_s=0)
    assert (done.rows, done.trimmed) == ({"mail": 2}, 9)
    assert client.queue("orders/raw").counts()["done"] == 3

    expected = rows(spark, folder)
    assert compact_table(table) > 0
    assert rows(spark, table) == expected
    assert [row["_id"] for row in expected] == sorted(every)
    middle = expected[4]["_finished_at"].astimezone(UTC)
    chosen = {"queues": ["orders/*"], "since": middle - timedelta(hours=1), "until": middle + timedelta(hours=1)}
    assert rows(spark, table, **chosen) == [row for row in expected if row["queue"] == "orders/raw"]
    assert rows(spark, table, since=utc_now() + timedelta(days=2)) == []
    selected = select(read_archive(spark, table), "_state = 'dead' or payload like '%u1%'")
    assert count(selected) == {"mail": 5, "orders/raw": 1}
    if table.startswith("delta"):  # whose files lack the columns of partitions
        found = measured(read_archive(spark, table)).groupBy("queue", "state").count().collect()
        assert {tuple(row) for row in found} == {
            ("mail", "succeeded", 7), ("mail", "dead", 2), ("orders/raw", "succeeded", 3),
        }  # fmt: skip


def test_a_run_that_is_stopped_at_a_step_is_brought_to_its_end(
    spark: Any, client: Any, finish: Any, table: str, monkeypatch: Any
) -> None:
    """Behind its files, behind its commit, before its window is closed and before tasks are deleted."""

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    def commits_and_dies(*given: Any) -> None:
        lake_commit.commit(*given)
        raise Killed

    every: list[str] = []
    for stopped in ("files", "commit", "close", "trim") if table.startswith("delta") else ("commit",):
        every += finish("mail", 4) + finish("orders/raw", 2)
        with monkeypatch.context() as fault:
            if stopped in ("files", "commit"):
                fault.setattr(lake_write, "commit", dies if stopped == "files" else commits_and_dies)
            else:
                fault.setattr(module._ArchiveRun, stopped, dies)
            with pytest.raises(Killed):
                archive(spark, client, table, trim=True, lag_s=0)
        assert client.queue("mail").counts()["done"] == 4, "nothing is deleted"
        every += finish("mail", 1)

        done = archive(spark, client, table, trim=True, lag_s=0)
        assert done.resumed == (stopped != "trim")
        assert done.rows == ({"mail": 4, "orders/raw": 2} if done.resumed else {"mail": 1})
        if done.resumed:
            assert archive(spark, client, table, trim=True, lag_s=0).rows == {"mail": 1}
        assert client.queue("mail").counts()["done"] == 0
    assert ids(spark, table) == sorted(every)
    assert clean_up_table(table).files == (), "no file is left of the runs that were stopped"


def test_a_run_that_lost_its_claim_or_its_table_writes_and_deletes_nothing(
    spark: Any, client: Any, finish: Any, table: str, monkeypatch: Any, tmp_path: Any
) -> None:
    finish("mail", 2)
    holders = iter(["claim"])
    real = ArchiveClaim.check

    def taken(self: Any) -> None:
        if next(holders, None) is None:
            self._name = "another"
        real(self)

    with monkeypatch.context() as fault:
        fault.setattr(ArchiveClaim, "check", taken)
        with pytest.raises(BatchLost, match="this process lost its claim on the archive"):
            archive(spark, client, table, trim=True, lag_s=0)
    assert ids(spark, table) == []
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    broker_of(client).run(archives.let_go(keys_of(client), digest))
    opened = open_table(address_of(table))

    def away(*_: Any) -> None:
        raise OSError("the catalog is away")

    with monkeypatch.context() as fault:
        fault.setattr(type(opened), "load", away)
        for run in (lambda: archive(spark, client, table, trim=True, lag_s=0), lambda: read_archive(spark, table)):
            with pytest.raises(TableError, match=r"opening it failed: OSError: the catalog is away"):
                run()
    assert client.queue("mail").counts()["done"] == 2

    monkeypatch.setattr(lake_commit, "_seen", set())
    columns = pa.schema([("n", pa.int64())])
    other = f"{table}_other"
    open_table(address_of(other)).create(columns, [])
    for run in (lambda: archive(spark, client, other, trim=True, lag_s=0), lambda: read_archive(spark, other)):
        with pytest.raises(InvalidOption, match="is no archive of jobrunner: it has no column _id"):
            run()
    assert opened.load()
    flat = address_of(f"{table}_flat")
    open_table(flat).create(opened.columns, ["date"])
    with pytest.raises(TableError, match="is partitioned by date, and an archive by date, queue"):
        archive(spark, client, str(flat), trim=True, lag_s=0)
    with pytest.raises(InvalidOption, match=r"there is no table .*_none; make one: jobrunner history archive --to"):
        read_archive(spark, f"{table}_none")
    assert client.queue("mail").counts()["done"] == 2

    finish("mail", 1)
    archive(spark, client, table, lag_s=0)
    if table.startswith("delta"):
        shutil.rmtree(table.removeprefix("delta:"))
        with pytest.raises(TableError, match=r"is gone, and tasks of 2 queues are archived in it: restore it"):
            archive(spark, client, table, trim=True, lag_s=0)
        assert client.queue("mail").counts()["done"] == 3


KILLED = """
import os, signal, sys
from jobrunner.client.client import Client
from jobrunner.spark.history import archive as module
from jobrunner.spark.session import spark_session

module._ArchiveRun.close = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
module.archive(spark_session(), Client(sys.argv[1], prefix=sys.argv[2]), sys.argv[3], trim=True, lag_s=0)
"""


@pytest.mark.parametrize(
    ("table", "is_table"), [("delta", True), ("iceberg", True), ("delta", False)], indirect=["table"]
)
def test_a_server_that_forgot_a_run_does_not_double_what_it_archived(
    spark: Any, client: Any, finish: Any, table: str, is_table: bool, tmp_path: Any, raw: Any, keys: Any,
    monkeypatch: Any,
) -> None:  # fmt: skip
    path = table if is_table else str(tmp_path / "folder")
    every = finish("mail", 4) + finish("mail", 1, dies=True) + finish("orders/raw", 2)
    archive(spark, client, path, lag_s=0)
    raw.delete(*raw.scan_iter(keys.archive("*")))  # as a replica that takes over, and lacks the last seconds
    later = finish("mail", 3)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(module._ArchiveRun, "close", killed)
        with pytest.raises(Killed):
            archive(spark, client, path, lag_s=0)
    done = archive(spark, client, path, trim=True, lag_s=0)

    assert (done.rows, done.trimmed, done.warnings) == ({"mail": 3}, 10, ())
    assert ids(spark, path) == sorted(every + later)


@pytest.mark.slow
def test_a_process_that_is_killed_between_the_commit_and_its_note_doubles_nothing(
    spark: Any, client: Any, finish: Any, server: Any, keys: Any, tmp_path: Any
) -> None:
    """``pytest -n 0 -m slow tests/spark/test_archive_tables.py``: starts a second Spark for half a minute."""
    table = f"delta:{tmp_path}/history"
    early = finish("mail", 4) + finish("orders/raw", 2)
    done = subprocess.run([sys.executable, "-c", KILLED, server.url, keys.prefix, table], check=False)
    assert done.returncode == -signal.SIGKILL
    assert ids(spark, table) == sorted(early)
    with pytest.raises(UsageError, match="another process writes the archive"):
        archive(spark, client, table, lag_s=0)
    broker_of(client).run(archives.let_go(keys, hashlib.sha256(table.encode()).hexdigest()[:16]))
    later = finish("mail", 1)

    again = archive(spark, client, table, trim=True, lag_s=0)
    assert (again.resumed, again.rows, again.trimmed) == (True, {"mail": 4, "orders/raw": 2}, 6)
    archive(spark, client, table, trim=True, lag_s=0)
    assert ids(spark, table) == sorted(early + later)
