"""Compaction of batch folders: each row once at every step, whoever dies, reads or writes meanwhile. Without Spark.

The loop of real kills is slow: `-m slow -k killed`.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from socket import gethostname
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from jobrunner.clock import unix_ms
from jobrunner.errors import FolderError, InvalidOption, MicroBatchChanged, UsageError
from jobrunner.spark.compaction import batch_folders, compact
from jobrunner.spark.compaction.batch_folders import IN_THE_WAY
from jobrunner.spark.lake.write import micro_batch
from jobrunner.spark.station import sink_folders
from jobrunner.spark.station.exactly_once import write_folder
from jobrunner.spark.station.merges import MERGES, PROPOSED, SWITCH_LOCK, name_at
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import LocalFolders

SIZE = 1 << 20
SPARK = {b"org.apache.spark.sql.parquet.row.metadata": b'{"type":"struct"}'}


def write(root, batch_id, ids, *, epoch=1, supersedes=(), by=None, of=None):
    """An attempt at a batch, as write_batch does it."""
    batch = of or SinkBatch(id=batch_id, supersedes=supersedes, epoch=epoch, size=len(ids))

    def save(own):
        parts = {f"/{by}={at}": ids[at::2] for at in range(2)} if by else {"": ids}
        for below, some in parts.items():
            (root / f"{own}{below}").mkdir(parents=True)
            table = pa.table({"_id": pa.array(some, pa.string())})
            at = root / f"{own}{below}" / f"part-{epoch}.parquet"
            with pq.ParquetWriter(at, table.schema, store_schema=False) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata(SPARK)
        (root / own / "_SUCCESS").touch()

    write_folder(LocalFolders(root), batch, str(root), save)


def files_in(root):
    """The data files that a reader lists."""
    return sorted(ds.dataset(root, format="parquet", partitioning="hive").files)


def read(files):
    """How often each id is there. Raises OSError or ArrowInvalid."""
    return Counter(one for file in files for one in pq.read_table(file, partitioning=None).column("_id").to_pylist())


def listed(root):
    """As `files_in`, also when there is a file that is no Parquet file: the reader finds out when it reads."""
    return sorted(
        str(one) for one in root.rglob("*.parquet")
        if not any(part[0] in "_." for part in one.relative_to(root).parts)
    )  # fmt: skip


def run(root, **options):
    return compact(str(root), **{"older_than_s": 0, "size": SIZE} | options)


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The wait of a switch for the listings of readers, which takes no time here."""
    pause = Mock()
    monkeypatch.setattr(batch_folders, "sleep", pause)
    return pause


@pytest.fixture
def batches(tmp_path):
    """(root, the ids in it): six batches of seven rows."""
    root = tmp_path / "late"
    for n in range(6):
        write(root, f"b{n}", [f"{n}.{m}" for m in range(7)])
    return root, Counter(f"{n}.{m}" for n in range(6) for m in range(7))


@pytest.fixture
def at_each_step(monkeypatch):
    """at_each_step(action): calls it before and after every change that the compaction makes; with what is double."""
    state = {"action": None}

    def around(name):
        real = getattr(LocalFolders, name)

        def step(self, *words):
            if state["action"] is not None:
                state["action"]()
            found = real(self, *words)
            if state["action"] is not None:
                state["action"]()
            return found

        monkeypatch.setattr(LocalFolders, name, step)

    for name in ("move", "write", "remove"):
        around(name)

    def set_action(action):
        def alone():  # what an action does itself is no step
            state["action"] = None
            try:
                action()
            finally:
                state["action"] = alone

        state["action"] = action and alone

    return set_action


def test_folders_become_one_with_the_same_rows_and_schema(batches):
    root, ids = batches
    before = pq.read_metadata(files_in(root)[0])
    plan = run(root, dry_run=True)
    assert len(files_in(root)) == 6
    done = run(root)
    assert done == plan
    assert (done.folders_before, done.folders_after, done.files_before, done.files_after) == (6, 1, 6, 1)
    (file,) = files_in(root)
    after = pq.read_metadata(file)
    assert read([file]) == ids
    assert after.schema.equals(before.schema)
    assert {key: after.metadata.get(key) for key in SPARK} == SPARK
    assert {one.name.partition("=")[0] for one in root.iterdir()} == {"batch", "_jobrunner"}
    again = run(root)
    assert (again.folders_before, again.folders_after, again.bytes_merged) == (1, 1, 0)
    assert files_in(root) == [file]


