"""The one place where the tasks of a client are encrypted or signed before a call, and its records decrypted after it.

The broker knows nothing of encryption: calls take tasks and results as they are stored, and return what is stored.
`encryption` is that of the client, None without keys.

Also the proof that the results which a flow hands on to an encrypted or signed step are those of the steps before it.
The server puts results together without a key, so whoever can write to it can put any others in their place. An
encrypted or signed result therefore names the joins that its task reports its end to, and its number there. The header
of the next step's payload names the join where its results arrive, how many they are, and which of them are lists that
a join in between put together (`ResultSource`). The client that sent the flow fixed both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import flows
from jobrunner.broker.keys import QueueKeys
from jobrunner.codec import decode
from jobrunner.encryption.cipher import (
    DecryptedPayload,
    EncryptionContext,
    PayloadEncryption,
    decrypt_payload,
    decrypt_result,
    is_encrypted,
    is_encrypted_result,
    is_protected_result,
    no_keys,
)
from jobrunner.encryption.envelope import damaged, is_protected, is_stored
from jobrunner.errors import EncryptionError, PayloadStoreError, PayloadStoreUnavailable
from jobrunner.join import AS_BROUGHT, NO_RESULTS, Join, Rule, read_onward
from jobrunner.payload_store.reference import stored_note
from jobrunner.payload_store.store import PayloadStore
from jobrunner.payload_store.stored_payloads import StoredPayloads
from jobrunner.settings import ClientSettings
from jobrunner.task import ENCRYPTED, Task

if TYPE_CHECKING:
    from jobrunner.task_record import TaskRecord


def client_encryption(settings: ClientSettings) -> PayloadEncryption | None:
    """The encryption of a client with these settings, with its payload store; None without either. Raises
    InvalidOption, EncryptionMissing, FsspecMissing."""
    cipher = None
    if settings.payload_keys:
        cipher = PayloadEncryption(
            settings.payload_keys,
            kind=settings.payload_encryption,
            required=settings.require_encryption,
            prefix=settings.prefix,
        )
    if settings.payload_store is None:
        return cipher
    syncs = settings.durability != "none"
    store = PayloadStore(settings.payload_store, settings.prefix, above=settings.payload_store_above, syncs=syncs)
    return StoredPayloads(store, cipher)


def encrypted_task(
    encryption: PayloadEncryption | None,
    keys: QueueKeys,
    task: Task,
    *,
    owner_id: str | None = None,
    after: bytes = b"",
) -> Task:
    """The task as it is stored in the queue of `keys`.

    `owner_id` is the id of the task that gets the payload when that is another one: a unique task that this one
    replaces. `after` describes the results that a step of a flow receives (see `ResultSource`).
    """
    if encryption is None:
        return task
    context = _context_of(keys, task, owner_id)
    payload, encoding = encryption.encrypt(task.payload, task.encoding, context, after=after)
    return _as_stored(task, payload, encoding)


def encrypted_tasks(encryption: PayloadEncryption, keys: QueueKeys, tasks: Sequence[Task]) -> list[Task]:
    """The tasks as they are stored in the queue of `keys`; large payloads are in the store of the client then. Raises
    PayloadStoreUnavailable."""
    if not isinstance(encryption, StoredPayloads):
        return [encrypted_task(encryption, keys, task) for task in tasks]
    found = encryption.encrypt_many([(task.payload, task.encoding, _context_of(keys, task)) for task in tasks])
    return [_as_stored(task, *stored) for task, stored in zip(tasks, found, strict=True)]


def _context_of(keys: QueueKeys, task: Task, owner_id: str | None = None) -> EncryptionContext:
    of = task.id if owner_id is None else owner_id
    return EncryptionContext(of, task.type, keys.tag, keys.name, task.headers or b"", task.then or b"")


def _as_stored(task: Task, payload: bytes, encoding: str) -> Task:
    """The same task where it is stored as it is."""
    is_plain = payload is task.payload and encoding == task.encoding
    return task if is_plain else structs.replace(task, payload=payload, encoding=encoding)


def encrypted_payload(
    encryption: PayloadEncryption | None, raw: bytes, encoding: str, context: EncryptionContext, *, after: bytes = b""
) -> tuple[bytes, str]:
    """(payload, encoding) as they are stored."""
    return (raw, encoding) if encryption is None else encryption.encrypt(raw, encoding, context, after=after)


def result_context(attempt: Attempt, keys: QueueKeys) -> EncryptionContext:
    """The context that binds the result of an attempt: without the queue, as its task may have moved."""
    return EncryptionContext(attempt.id, attempt.type, keys.tag, then=attempt.then or b"")


def encrypted_results(
    encryption: PayloadEncryption | None, keys: QueueKeys, results: Iterable[bytes], attempts: Iterable[Attempt]
) -> Iterable[bytes]:
    """Results as they are stored, each with the attempt that returned it."""
    if encryption is None:
        return results
    pairs = zip(results, attempts, strict=True)
    return (encryption.encrypt_result(raw, result_context(one, keys)) for raw, one in pairs)


def decrypted_payload(encryption: PayloadEncryption | None, keys: QueueKeys, attempt: Attempt) -> DecryptedPayload:
    """The payload of an attempt, which was reserved from the queue of `keys`. Raises EncryptionError."""
    context = EncryptionContext(
        attempt.id, attempt.type, keys.tag, keys.name, attempt.headers or b"", attempt.then or b""
    )
    return decrypt_payload(encryption, attempt.payload or b"", attempt.encoding, context)


def plain_payload(
    encryption: PayloadEncryption | None, keys: QueueKeys, attempt: Attempt
) -> tuple[bytes | None, bytes | None]:
    """(payload, encoding) of an attempt, as `decrypted_payload`; those of the attempt itself where it has neither
    keys nor encoding. Raises EncryptionError."""
    if encryption is None and not attempt.encoding:
        return attempt.payload, attempt.encoding
    return decrypted_payload(encryption, keys, attempt)[:2]


def decrypted_record(
    encryption: PayloadEncryption | None, record: "TaskRecord", *, fetches: bool = True
) -> "TaskRecord":
    """The record of a task with its payload and result decrypted, if they can be; else `unread` is the error.

    It is for reading and not for running, so a payload may be in any queue of its pipeline (`anywhere`). Without
    `fetches` a payload in a store is not read: the record has its reference.
    """
    result = record.result or b""
    if encryption is None and not is_protected(record.fields.get("encoding")) and not is_protected_result(result):
        return record
    found, after = dict(record.fields), b""
    unread: EncryptionError | PayloadStoreError | None = None
    then = found.get("then", b"")
    context = EncryptionContext(record.id, record.type, record.tag, record.queue, found.get("headers", b""), then)
    try:
        try:
            if not fetches and is_stored(found.get("encoding")):
                raise PayloadStoreUnavailable(f"the payload of task {record.id} is in a payload store: not read")
            payload = decrypt_payload(encryption, record.payload, found.get("encoding"), context, anywhere=True)
            found |= {"payload": payload.raw} | ({"encoding": payload.encoding} if "encoding" in found else {})
            after = payload.after or b""
        except PayloadStoreError as error:  # says nothing of the result, which is on the server
            unread = error
        if result:
            result_of = EncryptionContext(record.id, record.type, record.tag, then=then)
            found["result"] = decrypt_result(encryption, result, result_of)
    except EncryptionError as error:
        unread = error
    return replace(
        record,
        payload=found.get("payload", b""),
        result=found.get("result"),
        fields=found,
        unread=unread,
        after=after,
        is_encrypted=(no_key := is_encrypted(found.get("encoding"))),
        placeholder=ENCRYPTED if no_key else stored_note(found.get("payload", b""), found.get("encoding")),
        has_encrypted_result=is_encrypted_result(found.get("result", b"")),
    )


class ResultSource(msgspec.Struct, array_like=True, omit_defaults=True):
    """Where `total` results arrive: at one join. `groups`: members that are joins themselves and bring a list."""

    join: str
    total: int
    groups: "dict[int, ResultSource]" = {}


class _After(msgspec.Struct, array_like=True):
    rule: Rule
    source: ResultSource


_read = msgspec.msgpack.Decoder(_After).decode


def sources(joins: Iterable[Join]) -> dict[str, bytes]:
    """For each of these joins that has a task, by id: the result metadata that the header of its payload has."""
    joins = list(joins)
    groups: dict[str, dict[int, Join]] = {}
    for one in joins:
        for to in read_onward(one.onward) if one.onward else ():
            groups.setdefault(to.join, {})[to.member] = one

    def source(join: Join) -> ResultSource:
        brought = groups.get(join.id, {})
        if join.results == NO_RESULTS:
            return ResultSource(join.id, 0)
        if join.results == AS_BROUGHT:
            return source(brought[0])
        return ResultSource(join.id, join.total, {number: source(one) for number, one in brought.items()})

    return {
        join.id: msgspec.msgpack.encode(_After(join.rule, source(join))) for join in joins if join.task is not None
    }


def needs_proof(after: bytes | None) -> bool:
    """Whether the step may only run when all before it succeeded: then their results are the proof that they did."""
    return bool(after) and _read(after or b"").rule == "success"


def receive(broker: Broker, keys: QueueKeys, task_id: str) -> tuple[bytes, bytes] | None:
    """Results and outcomes that a flow gave a task, JSON arrays, empty for none; None when the task is gone. Those of
    very many steps are read part by part, as others wait for the server meanwhile. Raises ServerError."""
    found = broker.run(flows.received(keys, task_id))
    if found is None or not found[2]:
        return found and found[:2]
    parts = [broker.run(flows.received_part(keys, task_id, part)) for part in range(found[2])]
    if None in parts:
        return None
    results, outcomes = zip(*(part for part in parts if part), strict=True)
    return b"".join(results), b"".join(outcomes)


def whole_results(fields: Mapping[str, bytes]) -> bytes:
    """The results in the fields of a task's hash, empty for none."""
    parts = fields.get("parts", b"0")
    numbers = range(int(parts) if parts.isdigit() else 0)
    return fields.get("results", b"") or b"".join(fields.get(f"r{number}", b"") for number in numbers)


