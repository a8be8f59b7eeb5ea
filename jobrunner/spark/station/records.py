"""A sink's own record of its batches, which decides when the server lost its last moments.

A failover, or a server restored from an older file, can forget that a batch was filled, although a sink wrote its rows:
its items wait again and come in another batch. So each attempt notes the digests of its members below the root of the
sink (Spark's readers skip names that begin with `_`) before it commits. Every later attempt, at any batch, compares the
notes with the server: a batch that the server does not know, or knows with fewer members, is *suspect*. Members that it
shares with a suspect are in the sink already if the suspect is committed there; else the suspect is fenced, so that it
never will be.

Invariants:

1. an attempt notes itself, then reads the notes of others, then renews its lease, then commits: of two attempts that
   share an item, and of which no server knows both, at least one sees the other;
2. an attempt commits only while its note is there and not fenced (`check`), and a suspect is asked whether it is
   committed only after it was fenced;
3. that a suspect counts (`kept`) or does not (removed) is decided by one rename of its note.

A note is a file `<batch id>@<epoch>-<members>-<time>-<queue>.<state>`, so a listing answers everything but the members.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jobrunner.broker.call import Call, command, whole
from jobrunner.broker.calls.server import run_id
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import BatchLease
from jobrunner.clock import unix_ms
from jobrunner.errors import BatchLost, FolderError
from jobrunner.logs import SafeLogger
from jobrunner.spark.station.sink_batch import BatchMembers
from jobrunner.spark.station.sink_folders import Folders, as_id, as_name

NOTES = "_jobrunner/batches"
"""The folder of the notes below the root of a sink."""
NOTED, SUSPECT, FENCED, KEPT = "noted", "suspect", "fenced", "kept"
_NOTED_MS = 2 * 3_600_000
"""Notes of batches that the server knows are kept so long. A failover loses seconds; a server that snapshots by its
default rules loses up to an hour."""
_ASKED_MS = 23 * 3_600_000
"""The server remembers finished batches for a day (TOMBSTONE_MS in lua/lib/batch.lua); older notes prove nothing."""
_SUSPECT_MS = 30 * 86_400_000
"""The items of a suspect may wait long behind others."""
_PRUNED_AT_ONCE = 20
_ASKED_AT_ONCE = 500
_NAME = re.compile(
    r"\.?(?P<stem>(?P<id>.+)@(?P<epoch>\d+)-(?P<size>\d+)-(?P<ms>\d+)-(?P<scope>[0-9a-f]{8}))"
    rf"\.(?P<state>{NOTED}|{SUSPECT}|{FENCED}|{KEPT})(?P<draft>\.[0-9a-f]+)?"
)
_log = SafeLogger("jobrunner.spark")


@dataclass(frozen=True, slots=True)
class BatchNote:
    """One note, as its name says."""

    stem: str
    batch_id: str
    size: int
    ms: int
    state: str = NOTED

    @property
    def path(self) -> str:
        """Of its file, from the root of the sink on."""
        return f"{NOTES}/{self.stem}.{self.state}"


@dataclass(slots=True)
class RecordsView:
    """What this process knows of the notes below one root, for all batches that it writes there."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    server: str | None = None
    """The run id of the server that was asked; another one may have forgotten what this one knew."""
    known: set[str] = field(default_factory=set)
    """Stems of notes whose batches that server knows."""
    suspects: dict[str, Any] = field(default_factory=dict)
    """Digests of the members of suspects, by the stems of their notes."""


_views: dict[tuple[str, str], RecordsView] = {}


