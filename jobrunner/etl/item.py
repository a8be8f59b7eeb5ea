"""What the function of a station sees: one item, and its own run."""

from datetime import datetime
from typing import Any

from jobrunner.client.item import read_headers
from jobrunner.jobs.running_task import JobRun


class StationItem:
    """One item in the hands of a station. Made for every attempt, so all but the payload is read on demand.

    `payload` is this attempt's own copy: what is changed in it goes on only when it is returned.
    """

    __slots__ = ("_headers", "_run", "payload")

    def __init__(self, payload: Any, run: JobRun) -> None:
        self.payload = payload
        self._run = run
        self._headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"StationItem({self.id!r}, queue={self.queue!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The same from the push to the end; items of a fan-out have their own."""
        return self._run.attempt.id

    @property
    def queue(self) -> str:
        """Full name of the queue that it was taken from."""
        return self._run.attempt.queue

    @property
    def attempt(self) -> int:
        """1 on the first try in this queue."""
        return self._run.attempt.number

    @property
    def headers(self) -> dict[str, str]:
        """Strings by name that travel with it; to change them return To(…, headers=…)."""
        if self._headers is None:
            self._headers = read_headers(self._run.attempt.headers)
        return self._headers

    @property
    def enqueue_time(self) -> datetime:
        """When it was first pushed, into whatever queue."""
        return self._run.attempt.enqueue_time

    @property
    def deadline(self) -> datetime:
        """When the attempt has to be over: the end of its timeout, or of its lease, which the worker renews."""
        return self._run.deadline or self._run.attempt.deadline

    @property
    def log(self) -> Any:
        """A structlog logger bound to station, item and attempt."""
        return self._run.log

    @property
    def cancelled(self) -> bool:
        """Whether the station should stop: someone cancelled the item, or this attempt lost its lease."""
        return self._run.cancelled

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows how far this attempt has come."""
        self._run.progress(done, total, note)
