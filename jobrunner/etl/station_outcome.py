"""Turns the return value of a station's function into the outcome of the attempt.

Invariants: a payload is passed on unchanged, whatever its truth value; an item goes only to queues that its station
declares, within its partition of the pipeline; and an invalid return value makes the item dead with the reason,
instead of guessing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.shards import in_partition_of
from jobrunner.client.current import current_client
from jobrunner.client.item import read_headers, write_headers, write_payload
from jobrunner.errors import PipelineError, UsageError
from jobrunner.etl.graph import full_name, nearest
from jobrunner.option_names import checks_options
from jobrunner.outcome import Dropped, Fail, FannedOut, Moved, Steer
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import check_priority

LARGEST_SPREAD = 1000
"""The most items of a fan-out: they are added in one script call, which must stay short."""


class Unset:
    """The type of UNSET, the default of arguments for which None is a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@checks_options
@dataclass(frozen=True, slots=True, init=False)
class To:
    """Returned by a station to choose the queue that its item moves to.

    `payload` is any JSON value or bytes, also None; without it the item keeps its payload. `headers` are merged into
    the item's headers; `delay` in seconds or timedelta; `priority` 0 to 2. Raises InvalidOption.
    """

    queue: str
    payload: Any
    headers: Mapping[str, str] | None
    delay_s: float
    priority: int | None

    def __init__(
        self,
        queue: str,
        payload: Any = UNSET,
        *,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
    ) -> None:
        if headers is not None:
            write_headers(headers)
        object.__setattr__(self, "queue", queue)
        object.__setattr__(self, "payload", payload)
        object.__setattr__(self, "headers", headers)
        delay_s = 0.0 if type(delay) is int and delay == 0 else seconds(delay, option="To(delay=…)")
        object.__setattr__(self, "delay_s", delay_s)
        object.__setattr__(self, "priority", check_priority(priority))


@checks_options
class Drop(Steer):
    """Returned or raised by a station to end its item, without a failure; it is counted as dropped."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The targets of one station. `waits(to)`: whether an item waits for capacity in a full target; `above()`: queues
    whose items may come to this queue."""

    queue: str
    targets: tuple[str, ...]
    waits: Callable[[str], bool]
    max_hops: int
    above: Callable[[], tuple[str, ...]] = tuple
    fan_out: bool = False
    is_sink: bool = False
    payload_limit: int | None = None
    """The limit for payloads that the station returns, in bytes; None: the limit of the current client."""

    def outcome(self, returned: Any, attempt: Attempt) -> Any:
        """The result of the attempt: an outcome, a steering value, or the result of a sink. Raises Fail."""
        if isinstance(returned, Drop):
            return Dropped()
        if isinstance(returned, Steer):
            return returned
        if self.fan_out and isinstance(returned, Iterator):
            # Here, as an error of the function itself is a failed attempt; below it would be a wrong return value.
            returned = list(islice(returned, LARGEST_SPREAD + 1))
        try:
            if self.is_sink:
                return self._result(returned)
            if self.fan_out and returned is not None:
                return self._fan_out(returned, attempt)
            if isinstance(returned, (list, tuple)) and returned and isinstance(returned[0], To):
                raise PipelineError(
                    f"station {self.queue!r} returned a {type(returned).__name__} of To(...), which is one payload: "
                    "declare it with fan_out=True, so that each of them becomes an item"
                )
            return self._moved(returned, attempt) if isinstance(returned, To) else self._passed_on(returned, attempt)
        except UsageError as error:
            raise Fail(f"{type(error).__name__}: {error}", retry=False) from error

    def _result(self, returned: Any) -> Any:
        if isinstance(returned, To):
            raise PipelineError(
                f"sink {self.queue!r} returned To({returned.queue!r}): a sink is the end of the line; "
                f"declare it with station({self._short()!r}, to={returned.queue!r})"
            )
        return returned

    def _only(self, returned: Any) -> To:
        if len(self.targets) == 1:
            return To(self.targets[0], UNSET if returned is None else returned)
        described = "nothing" if returned is None else f"a payload ({type(returned).__name__})"
        names = ", ".join(map(repr, self.targets))
        raise PipelineError(
            f"station {self.queue!r} returned {described} but leads to {names}; return To(queue) or To(queue, payload)"
        )

    def _fan_out(self, returned: Any, attempt: Attempt) -> FannedOut | Dropped:
        if not isinstance(returned, Iterable) or isinstance(returned, (str, bytes, Mapping, To)):
            raise PipelineError(
                f"station {self.queue!r} has fan_out=True and returned {type(returned).__name__}; "
                "return a list of payloads and To(...), or yield them"
            )
        children: list[Moved] = []
        for one in returned:  # stops at the limit: there may be millions
            if len(children) == LARGEST_SPREAD:
                raise PipelineError(
                    f"station {self.queue!r} made more than {LARGEST_SPREAD} items of one; "
                    "split in two stations, the first of which makes parts"
                )
            children.append(self._child(one, attempt))
        return FannedOut(children=tuple(children)) if children else Dropped()

    def _child(self, one: Any, attempt: Attempt) -> Moved:
        if isinstance(one, Steer):
            raise PipelineError(
                f"station {self.queue!r} returned {type(one).__name__} among its items; leave out what is not to go on"
            )
        if not isinstance(one, To):
            # In a list None is a payload like any other: the function put it there on purpose.
            one = self._only(one) if one is not None or len(self.targets) != 1 else To(self.targets[0], None)
        return self._moved(one, attempt)

    def _moved(self, to: To, attempt: Attempt) -> Moved:
        queue = self._target(to.queue)
        payload, encoding = self._written(to.payload, attempt)
        headers = None if to.headers is None else write_headers({**read_headers(attempt.headers), **to.headers})
        return Moved(
            queue=_beside(attempt, queue),
            payload=payload,
            encoding=encoding,
            headers=headers,
            delay_s=to.delay_s,
            priority=to.priority,
            max_hops=self.max_hops,
            waits=self.waits(queue),
        )

    def _passed_on(self, returned: Any, attempt: Attempt) -> Moved:
        """The move of a plain payload to the only target, the usual case, without the checks of a To."""
        if len(self.targets) != 1:
            return self._moved(self._only(returned), attempt)
        queue = self.targets[0]
        payload, encoding = self._written(UNSET if returned is None else returned, attempt)
        return Moved(
            queue=_beside(attempt, queue), payload=payload, encoding=encoding, max_hops=self.max_hops,
            waits=self.waits(queue),
        )  # fmt: skip

    def _written(self, payload: Any, attempt: Attempt) -> tuple[bytes | None, str]:
        """A payload in its stored form, and its encoding; None when the item keeps its payload."""
        if not isinstance(payload, Unset):
            limit = current_client().settings.payload_limit if self.payload_limit is None else self.payload_limit
            return write_payload(payload, limit)
        if self.fan_out:
            return attempt.payload or b"", (attempt.encoding or b"").decode()
        return None, "json"

    def _target(self, name: object) -> str:
        queue = full_name(self.queue.partition("/")[0], name)
        if queue in self.targets:
            return queue
        hint = nearest(str(name), [known.partition("/")[2] for known in self.targets])
        raise PipelineError(
            f"station {self.queue!r} returned To({name!r}), a queue that its to=… does not name; {hint}"
        )

    def _short(self) -> str:
        return self.queue.partition("/")[2]


def _beside(attempt: Attempt, queue: str) -> str:
    """The shard of a queue of the pipeline in the partition of an item."""
    return in_partition_of(attempt.queue, queue) if "@" in attempt.queue else queue