class SinkRecords:
    """The notes below the root of one sink, for one attempt at a batch. Its life: `note`, `check`, then the commit.

    `settle(batch id)` says whether rows of that batch are in the sink; after False, no attempt that began before, and
    whose `check` succeeded before, may still commit. `root` names the sink within this process; `sink` tells sinks of
    one chain apart, which write the same batch.
    """

    def __init__(
        self, folders: Folders, root: str, lease: BatchLease, settle: Callable[[str], bool], *, sink: str = "",
        members: BatchMembers | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self._folders = folders
        self._lease = lease
        self._members = members or BatchMembers(lease)
        self._settle = settle
        keys = lease.batches.keys
        self._scope = hashlib.sha256(keys.batches + sink.encode()).hexdigest()[:8]
        self._view = _views.setdefault((root, self._scope), RecordsView())
        self._own: BatchNote | None = None

    def note(self) -> frozenset[str]:
        """Notes the attempt, and returns the members whose rows are in the sink already, under another batch or under
        this one: leave them out of the rows to write. Raises ServerError when the server cannot be asked."""
        ids, digests = self._members.read()
        lease, now = self._lease, unix_ms()
        stem = f"{as_name(lease.id)}@{lease.epoch}-{len(ids)}-{now}-{self._scope}"
        self._own = own = BatchNote(stem, lease.id, len(ids), now)
        self._folders.write(own.path, digests.tobytes())
        with self._view.lock:
            notes = self._notes()
            self._view.known &= notes.keys()  # other processes prune, too
            self._read_suspects(notes)
            self._compare(notes)
            there = self._in_sink(digests)
            self._prune(notes, now)
        found = frozenset(one for one, is_there in zip(ids, there.tolist(), strict=True) if is_there)
        if found:
            _log.warning("items are in the sink already, by a batch that the server lost", queue=lease.queue,
                         batch=lease.id, items=len(found), of=len(ids))  # fmt: skip
        return found

    def check(self) -> None:
        """Raises BatchLost when another attempt has fenced this one: it must not commit. Raises FolderError where all
        notes are gone, as the folder was deleted. Call it last before that, and after a renewal of the lease."""
        own = self._own
        if own is None or not any(self._folders.exists(replace(own, state=one).path) for one in (NOTED, SUSPECT)):
            if not self._folders.exists(NOTES):
                raise FolderError(f"{self.root} was deleted while a batch was written to it; its rows come again")
            raise BatchLost(
                f"batch {self._lease.id} is not known to the server that another driver asked, which took some of its "
                "items in another batch; this wrote nothing"
            )

    def _notes(self) -> dict[str, BatchNote]:
        """The newest state of each note of this queue."""
        found: dict[str, BatchNote] = {}
        for name in self._folders.names(NOTES):
            match = _NAME.fullmatch(name)
            if match is None or match["scope"] != self._scope:
                continue
            if match["draft"]:
                if unix_ms() - int(match["ms"]) > _NOTED_MS:  # of a process that died in its write
                    self._folders.remove(f"{NOTES}/{name}")
                continue
            batch_id = as_id(match["id"])
            found[match["stem"]] = BatchNote(
                match["stem"], batch_id, int(match["size"]), int(match["ms"]), match["state"]
            )
        return found

    def _read_suspects(self, notes: dict[str, BatchNote]) -> None:
        """Those that another process found; drops those that it removed."""
        suspects = self._view.suspects
        for gone in [stem for stem in suspects if stem not in notes]:
            del suspects[gone]
        for note in notes.values():
            if note.state != NOTED and note.stem not in suspects:
                self._add_suspect(note)

    def _compare(self, notes: dict[str, BatchNote]) -> None:
        """Asks the server for the notes that it was not asked for; for all of them when it is another server."""
        view, since = self._view, unix_ms() - _ASKED_MS
        own = self._own.stem if self._own else ""
        is_same = False
        while not is_same:
            settled = view.known | view.suspects.keys() | {own}
            asked = [one for one in notes.values() if one.stem not in settled and one.state == NOTED and one.ms > since]
            is_same = all(self._ask(some) for some in _portions(asked))

    def _ask(self, notes: Sequence[BatchNote]) -> bool:
        """One round trip. Returns False when it reached another server than the round trip before."""
        batches, view = self._lease.batches, self._view
        calls = [_is_known(batches.keys, one.batch_id, one.size) for one in notes]
        server, *found = batches.broker.run_many([run_id(batches.keys.batches), *calls])
        if server != view.server:
            view.server, view.known = server, set()
            return False
        for note, known in zip(notes, found, strict=True):
            if known:
                view.known.add(note.stem)
            else:
                self._folders.move(note.path, replace(note, state=SUSPECT).path)  # or another driver did
                self._add_suspect(note)
        return True

    def _add_suspect(self, note: BatchNote) -> None:
        """Reads it in whichever state it is by now: other drivers lead it from one to the next, in this order. One that
        is gone was removed, because it does not count."""
        for state in (NOTED, SUSPECT, FENCED, KEPT):
            content = self._folders.read(replace(note, state=state).path)
            if content is not None:
                self._view.suspects[note.stem] = np.frombuffer(content, np.uint64)
                return

    def _in_sink(self, digests: Any) -> Any:
        there = np.zeros(len(digests), bool)
        for stem, others in list(self._view.suspects.items()):
            shared = np.isin(digests, others)
            if shared.any():
                if self._counts(stem):
                    there |= shared
                else:
                    del self._view.suspects[stem]
        return there

    def _counts(self, stem: str) -> bool:
        """Whether a suspect is committed. If not, it never will be."""
        match = _NAME.fullmatch(f"{stem}.{FENCED}")
        assert match is not None
        paths = {state: f"{NOTES}/{stem}.{state}" for state in (NOTED, SUSPECT, FENCED, KEPT)}
        if not self._folders.exists(paths[KEPT]):
            any(self._folders.move(paths[state], paths[FENCED]) for state in (SUSPECT, NOTED))
        if not self._settle(as_id(match["id"])):
            self._folders.remove(paths[FENCED])
            self._folders.remove(paths[KEPT])
            return False
        return self._folders.move(paths[FENCED], paths[KEPT]) or self._folders.exists(paths[KEPT])

    def _prune(self, notes: dict[str, BatchNote], now: int) -> None:
        def is_over(note: BatchNote) -> bool:
            if note.state != NOTED:
                return now - note.ms > _SUSPECT_MS
            return now - note.ms > (_NOTED_MS if note.stem in self._view.known else _ASKED_MS)

        over = [note for note in notes.values() if note.stem not in self._view.suspects and is_over(note)]
        for note in sorted(over, key=lambda one: one.ms)[:_PRUNED_AT_ONCE]:
            self._folders.remove(note.path)


def _is_known(keys: QueueKeys, batch_id: str, size: int) -> Call[bool]:
    """Whether the server knows this batch with at least so many members; of one that is done it knows only the id."""

    def read(reply: list[bytes | None]) -> bool:
        state, members, before = reply  # one that was split into parts has its size in `whole`
        return state is not None and (state == b"done" or whole(members or before) >= size)

    return command("HMGET", keys.batch + batch_id.encode(), "state", "size", "whole", read=read)


def _portions(notes: Sequence[BatchNote]) -> Iterator[Sequence[BatchNote]]:
    for first in range(0, max(len(notes), 1), _ASKED_AT_ONCE):
        yield notes[first : first + _ASKED_AT_ONCE]
