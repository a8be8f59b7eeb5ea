"""The client processes of a soak, other than workers: ``python -m jobrunner.soak.clients ROLE``.

The `producer` enqueues tasks, and a burst on SIGUSR1. Invariant: a task is *offered* in the ledger before it is sent,
and *acknowledged* there only when the call that sent it has returned. A call that raised is repeated with the same ids,
which creates no duplicates.

The `manual_consumer` works without jobs: it reserves items, moves them from one queue to the next, and commits them.
Invariant: the ledger has an item's end before the item is committed, as with jobs.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from msgspec.structs import replace

from jobrunner.client.client import Client
from jobrunner.client.item import Item
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, QueueFull
from jobrunner.jobs.build import build_task, definition_of
from jobrunner.jobs.enqueue_options import EnqueueOptions
from jobrunner.soak.jobs import HAND, IN, LEDGER, OUT, Doomed, Limited, Noted, Short, Single
from jobrunner.soak.ledger import line_of, write
from jobrunner.soak.processes import ChildSettings, asked_to_stop, settings_here
from jobrunner.task import Task, new_id

_TURN_S = 0.1
_BURST_S = 5
_AGAIN_S = 0.1
_AT_ONCE = 50
_IDLE_S = 0.05
_SHARES = {"short": 70, "failing": 5, "delayed": 10, "limited": 3, "hand": 10, "doomed": 0.3, "single": 1}


class Producer:
    """Enqueues a mix at a rate until it is asked to stop."""

    def __init__(self, client: Client, told: ChildSettings, stop: threading.Event, draw: Random) -> None:
        self._client = client
        self._told = told
        self._stop = stop
        self._draw = draw
        self._ledger = os.environ[LEDGER]
        self._more = 0.0

    def burst(self) -> None:
        """Adds some seconds' worth of tasks to the next turn."""
        self._more += self._told.rate * _BURST_S

    def run(self) -> None:
        """Enqueues every `_TURN_S`; tasks missed in an outage are not added later."""
        last = monotonic()
        due = 0.0
        while not self._stop.wait(_TURN_S):
            now = monotonic()
            due += min(now - last, 1.0) * self._told.rate + self._more
            last, self._more = now, 0.0
            self._turn(int(due))
            due -= int(due)

    def _turn(self, count: int) -> None:
        kinds = self._draw.choices(list(_SHARES), list(_SHARES.values()), k=count)
        tasks = [self._task(kind) for kind in kinds if kind in ("short", "failing", "delayed", "limited", "doomed")]
        if tasks:
            self._send(tasks, lambda: [handle.id for handle in self._client.enqueue_many(tasks)])
        if items := [Item("x", id=new_id(HAND)) for kind in kinds if kind == "hand"]:
            offered = [(item.id or "", "hand", 0.0) for item in items]
            self._offer(offered, lambda: self._client.queue(IN).push_many(items))
        for _ in range(kinds.count("single")):
            task = self._task("single")
            self._send([task], lambda task=task: [self._client.enqueue(task).id])  # type: ignore[misc]

    def _send(self, tasks: list[Task], send: Callable[[], list[str]]) -> None:
        self._offer([(task.id, task.type, (task.delay_ms or 0.0) / 1000) for task in tasks], send)

    def _offer(self, offered: Iterable[tuple[str, str, float]], send: Callable[[], list[str]]) -> None:
        write(self._ledger, [line_of("offer", id_, 0, f"{kind} {delay_s}") for id_, kind, delay_s in offered])
        while True:
            try:
                ids = send()
            except JobrunnerError as error:
                event = "refused" if isinstance(error, QueueFull) else "unsent"
                write(self._ledger, [line_of(event, "-", 0, type(error).__name__)])
                if self._stop.wait(_AGAIN_S):
                    return
                continue
            write(self._ledger, [line_of("ack", id_) for id_ in ids])
            return

    def _task(self, kind: str) -> Task:
        seconds = round(self._draw.expovariate(1 / self._told.task_s), 4)
        known: dict[str, tuple[type[Noted], dict[str, Any]]] = {
            "short": (Short, {"seconds": seconds}),
            "failing": (Short, {"seconds": seconds, "fails": self._draw.randint(1, 2)}),
            "delayed": (Short, {"seconds": seconds}),
            "limited": (Limited, {"seconds": 0.05 + seconds}),
            "single": (Single, {"seconds": 0.05}),
            "doomed": (Doomed, {"fails": 99}),
        }
        job, parameters = known[kind]
        definition = definition_of(job)
        delay_s = round(self._draw.uniform(0.2, 5), 3) if kind == "delayed" else None
        options = EnqueueOptions(in_=delay_s, id=new_id(definition.options.queue))
        task = build_task(definition, job(**parameters), options)
        # Half of the tasks have their own lease length, the other half that of the queue.
        own_ms = round(self._told.keepalive * 1000) if self._draw.random() < 0.5 else None
        return replace(task, keepalive_ms=own_ms)


def carry(client: Client, keepalive_s: float, stop: threading.Event, ledger: str) -> None:
    """Works until it is asked to stop. When a report fails, the lease expires and the item returns to the queue."""
    while not stop.is_set():
        try:
            carried = _pass_on(client, keepalive_s) + _finish(client, keepalive_s, ledger)
        except JobrunnerError:
            carried = 0
        if not carried:
            stop.wait(_IDLE_S)


def _pass_on(client: Client, keepalive_s: float) -> int:
    leases = client.queue(IN).reserve(_AT_ONCE, keepalive=keepalive_s)
    for lease in leases:
        lease.move(OUT.partition("/")[2])
    return len(leases)


def _finish(client: Client, keepalive_s: float, ledger: str) -> int:
    leases = client.queue(OUT).reserve(_AT_ONCE, keepalive=keepalive_s)
    if leases:
        write(ledger, [line_of(event, lease.id, lease.attempts) for lease in leases for event in ("start", "end")])
        client.queue(OUT).commit_many(leases)
    return len(leases)


def main(role: str) -> None:
    """Runs until it is asked to stop."""
    stop = asked_to_stop()
    with Client() as client:
        if role == "manual_consumer":
            carry(client, settings_here().keepalive, stop, os.environ[LEDGER])
            return
        producer = Producer(client, settings_here(), stop, Random())
        signal.signal(signal.SIGUSR1, lambda *_: producer.burst())
        producer.run()


if __name__ == "__main__":
    main(sys.argv[1])
