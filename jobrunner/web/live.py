"""What all tabs see of this moment, read once for all of them; and the stream that tells them to look again.

What must always hold: however many tabs and pages ask, the server is looked at once a second at most; while no tab is
open nothing is read at all. A tab is told that time went on and how the queues stand, and fetches its page again, which
answers from the same look. (Server-sent events: WHATWG HTML, section 9.2.)
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.etl.graph import Graph
from jobrunner.etl.published import published
from jobrunner.inspector.check import Check, warn
from jobrunner.inspector.overview import QueueView
from jobrunner.inspector.pulse import Look, Pulse, Rates, look
from jobrunner.inspector.server_checks import facts_checks
from jobrunner.inspector.unknown_types import unknown_type_check
from jobrunner.web.refusals import Refused

FRESH_S = 1.0
EVERY_S = 2.0
_MOST_TABS = 500
_UNKNOWN_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """This moment, a second old at most."""

    look: Look
    graphs: dict[str, Graph]
    """Pipelines whose links are known, by name."""
    warnings: tuple[Check, ...]
    unserved: tuple[QueueView, ...]
    """Queues with something to do that no worker serves, but for those that a pipeline declares as ends."""
    total: Rates
    rates: dict[str, Rates]

    @property
    def nav(self) -> dict[str, int]:
        """The figures beside the names of pages."""
        return {"dead": sum(queue.dead for queue in self.look.queues)}


class Live:
    """Looks for all. Its duties: a glance that is fresh; one loop that looks while tabs are open; a stream for each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pulse = Pulse()
        self._lock = threading.Lock()
        self._last: Glance | None = None
        self._taken_s = 0.0
        self._tabs: set[asyncio.Queue[bytes]] = set()
        self._loop: asyncio.Task[None] | None = None

    def glance(self, *, fresh: bool = False) -> Glance:
        """This moment; `fresh`: looked at now. Who asks while another looks waits for that. Raises ServerError."""
        with self._lock:
            if fresh or self._last is None or monotonic() - self._taken_s > FRESH_S:
                self._last = self._take()
                self._taken_s = monotonic()
            return self._last

    def forget(self) -> None:
        """Has the next glance look: something was done."""
        with self._lock:
            self._last = None

    def answer(self, _: Request) -> StreamingResponse:
        """GET /live. Raises Refused when too many tabs are open."""
        if len(self._tabs) >= _MOST_TABS:
            raise Refused(f"{_MOST_TABS} tabs are open: this one is not told what happens; reload it to look")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would hold the stream back
        return StreamingResponse(self.told(), media_type="text/event-stream", headers=headers)

    async def told(self) -> AsyncIterator[bytes]:
        """What one tab is told until it closes."""
        inbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)
        self._tabs.add(inbox)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._look_for_all())
        try:
            yield b"retry: 3000\n\n"
            while True:
                yield await inbox.get()
        finally:
            self._tabs.discard(inbox)

    async def _look_for_all(self) -> None:
        while self._tabs:
            event = await run_in_threadpool(self._event)
            for inbox in tuple(self._tabs):
                with suppress(asyncio.QueueFull):  # a tab that does not read misses a tick, and nothing else
                    inbox.put_nowait(event)
            await asyncio.sleep(EVERY_S)

    def _event(self) -> bytes:
        try:
            return _tick(self.glance())
        except JobrunnerError as error:
            line = str(error).replace("\n", " ")
            return f"event: problem\ndata: {line}\n\n".encode()

    def _take(self) -> Glance:
        seen = look(self._client)
        self._pulse.add(seen)
        graphs = self._client.broker.run(published(self._client.keys))
        ends = {node.queue for graph in graphs.values() for node in graph.nodes if not node.is_served}
        unserved = tuple(queue for queue in seen.queues if _is_stuck(queue) and queue.name not in ends)
        return Glance(
            look=seen,
            graphs=graphs,
            warnings=tuple(_warnings(seen, unserved)),
            unserved=unserved,
            total=self._pulse.total(),
            rates={queue.name: self._pulse.rates(queue.name) for queue in seen.queues},
        )


def _is_stuck(queue: QueueView) -> bool:
    return not queue.workers and bool(queue.waiting or queue.scheduled or queue.pending)


def _warnings(seen: Look, unserved: tuple[QueueView, ...]) -> list[Check]:
    found = [check for check in (facts_checks(seen.server) if seen.server else ()) if check.verdict != "ok"]
    if unserved:
        names = [queue.name for queue in unserved]
        told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        undone = sum(queue.waiting + queue.scheduled + queue.pending for queue in unserved)
        advice = f"start one: jobrunner work MODULE -q {names[0]}"
        found.append(warn("workers", f"none serves {told}, with {undone:,} to do", advice))
    found += [unknown_type_check(one) for one in seen.unknown[:_UNKNOWN_TOLD]]
    if seen.workers and seen.leader is None:
        found.append(warn("leader", "none: due tasks are promoted by nobody", "it should come within 10 s"))
    return found


def _tick(seen: Glance) -> bytes:
    stands: dict[str, Any] = {
        queue.name: [queue.waiting, queue.scheduled, queue.pending, queue.dead, queue.done, queue.paused]
        for queue in seen.look.queues
    }
    told = {
        "at": round(seen.look.now.timestamp() * 1000),
        "queues": stands,
        "workers": len(seen.look.workers),
        "warnings": len(seen.warnings),
        "rates": {"into": seen.total.into, "out": seen.total.out, "bad": seen.total.bad},
    }
    return b"event: tick\ndata: " + msgspec.json.encode(told) + b"\n\n"
