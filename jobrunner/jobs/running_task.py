"""A job's view of its own run: the task, a log, shared metadata, progress, and whether to stop."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.client.encryption import decrypted_payload
from jobrunner.client.item import read_headers
from jobrunner.client.operations.task import gone
from jobrunner.clock import monotonic
from jobrunner.codec import decode, encode
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import ServerRefused, UsageError
from jobrunner.formatting import describe, storable
from jobrunner.jobs.enqueue_options import without_own
from jobrunner.logs import RUNNING, logger
from jobrunner.option_names import checks_options
from jobrunner.settings import check_whole

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jobrunner.jobs.progress_notes import ProgressNotes

_LARGEST = 2**62
"""The largest number that one call may add; the server's numbers have 64 bits."""
_PROGRESS_PAUSE_S = 0.1
NOT_KEPT = b"too large"
"""The server's replacement for results of more than 16 MiB, which made the task dead."""


class UpstreamResults(msgspec.Struct, frozen=True):
    """The results that a flow passed to a task."""

    results: tuple[Any, ...] = ()
    outcomes: tuple[str, ...] = ()


class RunningTask:
    """The task that a job runs for, as `self.task` and `jobrunner.current_task()` return it.

    A view of the run: values that cost work are computed on access.
    """

    __slots__ = ("_run",)

    def __init__(self, run: "JobRun") -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"RunningTask(id={self.id!r}, queue={self.queue!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The id of the task, the same in all attempts."""
        return self._run.attempt.id

    @property
    def queue(self) -> str:
        """Full name of the queue that the task was taken from."""
        return self._run.attempt.queue

    @property
    def job(self) -> str:
        """The name of the job, or of the station."""
        return self._run.job

    @property
    def attempt(self) -> int:
        """Number of this attempt: 1 on the first try."""
        return self._run.attempt.number

    @property
    def retry_count(self) -> int:
        """Attempts of this task that failed before."""
        return self._run.attempt.retry_count

    @property
    def max_attempts(self) -> int | None:
        """Attempts after which the task is dead; 0: no limit."""
        return self._run.attempt.max_attempts

    @property
    def deadline(self) -> datetime:
        """The time by which the attempt has to end: the end of its timeout, or without a timeout of its lease, which
        the worker renews."""
        return self._run.deadline or self._run.attempt.deadline

    @property
    def enqueue_time(self) -> datetime:
        """The time at which the task was first enqueued."""
        return self._run.attempt.enqueue_time

    @property
    def headers(self) -> Mapping[str, str]:
        """Strings by name that travel with the task."""
        return self._run.headers

    @property
    def results(self) -> tuple[Any, ...]:
        """In a flow: the result of the step before, or of each member of a group; None for a step without a result.

        Read from the server at the first use: in a coroutine job write `await asyncio.to_thread(lambda:
        self.task.results)`, as the event loop would wait for the server. Empty for a task of no flow, and for the first
        step.
        """
        return self._run.received().results

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes of these steps: 'succeeded', 'dead', 'cancelled', or 'pending' in a callback `on_dead`."""
        return self._run.received().outcomes

    @property
    def log(self) -> Any:
        """A structlog logger bound to job, queue, task and attempt."""
        return self._run.log

    @property
    def metadata(self) -> "Metadata":
        """A hash shared by all runs of the job: get, set, atomic increment."""
        return self._run.metadata

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: cancelled, timed out, or its lease was lost."""
        return self._run.cancelled

    @checks_options
    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows how far this run has come."""
        self._run.progress(done, total, note)


class Metadata:
    """A hash shared by all runs of one job. Values are JSON; `increment` is atomic across processes."""

    def __init__(self, broker: Broker, keys: Keys, job: str) -> None:
        self._broker = broker
        self._keys = keys
        self._job = job

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field."""
        raw = self._broker.run(leader_calls.metadata_get(self._keys, self._job, _checked(field)))
        return default if raw is None else decode(raw)

    def all(self) -> dict[str, Any]:
        """All fields."""
        raw = self._broker.run(leader_calls.metadata_all(self._keys, self._job))
        return {field: decode(value) for field, value in raw.items()}

    def set(self, field: str, value: Any) -> None:
        """Sets a field to any JSON value."""
        self._broker.run(leader_calls.metadata_set(self._keys, self._job, _checked(field), encode(value, what=field)))

    def increment(self, field: str, by: int = 1) -> int:
        """Adds to a whole number and returns the sum. Raises UsageError when `by` or the value of the field is no whole
        number."""
        check_whole(by, f"increment({field!r}): by", minimum=-_LARGEST, maximum=_LARGEST)
        try:
            return self._broker.run(leader_calls.metadata_increment(self._keys, self._job, _checked(field), by))
        except ServerRefused as error:
            if "not an integer" not in str(error):
                raise
            raise UsageError(f"increment({field!r}): the field has a value that is no whole number; set it") from error


def _checked(field: str) -> str:
    if not isinstance(field, str) or storable(field) != field:
        raise UsageError(f"metadata: field {describe(field)}: give a text without lone surrogates")
    return field


