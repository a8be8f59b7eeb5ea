"""Judges a run while it happens, from the commands that the server carried out.

`Observer` holds what must be true of each reply, whoever hears of it: a lost reply counts as well. It is the life of a
lease in a few lines, and knows nothing of scripts but their arguments and replies. Unique tasks are judged in locks.py,
flows in flows.py, batches in batches.py, periodic jobs in ticks.py, deaths in letters.py,
what a reserve leaves in left_waiting.py, and what goes away without a report in spares.py.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jobrunner.broker
from jobrunner.broker.scripts import load
from tests.simulation import batches, by_hand, left_waiting, spares, ticks
from tests.simulation.flows import SeenFlows, join_abandon, join_arrive, join_collect, join_prepare
from tests.simulation.letters import SeenLetters
from tests.simulation.locks import enqueue_unique
from tests.simulation.seen import Seen, Violation, queue_of_key
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
    most_of_key: dict[bytes, int] = field(default_factory=dict)
    max_size: dict[bytes, int] = field(default_factory=dict)
    buckets: dict[bytes, by_hand.Bucket] = field(default_factory=dict)
    key_rates: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    """The rate of each partition of a queue: tokens, and the ms in which they flow."""
    key_buckets: dict[tuple[bytes, bytes], by_hand.Bucket] = field(default_factory=dict)
    shared_limits: set[bytes] = field(default_factory=set)
    """Queues whose shards share a limit."""
    letters: SeenLetters = field(default_factory=SeenLetters)
    paused: dict[bytes, float] = field(default_factory=dict)
    """Until when a queue hands out nothing."""
    tasks: dict[bytes, Seen] = field(default_factory=dict)
    epochs: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)
    """The newest epoch of each batch, and the end of its lease."""
    claims: dict[bytes, bytes] = field(default_factory=dict)
    """The name of the newest claim of each batch: sent again, it is answered as before."""
    decided: dict[bytes, bytes] = field(default_factory=dict)
    """The epoch under which a batch was decided."""
    staged: dict[tuple[bytes, bytes, bytes], dict[bytes, bytes]] = field(default_factory=dict)
    """The new items that a batch makes, by its id, epoch and nonce: the short name of the queue of each."""
    locks: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)
    """The task that took the lock of unique tasks last, and the end of the lock."""
    replacements: set[bytes] = field(default_factory=set)
    """Names of calls that replaced or rescheduled a unique task: sent again, they get the same reply."""
    flows: SeenFlows = field(default_factory=lambda: SeenFlows(KEYS))
    histories: dict[bytes, spares.SeenHistory] = field(default_factory=dict)
    """Of the queues that keep history."""
    periodic: ticks.SeenJob = field(default_factory=ticks.SeenJob)
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
        queue, at, position, known = words[1], int(shared), 0, len(self.tasks)
        while at < len(words):
            task_id, options, position = words[at], words[at + 2].split(b" "), position + 1
            priority, due, own = options if len(options) == 3 else (b"", b"", b"0")
            if position not in reply:
                # A call that is sent again gets the same reply: whether it added the task twice shows in the totals.
                fields = _fields(words[: int(shared)] + words[at + 3 : at + 3 + int(own)])
                now = self.now()
                due_ms = max(now, float(due or 0) + (now if due[:1] == b"+" else 0.0))
                made = Seen(
                    queue, int(priority or 1), len(self.tasks), due=due_ms, is_delayed=due != b"",
                    not_before=due_ms if due else 0.0, payload=words[at + 1], enqueued=now, key=fields.get(b"key", b""),
                    expires_at=self.letters.expiry(queue, fields.get(b"expires_in_ms"), now),
                    most_attempts=int(own_most) if (own_most := fields.get(b"max_attempts")) else None,
                )  # fmt: skip
                self.tasks.setdefault(task_id, made)
                if b"replayed_from" in fields.get(b"headers", b""):
                    spares.check_replay(self, made, fields[b"headers"])
            at += 3 + int(own)
        if len(self.tasks) > known:
            self._check_size(queue)

    def reserve(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        now, queue, lease = float(reply[0]), queue_of_key(keys[0]), int(args[2])
        ids, most = reply[6::5], int(reply[4])
        if len(set(ids)) < len(ids):
            raise Violation(f"a task was handed out twice in one call: {b', '.join(ids).decode()}")
        for task_id, payload, more in zip(ids, reply[8::5], reply[10::5], strict=True):
            seen = self.seen(task_id)
            self._check_handed_out(task_id, seen, payload, queue, now)
            self._check_attempt(task_id, seen, more, most, now)
        for task_id in ids:
            self._check_order(task_id, self.tasks[task_id], ids, most, now)
        for task_id in ids:
            seen = self.tasks[task_id]
            seen.lease, seen.ends, seen.is_there, lease = lease, float(reply[2]), True, lease + 1
        self._check_limit(queue, now)
        by_hand.check_flow(self, queue, len(ids), now)
        if queue in self.key_rates:
            by_hand.check_key_flow(self, queue, (self.tasks[task_id].key for task_id in ids), now)
        if len(ids) < int(args[1]):
            left_waiting.check(self, queue, ids, reply, now)

    def _check_handed_out(self, task_id: bytes, seen: Seen, payload: bytes, queue: bytes, now: float) -> None:
        what = f"{task_id.decode()} was handed out"
        if seen.ends > now:
            raise Violation(f"{what} while the lease {seen.lease:.0f} holds")
        if seen.queue != queue:
            self.arrives(seen, task_id, queue)
        if seen.outcome or seen.is_to_stop:
            raise Violation(f"{what}, but it {f'has ended as {seen.outcome}' if seen.outcome else 'is cancelled'}")
        self.arrives(seen, task_id, queue)
        if seen.not_before > now:
            raise Violation(f"{what} {seen.not_before - now:.1f} ms before it was due")
        self.letters.check_in_time(task_id, seen, now)
        if seen.payload is not None and seen.payload != payload:
            raise Violation(f"{what} with {payload!r}, and it has {seen.payload!r}")

    def _check_attempt(
        self, task_id: bytes, seen: Seen, more: list[bytes | None] | None, most: int, now: float
    ) -> None:
        seen.lapses(now)
        spent, own = (int(more[0] or 0), int(more[1] or most)) if more else (0, most)
        if not seen.is_counted:
            return
        if spent != seen.spent:
            raise Violation(f"{task_id.decode()} was handed out with {spent} attempts spent, and {seen.spent} were")
        if spent >= own:
            raise Violation(f"{task_id.decode()} was handed out for attempt {spent + 1} of {own}")

    def arrives(self, seen: Seen, task_id: bytes, queue: bytes) -> None:
        """Takes in that a task is handed out in a queue. Raises Violation."""
        if seen.batch and seen.queue == queue and seen.batch not in self.ended_batches:
            raise Violation(f"{task_id.decode()} was handed out while it is a member of batch {seen.batch.decode()}")
        if seen.queue != queue:
            if self.letters.brings(self, seen, queue):
                return
            if not seen.decided or seen.moves:
                raise Violation(f"{task_id.decode()} came to {queue.decode()}, and nothing moved it there")
            seen.enters(queue)
            seen.batch = b""

    def _check_order(self, task_id: bytes, seen: Seen, taken: list[bytes], most: int, now: float) -> None:
        if not seen.has_place:
            return
        is_by_key = seen.queue in self.most_of_key or seen.queue in self.key_rates
        for other_id, other in self.tasks.items():
            if other.queue != seen.queue or other_id in taken or (is_by_key and other.key != seen.key):
                continue
            if other.goes_before(seen) and other.waits_in_place(now, most):
                raise Violation(f"{task_id.decode()} overtook {other_id.decode()}, of priority {other.priority}")

    def _check_limit(self, queue: bytes, now: float) -> None:
        queue = queue.partition(b"@")[0]  # shards have the limit together
        most = self.most_inflight.get(queue)
        if most and (held := sum(one.ends > now for one in self.tasks.values() if one.is_of(queue))) > most:
            raise Violation(f"{held} leases of {queue.decode()}, whose max_inflight is {most}")
        if most := self.most_of_key.get(queue):
            keys = Counter(one.key for one in self.tasks.values() if one.key and one.ends > now and one.is_of(queue))
            if keys and (key := max(keys, key=lambda one: keys[one])) and keys[key] > most:
                raise Violation(f"{keys[key]} leases of key {key.decode()}, whose key_inflight is {most}")

    def _check_size(self, queue: bytes, before: int = 0) -> None:
        """`before`: as many as may be there, as the queue was that full already."""
        if queue not in self.max_size:
            return
        keys = KEYS.queue(queue.decode())
        count, most = sum(self.ask("ZCARD", key) for key in (keys.waiting, keys.scheduled)), self.max_size[queue]
        if count > max(most, before):
            raise Violation(f"{count} tasks wait in {queue.decode()}, whose max_size is {most}")

    def _report(self, task_id: bytes, number: bytes, queue: bytes, is_taken: bool, what: str) -> Seen | None:
        """A report under a lease. Returns the task when it was taken."""
        seen = self.seen(task_id)
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
                    spares.note_end(self, queue, args[n])
            at += 7 + 2 * count

    def _reports(
        self, args: list[bytes], reply: Any, first: int, width: int, what: str
    ) -> Iterator[tuple[Seen, bytes, list[bytes]]]:
        for at, word in zip(range(first, len(args), width), reply, strict=True):
            if seen := self._report(args[at], args[at + 1], args[1], word not in _REFUSED, what):
                yield seen, word, args[at : at + width]

    def fail(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, word, report in self._reports(args, reply, 5 + 3 * int(args[4]), 6, "rollback"):
            seen.ends, seen.has_place, seen.spent = 0.0, False, seen.spent + 1
            seen.not_before = self.now() + float(report[2]) if float(report[2]) else 0.0
            if word == b"dead":
                self.letters.bury(self, seen)

    def release(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, _, report in self._reports(args, reply, 2, 3, "release"):
            delay, now = report[2], self.now()
            seen.ends, seen.has_place = 0.0, seen.has_place and delay in (b"", b"!")
            wait_ms = float(delay.lstrip(b"~!") or 0)
            seen.not_before = now + wait_ms if wait_ms else 0.0
            if delay and delay[:1] != b"~":
                seen.expires_at = math.inf
                continue
            if bucket := self.buckets.get(seen.queue):  # it had not begun
                bucket.take(-1, now)
            by_hand.refund_key(self, seen.queue, seen.key, now)

    def crash(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, word, _ in self._reports(args, reply, 4, 3, "crash"):
            seen.ends, seen.spent = 0.0, seen.spent + 1
            if word == b"dead":
                seen.has_place = False
                self.letters.bury(self, seen)

    def extend(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        for seen, word, _ in self._reports(args, reply, 2, 3, "extend"):
            seen.ends = float(word.lstrip(b"!"))

    def cancel(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        if reply == b"gone":
            return
        task_id, seen, queue = args[2], self.seen(args[2]), queue_of_key(keys[0])
        if seen.queue != queue:
            self.arrives(seen, task_id, queue)
        if seen.is_counted and (reply == b"reserved") != (seen.ends > self.now()):
            raise Violation(f"a cancel of {task_id.decode()} got {reply.decode()}; its lease ends at {seen.ends:.0f}")
        if reply == b"reserved":
            seen.is_to_stop = True
        else:
            seen.outcome, seen.has_place = "cancelled", False

    def settle(self, task_id: bytes, seen: Seen) -> None:
        """Notes that a task has ended which was cancelled while a worker had it. No reply says when: the next reserve
        drops it."""
        if seen.is_to_stop and not seen.outcome:
            prefix = KEYS.queue(seen.queue.decode()).tasks
            is_there = self.ask("EXISTS", prefix + task_id)
            seen.outcome = (self.ask("HGET", prefix + task_id, "outcome") or b"").decode() if is_there else "cancelled"

    def move(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        at, most_hops = 5, int(args[3])
        for word in reply:
            is_taken = word not in (*_REFUSED, b"full", b"hops")
            if is_taken or word in _REFUSED:
                seen = self._report(args[at], args[at + 1], args[1], is_taken, "move")
                if seen:
                    payload, delay = seen.payload, float(args[at + 3])
                    seen.enters(args[2])
                    changed = _fields(args[at + 5 : at + 5 + int(args[at + 4])])
                    seen.payload = changed.get(b"payload", payload)
                    seen.not_before = self.now() + delay if delay else 0.0
                    seen.hops += 1
                    if 0 < most_hops < seen.hops:
                        raise Violation(f"{args[at].decode()} was moved {seen.hops} times; max_hops is {most_hops}")
            at += 5 + int(args[at + 4])
        if b"ok" in reply and args[4] != b"1":
            self._check_size(args[2])

    def fan_out(self, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        is_held = reply in (b"ok", b"full", b"hops")
        seen = self._report(args[3], args[4], args[1], is_held, "fan-out")
        if seen is None or reply != b"ok":
            return
        if 0 < int(args[7]) <= seen.hops:
            raise Violation(f"{args[3].decode()} has {seen.hops} hops, and fanned out; max_hops is {int(args[7])}")
        seen.outcome, seen.ends, at = "succeeded", 0.0, 8
        while at < len(args):
            child, _, priority, delay_ms, _, count, _, queue = args[at : at + 8]
            delay, fields = float(delay_ms), _fields(args[at + 6 : at + 6 + int(count)])
            made = Seen(
                queue, int(priority or seen.priority), len(self.tasks), has_place=not delay, due=self.now(),
                not_before=self.now() + delay if delay else 0.0, payload=fields.get(b"payload"), key=seen.key,
                hops=seen.hops + 1,
            )  # fmt: skip
            self.tasks.setdefault(child, made)
            at += 6 + int(count)

    def seen(self, task_id: bytes) -> Seen:
        """The task with an id. Raises Violation."""
        if task_id not in self.tasks:
            raise Violation(f"{task_id.decode()} was never enqueued")
        return self.tasks[task_id]


def _fields(words: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(words[::2], words[1::2], strict=True))


NAMES = {word: path.stem for path in _FOLDER.glob("*.lua") for word in (load(path.stem).sha, load(path.stem).source)}
"""The script of each digest and of each source."""
JUDGES: dict[str, Callable[..., None]] = {
    "enqueue": Observer.enqueue, "enqueue_unique": enqueue_unique,
    "reserve": Observer.reserve, "commit": Observer.commit, "fail": Observer.fail,
    "release": Observer.release, "extend": Observer.extend, "move": Observer.move, "batch_fill": batches.fill,
    "batch_claim": batches.claim, "batch_begin": batches.begin, "batch_fail": batches.fail_batch,
    "batch_renew": batches.renew, "batch_stage": batches.stage,
    "batch_decide": batches.decide, "fan_out": Observer.fan_out,
    "crash": Observer.crash, "pop": by_hand.pop, "requeue": by_hand.requeue, "run_now": by_hand.run_now,
    "remove": by_hand.remove, "delete": by_hand.delete, "configure": by_hand.configure,
    "cancel": Observer.cancel, "join_prepare": join_prepare, "join_abandon": join_abandon,
    "join_arrive": join_arrive, "join_collect": join_collect, "take_leadership": ticks.take_leadership,
    "periodic_fire": ticks.fire, "periodic_anchor": ticks.anchor, "purge": spares.purge,
    "delete_queue": spares.delete_queue, "queue_forget": spares.queue_forget,
}  # fmt: skip
