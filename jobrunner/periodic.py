"""The stored form of a periodic job: its schedule, and the task of a tick.

Workers publish the jobs that they know, and the leader fires published jobs, so it may fire jobs whose code it lacks.
Programs add others at run time, which stay until they are removed.
"""

import hashlib
import sys
from typing import TypeVar

import msgspec

from jobrunner.due_ticks import CatchUp, parse_catch_up
from jobrunner.encryption.cipher import EncryptionContext, PayloadEncryption, decrypt_payload
from jobrunner.errors import JobrunnerError
from jobrunner.formatting import counted
from jobrunner.schedule import Schedule, parse_spec
from jobrunner.task import Task

KNOWN_FOR_MS = 60_000.0
"""How long a job is fired after a worker last published it: afterwards no worker could run it."""


OF_ITS_TASKS = ("priority", "keepalive_ms", "max_attempts", "max_stalled", "expires_in_ms", "key")
"""Options of a job that its definition passes on to each task."""


class PeriodicDefinition(msgspec.Struct, kw_only=True, rename={"signature": "seal"}):
    """The published definition of a periodic job. Times in seconds unless the name has another unit."""

    name: str
    queue: str
    schedule: dict[str, str | float]
    payload: bytes
    catch_up: CatchUp
    overlap: str
    jitter: float
    priority: int | None = None
    keepalive_ms: int | None = None
    max_attempts: int | None = None
    max_stalled: int | None = None
    expires_in_ms: int | None = None
    key: str | None = None
    signature: str = ""
    """Proves that a process with the keys published these parameters; empty without keys. Stored as `seal`, as part of
    the format."""

    @property
    def job(self) -> str:
        """The name of the job that its tasks run."""
        return self.name

    @property
    def state(self) -> str:
        """The name of its state on the server: last tick, counts, whether it is disabled."""
        return self.name

    @property
    def most_tasks(self) -> int | None:
        """The number of tasks after which no tick fires; None: no limit."""
        return None

    def tasks_left(self, fired: int) -> int:
        """How many more ticks become tasks, after `fired` ones; without a limit more than there will ever be."""
        return sys.maxsize if self.most_tasks is None else self.most_tasks - fired

    @property
    def signed_context(self) -> EncryptionContext:
        """The context that the signature covers."""
        return EncryptionContext(self.name, self.name, "", self.queue)

    def parsed(self) -> Schedule:
        """The schedule. Raises InvalidOption when it is damaged."""
        return parse_spec(self.schedule)

    @property
    def in_words(self) -> str:
        """The schedule in words."""
        most = self.most_tasks
        return self.parsed().describe() + ("" if most is None else f", {counted(most, 'task')} at most")

    @property
    def schedule_digest(self) -> str:
        """A digest that differs between schedules of the job."""
        return hashlib.sha256(msgspec.json.encode(self.schedule, order="deterministic")).hexdigest()[:16]

    def task(self, task_id: str, encryption: PayloadEncryption | None) -> Task:
        """The task of one run. Raises EncryptionError for parameters that were not published with one of the keys:
        otherwise the leader would encrypt, and so vouch for, parameters of an attacker."""
        if encryption is not None:
            encryption.check_parameters(self.payload, self.signature, self.signed_context)
        return Task(
            id=task_id,
            queue=self.queue,
            type=self.name,
            payload=self.payload,
            **{option: getattr(self, option) for option in OF_ITS_TASKS},
        )


class AddedDefinition(PeriodicDefinition, kw_only=True):
    """The definition of a periodic job that a program added at run time. With keys, its payload is encrypted or signed,
    as that of a task."""

    runs: str
    """The name of the job that its tasks run."""
    generation: str
    """Differs each time that the name is added anew, so that a leader that has not heard of a removal yet fires a tick
    of what was removed, which is disabled, and none of its successor."""
    headers: bytes | None = None
    encoding: str = ""
    limit: int | None = None
    """The number of tasks after which no tick fires."""

    @property
    def most_tasks(self) -> int | None:
        """The number of tasks after which no tick fires; None: no limit."""
        return self.limit

    @property
    def job(self) -> str:
        """The name of the job that its tasks run."""
        return self.runs

    @property
    def state(self) -> str:
        """The name of its state on the server. No published job has it, as names have no `@`."""
        return f"{self.name}@{self.generation}"

    @property
    def payload_context(self) -> EncryptionContext:
        """The context that its payload is bound to."""
        return EncryptionContext(self.state, self.runs, "", self.queue, self.headers or b"")

    def task(self, task_id: str, encryption: PayloadEncryption | None) -> Task:
        """The task of one run. Raises EncryptionError for a payload that cannot be read, or is plain although keys are
        required."""
        payload = decrypt_payload(encryption, self.payload, self.encoding.encode(), self.payload_context)
        return Task(
            id=task_id,
            queue=self.queue,
            type=self.runs,
            payload=payload.raw,
            headers=self.headers,
            **{option: getattr(self, option) for option in OF_ITS_TASKS},
        )


D = TypeVar("D", bound=PeriodicDefinition)


def read_definition(raw: bytes) -> PeriodicDefinition | None:
    """Decodes a published definition; None for a damaged definition."""
    return _read(raw, PeriodicDefinition)


def read_added(raw: bytes) -> AddedDefinition | None:
    """Decodes the definition of a periodic job that was added at run time; None for a damaged definition."""
    return _read(raw, AddedDefinition)


def _read(raw: bytes, kind: type[D]) -> D | None:
    try:
        definition = msgspec.json.decode(raw, type=kind)
        definition.parsed()
        parse_catch_up(definition.catch_up)
    except (msgspec.MsgspecError, JobrunnerError, ValueError):
        return None
    return definition
