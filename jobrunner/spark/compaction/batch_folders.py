"""Compaction of a path that `write_batch` writes to: merges the folders of many batches into one folder, each row once.

A plain folder has no commit of several changes at once. So a merge has these steps; if the process dies in a step, the
next run repeats the step:

1. the merged folder is written below `_jobrunner/merging`, which readers skip, and forced to the disk;
2. the merge is proposed, the sources are compared with the files that were read, and the merge is decided by a rename
   (see `Merges`): a decided merge is carried out to the end, by this process or a later one;
3. the switch: a folder with a file that no reader accepts is put in place, the sources are renamed to hidden names, the
   merged folder is renamed to a visible name, and the blocking file is removed;
4. hidden folders are deleted.

Invariant: a reader that lists the path before the switch finds its files, or misses a file; during the switch it finds
a file that is no Parquet file; afterwards it finds the merged folder. So it reads each row once, or gets an error and
reads again.

A listing is not atomic: readers (Spark, Arrow) list the names first, then open one folder after the other, and skip a
name that has gone. So the switch waits, after its first step and before its last, until listings that have begun must
have ended: otherwise a reader could list the names of one side and open them when only the other side exists.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from jobrunner.clock import monotonic, sleep, unix_ms
from jobrunner.errors import InvalidOption, JobrunnerError, SparkMissing
from jobrunner.formatting import install_command
from jobrunner.spark.station.merges import (
    DECIDED,
    DONE,
    MERGES,
    PROPOSED,
    SWITCH_LOCK,
    Merge,
    Merges,
    name_at,
    time_of,
)
from jobrunner.spark.station.sink_folders import LocalFolders, as_id, folder_of

if TYPE_CHECKING:
    from jobrunner.spark.compaction.parquet_files import UnreadableFile

MERGING = "_jobrunner/merging"
_MERGED = "batch=merged-"
Watch = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]
"""Takes the number of bytes to merge; gives a callback for the number merged so far, or None to report nothing."""
_SWITCH = "_jobrunner/switch"
IN_THE_WAY = "batch=compaction-is-switching-folders"
_WORDS = b"jobrunner spark compact is switching folders, or died while it did: read again, or run it again\n"
_LISTING_S, _LISTINGS = 0.2, 3
"""The shortest wait for listings of readers, in seconds, and the wait in multiples of a listing by this process."""
_ATTEMPT_S = 86_400
"""Seconds without a write after which a folder of an attempt is taken for that of a dead process."""
_BATCHES_KEPT_MS = 30 * 86_400_000
"""How long merged batches stay known. A batch can come again within the week for which the server holds its members."""
_MADE_ID = re.compile(r"(?:.*~)?(?P<time>[0-9a-f]{16})[0-9a-f]{12}-.+")
"""A batch id that the server generated, after the name of the sink if the sink has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of one compaction; with `dry_run`, of one that was not carried out."""

    target: str
    folders_before: int
    folders_after: int
    files_before: int
    files_after: int
    bytes_merged: int
    recovered: int = 0
    """Merges that a dead process had decided, and that this run carried out."""
    skipped: tuple[str, ...] = ()
    """Folders that were not merged, each with the reason."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A folder of a batch, with the state of its files when it was read."""

    name: str
    files: tuple[tuple[str, int, int, int], ...]
    """For each file: path within the folder, bytes, time of the last change (Unix ns), inode."""

    @property
    def size(self) -> int:
        return sum(size for _, size, _, _ in self.files)

    @property
    def has_small_files(self) -> bool:
        """Whether a partition has several files. Several files in a merged folder do not count: their types differ, or
        Arrow cannot write them."""
        return len(self.files) > self.partitions and not self.name.startswith(_MERGED)

    @property
    def partitions(self) -> int:
        return len({str(Path(path).parent) for path, *_ in self.files})


