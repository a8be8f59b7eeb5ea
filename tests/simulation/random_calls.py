"""Random calls of the product on two queues of one pipeline, to be played on two servers: the same seed, the same
calls. What one call needs of earlier replies, such as the number of a lease, is taken from the values of these."""

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.call import Call
from jobrunner.broker.calls import batches, flows, leader, leases, new_tasks, queues, tasks
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.join import Arrival, Join, write_onward
from jobrunner.task import Lock, Task

SETTINGS: dict[str, tuple[int | str, ...]] = {
    "max_inflight": (1, 3, ""),
    "max_size": (4, 8, ""),
    "max_attempts": (1, 2, ""),
    "keepalive_ms": (50, 5000, ""),
    "max_tokens": (3, ""),
    "interval_us": (1_000_000, ""),
    "fair": (1, ""),
    "key_inflight": (1, 2, ""),
    "dead_max": (1, 2, ""),
    "dead_ttl_ms": (400, ""),
    "history_ms": (100_000, ""),
    "history_max": (2, ""),
    "expires_in_ms": (300, ""),
    "paused": (1, "", "+200"),
}
"""Settings as they are stored, and values that a run may give them; '' is the default."""


class RandomCalls:
    """The calls of one run. `next` makes one; `note` is given its value before the next one is made."""

    def __init__(self, keys: Keys, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._keys = keys
        self._queues = [keys.queue("p/in"), keys.queue("p/out")]
        self._held: list[tuple[QueueKeys, str, str]] = []
        self._batches: list[tuple[QueueKeys, str, int]] = []
        self._made = 0
        self._sent: list[Call[Any]] = []
        self._joins: list[str] = []
        self._tick = ""
        self._kinds: list[Callable[[], Call[Any]]] = [
            self._enqueue, self._enqueue, self._enqueue, self._reserve, self._reserve, self._commit, self._fail,
            self._release, self._extend, self._move, self._upkeep, self._configure, self._again, self._unique,
            self._cancel, self._requeue, self._run_now, self._remove, self._purge, self._scan, self._crash, self._fill,
            self._fill, self._stage, self._decide, self._advance, self._advance, self._fail_batch, self._claim,
            self._await, self._counts, self._pop, self._prepare, self._arrive, self._outbox,
            self._delete, self._spread, self._begin, self._renew, self._fire, self._fire, self._anchor, self._forget,
            self._delete_queue,
        ]  # fmt: skip
        self._note: Callable[[Any], None] = lambda _: None

    def next(self) -> Call[Any]:
        """The next call."""
        self._note = lambda _: None
        made = self._random.choice(self._kinds)()
        self._sent = [*self._sent[-20:], made]
        return made

    def note(self, value: Any) -> None:
        """Takes in what the call returned."""
        self._note(value)

    def pause_ms(self) -> float:
        """How long it is until the next call."""
        return self._random.choice((0, 0, 0.25, 1, 7, 60, 200))

    def _queue(self) -> QueueKeys:
        return self._random.choice(self._queues)

    def _task(self, queue: QueueKeys) -> Task:
        chance, self._made = self._random.random, self._made + 1
        return Task(
            id=f"{self._seed:016x}{self._made:012x}-p" if chance() < 0.8 else f"own{self._random.randrange(6)}",
            queue=queue.name,
            payload=b"x" * self._random.randrange(9),
            type=self._random.choice(("", "Job", "Other")),
            priority=self._random.choice((None, None, 0, 1, 2)),
            delay_ms=self._random.choice((None, None, None, 0, 40, 500.25)),
            keepalive_ms=self._random.choice((None, None, 30)),
            max_attempts=self._random.choice((None, None, 1, 3)),
            expires_in_ms=self._random.choice((None, None, None, 200)),
            headers=self._random.choice((None, None, b'{"a":"b/c"}')),
            key=self._random.choice((None, "k1", "k2", "k3")),
            kept_s=60.0 * (chance() < 0.3),
            sending=f"s{self._made}",
            then=self._onward() if chance() < 0.2 else None,
        )

    def _onward(self) -> bytes | None:
        if not self._joins:
            return None
        join_id, member = self._random.choice(self._joins), self._random.randrange(3)
        return write_onward([Arrival(self._queues[0].name, join_id, member)])

    def _enqueue(self) -> Call[Any]:
        queue = self._queue()
        sent = [self._task(queue) for _ in range(self._random.choice((1, 1, 1, 2, 4)))]
        return new_tasks.enqueue(queue, sent, clash=self._random.choice(("existing", "existing", "raise")))

    def _unique(self) -> Call[Any]:
        lasts = self._random.choice(("started", "finished", "expired"))
        on_clash = self._random.choice(("ignore", "replace", "reschedule", "raise"))
        lock = Lock(digest=f"d{self._random.randrange(2)}", lasts=lasts, ttl_ms=100_000, on_clash=on_clash)
        queue = self._queue()
        return new_tasks.enqueue_unique(queue, replace(self._task(queue), lock=lock))

    def _again(self) -> Call[Any]:
        """An earlier call, as a client sends it again whose reply was lost."""
        calls = [call for call in self._sent if call.repeatable]
        return self._random.choice(calls) if calls else self._enqueue()

    def _reserve(self) -> Call[Any]:
        queue, self._made = self._queue(), self._made + 10
        keepalive = self._random.choice((None, None, 20, 60_000))
        call = leases.reserve(queue, self._random.randrange(1, 4), token=self._made, keepalive_ms=keepalive)

        def note(found: Any) -> None:
            self._held += [(queue, one.id, one.token) for one in found.attempts]

        self._note = note
        return call

    def _pop(self) -> Call[Any]:
        return leases.pop(self._queue(), self._random.randrange(1, 3))

    def _some(self) -> tuple[QueueKeys, list[tuple[str, str]]]:
        if not self._held:
            return self._queue(), [("none", "1")]
        queue = self._random.choice(self._held)[0]
        own = [one for one in self._held if one[0] is queue]
        some = self._random.sample(own, min(len(own), self._random.randrange(1, 3)))
        if self._random.random() < 0.7:
            self._held = [one for one in self._held if one not in some]
        number = str(self._made) if self._random.random() < 0.1 else ""
        return queue, [(task_id, number or token) for _, task_id, token in some]

    def _commit(self) -> Call[Any]:
        queue, some = self._some()
        keep, result = self._random.choice((0, 0, 70_000)), self._random.choice((b"", b"[1]"))
        outcome = self._random.choice(("succeeded", "succeeded", "dropped", "cancelled"))
        then = self._onward() or b""
        said = (keep, outcome, result, then, self._random.choice(("", "Job")))
        return leases.commit(queue, [(*one, *said) for one in some])

    def _fail(self) -> Call[Any]:
        queue, some = self._some()
        delay, fate = self._random.choice((0, 0, 100)), self._random.choice(("retry", "retry", "dead"))
        return leases.fail(queue, [(*one, delay, fate, "ValueError: it is broken") for one in some], worker="w")

    def _release(self) -> Call[Any]:
        queue, some = self._some()
        return leases.release(queue, [(*one, self._random.choice(("", 50))) for one in some])

    def _crash(self) -> Call[Any]:
        queue, some = self._some()
        return leases.crash(queue, [(*one, self._random.random() < 0.5) for one in some], reason="signal 9")

    def _extend(self) -> Call[Any]:
        queue, some = self._some()
        return leases.extend(queue, [(*one, self._random.choice((10, 9000))) for one in some])

    def _move(self) -> Call[Any]:
        queue, some = self._some()
        priority, delay = self._random.choice(("", 0, 2)), self._random.choice((0, 0, 30))
        reports = [(*one, priority, delay, ("payload", b"new")) for one in some]
        return leases.move(queue, self._queue(), reports, max_hops=self._random.choice((0, 2)))

    def _spread(self) -> Call[Any]:
        queue, some = self._some()
        to, self._made = self._queue(), self._made + 2
        delay = self._random.choice((0, 80))
        ids = [f"{self._made + n:028x}-p" for n in range(2)]
        children = [leases.Child(id=one, to=to, fields=("payload", b"c"), delay_ms=delay) for one in ids]
        return leases.fan_out(queue, *some[0], children)

    def _upkeep(self) -> Call[Any]:
        return queues.upkeep(self._queue())

    def _counts(self) -> Call[Any]:
        return queues.counts(self._queue())

    def _await(self) -> Call[Any]:
        return queues.await_capacity(self._queue(), lasts_ms=500)

    def _configure(self) -> Call[Any]:
        name = self._random.choice(list(SETTINGS))
        return queues.configure(self._queue(), {name: self._random.choice(SETTINGS[name])})

    def _id(self) -> str:
        known = [task_id for _, task_id, _ in self._held] + [f"own{n}" for n in range(6)]
        made = f"{self._seed:016x}{self._random.randrange(self._made + 1):012x}-p"
        return self._random.choice([*known, made, made, made])

    def _cancel(self) -> Call[Any]:
        return tasks.cancel(self._queue(), self._id(), keep_ms=60_000)

    def _requeue(self) -> Call[Any]:
        return tasks.requeue(self._queue(), [self._id(), self._id()], step_ms=self._random.choice((0, 30)))

    def _run_now(self) -> Call[Any]:
        return tasks.run_now(self._queue(), [self._id() for _ in range(4)])

    def _remove(self) -> Call[Any]:
        return tasks.remove(self._queue(), [self._id()])

    def _delete(self) -> Call[Any]:
        return tasks.delete(self._queue(), self._id())

    def _purge(self) -> Call[Any]:
        return queues.purge(self._queue(), self._random.choice(("waiting", "scheduled", "dead", "done")), count=2)

    def _scan(self) -> Call[Any]:
        names = [queue.name for queue in self._queues]
        return leader.leader_scan(self._keys, names, with_workers=False, unused_ms=0)[0]

    def _fill(self) -> Call[Any]:
        queue, self._made = self._queue(), self._made + 1
        batch_id = f"{self._seed:016x}{self._made:012x}-p"
        self._note = lambda value: self._batches.append((queue, batch_id, 1)) if value[0] else None
        return batches.fill(queue, batch_id, 1, had=0, count=self._random.randrange(1, 5), lease_ms=150, turn=1)

    def _begin(self) -> Call[Any]:
        queue, self._made = self._queue(), self._made + 1
        batch_id = f"{self._seed:016x}{self._made:012x}-p"
        self._batches.append((queue, batch_id, 1))
        return batches.begin(queue, batch_id, lease_ms=150, shared={"priority": 2})

    def _batch(self) -> tuple[QueueKeys, str, int]:
        return self._random.choice(self._batches) if self._batches else (self._queue(), "none", 1)

    def _stage(self) -> Call[Any]:
        queue, batch_id, epoch = self._batch()
        words: list[bytes | str] = []
        for _ in range(self._random.randrange(1, 4)):
            to, self._made = self._random.choice(("in", "out", "")), self._made + 1
            words += ("", to or "out", b"new", "") if self._random.random() < 0.3 else (self._id(), to, b"row", "")
        return batches.stage(queue, batch_id, epoch, f"n{self._random.randrange(2)}", words, after=0)

    def _decide(self) -> Call[Any]:
        queue, batch_id, epoch = self._batch()
        return batches.decide(queue, batch_id, epoch, ["n0"], rest=self._random.choice(("succeeded", "dropped")))

    def _advance(self) -> Call[Any]:
        queue, batch_id, _ = self._batch()
        return batches.advance(queue, batch_id, count=self._random.choice((1, 2, 250)))

    def _fail_batch(self) -> Call[Any]:
        queue, batch_id, epoch = self._batch()
        fate = self._random.choice(("failed", "blamed", "poison", "divided", "released", "dissolved"))
        delay = self._random.choice((0, 50))
        return batches.failed_attempt(queue, batch_id, epoch, fate=fate, delay_ms=delay, reason="no")

    def _renew(self) -> Call[Any]:
        queue, batch_id, epoch = self._batch()
        return batches.renew(queue, batch_id, epoch, lease_ms=150)

    def _claim(self) -> Call[Any]:
        queue, batch_id, _ = self._batch()
        if self._random.random() < 0.5:
            batch_id += self._random.choice((".p1of2", ".p2of2"))

        def note(value: Any) -> None:
            if isinstance(value, batches.Claimed):
                self._batches.append((queue, batch_id, value.epoch))

        self._note = note
        return batches.claim(queue, batch_id, lease_ms=150, name="claim")

    def _prepare(self) -> Call[Any]:
        queue, self._made = self._queue(), self._made + 1
        join_id = f"{self._seed:016x}{self._made:012x}-p"
        self._joins.append(join_id)
        task = self._task(queue)
        return flows.prepare(queue, Join(
            id=join_id, queue=queue.name, rule=self._random.choice(("success", "complete", "dead")), total=2,
            ttl_ms=1_000_000, task=task,
        ))  # fmt: skip

    def _arrive(self) -> Call[Any]:
        join_id = self._random.choice(self._joins) if self._joins else "none"
        outcome = self._random.choice(("succeeded", "succeeded", "dead", "cancelled"))
        return flows.join_arrive(self._queue(), join_id, [(self._random.randrange(3), outcome, b"[2]")])

    def _fire(self) -> Call[Any]:
        before, queue = self._tick if self._random.random() < 0.9 else "", self._queues[0]
        tick_ms = int(before or 1_700_000_000_000) + self._random.choice((100, 1000, 5000))

        def note(word: Any) -> None:
            self._tick = str(tick_ms) if word in ("fired", "skipped") else self._tick

        self._note = note
        return leader.fire(
            queue, "job", expected=before, tick_ms=tick_ms, due_ms=tick_ms + self._random.choice((0.0, 70.5)),
            epoch=self._random.choice((0, 1, 2)), task_id=f"{tick_ms:028x}-p", priority=1,
            overlap=self._random.choice(("skip", "allow")), schedule="a", together_ms=tick_ms, fields=["type", "Job"],
        )  # fmt: skip

    def _anchor(self) -> Call[Any]:
        to_ms = 1_700_000_000_000 + self._random.choice((100, 9000))

        def note(word: Any) -> None:
            self._tick = str(to_ms) if word == "anchored" else self._tick

        self._note = note
        return leader.anchor(
            self._queues[0], "job", expected=self._tick, to_ms=to_ms, ahead_ms=self._random.choice((None, 2000)),
            epoch=self._random.choice((1, 2)), schedule="a",
        )  # fmt: skip

    def _forget(self) -> Call[Any]:
        return queues.forget(self._keys, [self._queue().name], unused_ms=self._random.choice((None, 0, 100)))

    def _delete_queue(self) -> Call[Any]:
        return queues.delete(self._queues[1], force=self._random.random() < 0.3, states=[])

    def _outbox(self) -> Call[Any]:
        return flows.outbox(self._keys, "p", count=100)
