"""Heartbeats: they send the record of this worker and its periodic jobs, and return commands for the worker."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.queues import register_queues
from jobrunner.broker.resp import Arg
from jobrunner.client.client import Client, encryption_of, keys_of, redaction_of
from jobrunner.client.records import TOO_MANY
from jobrunner.clock import perf_counter, unix_ms
from jobrunner.formatting import duration
from jobrunner.jobs.batch_driver import CurrentBatch
from jobrunner.jobs.build import published
from jobrunner.jobs.registry import JobDefinition, all_jobs
from jobrunner.logs import SafeLogger
from jobrunner.redaction import hide_in_errors
from jobrunner.worker.batch_drivers import BatchDrivers
from jobrunner.worker.fetch.fetcher import Fetcher
from jobrunner.worker.lease_keeper.keeper_link import HeldLeases
from jobrunner.worker.recycling import resident_bytes
from jobrunner.worker.worker_state import WorkerState

_MOST_RUNNING = 50
"""The most attempts in the record of a worker; their total is a field of its own."""
_LONGEST_NAMES = 4096
_NEAR_MS = 2000.0
"""A difference of the clocks that is not corrected."""
_SYNCHRONISE = "synchronise both (NTP): at=… in its jobs, and the times of its log, are off"
_log = SafeLogger("jobrunner.worker")


class Commands:
    """The content of the heartbeat: `describe` returns the record to send, `obey` takes the commands in its reply.

    `identity` are the fields of the record that never change; `observe` returns fields that other components know, from
    the running attempts. `skew_ms` is how far the server's clock is ahead of this machine's: all instants in the record
    are the server's, as its readers compare them with its clock and with each other's.
    """

    def __init__(
        self, state: WorkerState, leases: HeldLeases, fetcher: Fetcher, drivers: BatchDrivers,
        observe: Callable[[Sequence[Attempt]], Mapping[str, Arg]], identity: Mapping[str, Arg],
    ) -> None:  # fmt: skip
        self._state = state
        self._leases = leases
        self._fetcher = fetcher
        self._drivers = drivers
        self._observe = observe
        self._identity = identity
        self._began_s = perf_counter()
        self._started_ms = unix_ms()
        self.skew_ms = 0
        self._resting = threading.Lock()

    def correct(self, skew_ms: int) -> None:
        """Takes how far the server's clock is ahead now. This machine's may be set while the worker works, so the start
        is counted back from now; a difference as before changes nothing, or it would move with every heartbeat."""
        if skew_ms == 0 == self.skew_ms or (skew_ms and abs(skew_ms - self.skew_ms) < _NEAR_MS):
            return
        self.skew_ms = skew_ms
        self._started_ms = unix_ms() + skew_ms - round((perf_counter() - self._began_s) * 1000)

    def describe(self) -> dict[str, Arg]:
        """The record of this worker in the list of workers."""
        held = self._leases.attempts()
        begun = [attempt for attempt in held if attempt.began_s and attempt.run_s < 0]
        return {
            **self._identity,
            "started": self._started_ms,
            "in_hand": self._fetcher.in_hand + self._drivers.in_hand,
            "finished": self._fetcher.finished_total,
            "quiet": int(self._state.is_quiet),
            "gate": self._state.gate,
            "stopping": int(self._state.is_stopping),
            "memory": resident_bytes(),
            "executing": len(begun),
            "fetched": sum(not attempt.began_s for attempt in held),
            "running": _running(begun, self._drivers.running, self.skew_ms),
            "at": unix_ms() + self.skew_ms,
            "types": _known_types(),
            **self._observe(begun),
        }

    def obey(self, commands: Mapping[str, bytes]) -> bool:
        """Carries out the commands of the dashboard; returns whether they changed the description."""
        state, changed = self._state, False
        if commands.get("stop") == b"1" and not state.is_stopping:
            _log.info("worker stops: requested by the dashboard", worker=self._identity["id"])
            state.stop_gracefully()
            changed = True
        quiet = commands.get("quiet", b"1" if state.is_quiet else b"0") == b"1"
        if quiet != state.is_quiet and not state.is_stopping:
            state.is_quiet = quiet
            event = "worker is quiet: it takes no new tasks" if quiet else "worker resumed"
            _log.info(event, worker=self._identity["id"])
            self._rest()
            changed = True
        return changed

    def set_gate(self, reason: str) -> None:
        """Keeps the worker from taking tasks for this reason; '' lets it take them again, unless it is quiet."""
        self._state.gate = reason
        self._rest()

    def _rest(self) -> None:
        with self._resting:  # heartbeat and gates have a thread each
            rests = self._state.is_quiet or bool(self._state.gate)
            if rests != self._fetcher.resting:
                self._fetcher.resting = rests
                self._drivers.be_quiet(rests)
                self._fetcher.fetch_now()


@dataclass(frozen=True, slots=True)
class Registration:
    """The names that a worker registers on the server when it starts and with each heartbeat."""

    worker_id: str
    queues: frozenset[str]
    every_s: float
    """Seconds between heartbeats."""
    redact: Sequence[str] = ()
    """Names of parameters that no page of the dashboard may render."""
    release: str = ""


class HeartbeatListener(Protocol):
    """A component that sends calls of its own with each heartbeat."""

    def asking(self) -> list[Call[Any]]:
        """The calls of this heartbeat."""

    def take(self, replies: Sequence[Any], /) -> None:
        """Handles the replies to these calls."""


class HiddenNames:
    """Which names errors of attempts are to hide. Heartbeats read them: names may be added while a worker runs, and a
    worker that started while their node was away hides all names until then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: set[str] | None = None

    def take(self, names: Iterable[str]) -> None:
        """Takes the names that the server has now."""
        found = set(names)
        if found != self._found:
            self._found = found
            hide_in_errors(redaction_of(self._client).take(sorted(found)))


