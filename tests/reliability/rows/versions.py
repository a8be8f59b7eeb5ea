"""Two versions of the package on one prefix, and one that is too new: R30."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter

from jobrunner import Client
from jobrunner.broker.calls.server import FORMAT
from jobrunner.client.client import keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.jobs.flow import chain
from tests.acceptance.fleet import JOBS, ROOT
from tests.acceptance.jobs_for_tests import Always, Twice, Work
from tests.reliability.checker import judge
from tests.reliability.jobs import Rests, Step
from tests.reliability.rows.workers import SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.reliability.versions import OtherVersion, first_of_format
from tests.support.waiting import wait_for

_FIELD, _VALUE = "shade", b"\xffblue"
"""Fields that only a newer version knows."""
_PRODUCER = """
import json, sys
from jobrunner import configure
from tests.acceptance.jobs_for_tests import Work
configure(sys.argv[1], sys.argv[2])
import jobrunner
tasks = Work.enqueue_many(Work(n=n, seconds=0.005) for n in range(int(sys.argv[3])))
print(json.dumps({"from": jobrunner.__file__, "ids": [task.id for task in tasks]}))
"""


@scenario("R30", short={"tasks": 600, "rolls": 1}, full={"tasks": 20_000, "rolls": 5})
def mixed(stage: Stage, findings: Findings, tasks: int, rolls: int) -> None:
    """Producers and workers of an older version with the same format next to this one, and of a newer format.

    Fields of a newer version survive retry, release, expiry, move, death and requeueing; rolling deploys old, new, old
    lose nothing and double nothing; a newer format is refused, and nothing is changed.
    """
    _fields(stage, findings)
    older = first_of_format(stage.folder / "older")
    findings.note("older version", older.commit[:12] if older else "skipped: the repository's history is not here")
    if older is not None:
        _roll(stage, findings, older, tasks, rolls)
    _refused(stage, findings)


def _fields(stage: Stage, findings: Findings) -> None:
    """Tasks with a field of a newer version live through everything."""
    queue = stage.client.queue(QUEUE)
    queue.pause()
    kept = [Work().enqueue(), Twice().enqueue(), Rests(path=str(stage.folder / "rested")).enqueue()]
    dead = [Always().enqueue() for _ in range(3)]
    flow = chain(Step(), Step()).enqueue()
    keys = {task.id: keys_of(queue).task(task.id) for task in (*kept, *dead)}
    for key in (*keys.values(), *stage.raw.scan_iter(match=keys_of(queue).base + b"join:*")):
        stage.raw.hset(key, _FIELD, _VALUE)
    stage.raw.hset(keys_of(queue).settings, _FIELD, _VALUE)
    stage.raw.hset(keys_of(queue).counters, _FIELD, 7)
    queue.resume()
    worker = stage.fleet.start_one(modules=[JOBS, "tests.reliability.jobs"], concurrency=SLOTS)
    for _ in range(2):
        wait_for(lambda: queue.counts()["dead"] == len(dead), timeout_s=30)
        findings.equals("requeued", queue.requeue_dead(), len(dead))
    wait_for(lambda: queue.counts()["dead"] == len(dead), timeout_s=30)
    stage.acknowledged.update([kept[0].id, kept[1].id, *(task.id for task in dead)])
    findings.equals("the flow goes on", flow.result(timeout=30), 2)
    stage.drain()
    worker.stop()
    worker.summary()
    found = {task_id: stage.raw.hget(key, _FIELD) for task_id, key in keys.items()}
    findings.equals("fields that survived", list(found.values()), [_VALUE] * len(keys))
    findings.equals("settings and counters", stage.raw.hget(keys_of(queue).settings, _FIELD), _VALUE)
    findings.equals("in a bare queue", _moved(stage), _VALUE)
    findings.equals("dead are purged whole", queue.purge("dead"), len(dead))
    stage.acknowledged.difference_update(task.id for task in dead)


def _moved(stage: Stage) -> object:
    """A field after release, the end of a lease, and a move."""
    first, second = stage.client.queue("line/first"), stage.client.queue("line/second")
    key = keys_of(first).task(first.push({"a": 1}))
    stage.raw.hset(key, _FIELD, _VALUE)
    first.reserve()[0].release()
    first.reserve(keepalive=0.05)
    first.reserve(wait=5)[0].move("second", payload={"a": 2})
    second.reserve()
    return stage.raw.hget(key, _FIELD)


def _roll(stage: Stage, findings: Findings, older: OtherVersion, tasks: int, rolls: int) -> None:
    """Old workers become new ones, and old ones again, while both versions enqueue."""
    starts = Counter((entry.task, entry.attempt) for entry in stage.ledger.entries("start"))
    began, again = starts.total() - len(stage.ledger.times("start")), starts.total() - len(starts)
    running = [_old_worker(stage, older) for _ in range(2)]
    exits = []
    for roll in range(rolls):
        producer = older.command(
            ["-c", _PRODUCER, stage.server.url, PREFIX, str(tasks // rolls // 2)], stage.fleet.environment
        )
        stage.enqueue(tasks // rolls // 2, seconds=0.005)
        for start in (_new_worker, _old_worker):
            for _ in range(2):
                running.append(start(stage, older))
                ended = stage.ended()
                wait_for(lambda ended=ended: stage.ended() > ended or stage.ended() >= len(stage.acknowledged))
                exits.append(_stopped(running.pop(0)))
        said = json.loads(producer.communicate(timeout=60)[0].splitlines()[-1])
        stage.acknowledged.update(said["ids"])
        findings.equals("the other version is another", said["from"].startswith(str(older.folder)), True)
        stage.say(f"roll {roll + 1} of {rolls}")
    stage.drain()
    exits += [_stopped(worker) for worker in running]
    findings.equals("exit codes of workers", set(exits), {0})
    judge(stage, findings, more_starts=began, again=again)  # what failed and was requeued before


def _words(stage: Stage) -> list[str]:
    return [
        "-m", "jobrunner", "work", JOBS, "-q", QUEUE, f"--concurrency={SLOTS}", f"--url={stage.server.url}",
        f"--prefix={PREFIX}",
    ]  # fmt: skip


def _old_worker(stage: Stage, older: OtherVersion) -> "subprocess.Popen[str]":
    return _working(stage, older.command(_words(stage), stage.fleet.environment))


def _new_worker(stage: Stage, _: OtherVersion) -> "subprocess.Popen[str]":
    return _working(
        stage,
        subprocess.Popen(
            [sys.executable, *_words(stage)], cwd=ROOT, env=stage.fleet.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ),
    )  # fmt: skip


def _working(stage: Stage, worker: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    wait_for(lambda: any(one.pid == worker.pid for one in stage.client.workers()), timeout_s=60)
    return worker


def _stopped(worker: "subprocess.Popen[str]") -> int:
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    return worker.returncode


def _refused(stage: Stage, findings: Findings) -> None:
    """A prefix of a newer format: nothing of it changes, whoever comes."""
    stage.raw.set("newer:format", FORMAT + 1)
    stage.raw.hset("newer:{t}:task:a", mapping={"id": "a", "shade": "blue"})
    stage.raw.zadd("newer:{t}:t:waiting", {"a": time.time()})
    before = {key: stage.raw.dump(key) for key in stage.raw.scan_iter(match=b"newer:*")}
    with Client(stage.server.url, "newer") as client:
        told = []
        for ask in (
            lambda: client.queue(QUEUE).push(1), lambda: client.queue(QUEUE).reserve(),
            lambda: client.queue(QUEUE).counts(), lambda: client.queue(QUEUE).purge("waiting"),
        ):  # fmt: skip
            try:
                told.append(ask())
            except JobrunnerError as error:
                told.append(type(error).__name__)
    findings.equals("operations on a newer format", set(map(str, told)), {"NewerFormat"})
    worker = stage.fleet.launch(prefix="newer")
    findings.equals("a worker ends", worker.wait(60) != 0, True)
    findings.equals("it says why", "NewerFormat" in worker.log.read_text(), True)
    after = {key: stage.raw.dump(key) for key in stage.raw.scan_iter(match=b"newer:*")}
    findings.equals("keys of the newer format that changed", sum(before[k] != after.get(k) for k in before), 0)
    findings.equals("keys there that are new", sorted(after.keys() - before.keys()), [])


ROWS = (mixed,)
