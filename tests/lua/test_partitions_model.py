"""Any order of operations on a partitioned queue: no runnable task is overlooked, no partition exceeds its limits, and
tasks of one partition and priority keep their order."""

import itertools
from collections import Counter
from fractions import Fraction

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobrunner.broker.calls import leases, new_tasks, queues, tasks
from jobrunner.task import Task
from tests.support.examples import examples

TOKENS, INTERVAL_MS = 2, 3_600_000
KEYS = ("", "a", "b", "c", "d")
BAND = 2**42
_names = itertools.count()

items = st.tuples(st.sampled_from(KEYS), st.integers(0, 2), st.sampled_from([0, 0, 700]))
pushes = st.tuples(st.just("push"), st.lists(items, min_size=1, max_size=6))
steps = st.one_of(
    pushes,
    pushes,
    st.tuples(st.just("reserve"), st.integers(1, 5)),
    st.tuples(st.just("reserve"), st.just(50)),
    st.tuples(st.just("pop"), st.integers(1, 2)),
    st.tuples(st.sampled_from(["commit", "fail", "fail later", "release", "cancel", "lose"]), st.integers(0, 20)),
    st.tuples(st.just("advance"), st.sampled_from([1, 700, 1000, INTERVAL_MS // TOKENS, 3 * INTERVAL_MS])),
    st.tuples(st.just("inflight"), st.sampled_from(["", 1, 2])),
    st.tuples(st.just("rate"), st.booleans()),
    st.tuples(st.just("fair"), st.booleans()),
)


class Checked:
    """A queue, what its keys hold and have left by the rules, and what is wrong with each hand-out."""

    def __init__(self, mail, clock):
        self.mail, self.clock = mail, clock
        self.key_of, self.held, self.limited = {}, [], set()
        self.inflight, self.has_rate, self.is_fair = 0, False, True
        self.level, self.at = {}, {}
        self.may_have_forgotten = False
        """Whether the queue went by no key since the last rate: then it forgets the buckets, sooner or later."""
        self.number = itertools.count()

    def pending(self):
        return set(self.mail.ids("pending"))

    def tokens(self, key):
        past = Fraction(self.clock.ms - self.at.get(key, self.clock.ms)) * TOKENS / INTERVAL_MS
        return min(Fraction(TOKENS), self.level.get(key, Fraction(TOKENS)) + past)

    def room(self, key, *, is_leased):
        if key == "":
            return 99
        room = int(self.tokens(key)) if self.has_rate else 99
        if self.inflight and is_leased:
            held = Counter(self.key_of[one] for one in self.limited & self.pending())
            room = min(room, max(0, self.inflight - held[key]))
        return room

    def line(self):
        """Waiting tasks by key, each a list of (band, place, id) in order."""
        found = {}
        for one in self.mail.ids("waiting"):
            place = float(self.mail.hash(one)["place"])
            found.setdefault(self.key_of[one], []).append((place // BAND, place, one))
        return {key: sorted(line) for key, line in found.items()}

    def goes_by_key(self):
        return self.inflight or self.has_rate or self.is_fair

    def hand_out(self, take, count, *, is_leased):
        self.mail.run(queues.upkeep(self.mail.keys))
        line = self.line()
        by_key = self.goes_by_key()
        rooms = {key: self.room(key, is_leased=is_leased) if by_key else 99 for key in line}
        ids = take(count)
        given = Counter(self.key_of[one] for one in ids)
        for key, times in given.items():
            assert times <= rooms[key], f"{key!r} has got more than it may"
            assert [one for one in ids if self.key_of[one] == key] == [one for _, _, one in line[key]][:times]
        runnable = sum(min(rooms[key], len(waiting)) for key, waiting in line.items())
        assert len(ids) == min(count, runnable), "a runnable task was overlooked"
        if not by_key:
            everything = sorted(itertools.chain.from_iterable(line.values()))
            assert ids == [one for _, _, one in everything][:count], "not the order of the line"
        for one in ids:
            key = self.key_of[one]
            if self.has_rate and key:
                self.level[key], self.at[key] = self.tokens(key) - 1, self.clock.ms
            if self.inflight and is_leased:
                self.limited.add(one)
            else:
                self.limited.discard(one)

    def reserve(self, count):
        def take(count):
            attempts = self.mail.reserve(count)
            self.held += attempts
            return [attempt.id for attempt in attempts]

        self.hand_out(take, count, is_leased=True)

    def pop(self, count):
        self.hand_out(
            lambda count: [row[0].decode() for row in self.mail.run(leases.pop(self.mail.keys, count))], count,
            is_leased=False,
        )  # fmt: skip

    def push(self, items):
        sent = []
        for key, priority, delay in items:
            one = f"t{next(self.number):04}"
            self.key_of[one] = key
            sent.append(Task(id=one, queue=self.mail.name, payload=b"", key=key or None, priority=priority,
                             delay_ms=delay, max_attempts=0))  # fmt: skip
        self.mail.run(new_tasks.enqueue(self.mail.keys, sent))

    def report(self, way, number):
        if way == "cancel":
            if waiting := sorted(self.mail.ids("waiting")):
                self.mail.run(tasks.cancel(self.mail.keys, waiting[number % len(waiting)], keep_ms=1))
        elif way == "lose":
            self.clock.advance(1000)
        elif self.held:
            attempt = self.held.pop(number % len(self.held))
            if way.startswith("fail"):
                self.mail.fail(attempt, delay_ms=300 if way == "fail later" else 0)
            else:
                said = getattr(self.mail, way)(attempt)
                if way == "release" and said == ["waiting"]:
                    self.give_back(self.key_of[attempt.id])

    def give_back(self, key):
        """A task that did not begin returns its token."""
        if self.has_rate and key:
            self.level[key], self.at[key] = min(Fraction(TOKENS), self.tokens(key) + 1), self.clock.ms

    def configure(self, **fields):
        self.mail.run(queues.configure(self.mail.keys, fields))

    def step(self, act, said):
        if act in ("reserve", "pop", "push"):
            getattr(self, act)(said)
        elif act == "advance":
            self.clock.advance(said)
        elif act == "inflight":
            self.inflight = said or 0
            if not said:
                self.limited.clear()
            self.configure(key_inflight=said)
        elif act == "rate":
            if said and self.may_have_forgotten:
                prefix = self.mail.keys.waiting.decode().removesuffix("waiting")
                gone = [key for key in self.level if not self.mail.raw.exists(f"{prefix}bucket:{key}")]
                for key in gone:
                    del self.level[key]
                self.may_have_forgotten = False
            self.has_rate = said
            self.configure(key_tokens=TOKENS if said else "", key_interval_us=INTERVAL_MS * 1000 if said else "")
        elif act == "fair":
            self.is_fair = said
            self.configure(fair=1 if said else "")
        else:
            self.report(act, said)
        self.may_have_forgotten = self.may_have_forgotten or not self.goes_by_key()


_FORGOTTEN = [
    ("rate", True), ("push", [("a", 0, 0)] * TOKENS), ("reserve", 50), ("rate", False), ("fair", False), ("reserve", 1),
    ("push", [("a", 0, 0)]), ("rate", True), ("reserve", 50),
]  # fmt: skip


@example(first={}, script=_FORGOTTEN)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(first=st.sampled_from([{}, {"inflight": 1}, {"rate": True}]), script=st.lists(steps, min_size=20, max_size=50))
def test_nothing_is_overlooked_and_no_limit_exceeded(line, clock, first, script):
    queue = Checked(line(f"q{next(_names)}"), clock)
    queue.configure(keepalive_ms=1000, fair=1)
    for act, said in (*first.items(), *script):
        queue.step(act, said)
    clock.advance(3 * INTERVAL_MS)
    for act in ("inflight", "rate"):
        queue.step(act, "")
    queue.reserve(99)
    assert queue.mail.ids("waiting") == queue.mail.ids("scheduled") == []
