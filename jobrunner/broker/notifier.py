"""Waiting in the server for a hint that there may be work: a blocking pop on wake keys, on a connection of its own.

A hint may be lost with the listener that took it, so a listener also polls after a while. The server passes each hint
to the listener that has waited longest. A worker listens only while it has free slots and knows of no work
(`Notifier`), and hands a hint on that it cannot use; a lost hint costs at most one poll interval.

Calls are pipelined behind the wait (BZPOPMIN), so that an idle worker gets the hint and its first tasks in one reply.
"""

import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.call import BROKEN, Call, attempt_to_interpret, pack_calls, read_reply
from jobrunner.broker.calls.queues import wake
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.redis_errors import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    RedisConnectionError,
    RedisError,
    TlsError,
    TryAgainError,
    server_error,
)
from jobrunner.broker.resp import pack
from jobrunner.broker.slots import slot_of
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, ServerUnavailable
from jobrunner.loop import Complaints, Loop, Signal

LATE_S = 5.0
SHORTEST_S = 0.01
_NOT_HERE = (AskError, ClusterDownError, ReadOnlyError, TryAgainError)
"""Replies of a server that does not serve these queues any more, or not at the moment."""
_LISTEN_S = 60.0
_AWAY_S = 1.0
"""The wait after an error, or with a node of a cluster away: its end shows soon that the server is back."""
_LONGEST_WAIT_S = 3600.0
_FAREWELL_S = 0.5
_CLOSE_TRIES = 20
_CLOSE_PAUSE_S = 0.05

OnWake = Callable[[Sequence[str] | None, list[Any]], None]
"""Called with the queues that woke a worker (None: all may have, as hints were lost with the connection), and the
values of the calls that were to follow, or their errors."""
Plan = Callable[[], Sequence[Call[Any]]]


