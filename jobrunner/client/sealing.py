"""Closing and opening what travels with tasks: the seal of a client, of what is sent, and of what is read."""

from collections.abc import Iterable

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import QueueKeys
from jobrunner.seal import Bound, Seal, open_payload
from jobrunner.settings import ClientSettings


def seal_of(settings: ClientSettings) -> Seal | None:
    """The seal of a client; None without keys. Raises InvalidOption, EncryptionMissing."""
    if not settings.payload_keys:
        return None
    return Seal(settings.payload_keys, kind=settings.payload_seal, required=settings.require_sealed)


def bound_of(attempt: Attempt, keys: QueueKeys) -> Bound:
    """What the seals of a task are bound to."""
    return Bound(attempt.id, attempt.type, keys.tag)


def opened(attempt: Attempt, keys: QueueKeys) -> tuple[bytes | None, bytes | None]:
    """(payload, encoding) of an attempt as they were. Raises SealError."""
    raw, encoding = attempt.payload, attempt.encoding
    if keys.seal is None and not encoding:
        return raw, encoding
    return open_payload(keys.seal, raw or b"", encoding, bound_of(attempt, keys))


def closed(keys: QueueKeys, raw: bytes, encoding: str, bound: Bound) -> tuple[bytes, str]:
    """(payload, encoding) as they are stored."""
    return (raw, encoding) if keys.seal is None else keys.seal.close(raw, encoding, bound)


def closed_results(keys: QueueKeys, results: Iterable[bytes], attempts: Iterable[Attempt]) -> Iterable[bytes]:
    """Results as they are stored, beside the attempts whose they are."""
    seal = keys.seal
    if seal is None:
        return results
    return (seal.close_result(raw, bound_of(one, keys)) for raw, one in zip(results, attempts, strict=True))
