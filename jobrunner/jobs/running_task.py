"""What a job sees of its own run: the task, a log, shared metadata, progress, and whether to stop."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.client.flow_results import needs_proof, opened_results, receive
from jobrunner.client.item import read_headers
from jobrunner.client.operations.task import gone
from jobrunner.clock import monotonic
from jobrunner.codec import decode, encode
from jobrunner.errors import ServerError
from jobrunner.logs import logger

_PROGRESS_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class UpstreamResults:
    """What a flow gave a task."""

    results: tuple[Any, ...] = ()
    outcomes: tuple[str, ...] = ()


NOTHING = UpstreamResults()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """The task that a job runs for. `attempt` is 1 on the first try; `deadline` is when the attempt has to be over:
    the end of its timeout, or without one the end of its lease (which the worker renews)."""

    id: str
    queue: str
    attempt: int
    retry_count: int
    max_attempts: int | None
    deadline: datetime
    enqueue_time: datetime
    headers: Mapping[str, str]
    received: Callable[[], UpstreamResults] = field(repr=False, compare=False, default=lambda: NOTHING)

    @property
    def results(self) -> tuple[Any, ...]:
        """In a flow: the result of the step before, those of the members of a group; None for one that brought none.

        Read from the server at the first use. Empty for a task of no flow, and for the first step.
        """
        return self.received().results

    @property
    def outcomes(self) -> tuple[str, ...]:
        """How they ended: 'succeeded', 'dead', 'cancelled', or 'pending' in a callback `on_dead`."""
        return self.received().outcomes


class Metadata:
    """A hash shared by all runs of one job. Values are JSON; `increment` is atomic across processes."""

    def __init__(self, broker: Broker, keys: Keys, job: str) -> None:
        self._broker = broker
        self._keys = keys
        self._job = job

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field."""
        raw = self._broker.run(leader_calls.metadata_get(self._keys, self._job, field))
        return default if raw is None else decode(raw)

    def all(self) -> dict[str, Any]:
        """All fields."""
        raw = self._broker.run(leader_calls.metadata_all(self._keys, self._job))
        return {field: decode(value) for field, value in raw.items()}

    def set(self, field: str, value: Any) -> None:
        """Sets a field to any JSON value."""
        self._broker.run(leader_calls.metadata_set(self._keys, self._job, field, encode(value, what=field)))

    def increment(self, field: str, by: int = 1) -> int:
        """Adds to a whole number and returns the sum."""
        return self._broker.run(leader_calls.metadata_increment(self._keys, self._job, field, by))


class JobRun:
    """One run of a job, in the hands of the executor. Built for every task, so everything costly is made on demand,
    and what few runs change is a default of the class. `is_stopped(token)` tells whether the attempt should stop."""

    _noted_at = -1.0
    _told_to_stop = False
    _received: UpstreamResults | None = None
    after: bytes | None = None
    """Which results the seal of the payload says that this run is given; None: the payload is not sealed."""

    def __init__(
        self,
        attempt: Attempt,
        job: str,
        broker: Broker,
        keys: Keys,
        is_stopped: Callable[[str], bool],
        deadline: datetime | None = None,
    ) -> None:
        self.attempt = attempt
        self.deadline = deadline
        self._job = job
        self._broker = broker
        self._keys = keys
        self._is_stopped = is_stopped

    @property
    def task(self) -> RunningTask:
        """The task as the job sees it."""
        attempt = self.attempt
        return RunningTask(
            id=attempt.id,
            queue=attempt.queue,
            attempt=attempt.number,
            retry_count=attempt.retry_count,
            max_attempts=attempt.max_attempts,
            deadline=self.deadline or attempt.deadline,
            enqueue_time=attempt.enqueue_time,
            headers=read_headers(attempt.headers),
            received=self.received,
        )

    @property
    def must_be_proved(self) -> bool:
        """Whether it may only run when the results that it is given are those of the steps before it."""
        return self.after is not None and needs_proof(self.after)

    def received(self) -> UpstreamResults:
        """What a flow gave the task, read at the first use. Raises ServerError, TaskGone after a lost lease,
        EncryptionError."""
        if self._received is None:
            found = receive(self._broker, self._keys.queue(self.attempt.queue), self.attempt.id)
            if found is None:
                raise gone(self.attempt.id)
            results, outcomes = found
            values = opened_results(self._keys.seal, results, outcomes, self.after)
            self._received = UpstreamResults(tuple(values), tuple(decode(outcomes) or ()))
        return self._received

    @property
    def log(self) -> Any:
        """A structlog logger bound to job, queue, task and attempt."""
        return logger("jobrunner.job").bind(
            job=self._job, queue=self.attempt.queue, task=self.attempt.id, attempt=self.attempt.number
        )

    @property
    def metadata(self) -> Metadata:
        """The hash shared by all runs of the job."""
        return Metadata(self._broker, self._keys, self._job)

    @property
    def cancelled(self) -> bool:
        """Whether the job should stop: someone cancelled the task, or this attempt lost its lease."""
        return self._told_to_stop or self._is_stopped(self.attempt.token)

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows how far the run has come; written at most ten times a second, and always when done.

        A note that cannot be written is no reason for an attempt to fail. The answer tells whether to stop.
        """
        now = monotonic()
        if done < total and now - self._noted_at < _PROGRESS_PAUSE_S:
            return
        self._noted_at = now
        keys = self._keys.queue(self.attempt.queue)
        shown = encode({"done": done, "total": total, "note": note}, what="progress")
        with suppress(ServerError):
            answer = self._broker.run(leases.progress(keys, self.attempt.id, self.attempt.token, shown))
            self._told_to_stop = answer in ("stop", "lost", "not_reserved")