class Heartbeat:
    """Announces the worker every `every_s`; after three missed heartbeats it counts as gone.

    The reply holds the commands for this worker (`quiet`, `stop`), which `commands` carries out, and the names of
    parameters to hide. When commands change the record of the worker, the next heartbeat follows at once. The same
    round trip checks whether a newer version of jobrunner took the prefix over; then `step` raises NewerFormat.
    Every heartbeat has the full record, so a server that lost it (a restart, an older snapshot) has it back soon.
    """

    def __init__(
        self, broker: Broker, client: Client, registration: Registration, commands: Commands,
        listeners: Sequence[HeartbeatListener],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._listeners = listeners
        self._keys = keys_of(client)
        self._encryption = encryption_of(client)
        self._registration = registration
        self._commands = commands
        self._hidden = HiddenNames(client)
        self._has_started = False
        self._is_skewed = False
        self._periodics: list[JobDefinition] = []
        self._published: dict[str, bytes] = {}
        """The definitions of the periodic jobs, made once: code of the program may compute a default."""

    def step(self) -> float:
        """Sends one heartbeat; returns the seconds to the next."""
        if not self._has_started:  # the first record has the server's times already
            self._compare_clocks(unix_ms(), self._broker.run(server_calls.server_time(self._keys.workers)))
        own = [*self._announcement(), *self._start_events()]
        asking = [one.asking() for one in self._listeners]
        asked_ms = unix_ms()
        replies = self._broker.run_many([*own, *chain.from_iterable(asking)])
        is_empty, told = replies[:2]
        if told.server_ms is not None:
            self._compare_clocks(asked_ms, told.server_ms)
        if is_empty and self._has_started:
            _log.warning("the server has lost the keys of this prefix, with their tasks", prefix=self._keys.prefix)
        of_listeners = iter(replies[len(own) :])
        for one, some in zip(self._listeners, asking, strict=True):
            one.take(list(islice(of_listeners, len(some))))
        if told.redacted is not None:
            self._hidden.take(told.redacted)
        is_changed = self._commands.obey(told.commands)
        self._has_started = True
        return 0.0 if is_changed else self._registration.every_s

    def _announcement(self) -> list[Call[Any]]:
        """The calls that register the queues, the worker (in this order), its periodic jobs, and the names to hide."""
        ttl_ms = round(self._registration.every_s * 3000)
        worker_id, queues = self._registration.worker_id, self._registration.queues
        periodics = [job for job in all_jobs() if job.periodic is not None]
        calls: list[Call[Any]] = [
            register_queues(self._keys, sorted(queues.union(job.options.queue for job in periodics))),
            leader_calls.announce(self._keys, worker_id, self._commands.describe(), ttl_ms=ttl_ms),
        ]
        if periodics:
            if periodics != self._periodics:
                self._periodics, self._published = periodics, published(periodics, self._encryption)
            calls.append(leader_calls.define_periodics(self._keys, self._published, ttl_ms=ttl_ms))
        if self._registration.redact:
            calls.append(server_calls.add_redacted_names(self._keys, self._registration.redact, may_fail=True))
        return calls

    def _start_events(self) -> list[Call[Any]]:
        """The events of the start of this worker and of its release, with the first heartbeat only."""
        if self._has_started:
            return []
        worker_id, queues = self._registration.worker_id, ",".join(sorted(self._registration.queues))
        if not (release := self._registration.release):
            return [events.note(self._keys, "worker_started", queues=queues, worker=worker_id)]
        started = events.note(self._keys, "worker_started", queues=queues, worker=worker_id, release=release)
        return [started, *events.note_release(self._keys, release, unix_ms() + self._commands.skew_ms)]

    def _compare_clocks(self, asked_ms: float, server_ms: float) -> None:
        """Takes the difference of the clocks, from the server's at some moment since `asked_ms`, unless it is small."""
        now_ms = unix_ms()
        is_near = asked_ms - _NEAR_MS < server_ms < now_ms + _NEAR_MS
        self._commands.correct(0 if is_near else round(server_ms - now_ms))
        if self._is_skewed != (not is_near):
            self._is_skewed = not is_near
            if is_near:
                _log.info("the clock of this machine is that of the server again")
            else:
                ahead_s = (now_ms - server_ms) / 1000
                how = f"{duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"
                _log.warning("the clock of this machine is not that of the server", clock=how, hint=_SYNCHRONISE)

    def retire(self) -> None:
        """Removes the worker from the list of workers."""
        stopped = events.note(self._keys, "worker_stopped", worker=self._registration.worker_id)
        self._broker.run_many([*leader_calls.retire(self._keys, self._registration.worker_id), stopped])


def _running(
    begun: Iterable[Attempt], batches: Iterable[tuple[str, CurrentBatch]] = (), skew_ms: int = 0
) -> bytes:
    """JSON of the drivers' batches, with their queues, and of the running attempts, longest running first, at most 50.

    Each entry is [queue, id, job, number of the attempt, start in Unix ms, number of items of a batch], and for an
    attempt its lease number.
    """
    longest = sorted(begun, key=lambda attempt: attempt.began_s)[:_MOST_RUNNING]
    ahead_ms = unix_ms() + skew_ms - perf_counter() * 1000
    found: list[tuple[object, ...]] = [
        (queue, batch.id, "", batch.attempt, round(batch.began_ms + skew_ms), batch.items) for queue, batch in batches
    ]
    return msgspec.json.encode(
        found[:_MOST_RUNNING]
        + [
            (
                *(attempt.queue, attempt.id, attempt.type, attempt.number),
                *(round(attempt.began_s * 1000 + ahead_ms), 0, attempt.token),
            )
            for attempt in longest[: max(_MOST_RUNNING - len(found), 0)]
        ]
    )


def _known_types() -> str:
    """The names of the jobs that this process knows; `*` when they exceed 4 KiB, as every scan of the leader reads
    them."""
    names = ",".join(job.name for job in all_jobs())
    return names if len(names) <= _LONGEST_NAMES else TOO_MANY
