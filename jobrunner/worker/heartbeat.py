"""Heartbeats: the record of this worker in the list of workers, and the periodic jobs it knows."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Arg, Call
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.queues import register_queues
from jobrunner.broker.keys import Keys
from jobrunner.jobs.periodic import published
from jobrunner.jobs.registry import all_jobs
from jobrunner.lease_number import new_mark


def new_worker_id() -> str:
    """host.pid.mark, of the characters that names may have; the mark is random."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}.{os.getpid()}.{new_mark()}"


@dataclass(frozen=True, slots=True)
class Registration:
    """The names that a worker registers on the server when it starts and with each heartbeat."""

    worker_id: str
    queues: frozenset[str]
    redact: Sequence[str] = ()
    """Names of parameters that no page of the dashboard may show."""


class Description(Protocol):
    """The source of a worker's record, and the receiver of its commands (commands.py)."""

    def describe(self) -> Mapping[str, Arg]:
        """The fields of the record in the list of workers."""

    def obey(self, commands: Mapping[str, bytes]) -> bool:
        """Carries out commands; returns whether they changed the record."""


class Heartbeat:
    """Announces the worker every `heartbeat_s`; it counts as gone after three of them in silence.

    The reply holds the commands for this worker (`quiet`, `stop`), which `commands` carries out. When they change the
    record of the worker, the next heartbeat follows at once. The same round trip checks whether a newer version of
    jobrunner took the prefix over; then `step` raises NewerFormat.
    Every heartbeat repeats everything, so a server that lost it (a restart, an older snapshot) has it back soon.
    """

    def __init__(
        self, broker: Broker, keys: Keys, registration: Registration, commands: Description, heartbeat_s: float
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._registration = registration
        self._commands = commands
        self._heartbeat_s = heartbeat_s
        self._has_started = False

    def step(self) -> float:
        """One heartbeat; returns the seconds to the next."""
        ttl_ms = round(self._heartbeat_s * 3000)
        worker_id, queues = self._registration.worker_id, self._registration.queues
        periodics = [job for job in all_jobs() if job.periodic is not None]
        calls: list[Call[Any]] = [
            register_queues(self._keys, sorted(queues.union(job.options.queue for job in periodics))),
            leader_calls.announce(self._keys, worker_id, self._commands.describe(), ttl_ms=ttl_ms),
        ]
        if periodics:
            calls.append(leader_calls.define_periodics(self._keys, published(periodics, self._keys.seal)))
        if not self._has_started:
            calls.append(events.note(self._keys, "worker_started", queues=",".join(sorted(queues)), worker=worker_id))
            if self._registration.redact:
                calls.append(server_calls.add_redacted_names(self._keys, self._registration.redact, may_fail=True))
        _, commands, *_ = self._broker.run_many(calls)
        is_changed = self._commands.obey(commands)
        self._has_started = True
        return 0.0 if is_changed else self._heartbeat_s

    def retire(self) -> None:
        """Takes the worker off the list."""
        stopped = events.note(self._keys, "worker_stopped", worker=self._registration.worker_id)
        self._broker.run_many([*leader_calls.retire(self._keys, self._registration.worker_id), stopped])
