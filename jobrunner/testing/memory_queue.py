"""The settings of queues without a server: checked, kept and read back; all else of a queue is refused."""

from dataclasses import dataclass, field
from typing import Any

from jobrunner.client.client import Client, broker_of
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.queue import Queue
from jobrunner.client.settings_hash import read_settings, write_settings
from jobrunner.queue_settings import QueueSettings
from jobrunner.settings import Duration


@dataclass(slots=True)
class KeptSettings:
    """What was configured for one queue."""

    fields: dict[str, bytes] = field(default_factory=dict)
    is_paused: bool = False

    def read(self) -> QueueSettings:
        """The settings in force."""
        return read_settings(self.fields)


class MemoryQueue(Queue):
    """A queue whose settings can be changed and read. Only its pause and its `max_size` apply."""

    def __init__(self, client: Client, ref: QueueRef, kept: KeptSettings) -> None:
        super().__init__(broker_of(client), ref, None, None)
        self._kept = kept
        self._name = ref.name

    def configure(self, **options: Any) -> None:
        for name, value in write_settings(options, self._name).items():
            self._kept.fields.pop(name, None)
            if value != "":
                self._kept.fields[name] = str(value).encode()

    def settings(self) -> QueueSettings:
        return self._kept.read()

    def pause(self, for_: Duration | None = None) -> None:  # noqa: ARG002
        self._kept.is_paused = True

    def resume(self) -> None:
        self._kept.is_paused = False

    def is_paused(self) -> bool:
        return self._kept.is_paused
