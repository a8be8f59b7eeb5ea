"""The scheduler: actors, a network with faults, and a clock, all driven by one seed.

Each actor (a producer, a worker, a driver, a leader) is a greenlet that runs the product's own code. It gives the
processor up when it waits for a reply or sleeps, and the scheduler goes on with whatever comes first by the virtual
clock. So a run is a function of its seed. A killed actor is never gone on with: nothing of it runs any more that the
server would notice, as after kill -9.

What the network does to an exchange is drawn when it is sent: see network.py.
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import greenlet

from jobrunner.broker.broker import Broker
from jobrunner.broker.redis_errors import RedisConnectionError, RedisTimeoutError
from tests.simulation.network import APART, BROKEN, DEATHS, DELAYS_MS, FAULTS, TIMEOUT_MS, Address, Connection, Fate
from tests.simulation.server import SimulatedServer

STARTED_MS = 1_700_000_000_000.0


class Chances(random.Random):
    """Random numbers: the same for a seed as those of the base class, at less cost."""

    def choice(self, options: Any) -> Any:
        """One of the options."""
        count, draw = len(options), self.getrandbits
        bits = count.bit_length()
        drawn = draw(bits)
        while drawn >= count:
            drawn = draw(bits)
        return options[drawn]


class Killed(BaseException):
    """Ends the greenlet of an actor that was killed."""


class Actor:
    """A process. `broker` is its driver; `name` says what it is, in traces."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.greenlet: Any = None
        self.is_dead = False
        self.broker = Broker(Address(world, self), now_ms=bytes)  # type: ignore[arg-type]  # b"": the server's clock

    def hears(self, error: Exception) -> None:
        """Notes that the product raised this."""
        self.world.raised.append(error)
        self.world.note(self, f"hears {type(error).__name__}")

    def sleep(self, seconds: float) -> None:
        """Does nothing for a while."""
        self.world.sleep(self, seconds * 1000)


