"""Notes of progress on their way to the server, of all runs of a worker."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.clock import monotonic
from jobrunner.errors import ClientClosed, OutcomeUnknown, ServerError, ServerUnavailable

if TYPE_CHECKING:
    from concurrent.futures import Future

_AWAY_PAUSE_S = 10.0
"""A server that is silent keeps a note for the five seconds of its time limit."""


class _WaitingNote(msgspec.Struct, frozen=True):
    note: Call[str]
    tell: Callable[[str], object]
    written: "Future[None]"


class ProgressNotes:
    """Writes notes. Its driver tries each once, and after a failure none is tried for some seconds.

    A job on a thread waits for its note, whose answer tells whether to stop. A note of a coroutine would hold up all
    jobs of its event loop: those are written by a thread of their own, all that wait in one round trip, and of those of
    one run the last. That thread ends when none waits.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._paused_until = 0.0
        self._waiting: dict[str, _WaitingNote] = {}
        self._is_writing = False
        self._lock = threading.Lock()

    def write(self, note: Call[str]) -> str:
        """The answer of the server; "" when it was not written."""
        if monotonic() >= self._paused_until:
            try:
                return self._broker.run(note)
            except (ServerError, ClientClosed):  # closed: the worker ended, and did not wait for this job
                self._paused_until = monotonic() + _AWAY_PAUSE_S
        return ""

    def write_later(self, token: str, note: Call[str], tell: Callable[[str], object]) -> "Future[None]":
        """Has the note of an attempt written by another thread, which calls `tell` with the answer. The future ends
        when this note or a later one was written, or could not be."""
        from concurrent.futures import Future  # asyncio has imported it; a worker of threads needs none of it

        with self._lock:
            before = self._waiting.get(token)
            written = Future[None]() if before is None else before.written
            self._waiting[token] = _WaitingNote(note, tell, written)
            begins, self._is_writing = not self._is_writing, True
        if begins:
            try:
                threading.Thread(target=self._write_waiting, name="jobrunner-progress", daemon=True).start()
            except RuntimeError:  # no thread can be started now
                self._write_waiting()
        return written

    def _write_waiting(self) -> None:
        """Writes until nothing waits. Invariant: each future ends, as the report of an attempt waits for it."""
        while True:
            with self._lock:
                due, self._waiting = list(self._waiting.values()), {}
                if not due:
                    self._is_writing = False
                    return
            for one, answer in zip(due, self._write_many([one.note for one in due]), strict=True):
                if isinstance(answer, str):
                    one.tell(answer)
                one.written.set_result(None)

    def _write_many(self, notes: list[Call[str]]) -> list[Any]:
        """The answers, and errors in the place of those that were not written."""
        if monotonic() < self._paused_until:
            return [None] * len(notes)
        try:
            answers = self._broker.run_each(notes)
        except Exception as error:  # whatever it is, the attempts go on
            answers = [error] * len(notes)
            self._paused_until = monotonic() + _AWAY_PAUSE_S
        if any(isinstance(answer, ServerUnavailable | OutcomeUnknown) for answer in answers):  # a node of a cluster
            self._paused_until = monotonic() + _AWAY_PAUSE_S
        return answers
