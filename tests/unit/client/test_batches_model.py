"""Batches in any order of steps, compared with a model: drivers that die, sleep beyond their lease, or repeat calls.

Invariant after each step: every item is in one place, and no other queue has an item without a decision to move it.
At the end everything is drained: each item is where the decision sent it, once, and no key of a batch is left.
`pytest -m slow tests/unit/client/test_batches_model.py` runs many more examples.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import batches as calls
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.errors import BatchLost, NotReserved
from tests.support.clock import Clock
from tests.support.examples import examples
from tests.support.queue_audit import WAYS_OUT
from tests.support.server import Server

LEASE_MS, MAX_ATTEMPTS, ROOM, WAITING_MS = 1000, 3, 3, 5000
BLAMED = ("blamed", "poison")
SOURCE, TARGETS = "m/a", ("b", "c")
_examples = itertools.count(1)
fates = st.sampled_from(["b", "b", "c", "", None])


@dataclass
class ModelBatch:
    """The expected state of a batch."""

    members: list[str]
    epoch: int = 1
    ends: float = 0
    due: float = 0
    state: str = "open"
    failures: int = 0
    expiries: int = 0
    staged: dict[str, dict[str, str]] = field(default_factory=dict)


class Drivers(RuleBasedStateMachine):
    """One source, two targets, any number of drivers."""

    server: ClassVar[Server]
    raw: ClassVar[redis.Redis]

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.clock.set()
        prefix = f"bm{next(_examples)}"
        self.broker = Broker(Endpoint(self.server.url), now_ms=self.clock)
        self.client = Client(self.server.url, prefix, now_ms=self.clock)
        self.keys = Keys(prefix).queue(SOURCE)
        self.targets = {to: Keys(prefix).queue(f"m/{to}") for to in TARGETS}
        self.batches = Batches(self.broker, self.keys)
        self.model: dict[str, ModelBatch] = {}
        self.leases: list[BatchLease] = []
        self.fate: dict[str, str | None] = {}
        self.flagged: set[str] = set()
        self.number = itertools.count()
        self.client.queue(SOURCE).configure(max_attempts=MAX_ATTEMPTS)
        self.client.queue("m/b").configure(max_size=ROOM)

    @property
    def now(self) -> float:
        assert self.clock.ms is not None
        return self.clock.ms

    @rule(count=st.integers(1, 6))
    def push(self, count: int) -> None:
        for task_id in self.client.queue(SOURCE).push_many(range(count)):
            self.fate[task_id] = None

    @rule(ms=st.sampled_from([1, 400, LEASE_MS, LEASE_MS]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(count=st.integers(1, 11))
    def take(self, count: int) -> None:
        before = self.ids(self.keys.waiting)
        line = [one for one in before if one not in self.flagged]  # what was cancelled in a batch is dropped
        lease = self.batches.take(count, lease_s=LEASE_MS / 1000)
        self.fate |= dict.fromkeys(self.flagged.intersection(before).difference(self.ids(self.keys.waiting)), "gone")
        self.reconcile()
        if lease is None:
            assert not line
            going_on = [batch for batch in self.model.values() if batch.state in ("open", "committed")]
            assert all(batch.due > self.now for batch in going_on)
            return
        if lease.id not in self.model:
            self.model[lease.id] = ModelBatch(line[:count])
        batch = self.model[lease.id]
        assert batch.due <= self.now, "it was not due"
        if lease.epoch > 1 and batch.state == "open" and batch.ends > 0:
            batch.expiries += 1
        assert lease.epoch == 1 or lease.epoch == batch.epoch + 1
        batch.epoch, batch.staged = lease.epoch, batch.staged if batch.state == "committed" else {}
        batch.ends = batch.due = self.now + LEASE_MS
        assert (lease.state, lease.failures) == (batch.state, batch.failures)
        assert lease.members(0, 99) == batch.members, "other members than before"
        for older in [one for one in self.leases if one.id == lease.id][-1:] if batch.state == "open" else ():
            with pytest.raises(BatchLost):
                older.stage("x", [])
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), nonce=st.sampled_from("xy"), twice=st.booleans())
    def stage(self, data: st.DataObject, nonce: str, twice: bool) -> None:
        lease, batch = self.some(data)
        there = batch.staged.get(nonce, {})
        chosen = {one: data.draw(fates) for one in batch.members if one not in there}
        rows = {one: to for one, to in chosen.items() if to is not None}
        words = [word for one, to in rows.items() for word in (one, to, b"1", "")]
        with self.judged(lease, batch) as is_held:
            for _ in range(1 + twice):
                lease.stage(nonce, words, after=len(there))
            if is_held:
                batch.staged[nonce] = there | rows

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), nonces=st.sampled_from(["x", "y", "xy", ""]), rest=st.sampled_from(["dropped", "succeeded"]))
    def decide(self, data: st.DataObject, nonces: str, rest: str) -> None:
        lease, batch = self.some(data)
        with self.judged(lease, batch) as is_held:
            lease.decide(list(nonces), rest=rest)
            lease.decide(list(nonces), rest=rest)  # as after a lost reply
            if is_held:
                self.settle(batch, [batch.staged.get(nonce, {}) for nonce in nonces], rest)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 500]), said=st.sampled_from(["failed", *BLAMED, "divided"]))
    def fail(self, data: st.DataObject, delay: int, said: str) -> None:
        lease, batch = self.some(data)
        with self.judged(lease, batch) as is_held:
            fate = lease.fail("no", delay_s=delay / 1000, fate=said)
            assert is_held
            batch.failures += said != "divided"
            assert fate == self.fate_of(batch, batch.failures + batch.expiries, said)
            self.set_back(lease.id, batch, fate, self.now + delay)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), act=st.sampled_from(["release", "renew", "renew", "dissolve"]))
    def end_or_renew(self, data: st.DataObject, act: str) -> None:
        lease, batch = self.some(data)
        may_renew = batch.state == "committed" and act == "renew"
        with self.judged(lease, batch, may_renew=may_renew) as is_held:
            getattr(lease, act)()
            assert is_held or may_renew
            if act == "dissolve":
                batch.state = "done"
            batch.ends, batch.due = (self.now + LEASE_MS,) * 2 if act == "renew" else (0, self.now)

    @precondition(lambda self: any(batch.state == "committed" for batch in self.model.values()))
    @rule(data=st.data(), count=st.integers(1, 3))
    def advance(self, data: st.DataObject, count: int) -> None:
        """By any lease there ever was, a slice of any size."""
        lease, batch = self.some(data, state="committed")
        if lease is None:
            return
        step = self.broker.run(calls.advance(self.keys, lease.id, count=count))
        self.advanced(batch, step)

    @rule(count=st.integers(1, 3))
    def make_room(self, count: int) -> None:
        for one in self.client.queue("m/b").pop(count):
            self.fate[one.id] = "popped"

    @precondition(lambda self: self.fate)
    @rule(data=st.data(), act=st.sampled_from(["delete", "cancel"]))
    def take_away(self, data: st.DataObject, act: str) -> None:
        one = data.draw(st.sampled_from(sorted(self.fate)))
        is_held = self.raw.zscore(self.keys.pending, one) is not None
        is_waiting = self.raw.zscore(self.keys.waiting, one) is not None
        if act == "delete" and is_held:
            self.client.queue(SOURCE).delete(one)
            self.fate[one] = "gone"
        elif act == "delete" and is_waiting:
            with pytest.raises(NotReserved):
                self.client.queue(SOURCE).delete(one)
        elif act == "cancel" and (is_held or is_waiting):
            self.client.task(one, queue=SOURCE).cancel()
            if is_waiting:
                self.fate[one] = "gone"
            else:
                self.flagged.add(one)
                if self.fate[one] in ("b", "c", "dead") and self.fate[one] != "":
                    self.fate[one] = "gone"

    @invariant()
    def every_item_is_in_one_place(self) -> None:
        places = self.places()
        for one, fate in self.fate.items():
            seen = places.get(one, [])
            if fate is None:
                assert len(seen) == 1, (one, seen)
                assert seen[0] in ("a:waiting", "a:pending"), (one, seen)
            elif fate in ("gone", "popped"):
                assert seen in ([], ["a:pending"]), (one, fate, seen)
            else:
                assert seen in ([f"{fate}:waiting"], ["a:pending"], [f"a:{fate}"]), (one, fate, seen)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.broker.close()
            self.client.close()
            self.raw.flushall()

    def drain(self) -> None:
        """A last driver does all that is left."""
        for _ in range(200):
            self.clock.advance(LEASE_MS)
            for one in self.client.queue("m/b").pop(ROOM):
                self.fate[one.id] = "popped"
            self.take(50)
            if not self.model or all(batch.state in ("done", "split") for batch in self.model.values()):
                break
            lease = self.leases[-1]
            batch = self.model[lease.id]
            if batch.state == "open":
                lease.stage("end", [word for one in batch.members for word in (one, "c", b"1", "")])
                lease.decide(["end"], rest="dropped")
                self.settle(batch, [dict.fromkeys(batch.members, "c")], "dropped")
            is_full = False
            while batch.state == "committed" and not is_full:
                step = lease.advance()
                self.advanced(batch, step)
                is_full = step.full is not None
        self.every_item_is_in_one_place()
        assert not self.raw.zcard(self.keys.pending)
        assert not self.raw.zcard(self.keys.leases)
        for key in self.raw.scan_iter(match=self.keys.batch + b"*", count=1000):
            assert self.raw.type(key) == b"hash", key
            assert self.raw.pttl(key) > 0, key
        for line in (self.keys, *self.targets.values()):
            self.check_books(line)

    def check_books(self, line: Any) -> None:
        totals = {name.decode(): int(total) for name, total in self.raw.hgetall(line.counters).items()}
        entered = totals.get("enqueued", 0) + totals.get("moved_in", 0)
        there = sum(self.raw.zcard(getattr(line, state)) for state in ("waiting", "scheduled", "pending", "dead"))
        assert entered == there + sum(totals.get(name, 0) for name in WAYS_OUT), totals

    def some(self, data: st.DataObject, state: str | None = None) -> tuple[Any, ModelBatch]:
        """A lease out of all there were; more often of a batch that goes on, and the newest."""
        held = [one for one in self.leases if state is None or self.model[one.id].state == state]
        if going_on := [one for one in held if self.model[one.id].state in ("open", "committed")]:
            held = going_on if data.draw(st.integers(0, 4)) else held
        if not held:
            return None, ModelBatch([])
        lease = held[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(held))
        return lease, self.model[lease.id]

    @contextmanager
    def judged(self, lease: BatchLease, batch: ModelBatch, *, may_renew: bool = False) -> Iterator[bool]:
        """Whether what is done now counts; it must be refused exactly when it does not."""
        is_newest = lease.epoch == batch.epoch and batch.ends > self.now
        is_held = is_newest and batch.state == "open"
        is_repeated = lease.state in ("committed", "done") and batch.state in ("committed", "done")
        try:
            yield is_held
        except BatchLost:
            assert not is_held, "refused although it is held"
            assert not (is_newest and may_renew)
        else:
            assert is_held or (is_newest and may_renew) or is_repeated, "taken although it is not held"

    def fate_of(self, batch: ModelBatch, tries: int, said: str = "failed") -> str:
        if len(batch.members) == 1:
            is_dead = said == "poison" or (said != "divided" and tries >= MAX_ATTEMPTS)
            return "dead" if is_dead else "again"
        return "split" if said != "failed" or batch.failures >= 2 or batch.expiries >= MAX_ATTEMPTS else "again"

    def set_back(self, batch_id: str, batch: ModelBatch, fate: str, due: float) -> None:
        batch.ends, batch.due, batch.staged = 0, due, {}
        if fate == "split":
            batch.state, size = "split", len(batch.members)
            parts = 4 if size > 8 else size
            for n in range(parts):
                members = batch.members[n * size // parts : (n + 1) * size // parts]
                self.model[f"{batch_id}.p{n + 1}of{parts}"] = ModelBatch(
                    members, epoch=0, due=self.now, failures=batch.failures, expiries=batch.expiries
                )
        elif fate == "dead":
            self.settle(batch, [], "dead")
            batch.state = "done"

    def settle(self, batch: ModelBatch, staged: list[dict[str, str]], rest: str) -> None:
        """Notes what the decision means for each member that is there still."""
        batch.state, batch.due = "committed", batch.ends
        for one in batch.members:
            if self.fate[one] is not None:
                continue
            rows = [rows[one] for rows in staged if one in rows]
            if rows and one in self.flagged:
                self.fate[one] = "gone"
            elif rows:
                self.fate[one] = rows[0] or "dead"
            else:
                self.fate[one] = "dead" if rest == "dead" else "gone"

    def advanced(self, batch: ModelBatch, step: calls.Advance) -> None:
        """Notes what a slice did. While a target is full the batch is left to whoever waits for room in it."""
        if step.done:
            batch.state = "done"
        elif step.full:
            batch.due = max(batch.due, self.now + WAITING_MS)
            assert len(self.ids(self.targets["b"].waiting)) == ROOM

    def reconcile(self) -> None:
        """Ended leases that a take found: batches that were halved, or whose last member is dead."""
        for batch_id, batch in list(self.model.items()):
            state = (self.raw.hget(self.keys.batch + batch_id.encode(), "state") or b"").decode()
            if batch.state == "open" and state in ("split", "committed"):
                assert 0 < batch.ends <= self.now
                batch.expiries += 1
                fate = "split" if state == "split" else "dead"
                assert fate == self.fate_of(batch, batch.expiries)
                self.set_back(batch_id, batch, fate, self.now)
                if fate == "dead":
                    batch.state = "committed"

    def ids(self, key: bytes) -> list[str]:
        return [raw.decode() for raw in self.raw.zrange(key, 0, -1)]

    def places(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, line in (("a", self.keys), *self.targets.items()):
            for state in ("waiting", "scheduled", "pending", "dead"):
                for one in self.ids(getattr(line, state)):
                    found.setdefault(one, []).append(f"{name}:{state}")
        return found


@pytest.fixture
def machine(server: Server, raw: redis.Redis) -> type[Drivers]:
    Drivers.server, Drivers.raw = server, raw
    return Drivers


@pytest.mark.timeout(900)  # a failing example is made short before it is shown
def test_batches_do_as_the_model(machine: type[Drivers]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(30), stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_batches_do_as_the_model_in_many_examples(machine: type[Drivers]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=3000, stateful_step_count=50, suppress_health_check=list(HealthCheck)
        ),
    )
