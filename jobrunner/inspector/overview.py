"""Everything at one glance: the server, its queues, the workers, the leader, the periodic jobs. No writes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.server import ServerFacts, facts, ping
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.client import Client
from jobrunner.client.records import PeriodicRecord, WorkerRecord
from jobrunner.clock import from_ms, perf_counter
from jobrunner.errors import ServerRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: how many tasks are in each state, its totals, and how many workers serve it."""

    name: str
    waiting: int = 0
    scheduled: int = 0
    pending: int = 0
    dead: int = 0
    done: int = 0
    """Finished tasks that it keeps."""
    paused: bool = False
    paused_until: datetime | None = None
    """When the pause ends by itself; None for one that does not."""
    totals: dict[str, int]
    workers: int
    problem: str = ""
    """Why the server could not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One glance. `latency_ms` is of one PING; `leader` the id of the coordinating worker."""

    url: str
    prefix: str
    server: ServerFacts | None
    """None when this user may not ask for it."""
    latency_ms: float
    queues: list[QueueView]
    workers: list[WorkerRecord]
    leader: str | None
    periodics: list[PeriodicRecord]


def overview(client: Client) -> Overview:
    """Takes the glance. Raises ServerError."""
    workers = client.workers()
    return Overview(
        url=shown_url(client),
        prefix=client.keys.prefix,
        server=server_facts(client),
        latency_ms=latency_ms(client),
        queues=queue_views(client, workers),
        workers=workers,
        leader=leader(client),
        periodics=client.periodics(),
    )


def shown_url(client: Client) -> str:
    """The URL without its password; for the embedded server with the folder it stands for."""
    return str(client.endpoint) if client.endpoint.embedded is None else client.endpoint.shared_url()


def server_facts(client: Client) -> ServerFacts | None:
    """What the server says of itself; None when this user may not ask."""
    try:
        return client.broker.run(facts())
    except ServerRefused:
        return None


def latency_ms(client: Client) -> float:
    """How long a question and its answer take, on a connection that is open."""
    began = perf_counter()
    client.broker.run(ping())
    return (perf_counter() - began) * 1000


def leader(client: Client) -> str | None:
    """Id of the worker that coordinates now."""
    return client.broker.run(leader_call(client))


def leader_call(client: Client) -> Call[str | None]:
    """What asks for it."""
    return command("HGET", client.keys.leader, "worker", read=lambda reply: reply.decode() if reply else None)


def queue_views(client: Client, workers: list[WorkerRecord]) -> list[QueueView]:
    """Every queue, by name, all counted in one round trip. One that cannot be counted says why."""
    names = client.queues()
    if not names:
        return []
    keys = [client.keys.queue(name) for name in names]
    counted = client.broker.run_each([queues.counts(one) for one in keys] + [_pause_end(one) for one in keys])
    pairs = zip(names, counted[: len(names)], counted[len(names) :], strict=True)
    return [_view(name, found, ends, workers) for name, found, ends in pairs]


def _pause_end(keys: QueueKeys) -> Call[Any]:
    return command("HGET", keys.settings, "paused", read=_instant)


def _instant(raw: bytes | None) -> datetime | None:
    try:
        return None if raw in (None, b"1") else from_ms(float(raw))
    except (ValueError, OverflowError, OSError):  # damage, which the scripts read as a pause without an end
        return None


def _view(name: str, found: queues.QueueCounts | Exception, ends: object, workers: list[WorkerRecord]) -> QueueView:
    serving = sum(name in worker.queues for worker in workers)
    if isinstance(found, Exception):
        return QueueView(name=name, totals={}, workers=serving, problem=str(found))
    return QueueView(
        name=name,
        waiting=found.waiting,
        scheduled=found.scheduled,
        pending=found.pending,
        dead=found.dead,
        done=found.done,
        paused=found.paused,
        paused_until=ends if found.paused and isinstance(ends, datetime) else None,
        totals=found.totals,
        workers=serving,
    )
