"""Actors of a periodic job: workers that publish it, leaders that fire it, and somebody who switches it off and on."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.periodic_state import switch
from jobrunner.coordinator.coordinator import LeaderTimes
from jobrunner.errors import UnknownJob
from jobrunner.periodic import PeriodicDefinition
from tests.simulation.scheduler import Actor
from tests.simulation.workers import KEYS, NEXT, OUT, UNKNOWN, coordinator_of, coordinator_turn

JOB = "report"
_LAST_S, _SWEEP_S, _PAUSE_S = 10.0, 15.0, 0.5


def drawn_job(choice: Callable[[Any], Any]) -> PeriodicDefinition:
    """A job that ticks every few seconds, and makes up for missed ticks in one way or another."""
    return PeriodicDefinition(
        name=JOB, queue=NEXT, schedule={"every": choice((1.0, 2.0, 3.0))}, payload=b"{}",
        catch_up=choice((1000, 1000, 2, "last", "none")), overlap=choice(("allow", "skip")), jitter=choice((0.0, 1.5)),
    )  # fmt: skip


def deployed(definition: PeriodicDefinition, choice: Callable[[Any], Any]) -> PeriodicDefinition:
    """The job as a later version has it: on another schedule, or on another queue."""
    queue = choice((NEXT, NEXT, OUT))
    return replace(definition, queue=queue, schedule=choice(({"every": 2.5}, definition.schedule)))


def publisher(definition: PeriodicDefinition, rounds: int) -> Callable[[Actor], None]:
    """Publishes a definition again and again, as each worker does that knows the job."""

    def job(actor: Actor) -> None:
        for _ in range(rounds):
            try:
                _publish(actor, definition)
            except UNKNOWN as error:
                actor.hears(error)
            actor.sleep(actor.world.random.random() * 8)

    return job


def _publish(actor: Actor, definition: PeriodicDefinition) -> None:
    actor.broker.run(leader_calls.define_periodics(KEYS, {JOB: msgspec.json.encode(definition)}))


def tick_leader(name: str, ttl_s: float, until_s: float) -> Callable[[Actor], None]:
    """A coordinator that leads when it can. It may resign, or be held up for longer than its lead lasts."""

    def job(actor: Actor) -> None:
        random, ends = actor.world.random, actor.world.now + until_s * 1000
        coordinator = coordinator_of(actor, name, LeaderTimes(ttl_s, _SWEEP_S))
        while actor.world.now < ends:
            coordinator_turn(actor, coordinator, after_error_s=_PAUSE_S)
            if random.random() < 0.1:
                actor.sleep(ttl_s * 1.2)
            if random.random() < 0.05:
                try:
                    coordinator.resign()
                except UNKNOWN as error:
                    actor.hears(error)

    return job


def switcher(rounds: int) -> Callable[[Actor], None]:
    """Disables the job for some seconds."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            actor.sleep(random.random() * 8)
            for is_enabled in (False, True):
                try:
                    run_operation(actor.broker, switch(KEYS, JOB, enabled=is_enabled))
                except (*UNKNOWN, UnknownJob) as error:
                    actor.hears(error)
                actor.sleep(random.random() * 5)

    return job


def last_leader(actor: Actor) -> None:
    """Leads without faults until every tick has had its turn, of a job that is published and enabled."""
    published = actor.broker.run(leader_calls.periodics(KEYS))
    if not published:  # its workers died before
        return
    ends, coordinator = actor.world.now + _LAST_S * 1000, coordinator_of(actor, "the last", LeaderTimes(6.0, _SWEEP_S))
    actor.broker.run(leader_calls.define_periodics(KEYS, published))
    run_operation(actor.broker, switch(KEYS, JOB, enabled=True))
    while actor.world.now < ends:
        coordinator_turn(actor, coordinator, after_error_s=_PAUSE_S)
    coordinator.resign()
