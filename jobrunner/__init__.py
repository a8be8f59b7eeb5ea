"""jobrunner: background jobs for Python on Redis. `public.py` lists its names.

Each is imported from its module when it is first used (PEP 562): a program that only enqueues imports no worker, and
the lease keeper beside each worker, and most commands, import none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobrunner.public import *  # noqa: F403

_NAMES = {
    "client.async_client": "AsyncClient",
    "client.async_queue": "AsyncQueue",
    "client.client": "Client",
    "client.current": "configure",
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
__all__ = sorted(_MODULES)  # noqa: PLE0605 - a list all the same


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jobrunner' has no name {name!r}")
    found = getattr(import_module(f"jobrunner.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