class Notifier:
    """A thread that blocks on the server while it is armed, and calls `on_wake` with what came."""

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        queues: Iterable[str],
        on_wake: OnWake = lambda _queues, _brought: None,
        complaints: Complaints | None = None,
    ) -> None:
        self._broker, self._keys = broker, keys
        self._listener = WakeListener(broker, [keys.queue(name) for name in queues])
        self._next: WakeListener | None = None
        # With an injected clock the age of a reply is unknown.
        self.can_bring = self._listener.can_bring and broker.now_ms is server_clock
        self._plan: Plan = tuple
        self.on_wake = on_wake
        self._armed = Signal()
        self.is_armed = False
        self._closing = False
        self._listen_s = _LISTEN_S
        self._loop = Loop("wakeup", self.step, complaints)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread."""
        self._loop.start()

    def arm(self, plan: Plan = tuple) -> None:
        """Listens until a hint comes, across polls, which need no command of their own. Arming twice is arming once.

        The calls of `plan`, which the thread asks for when it begins to wait, are carried out when the wait ends, where
        that `can_bring` their values along.
        """
        with self._lock:
            if self.is_armed:
                return
            self.is_armed = True
            self._plan = plan
        self._armed.set()

    def listen_to(self, queues: Iterable[str]) -> None:
        """Listens to these queues from the next wait on."""
        self._next = WakeListener(self._broker, [self._keys.queue(name) for name in queues])

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._closing = True
        self._loop.stop(0)
        self._armed.set()
        self._listener.leave()
        if self._loop.stop(_FAREWELL_S):
            self._listener.close()
            return
        for _ in range(_CLOSE_TRIES):  # the thread may be opening its connection just now
            self._listener.close()
            if self._loop.stop(_CLOSE_PAUSE_S):
                return

    def step(self) -> float:
        """One wait in the server."""
        if not self._armed.wait(_LONGEST_WAIT_S) or self._closing:
            return 0.0
        if self._next is not None:
            self._listener.close()
            self._listener, self._next = self._next, None
            self.can_bring = self._listener.can_bring and self._broker.now_ms is server_clock
        plan, self._plan = self._plan, tuple  # once: without the replies, the effects of the calls are unknown
        try:
            calls = plan() if self.can_bring else ()  # it could when the plan was made, for the queues of that moment
            heard, replies = self._listener.wait_with(self._listen_s, calls)
        except Exception:
            self._listen_s = _AWAY_S
            self._armed.set()
            self.on_wake(None, [])
            raise
        self._listen_s = _LISTEN_S
        with self._lock:
            self.is_armed = False
        self.on_wake(heard, [attempt_to_interpret(call, reply) for call, reply in zip(calls, replies, strict=True)])
        return 0.0


class WakeListener:
    """Blocks on the hints of some queues: of work, or with `of="capacity"` of capacity in full ones. On a cluster it
    has a connection for each slot.

    Invariant: after a wait no connection goes on waiting, as it would take a hint that is then lost.
    """

    def __init__(self, broker: Broker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._broker = broker
        self._queues = {queue.name: queue for queue in queues}
        lines = _by_slot(broker.endpoint, self._queues.values())
        self._ears = [_ListeningConnection(broker, names_of(some, of)) for some in lines]

    @property
    def can_bring(self) -> bool:
        """Whether `wait_with` takes calls: it asks one server on one connection."""
        return len(self._ears) == 1

    def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Hints of more queues, which may come
        together on a cluster, are handed on. Raises the errors of ServerError."""
        heard, _ = self.wait_with(at_most_s, ())
        first, *others = heard or [""]
        if others:
            self._broker.run_many([wake(self._queues[name]) for name in others])
        return first

    def wait_with(self, at_most_s: float, calls: Sequence[Call[Any]]) -> tuple[list[str], list[Any]]:
        """All queues that a hint came for, and `calls` pipelined behind the wait, so that one reply has the hint and
        theirs.

        Returns the names and the replies, errors as values. Calls are sent once, and applied even when a reply is lost.
        """
        at_most_s = max(at_most_s, SHORTEST_S)
        try:
            if not self.can_bring:
                return self._wait_for_any(at_most_s), []
            name, replies = self._ears[0].wait(at_most_s, calls)
            return [name] if name else [], replies
        except (*BROKEN, RedisError) as error:
            self.close()
            raise listening_error(error, self._broker.endpoint) from error
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Ends a wait, whose reply is still read when there is one; nothing more is sent on the connections."""
        for ear in self._ears:
            ear.leave()

    def close(self) -> None:
        """Ends the connections; a thread that waits on them gets an error.

        One that is just about to wait may open its connection once more: close again until it has ended.
        """
        for ear in self._ears:
            ear.close()

    def _wait_for_any(self, at_most_s: float) -> list[str]:
        asked, away = self._ask_all(at_most_s)
        with selectors.DefaultSelector() as selector:
            for ear, answers in asked.items():
                selector.register(answers, selectors.EVENT_READ, ear)
            ends_s = min(at_most_s, _AWAY_S) if away else at_most_s + LATE_S
            ready: list[_ListeningConnection] = [key.data for key, _ in selector.select(ends_s)]
        if not ready and not away:
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        heard = [ear.answer() for ear in ready] + self._silence([ear for ear in asked if ear not in ready])
        return [name for name in heard if name]

    def _ask_all(self, at_most_s: float) -> "tuple[dict[_ListeningConnection, socket.socket], bool]":
        """Asks every node that answers. Returns who waits where, and whether a node is away: it is to be listened to
        again soon after it is back. Raises RedisConnectionError when all are."""
        asked: dict[_ListeningConnection, socket.socket] = {}
        failed: Exception | None = None
        for ear in self._ears:
            try:
                asked[ear] = ear.ask(at_most_s)
            except BROKEN as error:
                failed = error
        if failed is not None and not asked:
            raise failed
        return asked, failed is not None

    def _silence(self, ears: "list[_ListeningConnection]") -> list[str]:
        """Ends what still waits; returns what came meanwhile.

        An UNBLOCK may reach the server before the wait that it is to end, as it comes on another connection. It ends
        nothing then, so it is sent again until the wait is over.
        """
        heard: list[str] = []
        gives_up_at = monotonic() + LATE_S
        while ears:
            replies = self._broker.run_each([ear.unblocking() for ear in ears])
            ended = [ear.end(unblocked, gives_up_at) for ear, unblocked in zip(ears, replies, strict=True)]
            heard += [name for name in ended if name is not None]
            ears = [ear for ear, name in zip(ears, ended, strict=True) if name is None]
        return heard


class _ListeningConnection:
    """One connection that waits."""

    def __init__(self, broker: Broker, names: dict[bytes, str]) -> None:
        self._broker = broker
        self._names = names
        self._key = next(iter(names), b"")
        self._id = 0
        self._connection: Any = None
        self._in_use: Any = None

    def wait(self, at_most_s: float, calls: Sequence[Call[Any]]) -> tuple[str, list[Any]]:
        connection = self._in_use = self._send(pop_hint(self._names, at_most_s) + pack_calls(calls, b""))
        if not connection.can_read(timeout=at_most_s + LATE_S):  # the way to the server is cut, silently
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        return self.answer(), [read_reply(connection) for _ in calls]

    def ask(self, at_most_s: float) -> socket.socket:
        """Asks a node of a cluster and does not wait; returns what becomes readable with the answer. Raises
        RedisConnectionError, at once for a node that did not answer a moment ago."""
        cluster = self._broker.endpoint.cluster
        address = None if cluster is None else cluster.last_known(self._key)
        if cluster is not None and (why := cluster.why_away(address)) is not None:
            self.close()
            raise RedisConnectionError(why)
        try:
            connection = self._in_use = self._send(pop_hint(self._names, at_most_s), with_id=True)
        except BROKEN as error:
            self.close()
            if cluster is not None and address is not None:
                cluster.failed(address, error)
            raise
        asked: socket.socket = connection.socket
        return asked

    def answer(self) -> str:
        return queue_in(self._names, self._in_use.read_response())

    def unblocking(self) -> Call[int]:
        """A command that the server answers at once."""
        return Call(words=("CLIENT", "UNBLOCK", self._id), keys=(self._key,), read=int)

    def end(self, unblocked: int | Exception, gives_up_at: float) -> str | None:
        """The reply to a wait that was to be interrupted; None when it has not come and may still begin. Closes a
        connection that cannot be interrupted.

        `unblocked` is the reply to `unblocking`: 1 when the connection waited, 0 when its wait was over, or not begun.
        """
        if not isinstance(unblocked, Exception):
            if self._in_use.can_read(timeout=LATE_S if unblocked else 0):
                return self.answer()
            if not unblocked and monotonic() < gives_up_at:
                return None
        self.close()
        return ""

    def leave(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(RedisError, OSError):  # it is not open
                # The method of SSLSocket would also end the decryption of what is still to be read.
                socket.socket.shutdown(connection.socket, socket.SHUT_WR)

    def close(self) -> None:
        connection, self._connection = self._connection or self._in_use, None
        if connection is not None:
            connection.disconnect()

    def _send(self, command: bytes, *, with_id: bool = False) -> Any:
        if self._connection is not None:
            with suppress(*BROKEN):  # it rested, and the server may have been restarted since
                self._connection.send(command)
                return self._connection
            self.close()
        connection = self._connection = self._broker.endpoint.open(key=self._key)  # its time limit is for the greeting
        connection.connect()
        if with_id:
            self._id = connection.ask("CLIENT", "ID")
        connection.send(command)
        return connection


def _by_slot(endpoint: Endpoint, queues: Iterable[QueueKeys]) -> list[list[QueueKeys]]:
    found: dict[int, list[QueueKeys]] = {}
    for queue in queues:
        found.setdefault(slot_of(queue.wake) if endpoint.cluster is not None else 0, []).append(queue)
    return list(found.values()) or [[]]


def names_of(queues: Iterable[QueueKeys], of: str) -> dict[bytes, str]:
    """The names of queues by their wake keys."""
    return {getattr(queue, of): queue.name for queue in queues}


def pop_hint(names: dict[bytes, str], at_most_s: float) -> bytes:
    """The command that waits for a hint."""
    return pack(["BZPOPMIN", *names, f"{at_most_s:.3f}"])


def queue_in(names: dict[bytes, str], reply: Any) -> str:
    """The queue of the hint in its reply; '' when none came in time.

    The queue becomes the last of `names`: BZPOPMIN pops from the first key that has something, so with a fixed order a
    queue behind busy ones would not be heard of for as long as they are busy.
    """
    if not reply:
        return ""
    name = names[reply[0]] = names.pop(reply[0])
    return name


def listening_error(error: Exception, endpoint: Endpoint) -> JobrunnerError:
    """The error of this package for one that ended a wait."""
    if endpoint.cluster is not None:
        endpoint.cluster.is_stale = True
    if isinstance(error, (*BROKEN, *_NOT_HERE)) or "UNBLOCKED" in str(error):
        missing = "no TLS with the server" if isinstance(error, TlsError) else "no server"
        return ServerUnavailable(f"{missing} at {endpoint}: {str(error) or 'no answer in time'}")
    return server_error(error)
