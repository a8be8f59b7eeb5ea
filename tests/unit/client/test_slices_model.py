"""Slices of limits in any order of steps: programs that balance and configure at the same time, each stopped between
any two calls to the server, calls that arrive twice or late, programs that die, tasks that are reserved meanwhile.

Invariant after each step: slices and the gifts under way are together no more than the limit, and so are leases. At the
end: whatever died, a few looks later the slices are the limit, and the only shard with tasks has all of it.
`pytest -m slow tests/unit/client/test_slices_model.py` runs many more examples.
"""

import itertools
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from jobrunner import Client, RateLimit
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases, new_tasks, queues, slices
from jobrunner.broker.connect import Endpoint
from jobrunner.client.client import keys_of
from jobrunner.client.operations import partitions, slice_balancer
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import EachReply, Operation, run_operation
from jobrunner.client.operations.routing import Routes
from jobrunner.client.operations.slice_balancer import SliceBalancer
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.task import Task, new_id
from tests.support.clock import Clock
from tests.support.examples import examples
from tests.support.server import Server

MOST_SHARDS, TOKENS = 4, 12
_examples = itertools.count(1)
shards = st.integers(0, MOST_SHARDS - 1)


class Program:
    """An operation, and the calls that it waits for."""

    def __init__(self, steps: Operation[Any]) -> None:
        self.steps = steps
        self.calls: list[Call[Any]] | None = None
        self.resume(None)

    def resume(self, answer: Any) -> None:
        try:
            step = self.steps.send(answer)
            assert isinstance(step, (list, EachReply))
            self.calls = step if isinstance(step, list) else step.calls
        except (StopIteration, InvalidOption, UsageError):
            self.calls = None


