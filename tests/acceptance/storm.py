"""Random operations on many features at once: queues of one tag and one of another, every limit, unique tasks, flows,
batches, dead letters, history, and everything that people do by hand."""

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from random import Random
from typing import Any

import redis

from jobrunner import Client, Item, RateLimit
from jobrunner.attempt import Attempt
from jobrunner.broker.call import command
from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.enqueue import enqueue_call
from jobrunner.client.operations.flow import send
from jobrunner.client.operations.flow_relay import relay
from jobrunner.client.operations.operation import run_operation
from jobrunner.errors import BatchLost, InvalidOption, QueueFull, QueueNotEmpty, TaskGone, UsageError
from jobrunner.jobs.flow_layout import ChainNode, GroupNode, Leaf, Node, lay_out
from jobrunner.outcome import Cancelled, Dropped, Failed, FannedOut, Moved, Outcome, Released, Snoozed, Succeeded
from jobrunner.task import Lock, Task, new_id
from jobrunner.worker.report.report_calls import Report, report_calls, too_many_hops
from tests.support.clock import Clock
from tests.support.tag_audit import TagAudit

IN, OUT, DEAD, ELSEWHERE = "st/in", "st/out", "st/dead", "el/x"
QUEUES = (IN, OUT, DEAD)
KEEPALIVE_MS = 1000
_STATES = {
    "cancel": ("waiting", "scheduled", "pending", "pending", "dead"),
    "delete": ("pending",),
    "remove": ("waiting", "scheduled", "dead", "pending"),
    "run_now": ("scheduled",),
    "requeue": ("dead", "dead", "dead", "pending"),
    "payload": ("dead",),
}
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "max_attempts": (1, 2, None), "max_inflight": (1, 2, None), "rate": (RateLimit(2, per=3), None),
    "max_inflight_per_partition": (1, 2, None), "rate_per_partition": (RateLimit(2, per=3), None),
    "fair": (True, None), "max_size": (3, 6, None), "dead_max": (1, 2, None), "dead_ttl": (0, 2, None),
    "history": (60, None), "history_max": (2, None), "expires_in": (2, None),
}  # fmt: skip
_PARTITIONS = (None, "a", "b", "c")
_BATCH_ACTS = ("take", "take", "stage", "stage", "fail", "release", "dissolve", "renew", "top_up", "advance")


_AUDITED_EVERY = 5
_START_MS = 1_790_000_000_000
Step = tuple[str, int]
"""The name of an operation, and the seed of what it draws, so that a run can be shortened."""


def first_problem(server_url: str, prefix: str, raw: redis.Redis, steps: Iterable[Step]) -> str:
    """Plays some steps, and empties the queues. Returns the first inconsistency with what happened before it, or ''."""
    clock = Clock()
    clock.set(_START_MS)
    with Client(server_url, prefix, now_ms=clock) as client:
        storm = Storm(client, clock)

        def found(*more: str) -> str:
            problem = next(itertools.chain([storm.problem] if storm.problem else [], audit().problems(), more), "")
            return "\n".join((problem, "after:", *storm.log)) if problem else ""

        def audit() -> TagAudit:
            return TagAudit(raw, keys_of(client), QUEUES)

        for number, step in enumerate(steps, 1):
            storm.do(*step)
            if (storm.problem or number % _AUDITED_EVERY == 0) and (problem := found()):
                return problem
        return found() or found(*storm.drain()) or found(*audit().left_over())


