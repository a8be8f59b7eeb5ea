"""A sink's own record of its batches, which is authoritative when the server lost its last writes.

A failover, or a server restored from an older file, can forget that a batch was filled, although a sink wrote its rows:
the items wait again and come in another batch. So each attempt notes the digests of its members below the root of the
sink (Spark's readers skip names that begin with `_`) before it commits. Every later attempt, at any batch, compares the
notes with the server: a batch that the server does not know, or knows with fewer members, is *suspect*. If a suspect is
committed in the sink, the members that the attempt shares with it are in the sink already; else the suspect is fenced,
so that it never commits.

Invariants:

1. an attempt writes its note, then reads the other notes, then renews its lease, then commits: of two attempts that
   share an item, and of which no server knows both, at least one sees the other;
2. an attempt commits only while its note exists and is not fenced (`check`), and a check whether a suspect is committed
   follows its fencing;
3. one rename of its note decides whether a suspect counts (`kept`) or not (removed).

A note is a file `<batch id>@<epoch>-<members>-<time>-<queue>.<state>`, so a listing has all facts but the members.
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
"""How long notes of batches that the server knows are kept. A failover loses seconds; a server that snapshots by its
default rules loses up to an hour."""
_ASKED_MS = 23 * 3_600_000
"""The server remembers finished batches for a day (TOMBSTONE_MS in lua/lib/batch.lua); older notes prove nothing."""
_SUSPECT_MS = 30 * 86_400_000
"""How long notes of suspects are kept: their items may wait long behind others."""
_PRUNED_AT_ONCE = 20
_ASKED_AT_ONCE = 500
_NAME = re.compile(
    r"\.?(?P<stem>(?P<id>.+)@(?P<epoch>\d+)-(?P<size>\d+)-(?P<ms>\d+)-(?P<scope>[0-9a-f]{8}))"
    rf"\.(?P<state>{NOTED}|{SUSPECT}|{FENCED}|{KEPT})(?P<draft>\.[0-9a-f]+)?"
)
_log = SafeLogger("jobrunner.spark")


@dataclass(frozen=True, slots=True)
class BatchNote:
    """A note, as parsed from its file name."""

    stem: str
    batch_id: str
    size: int
    ms: int
    state: str = NOTED

    @property
    def path(self) -> str:
        """The path of its file, relative to the root of the sink."""
        return f"{NOTES}/{self.stem}.{self.state}"


@dataclass(slots=True)
class RecordsView:
    """This process's cache of the notes below one root, for all batches that it writes there."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    server: str | None = None
    """The run id of the queried server; another server may have forgotten batches that this server knew."""
    known: set[str] = field(default_factory=set)
    """Stems of notes whose batches the queried server knows."""
    suspects: dict[str, Any] = field(default_factory=dict)
    """Digests of the members of suspects, by the stems of their notes; None for a note that is damaged."""


_views: dict[tuple[str, str], RecordsView] = {}
"""Views of the sinks that wrote last; others are read again from the notes and the server."""
_VIEWS_KEPT = 100
_making = threading.Lock()


def _view_of(root: str, scope: str) -> RecordsView:
    with _making:
        view = _views[root, scope] = _views.pop((root, scope), RecordsView())
        if len(_views) > _VIEWS_KEPT:
            del _views[next(iter(_views))]
        return view


