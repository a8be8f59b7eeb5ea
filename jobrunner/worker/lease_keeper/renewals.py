"""Renews leases that are due: one exchange with the server for all queues of a turn.

Invariant: a queue that fails (a damaged key, a dead node of a cluster) costs no other queue a lease. Each reply is
handled on its own, and only failed renewals are tried again, sooner and with back-off. Each node of a cluster has a
thread of its own, as a node that does not answer would delay the others by the timeout.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.loop import Signal, back_off

_SHARE = 1 / 3
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 10.0
_AFTER_ERROR_S = 0.2
_LONGEST_AFTER_ERROR_S = 1.0
_SLICE = 500
_LETS_GO = ("gone", "not_reserved", "lost")


@dataclass(slots=True, eq=False)
class LeaseBatch:
    """Leases of equal length that were taken at once, with the instant of their last known renewal (monotonic clock). A
    worker of short tasks reports thousands a second, so a single lease is only an entry of a dictionary."""

    queue: str
    keepalive_s: float
    renewed: float
    ids: dict[str, str]
    """The task ids of the leases still held, by token."""
    failures: int = 0
    retry_at: float = 0.0
    is_asked_for: bool = False
    """Whether a renewal of the batch is under way."""

    @property
    def due(self) -> float:
        """The instant of the next renewal: after a third of the lease; after a failed renewal, that of the retry."""
        return self.retry_at if self.failures else self.renewed + self.keepalive_s * _SHARE


@dataclass(slots=True, frozen=True)
class _RenewalSlice:
    """Batches of one queue that one call renews; `reports` is the argument of the call."""

    queue: str
    batches: list[LeaseBatch]
    reports: list[tuple[str, str, int]]


class LeaseRenewer:
    """Renews each lease when a third of it has passed. Calls `notify` with lines for the worker."""

    def __init__(self, broker: Broker, keys: Keys, notify: Callable[[str], None]) -> None:
        self._broker = broker
        self._keys = keys
        self._notify = notify
        self._batches: set[LeaseBatch] = set()
        self._batch_of: dict[str, LeaseBatch] = {}
        self._asked: set[str] = set()
        self._next_turn = 0.0
        self._lock = threading.Lock()
        self.changed = Signal()

    def connect(self) -> None:
        """Opens the connection, and loads the script into the server: over a slow network either takes as long as a
        short lease lasts."""
        self._broker.connect()
        self._broker.run(leases.teach_extend())

    def holds(self, token: str) -> bool:
        """Whether the worker has reported this lease, and not yet its end."""
        return token in self._batch_of

    def read(self, line: bytes) -> None:
        """Handles one line of the worker (see keeper_process.py)."""
        word, *rest = msgspec.json.decode(line)
        if word == "hold":
            self._hold(*rest)
        elif word == "drop":
            self._drop(*rest)

    def _hold(self, queue: str, since: float, keepalive_s: float, tokens: list[str], ids: list[str]) -> None:
        sooner = False
        with self._lock:
            for some, of_some in zip(in_slices(tokens, _SLICE), in_slices(ids, _SLICE), strict=True):
                batch = LeaseBatch(queue, keepalive_s, since, dict(zip(some, of_some, strict=True)))
                self._batches.add(batch)
                self._batch_of.update(dict.fromkeys(some, batch))
                sooner = sooner or batch.due < self._next_turn
        if sooner:
            self.changed.set()

    def _drop(self, tokens: list[str]) -> None:
        with self._lock:
            for token in tokens:
                self._forget(token)
            self._asked.difference_update(tokens)

    def _forget(self, token: str) -> bool:
        """Forgets a lease; returns whether it was held. Called with the lock."""
        batch = self._batch_of.pop(token, None)
        if batch is None:
            return False
        del batch.ids[token]
        if not batch.ids:
            self._batches.discard(batch)
        return True

    def step(self) -> float:
        """Renews leases that are due; returns the seconds until the next are due. On a cluster it does not wait for the
        nodes: their threads handle the replies."""
        by_node: dict[object, list[_RenewalSlice]] = {}
        for one in self._take_due():
            by_node.setdefault(self._broker.node_of(self._keys.queue(one.queue).pending), []).append(one)
        for node, slices in by_node.items():
            if node is None:
                self._renew(slices)
            else:
                threading.Thread(target=self._renew_at_node, args=(slices,), daemon=True).start()
        return self._pause()

    def _take_due(self) -> list[_RenewalSlice]:
        now = monotonic()
        by_queue: dict[str, list[LeaseBatch]] = {}
        with self._lock:
            for batch in self._batches:
                if batch.due <= now and not batch.is_asked_for:
                    by_queue.setdefault(batch.queue, []).append(batch)
                    batch.is_asked_for = True
            return [
                _RenewalSlice(queue, some, [
                    (task_id, token, round(batch.keepalive_s * 1000))
                    for batch in some
                    for token, task_id in batch.ids.items()
                ])
                for queue, batches in by_queue.items()
                for some in _slices(batches)
            ]  # fmt: skip

    def _renew_at_node(self, slices: list[_RenewalSlice]) -> None:
        self._renew(slices)
        self.changed.set()

    def _renew(self, slices: list[_RenewalSlice]) -> None:
        asked_at = monotonic()
        calls = [leases.extend(self._keys.queue(one.queue), one.reports) for one in slices]
        try:
            replies = self._broker.run_each(calls)
        except Exception as error:  # any error: the renewal is tried again
            replies = [error] * len(slices)
        for one, verdicts in zip(slices, replies, strict=True):
            with self._lock:
                for batch in one.batches:
                    batch.is_asked_for = False
                    if isinstance(verdicts, Exception):
                        batch.failures += 1
                        pause = back_off(batch.failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S)
                        batch.retry_at = monotonic() + pause
                    else:
                        batch.failures, batch.renewed = 0, asked_at
            if not isinstance(verdicts, Exception):
                self._take_verdicts(one.reports, verdicts)

    def _take_verdicts(self, reports: list[tuple[str, str, int]], verdicts: list[str]) -> None:
        for (_, token, _), verdict in zip(reports, verdicts, strict=True):
            if verdict in _LETS_GO:
                with self._lock:
                    was_held = self._forget(token)
                if was_held and verdict != "gone":
                    self._notify(f"L {token}")
            elif verdict.startswith("!") and token not in self._asked:
                self._asked.add(token)
                self._notify(f"S {token}")

    def _pause(self) -> float:
        now = monotonic()
        with self._lock:
            waits = [batch.due - now for batch in self._batches if not batch.is_asked_for]
            pause = min(max(min(waits, default=_LONGEST_PAUSE_S), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            self._next_turn = now + pause
        return pause


def _slices(batches: list[LeaseBatch]) -> Iterator[list[LeaseBatch]]:
    """As many whole batches at a time as one call renews."""
    some: list[LeaseBatch] = []
    count = 0
    for batch in batches:
        if count + len(batch.ids) > _SLICE and some:
            yield some
            some, count = [], 0
        some.append(batch)
        count += len(batch.ids)
    yield some
