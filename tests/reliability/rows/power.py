"""Power cuts under load: the server loses what was not synced, and not only its process. R43."""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from jobrunner import Client
from jobrunner.client.client import keys_of
from jobrunner.client.current import within
from jobrunner.errors import JobrunnerError, OutcomeUnknown
from tests.acceptance.jobs_for_tests import HoldLong
from tests.acceptance.ledger import Entry
from tests.reliability import sync_filter
from tests.reliability.checker import outside
from tests.reliability.jobs import Lamp
from tests.reliability.power import Cut, PoweredServer
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.support.queue_audit import census, problems, strays
from tests.support.waiting import wait_for

_BESIDE = "beside"
_JOBS = "tests.reliability.jobs"
_PLACES = 5
_KEEPALIVE_S = 2.0
_PRODUCERS = 6
_SYNC_EVERY_S = 1.0
_NOTICED_LATE_S = 0.1
"""How much later than the server the harness may know that a sync began."""
_AGE_S = 2.0
"""For a second between syncs, the length of a sync, and a machine that does other work."""
_REWRITES: dict[str, Any] = {"auto-aof-rewrite-min-size": "300kb", "auto-aof-rewrite-percentage": "50"}


@dataclass(frozen=True, slots=True)
class Call:
    """When an enqueue was called and when it returned."""

    called: float
    returned: float


@dataclass(slots=True)
class Load:
    """What producers enqueued while the power was cut."""

    safely: dict[str, Call] = field(default_factory=dict)
    """With the durability of the part, in the queue with limits."""
    beside: dict[str, Call] = field(default_factory=dict)
    """With none, in another queue."""
    unknown: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@scenario("R43", short={"cuts": 3, "seed": 43}, full={"cuts": 200, "seed": 43})
def powerless(stage: Stage, findings: Findings, cuts: int, seed: int) -> None:
    """The power of the server is cut under load: all that its syncs had not made safe is lost.

    With durability="fsync", and with appendfsync always, no acknowledged task is lost; with "none" only those
    acknowledged since the last sync began. After each cut no task is in two states, none runs again that no cut
    explains, no place under max_inflight leaks; producers and workers go on without help.
    """
    if why := sync_filter.unsupported():
        findings.equals("power can be cut", why, "")
        return
    parts = (("fsync", "fsync", "everysec"), ("none", "none", "everysec"), ("always", "none", "always"))
    lost = sum(play_part(stage.folder, findings, *part, cuts, seed, say=stage.say) for part in parts)
    findings.equals("acknowledged tasks lost", lost, 0)


def play_part(
    place: Path, findings: Findings, name: str, durability: str, policy: str, cuts: int, seed: int, *,
    say: Callable[[str], None] = lambda _line: None, is_lying: bool = False, fault: str = "",
    give_up_s: float = 10,
) -> int:  # fmt: skip
    """The cuts with one durability and one policy of the server, on a stage of their own. Returns how many tasks are
    lost that should be safe."""
    server = PoweredServer(seed, appendfsync=policy, is_lying=is_lying, **_REWRITES)
    folder = place / name
    folder.mkdir()
    with closing(Stage(folder, say, give_up_s=give_up_s, server=server)) as own:
        own.client.queue(QUEUE).configure(max_inflight=_PLACES)
        wait_for(lambda: server.disk.syncs or is_lying)
        if fault:
            own.fleet.environment |= own.tamper(fault=fault)
        workers = own.fleet.start(2, modules=[_JOBS], queues=[QUEUE, _BESIDE], concurrency=4)
        load, mixed, most = Load(), 0, [0]
        with _producing(own, load, durability, seed), _sampling(own, load, most):
            for number in range(cuts):
                known = len(load.safely)
                wait_for(lambda: len(load.safely) > known, timeout_s=60)  # noqa: B023 - it is over in this round
                time.sleep(server.rng.uniform(0, 1.5 * _SYNC_EVERY_S))  # the fault strikes at any time
                server.cut()
                server.start()
                mixed += _in_two_states(own)
                say(f"{name}: cut {number + 1} of {cuts}, {len(load.safely):,} acknowledged")
        for queue in (QUEUE, _BESIDE):
            own.drain(queue)
        safe = {QUEUE: (durability, policy) != ("none", "everysec"), _BESIDE: policy == "always"}
        lost = _judge(own, findings, name, load, server.cuts, safe)
        findings.equals(f"{name}: tasks in two states after a cut", mixed, 0)
        findings.at_most(f"{name}: most in hand at once of the queue with max_inflight", most[0], _PLACES)
        findings.equals(f"{name}: places that are free in the end", _free_places(own), _PLACES)
        findings.equals(f"{name}: workers that exited", sum(not worker.alive for worker in workers), 0)
        findings.equals(f"{name}: cuts", len(server.cuts), cuts)
        findings.note(f"{name}: syncs", server.syncs)
        findings.note(f"{name}: rewrites of the file", server.rewrites)
        findings.note(f"{name}: starts refused once, as a log was torn before the last", server.refusals)
        return lost


