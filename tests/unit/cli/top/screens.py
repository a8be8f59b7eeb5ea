"""Screens for tests of the live view."""

from datetime import UTC, datetime, timedelta
from typing import Any

from jobrunner.broker.calls.server import ServerFacts
from jobrunner.cli.top.state import Screen, settled
from jobrunner.client.records import WorkerRecord
from jobrunner.inspector.error_groups import ErrorGroups, ErrorGroupView
from jobrunner.inspector.live_rates import Rates
from jobrunner.inspector.live_snapshot import LiveSnapshot
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import TaskRow

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def queue(name: str, **known: Any) -> QueueView:
    return QueueView(name=name, **{"totals": {}, "workers": 1} | known)


def task(task_id: str = "t1", **known: Any) -> TaskRow:
    return TaskRow(**{
        "id": task_id, "type": "send", "queue": "mail", "state": "dead", "when": NOW, "attempt": 2, "started": None,
        "enqueued": NOW - timedelta(minutes=5), "error": "ValueError: no",
    } | known)  # fmt: skip


def seen(*queues: QueueView, **known: Any) -> LiveSnapshot:
    server = ServerFacts(name="valkey", version="9.0.0", maxmemory=0, maxmemory_policy="noeviction",
                         used_memory=2**20, clients=3, aof=True)  # fmt: skip
    worker = WorkerRecord(id="host.1.abc", host="host", pid=1, started=NOW, queues=("mail",), concurrency=8,
                          executor="threads", in_hand=3, finished=12_345, leads=True)  # fmt: skip
    return LiveSnapshot(**{
        "at_s": 0.0, "now": NOW, "url": "redis://localhost", "prefix": "jobrunner", "server": server, "latency_ms": 0.3,
        "leader": "host.1.abc", "queues": queues, "workers": (worker,),
        "running": (task("r1", state="pending", error="", when=NOW + timedelta(seconds=20)),),
        "failing": (),
    } | known)  # fmt: skip


def group(group_id: str = "g1", **known: Any) -> ErrorGroupView:
    return ErrorGroupView(**{
        "queue": "mail", "id": group_id, "job": "send", "error_type": "ValueError", "message": "no", "place": "a:f",
        "release": "", "count": 12, "dead": 7, "first": NOW - timedelta(hours=5), "last": NOW - timedelta(minutes=3),
        "trend": (0,) * 47 + (12,), "task": "t1",
    } | known)  # fmt: skip


def screen(*queues: QueueView, look: LiveSnapshot | None = None, **known: Any) -> Screen:
    rates = {one.name: Rates(into=1.5, out=20.0, bad=0.1, course=(1.0, 5.0, 2.0)) for one in queues}
    total = Rates(into=1.5, out=20.0, bad=0.1, course=(1.0, 5.0))
    return settled(Screen(**{
        "look": look or seen(*queues), "rates": rates, "total": total, "groups": ErrorGroups(groups=(group(),), dead=7),
    } | known))  # fmt: skip
