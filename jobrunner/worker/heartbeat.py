"""Signs of life: what this worker says of itself, and the periodic jobs it knows."""

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

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


class Heartbeat:
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
        describe: Callable[[], Mapping[str, Arg]],
        obey: Callable[[Mapping[str, bytes]], object] = lambda _: None,
        redact: Sequence[str] = (),
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._queues = set(queues)
        self._heartbeat_s = heartbeat_s
        self._describe = describe
        self._obey = obey
        self._redact = redact
        self._has_started = False

    def step(self) -> float:
        """One sign of life."""
        ttl_ms = round(self._heartbeat_s * 3000)
        periodics = [job for job in all_jobs() if job.periodic is not None]
        calls: list[Call[Any]] = [
            register_queues(self._keys, sorted(self._queues.union(job.options.queue for job in periodics))),
            leader_calls.announce(self._keys, self._worker_id, self._describe(), ttl_ms=ttl_ms),
        ]
        if periodics:
            calls.append(leader_calls.define_periodics(self._keys, published(periodics, self._keys.seal)))
        if not self._has_started:
            words = {"queues": ",".join(sorted(self._queues)), "worker": self._worker_id}
            calls.append(events.note(self._keys, "worker_started", **words))
            if self._redact:
                calls.append(server_calls.add_redacted_names(self._keys, self._redact, may_fail=True))
        _, orders, *_ = self._broker.run_many(calls)
        self._obey(orders)
        self._has_started = True
        return self._heartbeat_s

    def retire(self) -> None:
        """Takes the worker off the list."""
        told = events.note(self._keys, "worker_stopped", worker=self._worker_id)
        self._broker.run_many([*leader_calls.retire(self._keys, self._worker_id), told])