class Shards(RuleBasedStateMachine):
    """A queue with a limit on leases; some examples have a rate, too, and a clock that stands."""

    server: ClassVar[Server]
    raw: ClassVar[redis.Redis]
    has_rate: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.clock.set()
        prefix = f"sm{next(_examples)}"
        self.client = Client(self.server.url, prefix, now_ms=self.clock)
        self.broker = Broker(Endpoint(self.server.url), now_ms=self.clock)
        self.keys = keys_of(self.client)
        rate = RateLimit(TOKENS, per=3600) if self.has_rate else None
        self.client.queue("mail").configure(partitions=3, max_inflight=7, rate=rate)
        self.programs: list[Program] = []
        self.sent: list[Call[Any]] = []
        self.held: list[tuple[int, str, str]] = []
        self.bound = 7
        """The highest limit that there was: leases above a lower one may be there already."""
        self.division = 0, 0
        """The last one, as the first shard has it, and its limit."""
        self.handed_out = 0
        self.number = itertools.count()

    def ref(self) -> QueueRef:
        return QueueRef(self.keys, None, "mail", 1000, routes=Routes(self.keys, Endpoint(self.server.url)))

    def shard(self, number: int) -> Any:
        return self.ref().first_shards(MOST_SHARDS)[number].keys

    def count(self) -> int:
        return int(self.raw.hget(self.shard(0).settings, "shards") or 1)

    def seen(self) -> list[slices.ShardSlices]:
        return [self.broker.run(slices.read(self.shard(number))) for number in range(self.count())]

    @rule(steps=st.integers(0, 6))
    def look(self, steps: int) -> None:
        self.raw.delete(self.shard(0).balanced)
        self.begin(SliceBalancer(self.ref()).balancing(self.count()), steps)

    @rule(limit=st.integers(1, 9), steps=st.integers(0, 9))
    def limit(self, limit: int, steps: int) -> None:
        self.bound = max(self.bound, limit)
        self.begin(partitions.configure(self.ref(), {"max_inflight": limit}), steps)

    @rule(count=st.integers(3, MOST_SHARDS), steps=st.integers(0, 9))
    def partition(self, count: int, steps: int) -> None:
        self.begin(partitions.configure(self.ref(), {"partitions": count}), steps)

    def begin(self, steps: Operation[Any], count: int) -> None:
        """Begins a program and takes its first steps; the oldest of four dies."""
        self.programs = [*self.programs[-2:], Program(steps)]
        self.go_on(len(self.programs) - 1, count, twice=False)

    @rule(which=st.integers(0, 2), steps=st.integers(1, 6), twice=st.booleans())
    def go_on(self, which: int, steps: int, twice: bool) -> None:
        for _ in range(steps):
            if not self.programs:
                return
            program = self.programs[which % len(self.programs)]
            if program.calls is None:
                self.programs.remove(program)
                return
            program.resume([self.send(call, twice=twice) for call in program.calls])

    @rule(which=st.integers(0, 2), after=st.integers(0, 3))
    def die(self, which: int, after: int) -> None:
        if self.programs:
            for call in (self.programs.pop(which % len(self.programs)).calls or [])[:after]:
                self.send(call, twice=False)

    @rule(which=st.integers(0, 24))
    def arrive_late(self, which: int) -> None:
        """A call whose connection broke is sent again, and the first one arrives long after."""
        if self.sent:
            self.broker.run(self.sent[-1 - which % len(self.sent)])

    def send(self, call: Call[Any], *, twice: bool) -> Any:
        if call.script is not None and call.script.name.startswith("slice_"):
            self.sent.append(call)
            if twice:
                self.broker.run(call)
        return self.broker.run(call)

    @rule(number=shards)
    def hold_up(self, number: int) -> None:
        """A shard that needs more than it has."""
        self.enqueue(number, 9)
        self.reserve(number, 9)

    def enqueue(self, number: int, count: int) -> None:
        line = self.shard(number)
        made = [Task(id=new_id(line.tag), queue=line.name, payload=b"") for _ in range(count)]
        self.broker.run(new_tasks.enqueue(line, made))

    @rule(number=shards, count=st.integers(1, 9))
    def reserve(self, number: int, count: int) -> None:
        if number < self.count():
            found = self.broker.run(leases.reserve(self.shard(number), count, token=str(1000 * next(self.number))))
            self.held += [(number, attempt.id, attempt.token) for attempt in found.attempts]
            self.handed_out += len(found.attempts)

    @rule(count=st.integers(1, 9))
    def commit(self, count: int) -> None:
        for number, task_id, token in self.held[:count]:
            self.broker.run(leases.commit(self.shard(number), [(task_id, token, 0, "succeeded", b"")]))
        del self.held[:count]

    @invariant()
    def is_within_the_limits(self) -> None:
        seen = self.seen()
        notes = [self.raw.hgetall(self.shard(number).transfers) for number in range(len(seen))]
        if seen[0].generation != self.division[0]:
            self.division = seen[0].generation, seen[0].max_inflight or 0
        leases_there = sum(one.inflight or 0 for one in seen)
        tokens_there = sum(one.tokens or 0 for one in seen)
        for giver, one in enumerate(seen):
            for gift in one.gifts:
                taker = [self.shard(number).name for number in range(len(seen))].index(gift.shard)
                had = int(notes[taker].get(b"<" + self.shard(giver).name.encode(), 0))
                if seen[taker].generation <= one.generation and had < int(gift.note.split()[0]):
                    leases_there += gift.leases
                    tokens_there += gift.tokens
        assert leases_there <= self.division[1]
        assert sum(one.pending for one in seen) <= self.bound
        if self.has_rate:
            assert tokens_there <= TOKENS
            assert self.handed_out <= TOKENS

    def teardown(self) -> None:
        if hasattr(self, "programs"):
            self.recover()
            self.client.close()
            self.broker.close()

    def recover(self) -> None:
        """Everyone is dead. Someone else comes."""
        balancer = SliceBalancer(self.ref())
        self.commit(len(self.held))
        for number in range(self.count()):
            while self.broker.run(queues.purge(self.shard(number), "waiting")):
                pass
        self.enqueue(self.count() - 1, 20)
        for _ in range(8):
            self.reserve(self.count() - 1, 20)
            self.raw.delete(self.shard(0).balanced)
            run_operation(self.broker, balancer.balancing(self.count()))
        seen = self.seen()
        assert not any(one.gifts for one in seen)
        if self.has_rate:  # which may be used up
            assert sum(one.inflight or 0 for one in seen) == seen[0].max_inflight
            assert sum(one.tokens or 0 for one in seen) == TOKENS
            return
        assert [one.inflight for one in seen] == [0] * (len(seen) - 1) + [seen[0].max_inflight]


@pytest.fixture(params=[False, True], ids=["leases", "leases and rate"])
def machine(request: pytest.FixtureRequest, server: Server, raw: redis.Redis, monkeypatch: Any) -> type[Shards]:
    monkeypatch.setattr(slice_balancer, "unix_ms", lambda: 0)
    Shards.server, Shards.raw, Shards.has_rate = server, raw, request.param
    return Shards


def _run(machine: type[Shards], count: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.timeout(900)  # a failing example is made short before it is shown
def test_slices_are_never_above_the_limit_and_nothing_of_it_is_lost(machine: type[Shards]) -> None:
    _run(machine, examples(45), 40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_slices_are_never_above_the_limit_in_many_examples(machine: type[Shards]) -> None:
    _run(machine, 2000, 60)
