"""Which batches of a sink are in merged folders, as the compaction of its path and attempts at batches agree on it.

A merge is a file `<merge>.<state>` below the root: *proposed*, while its rows are in no place that readers read;
*decided*, when they count instead of those of the folders that it names; *done*, when those are gone. The step from
proposed to decided is one rename. An attempt at a batch that a proposal names takes the proposal away; when the merge
is decided already, the attempt's rows do not count, because the merged folder has them.
"""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from jobrunner.spark.station.sink_folders import Folders

MERGES = "_jobrunner/merges"
SWITCH_LOCK = "_jobrunner/switch.lock"
"""Held while a merge is decided and carried out, and while an attempt at a batch that came before is put in place, so
that no reader sees both. Where a file system has no locks, the second look of the attempt removes what is double."""
_NAME = re.compile("merged-(?P<time>[0-9a-f]{16})[0-9a-f]{12}")
PROPOSED, DECIDED, DONE = "proposed", "decided", "done"


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge. `sources`: names of the folders that it replaces. `batches`: ids of the batches whose rows it has and
    that may come again; `merged_ms`: when each of them was merged first."""

    name: str
    sources: tuple[str, ...]
    batches: tuple[str, ...]
    merged_ms: tuple[int, ...] = ()

    def path(self, state: str) -> str:
        """Of its file in this state, from the root on."""
        return f"{MERGES}/{self.name}.{state}"


def name_at(time_ms: int) -> str:
    """The name of a new merge."""
    return f"merged-{time_ms << 16:016x}{secrets.token_hex(6)}"


def time_of(name: str) -> int | None:
    """When a merge of this name was made, in Unix milliseconds; None for what is no such name."""
    found = _NAME.fullmatch(name)
    return int(found["time"], 16) >> 16 if found else None


class Merges:
    """The merges below one root."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def all(self, *states: str) -> list[Merge]:
        """Those in one of these states."""
        found = []
        for file in self._folders.names(MERGES):
            name, _, state = file.rpartition(".")
            content = self._folders.read(f"{MERGES}/{file}") if state in states and not name.startswith(".") else None
            if content is not None:  # else its state changes right now: one that is decided stays readable as such
                words = json.loads(content)
                batches = tuple(words["batches"])
                # Older versions noted no times; the name begins with that of the merge itself.
                times = tuple(words.get("merged_ms") or [time_of(words["name"])] * len(batches))
                found.append(Merge(words["name"], tuple(words["sources"]), batches, times))
        return found

    def propose(self, merge: Merge) -> None:
        """Readers and attempts see the proposal from now on."""
        self._folders.write(merge.path(PROPOSED), json.dumps(asdict(merge)).encode())

    def decide(self, merge: Merge) -> bool:
        """Returns False when an attempt took the proposal away."""
        return self._folders.move(merge.path(PROPOSED), merge.path(DECIDED))

    def has(self, batches: Iterable[str]) -> bool:
        """Whether the rows of one of these batches are in a merged folder, or will be by a merge that is decided."""
        wanted = set(batches)
        # Twice: between the listing and the reading a merge may turn from decided to done.
        return any(not wanted.isdisjoint(one.batches) for _ in range(2) for one in self.all(DECIDED, DONE))

    def refuse(self, batches: Iterable[str]) -> None:
        """Takes the proposals away that name one of these batches."""
        wanted = set(batches)
        for one in self.all(PROPOSED):
            if not wanted.isdisjoint(one.batches):
                self._folders.remove(one.path(PROPOSED))
