"""Fires periodic jobs: each tick becomes one task, however many leaders there were.

The state of a job (its last tick) is changed and its task made in one script that compares the last tick with the one
this leader computed from; so a tick is fired once even by two processes that both believe they lead.
"""

import hashlib
import math
from collections.abc import Callable
from datetime import datetime, timedelta

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls.new_tasks import task_options
from jobrunner.broker.keys import Keys
from jobrunner.broker.resp import Arg
from jobrunner.client.encryption import encrypted_task
from jobrunner.client.operations.operation import Operation, ask, run_together
from jobrunner.clock import monotonic
from jobrunner.coordinator.periodic_jobs import LastTicks, PeriodicDefinitions, unix_ms_of
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.due_ticks import GRACE, due_ticks, first_tick, jittered, last_tick_at
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import NO_ANSWER
from jobrunner.logs import SafeLogger
from jobrunner.periodic import PeriodicDefinition
from jobrunner.schedule import NEVER, Schedule

_REFUSED_PAUSE_S = 5.0
_AT_ONCE = 100
"""Jobs whose states are read, or whose ticks are fired, in one round trip: one for each would take a leader with
thousands of jobs and a far server minutes, in which it recovers no leases."""
_AFTER_DISPUTE = timedelta(seconds=0.1)
_SETTLED = ("fired", "skipped", "disabled")
"""Results of a tick after which it is final."""
LateTick = tuple[str, str, float]
"""The queue and the name of a job, and how many milliseconds after its tick it was fired."""
_log = SafeLogger("jobrunner.periodic")


