"""Every operation in any order, on a real server and on a model in plain Python; I-1 to I-12 hold after each step.

`pytest -m slow tests/acceptance/test_state_machine.py` runs 10 000 examples of it.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobrunner import Client, Item, Lease, RateLimit
from jobrunner.client.client import keys_of
from jobrunner.errors import LeaseLost, NotReserved, QueueFull
from tests.acceptance.queue_model import STATES, ModelQueue, ModelTask
from tests.support.clock import Clock
from tests.support.contents import contents
from tests.support.examples import examples
from tests.support.server import Server

START_MS = 1_790_000_000_000
HISTORY_MS = 600_000
NAMES = ("sm/a", "sm/b")
_examples = itertools.count(1)
names = st.sampled_from([*NAMES[:1] * 4, *NAMES[1:]])
waits = st.sampled_from([0, 0, 0, 0, 0, 1, 500, 3000])
payloads = st.one_of(
    st.binary(max_size=20), st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.text(max_size=9),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


class Queues(RuleBasedStateMachine):
    """Two queues of one tag."""

    server: ClassVar[Server]
    raw: ClassVar[redis.Redis]

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"sm{next(_examples)}"
        self.clock = Clock()
        self.clock.set(START_MS)
        self.client = Client(self.server.url, self.prefix, now_ms=self.clock)
        self.tasks: dict[str, ModelTask] = {}
        self.model = {name: ModelQueue(name, self.tasks) for name in NAMES}
        self.real = {name: self.client.queue(name) for name in NAMES}
        self.leases: list[tuple[str, Lease]] = []
        self.tokens: set[str] = set()
        self.beyond: set[str] = set()
        self.number = itertools.count()

    def teardown(self) -> None:
        self.client.close()
        keys = list(self.raw.scan_iter(match=f"{self.prefix}:*", count=1000))
        if keys:
            self.raw.delete(*keys)

    @property
    def now(self) -> int:
        assert self.clock.ms is not None
        return int(self.clock.ms)

    @initialize(change=st.sampled_from([None, "leases", "rate", "size", "history"]))
    def begin(self, change: str | None) -> None:
        for name, queue in self.real.items():
            assert sum(queue.counts().values()) == 0
            queue.configure(keepalive=1)
            self.model[name].keepalive = 1000
        if change:
            self.configure(NAMES[0], change, harder=True)

    @rule(ms=st.sampled_from([1, 499, 700, 1000, 1000, 3000, 700_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(
        data=st.data(),
        name=names,
        act=st.sampled_from(["step back", "push again", "pop", "purge", "requeue", "requeue"]),
    )
    def act_seldom(self, data: st.DataObject, name: str, act: str) -> None:
        if act == "step back":
            self.clock.advance(-data.draw(st.sampled_from([1, 5000])))
        elif act == "pop":
            self.pop(name, data.draw(st.integers(1, 3)))
        elif act == "purge":
            self.purge(name, data.draw(st.sampled_from(["waiting", "scheduled", "dead"])))
        elif act == "push again" and self.tasks:
            self.push_again(data)
        elif act == "requeue" and any(task.state == "dead" for task in self.tasks.values()):
            self.requeue(data)

    @rule(name=names, items=st.lists(st.tuples(payloads, st.integers(0, 2), waits), min_size=1, max_size=4),
          keepalive=st.sampled_from([None, None, 700, 60_000]), tries=st.sampled_from([None, None, 0, 2]))  # fmt: skip
    def push(self, name: str, items: list[tuple[Any, int, int]], keepalive: int | None, tries: int | None) -> None:
        queue = self.model[name]
        made = [
            (ModelTask(f"t{next(self.number):05}", queue, payload, priority, _tries(tries), keepalive), wait)
            for payload, priority, wait in items
        ]
        given = [
            Item(task.payload, id=task.id, priority=task.priority, in_=wait / 1000, max_attempts=tries,
                 keepalive=None if keepalive is None else keepalive / 1000)
            for task, wait in made
        ]  # fmt: skip
        if queue.is_full(len(given)) and given:
            with pytest.raises(QueueFull):
                self.real[name].push_many(given)
            return
        assert self.real[name].push_many(given) == [task.id for task, _ in made]
        for task, wait in made:
            queue.push(task, wait, self.now)

    def push_again(self, data: st.DataObject) -> None:
        """The same id leaves the first task as it was."""
        task = data.draw(st.sampled_from(sorted(self.tasks.values(), key=lambda one: one.id)))
        self.real[task.queue.name].push(b"other", id=task.id)

    @rule(name=names)
    def reserve_more(self, name: str) -> None:
        self.reserve(name, 3)

    @rule(name=names, count=st.integers(1, 4))
    def reserve(self, name: str, count: int) -> None:
        held = self.real[name].reserve(count)
        expected = self.model[name].reserve(count, self.now)
        assert [lease.id for lease in held] == [task.id for task in expected], "I-9, I-10: not the order of the line"
        for lease, task in zip(held, expected, strict=True):
            assert lease.payload == task.payload, "I-12"
            assert type(lease.payload) is type(task.payload), "I-12"
            assert (lease.attempts, lease.retry_count) == (task.retry_count + 1, task.retry_count)
            most = task.max_attempts or self.model[name].max_attempts
            is_free = task.max_attempts == UNLIMITED or task.id in self.beyond
            assert is_free or lease.attempts <= most, "I-6"
            assert (task.id, lease.token) not in self.tokens, "I-5"
            self.tokens.add((task.id, lease.token))
            task.token = lease.token
            self.leases.append((name, lease))

    def pop(self, name: str, count: int) -> None:
        popped = self.real[name].pop(count)
        expected = self.model[name].pop(count, self.now)
        assert [(one.id, one.payload) for one in popped] == [(task.id, task.payload) for task in expected]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name, lease = self._lease(data)
        with self._judged(name, lease, lease.commit) as task:
            if task is not None:
                self.model[name].finish(task, self.now)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), delay=waits)
    def rollback(self, data: st.DataObject, delay: int) -> None:
        name, lease = self._lease(data)
        with self._judged(name, lease, lambda: lease.rollback(delay / 1000, "why")) as task:
            if task is not None:
                self.model[name].fail(task, delay, self.now)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name, lease = self._lease(data)
        with self._judged(name, lease, lease.release) as task:
            if task is not None:
                self.model[name].release(task)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        name, lease = self._lease(data)
        with self._judged(name, lease, lease.extend) as task:
            if task is not None:
                length = round((lease.deadline.timestamp() * 1000) - self.now)
                task.when = max(task.when, self.now + length)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), to=names, delay=waits, payload=st.one_of(st.none(), payloads.map(lambda value: (value,))))
    def move(self, data: st.DataObject, to: str, delay: int, payload: tuple[Any] | None) -> None:
        name, lease = self._lease(data)
        changed = {} if payload is None else {"payload": payload[0]}
        source, target = self.model[name], self.model[to]
        if target.is_full(1) and self._live(name, lease):
            with pytest.raises(QueueFull):
                lease.move(to, delay=delay / 1000, **changed)
            return
        with self._judged(name, lease, lambda: lease.move(to, delay=delay / 1000, **changed)) as task:
            if task is not None:
                if payload is not None:
                    task.payload = payload[0]
                source.move(task, target, delay, self.now)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Titan's way: any holder, without a token."""
        name, lease = self._lease(data)
        task = self.tasks.get(lease.id)
        if task is None or task.state == "done":
            assert not self.real[name].delete(lease.id)
        elif task.queue.name == name and task.state == "pending" and task.when > self.now:
            assert self.real[name].delete(lease.id)
            self.model[name].finish(task, self.now)
        else:
            with self._unchanged(), pytest.raises((NotReserved, LeaseLost)):
                self.real[name].delete(lease.id)

    def requeue(self, data: st.DataObject) -> None:
        dead = sorted(task.id for task in self.tasks.values() if task.state == "dead")
        task = self.tasks[data.draw(st.sampled_from(dead))]
        assert self.real[task.queue.name].requeue_dead([task.id, "no-such-task"]) == 1
        task.queue.requeue(task, self.now)

    def purge(self, name: str, state: str) -> None:
        gone = self.model[name].of(state)
        assert self.real[name].purge(state) == len(gone)
        for task in gone:
            del self.tasks[task.id]

    @rule(
        name=names,
        change=st.sampled_from(["pause", "leases", "rate", "size", "history"]),
        harder=st.sampled_from([False, False, True]),
    )
    def configure(self, name: str, change: str, harder: bool) -> None:
        """Sets one limit, or lifts it again."""
        real, model = self.real[name], self.model[name]
        if change == "pause":
            (real.pause if harder else real.resume)()
            model.paused = harder
        elif change == "leases":
            model.max_inflight = 2 if harder else 0
            real.configure(max_inflight=model.max_inflight)
        elif change == "rate":
            model.rate = (2, 3000) if harder else None
            real.configure(rate=RateLimit(max_tokens=2, interval=3) if harder else None)
        elif change == "size":
            model.max_size, model.max_attempts, model.dead_max = (4, 2, 2) if harder else (0, 5, 0)
            spent = (task.id for task in model.tasks.values() if task.retry_count >= model.max_attempts)
            self.beyond.update(spent)  # their attempts were spent before the limit was lowered; each has one more
            real.configure(max_size=4 if harder else None, max_attempts=model.max_attempts, dead_max=model.dead_max)
        else:
            model.history, model.history_max = HISTORY_MS, 2 if harder else 0
            real.configure(history=HISTORY_MS / 1000, history_max=2 if harder else None)

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        found = self._read()
        for name, queue in self.model.items():
            queue.upkeep(self.now)
            for state in STATES:
                expected = [task.id for task in queue.of(state)]
                assert list(found[name][state]) == expected, f"{name} {state}"
            ends = {task.id: task.when for task in queue.of("pending")}
            assert found[name]["pending"] == ends
        self._check_invariants(found)

    def _check_invariants(self, found: dict[str, dict[str, dict[str, float]]]) -> None:
        members = [one for name in NAMES for state in STATES for one in found[name][state]]
        assert len(members) == len(set(members)), "I-1: an id is in two sets"
        base = keys_of(self.client).queue(NAMES[0])
        hashes = {key[len(base.tasks) :].decode() for key in self.raw.scan_iter(match=base.tasks + b"*", count=1000)}
        finished = {task for name in NAMES for task in found[name]["done"]}
        assert hashes - set(members) <= self._kept(hashes), "I-2: a live hash without a set"
        assert set(members) <= hashes, "I-2: a member without a hash"
        for task_id in finished | self._kept(hashes):
            assert self.raw.pttl(base.task(task_id)) > 0, "I-11: a finished task without an end"

    def _kept(self, hashes: set[str]) -> set[str]:
        """Hashes of finished tasks that stay for a while, as history that was switched off or cut."""
        return {one for one in hashes if one not in self.tasks}

    def _read(self) -> dict[str, dict[str, dict[str, float]]]:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, queue in self.real.items():
            queue.counts()
            keys = keys_of(self.client).queue(name)
            pipeline = self.raw.pipeline()
            for state in STATES:
                pipeline.zrange(getattr(keys, state), 0, -1, withscores=True)
            found[name] = {
                state: {raw.decode(): score for raw, score in pairs}
                for state, pairs in zip(STATES, pipeline.execute(), strict=True)
            }
        return found

    def _lease(self, data: st.DataObject) -> tuple[str, Lease]:
        return data.draw(st.sampled_from(self.leases[-4:]))

    def _live(self, name: str, lease: Lease) -> bool:
        task = self.tasks.get(lease.id)
        return (
            task is not None and task.queue.name == name and task.state == "pending" and task.token == lease.token
            and task.when > self.now
        )  # fmt: skip

    @contextmanager
    def _judged(self, name: str, lease: Lease, report: Callable[[], bool]) -> Iterator[ModelTask | None]:
        """Makes a report and checks its answer; yields the model's task when it was accepted."""
        task = self.tasks.get(lease.id)
        if task is not None and self._live(name, lease):
            assert report()
            yield task
            return
        with self._unchanged():  # I-7
            if task is None or task.state == "done":
                assert not report()
            else:
                here = task.queue.name == name
                held = here and task.state == "pending" and task.when > self.now
                with pytest.raises(NotReserved if here and not held else LeaseLost):
                    report()
        yield None

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = contents(self.raw, self.prefix)
        yield
        assert contents(self.raw, self.prefix) == before, "I-7: a refused report changed something"


UNLIMITED = -1


def _tries(given: int | None) -> int:
    """As the model has it: 0 for none of its own, UNLIMITED for no limit."""
    return 0 if given is None else given or UNLIMITED


def _run(server: Server, raw: redis.Redis, examples: int) -> None:
    Queues.server, Queues.raw = server, raw
    run_state_machine_as_test(
        Queues,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            phases=(Phase.generate, Phase.shrink),
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)  # a failing example is made short before it is shown
def test_any_order_of_operations_does_what_the_model_does(server: Server, raw: redis.Redis) -> None:
    """I-1, I-2, I-3, I-4, I-5, I-6, I-7, I-8, I-9, I-10, I-11, I-12: the assertions say which."""
    _run(server, raw, examples(80))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_any_order_of_operations_does_what_the_model_does_at_length(server: Server, raw: redis.Redis) -> None:
    _run(server, raw, 10_000)