def test_partitions_stay_and_each_has_one_file(tmp_path):
    root = tmp_path / "late"
    for n in range(4):
        write(root, f"b{n}", [f"{n}.{m}" for m in range(4)], by="day")
    before = Counter(map(str, ds.dataset(root, partitioning="hive").to_table(columns=["_id", "day"]).to_pylist()))
    run(root)
    found = ds.dataset(root, partitioning="hive")
    assert len(found.files) == 2
    assert Counter(map(str, found.to_table(columns=["_id", "day"]).to_pylist())) == before


def test_young_and_large_folders_stay(batches):
    root, _ = batches
    assert run(root, older_than_s=3600).folders_after == 6
    assert run(root, size=1).folders_after == 6
    two = sum(one.stat().st_size for one in root.glob("batch=b[01]/*.parquet"))
    assert run(root, size=two).folders_after == 6  # each has half of that
    assert run(root, size=2 * two + 1).folders_after == 2


def test_a_folder_of_this_very_millisecond_is_old_enough_for_an_age_of_0(batches, monkeypatch):
    root, ids = batches
    newest = max(at.stat().st_mtime_ns for at in root.rglob("*.parquet"))
    monkeypatch.setattr(batch_folders, "unix_ms", lambda: newest // 1_000_000)
    assert run(root).folders_after == 1
    assert read(files_in(root)) == ids


def test_what_is_merged_is_merged_again_with_what_came_later(batches):
    root, ids = batches
    run(root)
    write(root, "b6", ["6.0"])
    run(root)
    write(root, "b0", ["0.0"], epoch=2)  # of the first merge
    write(root, "b6.1", ["6.0"], supersedes=("b6",))
    assert read(files_in(root)) == ids + Counter(["6.0"])
    assert len(files_in(root)) == 1


@pytest.mark.parametrize(("again", "of"), [("b1", ()), ("b1.2", ("b1",)), ("b1.2.1", ("b1.2", "b1"))])
def test_a_batch_that_comes_again_after_it_was_merged_is_not_written_twice(batches, again, of):
    root, ids = batches
    run(root)
    write(root, again, ["1.5"], epoch=2, supersedes=of)
    assert read(files_in(root)) == ids


@pytest.mark.parametrize(
    ("query", "name"),
    [("q", "q"), ("orders/to-lake", "orders%2Fto-lake"), ("a:b/c", "a%3Ab%2Fc"), ("a%2Fb%20", "a%252Fb%20")],
)
def test_a_micro_batch_that_comes_again_after_it_was_merged_is_not_written_twice(batches, query, name):
    """Its number of attempts is not known: each is the first. No sign of its name makes folders below each other."""
    root, ids = batches
    write(root, "q-1", ["q.1"], of=micro_batch(query, 1))
    (root / f"_attempt-{name}-1@1.dead").mkdir()  # of a driver that was killed
    write(root, "q-1", ["q.1"], of=micro_batch(query, 1))
    write(root, "q-2", ["q.2"], of=micro_batch(query, 2))
    assert not list(root.glob("_attempt-*"))
    assert (root / f"batch={name}-1").is_dir()
    run(root)
    write(root, "q-2", ["q.2"], of=micro_batch(query, 2))
    assert read(files_in(root)) == ids + Counter(["q.1", "q.2"])


@pytest.mark.parametrize(("by_connect", "words"), [(True, "by the Spark Connect server"), (False, "a newer attempt")])
def test_a_folder_that_is_not_there_is_explained_by_what_may_have_happened(tmp_path, by_connect, words):
    """By the same words for each batch: errors that differ are none that all items have, and kill them."""
    with pytest.raises(FolderError, match=f"^{tmp_path} .*{words}") as told:
        LocalFolders(tmp_path, by_connect=by_connect).rename("_attempt-b@1.x", "batch=b")
    assert "@1" not in str(told.value)


def test_a_process_that_holds_the_lock_of_a_switch_for_long_is_named(batches, monkeypatch):
    """Such as one that was suspended: batches that came again, and the command, waited for it without a word."""
    root, ids = batches
    monkeypatch.setattr(sink_folders, "_LOCKED_S", 0.1)
    words = f"^{root}/{SWITCH_LOCK} is held by process {os.getpid()} on {gethostname()}, for 0.1 s by now: let it go on"
    with LocalFolders(root).locked(SWITCH_LOCK):
        with pytest.raises(FolderError, match=words):
            write(root, "b1", ["again"], epoch=2)
        with pytest.raises(FolderError, match=words):
            run(root)
    assert not list(root.glob("_attempt-*"))
    run(root)
    assert read(files_in(root)) == ids


def test_what_was_merged_is_remembered_for_30_days_whatever_its_id(tmp_path, monkeypatch):
    root, begin, day = tmp_path / "late", unix_ms() + 60_000, 86_400_000

    def write_and_run(days, *names):
        monkeypatch.setattr(batch_folders, "unix_ms", lambda: begin + days * day)
        for name in names:
            write(root, name, [name], of=micro_batch(name[0], int(name[2:])) if name[1] == "-" else None)
        run(root)
        records = sorted((root / "_jobrunner/merges").glob("*.done"))
        return [sorted(json.loads(one.read_text())["batches"]) for one in records]

    made = f"late~{begin << 16:016x}{'0' * 12}-flights"
    old = f"late~{begin - 31 * day << 16:016x}{'0' * 12}-flights"
    assert write_and_run(0, "q-1", made, old) == [[made, "q-1"]]
    (record,) = (root / "_jobrunner/merges").glob("*.done")
    record.write_text(json.dumps({key: of for key, of in json.loads(record.read_text()).items() if key != "merged_ms"}))
    assert write_and_run(20, "q-2", "q-3") == [[made, "q-1", "q-2", "q-3"]]  # the record before was of an older version
    write(root, "q-3", ["q-3"], of=micro_batch("q", 3))
    with pytest.raises(MicroBatchChanged, match=r"'q-1' was written to .* before, and a later one, too"):
        write(root, "q-1", ["q-1"], of=micro_batch("q", 1))
    assert read(files_in(root)) == dict.fromkeys(["q-1", "q-2", "q-3", made, old], 1)
    assert write_and_run(31, "q-4") == [["q-2", "q-3", "q-4"]]
    assert write_and_run(60) == [["q-2", "q-3", "q-4"]]
    assert write_and_run(62) == []
    assert write_and_run(63, "q-5") == [["q-5"]]
    assert len(files_in(root)) == 1


@pytest.mark.parametrize(("query", "number"), [("", 1), (None, 1), ("q", None), ("q", -1), ("q", True), (1, "q")])
def test_a_micro_batch_without_an_identity_is_refused(query, number):
    """All that have the same one but the first would pass for repetitions, and be lost."""
    with pytest.raises(InvalidOption, match="give a text that is of one checkpoint, and the number that foreachBatch"):
        micro_batch(query, number)


class Nth:
    """Does something at the n-th step."""

    def __init__(self, n, action):
        self.left = n
        self.action = action

    def __call__(self):
        self.left -= 1
        if not self.left:
            self.action()


def at_every_step(scenario, tmp_path, least=20):
    """Calls scenario(root of three batches, their ids, n), which returns its `Nth`, until that has fewer steps."""
    for n in range(1, 1000):
        root = tmp_path / str(n)
        for one in range(3):
            write(root, f"b{one}", [f"{one}.0", f"{one}.1"])
        if scenario(root, read(files_in(root)), n).left > 0:
            assert n > least
            return


class Killed(BaseException):
    """The process ends here."""


def die():
    raise Killed


def test_a_process_that_dies_at_any_step_leaves_each_row_once_for_the_next_run(tmp_path, at_each_step):
    """And until that run a reader finds each row once, or a file that it cannot read."""

    def scenario(root, ids, n):
        files, step = listed(root), Nth(n, die)
        at_each_step(step)
        try:
            run(root)
        except Killed:
            at_each_step(None)
            readers_view(root, files, ids)
            run(root)
        at_each_step(None)
        assert read(files_in(root)) == ids, n
        assert {one.name.partition("=")[0] for one in root.iterdir()} == {"batch", "_jobrunner"}
        assert len(files_in(root)) == 1
        return step

    at_every_step(scenario, tmp_path)


@pytest.fixture
def power_cut(monkeypatch):
    """power_cut(root, before): files later than `before` that no sync forced to the disk become empty."""
    synced, fsync = set(), os.fsync

    def recorded(opened):
        synced.add(os.fstat(opened).st_ino)
        fsync(opened)

    monkeypatch.setattr(os, "fsync", recorded)

    def cut(root, before):
        for one in root.rglob("*"):
            if one.is_file() and one.stat().st_ino not in synced | before:
                one.write_bytes(b"")

    return cut


def inodes(root):
    return {one.stat().st_ino for one in root.rglob("*")}


def test_a_power_cut_at_any_step_leaves_each_row_once_for_the_next_run(tmp_path, at_each_step, power_cut):
    def scenario(root, ids, n):
        before, step = inodes(root), Nth(n, die)
        at_each_step(step)
        with suppress(Killed):
            run(root)
        at_each_step(None)
        power_cut(root, before)
        write(root, "b0", ["0.0", "0.1"], epoch=2)
        run(root)
        assert read(files_in(root)) == ids, n
        return step

    at_every_step(scenario, tmp_path)


def test_a_damaged_record_of_a_merge_is_named_and_one_of_a_proposal_counts_as_none(batches, cli):
    root, ids = batches
    proposal = root / MERGES / f"{name_at(unix_ms())}.{PROPOSED}"
    proposal.parent.mkdir(parents=True)
    proposal.write_bytes(b"")
    write(root, "b0", [f"0.{m}" for m in range(7)], epoch=2)
    assert not proposal.exists()
    run(root)

    [done] = (root / MERGES).iterdir()
    done.write_bytes(done.read_bytes()[:9])
    told = f"{done} is damaged: it named the batches whose rows a compaction merged"
    with pytest.raises(FolderError, match=re.escape(told)):
        write(root, "b0", [f"0.{m}" for m in range(7)], epoch=3)
    ended = cli("spark", "compact", str(root), "--older-than", "0")
    assert told in ended.line
    assert read(files_in(root)) == ids


def readers_view(root, before, ids):
    """A reader that lists now, and another that listed before: each reads each row once, or gets an error."""
    errors = 0
    for files in (listed(root), before):
        try:
            assert read(files) == ids
        except (OSError, pa.ArrowInvalid):
            errors += 1
    return errors


def test_a_reader_finds_each_row_once_or_an_error_at_every_step(batches, at_each_step):
    root, ids = batches
    before, errors = listed(root), []
    at_each_step(lambda: errors.append(readers_view(root, before, ids)))
    run(root)
    assert errors[0] == errors[1] == 0
    assert len(errors) > 20
    assert errors[-1] == 1  # the files that were listed before are gone


def test_a_listing_that_is_under_way_during_a_switch_misses_no_row(batches, at_each_step, pauses):
    """Readers take the names of folders first, and pass over one that is gone when they come to it."""
    root, ids = batches
    begun, errors = [], []

    def read_what_is_left(names):
        files = [one for one in listed(root) if Path(one).relative_to(root).parts[0] in names]
        try:
            assert read(files) == ids
        except (OSError, pa.ArrowInvalid) as error:
            errors.append(error)

    def list_and_end_listings():
        begun.append([one.name for one in root.iterdir()])
        for names in begun:
            read_what_is_left(names)

    def pause(_):
        list_and_end_listings()
        begun.clear()

    pauses.side_effect = pause
    at_each_step(list_and_end_listings)
    run(root)
    list_and_end_listings()
    assert pauses.call_count == 2
    assert errors


def attempt(root, what):
    """A write of a station while folders are merged."""
    if what == "again":
        write(root, "b1", ["1.0", "1.1"], epoch=2)
    elif what == "halves":
        write(root, "b1.1", ["1.0"], supersedes=("b1",))
        write(root, "b1.2", ["1.1"], supersedes=("b1",))
    else:
        write(root, "b9", ["9.0"])


@pytest.mark.parametrize("what", ["again", "halves", "new"])
def test_a_station_that_writes_at_any_step(tmp_path, at_each_step, monkeypatch, what):
    """On a file system without locks: there is no order of the steps that loses or doubles a row in the end."""
    monkeypatch.setattr(LocalFolders, "locked", lambda self, name: nullcontext())

    def scenario(root, ids, n):
        step = Nth(n, lambda: attempt(root, what))
        at_each_step(step)
        run(root)
        at_each_step(None)
        ids.update(["9.0"] if what == "new" and step.left <= 0 else [])
        assert read(files_in(root)) == ids, n
        run(root)
        assert read(files_in(root)) == ids, n
        return step

    at_every_step(scenario, tmp_path)


@pytest.mark.parametrize("what", ["again", "halves"])
def test_a_compaction_that_comes_between_the_steps_of_an_attempt(tmp_path, at_each_step, monkeypatch, what):
    """The other way round, without locks as well."""
    monkeypatch.setattr(LocalFolders, "locked", lambda self, name: nullcontext())

    def scenario(root, ids, n):
        step = Nth(n, lambda: run(root))
        at_each_step(step)
        attempt(root, what)
        at_each_step(None)
        run(root)
        assert read(files_in(root)) == ids, n
        return step

    at_every_step(scenario, tmp_path, least=4)


def test_one_process_at_a_time(batches):
    root, _ = batches
    with LocalFolders(root).compacting(), pytest.raises(UsageError, match="another process compacts"):
        run(root)


def test_files_of_other_types_are_not_mixed(tmp_path):
    root = tmp_path / "late"
    for n, kind in enumerate([pa.string(), pa.string(), pa.int64()]):
        (root / f"batch=b{n}").mkdir(parents=True)
        pq.write_table(pa.table({"_id": pa.array([n], pa.int64()).cast(kind)}), root / f"batch=b{n}/part.parquet")
    assert run(root).files_after == 2
    assert sorted(map(str, read(files_in(root)))) == ["0", "1", "2"]
    assert run(root).bytes_merged == 0


@pytest.mark.parametrize("has_nan", [True, False])
def test_no_bound_in_a_merged_file_leaves_nan_out(tmp_path, has_nan):
    """Spark passes over NaN for x > 5 by a bound below 5. Its own files have NaN as bound, others none."""
    root, struct = tmp_path / "late", [{"x": 1.0}, {"x": 2.0}]
    for n, x in enumerate([[1.0, 2.0], [3.0, float("nan") if has_nan else 4.0], [None, None]]):
        (root / f"batch=b{n}").mkdir(parents=True)
        rows = pa.table({"_id": [f"{n}.0", f"{n}.1"], "x": pa.array(x, pa.float64()), "y": [0.5, 1.5], "s": struct})
        kept = ["_id", "y", "s.x"] if has_nan and n == 1 else True
        pq.write_table(rows, root / f"batch=b{n}" / "part.parquet", write_statistics=kept)
    assert run(root).files_after == 1
    (file,) = files_in(root)
    footer = pq.ParquetFile(file).metadata
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(footer.num_columns)]
    least = {one.path_in_schema: one.statistics and one.statistics.min for one in columns if one.statistics is None
             or one.statistics.has_min_max}  # fmt: skip
    assert least == {"_id": "2.0", "x": None if has_nan else 3.0, "y": 0.5, "s.x": 1.0}


