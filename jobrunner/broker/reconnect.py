"""The policy of drivers for failed connections: how long to retry, which calls to send again, which error to raise."""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from jobrunner.broker.call import Call
from jobrunner.broker.confirmed_writes import ends_with_confirmation
from jobrunner.broker.redis_errors import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    RedisTimeoutError,
    ResponseError,
    TlsError,
    is_demoted,
    server_error,
)
from jobrunner.clock import since_boot, sleep
from jobrunner.errors import OutcomeUnknown, ServerError, ServerUnavailable

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_FULL = "max number of clients"
_NO_DESCRIPTOR = os.strerror(errno.EMFILE)
_HUNG_UP = ("closed by server", "reset by peer", "EOF occurred")
_NO_TLS = ("Timeout connecting", "WRONG_VERSION_NUMBER")
GIVEN_UP: ContextVar[set[Any] | None] = ContextVar("given_up", default=None)
"""The nodes of a cluster that a reader waited for in vain, within `waiting_once`."""


@contextmanager
def waiting_once() -> Iterator[None]:
    """Within it, calls wait for a node of a cluster that is away for one retry timeout together, not for one each: a
    page that makes a dozen calls would otherwise take a dozen timeouts. For readers that show what other nodes have."""
    before = GIVEN_UP.set(set())
    try:
        yield
    finally:
        GIVEN_UP.reset(before)


class Demoted(RedisError):
    """A server refused writes, as it is a replica. Its connections are useless: behind a name or a virtual IP only new
    connections lead to the new primary.

    `left` are the calls to send again: the refused calls, as the others were applied before the server became a
    replica. A confirmation covers all calls before it on its connection, so calls with a confirmation are all sent
    again.
    """

    def __init__(self, calls: Sequence[Call[Any]], replies: list[Any], *, waits: bool) -> None:
        super().__init__("the server is a replica now")
        self.replies = replies
        """The reply to each call so far: an error for a refused call."""
        self.waits = waits
        """Whether the driver waits for a new primary, which sentinels will name; else it retries once, at once."""
        self._calls = calls
        self._has_confirmation = ends_with_confirmation(calls)
        self._places = [at for at, reply in enumerate(replies) if self._has_confirmation or is_demoted(reply)]
        self.left = [calls[at] for at in self._places]
        self.may_repeat = all(calls[at].repeatable or is_demoted(replies[at]) for at in self._places)

    def completed(self, replies: Sequence[Any]) -> list[Any]:
        """The replies to all calls, with `replies` to the calls in `left`. The first answer to a call counts."""
        found = list(self.replies)
        for at, reply in zip(self._places, replies, strict=True):
            if isinstance(found[at], Exception):
                found[at] = reply
        return found

    def followed_by(self, error: "Demoted") -> "Demoted":
        """The error for all calls after another server, or the same server, refused calls of `left`."""
        return Demoted(self._calls, self.completed(error.replies), waits=self.waits)

    def given_up(self, error: ServerError) -> list[Any]:
        """The replies to all calls, with `error` for the calls in `left`. Raises `error` when no call was answered, and
        OutcomeUnknown when calls were answered, but not their confirmation."""
        if all(isinstance(reply, Exception) for reply in self.replies):
            raise error
        if self._has_confirmation:
            raise OutcomeUnknown(f"written, at least in part, on a server that is a replica now; since then: {error}")
        return self.completed([error] * len(self.left))


def _unavailable(server: object, error: Exception) -> str:
    told = str(error).removesuffix(".")
    if _FULL in told:
        return f"the server at {server} takes no more connections: {told}; raise its maxclients, or end some clients"
    if _NO_DESCRIPTOR in told:
        return (
            f"this process has no file descriptor for a connection to {server}: {told}; find what keeps files and "
            "sockets open, or raise its limit (ulimit -n)"
        )
    if isinstance(error, BusyLoadingError):
        return f"the server at {server} does not answer yet: {told}; wait until it has ended that"
    return f"no server at {server}: {told}; start it, or name another with --url or JOBRUNNER_URL{_tls(server, told)}"


def _tls(server: object, told: str) -> str:
    """Advice about TLS for the error of a server that closed the connection or was silent; '' when none fits."""
    scheme = re.match(r"redis(s?)(\+\w+)?://", str(server))
    if scheme is None:
        return ""
    if any(words in told for words in _HUNG_UP):
        if scheme[1]:
            return "; if it asks for a certificate of the client, its URL has ssl_certfile and ssl_keyfile"
        return f"; if it expects TLS, its URL begins with rediss{scheme[2] or ''}://"
    if scheme[1] and any(words in told for words in _NO_TLS):
        return f"; if it does not expect TLS, its URL begins with redis{scheme[2] or ''}://"
    return ""


