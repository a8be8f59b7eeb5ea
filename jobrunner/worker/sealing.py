"""Seals what outcomes carry, before they become calls: results, payloads of moves, and of the items of a fan-out."""

from copy import copy
from dataclasses import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.sealing import bound_of, closed, opened
from jobrunner.outcome import Moved, Outcome, Spread, Succeeded
from jobrunner.seal import Bound
from jobrunner.task import derived_id


def opened_attempt(attempt: Attempt, keys: Keys) -> Attempt:
    """The attempt with its payload as it was; the given one stays as it is. Raises SealError."""
    payload, encoding = opened(attempt, keys.queue(attempt.queue))
    made = copy(attempt)
    made.payload, made.encoding = payload, encoding
    return made


def sealed(attempt: Attempt, outcome: Outcome, keys: Keys) -> Outcome:
    """The outcome as it is reported. Raises SealError for a fan-out of a payload that cannot be opened."""
    queue = keys.queue(attempt.queue)
    if queue.seal is None:
        return outcome
    if isinstance(outcome, Succeeded):
        return Succeeded(queue.seal.close_result(outcome.result, bound_of(attempt, queue)))
    if isinstance(outcome, Moved) and outcome.payload is not None:
        return _moved(outcome, outcome.payload, outcome.encoding, bound_of(attempt, queue), queue)
    if isinstance(outcome, Spread):
        return Spread(children=tuple(_child(attempt, place, one, queue) for place, one in enumerate(outcome.children)))
    return outcome


def _child(attempt: Attempt, place: int, child: Moved, queue: QueueKeys) -> Moved:
    payload, encoding = child.payload, child.encoding
    if payload is None:
        raw, read_as = opened(attempt, queue)
        payload, encoding = raw or b"", (read_as or b"").decode("utf-8", "replace")
    bound = Bound(derived_id(attempt.id, place, queue.tag), attempt.type, queue.tag)
    return _moved(child, payload, encoding, bound, queue)


def _moved(outcome: Moved, payload: bytes, encoding: str, bound: Bound, queue: QueueKeys) -> Moved:
    stored, stored_as = closed(queue, payload, encoding, bound)
    return replace(outcome, payload=stored, encoding=stored_as)
