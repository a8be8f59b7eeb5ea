"""History to Parquet: each task exactly once, whatever stops it, and nothing is deleted that is not there."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from jobrunner import Client
from jobrunner.broker.calls import archives
from jobrunner.broker.keys import tag_of_id
from jobrunner.broker.shards import shard_name
from jobrunner.client.client import broker_of, endpoint_of, keys_of
from jobrunner.client.item import Item
from jobrunner.clock import utc_now
from jobrunner.errors import InvalidOption, JobrunnerError, UsageError
from jobrunner.inspector.audit import entries
from jobrunner.spark.history import archive as module
from jobrunner.spark.history import archive_claim, archive_files
from jobrunner.spark.history.archive import archive, read_history
from jobrunner.spark.history.archive_files import read_archive
from jobrunner.spark.history.replay import Replay, Replayed, count, replay, select
from jobrunner.spark.history.report import build_report
from jobrunner.task import Task


@pytest.fixture
def path(tmp_path: Any) -> str:
    return str(tmp_path / "archive")


@pytest.fixture(autouse=True)
def kept(client: Any) -> None:
    for name in ("mail", "orders/raw"):
        client.queue(name).configure(history=3600)


def ids(spark: Any, path: str) -> list[str]:
    return sorted(row["_id"] for row in read_archive(spark, path).select("_id").collect())


def test_who_looks_sees_the_rows_as_they_are_written(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any
) -> None:
    finish("mail", 30)
    finish("orders/raw", 20)
    monkeypatch.setattr(archive_files, "_EACH_S", 0.01)
    seen: list[int] = []

    @contextmanager
    def watch(total: int) -> Iterator[Callable[[int], None]]:
        assert total == 50
        yield seen.append
        seen.append(-1)

    archive(spark, client, path, lag_s=0, watch=watch)

    assert seen.index(-1) == len(seen) - 1, "the end is not reported"
    assert seen[:-1] == sorted(seen[:-1])
    assert seen[0] == 0
    assert set(seen[:-1]) - {0} <= {20, 30, 50}


def test_finished_and_dead_tasks_are_in_the_archive_once(spark: Any, client: Any, path: str, finish: Any) -> None:
    done, raw, dead = finish("mail", 5), finish("orders/raw", 3), finish("mail", 2, dies=True)

    first = archive(spark, client, path, lag_s=0)
    old, new = Path(path, ".spark-staging-old"), Path(path, ".spark-staging-new")  # of runs that were killed
    for one in (old, new):
        (one / "date=2026-11-20").mkdir(parents=True)
    os.utime(old, (1, 1))
    again = archive(spark, client, path, lag_s=0)
    assert (old.exists(), new.exists()) == (False, True), "the run of the other may be suspended"

    assert (first.rows, again.rows, first.warnings) == ({"mail": 7, "orders/raw": 3}, {}, ())
    assert ids(spark, path) == sorted(done + raw + dead)
    later = finish("mail", 2)
    assert archive(spark, client, path, lag_s=0).rows == {"mail": 2}
    assert ids(spark, path) == sorted(done + raw + dead + later)

    rows = {row["_id"]: row for row in read_archive(spark, path).collect()}
    one, died = rows[done[1]], rows[dead[0]]
    assert (one["_queue"], one["queue"], one["_state"], bytes(one["payload"])) == (
        "mail",
        "mail",
        "succeeded",
        b'{"n":1,"to":"u1"}',
    )
    assert one["_enqueue_time"] <= one["_started_at"] <= one["_finished_at"]
    assert abs((one["_due_time"] - one["_enqueue_time"]).total_seconds()) < 0.01
    assert (one["_result"], one["date"]) == ('{"ok":true}', one["_finished_at"].date())
    assert (died["_state"], died["_error"], died["_attempts"]) == ("dead", "Oops: 42", 1)

    report = build_report(read_archive(spark, path), source=path)
    (summary,) = report.table("summary").records()
    assert (summary["tasks"], summary["dead"]) == (12, 2 / 12)
    assert summary["run_p50"] is not None


def test_payloads_that_are_in_a_payload_store_are_told(
    spark: Any, server: Any, keys: Any, client: Any, path: str, finish: Any, tmp_path: Path
) -> None:
    """The archive has references, and the sweep deletes the objects after `--trim`."""
    store = tmp_path / "store"
    store.mkdir()
    finish("mail", 1)
    finish("orders/raw", 1)
    with Client(server.url, keys.prefix, payload_store=store.as_uri(), payload_store_above=100) as storing:
        storing.enqueue(Task(id="a-mail", queue="mail", payload=b"x" * 200, type="Send"))
        (lease,) = storing.queue("mail").reserve(1)
        lease.commit()

    (told,) = archive(spark, client, path, lag_s=0).warnings
    assert told.startswith("queue mail: the payloads of 1 tasks are in the payload store, and the archive has referenc")
    assert archive(spark, client, path, lag_s=0, trim=True).warnings == ()


def test_trimming_deletes_what_is_in_files_and_nothing_else(
    spark: Any, client: Any, path: str, finish: Any, audit: Any
) -> None:
    before = finish("mail", 4) + finish("mail", 2, dies=True)
    raw = finish("orders/raw", 1)
    archive(spark, client, path, lag_s=0)
    later = finish("mail", 3)

    done = archive(spark, client, path, likes=["mail"], trim=True, lag_s=0)

    assert (done.trimmed, done.rows) == (9, {"mail": 3})
    assert client.queue("mail").counts()["done"] == client.queue("mail").counts()["dead"] == 0
    assert client.queue("orders/raw").counts()["done"] == 1
    assert ids(spark, path) == sorted(before + raw + later)
    last = finish("mail", 1)
    assert client.queue("mail").history()[0].id == last[0]
    assert archive(spark, client, path, lag_s=0).warnings == ()
    audit("mail")


def test_finished_and_dead_tasks_that_cannot_be_read_are_told(
    spark: Any, client: Any, path: str, finish: Any, raw: Any, keys: Any
) -> None:
    (done, *_), (dead, _) = finish("mail", 3), finish("mail", 2, dies=True)
    finish("orders/raw", 1)
    raw.delete(*(keys.queue("mail").task(one) for one in (done, dead)))
    found = archive(spark, client, path, lag_s=0)
    assert found.rows == {"mail": 3, "orders/raw": 1}
    assert found.warnings == ("queue mail: 2 finished or dead tasks could not be read and are not archived",)


def test_tasks_whose_read_the_server_refused_are_not_deleted(
    spark: Any, server: Any, client: Any, path: str, finish: Any, raw: Any, keys: Any, audit: Any
) -> None:
    """They were left out like damaged ones, with a warning, and deleted."""
    finish("mail", 3)
    but_tasks = ("[^{]*", "{/}*", "{mail}:mail:*", "{mail}:outbox", "{orders}*")
    all_but_tasks = [f"~{keys.prefix}:{rest}" for rest in but_tasks]
    raw.execute_command("ACL", "SETUSER", "archivist", "on", "nopass", *all_but_tasks, "&*", "+@all")
    try:
        with Client(server.url.replace("://", "://archivist:any@"), keys.prefix) as limited:
            with pytest.raises(JobrunnerError, match=r"was not written \(ServerRefused: .* refused this user"):
                archive(spark, limited, path, trim=True, lag_s=0)
            assert audit("mail")["done"] == 3
            raw.execute_command("ACL", "SETUSER", "archivist", "~*")
            found = archive(spark, limited, path, trim=True, lag_s=0)
    finally:
        raw.acl_deluser("archivist")
    assert (found.rows, found.warnings, found.trimmed) == ({"mail": 3}, (), 3)


@pytest.mark.parametrize("stopped_at", ["_write_files", "close", "trim"])
def test_a_run_that_was_stopped_is_brought_to_its_end_and_doubles_nothing(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any, stopped_at: str
) -> None:
    class Killed(BaseException):
        pass

    real = getattr(module._ArchiveRun, stopped_at)

    def stopped(self: Any, *given: Any, **_: Any) -> Any:
        if stopped_at == "_write_files":  # half of it is in files
            real(self, given[0], given[1][:1])
        raise Killed

    early = finish("mail", 4) + finish("orders/raw", 2)
    monkeypatch.setattr(module._ArchiveRun, stopped_at, stopped)
    with pytest.raises(Killed):
        archive(spark, client, path, trim=True, lag_s=0)
    monkeypatch.undo()
    later = finish("mail", 3)

    done = archive(spark, client, path, trim=True, lag_s=0)
    if done.resumed:
        assert sum(done.rows.values()) == 6
        archive(spark, client, path, trim=True, lag_s=0)

    assert ids(spark, path) == sorted(early + later)
    assert client.queue("mail").counts()["done"] == 0


def test_a_run_that_goes_on_keeps_tasks_that_the_server_deleted_since(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any
) -> None:
    """The first run was stopped behind the files of one of two queues; then one of them was trimmed by its limits."""

    class Killed(BaseException):
        pass

    real = module._ArchiveRun._write_files

    def stopped(self: Any, window: Any, names: list[str], **options: Any) -> None:
        real(self, window, names[:1], **options)
        raise Killed

    every = finish("mail", 6) + finish("mail", 1, dies=True) + finish("orders/raw", 2)
    with monkeypatch.context() as fault:
        fault.setattr(module._ArchiveRun, "_write_files", stopped)
        with pytest.raises(Killed):
            archive(spark, client, path, lag_s=0)
    assert len(ids(spark, path)) == 7
    client.queue("mail").configure(history_max=3)
    client.queue("mail").history()  # trims

    done = archive(spark, client, path, lag_s=0)

    assert done.resumed
    assert ids(spark, path) == sorted(every)


def test_what_a_queue_deleted_before_it_was_archived_is_told(spark: Any, client: Any, path: str, finish: Any) -> None:
    finish("mail", 2)
    assert archive(spark, client, path, lag_s=0).warnings == ()
    client.queue("mail").configure(history_max=3)
    finish("mail", 9)
    client.queue("mail").history()  # trims

    (warning,) = archive(spark, client, path, lag_s=0).warnings

    assert "queue mail: some tasks that finished since" in warning
    assert "keep history longer" in warning


TARGETS = [
    ("{folder}/file", "Could not read footer"),
    ("{folder}/file/below", "not a directory"),
    ("file:{folder}/file", "Could not read footer"),
    ("nosuch:/lake/history", 'No FileSystem for scheme "nosuch"'),
    ("nosuch://host/history", 'No FileSystem for scheme "nosuch"'),
    ("/proc/archive", "/proc/archive"),
    ("{folder}/other", "it has no column _id"),
    ("{folder}/batches", "it has no column _id"),
    ("{folder}/a[1]", "Spark takes for a pattern"),
    (" ", "an archive needs a place"),
]


def test_a_target_that_takes_no_archive_is_an_error_also_when_there_is_nothing_to_write(
    spark: Any, client: Any, tmp_path: Path, finish: Any, raw: Any
) -> None:
    (tmp_path / "file").write_text("no archive")
    for folder in ("other", "batches/batch=1"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), tmp_path / folder / "part-1.parquet")

    def check_all_are_refused() -> None:
        before = set(raw.scan_iter())
        for target, reason in TARGETS:
            with pytest.raises(InvalidOption) as caught:
                archive(spark, client, target.format(folder=tmp_path), trim=True, lag_s=0)
            assert reason in str(caught.value), target
            assert set(raw.scan_iter()) == before, "no window is open for a place that nobody can write to"

    check_all_are_refused()
    every = finish("mail", 3)
    check_all_are_refused()

    good = str(tmp_path / "good")
    assert archive(spark, client, good, trim=True, lag_s=0).trimmed == 3
    assert ids(spark, good) == sorted(every)


def test_an_archive_that_fails_in_its_write_goes_on_when_it_is_mended(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any
) -> None:
    """As a disk that is full: the folder is there, and a file in place of that of a day lets the write fail."""
    every = finish("mail", 3)
    archive(spark, client, path, lag_s=0)
    (day,) = Path(path).glob("date=*")
    day.rename(tmp := Path(path).with_name("kept"))
    every += finish("mail", 2)
    real = archive_files.FolderArchive.write

    def fails(self: Any, rows: Any, *given: Any, **options: Any) -> None:
        day.write_text("in the way")
        real(self, rows, *given, **options)

    with monkeypatch.context() as fault:
        fault.setattr(archive_files.FolderArchive, "write", fails)
        with pytest.raises(JobrunnerError, match=r"not written \(.*; nothing was deleted, and the next run goes on"):
            archive(spark, client, path, trim=True, lag_s=0)
    day.unlink()
    tmp.rename(day)

    done = archive(spark, client, path, trim=True, lag_s=0)
    assert (done.resumed, done.trimmed) == (True, 5)
    assert ids(spark, path) == sorted(every)


def test_one_at_a_time_writes_an_archive(spark: Any, client: Any, path: str) -> None:
    place = archive_files.archive_at(spark, path)
    run = module._ArchiveRun(spark, client, place, lambda _: None, lambda _: nullcontext())
    assert broker_of(client).run(archives.hold(keys_of(client), run._digest, "another", ttl_ms=60_000))
    with pytest.raises(UsageError, match="another process writes the archive"):
        archive(spark, client, path, lag_s=0)


def test_a_run_that_loses_its_claim_in_its_write_is_ended(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any, raw: Any, keys: Any
) -> None:
    """A suspended process loses its claim: its write, which never ends, is cancelled; the other's files stay."""
    real, claim = archive_files.FolderArchive.write, keys.archive(hashlib.sha256(path.encode()).hexdigest()[:16])

    def never_ends(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            while True:
                time.sleep(0.01)
            yield batch

    def goes_on(self: Any, rows: Any, *given: Any, **options: Any) -> None:
        raw.set(claim + b":holder", "another")
        real(self, rows.mapInArrow(never_ends, rows.schema), *given, **options)

    finish("mail", 3)
    monkeypatch.setattr(archive_claim, "_HOLD_MS", 3000)  # the claim itself must not run out on a busy machine
    monkeypatch.setattr(archive_files.FolderArchive, "write", goes_on)
    with pytest.raises(UsageError, match="this process lost its claim on the archive"):
        archive(spark, client, path, lag_s=0)
    assert raw.get(claim + b":holder") == b"another"
    with pytest.raises(InvalidOption, match="cannot be read as an archive"):
        read_archive(spark, path)


def test_a_selected_part_goes_back_into_its_queues_once(spark: Any, client: Any, path: str, finish: Any) -> None:
    done, dead = finish("mail", 6), finish("orders/raw", 2, dies=True)
    archive(spark, client, path, lag_s=0)
    there = read_archive(spark, path)

    some = select(there, "get_json_object(payload, '$.to') = 'u1' or _state = 'dead'")
    assert count(some) == {"mail": 2, "orders/raw": 2}
    run = Replay(name="again", url=endpoint_of(client).shared_url(), prefix=keys_of(client).prefix)
    assert replay(some, run) == {"mail": Replayed(2, 0), "orders/raw": Replayed(2, 0)}
    assert replay(some, run) == {"mail": Replayed(0, 2), "orders/raw": Replayed(0, 2)}

    held = client.queue("mail").reserve(10) + client.queue("orders/raw").reserve(10)
    assert [lease.payload["to"] for lease in held[:2]] == ["u1", "u1"]
    assert {lease.headers["replayed_from"] for lease in held} == {done[1], done[4], *dead}
    with pytest.raises(InvalidOption, match=r"_stat.*Columns are .*_state"):
        select(there, "_stat = 'dead'")
    with pytest.raises(InvalidOption, match=r"--where '_state = = 1': .*Syntax error at or near '='"):
        select(there, "_state = = 1")


def test_queues_of_an_archive_are_chosen_by_their_whole_names(spark: Any, client: Any, path: str, finish: Any) -> None:
    names = ["mail", "mailbox", "shop/mail", "voicemail"]
    for name in names:
        client.queue(name).configure(history=3600)
        finish(name, 1)
    archive(spark, client, path, lag_s=0)

    def chosen(*likes: str) -> list[str]:
        return sorted(count(read_archive(spark, path, queues=likes)))

    assert chosen("mail") == ["mail"]
    assert chosen("voicemail", "mail") == ["mail", "voicemail"]
    assert chosen("*/mail", "*box") == ["mailbox", "shop/mail"]
    assert (chosen("*mail*"), chosen("ail"), chosen("mai")) == (names, [], [])


def test_the_shards_of_a_queue_are_archived_trimmed_and_read_with_it(
    spark: Any, client: Any, path: str, finish: Any
) -> None:
    first = finish("mail", 3)
    assert archive(spark, client, path, lag_s=0).rows == {"mail": 3}
    mail = client.queue("mail")
    mail.configure(partitions=4)  # the other shards were not archived up to where the first was

    def work(n: int) -> list[str]:
        ids = mail.push_many([Item({"n": at}, max_attempts=1) for at in range(n)])
        left = n
        while left:
            for at, lease in enumerate(mail.reserve(n)):
                lease.commit() if at else lease.rollback(error="Oops")
                left -= 1
        return ids

    second = work(40)
    assert archive(spark, client, path, likes=["mail"], lag_s=0).rows == {"mail": 40}
    third = work(8)
    done = archive(spark, client, path, likes=["mail"], trim=True, lag_s=0)
    assert (done.rows, done.trimmed, done.warnings) == ({"mail": 8}, 51, ())
    assert mail.counts()["done"] == mail.counts()["dead"] == 0

    there = read_archive(spark, path, queues=["mail"])
    assert ids(spark, path) == sorted(first + second + third)
    assert there.select("_queue").distinct().count() == 4
    assert [row["queue"] for row in there.select("queue").distinct().collect()] == ["mail"]


@pytest.mark.parametrize("partitions", [1, 2])
def test_tasks_go_back_into_a_queue_that_has_fewer_partitions_elsewhere(
    spark: Any, client: Any, partitions: int
) -> None:
    """They were added to shards that the server does not know: no worker took them, and they were in no count."""
    mail = client.queue("mail")
    mail.configure(partitions=4)
    mail.push_many([Item({"n": at}, partition=f"k{at}" if at % 2 else None) for at in range(40)])
    left = 40
    while left:
        for lease in mail.reserve(left):
            lease.commit()
            left -= 1
    some = select(read_history(spark, client, "mail"), "true")
    assert count(some) == {"mail": 40}

    with Client(client.settings.url, f"{client.settings.prefix}-second") as second:
        queue = second.queue("mail")
        queue.configure(partitions=partitions)
        run = Replay(name="r1", url=endpoint_of(second).shared_url(), prefix=second.settings.prefix)
        assert replay(some, run) == {"mail": Replayed(40, 0)}
        assert replay(some, run) == {"mail": Replayed(0, 40)}
        assert queue.counts()["waiting"] == 40
        found: list[Any] = []
        while len(found) < 40:
            found += queue.reserve(40)
        assert sorted(lease.payload["n"] for lease in found) == [*range(40)]
        for lease in found:
            if lease.payload["n"] % 2:
                number = crc32(f"k{lease.payload['n']}".encode()) % partitions
                assert tag_of_id(lease.id) == shard_name("mail", number)


def test_an_archive_is_the_same_in_every_time_zone(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any
) -> None:
    finish("mail", 5)
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Honolulu")
        archive(spark, client, path, lag_s=0)
        monkeypatch.setattr(module, "utc_day_of", F.to_date)
        archive(spark, client, f"{path} of an earlier version", lag_s=0)

        spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # where it is always the next day
        for one in (path, f"{path} of an earlier version"):
            now = utc_now()
            found = read_archive(spark, one, since=now - timedelta(hours=1), until=now + timedelta(hours=1))
            assert found.count() == 5
        there = read_archive(spark, path)
        assert there.where("unix_date(date) = floor(unix_seconds(_finished_at) / 86400)").count() == 5
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_history_in_redis_is_selected_from_in_the_same_way(spark: Any, client: Any, finish: Any) -> None:
    finish("mail", 6)
    client.queue("mail").push(b"\xff\x00 bytes")
    (lease,) = client.queue("mail").reserve(1)
    lease.commit()

    some = select(read_history(spark, client, "mail"), "_encoding is null or _encoding = ''")
    run = Replay(name="r1", url=endpoint_of(client).shared_url(), prefix=keys_of(client).prefix)
    assert replay(some, run) == {"mail": Replayed(1, 0)}
    (lease,) = client.queue("mail").reserve(2)
    assert lease.payload == b"\xff\x00 bytes"


def test_archive_and_replay_from_the_shell(
    spark: Any, client: Any, path: str, finish: Any, capsys: Any, monkeypatch: Any, server: Any, keys: Any
) -> None:
    from jobrunner.cli.error_boundary import guarded
    from jobrunner.cli.main import jobrunner

    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", keys.prefix)
    finish("mail", 3)

    assert guarded(jobrunner, ["history", "archive", "--to", path, "--lag", "0", "--trim", "--json"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert (said["rows"], said["trimmed"]) == ({"mail": 3}, 3)
    words = ["history", "replay", "--from", path, "--where", "_attempts = 1", "--json"]
    assert guarded(jobrunner, [*words, "--dry-run"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == {"would_replay": {"mail": 3}}
    assert guarded(jobrunner, [*words, "--replay-id", "r1"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert said == {"replay_id": "r1", "queues": {"mail": {"added": 3, "there": 0}}}
    assert guarded(jobrunner, ["history", "report", "--from", path, "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["summary"][0]["tasks"] == 3
    assert guarded(jobrunner, ["history", "replay", "mail", "--where", "nonsense +", "--from", path]) == 2
    assert guarded(jobrunner, ["history", "archive", "--to", "nosuch://host/history"]) == 2
    assert client.queue("mail").counts()["waiting"] == 3


def test_a_replay_or_a_trim_that_ctrl_c_cuts_off_is_in_the_audit_log(
    spark: Any, client: Any, path: str, finish: Any, monkeypatch: Any, server: Any, keys: Any
) -> None:
    from jobrunner.cli.error_boundary import guarded
    from jobrunner.cli.main import jobrunner

    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", keys.prefix)
    finish("mail", 2)
    finish("mail", 1, dies=True)

    with monkeypatch.context() as patched:
        patched.setattr("jobrunner.spark.history.replay.Replayed", pressed)
        words = ["history", "replay", "mail", "--where", "_state <> 'dead'", "--replay-id", "r1"]
        assert guarded(jobrunner, words) == 130
    with monkeypatch.context() as patched:
        patched.setattr(module.queues, "delete_archived", cut_off_at_the_dead(module.queues.delete_archived))
        assert guarded(jobrunner, ["history", "archive", "--to", path, "--lag", "0", "--trim"]) == 130

    assert [(one.action, one.what, one.outcome) for one in entries(client)] == [
        ("history.trim", "all queues", f"broke off: deleted 2 tasks that {path} has, or about that"),
        ("task.replay", "mail where _state <> 'dead'", "broke off: enqueued some again, r1, or about that"),
    ]
    assert client.queue("mail").counts()["waiting"] == 2


def pressed(*_: Any) -> Any:
    raise KeyboardInterrupt


def cut_off_at_the_dead(before: Any) -> Any:
    return lambda queue, state, **rest: pressed() if state == "dead" else before(queue, state, **rest)
