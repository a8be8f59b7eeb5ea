"""The types of what methods return, for annotations: no program makes objects of them.

    from jobrunner.types import TaskRecord

    def is_late(record: TaskRecord) -> bool: ...
"""

from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.client.item_record import ItemRecord, Popped
from jobrunner.client.operations.flow import FlowProgress
from jobrunner.client.records import PeriodicRecord, PeriodicTick, RunningAttempt, WorkerRecord
from jobrunner.client.settings_hash import SettingOrigin
from jobrunner.events import Event
from jobrunner.jobs.build import BoundCall, FunctionJob
from jobrunner.jobs.flow import Chain, Group
from jobrunner.jobs.running_task import Metadata, RunningTask
from jobrunner.queue_settings import QueueSettings
from jobrunner.task_record import Failure, TaskRecord

__all__ = [
    "BoundCall",
    "Chain",
    "Event",
    "Failure",
    "FlowProgress",
    "FunctionJob",
    "Group",
    "ItemRecord",
    "Metadata",
    "PeriodicRecord",
    "PeriodicTick",
    "Popped",
    "QueueCounts",
    "QueueSettings",
    "RunningAttempt",
    "RunningTask",
    "SettingOrigin",
    "TaskRecord",
    "WorkerRecord",
]
