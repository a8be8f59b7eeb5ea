"""Writes the progress notes of all runs of a worker to the server."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.clock import monotonic
from jobrunner.errors import NO_ANSWER, ClientClosed, ServerError

if TYPE_CHECKING:
    from concurrent.futures import Future

_AWAY_PAUSE_S = 10.0
"""The pause after a failure: with a silent server each note would wait for its timeout of five seconds."""


class _WaitingNote(msgspec.Struct, frozen=True):
    note: Call[str]
    tell: Callable[[str], object]
    written: "Future[None]"


class ProgressNotes:
    """Writes notes. Its driver tries each note once, and after a failure sends none for some seconds.

    A job on a thread waits for its note, whose reply says whether to stop. Waiting in a coroutine would block all jobs
    of its event loop, so a thread of their own writes the notes of coroutines: all waiting notes in one round trip, and
    only the last note of each run. That thread ends when no note waits.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._paused_until = 0.0
        self._waiting: dict[str, _WaitingNote] = {}
        self._is_writing = False
        self._lock = threading.Lock()

    def write(self, note: Call[str]) -> str:
        """Writes a note and returns the server's reply; "" when it was not written."""
        if monotonic() >= self._paused_until:
            try:
                return self._broker.run(note)
            except (ServerError, ClientClosed):  # ClientClosed: the worker ended without waiting for this job
                self._paused_until = monotonic() + _AWAY_PAUSE_S
        return ""

    def write_later(self, token: str, note: Call[str], tell: Callable[[str], object]) -> "Future[None]":
        """Has another thread write the note of an attempt and call `tell` with the reply. The future ends when this
        note or a later one was written, or could not be."""
        from concurrent.futures import Future  # asyncio has imported it; a worker with threads does not need it

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
        """Writes until no note waits. Invariant: each future ends, as the report of an attempt waits for it."""
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
        """Writes notes and returns the replies, with None or an error for each note that was not written."""
        if monotonic() < self._paused_until:
            return [None] * len(notes)
        try:
            answers = self._broker.run_each(notes)
        except Exception as error:  # any error: the attempts go on
            answers = [error] * len(notes)
            self._paused_until = monotonic() + _AWAY_PAUSE_S
        if any(isinstance(answer, NO_ANSWER) for answer in answers):  # a node of a cluster
            self._paused_until = monotonic() + _AWAY_PAUSE_S
        return answers