def test_what_cannot_be_compacted_is_named(tmp_path):
    with pytest.raises(InvalidOption, match="no folder"):
        run(tmp_path / "nothing")
    with pytest.raises(InvalidOption, match=r"no folder batch="):
        run(tmp_path)
    with pytest.raises(InvalidOption, match="not on this machine"):
        run("s3a://flights/late")
    (tmp_path / "batch=b0").mkdir()
    (tmp_path / "batch=b0" / "part.orc").touch()
    assert run(tmp_path).skipped == ("batch=b0: part.orc is no Parquet file",)


@pytest.mark.parametrize("damage", ["empty", "footer", "page"])
def test_a_folder_with_a_damaged_file_stays_and_the_others_become_one(batches, damage):
    root, ids = batches
    (file,) = (root / "batch=b2").glob("*.parquet")
    whole = file.read_bytes()
    broken = {"empty": b"", "footer": whole[:-20] + b"\0" * 20, "page": whole[:4] + b"\xff" * 40 + whole[44:]}[damage]
    file.write_bytes(broken)

    done = run(root)

    assert [line.split(" cannot be read (")[0] for line in done.skipped] == [f"batch=b2: {file.name}"]
    assert (done.folders_after, done.files_after) == (2, 2)
    assert file.read_bytes() == broken
    ids.subtract(f"2.{m}" for m in range(7))
    assert read(one for one in listed(root) if "batch=b2" not in one) == +ids
    assert run(root).folders_after == 2, "the next run does as well"


