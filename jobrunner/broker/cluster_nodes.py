"""The nodes of a cluster, each with a driver of its own. Calls are sent until each call of a batch has its reply."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from jobrunner.broker.call import BROKEN, Call, interpret
from jobrunner.broker.cluster import Cluster
from jobrunner.broker.cluster_batch import ClusterBatch, NodeBatch, Troubles
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.reconnect import GIVEN_UP, ReconnectPolicy
from jobrunner.broker.redis_errors import (
    BusyLoadingError,
    RedisConnectionError,
    RedisError,
    SlotNotServed,
    TlsError,
    server_error,
)
from jobrunner.broker.topology import Address
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import ClientClosed, ServerError, ServerUnavailable

_AT_ONCE = 16
_GREET_AGAIN_S = 1.0
"""Pause between greetings while their node is away. More often, a hanging node would delay calls to other nodes."""


class ClusterNode(Protocol):
    """A driver of one node, without retries."""

    def replies(self, calls: Sequence[Call[Any]], /) -> list[Any]: ...
    def close(self) -> None: ...


AnyNode = TypeVar("AnyNode")


class OpenNodes(Generic[AnyNode]):
    """The drivers of the nodes used so far.

    The `greeting` concerns one key, so it goes to the node of that key, whichever nodes the calls go to. It is sent
    alone, before the first call, and again before the next call after a connection to any node was lost. When its
    reader raises, nothing else is sent.
    """

    def __init__(
        self, endpoint: Endpoint, cluster: Cluster, retry_timeout_s: float, open_node: Callable[[Endpoint], AnyNode],
        *, confirmation: Call[None] | None = None, greeting: Call[None] | None = None,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._cluster = cluster
        self._retry_timeout_s = retry_timeout_s
        self._confirmation = confirmation
        self._greeting = greeting
        self._open_node = open_node
        self._nodes: dict[Address, AnyNode] = {}
        self._closed = False
        self._failed_at = 0.0
        """When a driver last lost a connection, or got none; the next connection may lead to other data."""
        self._greeted_at = -inf
        """When the last answered greeting was sent."""
        self._greet_next_at = -inf

    def note_failure(self) -> None:
        """Notes that a driver lost a connection, or got none."""
        self._failed_at = monotonic()

    def _greeting_due(self) -> ClusterBatch | None:
        """The greeting as a batch; None when it need not be sent before the next calls."""
        if self._greeting is None or self._greeted_at > self._failed_at or monotonic() < self._greet_next_at:
            return None
        return ClusterBatch((self._greeting,), self._cluster, None)

    def _take_greeting(self, batch: ClusterBatch, sent_at: float) -> None:
        """Raises the errors of the greeting's reader. A greeting without a reply raises nothing: calls to other nodes
        continue while its node is away."""
        if batch.open:
            self._greet_next_at = monotonic() + _GREET_AGAIN_S
        elif self._greeting is not None:
            interpret(self._greeting, batch.replies()[0])
            self._greeted_at = sent_at

    def _pause_before_next(self, parts: ClusterBatch, policy: ReconnectPolicy, troubles: Troubles) -> float:
        """Seconds until the open calls are sent again, after the greeting. After the retry timeout they fail."""
        self._greet_next_at = -inf
        given_up = GIVEN_UP.get()
        if given_up is not None and troubles.keys() <= given_up:
            policy.limit_s = 0.0
        try:
            return policy.pause_to_connect(next(iter(troubles.values())))
        except ServerUnavailable as over:
            if given_up is not None:
                given_up.update(troubles)
            errors = {node: _unavailable(self._endpoint, node, error) or over for node, error in troubles.items()}
            parts.give_up(next(iter(errors.values())), errors)
            return 0.0

    def _node(self, address: Address) -> AnyNode:
        known = self._nodes.get(address)
        if known is None:
            known = self._nodes[address] = self._open_node(self._endpoint.at(address))
        return known


class ClusterNodes(OpenNodes[ClusterNode]):
    """The nodes of a cluster for threads."""

    _pool: ThreadPoolExecutor | None = None
    _pool_of = 0

    def replies(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """A reply, or an error, for each call. Raises ServerError when no call was answered.

        Several nodes are queried concurrently; `meanwhile` is called before that.
        """
        if meanwhile is not None:
            meanwhile()
        if not calls:
            return []
        parts = ClusterBatch(calls, self._cluster, self._confirmation)
        policy = ReconnectPolicy(self._retry_timeout_s, self._endpoint)
        while parts.open:
            if self._closed:
                raise ClientClosed("this client is closed; open a new one")
            try:
                self._greet()
            except ServerError as refused:
                parts.give_up(refused)
                continue
            if troubles := self._exchange(parts):
                sleep(self._pause_before_next(parts, policy, troubles))
        return parts.replies()

    def _greet(self) -> None:
        greeting, sent_at = self._greeting_due(), monotonic()
        if greeting is None:
            return
        while greeting.open and not self._exchange(greeting):
            pass  # the greeting was redirected
        self._take_greeting(greeting, sent_at)

    def primaries(self) -> list[ClusterNode]:
        """The drivers of all nodes that serve slots. Raises ServerError."""
        try:
            self._cluster.renew()
        except BROKEN as error:
            raise ServerUnavailable(f"no server at {self._endpoint}: {error}") from error
        except RedisError as error:
            raise server_error(error) from error
        return [self._node(address) for address in self._cluster.primaries()]

    def _exchange(self, parts: ClusterBatch) -> Troubles:
        try:
            self._cluster.refresh()
            groups = parts.groups()
        except BROKEN as error:
            return {None: error}
        except RedisError as error:
            raise server_error(error) from error
        for group, answer in zip(groups, self._ask_all(groups), strict=True):
            if isinstance(answer, ServerError):
                parts.failed(group, answer)
            else:
                parts.take(group, answer)
        return parts.troubles

    def _ask_all(self, groups: Sequence[NodeBatch]) -> list[list[Any] | ServerError]:
        """The replies of each node, or its error. The calling thread queries the first node, usually the only node."""
        try:
            others = [self._helpers().submit(self._ask, group) for group in groups[1:]]
        except RuntimeError as error:  # another thread closed the pool, or the interpreter ends
            raise ClientClosed("this client is closed; open a new one") from error
        return [*map(self._ask, groups[:1]), *(other.result() for other in others)]

    def _ask(self, group: NodeBatch) -> list[Any] | ServerError:
        if (why := self._cluster.why_away(group.address)) is not None:
            return away(why)
        try:
            return self._node(group.address).replies(group.calls)
        except ServerError as error:
            self.note_failure()
            return error

    def _helpers(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_of != os.getpid():  # the pool's threads do not exist in a fork
            self._pool, self._pool_of = ThreadPoolExecutor(_AT_ONCE, "jobrunner-node"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Disconnects from all nodes; further calls raise ClientClosed."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for node in list(self._nodes.values()):
            node.close()


def _unavailable(endpoint: Endpoint, node: Address | None, error: Exception) -> ServerUnavailable | None:
    """The error for a node that does not answer, which it names: the URL names several, and the others may answer. None
    when no node answers."""
    name = f"node {node[0]}:{node[1]} of the cluster" if node is not None else ""
    if isinstance(error, ServerError):  # a node that does not know the user yet
        text = str(error)
    elif isinstance(error, SlotNotServed):
        text = f"the cluster at {endpoint} does not serve all slots: {error}; see CLUSTER NODES on one of its nodes"
    elif isinstance(error, TlsError) and name:
        text = f"no TLS with {name}: {error}"
    elif name:
        what = "does not answer yet" if isinstance(error, BusyLoadingError) else "does not answer"
        text = f"{name} {what}: {str(error).removesuffix('.')}; see whether it runs"
    else:
        return None
    found = ServerUnavailable(text)
    found.__cause__ = error
    return found


def away(why: str) -> ServerUnavailable:
    """The error for a node that was skipped, as it did not answer before."""
    error = ServerUnavailable(why)
    error.__cause__ = RedisConnectionError(why)
    return error
