"""The nodes of a cluster for asyncio, each with a driver of its own, queried concurrently."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from jobrunner.broker.call import BROKEN, Call
from jobrunner.broker.cluster_batch import ClusterBatch, NodeBatch, Troubles
from jobrunner.broker.cluster_nodes import OpenNodes, away
from jobrunner.broker.reconnect import ReconnectPolicy
from jobrunner.broker.redis_errors import RedisError, server_error
from jobrunner.clock import monotonic
from jobrunner.errors import ClientClosed, ServerError


class AsyncClusterNode(Protocol):
    """A driver of one node, without retries."""

    async def replies(self, calls: Sequence[Call[Any]], /) -> list[Any]: ...
    async def close(self) -> None: ...


class AsyncClusterNodes(OpenNodes[AsyncClusterNode]):
    """Opens a driver for each node at the first call to it."""

    async def replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """A reply, or an error, for each call. Raises ServerError when no call was answered."""
        if not calls:
            return []
        parts = ClusterBatch(calls, self._cluster, self._confirmation)
        policy = ReconnectPolicy(self._retry_timeout_s, self._endpoint)
        while parts.open:
            if self._closed:
                raise ClientClosed("this client is closed; open a new one")
            try:
                await self._greet()
            except ServerError as refused:
                parts.give_up(refused)
                continue
            if troubles := await self._exchange(parts):
                await asyncio.sleep(self._pause_before_next(parts, policy, troubles))
        return parts.replies()

    async def _greet(self) -> None:
        greeting, sent_at = self._greeting_due(), monotonic()
        if greeting is None:
            return
        while greeting.open and not await self._exchange(greeting):
            pass  # the greeting was redirected
        self._take_greeting(greeting, sent_at)

    async def _exchange(self, parts: ClusterBatch) -> Troubles:
        try:
            if self._cluster.is_stale:
                await asyncio.to_thread(self._cluster.refresh)
            groups = parts.groups()
        except BROKEN as error:
            return {None: error}
        except RedisError as error:
            raise server_error(error) from error
        answers = await asyncio.gather(*map(self._ask, groups))
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, ServerError):
                parts.failed(group, answer)
            else:
                parts.take(group, answer)
        return parts.troubles

    async def _ask(self, group: NodeBatch) -> list[Any] | ServerError:
        address = group.address
        if self._cluster.has_failed(address):
            why = await asyncio.to_thread(self._cluster.why_away, address)
            if why is not None:
                return away(why)
        try:
            return await self._node(group.address).replies(group.calls)
        except ServerError as error:
            self.note_failure()
            return error

    async def close(self) -> None:
        """Disconnects from all nodes; further calls raise ClientClosed."""
        self._closed = True
        for node in list(self._nodes.values()):
            await node.close()