def test_many_damaged_files_are_found_at_once(tmp_path, monkeypatch):
    """A merge that begins anew behind each of them reads the others again for each of them."""
    opened = []
    real = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda at, **options: (opened.append(at), real(at, **options))[1])
    for n in range(20):
        (tmp_path / f"batch=b{n:02}").mkdir()
        pq.write_table(pa.table({"n": [n]}), tmp_path / f"batch=b{n:02}" / "part.parquet")
        if n % 2:
            (tmp_path / f"batch=b{n:02}" / "part.parquet").write_bytes(b"PAR1")
    done = run(tmp_path)
    assert [line.partition(":")[0] for line in done.skipped] == [f"batch=b{n:02}" for n in range(1, 20, 2)]
    assert done.folders_after == 11
    times = Counter(opened)
    assert {times[tmp_path / f"batch=b{n:02}" / "part.parquet"] for n in range(1, 20, 2)} == {1}
    assert max(times.values()) <= 4, "its footer, twice; that of the first one for its types; its rows"


@pytest.mark.parametrize("kind", ["Undefined", "Variant"])
def test_variants_that_an_old_pyarrow_cannot_read_are_no_damage(batches, monkeypatch, cli, kind):
    """The words are those of pyarrow 20 and 21."""
    root, ids = batches
    refused = OSError(f"Logical type {kind} cannot be applied to group node")
    with monkeypatch.context() as patched:
        patched.setattr("jobrunner.spark.compaction.parquet_files.pq.ParquetFile", Mock(side_effect=refused))
        done = run(root)
        said = cli("spark", "compact", str(root), "--older-than", "0s")
    assert done.folders_after == done.folders_before
    assert done.bytes_merged == 0
    assert said.code == 0
    told = f"has a column of variants, which pyarrow {pa.__version__} is too old to read; pip install 'pyarrow>=22'"
    assert told in said.err
    assert "cannot be read" not in said.err
    assert "\n0 B merged" in said.err
    assert read(files_in(root)) == ids


