"""Attempts and a client made by hand, for tests that need no server."""

import itertools
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import Keys
from jobrunner.outcome import Failed, Outcome
from jobrunner.settings import ClientSettings

_numbers = itertools.count(1)


def attempt_at(job: str, payload: bytes = b"{}", **fields: Any) -> Attempt:
    """The first attempt of a task of that job, in queue `q`, with an id and a token of its own."""
    number = next(_numbers)
    known: dict[str, Any] = {
        "queue": "q",
        "id": f"task{number}",
        "token": f"token.{number}",
        "deadline_ms": 1_700_000_030_000.0,
        "keepalive_ms": 30_000.0,
        "number": 1,
        "retry_count": 0,
        "enqueue_time_ms": 1_700_000_000_000.0,
        "max_attempts": 5,
        "headers": None,
    }
    return Attempt(**{**known, "type": job, "payload": payload, **fields})


def without_origin(outcome: Outcome) -> Outcome:
    """The outcome without the class and the place of its error, which depend on the test."""
    return replace(outcome, error_type="", place="") if isinstance(outcome, Failed) else outcome


def client_of(server: Any, **options: Any) -> Any:
    """A stand-in for a client that talks to `server`, for a Runner; with prefix `t` and these settings."""
    settings = ClientSettings(url="", prefix="t", **options)
    return SimpleNamespace(_broker=server, _keys=Keys("t"), _encryption=None, settings=settings)
