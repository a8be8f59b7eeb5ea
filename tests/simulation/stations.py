"""Actors that steer the items of a pipeline as stations do, with the report calls of the worker."""

from collections.abc import Callable

from jobrunner.broker.calls import leases
from jobrunner.outcome import Dropped, Failed, FannedOut, Moved, Outcome, Released, Succeeded
from jobrunner.worker.report.report_calls import Report, report_calls, too_many_hops
from tests.simulation.scheduler import Actor
from tests.simulation.workers import IN, KEYS, LEASE_S, OUT, UNKNOWN, await_items

_KINDS = ("moved", "moved", "fanned out", "fanned out", "dropped", "failed", "released", "looped")


def station(name: str, rounds: int) -> Callable[[Actor], None]:
    """Reserves items of a queue, and reports on each as a station steers it: on to `out`, as children, dropped, to be
    tried again, or once more through its own queue. A report whose target is full is made again."""

    def job(actor: Actor) -> None:
        random = actor.world.random
        for _ in range(rounds):
            await_items(actor, name)
            try:
                count, token = random.choice((1, 2, 3)), random.getrandbits(50)
                reserve = leases.reserve(KEYS.queue(name), count, token=token, keepalive_ms=round(LEASE_S * 1000))
                held = actor.broker.run(reserve).attempts
                if random.random() < 0.3:
                    actor.sleep(LEASE_S * random.choice((0.1, 0.9, 1.1)))
                _report(actor, [(one, _outcome(actor, name)) for one in held])
                if not held:
                    actor.sleep(random.random() * 3)
            except UNKNOWN as error:
                actor.hears(error)
                actor.sleep(random.random())

    return job


def _outcome(actor: Actor, name: str) -> Outcome:
    random = actor.world.random
    match random.choice(_KINDS) if name == IN else "succeeded":
        case "moved":
            return Moved(queue=OUT, payload=random.choice((None, b"new")), delay_s=random.choice((0, 0, 0.5)))
        case "fanned out":
            return FannedOut(children=tuple(_child(actor) for _ in range(random.choice((1, 2, 2)))))
        case "looped":
            return Moved(queue=IN, max_hops=1, waits=random.random() < 0.5)
        case "dropped":
            return Dropped()
        case "failed":
            return Failed("ValueError: no", delay_s=random.choice((0, 0.5)))
        case "released":
            return Released()
        case _:
            return Succeeded(b"")


def _child(actor: Actor) -> Moved:
    random = actor.world.random
    return Moved(
        queue=random.choice((OUT, IN)), payload=b"child", priority=random.choice((None, None, 2)),
        delay_s=random.choice((0, 0, 0.5)), waits=random.random() < 0.7, max_hops=3,
    )  # fmt: skip


def _report(actor: Actor, reports: list[Report]) -> None:
    """Reports, and again in another way on items that moved too often, and once more on those whose target is full."""
    again: list[Report] = []
    for _ in range(2):
        for call in report_calls(KEYS, reports):
            verdicts = actor.broker.run(call.call)
            for report, verdict in zip(call.reports, verdicts, strict=True):
                if verdict == "hops":
                    again.append(too_many_hops(*report))
                elif verdict == "full":
                    again.append(report)
        reports, again = again, []
