"""One look of the leader for all its chores: what one of them would ask for alone is in the reply for all."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.glance import Glance, glance
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.interval import Interval
from jobrunner.errors import JobrunnerError


class Look:
    """The chore of the leader, every `every_s`: looks at all queues and workers, and hands what it found to `takers`.

    One round trip, of one command for each hundred queues. What cannot be looked at keeps no taker from the rest.
    """

    def __init__(
        self, broker: Broker, keys: Keys, every_s: float, queues: Callable[[], Collection[str]],
        takers: Collection[Callable[[Glance], object]],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._queues = queues
        self._takers = takers

    def step(self) -> float:
        """Looks, when that is due; returns the seconds to the next look. Raises what the server refused first."""
        if pause := self._looks.begin():
            return pause
        calls = glance(self._keys, [self._keys.queue(name) for name in sorted(self._queues())])
        replies = self._broker.run_each(calls)
        found = _together([one for one in replies if isinstance(one, Glance)])
        for take in self._takers:
            take(found)
        for one in replies:
            if isinstance(one, JobrunnerError):
                raise one
        return self._looks.every_s


def _together(parts: Collection[Glance]) -> Glance:
    return Glance(
        posted=list(dict.fromkeys(tag for part in parts for tag in part.posted)),
        closing=[name for part in parts for name in part.closing],
        dead={name: total for part in parts for name, total in part.dead.items()},
        silent=[worker for part in parts for worker in part.silent],
    )
