"""Periodic jobs that programs add, replace and remove at run time. Their definitions are kept on the server until they
are removed; the leader fires them as those that workers publish."""

from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from jobrunner.broker.calls import events, queues
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys, check_name
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.periodic_state import bring_state
from jobrunner.client.task_handle import TaskHandle
from jobrunner.due_ticks import CatchUp, parse_catch_up, parse_overlap
from jobrunner.encryption.cipher import PayloadEncryption, decrypt_payload
from jobrunner.errors import EncryptionError, InvalidName, InvalidOption, PayloadTooLarge, UnknownJob, UsageError
from jobrunner.formatting import describe, listed
from jobrunner.payload_store.stored_payloads import without_store
from jobrunner.periodic import OF_ITS_TASKS, AddedDefinition, read_added
from jobrunner.retry import seconds
from jobrunner.schedule import bounded, schedule_of
from jobrunner.settings import Duration, check_whole
from jobrunner.task import Task

LARGEST_PAYLOAD = 64 * 1024
"""Bytes of parameters: each leader has the definitions of all jobs in memory, and reads them twice a minute."""
_REMOVED_FOR_MS = 600_000
"""How long a removed job counts as disabled: longer than a leader goes on with what it read before."""
_NAMED = 10
_OF_ONE_TASK = ("id", "in_", "at", "wait")


class PeriodicCall(Protocol):
    """What may be added as a periodic job: `SendReport(customer="acme")`, `send_report.bind("acme")`, or either of them
    with options, by `using`.

    These are the members that both have, and neither a flow nor a job without its parameters; pyright compares `using`
    of a job class with no member of a protocol, as it is a descriptor.
    """

    @property
    def task(self) -> Any: ...

    def enqueue(self) -> TaskHandle[Any]:
        """Sends one task of it."""


def definition_of(
    name: str,
    call: PeriodicCall,
    *,
    every: timedelta | float | None,
    cron: str | None,
    tz: str | None,
    catch_up: CatchUp,
    overlap: str,
    jitter: Duration,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
) -> AddedDefinition:
    """The definition of a periodic job without a generation. Raises the errors of `Client.add_periodic`."""
    check_name(name, "name of a periodic job")
    schedule = bounded(schedule_of(every, cron, tz), start, end)
    task = _task_of(call)
    if len(task.payload) > LARGEST_PAYLOAD:
        raise PayloadTooLarge(
            f"the parameters of periodic job {name!r} have {len(task.payload)} bytes, the limit is {LARGEST_PAYLOAD}; "
            "store them elsewhere and pass a reference"
        )
    return AddedDefinition(
        name=name,
        queue=task.queue,
        schedule=schedule.spec(),
        payload=task.payload,
        catch_up=parse_catch_up(catch_up),
        overlap=parse_overlap(overlap),
        jitter=seconds(jitter, option="jitter"),
        runs=task.type,
        generation="",
        headers=task.headers,
        limit=None if limit is None else check_whole(limit, "limit", minimum=1),
        **{option: getattr(task, option) for option in OF_ITS_TASKS},
    )


def _task_of(call: PeriodicCall) -> Task:
    bound: Any = None if isinstance(call, type) else getattr(call, "using", lambda: None)()
    if not hasattr(bound, "task"):
        raise UsageError(f"add_periodic(…, {describe(call)}): give a job with its parameters: {_made(call)}")
    if given := [option for option in _OF_ONE_TASK if getattr(bound.options, option) is not None]:
        raise InvalidOption(f"option {given[0]} is that of one task; a periodic job has many, when its schedule says")
    task: Task = bound.task()
    if task.lock is not None:
        raise InvalidOption(
            f"job {task.type!r} is unique: overlap=… keeps a periodic job single; where its lock must hold, too, add a "
            "job that enqueues it"
        )
    return task


def _made(call: object) -> str:
    """How a call is made of a job; of something else, of any job."""
    if isinstance(call, type):
        return f"{call.__name__}(…)"
    if hasattr(call, "bind"):
        return f"{getattr(call, '__name__', 'job')}.bind(…)"
    return "SendReport(…), or send_report.bind(…); for a flow, a job that enqueues it"


def add(keys: Keys, encryption: PayloadEncryption | None, definition: AddedDefinition) -> Operation[None]:
    """Adds a periodic job, or replaces the one of its name, whose ticks it goes on with. Nothing is written when it is
    there as it is; an encrypted one is encrypted anew. May be repeated. Raises InvalidName for the name of a job that
    is declared in code."""
    name = definition.name
    while True:
        published, stored = yield [leader_calls.periodics(keys), leader_calls.added_periodic(keys, name)]
        if name in published:
            raise InvalidName(
                f"periodic job {name!r} is declared in code, and published by workers: add it by another name"
            )
        before = read_added(stored)
        kept = replace(definition, generation=uuid4().hex[:16] if before is None else before.generation)
        added = msgspec.json.encode(_protected(kept, encryption))
        if added == stored:
            return
        *_, reply = yield [
            *queues.register(keys, [definition.queue]),
            leader_calls.set_added_periodic(keys, name, expected=stored, definition=added),
        ]
        if reply == "set":
            break
    if before is not None and _plain(before, encryption) == kept:  # encrypted anew, with the key of today
        return
    words = {"queue": definition.queue, "job": name, "schedule": definition.in_words}
    yield [events.note(keys, "periodic_added", by=events.who(), **words)]


def remove(keys: Keys, name: str) -> Operation[None]:
    """Removes a periodic job that was added at run time; no tick fires afterwards. Raises UnknownJob."""
    stored = b""
    while True:
        published, found = yield [leader_calls.periodics(keys), leader_calls.added_periodics(keys)]
        if name not in found:
            if stored:  # removed by the try before, whose reply was lost, or by another program
                break
            raise UnknownJob(_unknown(name, published, sorted(found)))
        stored = found[name]
        removing = leader_calls.set_added_periodic(keys, name, expected=stored, definition=b"")
        if (yield from ask(removing)) == "set":
            break
    if (definition := read_added(stored)) is None:
        return
    yield from bring_state(keys, definition.state, definition.queue)
    queue = keys.queue(definition.queue)
    yield [
        leader_calls.enable_periodic(queue, definition.state, enabled=False),
        leader_calls.end_periodic_state(queue, definition.state, _REMOVED_FOR_MS),
        leader_calls.drop_periodic_queue(keys, definition.state),
        events.note(keys, "periodic_removed", queue=definition.queue, job=name, by=events.who()),
    ]


def _protected(definition: AddedDefinition, encryption: PayloadEncryption | None) -> AddedDefinition:
    """The definition with its payload encrypted or signed. It stays on the server also with a payload store, whose
    objects belong to tasks."""
    cipher = without_store(encryption)
    if cipher is None:
        return definition
    payload, encoding = cipher.encrypt(definition.payload, "", definition.payload_context)
    return replace(definition, payload=payload, encoding=encoding)


def _plain(definition: AddedDefinition, encryption: PayloadEncryption | None) -> AddedDefinition | None:
    """The definition with its payload in plain text; None when that cannot be read."""
    try:
        plain = decrypt_payload(
            encryption, definition.payload, definition.encoding.encode(), definition.payload_context
        )
    except EncryptionError:
        return None
    return replace(definition, payload=plain.raw, encoding="")


def _unknown(name: object, published: dict[str, bytes], added: list[str]) -> str:
    if name in published:
        return f"periodic job {name!r} is declared in code: disable it, or take its schedule out of the code"
    known = f"known are {listed(added, _NAMED)}" if added else "none was added yet"
    return f"no periodic job {describe(name)} was added at run time; {known}"
