"""Commands to a worker, by its own program and by the dashboard, and the description it sends with each heartbeat."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Arg
from jobrunner.client.records import TOO_MANY
from jobrunner.clock import perf_counter, unix_ms
from jobrunner.errors import NewerFormat, OlderFormat, WorkerBroken
from jobrunner.jobs.driver import CurrentBatch
from jobrunner.jobs.registry import all_jobs
from jobrunner.logs import SafeLogger
from jobrunner.loop import Signal
from jobrunner.worker.components import TaskParts
from jobrunner.worker.recycling import resident_bytes

_STOP_NOW = 2
_MOST_RUNNING = 50
"""Attempts that are listed; their total is a field of its own."""
_LONGEST_NAMES = 4096
_log = SafeLogger("jobrunner.worker")


class RunUntil(Enum):
    """When `Worker.run` returns without being asked to stop."""

    STOPPED = "never"
    EMPTY = "nothing is waiting or pending"
    DRAINED = "nothing is scheduled either"


class WorkerState:
    """The stage of a worker and the requests to it. Any thread changes it; `wait` returns after a change."""

    def __init__(self) -> None:
        self.until = RunUntil.STOPPED
        self.is_working = False
        self.is_quiet = False
        self.stops_asked = 0
        self.refused: NewerFormat | OlderFormat | None = None
        """The server's answer to a version that must leave the prefix."""
        self.broken: WorkerBroken | None = None
        """The loss for which `run` ends."""
        self._changed = Signal()

    @property
    def must_stop_now(self) -> bool:
        """Whether a second request to stop came: running tasks get no more time."""
        return self.stops_asked >= _STOP_NOW

    def ask_to_stop(self) -> None:
        """A graceful stop; a second call asks to stop at once. Safe in a signal handler and in any thread."""
        self.stops_asked += 1
        self._changed.set()

    def begin_stop(self) -> None:
        """The worker stops, whether it was asked to or not."""
        self.is_working = False
        self.stops_asked = max(self.stops_asked, 1)
        self._changed.set()

    def refuse(self, error: NewerFormat | OlderFormat) -> None:
        """This version may not go on here."""
        self.refused = error
        self._changed.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until the state changes, at most `timeout_s`."""
        self._changed.wait(timeout_s)


class Commands:
    """Answers the heartbeat: `describe` is what it sends, `obey` takes the commands in its reply.

    `identity` are the fields of the description that never change; `leads` says whether this worker is the leader.
    """

    def __init__(
        self, state: WorkerState, tasks: TaskParts, leads: Callable[[], bool], identity: Mapping[str, Arg]
    ) -> None:
        self._state = state
        self._tasks = tasks
        self._leads = leads
        self._identity = identity

    def describe(self) -> dict[str, Arg]:
        """The record of this worker in the list of workers."""
        return {
            **self._identity,
            "in_hand": self._tasks.in_hand,
            "finished": self._tasks.fetcher.finished_total,
            "leads": int(self._leads()),
            "quiet": int(self._state.is_quiet),
            "stopping": int(self._state.stops_asked > 0),
            "memory": resident_bytes(),
            "running": running(self._tasks.keeper.attempts(), self._tasks.drivers.running),
            "types": known_types(),
        }

    def obey(self, commands: Mapping[str, bytes]) -> bool:
        """Carries out the commands of the dashboard; returns whether they changed the description."""
        state, changed = self._state, False
        if commands.get("stop") == b"1" and not state.stops_asked:
            _log.info("worker stops: requested by the dashboard", worker=self._identity["id"])
            state.ask_to_stop()
            changed = True
        quiet = commands.get("quiet", b"1" if state.is_quiet else b"0") == b"1"
        if quiet != state.is_quiet and not state.stops_asked:
            state.is_quiet = self._tasks.fetcher.resting = quiet
            event = "worker is quiet: it takes no new tasks" if quiet else "worker resumed"
            _log.info(event, worker=self._identity["id"])
            self._tasks.drivers.be_quiet(quiet)
            self._tasks.fetch_now()
            changed = True
        return changed


def running(held: Iterable[Attempt], batches: Iterable[tuple[str, CurrentBatch]] = ()) -> bytes:
    """JSON of the batches of drivers, with their queues, and of the attempts that have begun and not ended, longest
    running first, at most 50.

    Each is [queue, id, job, number of the attempt, when it began in Unix ms], and of a batch how many items it has.
    """
    begun = sorted(
        (attempt for attempt in held if attempt.began_s and attempt.run_s < 0), key=lambda attempt: attempt.began_s
    )
    ahead_ms = unix_ms() - perf_counter() * 1000
    found: list[tuple[object, ...]] = [
        (queue, batch.id, "", batch.attempt, round(batch.began_ms), batch.items) for queue, batch in batches
    ]
    return msgspec.json.encode(
        found[:_MOST_RUNNING]
        + [
            (attempt.queue, attempt.id, attempt.type, attempt.number, round(attempt.began_s * 1000 + ahead_ms))
            for attempt in begun[: max(_MOST_RUNNING - len(found), 0)]
        ]
    )


def known_types() -> str:
    """The names of the jobs that this process knows; `*` when that is above 4 KiB, as every scan reads it."""
    names = ",".join(job.name for job in all_jobs())
    return names if len(names) <= _LONGEST_NAMES else TOO_MANY