class Storm:
    """One run."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client, self.clock = client, clock
        self.keys, self.broker = keys_of(client), broker_of(client)
        self.held: list[Attempt] = []
        self.idle: dict[str, float] = {}
        """Until when an idle worker has nothing to do in a queue, unless it is woken."""
        self.batches: list[BatchLease] = []
        self.number = itertools.count()
        self.log: list[str] = []
        self.problem = ""
        for name in QUEUES:
            client.queue(name).configure(keepalive=KEEPALIVE_MS / 1000)

    @property
    def now(self) -> float:
        assert self.clock.ms is not None
        return self.clock.ms

    def do(self, name: str, seed: int) -> None:
        """Does one operation."""
        random = Random(seed)
        with suppress(QueueFull, BatchLost, QueueNotEmpty, TaskGone, InvalidOption, UsageError):
            said = OPERATIONS[name](self, random)
            self.log.append(f"{name} {said}")
            return
        self.log.append(f"{name} refused")

    def configure(self, random: Random) -> Any:
        queue, setting = random.choice(QUEUES), random.choice((*_SETTINGS, "dead_letter_queue"))
        value = random.choice(_SETTINGS[setting]) if setting in _SETTINGS else random.choice((DEAD, None))
        if setting == "dead_letter_queue" and queue == DEAD:
            value = None
        self.client.queue(queue).configure(**{setting: value})
        return queue, setting, value

    def pause(self, random: Random) -> Any:
        queue = self.client.queue(random.choice(QUEUES))
        return queue.name, random.choice((queue.pause, lambda: queue.pause(0.5), *(queue.resume,) * 4))()

    def push(self, random: Random) -> Any:
        choice = random.choice
        items = [
            Item(
                n, id=choice((None, None, None, f"id{choice('abc')}")), partition=choice(_PARTITIONS),
                priority=choice((None, None, 0, 2)), in_=choice((None, None, None, 0.5, 3)),
                expires_in=choice((None, None, None, 1)), max_attempts=choice((None, None, 1, 2)),
                max_stalled=choice((None, None, 1)), keepalive=choice((None, None, 3)),
            )
            for n in range(choice((1, 2, 4)))
        ]  # fmt: skip
        queue = choice(QUEUES)
        return queue, self.client.queue(queue).push_many(items)

    def unique(self, random: Random) -> Any:
        choice = random.choice
        lock = Lock(digest=choice("xy"), lasts=choice(("started", "finished", "expired")), ttl_ms=choice((1500, 9000)),
                    on_clash=choice(("ignore", "replace", "reschedule")))  # fmt: skip
        task = Task(
            id=new_id("st"), queue=IN, payload=b"x", lock=lock, priority=choice((None, 2)), key=choice(_PARTITIONS),
            delay_ms=choice((None, None, 1500)), max_attempts=choice((None, 1)),
        )  # fmt: skip
        return self.broker.run(enqueue_call(self.keys, None, [task], 1 << 20))

    def flow(self, random: Random) -> Any:
        flow = lay_out(_node(random), 7 * 86_400_000)
        run_operation(self.broker, send(flow, self.keys, None, 1 << 20))
        return flow.id

    def reserve(self, random: Random) -> Any:
        """An idle worker that nothing woke finds no task before the next event that it knows."""
        name, count = random.choice((*QUEUES, IN, ELSEWHERE)), random.choice((1, 2, 5))
        queue = self.keys.queue(name)
        is_woken = self.broker.run(command("ZPOPMIN", queue.wake, read=len)) > 0
        call = leases.reserve(queue, count, token=random.getrandbits(50), keepalive_ms=KEEPALIVE_MS)
        found = self.broker.run(call)
        taken = found.attempts
        if taken and not is_woken and self.now < self.idle.get(name, 0.0):
            self.problem = f"{[one.id for one in taken]} came to {name}, and no hint woke an idle worker"
        self.idle[name] = 0.0
        if len(taken) < count and not found.is_cut_short:
            event = inf if found.next_event_ms is None else found.next_event_ms
            self.idle[name] = min(event, self.now + KEEPALIVE_MS)  # workers poll at least as often
        self.held = [*self.held, *taken][-12:]
        return name, [(one.id, one.token) for one in taken], is_woken, self.idle[name]

    def report(self, random: Random) -> Any:
        live = [one for one in self.held if one.deadline_ms > self.now]
        held = live if random.random() < 0.9 else self.held
        some = random.sample(held, min(len(held), random.choice((1, 1, 2, 4))))
        reports = [(one, _outcome(random, one)) for one in some]
        if random.random() < 0.9:  # the others are reported on again later, which is refused
            self.held = [one for one in self.held if one not in some]
        said = self._report(reports)
        if random.random() < 0.7:
            relay(self.broker, self.keys, tags=("st", "el"), looks=random.choice((1, 2)))
        return [(one.id, one.token, type(outcome).__name__) for one, outcome in reports], said

    def _report(self, reports: list[Report]) -> list[str]:
        said, again = [], list[Report]()
        for _ in range(2):
            for call in report_calls(self.keys, reports):
                verdicts = self.broker.run(call.call)
                said += verdicts
                each = zip(call.reports, verdicts, strict=True)
                again += [too_many_hops(*one) for one, word in each if word == "hops"]
            reports, again = again, []
        return said

    def crash_or_extend(self, random: Random) -> Any:
        live = [one for one in self.held if one.deadline_ms > self.now]
        if not live:
            return None
        one = random.choice(live)
        queue = self.keys.queue(one.queue)
        if random.random() < 0.5:
            crash = leases.crash(queue, [(one.id, one.token, random.random() < 0.5)], reason="signal 9")
            return one.id, self.broker.run(crash)
        return one.id, self.broker.run(leases.extend(queue, [(one.id, one.token, 2000.0)]))

    def by_hand(self, random: Random) -> Any:
        act = random.choice(tuple(_STATES))
        state = random.choice(_STATES[act])
        found = {name: self.broker.run(queues.ids(self.keys.queue(name), state, start=0, count=4)) for name in QUEUES}
        if not (full := [name for name, ids in found.items() if ids]):
            return None
        name = random.choice(full)
        queue, ids = self.keys.queue(name), found[name]
        some = random.sample(ids, min(len(ids), random.choice((1, 2))))
        match act:
            case "cancel":
                call: Any = tasks.cancel(queue, some[0], keep_ms=60_000, leave=random.choice(("", "", "dead", "alive")))
            case "delete":
                call = tasks.delete(queue, some[0])
            case "payload":
                call = tasks.requeue(
                    queue, some, start_ms=random.choice((0, 500)), step_ms=300, fields=["payload", b"new"]
                )
            case _:
                call = {"remove": tasks.remove, "run_now": tasks.run_now, "requeue": tasks.requeue}[act](queue, some)
        return act, queue.name, some, self.broker.run(call)

    def purge(self, random: Random) -> Any:
        queue, state = self.keys.queue(random.choice(QUEUES)), random.choice(("waiting", "scheduled", "dead", "done"))
        return queue.name, state, self.broker.run(queues.purge(queue, state, count=random.choice((1, 1, 1, 1000))))

    def pop(self, random: Random) -> Any:
        queue = self.client.queue(random.choice(QUEUES))
        return queue.name, [one.id for one in queue.pop(random.choice((1, 3)))]

    def replay(self, random: Random) -> Any:
        queue = self.client.queue(random.choice(QUEUES))
        ended = queue.history(5)
        return [queue.replay(random.choice(ended).id)] if ended else None

    def delete_queue(self, random: Random) -> Any:
        queue = random.choice(QUEUES)
        return queue, self.client.queue(queue).delete(force=random.random() < 0.2)

    def batch(self, random: Random) -> Any:
        batches = Batches(self.broker, self.keys.queue(random.choice((IN, IN, OUT))))
        act = random.choice(_BATCH_ACTS)
        if act == "take" or not self.batches:
            lease = batches.take(random.choice((1, 3)), lease_s=KEEPALIVE_MS / 1000)
            self.batches = [*self.batches, *([lease] if lease else [])][-4:]
            return "take", lease and (lease.id, lease.size, lease.state)
        lease = random.choice((*self.batches, *self.batches[-1:] * 4))
        match act:
            case "stage":
                ids = lease.members(0, 10)
                chosen = [one for one in ids if random.random() < 0.8]
                nonce = f"n{next(self.number)}"
                to = random.choice(("out", "in", "dead"))
                lease.stage(nonce, [word for one in chosen for word in (one, to, b"row", "")], after=0)
                lease.decide({nonce: len(chosen)}, rest=random.choice(("succeeded", "dropped")))
            case "fail":
                fate = random.choice(("failed", "blamed", "divided"))
                lease.fail("ValueError: no", delay_s=random.choice((0.0, 0.5)), fate=fate)
            case "advance":
                lease.advance(random.choice((1, None)))
            case "top_up":
                lease.batches.top_up(lease, 2)
            case _:
                getattr(lease, act)()
        return act, lease.id

    def maintain(self, random: Random) -> Any:
        for name in (*QUEUES, ELSEWHERE):
            self.broker.run(queues.upkeep(self.keys.queue(name)))
        return relay(self.broker, self.keys, tags=("st", "el"))

    def wait(self, random: Random) -> Any:
        return self.clock.advance(random.choice((1, 1, 50, 50, 200, 200, 500, 1000, 3000, 70_000)))

    def drain(self) -> list[str]:
        """Lifts all limits, and ends everything as it must. Returns what is left."""
        everything = (*QUEUES, ELSEWHERE)
        for name in everything:
            self.client.queue(name).resume()
            self.client.queue(name).configure(**dict.fromkeys((*_SETTINGS, "dead_letter_queue")))
        left: list[str] = []
        for _ in range(60):
            for name in (IN, OUT):
                self._end_batches(Batches(self.broker, self.keys.queue(name)))
            for name in everything:
                queue = self.client.queue(name)
                queue.commit_many(queue.reserve(1000))
            relay(self.broker, self.keys, tags=("st", "el"))
            counts = {name: self.client.queue(name).counts() for name in everything}
            left = [f"{name} does not drain: {one}" for name, one in counts.items()
                    if one["waiting"] or one["scheduled"] or one["pending"]]  # fmt: skip
            if not left:
                break
            self.clock.advance(20_000)
        for name in everything:  # an idle worker polls: that removes what lifted limits left of the last tasks
            left += [f"{name} hands out {one.id} when it is empty" for one in self.client.queue(name).reserve()]
        return left

    def _end_batches(self, batches: Batches) -> None:
        while lease := batches.take(0, lease_s=1.0):
            if lease.state == "open":
                lease.dissolve()
                continue
            while not lease.advance(None).done:
                pass


def _node(random: Random) -> Node:
    def leaf() -> Leaf:
        queue = random.choice((IN, IN, OUT, ELSEWHERE))
        return Leaf(task=Task(
            id=new_id(queue.partition("/")[0]), queue=queue, payload=b"x", key=random.choice(_PARTITIONS),
            delay_ms=random.choice((None, None, 500)), max_attempts=random.choice((None, 1)),
        ))  # fmt: skip

    members: list[Node] = [leaf() for _ in range(random.choice((1, 2, 3)))]
    if random.random() < 0.3:
        members[-1] = ChainNode(nodes=(members[-1], leaf()))
    rules = [rule for rule in ("success", "complete", "dead") if random.random() < 0.5]
    group = GroupNode(nodes=tuple(members), callbacks=tuple((rule, leaf()) for rule in rules))
    return group if random.random() < 0.5 else ChainNode(nodes=(group, leaf()))


def _outcome(random: Random, one: Attempt) -> Outcome:
    moved = one.queue != ELSEWHERE
    match random.choice(("succeeded", "succeeded", "failed", "died", "snoozed", "cancelled", "released", "dropped",
                         *(("moved", "moved", "fanned out") if moved else ()))):  # fmt: skip
        case "succeeded":
            return Succeeded(b'"done"')
        case "failed":
            return Failed("ValueError: no", delay_s=random.choice((0, 0.5)), error_type="ValueError")
        case "died":
            return Failed("KeyError: no", delay_s=0, retry=False, error_type="KeyError")
        case "snoozed":
            return Snoozed(random.choice((0.0, 0.5)))
        case "cancelled":
            return Cancelled()
        case "released":
            return Released()
        case "dropped":
            return Dropped()
        case "moved":
            return _child(random)
        case _:
            return FannedOut(children=tuple(_child(random) for _ in range(random.choice((0, 1, 2)))))


def _child(random: Random) -> Moved:
    return Moved(
        queue=random.choice(QUEUES), payload=random.choice((None, b"new")), delay_s=random.choice((0, 0, 0.5)),
        priority=random.choice((None, 2)), max_hops=random.choice((0, 2)), waits=random.random() < 0.7,
    )  # fmt: skip


OPERATIONS: dict[str, Callable[[Storm, Random], Any]] = {
    "configure": Storm.configure, "pause": Storm.pause, "push": Storm.push, "unique": Storm.unique,
    "flow": Storm.flow, "reserve": Storm.reserve, "report": Storm.report, "crash_or_extend": Storm.crash_or_extend,
    "by_hand": Storm.by_hand, "purge": Storm.purge, "pop": Storm.pop, "replay": Storm.replay,
    "delete_queue": Storm.delete_queue, "batch": Storm.batch, "maintain": Storm.maintain, "wait": Storm.wait,
}  # fmt: skip
WEIGHTS = {"push": 5, "reserve": 9, "report": 9, "configure": 4, "wait": 5, "by_hand": 5, "batch": 7, "unique": 3,
           "flow": 2, "crash_or_extend": 2}  # fmt: skip
EACH = [name for name in OPERATIONS for _ in range(WEIGHTS.get(name, 1))]
