"""The names that users import from `jobrunner`, under headings."""

# Declaring jobs
# Enqueueing
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.client import Client
from jobrunner.client.current import configure, current_client
from jobrunner.client.flow_handle import AsyncFlowHandle, FlowHandle
from jobrunner.client.item import Item
from jobrunner.client.lease import AsyncLease, Lease
from jobrunner.client.loop_clients import async_client
from jobrunner.client.queue import Queue
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.jobs.declared_queues import queue
from jobrunner.jobs.decorator import job
from jobrunner.jobs.flow import chain, group
from jobrunner.jobs.job import Job, PeriodicJob
from jobrunner.jobs.job_defaults import job_defaults
from jobrunner.jobs.options import Unique
from jobrunner.jobs.running_task import current_task

# Steering a run
from jobrunner.outcome import Cancel, Fail, Retry, Snooze
from jobrunner.queue_settings import RateLimit
from jobrunner.retry import Backoff
from jobrunner.task import TaskState
from jobrunner.worker.worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncFlowHandle",
    "AsyncLease",
    "AsyncQueue",
    "AsyncTaskHandle",
    "Backoff",
    "Cancel",
    "Client",
    "Fail",
    "FlowHandle",
    "Item",
    "Job",
    "Lease",
    "PeriodicJob",
    "Queue",
    "RateLimit",
    "Retry",
    "Snooze",
    "TaskHandle",
    "TaskState",
    "Unique",
    "Worker",
    "async_client",
    "chain",
    "configure",
    "current_client",
    "current_task",
    "group",
    "job",
    "job_defaults",
    "queue",
]
