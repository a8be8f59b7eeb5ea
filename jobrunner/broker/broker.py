"""The driver for threads: runs calls on pooled connections.

Invariant: a call that may not be repeated is sent once; a connection with an unread reply is never used again.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jobrunner.broker.call import (
    BROKEN,
    NOTED_S,
    Call,
    attempt_to_interpret,
    has_errors,
    interpret,
    needs_live_connection,
    pack_calls,
    pack_unknown,
    read_reply,
    told_again,
    waits_for_disk,
)
from jobrunner.broker.calls.server import ping
from jobrunner.broker.confirmed_writes import (
    Steps,
    confirmation_marks,
    confirmed,
    outlast_sync,
    send_again,
    written,
)
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.reconnect import Demoted, ReconnectPolicy
from jobrunner.broker.redis_errors import BusyLoadingError, RedisError, is_demoted, raise_if_loading, server_error
from jobrunner.clock import sleep
from jobrunner.errors import NO_ANSWER, ClientClosed, JobrunnerError, ServerError

if TYPE_CHECKING:
    from jobrunner.broker.cluster_nodes import ClusterNodes

T = TypeVar("T")


def server_clock() -> bytes:
    """The default clock of scripts: the server's own."""
    return b""


def ignore() -> None:
    """The default of `_on_dead`: does nothing, as a driver for one server greets each new connection."""


class Idle:
    """Idle connections of one process. A fork starts with none: a socket must not be shared."""

    def __init__(self) -> None:
        self._resting: deque[Any] = deque()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._resting) if self._pid == os.getpid() else 0

    def take(self) -> Any | None:
        """The connection used last, or None."""
        if self._pid != os.getpid():
            self._resting, self._pid = deque(), os.getpid()
        try:
            return self._resting.pop()
        except IndexError:
            return None

    def rest(self, connection: Any) -> None:
        """Puts a connection back after a complete exchange."""
        self._resting.append(connection)

    def take_all(self) -> list[Any]:
        """Removes and returns all connections."""
        taken = []
        while (connection := self.take()) is not None:
            taken.append(connection)
        return taken


def has_died(connection: Any) -> bool:
    """Whether the server closed an idle connection, or left something unread on it."""
    try:
        return bool(connection.can_read(timeout=0))
    except BROKEN:
        return True


