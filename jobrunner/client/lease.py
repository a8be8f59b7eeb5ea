"""A reserved item and the reports on it, for threads and for asyncio."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.client.operations import lease as lease_operations
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import run_operation, run_operation_async
from jobrunner.client.operations.reserved import ReservedItem
from jobrunner.option_names import checks_methods
from jobrunner.settings import Duration

if TYPE_CHECKING:
    from jobrunner.broker.async_broker import AsyncBroker


@checks_methods
class Lease(ReservedItem):
    """A reserved item. Its reports raise NotReserved or LeaseLost when the lease is over; False means it is gone."""

    def __init__(self, broker: Broker, line: QueueRef, attempt: Attempt) -> None:
        super().__init__(attempt, line)
        self._broker = broker

    def commit(self, result: Any = None) -> bool:
        """Done: the item leaves the queue. False when it is already gone."""
        return run_operation(self._broker, lease_operations.commit(self._line, self, result))

    def rollback(self, delay: Duration | None = None, error: str = "") -> bool:
        """Failed: tried again after `delay` (None: the queue's backoff), or dead when its attempts are spent."""
        return run_operation(self._broker, lease_operations.rollback(self._line, self, delay, error))

    def release(self) -> bool:
        """Back to its place in line; the attempt is not spent."""
        return run_operation(self._broker, lease_operations.release(self._line, self))

    def extend(self) -> bool:
        """Renews the lease for its keepalive from now; `deadline` tells the new end."""
        return run_operation(self._broker, lease_operations.extend(self._line, self))

    def move(
        self,
        queue: str,
        *,
        payload: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
        max_hops: int = 0,
    ) -> bool:
        """Into another queue of the same pipeline in one step, with a new payload when one is given.

        A pipeline that was published (it is, when a program uses it) refuses a queue that it does not have, unless
        something was pushed there: PipelineError names the nearest.
        """
        steps = lease_operations.move(self._line, self, queue, payload, headers, delay, priority, max_hops)
        return run_operation(self._broker, steps)


@checks_methods
class AsyncLease(ReservedItem):
    """A reserved item, for asyncio. A report that is cancelled while it is on its way was applied or it was not."""

    def __init__(self, broker: "AsyncBroker", line: QueueRef, attempt: Attempt) -> None:
        super().__init__(attempt, line)
        self._broker = broker

    async def commit(self, result: Any = None) -> bool:
        """As Lease.commit."""
        return await run_operation_async(self._broker, lease_operations.commit(self._line, self, result))

    async def rollback(self, delay: Duration | None = None, error: str = "") -> bool:
        """As Lease.rollback."""
        return await run_operation_async(self._broker, lease_operations.rollback(self._line, self, delay, error))

    async def release(self) -> bool:
        """As Lease.release."""
        return await run_operation_async(self._broker, lease_operations.release(self._line, self))

    async def extend(self) -> bool:
        """As Lease.extend."""
        return await run_operation_async(self._broker, lease_operations.extend(self._line, self))

    async def move(
        self,
        queue: str,
        *,
        payload: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
        max_hops: int = 0,
    ) -> bool:
        """As Lease.move."""
        steps = lease_operations.move(self._line, self, queue, payload, headers, delay, priority, max_hops)
        return await run_operation_async(self._broker, steps)
