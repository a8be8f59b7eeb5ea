"""What a sink wrote is there once although the server forgot the batch: real servers that lose their last moments, and
a sink whose rows are lines of a file, without Spark."""

import errno
import shutil
from collections import Counter

import pytest

from jobrunner.client.client import keys_of
from jobrunner.errors import BatchLost, FolderError, PipelineError
from jobrunner.spark.station import exactly_once, records, sink_folders
from jobrunner.spark.station.merges import Merge, Merges
from jobrunner.spark.station.records import NOTES
from jobrunner.spark.station.sink_folders import LocalFolders
from tests.support.plain_sink import QUEUE, PlainSink, left_of, rows_in


@pytest.fixture
def forgetful(start_server):
    """A server that can go back to the moment of its last `save`."""
    server = start_server(dbfilename="dump.rdb")

    def go_back():
        server.kill()
        server.start()

    server.go_back = go_back
    server.save = lambda: server.connect().save()
    return server


@pytest.fixture
def sink(forgetful, tmp_path):
    made = PlainSink(forgetful.url, tmp_path / "late")
    yield made
    made.client.close()


def expire(sink, raw):
    """The lease of every open batch ends."""
    keys = keys_of(sink.client).queue(QUEUE)
    for one in raw.zrange(keys.batches, 0, -1):
        raw.zadd(keys.batches, {one: 0})
        raw.hset(keys.batch + one, "ends", 1)


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_items_of_a_batch_that_the_server_forgot_are_written_once(sink, forgetful, tmp_path, ends, same_process):
    ids = sink.queue.push_many(range(10))
    sink.write(first := sink.take(3))
    sink.end(first)
    forgetful.save()
    sink.write(second := sink.take(4))
    sink.write(sink.take(2))  # which saw that the server knows the second
    if ends:
        sink.end(second)
    forgetful.go_back()

    if not same_process:
        sink = PlainSink(forgetful.url, tmp_path / "late")
    new = sink.queue.push_many(range(5))
    sink.drain(6)  # the forgotten items come with others, in two batches
    assert rows_in(tmp_path / "late") == Counter([*ids, *new])
    assert left_of(sink) == 0


def test_a_batch_that_comes_again_as_a_whole_needs_no_call_of_the_function(sink, forgetful, tmp_path):
    ids = sink.queue.push_many(range(4))
    forgetful.save()
    sink.write(sink.take(4))
    forgetful.go_back()
    sink.calls = 0
    sink.drain(4)
    assert sink.calls == 1
    assert rows_in(tmp_path / "late") == Counter(ids)


def test_rows_of_items_that_the_server_lost_for_good_stay(sink, forgetful, tmp_path):
    old = sink.queue.push_many(range(3))
    forgetful.save()
    lost = sink.queue.push_many(range(3))
    sink.write(sink.take(6))
    forgetful.go_back()
    sink.drain(6)
    assert rows_in(tmp_path / "late") == Counter([*old, *lost])


def test_a_decision_that_the_server_forgot_is_made_again_for_the_same_batch(sink, forgetful, tmp_path):
    ids = sink.queue.push_many(range(4))
    lease = sink.take(4)
    forgetful.save()
    sink.write(lease)
    sink.end(lease)
    forgetful.go_back()
    expire(sink, forgetful.connect())
    again = sink.take(4)
    assert (again.id, again.epoch) == (lease.id, 2)
    sink.write(again)
    sink.end(again)
    assert rows_in(tmp_path / "late") == Counter(ids)
    assert left_of(sink) == 0