@contextmanager
def _producing(stage: Stage, load: Load, durability: str, seed: int) -> Iterator[None]:
    """Enqueues until the body is over, from several threads, each with a client of its own."""
    with ExitStack() as clients:
        kinds = [(QUEUE, load.safely, durability)] * _PRODUCERS + [(_BESIDE, load.beside, "none")]
        threads = []
        for number, (queue, calls, asked) in enumerate(kinds):
            client = clients.enter_context(
                Client(stage.server.url, PREFIX, durability=asked, durability_timeout=4, retry_timeout=30)
            )
            rng = random.Random(f"{seed} {number}")
            threads.append(threading.Thread(target=_produce, args=(load, client, queue, calls, number, rng)))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            load.over.set()
            for thread in threads:
                thread.join()


def _produce(load: Load, client: Client, queue: str, calls: dict[str, Call], number: int, rng: random.Random) -> None:
    made = 0
    with within(client):
        while not load.over.is_set():
            count = rng.choice((1, 1, 2, 12))
            ids = [f"{queue}-{number}-{made + n}" for n in range(count)]
            made += count
            lamps = [
                Lamp(fails=rng.random() < 0.1).using(
                    queue=queue, id=one, in_=rng.uniform(0.1, 1.5) if rng.random() < 0.2 else None
                )
                for one in ids
            ]
            called = time.monotonic()
            try:
                if count == 1:
                    lamps[0].enqueue()
                else:
                    Lamp.enqueue_many(lamps)
            except JobrunnerError as error:
                load.unknown.update(ids)
                if not isinstance(error, OutcomeUnknown):
                    load.errors.append(repr(error))
                continue
            call = Call(called, time.monotonic())
            calls.update(dict.fromkeys(ids, call))
            load.over.wait(rng.uniform(0, 0.1))


@contextmanager
def _sampling(stage: Stage, load: Load, most: list[int]) -> Iterator[None]:
    """Reads how many tasks of the queue with limits are in hand, until the producers are over."""
    pending = keys_of(stage.client).queue(QUEUE).pending

    def sample() -> None:
        while not load.over.wait(0.01):
            try:
                with stage.server.connect() as connection:
                    while not load.over.wait(0.01):
                        most[0] = max(most[0], connection.zcard(pending))
            except (redis.exceptions.RedisError, OSError):
                continue

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        load.over.set()
        thread.join()


def _in_two_states(stage: Stage) -> int:
    with stage.server.connect() as raw:
        found = 0
        for queue in (QUEUE, _BESIDE):
            sets = census(raw, keys_of(stage.client).queue(queue))
            ids = [one for members in sets.values() for one in members]
            found += len(ids) - len(set(ids))
        return found


