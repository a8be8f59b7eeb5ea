"""Judges a run while it happens, from the commands that the server carried out.

`Observer` holds what must be true of each reply, whoever hears of it: a lost reply counts as well. It is the life of a
lease in a few lines, and knows nothing of scripts but their arguments and replies. Unique tasks are judged in locks.py,
flows in flows.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jobrunner.broker
from jobrunner.broker.scripts import load
from tests.simulation.flows import SeenFlows, join_abandon, join_arrive, join_collect, join_prepare
from tests.simulation.locks import enqueue_unique
from tests.simulation.seen import Seen, Violation
from tests.simulation.workers import KEYS

_FOLDER = Path(jobrunner.broker.__file__).parent / "lua"
_REFUSED = (b"gone", b"not_reserved", b"lost")


@dataclass
class Observer:
    """Checks each executed command against those before it. `ask` reads a key of it; `now` is its clock."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    describe: Callable[[Any, str, list[bytes], list[bytes], Any], None] | None = None
    most_inflight: dict[bytes, int] = field(default_factory=dict)
    tasks: dict[bytes, Seen] = field(default_factory=dict)
    epochs: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)
    """The newest epoch of each batch, and the end of its lease."""
    claims: dict[bytes, bytes] = field(default_factory=dict)
    """The name of the newest claim of each batch: sent again, it is answered as before."""
    decided: dict[bytes, bytes] = field(default_factory=dict)
    """The epoch under which a batch was decided."""
    locks: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)
    """The task that took the lock of unique tasks last, and the end of the lock."""
    replacements: set[bytes] = field(default_factory=set)
    """Names of calls that replaced or rescheduled a unique task: sent again, they get the same reply."""
    flows: SeenFlows = field(default_factory=lambda: SeenFlows(KEYS))
    calls: int = 0
    ended_batches: set[bytes] = field(default_factory=set)

    def __call__(self, who: Any, command: list[bytes], reply: Any) -> None:
        """Takes in one command. Raises Violation."""
        self.calls += 1
        if command[0] not in (b"EVALSHA", b"EVAL") or isinstance(reply, Exception):
            if isinstance(reply, Exception) and not str(reply).startswith("NOSCRIPT"):
                raise Violation(f"the server answered {who.name} with an error: {reply} to {command[:2]}")
            return
        name = NAMES[command[1]]
        keys = int(command[2])
        args = command[4 + keys :]
        if self.describe is not None:
            self.describe(who, name, command[3 : 3 + keys], args, reply)
        judge = JUDGES.get(name)
        if judge is not None:
            judge(self, command[3 : 3 + keys], args, reply)

    def enqueue(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        _, _, _, shared, *words = args
        if reply[:1] in ([b"full"], [b"exists"]):
            return
        queue, at, position = words[1], int(shared), 0
        while at < len(words):
            task_id, options, position = words[at], words[at + 2].split(b" "), position + 1
            priority, due, own = options if len(options) == 3 else (b"", b"", b"0")
            if position not in reply:
                # A call that is sent again gets the same reply: whether it added the task twice shows in the totals.
                made = Seen(queue, int(priority or 1), len(self.tasks), is_plain=not due)
                self.tasks.setdefault(task_id, made)
            at += 3 + int(own)

    def reserve(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        now, queue, lease = float(reply[0]), _name(keys[0]), int(args[2])
        ids = reply[6::5]
        for task_id in ids:
            seen = self._seen(task_id)
            if seen.ends > now:
                raise Violation(f"{task_id.decode()} was handed out while the lease {seen.lease:.0f} holds")
            if seen.outcome or seen.is_to_stop:
                why = f"it has ended as {seen.outcome}" if seen.outcome else "it is cancelled"
                raise Violation(f"{task_id.decode()} was handed out, but {why}")
            self._arrives(seen, task_id, queue)
            self._check_order(task_id, seen, ids)
        for task_id in ids:
            seen = self.tasks[task_id]
            seen.lease, seen.ends, seen.is_plain, lease = lease, float(reply[2]), False, lease + 1
        self._check_limit(queue, now)

    def _arrives(self, seen: Seen, task_id: bytes, queue: bytes) -> None:
        if seen.batch and seen.queue == queue and seen.batch not in self.ended_batches:
            raise Violation(f"{task_id.decode()} was handed out while it is a member of batch {seen.batch.decode()}")
        if seen.queue != queue:
            if not seen.decided or seen.moves:
                raise Violation(f"{task_id.decode()} came to {queue.decode()}, and nothing moved it there")
            seen.queue, seen.moves, seen.batch = queue, seen.moves + 1, b""

    def _check_order(self, task_id: bytes, seen: Seen, taken: list[bytes]) -> None:
        if not seen.is_plain:
            return
        mine = (-seen.priority, seen.order)
        for other_id, other in self.tasks.items():
            is_before = other.is_plain and other.queue == seen.queue and (-other.priority, other.order) < mine
            if is_before and other_id not in taken:
                raise Violation(f"{task_id.decode()} overtook {other_id.decode()}, of priority {other.priority}")

    def _check_limit(self, queue: bytes, now: float) -> None:
        queue = queue.partition(b"@")[0]  # shards have the limit together
        most = self.most_inflight.get(queue)
        if most and (held := sum(one.ends > now for one in self.tasks.values() if one.is_of(queue))) > most:
            raise Violation(f"{held} leases of {queue.decode()}, whose max_inflight is {most}")

    def _report(self, task_id: bytes, number: bytes, queue: bytes, is_taken: bool, what: str) -> Seen | None:
        """A report under a lease. Returns the task when it was taken."""
        seen = self._seen(task_id)
        is_held = seen.lease == float(number) and seen.ends > self.now() and seen.queue == queue and not seen.outcome
        if is_taken == is_held:
            return seen if is_taken else None
        if is_taken:
            why = f"it has ended as {seen.outcome}" if seen.outcome else f"the newest lease is {seen.lease:.0f}"
            raise Violation(f"a {what} of {task_id.decode()} under lease {number.decode()} was taken, but {why}")
        raise Violation(f"a {what} of {task_id.decode()} under lease {number.decode()} was refused, but it holds")

    def commit(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        refused, queue, at, position = set(reply[::2]), args[1], 3, 0
        while at < len(args):
            count = int(args[at])
            for n in range(at + 7, at + 7 + 2 * count, 2):
                position += 1
                if seen := self._report(args[n], args[n + 1], queue, position not in refused, "commit"):
                    seen.outcome, seen.result, seen.ends = args[at + 2].decode(), args[at + 3], 0.0
            at += 7 + 2 * count

    def _reports(
        self, args: list[bytes], reply: Any, first: int, width: int, what: str
    ) -> Iterator[tuple[Seen, bytes]]:
        for at, word in zip(range(first, len(args), width), reply, strict=True):
            if seen := self._report(args[at], args[at + 1], args[1], word not in _REFUSED, what):
                yield seen, word

    def fail(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, word in self._reports(args, reply, 5 + 3 * int(args[4]), 6, "rollback"):
            seen.ends = 0.0
            if word == b"dead":
                seen.outcome = "dead"

    def release(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, _ in self._reports(args, reply, 2, 3, "release"):
            seen.ends = 0.0

    def extend(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, word in self._reports(args, reply, 2, 3, "extend"):
            seen.ends = float(word.lstrip(b"!"))

    def cancel(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        if reply == b"gone":
            return
        task_id, seen = args[2], self._seen(args[2])
        if (reply == b"reserved") != (seen.ends > self.now()):
            raise Violation(f"a cancel of {task_id.decode()} got {reply.decode()}; its lease ends at {seen.ends:.0f}")
        if reply == b"reserved":
            seen.is_to_stop = True
        else:
            seen.outcome, seen.is_plain = "cancelled", False

    def settle(self, task_id: bytes, seen: Seen) -> None:
        """Notes that a task has ended which was cancelled while a worker had it. No reply says when: the next reserve
        drops it."""
        if seen.is_to_stop and not seen.outcome:
            prefix = KEYS.queue(seen.queue.decode()).tasks
            seen.outcome = (self.ask("HGET", prefix + task_id, "outcome") or b"").decode()

    def move(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        at = 5
        for word in reply:
            is_taken = word not in (*_REFUSED, b"full", b"hops")
            if is_taken or word in _REFUSED:
                seen = self._report(args[at], args[at + 1], args[1], is_taken, "move")
                if seen:
                    seen.moves += seen.queue != args[2]
                    seen.queue, seen.ends = args[2], 0.0
            at += 5 + int(args[at + 4])

    def fan_out(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        is_held = reply in (b"ok", b"full", b"hops")
        seen = self._report(args[3], args[4], args[1], is_held, "fan-out")
        if seen is None or reply != b"ok":
            return
        seen.outcome, seen.ends, at = "succeeded", 0.0, 8
        while at < len(args):
            child, _, priority, delay_ms, _, count, _, queue = args[at : at + 8]
            made = Seen(queue, int(priority or seen.priority), len(self.tasks), is_plain=not float(delay_ms))
            self.tasks.setdefault(child, made)
            at += 6 + int(count)

    def fill(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        batch = args[2]
        if reply[0] in (b"lost", b"half") or not reply[0]:
            return
        members = self.ask("LRANGE", keys[-1] + b":members", 0, -1)
        if len(members) != len(set(members)):
            raise Violation(f"a member is twice in batch {batch.decode()}")
        for task_id in members:
            seen = self._seen(task_id)
            if seen.batch == batch and batch not in self.ended_batches:
                continue
            if seen.ends > self.now() or seen.outcome:
                raise Violation(f"{task_id.decode()} became a member of a batch while it was handed out or ended")
            self._arrives(seen, task_id, args[1])
            seen.batch, seen.is_plain = batch, False
        self.epochs[batch] = (args[3], float(reply[1]))

    def claim(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        if len(reply) < 2:
            return
        before, epoch = self.epochs.get(args[1]), b"%d" % reply[0]
        is_again = before is not None and before[0] == epoch and self.claims.get(args[1]) == args[3]
        if before is not None and before[1] > self.now() and reply[1] == b"open" and not is_again:
            raise Violation(f"batch {args[1].decode()} was handed out while epoch {before[0].decode()} holds it")
        self.epochs[args[1]], self.claims[args[1]] = (epoch, float(reply[2])), args[3]

    def fail_batch(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        batch, epoch = args[1:3]
        if reply == b"lost":
            return
        self._check_open(batch, epoch, "failure")
        if reply != b"more":
            self.epochs[batch] = (epoch, 0.0)
        if reply == b"dissolved":
            self.ended_batches.add(batch.partition(b".")[0])

    def renew(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        if reply != b"lost":
            self._check_epoch(args[0], args[1], "renewal")
            self.epochs[args[0]] = (args[1], float(reply))

    def stage(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        if reply[:1] != [b"lost"]:
            self._check_open(args[0], args[1], "staging")

    def decide(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        batch, epoch = args[0], args[1]
        if reply[0] != b"ok" or self.decided.get(batch) == epoch:  # the same holder may ask again
            return
        self._check_open(batch, epoch, "decision")
        self.decided[batch] = epoch
        first, size, root = self.ask("HMGET", keys[0], "first", "size", "list")
        members = self.ask("LRANGE", _other(keys[0], batch, root) + b":members", first, int(first) + int(size) - 1)
        for task_id in members:
            seen = self._seen(task_id)
            if seen.batch != root:
                raise Violation(f"{task_id.decode()} is decided by {batch.decode()}, but is in {seen.batch.decode()}")
            seen.decided += 1
            if seen.decided > 1:
                raise Violation(f"{task_id.decode()} is decided by two batches, at last by {batch.decode()}")

    def _check_open(self, batch: bytes, epoch: bytes, what: str) -> None:
        self._check_epoch(batch, epoch, what)
        if batch in self.decided:
            raise Violation(f"a {what} of batch {batch.decode()} was taken, but it is decided")

    def _check_epoch(self, batch: bytes, epoch: bytes, what: str) -> None:
        newest, ends = self.epochs.get(batch, (b"none", 0.0))
        if newest != epoch or ends <= self.now():
            state = "holds" if ends > self.now() else "is over"
            raise Violation(
                f"a {what} of batch {batch.decode()} under epoch {epoch.decode()} was taken, but the newest is "
                f"{newest.decode()}, and its lease {state}"
            )

    def _seen(self, task_id: bytes) -> Seen:
        if task_id not in self.tasks:
            raise Violation(f"{task_id.decode()} was never enqueued")
        return self.tasks[task_id]


def _name(key: bytes) -> bytes:
    """The full name of a queue by one of its keys: P:{tag}:name:waiting."""
    _, tag, rest = key.split(b":", 2)
    name = rest.rpartition(b":")[0]
    return name if tag[1:-1] == name else tag[1:-1] + b"/" + name


def _other(key: bytes, batch: bytes, other: bytes) -> bytes:
    return key.removesuffix(batch) + other


NAMES = {word: path.stem for path in _FOLDER.glob("*.lua") for word in (load(path.stem).sha, load(path.stem).source)}
"""The script of each digest and of each source."""
JUDGES: dict[str, Callable[..., None]] = {
    "enqueue": Observer.enqueue, "enqueue_unique": enqueue_unique,
    "reserve": Observer.reserve, "commit": Observer.commit, "fail": Observer.fail,
    "release": Observer.release, "extend": Observer.extend, "move": Observer.move, "batch_fill": Observer.fill,
    "batch_claim": Observer.claim, "batch_fail": Observer.fail_batch, "batch_renew": Observer.renew,
    "batch_stage": Observer.stage, "batch_decide": Observer.decide, "fan_out": Observer.fan_out,
    "cancel": Observer.cancel, "join_prepare": join_prepare, "join_abandon": join_abandon,
    "join_arrive": join_arrive, "join_collect": join_collect,
}  # fmt: skip
