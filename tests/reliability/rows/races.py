"""Unique tasks that many processes enqueue at once: R26."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from jobrunner.client.client import keys_of
from tests.acceptance.fleet import ROOT, WorkerProcess
from tests.reliability.checker import judge
from tests.reliability.jobs import OnlyOne, perishes
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.support.queue_audit import problems
from tests.support.waiting import wait_for

_MODULES = ["tests.reliability.jobs"]
_ENDS = "ends"


class Watch:
    """Reads the number of live tasks of each key, and the lock, in one transaction each time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._keys = keys_of(stage.client).queue(QUEUE)
        self.looks = self.most = self.without_end = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Ends the reading."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._stage.server.connect() as connection:
            look = connection.register_script(_LOOK)
            keys = [self._keys.waiting, self._keys.scheduled, self._keys.pending]
            while not self._over.is_set():
                ids = look(keys=keys, args=[self._keys.tasks])
                alike = Counter(payload for payload in ids if payload)
                self.looks += 1
                self.most = max([self.most, *alike.values()])
                locks = list(connection.scan_iter(match=self._keys.base + b"unique:*", count=1000))
                self.without_end += sum(connection.ttl(lock) == -1 for lock in locks)


_LOOK = """
local found = {}
for _, set in ipairs(KEYS) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
    local task = redis.call('HMGET', ARGV[1] .. id, 'type', 'payload')
    if task[1] then found[#found + 1] = task[1] .. ' ' .. task[2] end
  end
end
return found
"""


@scenario(
    "R26",
    short={"processes": 4, "keys": 2, "seconds": 3, "kills": 1},
    full={"processes": 16, "keys": 1, "seconds": 60, "kills": 15},
)
def races(stage: Stage, findings: Findings, processes: int, keys: int, seconds: int, kills: int) -> None:
    """Processes enqueue unique tasks of one key, or a few, as fast as they can, while workers are killed.

    At most one live task of a kind and key at any time; the lock ends with the task in every way in which a task can
    end, and always has a time to live.
    """
    running = stage.fleet.start(2, modules=_MODULES, concurrency=SLOTS)
    over = stage.folder / "over"
    racers = [_racer(stage, keys, str(over)) for _ in range(processes)]
    watch = Watch(stage)
    try:
        _kill(stage, running, seconds, kills)
    finally:
        over.touch()
        said = [json.loads(racer.communicate(timeout=60)[0].splitlines()[-1]) for racer in racers]
        watch.end()
    stage.acknowledged.update(one for found in said for one in found["ids"])
    stage.drain()

    findings.at_least("enqueues", sum(found["calls"] for found in said), 50 * processes)
    findings.at_least("looks", watch.looks, 20)
    findings.at_most("live tasks alike, at most", watch.most, 1)
    findings.equals("locks without an end", watch.without_end, 0)
    failures = len(stage.ledger.entries("start")) - len(stage.ledger.entries("end"))
    judge(stage, findings, more_starts=failures + kills * (SLOTS + PREFETCH), again=failures)
    stage.stop_workers()
    for way, end in _WAYS.items():
        findings.equals(f"lock held before, and free after: {way}", _frees(stage, end), (True, True))
    findings.equals("locks without an end, then", _endless(stage), 0)
    findings.equals("problems of the books, then", problems(stage.raw, keys_of(stage.client).queue(_ENDS)), [])


def _racer(stage: Stage, keys: int, over: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "tests.reliability.racer", stage.server.url, PREFIX, str(keys), over]
    racer = subprocess.Popen(words, cwd=ROOT, env=stage.fleet.environment, stdout=subprocess.PIPE, text=True)
    assert racer.stdout is not None
    assert racer.stdout.readline() == "ready\n"
    return racer