@pytest.mark.parametrize("rest_first", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_that_lost_some_of_its_members(sink, forgetful, tmp_path, rest_first, committed):
    ids = sink.queue.push_many(range(7))
    lease = sink.take(4)
    forgetful.save()
    sink.batches.top_up(lease, 2)
    assert lease.size == 6
    if committed:
        sink.write(lease)
    else:
        with pytest.raises(SystemExit):
            sink.write(lease, renew=dies)
    forgetful.go_back()
    if rest_first:
        sink.write(rest := sink.take(10))
        assert rest.size == 3
        assert rows_in(tmp_path / "late") == Counter(ids if committed else rest.members(0, 3))
        sink.end(rest)
    expire(sink, forgetful.connect())
    sink.drain(10)
    assert rows_in(tmp_path / "late") == Counter(ids)
    assert left_of(sink) == 0


def test_a_batch_that_lost_some_of_its_members_after_its_folder_was_merged(sink, forgetful, tmp_path):
    """The attempt that finds its rows merged writes nothing, and is the last that can tell which items they are of."""
    ids = sink.queue.push_many(range(7))
    lease = sink.take(4)
    forgetful.save()
    sink.batches.top_up(lease, 2)
    sink.write(lease)
    folders = LocalFolders(tmp_path / "late")
    merge = Merge("merged-1", (f"batch={lease.id}",), (lease.id,))
    Merges(folders).propose(merge)
    Merges(folders).decide(merge)
    folders.rename(f"batch={lease.id}", "batch=merged-1")
    forgetful.go_back()
    expire(sink, forgetful.connect())
    sink.drain(4)
    assert rows_in(tmp_path / "late") == Counter(ids)
    assert left_of(sink) == 0


def dies():
    """The process ends behind its write, before its commit."""
    raise SystemExit


@pytest.mark.parametrize("fails_again", [True, False])
def test_a_part_that_was_written_before_the_server_forgot_the_split(sink, forgetful, tmp_path, fails_again):
    ids = sink.queue.push_many(range(6))
    sink.write(lease := sink.take(6))
    lease.fail("no such airport", delay_s=0)
    lease = sink.take(6)
    forgetful.save()
    assert lease.fail("no such airport", delay_s=0) == "split"
    sink.write(part := sink.take(6))
    sink.end(part)
    assert part.id.endswith(".p1of6")
    assert sum(rows_in(tmp_path / "late").values()) == 1
    forgetful.go_back()

    expire(sink, forgetful.connect())
    whole = sink.take(6)
    assert whole.size == 6
    sink.write(whole)
    assert rows_in(tmp_path / "late") == Counter(ids)
    if fails_again:
        assert whole.fail("no such airport", delay_s=0) == "split"
    else:
        sink.end(whole)
    sink.drain(6)
    assert rows_in(tmp_path / "late") == Counter(ids)
    assert left_of(sink) == 0


@pytest.mark.parametrize("at", ["renewal", "check", "rename"])
def test_a_commit_in_flight_of_a_batch_that_the_server_forgot(sink, forgetful, tmp_path, at, monkeypatch):
    """The failover, and the batch that takes the items, come between two steps of the old attempt's commit."""
    root = tmp_path / "late"
    ids = sink.queue.push_many(range(5))
    forgetful.save()
    lease = sink.take(4)
    other = []

    def forget_and_take():
        if other:
            return
        other.append(None)
        forgetful.go_back()
        other[0] = PlainSink(forgetful.url, root)
        other[0].drain(5)

    def renew():
        if at == "renewal":
            forget_and_take()
        lease.renew()

    check, rename = records.SinkRecords.check, LocalFolders.rename
    if at == "check":
        monkeypatch.setattr(records.SinkRecords, "check", lambda self: (forget_and_take(), check(self)))
    if at == "rename":
        monkeypatch.setattr(LocalFolders, "rename", lambda self, *names: (forget_and_take(), rename(self, *names)))
    with pytest.raises((BatchLost, Exception)) as caught:
        sink.write(lease, renew=renew)
    assert at == "rename" or caught.type is BatchLost
    assert rows_in(root) == Counter(ids)
    assert {one.name.partition("=")[0] for one in root.iterdir()} == {"batch", "_jobrunner"}


def test_a_folder_that_is_deleted_while_a_batch_is_written_has_its_rows_when_the_batch_comes_again(sink, tmp_path):
    """As somebody does who begins anew. The error was that of a lost lease, whose end counted as an attempt."""
    root = tmp_path / "late"
    ids = sink.queue.push_many(range(3))
    lease = sink.take(3)
    with pytest.raises(FolderError, match=f"^{root} was deleted while a batch was written to it; its rows come again$"):
        sink.write(lease, renew=lambda: shutil.rmtree(root))
    lease.release(delay_s=0)
    sink.drain(3)
    assert rows_in(root) == Counter(ids)


def test_an_attempt_suspended_before_its_rename_removes_no_row_of_the_next(sink, forgetful, tmp_path, monkeypatch):
    root = tmp_path / "late"
    ids = sink.queue.push_many(range(3))
    lease = sink.take(3)
    put, before = exactly_once._put_in_place, []

    def put_later(*args):
        if not before:
            before.append(None)
            expire(sink, forgetful.connect())
            PlainSink(forgetful.url, root).drain(3)
        put(*args)

    monkeypatch.setattr(exactly_once, "_put_in_place", put_later)
    with pytest.raises(PipelineError):
        sink.write(lease)
    assert rows_in(root) == Counter(ids)
    assert {one.name.partition("=")[0] for one in root.iterdir()} == {"batch", "_jobrunner"}


def test_two_primaries_at_once(sink, forgetful, start_server, tmp_path):
    """A driver that is cut off works on with the old primary: what either committed, the other leaves out."""
    root = tmp_path / "late"
    ids = sink.queue.push_many(range(6))
    forgetful.save()
    promoted = start_server(dbfilename="dump.rdb")
    promoted.kill()
    shutil.copy(forgetful.folder / "dump.rdb", promoted.folder / "dump.rdb")
    promoted.start()
    other = PlainSink(promoted.url, root)

    sink.write(sink.take(2))
    other.write(other.take(3))
    sink.write(sink.take(3))
    other.write(other.take(3))
    sink.write(sink.take(3))
    assert rows_in(root) == Counter(ids)


def test_two_paths_of_one_function_lack_different_items(forgetful, tmp_path):
    """The process died between its two writes: one path has the rows, the other has none."""
    roots = tmp_path / "a", tmp_path / "b"
    sink = PlainSink(forgetful.url, *roots)
    ids = sink.queue.push_many(range(4))
    forgetful.save()
    lease = sink.take(3)
    renewals = iter([lease.renew, dies])
    with pytest.raises(SystemExit):
        sink.write(lease, renew=lambda: next(renewals)())
    forgetful.go_back()
    sink.drain(4)
    assert [rows_in(root) for root in roots] == [Counter(ids), Counter(ids)]


def test_the_items_of_other_queues_and_of_batches_that_the_server_knows_are_no_matter(sink, forgetful, tmp_path):
    """No suspects, one round trip for what is new, and no folder of another driver is touched."""
    root = tmp_path / "late"
    sink.queue.push_many(range(6))
    (root / NOTES).mkdir(parents=True)
    foreign = root / NOTES / "other-flights@1-3-99999999999999-00000000.noted"
    foreign.write_bytes(b"")
    one, two = sink.take(2), sink.take(2)
    sink.write(one)
    sink.write(two)
    sink.drain(2)
    view = next(iter(records._views.values()))
    assert not view.suspects
    assert len(view.known) == 2  # each attempt asks for those of the others only
    assert foreign.exists()


def test_notes_are_removed_when_the_server_can_no_longer_forget_the_batch(sink, tmp_path, monkeypatch):
    root = tmp_path / "late"
    sink.queue.push_many(range(60))
    sink.drain(1)
    notes = list((root / NOTES).iterdir())
    assert len(notes) == 60
    (root / NOTES / f".{notes[0].name}.0123abcd").touch()  # left by a process that died in its write
    monkeypatch.setattr(records, "unix_ms", lambda real=records.unix_ms: real() + records._NOTED_MS + 1000)
    sink.queue.push_many(range(2))
    sink.write(sink.take(1))
    assert len(list((root / NOTES).iterdir())) == 60 + 1 - records._PRUNED_AT_ONCE
    sink.write(sink.take(1))
    assert len(list((root / NOTES).iterdir())) == 62 - 2 * records._PRUNED_AT_ONCE


def test_notes_that_another_process_removed_are_forgotten(sink, tmp_path):
    """A process that runs for months would keep those of all batches in memory."""
    sink.queue.push_many(range(5))
    sink.drain(1)
    (view,) = records._views.values()
    assert len(view.known) == 4
    for note in (tmp_path / "late" / NOTES).iterdir():
        note.unlink()

    sink.queue.push(5)
    sink.drain(1)

    assert view.known == set()


@pytest.mark.parametrize("length", [0, 5, 8])
@pytest.mark.parametrize("committed", [True, False])
def test_a_note_that_a_power_cut_cut_off_doubles_no_row(sink, forgetful, tmp_path, length, committed):
    ids = sink.queue.push_many(range(6))
    forgetful.save()
    lease = sink.take(4)
    if committed:
        sink.write(lease)
    else:
        with pytest.raises(SystemExit):
            sink.write(lease, renew=dies)
    forgetful.go_back()
    [note] = (tmp_path / "late" / NOTES).iterdir()
    content = note.read_bytes()
    note.write_bytes(content[:length])

    sink = PlainSink(forgetful.url, tmp_path / "late")
    if committed:
        first = sink.take(3)
        for _ in range(2):
            with pytest.raises(FolderError, match=f"{NOTES}/{note.stem}.kept is damaged: it named the items"):
                sink.write(first)
        note.with_suffix(".kept").write_bytes(content)
        sink.write(first)
        sink.end(first)
    sink.drain(3)
    assert rows_in(tmp_path / "late") == Counter(ids)
    assert left_of(sink) == 0


def test_rows_and_note_are_on_the_disk_before_the_rows_count_and_their_folder_before_the_decision(
    sink, tmp_path, monkeypatch
):
    """After a power cut there were empty files under the names of whole ones, which end every read of the path."""
    steps, sync, place = [], sink_folders._sync, LocalFolders.place

    def synced(path):
        sync(path)
        steps.append(path.resolve().relative_to(tmp_path))

    def placed(self, name, to):
        steps.append("place")
        assert {one.relative_to(tmp_path) for one in (tmp_path / "late" / name).rglob("*")} <= set(steps)
        return place(self, name, to)

    monkeypatch.setattr(sink_folders, "_sync", synced)
    monkeypatch.setattr(LocalFolders, "place", placed)
    sink.queue.push_many(range(3))
    sink.write(sink.take(3))
    at = steps.index("place")
    (note,) = (tmp_path / "late" / NOTES).iterdir()
    assert {note.relative_to(tmp_path), note.parent.relative_to(tmp_path)} <= set(steps[:at])
    assert list(map(str, steps[at + 1 :])) == ["late", "."]


@pytest.mark.parametrize("name", ["late", "late/rows"])
def test_what_this_user_may_not_read_is_written_all_the_same(tmp_path, monkeypatch, name):
    """A folder above that only lets pass, and files of executors of another user."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "rows").write_text("x")

    def refused(path, flags):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(sink_folders.os, "open", refused)
    folders = LocalFolders(tmp_path)
    folders.sync(name)
    folders.sync_all("late")


def test_a_disk_that_fails_as_it_is_forced_costs_no_item_an_attempt_and_leaves_nothing(sink, tmp_path, monkeypatch):
    sink.queue.push_many(range(3))

    def fails(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sink_folders, "_sync", fails)
    with pytest.raises(FolderError, match="late cannot be written: Input/output error"):
        sink.write(sink.take(3))
    assert [one.name for one in (tmp_path / "late").iterdir()] == ["_jobrunner"]


def test_paths_that_are_written_to_no_more_are_forgotten_and_known_again(sink, forgetful, tmp_path, monkeypatch):
    """A path for each hour: what is known of the notes of each was kept as long as the process lived."""
    monkeypatch.setattr(records, "_views", {})
    monkeypatch.setattr(records, "_VIEWS_KEPT", 3)
    ids = sink.queue.push_many(range(9))
    forgetful.save()
    for hour in range(5):
        sink.roots = [tmp_path / f"hour {hour}"]
        sink.write(sink.take(1))
    assert len(records._views) == 3
    forgetful.go_back()

    sink.roots = [tmp_path / "hour 0"]
    sink.drain(9)
    assert rows_in(tmp_path / "hour 0") == Counter(ids)
