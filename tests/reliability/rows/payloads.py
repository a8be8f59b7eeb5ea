"""Payloads of every size: refused where they are sent, and bounded in what a worker needs for them. R19."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobrunner import AsyncClient, Client
from jobrunner.client.item import Item
from jobrunner.errors import JobrunnerError, PayloadTooLarge
from jobrunner.task import Task, new_id
from tests.reliability.checker import judge
from tests.reliability.jobs import Weigh
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage

_LIMIT = 1024 * 1024
_JSON = len(b'{"load":""}')
_MB = 1024 * 1024
_WORKERS_OWN = 150
"""MiB of memory of a worker without payloads, at most."""
_IN_HAND = 64
"""MiB of payloads that a worker holds at a time with the default limit, at most: prefetch is bounded in time."""


@scenario(
    "R19",
    short={"largest_mb": 8, "tasks": 60, "raised_mb": 8, "raised_tasks": 6},
    full={"largest_mb": 64, "tasks": 1_000, "raised_mb": 64, "raised_tasks": 20},
)
def sizes(stage: Stage, findings: Findings, largest_mb: int, tasks: int, raised_mb: int, raised_tasks: int) -> None:
    """Payloads from 0 B to 64 MB, with the usual limit of 1 MiB and with a raised one.

    PayloadTooLarge at every entry point, nothing written; payloads within the limit are processed; the memory of a
    worker stays bounded.
    """
    too_large = [_LIMIT + 1, 2 * _LIMIT, largest_mb * _MB]
    refused = {name: [_refusal(send, size) for size in too_large] for name, send in _ways(stage.client).items()}
    findings.equals("refused as", {word for words in refused.values() for word in words}, {PayloadTooLarge.__name__})
    findings.equals("keys after the refusals", stage.raw.dbsize(), 0)
    findings.equals("ways in", len(refused), len(_ways(stage.client)))
    fitting = [0, 1, 100, 10_000, _LIMIT - 1, _LIMIT]
    findings.equals("bytes read back", [_returned(stage, size) for size in fitting], fitting)

    worker = stage.fleet.start_one(modules=["tests.reliability.jobs"], concurrency=4)
    before = _peak_mb(worker.pid)
    _weigh(stage, _LIMIT - _JSON, tasks)
    findings.note("MiB of a worker before", before)
    findings.at_most(
        f"MiB at its peak, {tasks} payloads of 1 MiB", _peak_mb(worker.pid), before + _WORKERS_OWN + _IN_HAND
    )
    worker.stop()
    worker.summary()

    with Client(stage.server.url, PREFIX, payload_limit=raised_mb * _MB, retry_timeout=30) as raised:
        worker = stage.fleet.start_one(modules=["tests.reliability.jobs"], concurrency=2)
        _weigh(stage, raised_mb * _MB - _JSON, raised_tasks, raised)
        findings.at_most(
            f"MiB at its peak, {raised_tasks} payloads of {raised_mb} MiB", _peak_mb(worker.pid),
            before + _WORKERS_OWN + 8 * raised_mb,
        )  # fmt: skip
        _refused_beyond(findings, raised, raised_mb * _MB + 1)

    judge(stage, findings, more_starts=0)


def _ways(client: Client) -> dict[str, Callable[[int], object]]:
    """Every entry point, as a function of the size."""
    queue, many = client.queue(QUEUE), [Item(b"fits") for _ in range(3)]

    def task(size: int) -> Task:
        return Task(id=new_id(QUEUE), queue=QUEUE, type="Weigh", payload=b"x" * size)

    return {
        "push": lambda size: queue.push(b"x" * size),
        "push JSON": lambda size: queue.push("x" * (size - 2)),
        "push_many": lambda size: queue.push_many([*many, b"x" * size, *many]),
        "enqueue": lambda size: Weigh(load="x" * (size - _JSON)).enqueue(),
        "enqueue later": lambda size: Weigh(load="x" * (size - _JSON)).enqueue(in_=60),
        "enqueue_many": lambda size: Weigh.enqueue_many([Weigh(load=""), Weigh(load="x" * (size - _JSON))]),
        "client.enqueue": lambda size: client.enqueue(task(size)),
        "client.enqueue_many": lambda size: client.enqueue_many([task(1), task(size)]),
        "aenqueue": lambda size: asyncio.run(_sent(client, lambda other: other.enqueue(task(size)))),
        "async enqueue_many": lambda size: asyncio.run(_sent(client, lambda other: other.enqueue_many([task(size)]))),
        "async push": lambda size: asyncio.run(_sent(client, lambda other: other.queue(QUEUE).push(b"x" * size))),
        "async push_many": lambda size: asyncio.run(
            _sent(client, lambda other: other.queue(QUEUE).push_many([b"", b"x" * size]))
        ),
    }


async def _sent(client: Client, send: Callable[[AsyncClient], Any]) -> None:
    async with AsyncClient.like(client.settings) as other:
        await send(other)


def _refusal(send: Callable[[int], object], size: int) -> str:
    try:
        send(size)
    except JobrunnerError as error:
        return type(error).__name__
    return "nothing"


def _refused_beyond(findings: Findings, raised: Client, size: int) -> None:
    refused = {
        name: _refusal(send, size) for name, send in _ways(raised).items() if name.startswith(("push", "client"))
    }
    findings.equals("beyond the raised limit", set(refused.values()), {PayloadTooLarge.__name__})


def _returned(stage: Stage, size: int) -> int:
    """How many bytes come back of so many."""
    queue = stage.client.queue("bytes")
    queue.push(b"x" * size)
    (lease,) = queue.reserve()
    lease.commit()
    return len(lease.payload)


def _weigh(stage: Stage, size: int, tasks: int, client: Client | None = None) -> None:
    """Enqueues tasks of that size, some at a time, so that the server need not hold all; returns when they are done."""
    text = "x" * size
    at_once = max(256 * _MB // size, 2)
    for first in range(0, tasks, at_once):
        for _ in range(first, min(first + at_once, tasks)):
            sent = Task(
                id=new_id(QUEUE),
                queue=QUEUE,
                type="Weigh",
                payload=b'{"load":"%b"}' % text.encode(),
                keepalive_ms=5_000,
            )
            stage.acknowledged.add((client or stage.client).enqueue(sent).id)
        stage.drain()
        stage.say(f"{min(first + at_once, tasks)} of {tasks} of {size:,} bytes")


def _peak_mb(pid: int) -> int:
    """The most memory that a process had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) // 1024


ROWS = (sizes,)