class PeriodicTicks:
    """A task of the leader. Fires the ticks of the known definitions, and sleeps until the next tick.

    `late` is called with how late each tick was fired. `leader_ttl`: seconds after which another worker leads when the
    leader dies; a tick that is no later than that, and ten seconds, was not missed.
    """

    def __init__(
        self, broker: Broker, keys: Keys, encryption: PayloadEncryption | None,
        late: Callable[[LateTick], object] = lambda _: None, leader_ttl: float = 0.0,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._encryption = encryption
        self._late = late
        self._grace = GRACE + timedelta(seconds=leader_ttl)
        self._last = LastTicks(keys)
        self._definitions = PeriodicDefinitions(broker, keys, self._last)
        self.progressed_at = -math.inf
        """When a job was last handled (monotonic clock): tells a long turn from one that hangs."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues that periodic jobs run on."""
        return frozenset(one.queue for one in self._definitions.all())

    def forget(self) -> None:
        """Called when leadership begins: earlier results may be stale."""
        self._last.clear()
        self._definitions.forget()

    def reread(self) -> None:
        """Called when a definition was changed or added."""
        self._definitions.reread()

    def step(self, epoch: int, now: datetime) -> float:
        """Fires what is due at `now` by the server's clock; returns the seconds to the next tick or reading. Raises
        ServerUnavailable and OutcomeUnknown, of one node of a cluster after the jobs on the others."""
        if self._definitions.until_read_s <= 0:
            self._definitions.read(unix_ms_of(now))
        pause, errors = self._definitions.until_read_s, ErrorsPutAside(self._broker)
        for some in in_slices(self._definitions.all(), _AT_ONCE):
            for found in run_together(self._broker, [self._look_after(one, epoch, now) for one in some]):
                if isinstance(found, Exception):
                    errors.put(found)
                else:
                    pause = min(pause, found)
            self.progressed_at = monotonic()
        errors.raise_first()
        return max(pause, 0.0)

    def _look_after(self, definition: PeriodicDefinition, epoch: int, now: datetime) -> Operation[float]:
        """Fires one job; returns the seconds to its next tick. A job that fails does not hold up the others."""
        try:
            return ((yield from self._fire_due(definition, epoch, now)) - now).total_seconds()
        except NO_ANSWER:
            raise
        except Exception as error:
            self._definitions.complain(definition.name, f"{type(error).__name__}: {error}")
            self._last.forget(definition.state)
            return _REFUSED_PAUSE_S

    def _fire_due(self, definition: PeriodicDefinition, epoch: int, now: datetime) -> Operation[datetime]:
        """Fires the ticks of a job that are due; returns when the next one is, or when to look after the job again."""
        last = yield from self._last.of(definition)
        if last.at and last.due_at and last.at <= now < last.due_at:
            return last.due_at  # every tick of a job is a turn for all, and to ask a cron schedule takes long
        left = definition.tasks_left(last.fired)
        if left <= 0:
            return NEVER
        schedule = definition.parsed()
        if last.at is None:
            return (yield from self._fire_first(definition, schedule, epoch, now))
        if last.schedule != definition.schedule_digest:  # its ticks since then were not to be
            # Not before the last tick: the clock may have stepped back, or `now` be from before a slow call.
            to = max(last_tick_at(schedule, last.at, now), last.at)
            yield from self._last.anchor(definition, to, epoch)
            return now + _AFTER_DISPUTE
        longest_ahead = schedule.next_after(last.at) - last.at + GRACE
        if last.at - now > longest_ahead:
            to = last_tick_at(schedule, last.at, now)
            if (yield from self._last.anchor(definition, to, epoch, longest_ahead)):
                yield from self._tell_anchored(definition, last.at - now)
            return now + _AFTER_DISPUTE
        due = due_ticks(schedule, last.at, now, catch_up=definition.catch_up, grace=self._grace)
        for tick in due.ticks[:left]:
            if not (yield from self._fire_one(definition, tick, epoch, now, together=due.last)):
                return now + _AFTER_DISPUTE
        due_at = schedule.next_after(due.last)
        self._last.next_is(definition.state, due_at)
        return due_at

    def _fire_first(
        self, definition: PeriodicDefinition, schedule: Schedule, epoch: int, now: datetime
    ) -> Operation[datetime]:
        """Fires the first tick of a job, or notes when the job was seen first. Returns when the next tick is due."""
        tick = first_tick(schedule, now)
        if tick > now:
            yield from self._last.start(definition, now)
            return tick
        yield from self._fire(definition, "", tick, epoch, together=tick)
        return schedule.next_after(tick)

    def _fire_one(
        self, definition: PeriodicDefinition, tick: datetime, epoch: int, now: datetime, together: datetime
    ) -> Operation[bool]:
        """Fires a tick that is due, and tells how late. Returns False when the server knows of another last tick."""
        expected = (yield from self._last.of(definition)).stored
        word = yield from self._fire(definition, expected, tick, epoch, together=together)
        if word == "fired":
            self._late((definition.queue, definition.name, (now - tick).total_seconds() * 1000))
        return word in _SETTLED

    def _tell_anchored(self, definition: PeriodicDefinition, ahead: timedelta) -> Operation[None]:
        """The server's clock was ahead, or a server whose clock was ahead has failed."""
        name, ahead_s = definition.name, round(ahead.total_seconds(), 3)
        _log.warning(
            "the last tick of a periodic job was ahead of the server's clock; it goes on from now",
            job=name, queue=definition.queue, ahead_s=ahead_s,
        )  # fmt: skip
        yield [events.note(self._keys, "periodic_reanchored", queue=definition.queue, job=name, ahead_s=f"{ahead_s:g}")]

    def _fire(
        self, definition: PeriodicDefinition, expected: str, tick: datetime, epoch: int, together: datetime
    ) -> Operation[str]:  # fmt: skip
        """Ticks up to `together` are caught up together: they do not keep each other out."""
        tick_ms = unix_ms_of(tick)
        keys = self._keys.queue(definition.queue)
        task = definition.task(tick_id(definition.state, tick_ms, keys.tag), self._encryption)
        if self._encryption is not None:
            task = encrypted_task(self._encryption, keys, task)
        fields: list[Arg] = ["type", task.type, "queue", task.queue, "payload", task.payload]
        word = yield from ask(
            leader_calls.fire(
                keys,
                definition.state,
                expected=expected,
                tick_ms=tick_ms,
                due_ms=jittered(tick, definition.jitter, definition.state).timestamp() * 1000,
                epoch=epoch,
                task_id=task.id,
                priority=1 if definition.priority is None else definition.priority,
                overlap=definition.overlap,
                schedule=definition.schedule_digest,
                together_ms=unix_ms_of(together),
                fields=[*fields, *task_options(task)],
            )
        )
        if word in _SETTLED:
            self._last.settled(definition, tick, word)
        else:
            self._last.forget(definition.state)
        return word


def tick_id(name: str, tick_ms: int, tag: str) -> str:
    """The id of the task of one tick: the same whoever makes it."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{tick_ms << 16:016x}{digest}-{tag}"