def _judge(
    stage: Stage, findings: Findings, name: str, load: Load, cuts: list[Cut], safe: dict[str, bool]
) -> int:
    lost_safe = 0
    ended = set(stage.ledger.times("end"))
    dead: set[str] = set()
    with stage.server.connect() as raw:
        for queue in (QUEUE, _BESIDE):
            keys = keys_of(stage.client).queue(queue)
            sets = census(raw, keys)
            dead.update(sets["dead"])
            left = sum(len(sets[state]) for state in ("waiting", "scheduled", "pending"))
            findings.equals(f"{name}, queue {queue}: still there", left, 0)
            findings.equals(f"{name}, queue {queue}: problems of the books", problems(raw, keys), [])
            findings.equals(f"{name}, queue {queue}: keys that should not be", strays(raw, keys), [])
    findings.equals(f"{name}: keys outside the prefix", outside(stage), [])
    findings.equals(f"{name}: dead", len(dead), 0)
    for queue, calls in ((QUEUE, load.safely), (_BESIDE, load.beside)):
        lost = {one: call for one, call in calls.items() if one not in ended and one not in dead}
        findings.note(f"{name}, queue {queue}: tasks", len(calls))
        if safe[queue]:
            lost_safe += len(lost)
            findings.equals(f"{name}, queue {queue}: acknowledged tasks lost", len(lost), 0)
            continue
        ages = [_age(call, cuts) for call in lost.values()]
        least = 1 if queue == QUEUE else 0
        findings.at_least(f"{name}, queue {queue}: acknowledged tasks lost, as the page says", len(lost), least)
        findings.equals(
            f"{name}, queue {queue}: lost though a sync began after they were acknowledged", ages.count(None), 0
        )
        longest = max((age for age in ages if age is not None), default=0.0)
        findings.at_most(f"{name}, queue {queue}: s from acknowledged to cut, of the lost", round(longest, 3), _AGE_S)
    enqueued = load.safely.keys() | load.beside.keys() | load.unknown
    findings.equals(f"{name}: tasks run that were not enqueued", len(ended - enqueued), 0)
    findings.equals(f"{name}: begun again without a cut that explains it", doubled(stage.ledger.entries(), cuts), [])
    findings.equals(f"{name}: errors of producers", load.errors[:3], [])
    findings.note(f"{name}: tasks of which their producer knows nothing", len(load.unknown))
    findings.note(f"{name}: kB lost", round(sum(cut.lost_bytes for cut in cuts) / 1000))
    return lost_safe


def _age(call: Call, cuts: list[Cut]) -> float | None:
    """Seconds from the return of a call to the cut that may have lost its task; None if no cut may."""
    return max(
        (
            cut.at - call.returned
            for cut in cuts
            if call.called <= cut.at and call.returned >= cut.synced_at - _NOTICED_LATE_S
        ),
        default=None,
    )


def doubled(entries: list[Entry], cuts: list[Cut]) -> list[str]:
    """Tasks that began once more although no cut made the server forget the attempt before, or its end.

    A report is on its way for less than a lease, and so is a task that a worker has in hand and has not begun.
    """
    of_tasks: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.at):
        of_tasks.setdefault(entry.task, []).append(entry)
    found = []
    for task, some in of_tasks.items():
        starts = [entry for entry in some if entry.event == "start"]
        for first, second in itertools.pairwise(starts):
            own = [entry for entry in some if entry.pid == first.pid and first.at <= entry.at < second.at]
            over = next((entry for entry in own if entry.event in ("end", "fail")), None)
            if over is not None and over.event == "fail":
                continue
            until = over.at if over else second.at
            if not any(
                cut.at <= second.at and until >= cut.synced_at - _KEEPALIVE_S and first.at <= cut.at + 2 * _KEEPALIVE_S
                for cut in cuts
            ):
                found.append(task)
    return found[:3]


def _free_places(stage: Stage) -> int:
    """How many tasks of the queue with limits run at once when more wait."""
    path = stage.folder / "go"
    begun = stage.ledger.count("start")
    for _ in range(_PLACES + 2):
        HoldLong(path=str(path)).enqueue()
    with suppress(AssertionError):
        wait_for(lambda: stage.ledger.count("start") >= begun + _PLACES, timeout_s=10)
    found = stage.ledger.count("start") - begun
    path.touch()
    stage.drain()
    return found


ROWS = (powerless,)
