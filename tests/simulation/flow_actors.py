"""Actors that send flows, run their steps, and relay the ends of tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jobrunner.broker.keys import split_queue
from jobrunner.client.lease import Lease
from jobrunner.client.operations.flow import Flow, cancel, send
from jobrunner.client.operations.flow_relay import relay
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.queue import Queue
from jobrunner.errors import LeaseError, ReportsRefused
from jobrunner.jobs.flow_layout import ChainNode, GroupNode, Leaf, Node, lay_out
from jobrunner.join import Ended
from jobrunner.task import Task, new_id
from tests.simulation.scheduler import Actor
from tests.simulation.workers import IN, KEYS, LEASE_S, NEXT, QUEUES, UNKNOWN, await_items, queue_of, until_known

TAGS = list(dict.fromkeys(keys.tag for keys in QUEUES))
_TTL_MS = 7 * 86_400_000
_LARGE = b'"%s"' % (b"x" * 600_000)
"""Two of these are more than a join takes on in one step."""


def flow_sender(
    add: Callable[[Flow], None], *, is_large: bool, queues: Sequence[str] = (IN, NEXT, NEXT), cancels: float = 0.0
) -> Callable[[Actor], None]:
    """Sends one flow, again when it does not know what became of it. `add` receives the flow first. May cancel it."""

    def job(actor: Actor) -> None:
        flow = lay_out(_node(actor, queues, is_large=is_large), _TTL_MS)
        add(flow)

        def once() -> list[str]:
            run_operation(actor.broker, send(flow, KEYS, None, 1 << 20))
            return []

        until_known(actor, once)
        random = actor.world.random
        if cancels and random.random() < cancels:
            actor.sleep(random.random() * 6)
            try:
                run_operation(actor.broker, cancel(flow, KEYS))
            except UNKNOWN as error:
                actor.hears(error)

    return job


def _node(actor: Actor, queues: Sequence[str], *, is_large: bool) -> Node:
    """A group with callbacks, that may be followed by a step or by another group."""
    random = actor.world.random
    leaf = partial(_leaf, actor, queues, is_large=is_large)
    members: list[Node] = [leaf() for _ in range(2 if is_large else random.choice((1, 2, 2, 3)))]
    if not is_large and random.random() < 0.3:
        members[-1] = ChainNode(nodes=(members[-1], leaf()))
    rules = [rule for rule in ("success", "complete", "dead") if random.random() < 0.5]
    group = GroupNode(nodes=tuple(members), callbacks=tuple((rule, leaf()) for rule in rules))
    behind = random.random()
    if behind < (0.6 if is_large else 0.2):
        return ChainNode(nodes=(group, GroupNode(nodes=(leaf(), leaf()))))
    return group if behind < 0.7 else ChainNode(nodes=(group, leaf()))


def _leaf(actor: Actor, queues: Sequence[str], *, is_large: bool) -> Leaf:
    random = actor.world.random
    queue = NEXT if is_large else random.choice(queues)
    payload = b"large" if is_large else b"x"
    return Leaf(task=Task(
        id=new_id(split_queue(queue)[0]), queue=queue, payload=payload, priority=random.choice((None, None, 2)),
        delay_ms=random.choice((None, None, None, 1500)),
    ))  # fmt: skip


def step_worker(rounds: int, careful: float) -> Callable[[Actor], None]:
    """Runs steps of flows: each returns its own id. Relays their ends, as a worker does, unless it is killed."""

    def job(actor: Actor) -> None:
        queue, random = queue_of(actor, NEXT), actor.world.random
        for _ in range(rounds):
            await_items(actor, NEXT)
            try:
                held = queue.reserve(random.choice((1, 1, 2, 3)), keepalive=LEASE_S)
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.1)))
                good = [one for one in held if random.random() < careful]
                for lease in held:
                    if lease not in good:
                        lease.rollback(delay=random.choice((0, 0.5)), error="ValueError: no")
                commit_steps(actor, queue, good)
                if not held:
                    actor.sleep(random.random() * 3)
            except (*UNKNOWN, LeaseError, ReportsRefused) as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def commit_steps(actor: Actor, queue: Queue, held: list[Lease]) -> None:
    """Commits steps with their results, and relays their ends."""
    if not held:
        return
    results: list[Any] = [_LARGE[1:-1].decode() if one.payload == b"large" else one.id for one in held]
    queue.commit_many(held, results)
    ends = [
        Ended(split_queue(one.queue)[0], "succeeded", one.then, b'"%s"' % result.encode())
        for one, result in zip(held, results, strict=True) if one.then
    ]  # fmt: skip
    relay(actor.broker, KEYS, ended=ends)


def relayer(rounds: int) -> Callable[[Actor], None]:
    """Empties the outboxes, as the leader does."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 4)
            try:
                relay(actor.broker, KEYS, tags=TAGS, looks=random.choice((1, 2)))
            except UNKNOWN as error:
                actor.hears(error)

    return job