def _kill(stage: Stage, running: list[WorkerProcess], seconds: int, kills: int) -> None:
    """Kills a worker now and then, for so many seconds."""
    for kill in range(kills):
        time.sleep(seconds / (kills + 1))  # the load between two kills
        running.pop(0).kill()
        running.append(stage.fleet.start_one(modules=_MODULES, concurrency=SLOTS))
        stage.say(f"kill {kill + 1} of {kills}, {stage.ended():,} done")
    time.sleep(seconds / (kills + 1))  # and after the last one


def _frees(stage: Stage, end: Callable[[Stage], object]) -> tuple[bool, bool]:
    """Whether a second task is the first one before the end, and another one after it. Leaves nothing in the queue."""

    def send() -> str:
        if end is _perish:
            return perishes.enqueue().id
        path = str(stage.folder / "never") if end is _be_killed else ""
        return OnlyOne(way="death" if end is _die else "", path=path).enqueue().id

    first = send()
    held = send() == first
    end(stage)
    freed = send() != first
    stage.client.queue(_ENDS).purge("waiting")
    return held, freed


def _succeed(stage: Stage) -> None:
    worker = stage.fleet.start_one(modules=_MODULES, queues=[_ENDS], concurrency=1, burst=True)
    worker.summary()


def _die(stage: Stage) -> None:
    _succeed(stage)


def _be_killed(stage: Stage) -> None:
    begun, dead = stage.ledger.count("only"), stage.client.queue(_ENDS).counts()["dead"]
    worker = stage.fleet.start_one(modules=_MODULES, queues=[_ENDS], concurrency=1)
    wait_for(lambda: stage.ledger.count("only") > begun)
    worker.kill()
    wait_for(lambda: stage.client.queue(_ENDS).counts()["dead"] > dead)


def _lose_leases(stage: Stage) -> None:
    queue = stage.client.queue(_ENDS)
    dead = queue.counts()["dead"]
    queue.reserve(keepalive=0.05)
    wait_for(lambda: queue.counts()["dead"] > dead)


def _perish(stage: Stage) -> None:
    time.sleep(0.2)  # its time to begin is over then
    assert stage.client.queue(_ENDS).reserve() == []


def _fail(stage: Stage) -> None:
    queue = stage.client.queue(_ENDS)
    for _ in range(2):
        queue.reserve(wait=5)[0].rollback(0, error="no")


def _cancel(stage: Stage) -> None:
    (waiting,) = stage.client.queue(_ENDS).ids("waiting")
    assert stage.client.task(waiting, queue=_ENDS).cancel()


def _destroy(stage: Stage) -> None:
    (waiting,) = stage.client.queue(_ENDS).ids("waiting")
    stage.raw.delete(keys_of(stage.client).queue(_ENDS).task(waiting))
    assert stage.client.queue(_ENDS).reserve() == []  # counts what is damaged, and leaves it out


def _delete(stage: Stage) -> None:
    queue = stage.client.queue(_ENDS)
    queue.delete(queue.reserve(wait=5)[0].id)


_WAYS: dict[str, Callable[[Stage], object]] = {
    "success": _succeed,
    "death by its job": _die,
    "death by its attempts": _fail,
    "the kill of its worker": _be_killed,
    "the end of its lease": _lose_leases,
    "its time to begin": _perish,
    "cancel": _cancel,
    "commit": lambda stage: stage.client.queue(_ENDS).reserve(wait=5)[0].commit(),
    "delete": _delete,
    "pop": lambda stage: stage.client.queue(_ENDS).pop(),
    "purge": lambda stage: stage.client.queue(_ENDS).purge("waiting"),
    "damage": _destroy,
}
"""Every way in which a task can end. In these the job allows two attempts, and one lease without a report."""


def _endless(stage: Stage) -> int:
    locks = list(stage.raw.scan_iter(match=keys_of(stage.client).queue(_ENDS).base + b"unique:*", count=1000))
    return sum(stage.raw.ttl(lock) == -1 for lock in locks) if locks else -1


ROWS = (races,)