class JobRun(msgspec.Struct, eq=False):
    """One run of a job in an executor. A struct, as one is made for every task; costly values are computed on demand.
    `_is_stopped(token)` tells whether the attempt should stop."""

    attempt: Attempt
    job: str
    _broker: Broker
    _keys: Keys
    _notes: "ProgressNotes"
    _is_stopped: Callable[[str], bool]
    deadline: datetime | None = None
    _noted_at: float = -1.0
    _told_to_stop: bool = False
    _noting: "Future[None] | None" = None
    _received: UpstreamResults | None = None
    _headers: dict[str, str] | None = None
    _encryption: PayloadEncryption | None = None
    after: bytes | None = None
    """The metadata, in the payload, of the results that this run gets; None: the payload is neither encrypted nor
    signed."""
    is_acknowledged: bool = False
    """Whether the task ended before this run, with `ack="early"`: the server no longer has it, and another task may
    have its id."""

    @property
    def task(self) -> RunningTask:
        """The task as the job sees it."""
        return RunningTask(self)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the task."""
        if self._headers is None:
            self._headers = without_own(read_headers(self.attempt.headers))
        return self._headers

    def decrypt(self, encryption: PayloadEncryption | None) -> Attempt:
        """Replaces the attempt by a copy with its payload decrypted, and returns that. Raises EncryptionError."""
        self._encryption = encryption
        found = decrypted_payload(encryption, self._keys.queue(self.attempt.queue), self.attempt)
        self.attempt, self.after = copy(self.attempt), found.after
        self.attempt.payload, self.attempt.encoding = found.raw, found.encoding
        return self.attempt

    @property
    def must_be_proved(self) -> bool:
        """Whether the run requires proof that its results come from the steps before it."""
        if self.after is None:
            return False
        from jobrunner.client.flow_results import needs_proof  # here, as producers need none of it

        return needs_proof(self.after)

    def received(self) -> UpstreamResults:
        """The results passed by the flow, read at first use. Raises ServerError, TaskGone after a lost lease,
        EncryptionError, Fail for results that the server did not keep."""
        if self.is_acknowledged:
            return UpstreamResults()
        if self._received is None:
            from jobrunner.client.flow_results import decrypted_results, receive

            found = receive(self._broker, self._keys.queue(self.attempt.queue), self.attempt.id)
            if found is None:
                raise gone(self.attempt.id)
            results, outcomes = found
            if results == NOT_KEPT:
                from jobrunner.outcome import Fail  # here, as producers need none of it

                raise Fail(
                    "the results of the steps before it are more than 16 MiB together, so they were not kept: let the "
                    "steps return less, such as where they stored it, and send the flow again",
                    retry=False,
                )
            values = decrypted_results(self._encryption, results, outcomes, self.after)
            self._received = UpstreamResults(tuple(values), tuple(decode(outcomes) or ()))
        return self._received

    @property
    def log(self) -> Any:
        """A structlog logger bound to job, queue, task and attempt."""
        return logger("jobrunner.job").bind(
            job=self.job, queue=self.attempt.queue, task=self.attempt.id, attempt=self.attempt.number
        )

    @property
    def metadata(self) -> Metadata:
        """The hash shared by all runs of the job."""
        return Metadata(self._broker, self._keys, self.job)

    @property
    def cancelled(self) -> bool:
        """Whether the job should stop: the task was cancelled, or this attempt lost its lease."""
        return self._told_to_stop or self._is_stopped(self.attempt.token)

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Publishes the progress of the run, at most ten times a second, and always when it is done.

        A note that cannot be written does not fail the attempt. The server's reply says whether to stop; a coroutine,
        which does not wait for it, gets it a moment later.
        """
        now = monotonic()
        if self.is_acknowledged or (done < total and now - self._noted_at < _PROGRESS_PAUSE_S):
            return
        self._noted_at = now
        keys = self._keys.queue(self.attempt.queue)
        shown = encode({"done": done, "total": total, "note": storable(str(note))}, what="progress")
        call = leases.progress(keys, self.attempt.id, self.attempt.token, shown)
        in_coroutine = _runs_on_loop()
        if in_coroutine or (self._noting is not None and not self._noting.done()):
            self._noting = self._notes.write_later(self.attempt.token, call, self._take_answer)
            if not in_coroutine:
                self._noting.result()
        elif answer := self._notes.write(call):
            self._take_answer(answer)

    def _take_answer(self, answer: str) -> None:
        self._told_to_stop = answer in ("stop", "lost", "not_reserved")

    def wait_for_notes(self) -> None:
        """As `notes_written`, in a thread whose job may have run an event loop of its own."""
        if self._noting is not None:
            self._noting.result()

    async def notes_written(self) -> None:
        """Waits for the last note of a coroutine: the server accepts no note after the report, which follows. An
        attempt that is cancelled meanwhile has ended already."""
        if self._noting is not None and not self._noting.done():
            import asyncio

            with suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.wrap_future(self._noting))


def _runs_on_loop() -> bool:
    """Whether this thread runs an event loop, which a waiting function would block."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  no error where there is none


def current_task() -> RunningTask:
    """The task of the job, station or hook that runs here: its id, attempt, log, headers, `progress(…)` and
    `cancelled`.

    It works in functions and classes, threads, coroutines, child processes, and in `jobrunner.testing`. A thread that a
    job starts does not inherit the task, as it inherits no context variable: start it with
    `Thread(target=contextvars.copy_context().run, args=(work,))`, or use `asyncio.to_thread`, which does so.
    Raises UsageError where no task runs.
    """
    run = RUNNING.get()
    if not isinstance(run, JobRun):
        raise UsageError(
            "current_task(): no task runs here; call it in a job, a station or a hook. A thread that a job starts does "
            "not inherit the task (start it with contextvars.copy_context().run), and a function on Spark runs a batch "
            "of items"
        )
    return run.task