def decrypted_results(
    encryption: PayloadEncryption | None, results: bytes, outcomes: bytes, after: bytes | None
) -> list[Any]:
    """The results that a flow passed to a task, decrypted. `after`: their metadata in the decrypted payload; None for a
    plain payload, which says nothing of its flow. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted."""
    if after is None:
        return _unproved(encryption, msgspec.Raw(results)) if results else []
    if not after:
        if results:
            raise damaged()
        return []
    assert encryption is not None, "without keys nothing was decrypted"
    found = _read(after)
    said = decode(outcomes)
    ended = said if isinstance(said, list) else []
    must = found.rule == "success"
    return _proved(encryption, results, found.source, [] if must else ended)


def _proved(encryption: PayloadEncryption, raw: bytes, source: ResultSource, excused: list[Any]) -> list[Any]:
    """`excused`: the outcome of each member; a member that did not succeed has no result."""
    parts = _parts(raw)
    if len(parts) != source.total:
        raise damaged()
    values: list[Any] = []
    for number, part in enumerate(parts):
        if part == b"null" and number < len(excused) and excused[number] != "succeeded":
            values.append(None)
        elif number in source.groups:
            values.append(_proved(encryption, part, source.groups[number], []))
        else:
            value, then = encryption.decrypt_handed_on(part)
            if not any((one.join, one.member) == (source.join, number) for one in read_onward(then)):
                raise damaged()
            values.append(decode(value))
    return values


def _parts(raw: bytes) -> list[bytes]:
    try:
        return [bytes(one) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged() from error


def _unproved(encryption: PayloadEncryption | None, raw: msgspec.Raw) -> Any:
    """A group brings an array of results, so arrays are searched; encrypted or signed values are not."""
    text = bytes(raw)
    if text.startswith(b"["):
        return [_unproved(encryption, one) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]
    if is_protected_result(text):
        if encryption is None:
            raise no_keys("result")
        return decode(encryption.decrypt_handed_on(text)[0])
    return msgspec.json.decode(text)
