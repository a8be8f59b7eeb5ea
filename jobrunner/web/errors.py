"""Refusals: each has an HTTP status and a line with the reason."""

import asyncio
import logging

from jobrunner.errors import (
    JobrunnerError,
    OutcomeUnknown,
    ServerError,
    ServerUnavailable,
    TaskGone,
    UnknownJob,
    UsageError,
)

_log = logging.getLogger("jobrunner.web")


NOTED = "jobrunner.noted"
"""Key in the scope of a request whose refusal is already in the audit log."""


class Refused(Exception):
    """A refused request. The user sees the text, so it contains no secret."""

    status = 400


class NotIdentified(Refused):
    """The request is not authenticated."""

    status = 401


class NotAllowed(Refused):
    """The user lacks the role, or the request lacks a valid CSRF token."""

    status = 403


class NotThere(Refused):
    """The requested object does not exist (any more)."""

    status = 404


class TooMany(Refused):
    """Too many wrong secrets from one address; `wait_s`: seconds until the next attempt is allowed."""

    status = 429

    def __init__(self, wait_s: int) -> None:
        length = f"{wait_s} seconds" if wait_s < 120 else f"{-(-wait_s // 60)} minutes"
        super().__init__(f"too many wrong passwords or tokens: wait {length}, then try again")
        self.wait_s = wait_s


class TooLarge(Refused):
    """The form is larger than any form of this dashboard."""

    status = 413


class TooSlow(Refused):
    """The form did not arrive in time."""

    status = 408


class TooBusy(Refused):
    """The limit of concurrent requests is reached."""

    status = 503


def explained(error: Exception) -> tuple[int, str]:
    """HTTP status and one line for the user. Unexpected errors are logged in full and reported without details."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, Refused):
        return error.status, text
    if isinstance(error, TaskGone | UnknownJob):
        return NotThere.status, text
    if isinstance(error, UsageError):
        return Refused.status, text
    if isinstance(error, ServerUnavailable | asyncio.TimeoutError):
        return 503, f"the server is away: {text}"
    if isinstance(error, OutcomeUnknown):  # away, too: in the midst of a call
        return 503, f"the server did not answer, and what became of this is not known: {text}"
    if isinstance(error, ServerError):
        return 502, text
    if isinstance(error, JobrunnerError):  # a full queue, a key that this process lacks: nothing behind it is broken
        return 409, text
    _log.error("a request was not answered", exc_info=error)
    return 500, "internal error; the log of the dashboard has the details"
