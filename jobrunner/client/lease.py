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
    """A reserved item. Reports raise NotReserved or LeaseLost after the lease ended; False means that the item is
    gone."""

    def __init__(self, broker: Broker, line: QueueRef, attempt: Attempt) -> None:
        super().__init__(attempt, line)
        self._broker = broker

    def commit(self, result: Any = None) -> bool:
        """Reports success: the item leaves the queue. False when it is already gone."""
        return run_operation(self._broker, lease_operations.commit(self._line, self, result))

    def rollback(self, delay: Duration | None = None, error: str = "") -> bool:
        """Reports a failure: retried after `delay` (None: the queue's backoff), or dead when its attempts are spent."""
        return run_operation(self._broker, lease_operations.rollback(self._line, self, delay, error))

    def release(self) -> bool:
        """Puts the item back to its place in line; the attempt is not spent."""
        return run_operation(self._broker, lease_operations.release(self._line, self))

    def extend(self) -> bool:
        """Renews the lease for its keepalive from now; `deadline` is the new end."""
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
        """Moves the item into another queue of the same pipeline in one step, with a new payload if `payload` is
        passed.

        A pipeline is published when a program uses it. A published pipeline refuses a queue that it does not have,
        unless an item was pushed there: PipelineError names the nearest queue.
        """
        steps = lease_operations.move(self._line, self, queue, payload, headers, delay, priority, max_hops)
        return run_operation(self._broker, steps)


@checks_methods
class AsyncLease(ReservedItem):
    """A reserved item, for asyncio. A report that is cancelled on its way may have been applied."""

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