class World:
    """One run. `observe` is told each command that the server carried out, and its reply."""

    def __init__(
        self, server: SimulatedServer, seed: int, *, faults: float = 0.0, kills: float = 0.0,
        observe: Callable[[Any, list[bytes], Any], None] = lambda *_: None,
        trace: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.seed = seed
        self.random = Chances(seed)
        self._chance = self.random.random
        self.now = STARTED_MS
        self.actor: Actor | None = None
        """The actor that runs now."""
        self.actors: list[Actor] = []
        self.faults, self.kills = faults, kills
        self.trace = trace
        self.raised: list[Exception] = []
        """The errors that connections raised and actors heard."""
        self._observe = observe
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = count()
        self._until, self._left = 0.0, 0
        self._read = server.replies.gets
        self._feed = server.replies.feed
        self._execute = server.carry_out
        server.reset(self.now, seed)

    def start(self, name: str, job: Callable[[Actor], None], *, in_s: float = 0.0) -> Actor:
        """Has a new actor begin with `job`."""
        actor = Actor(self, name)
        self.actors.append(actor)
        self.at(self.now + in_s * 1000, self._begin, actor, job)
        return actor

    def at(self, when: float, do: Callable[..., None], *args: Any) -> None:
        """Has something happen at an instant."""
        heappush(self._events, (when, next(self._count), do, args))

    def run(self, until: float, most_events: int) -> bool:
        """Goes on until an instant, or until nothing is left to happen. Returns whether so many events sufficed."""
        events, self._until, self._left = self._events, until, most_events
        while self._left > 0:
            self._left -= 1
            if not events or events[0][0] > until:
                self.now = max(self.now, until) if events else self.now
                return True
            self.now, _, do, args = heappop(events)
            do(*args)
        return False

    def end(self) -> None:
        """Ends what still runs; the greenlets are used again."""
        self._events.clear()
        for actor in self.actors:
            self.kill(actor)
            actor.broker = actor.world = None  # type: ignore[assignment]  # a run is freed without the collector
        self.actors.clear()
        for error in self.raised:
            error.__traceback__ = None  # it holds frames, which hold the error and the run
        self._observe = self.trace = None  # type: ignore[assignment]

    def holds(self, *keys: bytes) -> bool:
        """Whether any of these keys exists: known to the scheduler, whatever the network does."""
        return self.server.holds(self.now, *keys)

    def wait(self, actor: Actor) -> None:
        """Gives the processor up until `go_on`."""
        if actor.is_dead:
            raise Killed
        _HUB.switch()

    def sleep(self, actor: Actor, ms: float) -> None:
        """Goes on with an actor after a while, without giving the processor up when nothing else happens before."""
        when = self.now + ms
        if self._is_next(when) and not actor.is_dead:
            self.now = when
        else:
            self.at(when, self.go_on, actor)
            self.wait(actor)

    def _is_next(self, when: float) -> bool:
        """Whether an event at that instant would be the next one of this run; counts it when it is."""
        events = self._events
        if (events and events[0][0] <= when) or when > self._until or self._left <= 0:
            return False
        self._left -= 1
        return True

    def go_on(self, actor: Actor) -> None:
        """Has an actor run until it waits again."""
        if not actor.is_dead and actor.greenlet is not None:
            self.actor = actor
            error = actor.greenlet.switch()
            if error:  # it ended the actor
                raise error

    def _go_on_at(self, when: float, actor: Actor) -> None:
        """Goes on with an actor at an instant, and at once where nothing else happens before."""
        if self._events and self._events[0][0] <= when:
            heappush(self._events, (when, next(self._count), self.go_on, (actor,)))
        else:
            self.now = when
            self.go_on(actor)

    def kill(self, actor: Actor) -> None:
        """Ends an actor where it is."""
        actor.is_dead = True
        if actor.greenlet is not None:
            actor.greenlet.throw(Killed)

    def note(self, actor: Actor, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(f"{(self.now - STARTED_MS) / 1000:9.4f} s  {actor.name}: {what}")

    def send(self, connection: Connection, commands: list[list[bytes]]) -> None:
        """Decides what becomes of an exchange, and has it happen."""
        actor = connection.actor
        if actor.is_dead:
            raise Killed
        fate = self._draw_fate(actor) if self.faults and self._chance() < self.faults else _FINE
        if fate is _FINE and len(commands) == 1:
            self._send_fine(connection, commands)
            return
        applied = len(commands)
        if fate is Fate.REQUEST_LOST:
            applied = 0
        elif fate is Fate.CUT:
            applied = self.random.randrange(applied)
        chance, when = self.random.random, self.now + 0.05 + self._delay_of_request(fate)
        for position in range(applied):
            if position and chance() < APART:
                when += chance() * 2
            self.at(when, self._apply, connection, commands, position, fate)
        if fate in BROKEN:
            self.at(self.now + 0.1 + chance() * 3, self._break, connection, RedisConnectionError("it was reset"))
        elif fate is Fate.SILENT:
            self.at(self.now + TIMEOUT_MS, self._break, connection, RedisTimeoutError("no reply in time"))
        elif fate is Fate.DIES_AFTER:
            self.at(self.now + chance() * 2, self.kill, actor)

    def _draw_fate(self, actor: Actor) -> Fate:
        """Draws the fate of an exchange that has one, and has happen what happens before it is sent."""
        fate = self.random.choice(FAULTS)
        if fate in DEATHS and self.random.random() >= self.kills:
            return Fate.FINE
        self.note(actor, f"[{fate}]")
        if fate is Fate.DIES_BEFORE:
            actor.is_dead = True
            raise Killed
        if fate is Fate.FORGETS:
            self.server.ask("SCRIPT", "FLUSH", now_ms=self.now)
        return fate

    def _delay_of_request(self, fate: Fate) -> float:
        chance = self.random.random()
        if fate is Fate.SILENT:
            return TIMEOUT_MS + (chance - 0.5) * 1000
        return chance * DELAYS_MS.get(fate, 1.5)

    def _begin(self, actor: Actor, job: Callable[[Actor], None]) -> None:
        actor.greenlet, self.actor = _take_greenlet(), actor
        error = actor.greenlet.switch((actor, job))
        if error:
            raise error

    def _apply(self, connection: Connection, commands: list[list[bytes]], position: int, fate: Fate) -> None:
        command = commands[position]
        self._feed(self._execute(self.now, *command))
        reply = self._read()
        self._observe(connection.actor, command, reply)
        if connection.error is not None:
            return
        connection.replies.append(reply)
        if position + 1 < len(commands):
            return
        if fate is _FINE:
            self._go_on_at(self.now + 0.05 + 0.5 * self._chance(), connection.actor)
        elif fate is Fate.DIES_BEHIND:
            self.kill(connection.actor)
        elif fate not in (Fate.REPLY_LOST, Fate.LATE, Fate.SILENT):
            delay = self.random.random() * (DELAYS_MS[fate] if fate is Fate.SLOW else 0.5)
            self._go_on_at(self.now + 0.05 + delay, connection.actor)

    def _send_fine(self, connection: Connection, commands: list[list[bytes]]) -> None:
        """An exchange of one command without faults. When nothing else happens before, no other actor runs: so it is
        carried out at once, as are most, without giving the processor up."""
        when, actor = self.now + 0.05 + 1.5 * self._chance(), connection.actor
        if not self._is_next(when):
            self.at(when, self._apply, connection, commands, 0, _FINE)
            return
        self.now, command = when, commands[0]
        self._feed(self._execute(when, *command))
        reply = self._read()
        try:
            self._observe(actor, command, reply)
        except Exception as violation:
            _HUB.switch(violation)  # past the product, which might take it for an error of its own
        connection.replies.append(reply)
        when = self.now + 0.05 + 0.5 * self._chance()
        if self._events and self._events[0][0] <= when:
            self.at(when, self.go_on, actor)
            self.wait(actor)
        else:
            self.now = when

    def _break(self, connection: Connection, error: Exception) -> None:
        connection.error = error
        self.go_on(connection.actor)


_FINE = Fate.FINE
_HUB = greenlet.getcurrent()
_idle: list[Any] = []


def _take_greenlet() -> Any:
    if _idle:
        return _idle.pop()
    made = greenlet.greenlet(_live)
    made.switch()
    return made


def _live() -> None:
    """The life of a greenlet: one actor after the other. An error of an actor is raised in the scheduler."""
    error: Exception | None = None
    while True:
        actor, job = _HUB.switch(error)
        error = None
        try:
            job(actor)
        except Killed:
            pass
        except Exception as raised:
            error = raised
        actor.greenlet = None
        _idle.append(greenlet.getcurrent())
