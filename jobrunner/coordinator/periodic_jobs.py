"""Definitions of periodic jobs, as the leader read them last, and the last tick of each job."""

from datetime import datetime, timedelta
from typing import NamedTuple

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import whole
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.periodic_state import bring_state
from jobrunner.clock import from_ms, monotonic
from jobrunner.logs import SafeLogger
from jobrunner.periodic import KNOWN_FOR_MS, PeriodicDefinition, read_added, read_definition

_READ_EVERY_S = 30.0
_REMEMBERED_MS = 7 * 86_400_000.0
_STATE_KEPT_MS = 400 * 86_400_000
"""Of a job that is forgotten. A yearly job that is deployed again within it continues from its last tick."""
_log = SafeLogger("jobrunner.periodic")


class LastTick(NamedTuple):
    """The last tick of a job as the server stores it, Unix ms, and the digest of its schedule; empty before the first
    one. `fired`: how many ticks became tasks. `due_at`: the next tick, once this leader has computed it."""

    stored: str
    at: datetime | None
    schedule: str
    fired: int
    due_at: datetime | None = None


class LastTicks:
    """The last tick of each job: read from the server once, and kept while this worker leads."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known: dict[str, LastTick] = {}

    def clear(self) -> None:
        """Forgets all jobs: the ticks may be stale."""
        self._known.clear()

    def forget(self, name: str) -> None:
        """Forgets one job."""
        self._known.pop(name, None)

    def of(self, definition: PeriodicDefinition) -> Operation[LastTick]:
        """The last tick of a job."""
        known = self._known.get(definition.state)
        if known is None:
            yield from bring_state(self._keys, definition.state, definition.queue)
            keys = self._keys.queue(definition.queue)
            _, state = yield [
                leader_calls.keep_periodic_state(keys, definition.state),
                leader_calls.periodic_state(keys, definition.state),
            ]
            stored, schedule = _whole(state.get("last", b"")), state.get("schedule", b"").decode(errors="replace")
            if stored and not schedule:  # of a version that did not note it
                schedule = definition.schedule_digest
                yield [leader_calls.adopt_schedule(keys, definition.state, schedule)]
            at = from_ms(float(stored)) if stored else None
            known = self._known[definition.state] = LastTick(stored, at, schedule, whole(state.get("fired")))
        return known

    def settled(self, definition: PeriodicDefinition, tick: datetime, word: str) -> None:
        """This tick is the last one now, as the server has noted; `word`: whether it "fired"."""
        fired = self._known[definition.state].fired + (word == "fired")
        self._known[definition.state] = LastTick(str(unix_ms_of(tick)), tick, definition.schedule_digest, fired)

    def next_is(self, name: str, due_at: datetime) -> None:
        """The tick behind the last one is due then."""
        self._known[name] = self._known[name]._replace(due_at=due_at)

    def start(self, definition: PeriodicDefinition, now: datetime) -> Operation[None]:
        """Has the server note when a job without a tick was seen first."""
        keys = self._keys.queue(definition.queue)
        yield [
            leader_calls.start_periodic(keys, definition.state, unix_ms_of(now)),
            leader_calls.adopt_schedule(keys, definition.state, definition.schedule_digest),
        ]
        self.forget(definition.state)

    def anchor(
        self, definition: PeriodicDefinition, to: datetime, epoch: int, longest_ahead: timedelta | None = None
    ) -> Operation[bool]:  # fmt: skip
        """The ticks go on from `to`; returns whether this leader had them do so."""
        expected = self._known.pop(definition.state).stored
        anchoring = leader_calls.anchor(
            self._keys.queue(definition.queue), definition.state, expected=expected, to_ms=unix_ms_of(to), epoch=epoch,
            ahead_ms=None if longest_ahead is None else round(longest_ahead.total_seconds() * 1000),
            schedule=definition.schedule_digest,
        )  # fmt: skip
        return (yield from ask(anchoring)) == "anchored"


class PeriodicDefinitions:
    """The definitions of periodic jobs: those that workers publish, and those that programs add at run time. They are
    read when one may have changed, at the latest after half a minute."""

    def __init__(self, broker: Broker, keys: Keys, last: LastTicks) -> None:
        self._broker = broker
        self._keys = keys
        self._last = last
        self._known: dict[str, PeriodicDefinition] = {}
        self._read_at = -_READ_EVERY_S
        self._complained: set[str] = set()

    def all(self) -> list[PeriodicDefinition]:
        """The definitions as they were read last."""
        return [*self._known.values()]

    @property
    def until_read_s(self) -> float:
        """Seconds until they are to be read again; 0 or less: now."""
        return _READ_EVERY_S - (monotonic() - self._read_at)

    def forget(self) -> None:
        """Called when leadership begins: they may be stale."""
        self._complained.clear()
        self.reread()

    def reread(self) -> None:
        """Called when a definition was changed or added."""
        self._read_at = -_READ_EVERY_S

    def read(self, now_ms: float) -> None:
        """Reads the definitions again."""
        published, added = self._broker.run_many(
            [leader_calls.periodics(self._keys), leader_calls.added_periodics(self._keys)]
        )
        seen = self._broker.run(leader_calls.periodics_seen(self._keys)) if published else {}
        before, self._known = self._known, {}
        for name, raw in published.items():
            unseen_ms = now_ms - seen.get(name, 0.0)
            if unseen_ms > _REMEMBERED_MS:
                self._broker.run_many(leader_calls.forget_periodic(self._keys, name))
                self._leave(name, raw)
            if unseen_ms > KNOWN_FOR_MS:
                continue  # no worker could run it; catch_up decides when one is back
            self._take(name, read_definition(raw), before.get(name))
        for name, raw in added.items():
            if name in published:
                self.complain(name, "it was added at run time, and a job of this name is declared; add it by another")
            else:
                self._take(name, read_added(raw), before.get(name))
        self._read_at = monotonic()

    def _take(self, name: str, definition: PeriodicDefinition | None, before: PeriodicDefinition | None) -> None:
        """Replaces the definition of a job."""
        if definition is None:
            self.complain(name, "its definition is damaged")
            return
        self._known[name] = definition
        if before != definition:
            self._last.forget(definition.state)
        if before is not None and before.state == definition.state and before.schedule != definition.schedule:
            self._tell_change(definition)

    def _leave(self, name: str, raw: bytes) -> None:
        """The state of a forgotten job expires, unless the job was disabled: it would run again."""
        self._last.forget(name)
        definition = read_definition(raw)
        if definition is not None:
            keys = self._keys.queue(definition.queue)
            if "disabled" not in self._broker.run(leader_calls.periodic_state(keys, name)):
                self._broker.run(leader_calls.end_periodic_state(keys, name, _STATE_KEPT_MS))
                self._broker.run(leader_calls.drop_periodic_queue(self._keys, name))

    def _tell_change(self, definition: PeriodicDefinition) -> None:
        """A deploy or a program brought another schedule, or took it back."""
        words = {"queue": definition.queue, "job": definition.name, "schedule": definition.in_words}
        _log.info("the schedule of a periodic job is another one now", **words)
        self._broker.run(events.note(self._keys, "periodic_changed", **words))

    def complain(self, name: str, reason: str) -> None:
        """Logs why a job is not fired, once for each job while this worker leads."""
        if name not in self._complained:
            self._complained.add(name)
            _log.error("a periodic job is not fired", job=name, reason=reason)


def unix_ms_of(instant: datetime) -> int:
    """An instant in whole Unix ms."""
    return round(instant.timestamp() * 1000)


def _whole(raw: bytes) -> str:
    return raw.decode() if raw.isdigit() else ""