@pytest.mark.parametrize("refused", [PermissionError(13, "Permission denied", "x"), OSError(28, "No space left", "x")])
def test_a_path_without_rights_and_a_full_disk_are_errors_that_name_the_path(batches, monkeypatch, cli, refused):
    root, ids = batches
    with monkeypatch.context() as patched:
        patched.setattr("jobrunner.spark.compaction.parquet_files.pq.ParquetWriter", Mock(side_effect=refused))
        said = cli("spark", "compact", str(root), "--older-than", "0s")
    assert said.code == (2 if refused.errno == 13 else 1)
    assert said.err.startswith(f"Error: {root} ")
    assert refused.strerror in said.err
    assert "not foreseen" not in said.err
    assert read(files_in(root)) == ids
    assert run(root).folders_after == 1


def test_the_command(cli, batches):
    root, ids = batches
    said = cli("spark", "compact", str(root), "--older-than", "0s", "--dry-run")
    assert (said.code, [line.split() for line in said.out.splitlines()[1:]]) == (
        0, [["folders", "6", "1"], ["files", "6", "1"]]
    )  # fmt: skip
    assert len(files_in(root)) == 6
    said = cli("spark", "compact", str(root), "--older-than", "0s", "--json")
    assert json.loads(said.out)["files_after"] == 1
    assert read(files_in(root)) == ids
    said = cli("spark", "compact", str(root / "other"))
    assert said.code == 2
    assert "give the path that a sink passes to write_batch" in said.err