def compact_folders(
    path: Path, *, older_than_s: float, size: int, dry_run: bool, watch: Watch = lambda _: nullcontext()
) -> Compacted:
    """Merges the folders of batches below `path`. Raises InvalidOption, UsageError."""
    try:
        import_module("pyarrow")
    except ImportError as error:
        raise SparkMissing(f"compaction needs Arrow; {install_command('spark')}") from error
    if not path.is_dir():
        raise InvalidOption(f"{path} is no folder: give the path that a sink passes to write_batch")
    folders = LocalFolders(path)
    if not any(name.startswith("batch=") for name in folders.names()):
        raise InvalidOption(f"{path} has no folder batch=...: give the path that a sink passes to write_batch")
    try:
        return _Compaction(path, folders, older_than_s, size, watch).run(dry_run=dry_run)
    except PermissionError as error:
        raise InvalidOption(f"{path} cannot be compacted: {error}; give this user the right to write there") from error
    except OSError as error:
        raise JobrunnerError(f"{path} was not compacted to the end: {error}; each row is there once, so run it again "
                             "when that is mended") from error  # fmt: skip


class _Compaction:
    """One compaction of one path."""

    def __init__(
        self, path: Path, folders: LocalFolders, older_than_s: float, size: int, watch: Watch
    ) -> None:
        self._path, self._folders, self._merges = path, folders, Merges(folders)
        self._older_than_s, self._size, self._watch = older_than_s, size, watch
        self._done = 0
        self._skipped: list[str] = []

    def run(self, *, dry_run: bool) -> Compacted:
        if dry_run:
            return self._result(self._groups(), 0)
        with self._folders.compacting():
            recovered = self._recover()
            groups = self._groups()
            before = self._result(groups, recovered)
            files = before.files_before - sum(len(one.files) for group in groups for one in group)
            folders_after, merged_bytes = before.folders_before, 0
            with self._watch(before.bytes_merged) as seen:
                for group in groups:
                    merged, written = self._merge(group, seen or _ignore)
                    files += written + sum(len(one.files) for one in group if one not in merged)
                    folders_after -= max(len(merged) - 1, 0)
                    merged_bytes += sum(one.size for one in merged)
        return replace(
            before, folders_after=folders_after, files_after=files, bytes_merged=merged_bytes,
            skipped=tuple(self._skipped),
        )  # fmt: skip

    def _result(self, groups: Sequence[Sequence[_Source]], recovered: int) -> Compacted:
        names = self._batch_folders()
        files = sum(1 for name in names for one in (self._path / name).rglob("*.parquet"))
        merged = [one for group in groups for one in group]
        after = sum(max(one.partitions for one in group) for group in groups)
        return Compacted(
            target=str(self._path), folders_before=len(names), folders_after=len(names) - len(merged) + len(groups),
            files_before=files, files_after=files - sum(len(one.files) for one in merged) + after,
            bytes_merged=sum(one.size for one in merged), recovered=recovered, skipped=tuple(self._skipped),
        )  # fmt: skip

    def _recover(self) -> int:
        """Carries out the merges that a dead process decided, and removes its undecided ones. Returns the number of
        merges carried out."""
        for one in self._merges.all(PROPOSED):
            self._folders.remove(one.path(PROPOSED))
        decided = self._merges.all(DECIDED)
        for merge in decided:
            with self._folders.locked(SWITCH_LOCK):
                _switch(self._path, self._folders, self._merges, merge)
        for name in self._folders.names(MERGING):
            self._folders.remove(f"{MERGING}/{name}")
        self._folders.remove(IN_THE_WAY)
        for one in self._merges.all(DONE):
            if all(map(_is_over, one.merged_ms)):
                self._folders.remove(one.path(DONE))
        for name in self._folders.names():
            is_over = name.startswith("_attempt-") and _newest(self._path / name) < unix_ms() / 1000 - _ATTEMPT_S
            if is_over or name.startswith("_removed-"):
                self._folders.remove(name)
        return len(decided)

    def _batch_folders(self) -> list[str]:
        return sorted(name for name in self._folders.names() if name.startswith("batch=") and name != IN_THE_WAY)

    def _groups(self) -> list[list[_Source]]:
        """Groups of folders to merge, oldest first. A group has about `size` bytes for each partition value."""
        groups: list[list[_Source]] = [[]]
        size = partitions = 0  # of the last group: its bytes, and the most partition values in one of its folders
        self._skipped.clear()
        for name in self._batch_folders():
            source = self._source(name)
            if source is None:
                continue
            size, partitions = size + source.size, max(partitions, source.partitions)
            if groups[-1] and size > partitions * self._size:
                groups.append([])
                size, partitions = source.size, source.partitions
            groups[-1].append(source)
        return [one for one in groups if len(one) > 1 or (one and one[0].has_small_files)]

    def _source(self, name: str) -> _Source | None:
        """Returns a folder to merge; None for a folder that is too young, large enough, gone, or of another format."""
        source = self._read(name)
        if source is None or not source.files:
            return None
        if (other := next((path for path, *_ in source.files if not path.endswith(".parquet")), None)) is not None:
            self._skipped.append(f"{name}: {other} is no Parquet file")
            return None
        changed_ms = max(changed for _, _, changed, _ in source.files) // 1_000_000  # rounded down, as unix_ms is
        if unix_ms() - changed_ms < self._older_than_s * 1000:
            return None
        is_large = source.size >= self._size * source.partitions / 2
        return None if is_large and not source.has_small_files else source

    def _merge(self, group: Sequence[_Source], seen: Callable[[int], None]) -> tuple[Sequence[_Source], int]:
        """Merges a group. Returns the merged folders and the number of files in the result; no folders when a station
        wrote to the group meanwhile. A folder with an unreadable file is left as it is."""
        from jobrunner.spark.compaction.parquet_files import UnreadableFile, unreadable_files

        # Checked before the merge, as a power cut damages many files: a merge would restart for each damaged file.
        damaged = unreadable_files(self._path / one.name / path for one in group for path, *_ in one.files)
        while True:
            group = self._without(group, damaged)
            if damaged and len(group) < 2:
                return (), 0
            name = name_at(unix_ms())
            self._folders.remove(f"{MERGING}/{name}")
            try:
                written = self._write(group, name, seen)
                break
            except FileNotFoundError:
                return self._give_up(group, name), 0
            except UnreadableFile as error:
                self._folders.remove(f"{MERGING}/{name}")
                damaged = [error]
        batches = self._batches(group)
        merge = Merge(name, tuple(one.name for one in group), tuple(batches), tuple(batches.values()))
        self._sync(name)
        self._merges.propose(merge)
        self._folders.sync(merge.path(PROPOSED))  # unless an attempt at one of its batches removed it
        with self._folders.locked(SWITCH_LOCK):
            is_same = all(self._read(one.name) == one for one in group)
            is_decided = is_same and self._merges.decide(merge)
            if is_decided:
                _switch(self._path, self._folders, self._merges, merge)
        if is_decided:
            return group, written
        self._folders.remove(merge.path(PROPOSED))
        return self._give_up(group, name), 0

    def _sync(self, name: str) -> None:
        """Forces the merged files to the disk, as the sources, which are there for long, are deleted: a power cut would
        leave neither."""
        self._folders.sync_all(f"{MERGING}/{name}")
        self._folders.sync(MERGING)

    def _without(self, group: Sequence[_Source], damaged: "Sequence[UnreadableFile]") -> Sequence[_Source]:
        """The group without the folders that have unreadable files. `_skipped` gets each folder with its first such
        file."""
        first = {one.path.relative_to(self._path).parts[0]: one for one in reversed(damaged)}
        for left, error in sorted(first.items()):
            self._skipped.append(f"{left}: {error.path.relative_to(self._path / left)} {error}")
        return [one for one in group if one.name not in first]

    def _give_up(self, group: Sequence[_Source], name: str) -> tuple[_Source, ...]:
        self._folders.remove(f"{MERGING}/{name}")
        self._skipped.append(f"{group[0].name} and {len(group) - 1} more: a station wrote to them meanwhile")
        return ()

    def _write(self, group: Sequence[_Source], name: str, seen: Callable[[int], None]) -> int:
        from jobrunner.spark.compaction.parquet_files import merge_files

        def tell(size: int) -> None:
            self._done += size
            seen(self._done)

        by_partition: dict[Path, list[Path]] = {}
        for source in group:
            for path, *_ in source.files:
                by_partition.setdefault(Path(path).parent, []).append(self._path / source.name / path)
        target = self._path / MERGING / name
        return sum(merge_files(files, target / at, name, tell) for at, files in by_partition.items())

    def _batches(self, group: Sequence[_Source]) -> dict[str, int]:
        """Batch id → time of its first merge (Unix ms), for the batches in these folders, also those of earlier merges.
        Batches too old to come again are left out."""
        earlier = {folder_of(one.name): one for one in self._merges.all(DONE)}
        found: dict[str, int] = {}
        for source in group:
            before = earlier.get(source.name)
            if before is not None:
                found |= zip(before.batches, before.merged_ms, strict=True)
            else:
                found[as_id(source.name.removeprefix("batch="))] = unix_ms()
        of_batches = {one: ms for one, ms in found.items() if time_of(one) is None}  # the others are names of merges
        return {one: ms for one, ms in of_batches.items() if not _is_over(min(ms, _made_ms(one, ms)))}

    def _read(self, name: str) -> _Source | None:
        """Reads the current state of a folder; None when the folder is gone."""
        files, folder = [], self._path / name
        with suppress(FileNotFoundError):
            for at in _data_files(folder):
                stat = at.stat()
                files.append((str(at.relative_to(folder)), stat.st_size, stat.st_mtime_ns, stat.st_ino))
            return _Source(name, tuple(files))
        return None


