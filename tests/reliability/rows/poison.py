"""Jobs that end their process, among good ones: R18."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.acceptance.fleet import JOBS, ROOT, children_of, wait_ended
from tests.acceptance.jobs_for_tests import Work
from tests.reliability.checker import judge
from tests.reliability.poison import Poison
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage

_PROCESSES = 2
_ATTEMPTS = 3
_MEMORY_KIB = 3_000_000
_IN_CHILDREN = ("segfault", "exit", "recursion", "memory")
_IN_WORKERS = ("segfault", "exit", "recursion", "out of memory")


@scenario(
    "R18",
    short={"poison": 4, "good": 300, "poison_of_threads": 4},
    full={"poison": 20, "good": 10_000, "poison_of_threads": 20},
)
def poisoned(stage: Stage, findings: Findings, poison: int, good: int, poison_of_threads: int) -> None:
    """Tasks that end their process (segfault, os._exit, endless recursion, memory), in children and in threads.

    Each is dead after its attempts and all good tasks are done. In child processes a crash costs no other task an
    attempt; in threads (under the supervisor) it costs the running tasks of the process an attempt.
    """
    stage.give_up_s = 150  # the supervisor's pauses grow
    stage.client.queue(QUEUE).configure(max_attempts=0)  # of the good tasks; poison has its own
    ids = _enqueue(stage, good, poison, _IN_CHILDREN)
    with supervised(stage, "--concurrency=2", "--executor", "processes"):
        stage.drain()
    begun = Counter(entry.task for entry in stage.ledger.entries("poisoned"))
    findings.equals("in children: attempts of each poison", sorted({begun[one] for one in ids}), [_ATTEMPTS])
    findings.equals("in children: good tasks begun twice", _begun_again(stage), 0)

    more = _enqueue(stage, good, poison_of_threads, _IN_WORKERS)
    with supervised(stage, f"--concurrency={SLOTS}", "--executor", "threads") as supervisor:
        stage.drain()
        findings.equals("in threads: the supervisor goes on", supervisor.poll(), None)
    poisoned = [entry for entry in stage.ledger.entries("poisoned") if entry.task in more]
    begun = Counter(entry.task for entry in poisoned)
    workers = _crashes(stage)
    highest = max(entry.attempt for entry in stage.ledger.entries("end"))
    findings.note("in threads: poison that began, and did not die next to another", len(begun))
    findings.at_most("in threads: attempts of a poison, at most", max(begun.values(), default=0), _ATTEMPTS)
    findings.at_least("in threads: workers that crashed", workers, 1)
    findings.at_most("in threads: highest attempt of a good task", highest, workers + 1)
    findings.note("in threads: attempts of poison by kind", dict(Counter(entry.note for entry in poisoned)))
    findings.note("in threads: good tasks begun again", _begun_again(stage))

    judge(stage, findings, more_starts=workers * (SLOTS + PREFETCH), dead=len(ids) + len(more))


def _enqueue(stage: Stage, good: int, poison: int, ways: tuple[str, ...]) -> set[str]:
    """Good tasks with poison among them; returns the ids of the poison."""
    rng = random.Random(good)
    places = sorted(rng.sample(range(good), poison))
    ids = set()
    for number, (start, end) in enumerate(zip([0, *places], [*places, good], strict=True)):
        sent = [task.id for task in Work.enqueue_many(Work(n=n, seconds=0.002) for n in range(start, end))]
        stage.acknowledged.update(sent)
        if number < poison:
            ids.add(Poison(way=ways[number % len(ways)]).enqueue().id)
    stage.acknowledged.update(ids)
    return ids


@contextmanager
def supervised(stage: Stage, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`jobrunner work --processes 2` as a shell starts it, with a limit on the memory of each process.

    Where it does not stop within a minute, the error has the end of the log, with where each of its processes stands.
    """
    words = [
        sys.executable, "-m", "jobrunner", "work", JOBS, "tests.reliability.poison", "-q", QUEUE,
        f"--processes={_PROCESSES}", f"--url={stage.server.url}", f"--prefix={PREFIX}",
        *options,
    ]  # fmt: skip
    log = (stage.folder / f"supervisor-{options[-1]}.log").open("ab")
    process = subprocess.Popen(
        ["sh", "-c", f'ulimit -c 0; ulimit -v {_MEMORY_KIB}; exec "$@"', "sh", *words],
        cwd=ROOT, env=stage.fleet.environment | {"PYTHONFAULTHANDLER": "1"}, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not stop; its log ends with\n{_stacks(process, Path(log.name))}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children end with their lifelines
        process.wait()
        log.close()


def _stacks(supervisor: subprocess.Popen[bytes], log: Path) -> str:
    """Ends the supervisor and its workers with SIGABRT, at which each writes its stacks; returns the end of the log."""
    hanging = [*children_of(supervisor.pid), supervisor.pid]
    for pid in hanging:
        os.kill(pid, signal.SIGABRT)
    wait_ended(hanging)
    return log.read_text(errors="replace")[-20_000:]


def _crashes(stage: Stage) -> int:
    """The number of crashes of thread workers that the supervisor logged."""
    return (stage.folder / "supervisor-threads.log").read_text().count("worker crashed")


def _begun_again(stage: Stage) -> int:
    """How many good tasks began more than once."""
    return sum(times > 1 for times in stage.ledger.times("start").values())


ROWS = (poisoned,)
