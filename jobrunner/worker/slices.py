"""Balances slices of limits by load, for the queues with partitions that a worker or its drivers serve."""

from collections.abc import Sequence

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.slice_balancer import SliceBalancer
from jobrunner.clock import monotonic
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.loop import Complaints, Loop
from jobrunner.worker.shards import ServedShards

_LONG_S = 3600.0


class SliceLoop:
    """Looks at the shards of each queue with limits about once a second, unless another worker does. A worker without
    such queues sends nothing."""

    def __init__(
        self, broker: Broker, keys: Keys, served: Sequence[ServedShards], complaints: Complaints | None = None
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._served = served
        self._balancers: dict[str, SliceBalancer] = {}
        self.loop = Loop("slices", self.step, complaints)
        for shards in served:
            shards.on_limits = self.loop.wake

    def step(self) -> float:
        """Balances queues that are due; returns the seconds to the next. Raises ServerError after all had their
        turn."""
        limited = {queue: count for shards in self._served for queue, count in shards.limited.items()}
        errors = ErrorsPutAside(self._broker)
        for queue, count in limited.items():
            if queue not in self._balancers:
                self._balancers[queue] = SliceBalancer(QueueRef(self._keys, None, queue, 0))
            if self._balancers[queue].due_at <= monotonic():
                try:
                    run_operation(self._broker, self._balancers[queue].balancing(count))
                except Exception as error:
                    errors.put(error)  # waiting for a node may take longer than the interval of a look
        errors.raise_first()
        due_at = min((self._balancers[queue].due_at for queue in limited), default=monotonic() + _LONG_S)
        return max(due_at - monotonic(), 0.0)