class ReconnectPolicy(msgspec.Struct):
    """The retries of one exchange: pauses that double, until `limit_s` seconds have passed. A struct, which is cheap to
    create: every exchange creates a policy, and few use it.

    With a limit above 0 a broken connection gets a second try, however late: the process itself may have been stopped
    meanwhile, or waited for the processor. There is no second try after a silence of a whole timeout, nor for calls
    that are too old to repeat (`Call.repeat_s`).
    """

    limit_s: float
    server: object
    began: float = msgspec.field(default_factory=since_boot)
    next_pause_s: float = _FIRST_PAUSE_S
    was_demoted: bool = False
    has_repeated: bool = False
    unsent_until: float = 0.0
    """The latest time at which nothing had been sent."""
    lost: Exception | None = None
    """The error for which the calls are sent again: the server may have applied them by then."""
    unanswered: Call[Any] | None = None
    """The first of these calls that `must_be_answered`."""

    def wait_to_connect(self, error: Exception) -> None:
        """Pauses before the next try to connect; raises the errors of `pause_to_connect`."""
        sleep(self.pause_to_connect(error))

    def wait_to_repeat(self, error: Exception, calls: Sequence[Call[Any]], *, stale: bool) -> None:
        """Pauses before the calls are sent again; raises OutcomeUnknown when they may not be."""
        sleep(self.pause_to_repeat(error, calls, stale=stale))

    def pause_to_connect(self, error: Exception) -> float:
        """Seconds to pause before the next try to connect, or before the next request to a server that is loading.

        Raises ServerUnavailable when the time is up, or OutcomeUnknown if the calls were sent and must be answered;
        ServerRefused for a wrong user or password, and Demoted when the calls are not sent again.
        """
        if isinstance(error, (AuthenticationError, ResponseError)):
            raise server_error(error, server=self.server) from error
        if isinstance(error, Demoted) and not self._goes_on_after(error):
            raise error
        if isinstance(error, Demoted) and not error.waits:
            return 0.0
        if isinstance(error, TlsError):
            raise self._given_up(f"no TLS with the server at {self.server}: {error}") from error
        if self._is_over(error):
            raise self._given_up(_unavailable(self.server, error)) from error
        if self.lost is None:
            self.unsent_until = since_boot()
        return self._next_pause()

    def pause_to_repeat(self, error: Exception, calls: Sequence[Call[Any]], *, stale: bool) -> float:
        """Seconds to pause before the calls are sent again; raises OutcomeUnknown when they may not be.

        `stale`: the connection was idle before, so the first repetition needs no pause.
        """
        once = next((call for call in calls if not call.repeatable), None)
        if once is not None or self._is_over(error):
            raise OutcomeUnknown(self._broke_during(once, error)) from error
        self.has_repeated, self.lost = True, error
        self.unanswered = next((call for call in calls if call.must_be_answered), None)
        return 0.0 if stale else self._next_pause()

    def check_age(self, calls: Sequence[Call[Any]]) -> None:
        """Raises OutcomeUnknown when it is too late to send the calls again. Callers have a connection by then, as the
        time to connect counts too."""
        age_s = since_boot() - max(self.began, self.unsent_until)
        late = next((call for call in calls if call.repeat_s < age_s), None)
        if self.lost is not None and late is not None:
            problem = self._broke_during(late, self.lost)
            raise OutcomeUnknown(f"{problem}, and {age_s:.0f} s later it is too late to send it again") from self.lost

    def _given_up(self, why: str) -> ServerError:
        if self.unanswered is None or self.lost is None:
            return ServerUnavailable(why)
        return OutcomeUnknown(f"{self._broke_during(self.unanswered, self.lost)}; since then: {why}")

    def _broke_during(self, call: Call[Any] | None, error: Exception) -> str:
        name = call.script.name if call is not None and call.script else "the command"
        return f"the connection to {self.server} broke during {name}: {error}; it was applied or it was not"

    def _goes_on_after(self, error: Demoted) -> bool:
        was_demoted, self.was_demoted = self.was_demoted, True
        return error.may_repeat and (error.waits or not was_demoted)

    def _next_pause(self) -> float:
        self.has_repeated = True
        pause, self.next_pause_s = self.next_pause_s, min(self.next_pause_s * 2, _LONGEST_PAUSE_S)
        return pause

    def _is_over(self, error: Exception) -> bool:
        may_end = self.has_repeated or self.limit_s <= 0 or isinstance(error, RedisTimeoutError)
        return may_end and since_boot() >= self.began + self.limit_s