class SinkRecords:
    """The notes below the root of one sink, for one attempt at a batch. Order of calls: `note`, `check`, the commit.

    `settle(batch id)` returns whether rows of that batch are in the sink; after False, no attempt that began before,
    and whose `check` succeeded before, may still commit. `root` names the sink within this process; `sink`
    distinguishes the sinks of a chain, which write the same batch.
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
        self._view = _view_of(root, self._scope)
        self._own: BatchNote | None = None

    def note(self) -> frozenset[str]:
        """Notes the attempt, and returns the members whose rows are in the sink already, under another batch or under
        this batch: leave them out of the rows to write. Raises ServerError when the server does not answer, and
        FolderError for a damaged note of rows that are in the sink."""
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

    def sync(self) -> None:
        """Forces the note to the disk. Call it before the lease is renewed: a busy disk takes its time."""
        if self._own is not None:
            self._folders.sync(self._own.path)
            self._folders.sync(NOTES)

    def check(self) -> None:
        """Raises BatchLost when another attempt has fenced this attempt, which then must not commit. Raises FolderError
        when all notes are gone because the folder was deleted. Call it after the renewal of the lease, right before the
        commit."""
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
                if unix_ms() - int(match["ms"]) > _NOTED_MS:  # left by a process that died in its write
                    self._folders.remove(f"{NOTES}/{name}")
                continue
            batch_id = as_id(match["id"])
            found[match["stem"]] = BatchNote(
                match["stem"], batch_id, int(match["size"]), int(match["ms"]), match["state"]
            )
        return found

    def _read_suspects(self, notes: dict[str, BatchNote]) -> None:
        """Adds the suspects that other processes found, and drops suspects that they removed."""
        suspects = self._view.suspects
        for gone in [stem for stem in suspects if stem not in notes]:
            del suspects[gone]
        for note in notes.values():
            if note.state != NOTED and note.stem not in suspects:
                self._add_suspect(note)

    def _compare(self, notes: dict[str, BatchNote]) -> None:
        """Queries the server about notes not compared with it yet; about all notes when it is another server."""
        view, since = self._view, unix_ms() - _ASKED_MS
        own = self._own.stem if self._own else ""
        is_same = False
        while not is_same:
            settled = view.known | view.suspects.keys() | {own}
            asked = [one for one in notes.values() if one.stem not in settled and one.state == NOTED and one.ms > since]
            is_same = all(self._ask(some) for some in _portions(asked))

    def _ask(self, notes: Sequence[BatchNote]) -> bool:
        """Compares notes in one round trip. Returns False when it reached another server than the one before."""
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
        """Reads a suspect in its current state: other drivers move it from state to state, in this order. A suspect
        that is gone was removed because it does not count."""
        for state in (NOTED, SUSPECT, FENCED, KEPT):
            content = self._folders.read(replace(note, state=state).path)
            if content is not None:
                is_whole = len(content) == note.size * np.uint64().itemsize  # a power cut may cut off what it has
                self._view.suspects[note.stem] = np.frombuffer(content, np.uint64) if is_whole else None
                return

    def _in_sink(self, digests: Any) -> Any:
        there = np.zeros(len(digests), bool)
        for stem, others in list(self._view.suspects.items()):
            if others is None:
                del self._view.suspects[stem]  # read again next time, when it may be mended
                self._refuse_damaged(stem)
                continue
            shared = np.isin(digests, others)
            if shared.any():
                if self._counts(stem):
                    there |= shared
                else:
                    del self._view.suspects[stem]
        return there

    def _refuse_damaged(self, stem: str) -> None:
        """Fences a suspect whose members are not known any more. Raises FolderError when its rows count, as any item
        may be one of them."""
        if self._counts(stem):
            raise FolderError(
                f"{self.root}/{NOTES}/{stem}.{KEPT} is damaged: it named the items of a batch that the server lost, "
                "and whose rows are in the sink. Restore the file, or remove it and these rows, whose items come again"
            )

    def _counts(self, stem: str) -> bool:
        """Fences a suspect and returns whether it is committed. If not, it never will be."""
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
    """Whether the server knows this batch with at least `size` members; of a done batch it knows only the id."""

    def read(reply: list[bytes | None]) -> bool:
        state, members, before = reply  # a batch that was split into parts has its size in `whole`
        return state is not None and (state == b"done" or whole(members or before) >= size)

    return command("HMGET", keys.batch + batch_id.encode(), "state", "size", "whole", read=read)


def _portions(notes: Sequence[BatchNote]) -> Iterator[Sequence[BatchNote]]:
    for first in range(0, max(len(notes), 1), _ASKED_AT_ONCE):
        yield notes[first : first + _ASKED_AT_ONCE]
