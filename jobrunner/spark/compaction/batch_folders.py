"""Compaction of a path that `write_batch` writes to: the folders of many batches become one, each row once.

A plain folder has no commit of several changes at once. So a merge has these steps, each done again by the next run if
the process dies in it:

1. the merged folder is written below `_jobrunner/merging`, where readers do not look;
2. it is proposed, the sources are compared with what was read, and the merge is decided by a rename (see `Merges`):
   from here on it is carried out to the end, whoever does it;
3. the switch: a folder with a file that no reader accepts is put in place, the sources are renamed out of sight, the
   merged folder is renamed into sight, and that file is taken away;
4. what is out of sight is deleted.

Invariant: a reader that lists the path before the switch finds its files, or one of them missing; during the switch it
finds a file that is no Parquet file; afterwards it finds the merged folder. So it reads each row once, or gets an error
and reads again.

A listing is no single step: readers (Spark, Arrow) take the names first, look at one after the other, and pass over a
name that is gone by then. So the switch waits for listings that have begun to end, behind its first step and in front
of its last: else a listing with the names of the one side would look at them when only the other side is there.
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
from jobrunner.spark.station.merges import DECIDED, DONE, PROPOSED, SWITCH_LOCK, Merge, Merges, name_at, time_of
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
"""The shortest wait for listings of readers, and how many times as long as a listing by this process."""
_ATTEMPT_S = 86_400
"""Folders of attempts that nothing was written to for so long are those of dead processes."""
_BATCHES_KEPT_MS = 30 * 86_400_000
"""A batch comes again within the week that the server holds its members."""
_MADE_ID = re.compile(r"(?:.*~)?(?P<time>[0-9a-f]{16})[0-9a-f]{12}-.+")
"""An id of a batch that the server made, behind the name of the sink where that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of one compaction. Without `dry_run` it was done."""

    target: str
    folders_before: int
    folders_after: int
    files_before: int
    files_after: int
    bytes_merged: int
    recovered: int = 0
    """Merges that a process which died had decided, and that this one carried out."""
    skipped: tuple[str, ...] = ()
    """Folders that were left as they are, each with the reason."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A folder of a batch, as it was read."""

    name: str
    files: tuple[tuple[str, int, int, int], ...]
    """Of each file: path within the folder, size, time of the last change, inode."""

    @property
    def size(self) -> int:
        return sum(size for _, size, _, _ in self.files)

    @property
    def has_small_files(self) -> bool:
        """Several of one partition. Those of a merged folder have types that differ, or that Arrow cannot write."""
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
    """One run over one path."""

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
        """Carries out what a process decided that died, and removes what it left undecided."""
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
        """Folders to merge with each other, oldest first, each group of about `size` bytes for each partition value."""
        groups: list[list[_Source]] = [[]]
        size = partitions = 0  # of the last group: its bytes, and the most values that one of its folders has
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
        """None for a folder that is too young, large enough, gone, or of another format."""
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
        """Returns the folders that became one, and how many files that has: none when a station wrote to them
        meanwhile. A folder with a file that cannot be read stays as it is."""
        from jobrunner.spark.compaction.parquet_files import UnreadableFile, unreadable_files

        # All at once, as a power cut damages many: a merge would meet one, begin anew, and meet the next.
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
        self._merges.propose(merge)
        with self._folders.locked(SWITCH_LOCK):
            is_same = all(self._read(one.name) == one for one in group)
            is_decided = is_same and self._merges.decide(merge)
            if is_decided:
                _switch(self._path, self._folders, self._merges, merge)
        if is_decided:
            return group, written
        self._folders.remove(merge.path(PROPOSED))
        return self._give_up(group, name), 0

    def _without(self, group: Sequence[_Source], damaged: "Sequence[UnreadableFile]") -> Sequence[_Source]:
        """The group without the folders of files that cannot be read, each of which is told with its first one."""
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
        """Ids of the batches in these folders, with those that an earlier merge put there, and when each was merged
        first. Old ones do not come again."""
        earlier = {folder_of(one.name): one for one in self._merges.all(DONE)}
        found: dict[str, int] = {}
        for source in group:
            before = earlier.get(source.name)
            if before is not None:
                found |= zip(before.batches, before.merged_ms, strict=True)
            else:
                found[as_id(source.name.removeprefix("batch="))] = unix_ms()
        of_batches = {one: ms for one, ms in found.items() if time_of(one) is None}  # others are names of merges
        return {one: ms for one, ms in of_batches.items() if not _is_over(min(ms, _made_ms(one, ms)))}

    def _read(self, name: str) -> _Source | None:
        """The folder as it is now; None when it is gone."""
        files, folder = [], self._path / name
        with suppress(FileNotFoundError):
            for at in _data_files(folder):
                said = at.stat()
                files.append((str(at.relative_to(folder)), said.st_size, said.st_mtime_ns, said.st_ino))
            return _Source(name, tuple(files))
        return None


def _switch(path: Path, folders: LocalFolders, merges: Merges, merge: Merge) -> None:
    """Carries out a decided merge, from any point on."""
    hidden = f"_removed-{merge.name}@{secrets.token_hex(4)}"
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
    folders.move(merge.path(DECIDED), merge.path(DONE))
    for name in (hidden, f"{_SWITCH}/{merge.name}"):
        folders.remove(name)
    for one in merges.all(DONE):
        if folder_of(one.name) in merge.sources:
            folders.remove(one.path(DONE))


def _wait_for_listings(folders: LocalFolders) -> None:
    """Lets the listings of readers end that have begun."""
    began = monotonic()
    for name in folders.names():
        folders.exists(name)
    sleep(max(_LISTING_S, _LISTINGS * (monotonic() - began)))


def _data_files(folder: Path) -> Iterator[Path]:
    """As readers see them: names that begin with `_` or `.` are none. Raises FileNotFoundError."""
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if "=" in name or name[0] not in "_.")
        yield from (Path(parent) / name for name in sorted(names) if name[0] not in "_.")


def _is_over(time_ms: int) -> bool:
    return time_ms < unix_ms() - _BATCHES_KEPT_MS


def _made_ms(batch_id: str, default: int) -> int:
    """When the batch of this id was made, if the id tells."""
    found = _MADE_ID.fullmatch(batch_id)
    return int(found["time"], 16) >> 16 if found else default


def _ignore(_: int) -> None:
    """The callback where no progress is drawn."""


def _raise(error: OSError) -> None:
    raise error


def _newest(folder: Path) -> float:
    with suppress(FileNotFoundError):
        return max(one.stat().st_mtime for one in (folder, *folder.rglob("*")))
    return unix_ms() / 1000
