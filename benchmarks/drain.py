"""The drain: a queue filled beforehand, worker processes, and the time until every task is acknowledged.

The clock runs from the first task that ran to the moment the server holds neither a waiting nor an
unacknowledged task. Both are observed from outside, and the harness sends the server nothing before the last task
ran: no figure contains the start of an interpreter or the harness's own commands.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.child import ChildFailed, run_to_end
from benchmarks.contender import Contender
from benchmarks.server import PrivateServer, Usage
from benchmarks.worker_processes import running_workers, wait_until


class NotDelivered(Exception):
    """Tasks are missing, doubled or left over: the figure is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One drain, in which every task ran exactly once. `client_s`: CPU time of the worker, None where unknown."""

    tasks: int
    seconds: float
    used: Usage = field(default_factory=Usage)
    client_s: float | None = None


def fill(server: PrivateServer, contender: Contender, tasks: int, task: str = "noop") -> Mapping[str, str]:
    """Empties the server and enqueues the tasks 0 to `tasks` - 1. Returns the environment that was used."""
    server.clear()
    environment = contender.environment(server)
    run_to_end([*contender.produce, "many", task, str(tasks)], environment)
    check_arrived(server, contender, tasks)
    return environment


def check_arrived(server: PrivateServer, contender: Contender, tasks: int) -> None:
    """Raises NotDelivered when the server does not hold exactly so many."""
    arrived = contender.left(server)
    if arrived != tasks:
        raise NotDelivered(f"{arrived} of {tasks} tasks arrived on the server")


def drain(
    server: PrivateServer, contender: Contender, tasks: int, *, task: str = "noop", count: int = 1, warm_up: int = 0
) -> Drain:
    """Fills the queue, drains it with `count` processes and checks the delivery. The clock and all figures start after
    the first `warm_up` tasks. Raises NotDelivered, ChildFailed."""
    return drain_filled(
        server, contender, tasks, fill(server, contender, tasks, task), task=task, count=count, warm_up=warm_up
    )


def drain_filled(
    server: PrivateServer, contender: Contender, tasks: int, environment: Mapping[str, str], *, task: str = "noop",
    count: int = 1, warm_up: int = 0,
) -> Drain:  # fmt: skip
    """The same with a queue that is filled already, in that environment."""
    before = server.usage()
    with running_workers(contender, environment, capacity=2 * tasks, task=task, count=count) as workers:
        workers.wait_for_entries(1 + warm_up)
        started, spent_before = time.perf_counter(), workers.cpu_seconds()
        workers.wait_for_entries(tasks)
        wait_until(lambda: not contender.left(server))
        seconds, spent = time.perf_counter() - started, workers.cpu_seconds()
        used = server.usage() - before
    complaint = workers.ledger.complaint(tasks)
    left = contender.left(server)
    if left:
        complaint = f"{complaint or 'all ran'}; {left} were still on the server"
    if complaint:
        raise NotDelivered(complaint)
    client_s = None if spent is None or spent_before is None else spent - spent_before
    return Drain(tasks=tasks - warm_up, seconds=seconds, used=used, client_s=client_s)


def ready(server: PrivateServer, contender: Contender) -> float:
    """Milliseconds from the start of the worker process to the first of ten tasks that wait. Raises as `drain`."""
    environment = fill(server, contender, 10)
    started = time.perf_counter()
    with running_workers(contender, environment, capacity=100) as workers:
        if not workers.wait_for_entries(1, poll_s=0.001):
            raise ChildFailed("the worker ran nothing")
        return 1000 * (time.perf_counter() - started)