def _switch(path: Path, folders: LocalFolders, merges: Merges, merge: Merge) -> None:
    """Carries out a decided merge, from any step on that a dead process reached."""
    hidden = f"_removed-{merge.name}@{secrets.token_hex(4)}"
    folders.sync(MERGES)  # the decision comes before what it decides, also on the disk
    folders.write(f"{_SWITCH}/{merge.name}/{IN_THE_WAY}.parquet", _WORDS)
    (path / hidden).mkdir(exist_ok=True)
    if not folders.exists(IN_THE_WAY):
        folders.move(f"{_SWITCH}/{merge.name}", IN_THE_WAY)
    _wait_for_listings(folders)
    for source in merge.sources:
        folders.move(source, f"{hidden}/{source}")
    folders.move(f"{MERGING}/{merge.name}", folder_of(merge.name))
    _wait_for_listings(folders)
    folders.remove(IN_THE_WAY)
    folders.sync("")
    folders.move(merge.path(DECIDED), merge.path(DONE))
    for name in (hidden, f"{_SWITCH}/{merge.name}"):
        folders.remove(name)
    for one in merges.all(DONE):
        if folder_of(one.name) in merge.sources:
            folders.remove(one.path(DONE))


def _wait_for_listings(folders: LocalFolders) -> None:
    """Waits until listings that readers have begun must have ended."""
    began = monotonic()
    for name in folders.names():
        folders.exists(name)
    sleep(max(_LISTING_S, _LISTINGS * (monotonic() - began)))


def _data_files(folder: Path) -> Iterator[Path]:
    """Data files as readers see them: without names that begin with `_` or `.`. Raises FileNotFoundError."""
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if "=" in name or name[0] not in "_.")
        yield from (Path(parent) / name for name in sorted(names) if name[0] not in "_.")


def _is_over(time_ms: int) -> bool:
    return time_ms < unix_ms() - _BATCHES_KEPT_MS


def _made_ms(batch_id: str, default: int) -> int:
    """The Unix ms at which a batch was created, if its id contains the time; else `default`."""
    found = _MADE_ID.fullmatch(batch_id)
    return int(found["time"], 16) >> 16 if found else default


def _ignore(_: int) -> None:
    """The progress callback when no progress is displayed."""


def _raise(error: OSError) -> None:
    raise error


def _newest(folder: Path) -> float:
    with suppress(FileNotFoundError):
        return max(one.stat().st_mtime for one in (folder, *folder.rglob("*")))
    return unix_ms() / 1000