PROGRAM = """
import sys, pathlib
import pyarrow.parquet
from jobrunner.spark.compaction import batch_folders, compact
import jobrunner.spark.compaction.parquet_files
batch_folders.sleep = lambda _: None  # most kills would come in it
print("ready", flush=True)
sys.stdin.readline()
compact(sys.argv[1], older_than_s=0, size=1 << 20)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_fifty_times(tmp_path):
    """SIGKILL at a random moment; between the kills a station writes new batches, and batches that were there."""
    root, ids, rng, kills = tmp_path / "late", Counter(), random.Random(18), 0
    for n in range(60):
        for m in range(3):
            write(root, f"b{n}.{m}", some := [f"{n}.{m}.{k}" for k in range(3)])
            ids.update(some)
        command = [sys.executable, "-c", PROGRAM, str(root)]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert one.stdout.readline() == b"ready\n"
        one.stdin.write(b"\n")
        one.stdin.flush()
        try:
            one.wait(rng.random() * 0.03)
        except subprocess.TimeoutExpired:
            one.send_signal(signal.SIGKILL)
            kills += one.wait() == -signal.SIGKILL
        old = rng.randrange(n + 1)
        write(root, f"b{old}.0", [f"{old}.0.{k}" for k in range(3)], epoch=2 + n)
        try:
            assert read(listed(root)) == ids
        except pa.ArrowInvalid:
            assert (root / IN_THE_WAY).exists()
    run(root)
    assert read(files_in(root)) == ids
    assert {one.name.partition("=")[0] for one in root.iterdir()} == {"batch", "_jobrunner"}
    assert kills >= 30