class Broker:
    """Runs calls. Opens connections on demand, keeps idle ones for the next call, and disconnects all on `close`.

    Each new connection sends the `greeting` before anything else; on a cluster ClusterNodes sends it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        retry_timeout_s: float = 2.0,
        now_ms: Callable[[], bytes] = server_clock,
        confirmation: Call[None] | None = None,
        greeting: Call[None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._confirmation = confirmation
        self._greeting = greeting
        self.now_ms = now_ms
        self._retry_timeout_s = retry_timeout_s
        self._is_patient = retry_timeout_s > NOTED_S
        """Whether retries outlast the note of a call. Idle connections are then checked before a send: on a dead
        connection nothing is sent, so the calls do not become too old to repeat."""
        self._on_dead: Callable[[], None] = ignore
        """Called when an idle connection turns out to be dead; the exchange continues on another one."""
        self._idle = Idle()
        self._has_sentinels = endpoint.sentinels is not None
        self._take = self._idle.take if endpoint.sentinels is None else self._take_checked
        self._closed = False
        self._nodes: ClusterNodes | None = None
        if endpoint.cluster is not None:
            from jobrunner.broker import cluster_nodes  # imported for clusters only

            self._nodes = cluster_nodes.ClusterNodes(
                endpoint, endpoint.cluster, retry_timeout_s, self._node, confirmation=confirmation, greeting=greeting
            )
            self._replies = self._nodes.replies  # type: ignore[method-assign]  # one server has no extra call

    def run(self, call: Call[T]) -> T:
        """The value of one call. Raises the errors of ServerError, or what the call's reader raises."""
        return interpret(call, self._replies((call,))[0])

    def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The values of several calls, in order, in one round trip. Raises the error of the first refused call."""
        return [interpret(call, reply) for call, reply in zip(calls, self._replies(calls), strict=True)]

    def write(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Like run_many, but returns only when the writes are as durable as the `confirmation` of this driver demands.

        Raises OutcomeUnknown when the server does not confirm that in time, and instead of ServerUnavailable when it
        has applied some of the calls.
        """
        if self._confirmation is None:
            return self.run_many(calls) if len(calls) == 1 else written(self.run_each(calls))
        marks = confirmation_marks(calls, everywhere=self._nodes is not None)
        return confirmed(self.run_each([*calls, *marks, self._confirmation]), len(calls))

    def run_each(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Like run_many, but the value of a refused call is its error.

        `meanwhile` is called when the calls are sent, before their replies are read; again when they are sent again.
        """
        replies = self._replies(calls, meanwhile)
        return [attempt_to_interpret(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def connect(self) -> None:
        """Opens a connection when none is idle, so that a caller that measures its next call does not measure the
        connect as well, which takes several round trips. Does nothing on a cluster: each node has connections of its
        own, and a node that is away must not keep the caller from the others."""
        if self._nodes is None and not self._idle:
            self.run(ping())

    def replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The raw replies of the server; an error reply is a value."""
        return self._replies(calls)

    @property
    def sends_ahead(self) -> bool:
        """Whether a write may be sent before the replies to earlier writes: only to a single server, without Sentinel
        and without a confirmation."""
        return self._nodes is None and self._confirmation is None and not self._has_sentinels

    def is_away(self, error: Exception) -> bool:
        """Whether this error of a call means that no other call would be answered either. Always False on a cluster,
        where a single node may be away."""
        return self._nodes is None and isinstance(error, NO_ANSWER)

    def nodes(self) -> "list[Broker]":
        """This driver; on a cluster a driver for each primary. For commands without a key."""
        return [self] if self._nodes is None else cast("list[Broker]", self._nodes.primaries())

    def node_of(self, key: bytes) -> object:
        """The cluster node that served this key when it last replied; None when that is unknown, and for a single
        server. Sends nothing."""
        return None if self.endpoint.cluster is None else self.endpoint.cluster.last_known(key)

    def lend(self) -> Any | None:
        """Takes an idle connection, for a caller that sends and receives by itself; None when none is idle, and on a
        cluster, where a connection leads to one node. The caller returns it with `take_back` after the last reply, or
        disconnects it."""
        return self._take() if self._nodes is None else None

    def take_back(self, connection: Any) -> None:
        """Takes back a lent connection on which every reply was received, for the next call. On a cluster it is
        disconnected: the next caller may need another node."""
        if self._nodes is not None:
            connection.disconnect()
        else:
            self._rest(connection)

    def open_blocking(self, key: bytes) -> Any:
        """Opens a connection for commands that block on this key; the caller disconnects it. Reading a reply has the
        usual time limit, so the caller waits with `can_read` for a reply that may come later."""
        return self.endpoint.open(key=key)

    def close(self) -> None:
        """Disconnects; further calls raise ClientClosed."""
        self._closed = True
        self._drop_idle()
        if self._nodes is not None:
            self._nodes.close()

    def _drop_idle(self) -> None:
        for connection in self._idle.take_all():
            connection.disconnect()

    def _node(self, endpoint: Endpoint) -> "Broker":
        node = Broker(endpoint, retry_timeout_s=0, now_ms=self.now_ms)
        node._is_patient = self._is_patient
        node._on_dead = ignore if self._nodes is None else self._nodes.note_failure
        return node

    def _replies(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        policy = ReconnectPolicy(self._retry_timeout_s, self.endpoint)
        try:
            return self._tried(policy, calls, meanwhile)
        except Demoted as error:
            return self._tried_again(policy, error, meanwhile)

    def _tried_again(
        self, policy: ReconnectPolicy, refused: Demoted, meanwhile: Callable[[], object] | None
    ) -> list[Any]:
        while True:
            try:
                policy.wait_to_connect(refused)
                return refused.completed(self._tried(policy, refused.left, meanwhile))
            except Demoted as error:
                if error is refused:
                    return refused.replies
                refused = refused.followed_by(error)
            except ServerError as error:
                return refused.given_up(error)

    def _tried(
        self, policy: ReconnectPolicy, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None
    ) -> list[Any]:
        while True:
            if self._closed:
                raise ClientClosed("this client is closed; open a new one")
            connection: Any = self._take()
            fresh = connection is None
            try:
                if fresh:
                    connection = self._connect()
                elif needs_live_connection(calls, is_patient=self._is_patient) and has_died(connection):
                    connection.disconnect()
                    self._on_dead()
                    continue
            except BROKEN as error:
                policy.wait_to_connect(error)
                continue
            except RedisError as error:
                raise server_error(error, server=self.endpoint) from error
            try:
                exchange = self._exchange if policy.lost is None else partial(self._exchange_again, policy)
                return exchange(connection, calls, meanwhile)
            except BusyLoadingError as error:
                connection.disconnect()
                policy.wait_to_connect(error)
            except BROKEN as error:
                connection.disconnect()
                policy.wait_to_repeat(error, calls, stale=not fresh)
            except BaseException:
                connection.disconnect()
                raise

    def _take_checked(self) -> Any | None:
        """The idle connection used last; None without one, and when the sentinels name another primary than the one
        that it leads to."""
        connection, sentinels = self._idle.take(), self.endpoint.sentinels
        if connection is not None and sentinels is not None and sentinels.name_another(connection):
            connection.disconnect()
            self._drop_idle()
            return None
        return connection

    def _connect(self) -> Any:
        connection = self.endpoint.open()
        connection.connect()
        self._greet(connection)
        return connection

    def _greet(self, connection: Any) -> None:
        """Sends the greeting on a new connection. Raises the errors of its reader, which refuse the server."""
        if self._greeting is None:
            return
        try:
            connection.send(pack_calls([self._greeting], b""))
            reply = read_reply(connection)
            raise_if_loading([reply])
            interpret(self._greeting, reply)
        except BaseException:
            connection.disconnect()
            raise

    def _exchange_again(
        self, policy: ReconnectPolicy, connection: Any, calls: Sequence[Call[Any]],
        meanwhile: Callable[[], object] | None,
    ) -> list[Any]:  # fmt: skip
        policy.check_age(calls)
        return list(map(told_again, calls, self._exchange(connection, calls, meanwhile)))

    def _exchange(
        self, connection: Any, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None
    ) -> list[Any]:
        now_ms = self.now_ms()
        connection.send(pack_calls(calls, now_ms))
        if meanwhile is not None:
            meanwhile()
        replies = [read_reply(connection) for _ in calls]
        if has_errors(replies):
            raise_if_loading(replies)
            _carry_out(connection, send_again(calls, replies, self._retry_timeout_s), now_ms)
        if calls and calls[-1].script is None and waits_for_disk(calls):
            replies[-1] = _carry_out(connection, outlast_sync(calls, replies[-1]), now_ms)
        if has_errors(replies) and any(map(is_demoted, replies)):
            self._drop_idle()
            raise Demoted(calls, replies, waits=self._has_sentinels)
        self._rest(connection)
        return replies

    def _rest(self, connection: Any) -> None:
        self._idle.rest(connection)
        if self._closed:  # another thread closed it during the exchange
            self._drop_idle()


def run_each_or_errors(broker: Broker, calls: Sequence[Call[Any]]) -> list[Any]:
    """Like Broker.run_each; when the whole exchange fails, the value of each call is that error."""
    try:
        return broker.run_each(calls) if calls else []
    except JobrunnerError as error:
        return [error] * len(calls)


def run_each_of_nodes(broker: Broker, calls: Sequence[Call[Any]]) -> list[Any]:
    """Like run_each_or_errors, but raises when a single server is away. On a cluster all of these calls may concern one
    node that is away, while the others work."""
    replies = run_each_or_errors(broker, calls)
    for reply in replies:
        if isinstance(reply, JobrunnerError) and broker.is_away(reply):
            raise reply
    return replies


def _carry_out(connection: Any, steps: Steps, now_ms: bytes) -> Any:
    """Runs steps: sends the calls and sleeps for the seconds that they yield; returns their result."""
    replies: Any = None  # a generator is started with None
    try:
        while True:
            step = steps.send(replies)
            replies = []
            if isinstance(step, float):
                sleep(step)
            else:
                connection.send(pack_unknown(step, now_ms))
                replies = [read_reply(connection) for _ in step]
    except StopIteration as over:
        return over.value
