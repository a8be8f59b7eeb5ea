"""Encrypts the contents of outcomes before they become calls: results, payloads of moves, and of fan-out items."""

from copy import copy
from dataclasses import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.encryption import bound_result, closed, unsealed
from jobrunner.encryption.cipher import EncryptionContext
from jobrunner.outcome import FannedOut, Moved, Outcome, Succeeded
from jobrunner.task import derived_id


def opened_attempt(attempt: Attempt, keys: Keys) -> tuple[Attempt, bytes | None]:
    """A copy of the attempt with its payload opened, and the results that it receives (see client/flow_results.py).
    Raises EncryptionError."""
    opened = unsealed(attempt, keys.queue(attempt.queue))
    made = copy(attempt)
    made.payload, made.encoding = opened.raw, opened.encoding
    return made, opened.after


def sealed(attempt: Attempt, outcome: Outcome, keys: Keys) -> Outcome:
    """The outcome as it is reported. Raises EncryptionError for items made of a payload that cannot be opened."""
    queue = keys.queue(attempt.queue)
    if queue.seal is None:
        return outcome
    if isinstance(outcome, Succeeded):
        return Succeeded(queue.seal.close_result(outcome.result, bound_result(attempt, queue)))
    if isinstance(outcome, Moved):
        return _moved(attempt, outcome, queue, keys.queue(outcome.queue), attempt.id, attempt.then or b"")
    if isinstance(outcome, FannedOut):
        return FannedOut(
            children=tuple(
                _moved(attempt, one, queue, keys.queue(one.queue), derived_id(attempt.id, place, queue.tag), b"")
                for place, one in enumerate(outcome.children)
            )
        )
    return outcome


def _moved(attempt: Attempt, outcome: Moved, queue: QueueKeys, to: QueueKeys, task_id: str, then: bytes) -> Moved:
    """Encrypts the payload for the target queue. A move without a payload of its own takes the payload of the
    attempt."""
    payload, encoding, after = outcome.payload, outcome.encoding, b""
    if payload is None or then:
        opened = unsealed(attempt, queue)
        if payload is None:
            payload, encoding = opened.raw, opened.encoding.decode("utf-8", "replace")
        if then:
            after = opened.after or b""
    headers = attempt.headers if outcome.headers is None else outcome.headers
    bound = EncryptionContext(task_id, attempt.type, to.tag, to.name, headers or b"", then)
    stored, stored_as = closed(to, payload, encoding, bound, after=after)
    return replace(outcome, payload=stored, encoding=stored_as)
