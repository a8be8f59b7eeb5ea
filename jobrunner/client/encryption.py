"""Encrypts and decrypts payloads and results: the encryption of a client, and its use on sent and stored tasks."""

from collections.abc import Iterable

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import QueueKeys
from jobrunner.encryption.cipher import DecryptedPayload, EncryptionContext, PayloadEncryption, open_payload
from jobrunner.settings import ClientSettings


def seal_of(settings: ClientSettings) -> PayloadEncryption | None:
    """The seal of a client; None without keys. Raises InvalidOption, EncryptionMissing."""
    if not settings.payload_keys:
        return None
    return PayloadEncryption(
        settings.payload_keys,
        kind=settings.payload_encryption,
        required=settings.require_encryption,
        prefix=settings.prefix,
    )


def bound_of(attempt: Attempt, keys: QueueKeys) -> EncryptionContext:
    """The encryption context that binds the payload of an attempt in that queue."""
    return EncryptionContext(attempt.id, attempt.type, keys.tag, keys.name, attempt.headers or b"", attempt.then or b"")


def bound_result(attempt: Attempt, keys: QueueKeys) -> EncryptionContext:
    """The encryption context that binds the result of an attempt: without the queue, as its task may have moved."""
    return EncryptionContext(attempt.id, attempt.type, keys.tag, then=attempt.then or b"")


def opened(attempt: Attempt, keys: QueueKeys) -> tuple[bytes | None, bytes | None]:
    """(payload, encoding) of an attempt as they were. Raises EncryptionError."""
    raw, encoding = attempt.payload, attempt.encoding
    if keys.seal is None and not encoding:
        return raw, encoding
    return unsealed(attempt, keys)[:2]


def unsealed(attempt: Attempt, keys: QueueKeys) -> DecryptedPayload:
    """The payload of an attempt as it was. Raises EncryptionError."""
    return open_payload(keys.seal, attempt.payload or b"", attempt.encoding, bound_of(attempt, keys))


def closed(
    keys: QueueKeys, raw: bytes, encoding: str, bound: EncryptionContext, *, after: bytes = b""
) -> tuple[bytes, str]:
    """(payload, encoding) as they are stored."""
    return (raw, encoding) if keys.seal is None else keys.seal.close(raw, encoding, bound, after=after)


def closed_results(keys: QueueKeys, results: Iterable[bytes], attempts: Iterable[Attempt]) -> Iterable[bytes]:
    """Stored results, each with the attempt that returned it."""
    seal = keys.seal
    if seal is None:
        return results
    return (seal.close_result(raw, bound_result(one, keys)) for raw, one in zip(results, attempts, strict=True))
