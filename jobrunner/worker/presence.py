"""Signs of life: what this worker says of itself, and the periodic jobs it knows."""

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, Word
from jobrunner.broker.calls import coordination, events
from jobrunner.broker.calls.queues import enlist
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.definitions import published
from jobrunner.holder import new_mark
from jobrunner.jobs.registry import all_jobs


def new_worker_id() -> str:
    """host.pid.mark, of the characters that names may have; the mark is random."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}.{os.getpid()}.{new_mark()}"


class Presence:
    """Announces the worker every `heartbeat_s`; it counts as gone after three of them in silence.

    The answer is what the worker was told to do (`quiet`, `stop`), and is handed to `obey`. In the same round trip it
    looks whether a newer version of jobrunner took the prefix over; then `step` raises NewerFormat.
    All it says is said again each time, so a server that lost it (a restart, an older snapshot) has it back soon.
    """

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        worker_id: str,
        queues: Iterable[str],
        *,
        heartbeat_s: float,
        describe: Callable[[], Mapping[str, Word]],
        obey: Callable[[Mapping[str, bytes]], object] = lambda _: None,
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._queues = set(queues)
        self._heartbeat_s = heartbeat_s
        self._describe = describe
        self._obey = obey
        self._has_started = False

    def step(self) -> float:
        """One sign of life."""
        ttl_ms = round(self._heartbeat_s * 3000)
        periodics = [job for job in all_jobs() if job.periodic is not None]
        calls: list[Call[Any]] = [
            enlist(self._keys, sorted(self._queues.union(job.options.queue for job in periodics))),
            coordination.announce(self._keys, self._worker_id, self._describe(), ttl_ms=ttl_ms),
        ]
        if periodics:
            calls.append(coordination.define_periodics(self._keys, published(periodics)))
        if not self._has_started:
            words = {"queues": ",".join(sorted(self._queues)), "worker": self._worker_id}
            calls.append(events.note(self._keys, "worker_started", **words))
        _, orders, *_ = self._broker.run_many(calls)
        self._obey(orders)
        self._has_started = True
        return self._heartbeat_s

    def retire(self) -> None:
        """Takes the worker off the list."""
        told = events.note(self._keys, "worker_stopped", worker=self._worker_id)
        self._broker.run_many([*coordination.retire(self._keys, self._worker_id), told])
