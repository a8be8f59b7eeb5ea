"""Records which batches of a sink are in merged folders, for the compaction of its path and attempts at batches.

A merge is a file `<merge>.<state>` below the root: *proposed*, while readers cannot see its rows; *decided*, when its
rows count instead of those of the folders that it names; *done*, when these folders are gone. The step from proposed to
decided is one rename. An attempt at a batch that a proposal names removes the proposal; when the merge is decided
already, the attempt's rows do not count, because the merged folder has them.
"""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from jobrunner.errors import FolderError
from jobrunner.spark.station.sink_folders import Folders

MERGES = "_jobrunner/merges"
SWITCH_LOCK = "_jobrunner/switch.lock"
"""Held while a merge is decided and carried out, and while a repeated attempt at a batch is put in place, so that no
reader sees both. On a file system without locks, the second check of the attempt removes doubled rows."""
_NAME = re.compile("merged-(?P<time>[0-9a-f]{16})[0-9a-f]{12}")
PROPOSED, DECIDED, DONE = "proposed", "decided", "done"


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge. `sources`: names of the folders that it replaces. `batches`: ids of the batches whose rows it has and
    that may come again; `merged_ms`: the time of the first merge of each, in Unix ms."""

    name: str
    sources: tuple[str, ...]
    batches: tuple[str, ...]
    merged_ms: tuple[int, ...] = ()

    def path(self, state: str) -> str:
        """The path of its file in this state, below the root."""
        return f"{MERGES}/{self.name}.{state}"


def name_at(time_ms: int) -> str:
    """The name of a new merge."""
    return f"merged-{time_ms << 16:016x}{secrets.token_hex(6)}"


def time_of(name: str) -> int | None:
    """The creation time of the merge with this name, in Unix ms; None when `name` is no name of a merge."""
    found = _NAME.fullmatch(name)
    return int(found["time"], 16) >> 16 if found else None


def _parsed(content: bytes) -> Merge:
    words = json.loads(content)
    batches = tuple(words["batches"])
    # Older versions recorded no times; the name begins with the time of the merge itself.
    times = tuple(words.get("merged_ms") or [time_of(words["name"])] * len(batches))
    return Merge(words["name"], tuple(words["sources"]), batches, times)


class Merges:
    """The merges below one root."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def all(self, *states: str) -> list[Merge]:
        """The merges in one of these states. Raises FolderError for a damaged one that is decided."""
        found = []
        for file in self._folders.names(MERGES):
            name, _, state = file.rpartition(".")
            content = self._folders.read(f"{MERGES}/{file}") if state in states and not name.startswith(".") else None
            if content is None:  # its state changes at this moment; a decided merge stays readable
                continue
            try:
                found.append(_parsed(content))
            except ValueError as error:  # cut off by a power cut
                if state != PROPOSED:
                    raise FolderError(
                        f"{self._folders.shown(f'{MERGES}/{file}')} is damaged: it named the batches whose rows a "
                        "compaction merged, and which would be written again: restore it from a copy"
                    ) from error
                self._folders.remove(f"{MERGES}/{file}")  # no process will decide it
        return found

    def propose(self, merge: Merge) -> None:
        """Writes the proposal, which readers and attempts see from now on."""
        self._folders.write(merge.path(PROPOSED), json.dumps(asdict(merge)).encode())

    def decide(self, merge: Merge) -> bool:
        """Decides the merge. Returns False when an attempt removed the proposal."""
        return self._folders.move(merge.path(PROPOSED), merge.path(DECIDED))

    def has(self, batches: Iterable[str]) -> bool:
        """Whether the rows of one of these batches are in a merged folder, or will be by a merge that is decided."""
        wanted = set(batches)
        # Twice: between the listing and the reading a merge may turn from decided to done.
        return any(not wanted.isdisjoint(one.batches) for _ in range(2) for one in self.all(DECIDED, DONE))

    def refuse(self, batches: Iterable[str]) -> None:
        """Removes the proposals that name one of these batches."""
        wanted = set(batches)
        for one in self.all(PROPOSED):
            if not wanted.isdisjoint(one.batches):
                self._folders.remove(one.path(PROPOSED))
