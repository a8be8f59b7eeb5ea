"""Reserve commands pipelined behind BZPOPMIN, so an idle worker gets the wake-up and its first tasks in one reply.

Invariant: they reserve no more than the worker could take when it began to block, and it hands back what it cannot take
any more; a task counts as held since the server handed it out.
"""

from collections import deque
from collections.abc import Sequence

from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError
from jobrunner.lease_number import LeaseNumbers

_MOST = 2
"""Two tasks of a queue: the second shows whether the queue has more. A worker that loses its connection strands at most
this many tasks until their leases expire."""
_QUEUES = 4
"""Workers that serve more queues than this poll instead."""


class ReserveAhead:
    """Its length is how many answers came that were not taken in. The wake-up thread calls `plan` and `heard`,
    the fetch loop everything else."""

    def __init__(self, keys: Keys, numbers: LeaseNumbers) -> None:
        self._keys = keys
        self._numbers = numbers
        self._planned: list[tuple[str, int]] = []
        self._brought: deque[tuple[str, int, Reservation]] = deque()

    def __len__(self) -> int:
        return len(self._brought)

    def plan(self, queues: Sequence[str], wanted: int) -> list[Call[Reservation]]:
        """Reserves from these queues, together at most `wanted`; nothing where they are too many."""
        count = min(wanted // max(len(queues), 1), _MOST)
        self._planned = [(queue, count) for queue in queues] if count > 0 and len(queues) <= _QUEUES else []
        return [
            leases.reserve(
                self._keys.queue(queue), count, token=self._numbers.first_of(count), most_bytes=leases.REPLY_BYTES
            )
            for queue, count in self._planned
        ]

    def heard(self, brought: Sequence[Reservation | JobrunnerError]) -> set[str]:
        """Takes in the replies to the calls; returns the queues that need no poll now."""
        looked_at = set()
        for (queue, count), one in zip(self._planned, brought, strict=False):
            if isinstance(one, Reservation):
                self._brought.append((queue, count, one))
                looked_at.add(queue)
        return looked_at

    def first(self) -> tuple[str, int, Reservation]:
        """The oldest answer: the queue, how many were asked for, and what came. It counts until it is `done`."""
        return self._brought[0]

    def done(self) -> None:
        """The oldest answer is taken in."""
        self._brought.popleft()
