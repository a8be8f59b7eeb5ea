"""Background jobs for Python on Redis or Valkey.

Declare a job with `job`, send a task of it with `enqueue`, and run tasks with `jobrunner work MODULE` or a `Worker`:

    from jobrunner import job

    @job(queue="maths")
    def add(x: int, y: int) -> int:
        return x + y

    print(add.enqueue(1, 2).result(timeout=5))

The errors are in `jobrunner.errors`, the types of what methods return in `jobrunner.types`, pipelines in
`jobrunner.etl`, helpers for tests in `jobrunner.testing`, the dashboard for an application in `jobrunner.web`.
"""

# Each name is imported from its module at its first use (PEP 562): a program that only enqueues does not load the
# worker, and the lease keeper and most commands load none of these modules.

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobrunner.public import *  # noqa: F403

_NAMES = {
    "client.async_client": "AsyncClient",
    "client.async_queue": "AsyncQueue",
    "client.client": "Client",
    "client.current": "configure current_client",
    "client.flow_handle": "AsyncFlowHandle FlowHandle",
    "client.item": "Item",
    "client.lease": "AsyncLease Lease",
    "client.loop_clients": "async_client",
    "client.queue": "Queue",
    "client.task_handle": "AsyncTaskHandle TaskHandle",
    "jobs.declared_queues": "queue",
    "jobs.decorator": "job",
    "jobs.flow": "chain group",
    "jobs.job": "Job PeriodicJob",
    "jobs.job_defaults": "job_defaults",
    "jobs.options": "Unique",
    "jobs.running_task": "current_task",
    "outcome": "Cancel Fail Retry Snooze",
    "queue_settings": "RateLimit",
    "retry": "Backoff",
    "task": "TaskState",
    "worker.worker": "Worker",
}
"""The names of each module, as `public.py` imports them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_ELSEWHERE = {
    "Drop": "etl", "LogContext": "middleware", "Pipeline": "etl", "To": "etl", "create_app": "web", "inline": "testing",
    "instrument": "tracing", "spark_session": "spark", "BoundCall": "types", "Event": "types", "FlowProgress": "types",
    "RunningTask": "types", "TaskRecord": "types",
}  # fmt: skip
"""Names that users may look for here, and the packages that have them."""
__all__ = sorted(_MODULES)  # noqa: PLE0605 - a list all the same


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        package = _ELSEWHERE.get(name)
        if package is None and name[:1].isupper() and hasattr(import_module("jobrunner.errors"), name):
            package = "errors"
        hint = f"; write from jobrunner.{package} import {name}" if package else ""
        raise AttributeError(f"module 'jobrunner' has no name {name!r}{hint}", name=name, obj=sys.modules[__name__])
    found = getattr(import_module(f"jobrunner.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    ours = {name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType)}
    return sorted({*ours, *_MODULES} - {"sys"})
