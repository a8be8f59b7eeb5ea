"""Encrypts or signs the tasks of a client before a call, and decrypts its records after it; no other module does.

The broker knows nothing of encryption: calls take and return tasks and results in their stored form. `encryption` is
the client's, None without keys.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import QueueKeys
from jobrunner.encryption.cipher import (
    DecryptedPayload,
    EncryptionContext,
    PayloadEncryption,
    decrypt_payload,
    decrypt_result,
    is_encrypted,
    is_encrypted_result,
    is_protected_result,
)
from jobrunner.encryption.envelope import is_protected, is_stored
from jobrunner.errors import EncryptionError, PayloadStoreError, PayloadStoreUnavailable
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

    `owner_id` is the id of the task that gets the payload when that is another task: the unique task whose payload this
    task replaces. `after` describes the results that a step of a flow receives (see flow_results.py).
    """
    if encryption is None:
        return task
    context = _context_of(keys, task, owner_id)
    payload, encoding = encryption.encrypt(task.payload, task.encoding, context, after=after)
    return _as_stored(task, payload, encoding)


def encrypted_tasks(encryption: PayloadEncryption, keys: QueueKeys, tasks: Sequence[Task]) -> list[Task]:
    """The tasks as they are stored in the queue of `keys`; writes large payloads to the client's payload store. Raises
    PayloadStoreUnavailable."""
    if not isinstance(encryption, StoredPayloads):
        return [encrypted_task(encryption, keys, task) for task in tasks]
    found = encryption.encrypt_many([(task.payload, task.encoding, _context_of(keys, task)) for task in tasks])
    return [_as_stored(task, *stored) for task, stored in zip(tasks, found, strict=True)]


def _context_of(keys: QueueKeys, task: Task, owner_id: str | None = None) -> EncryptionContext:
    of = task.id if owner_id is None else owner_id
    return EncryptionContext(of, task.type, keys.tag, keys.name, task.headers or b"", task.then or b"")


def _as_stored(task: Task, payload: bytes, encoding: str) -> Task:
    """The task with this stored payload; the same object when nothing changed."""
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
    """(payload, encoding) of an attempt, as `decrypted_payload`; the attempt's own without keys and without an
    encoding. Raises EncryptionError."""
    if encryption is None and not attempt.encoding:
        return attempt.payload, attempt.encoding
    return decrypted_payload(encryption, keys, attempt)[:2]


def decrypted_record(
    encryption: PayloadEncryption | None, record: "TaskRecord", *, fetches: bool = True
) -> "TaskRecord":
    """The record of a task with its payload and result decrypted where possible; else `unread` is the error, that of
    the result if it has one.

    The record is for reading, not for running, so a payload may be in any queue of its pipeline (`anywhere`). Without
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
        if not fetches and is_stored(found.get("encoding")):
            raise PayloadStoreUnavailable(f"the payload of task {record.id} is in a payload store: not read")
        payload = decrypt_payload(encryption, record.payload, found.get("encoding"), context, anywhere=True)
        found |= {"payload": payload.raw} | ({"encoding": payload.encoding} if "encoding" in found else {})
        after = payload.after or b""
    except (EncryptionError, PayloadStoreError) as error:  # does not concern the result, which may have another key
        unread = error
    try:
        if result:
            result_of = EncryptionContext(record.id, record.type, record.tag, then=then)
            found["result"] = decrypt_result(encryption, result, result_of)
    except EncryptionError as error:
        unread = error
    return replace(
        record,
        payload=found.get("payload", b""),
        result=found.get("result") or None,
        fields=found,
        unread=unread,
        after=after,
        is_encrypted=(no_key := is_encrypted(found.get("encoding"))),
        placeholder=ENCRYPTED if no_key else stored_note(found.get("payload", b""), found.get("encoding")),
        has_encrypted_result=is_encrypted_result(found.get("result", b"")),
    )
