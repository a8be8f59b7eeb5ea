"""Very many tasks: due at once, and in very many queues. R23, R24."""

import random
import time
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from jobrunner.client.client import keys_of
from tests.reliability.loading import load_scheduled, load_waiting, run_beside, spread_upkeep
from tests.reliability.rows.workers import SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.reliability.stalls import Stalls, ran_s, rests, right_of_way, stalls
from tests.support.queue_audit import problems, strays
from tests.support.waiting import wait_for

_LOADERS = 2
_REAL_WORKERS = 2
_SPAN_MS = 3_600_000
_DAY_MS = 86_400_000
_PAYLOAD = 100
_AT_ONCE = 10_000


@scenario(
    "R23", short={"tasks": 100_000, "together": 20_000, "longest_ms": 1_000},
    full={"tasks": 5_000_000, "together": 1_000_000, "longest_ms": 20},
)  # fmt: skip
def due(
    stage: Stage, findings: Findings, tasks: int, together: int, longest_ms: float, workers: int = 10
) -> None:  # fmt: skip
    """Scheduled tasks, a fifth of them for one instant, are all due at once; ten workers promote them.

    None is lost, none is handed out twice, their order is kept. No command stalls the server for longer than 20 ms
    (1 000 in the short run, which shares the machine with other tests) plus the stall of a bare loop at the same time.
    """
    began = time.monotonic()
    files = _load_scheduled(stage, tasks, together)
    findings.note("s to load, by enqueue_many in two processes", round(time.monotonic() - began, 1))
    findings.note("bytes a scheduled task", round(stage.raw.info("memory")["used_memory"] / tasks))
    with stalls(stage.server, stage.raw) as idle:
        time.sleep(2)  # the stalls of an idle server, for comparison
    with stalls(stage.server, stage.raw) as found, right_of_way(stage.server.pid), rests(stage.server):
        took_s, promoted = _promote(stage, workers)
    findings.note("s to promote", round(took_s, 1))
    findings.note("promoted by calls of upkeep alone", promoted)
    _judge_line(stage, findings, files, tasks)
    findings.note("ms of the server's longest command", found.command_ms)
    findings.at_most("ms of it beyond what the machine held a bare loop up", found.beyond_ms, longest_ms)
    findings.note("ms that the server ran while a client waited, with all workers", found.server_ms)
    _note_stalls(findings, found, idle)


def _load_scheduled(stage: Stage, tasks: int, together: int) -> list[Path]:
    """By a clock that is more than an hour back, so that everything is overdue for later callers."""
    now_ms = int(time.time() * 1000) - _DAY_MS
    spread, shared = (tasks - together) // _LOADERS, together // _LOADERS
    calls = []
    for loader in range(_LOADERS):
        chance = random.Random(loader)
        dues = [now_ms + 1000 + chance.randrange(_SPAN_MS) for _ in range(spread)]
        dues[spread // 2 : spread // 2] = [now_ms + _SPAN_MS // 2] * shared
        file = stage.folder / f"loaded-{loader}"
        calls.append((stage.server.url, PREFIX, loader, file, array("q", dues), now_ms))
    _run(stage, load_scheduled, calls, tasks)
    return [call[3] for call in calls]


def _run(stage: Stage, target: object, calls: list[tuple[object, ...]], total: int) -> None:
    for _ in run_beside(target, calls):  # type: ignore[arg-type]
        time.sleep(0.05)  # between two readings of the progress
        stage.say(f"{stage.raw.dbsize():,} of {total:,} loaded")


def _promote(stage: Stage, workers: int) -> tuple[float, int]:
    """Seconds until no task is due any more, and the number of tasks that the callers of maintenance moved."""
    over, keys = stage.folder / "promoted", keys_of(stage.client).queue(QUEUE)
    cli = [stage.folder / f"moved-{n}" for n in range(workers - _REAL_WORKERS)]
    stage.fleet.start(_REAL_WORKERS, concurrency=SLOTS)
    began = time.monotonic()
    for _ in run_beside(spread_upkeep, [(stage.server.url, PREFIX, QUEUE, over, said) for said in cli]):
        time.sleep(0.02)  # between two readings of the queue
        if not stage.raw.zcard(keys.scheduled) and not over.exists():
            took_s = time.monotonic() - began
            over.touch()
    stage.client.queue(QUEUE).pause()
    wait_for(lambda: not stage.raw.zcard(keys.pending), timeout_s=60)
    stage.stop_workers()
    return took_s, sum(int(said.read_text()) for said in cli)


def _judge_line(stage: Stage, findings: Findings, files: list[Path], tasks: int) -> None:
    """The tasks that are left must be those loaded, in the order of due times, and of calls at one due time."""
    places: dict[str, tuple[int, int, int]] = {}
    for line, words in enumerate(chain.from_iterable(file.open() for file in files)):
        due_ms, loader, task = words.split()
        places[task] = (int(due_ms), int(loader), line)
    keys = keys_of(stage.client).queue(QUEUE)
    starts = stage.ledger.times("start")
    ended = set(stage.ledger.times("end"))
    last: dict[int, tuple[int, int]] = {}
    waiting, overtakers, latest = 0, 0, 0
    for task in _line(stage, keys.waiting):
        due_ms, loader, line = places.pop(task, (0, 0, 0))
        overtakers += due_ms < latest or (due_ms, line) < last.get(loader, (0, 0)) or task in ended
        latest, last[loader] = max(latest, due_ms), (due_ms, line)
        waiting += 1
    first_left = min((_due(stage, keys.waiting),), default=0)
    findings.equals("tasks loaded", len(places) + waiting, tasks)
    findings.equals("tasks lost", len(places.keys() - ended), 0)
    findings.equals("handed out twice", sum(times - 1 for times in starts.values()), 0)
    findings.equals("out of order in line", overtakers, 0)
    findings.equals("run before their turn", sum(places[task][0] > first_left for task in ended if task in places), 0)
    findings.at_least("run meanwhile", len(ended), 1)
    findings.equals("still scheduled or in hand", stage.raw.zcard(keys.scheduled) + stage.raw.zcard(keys.pending), 0)
    totals = stage.client.queue(QUEUE).totals()
    findings.equals("enqueued and finished by the books", totals["enqueued"] - totals["succeeded"], waiting)
    if tasks <= 1_000_000:
        findings.equals("problems of the books", problems(stage.raw, keys), [])
        findings.equals("keys that should not be", strays(stage.raw, keys), [])


def _line(stage: Stage, line: bytes) -> Iterator[str]:
    for first in range(0, stage.raw.zcard(line), _AT_ONCE):
        for raw_id in stage.raw.zrange(line, first, first + _AT_ONCE - 1):
            yield raw_id.decode()


def _due(stage: Stage, line: bytes) -> float:
    first = stage.raw.zrange(line, 0, 0, withscores=True)
    return float(first[0][1]) if first else float("inf")


def _note_stalls(findings: Findings, found: Stalls, idle: Stalls) -> None:
    """By the clock, which includes delays of the machine."""
    findings.note("ms of the longest answer (idle before)", f"{found.answer_ms} ({idle.answer_ms})")
    findings.note("ms the machine held a bare loop up (idle before)", f"{found.machine_ms} ({idle.machine_ms})")
    findings.note("answers", found.asked)


@scenario(
    "R24", short={"tasks": 100_000, "queues": 1_000, "reserves": 5_000, "most_ms": 30},
    full={"tasks": 10_000_000, "queues": 1_000, "reserves": 50_000, "most_ms": 2},
)  # fmt: skip
def deep(stage: Stage, findings: Findings, tasks: int, queues: int, reserves: int, most_ms: float) -> None:
    """Tasks of 100 B wait in 1 000 queues.

    99 of 100 reserves cost server and caller ≤ 2 ms of CPU time (30 in the short run); a task takes ≤ 600 B in
    addition to its payload; all are there.
    """
    names = [f"q{n}" for n in range(queues)]
    before, began = stage.raw.info("memory")["used_memory"], time.monotonic()
    calls = [
        (stage.server.url, PREFIX, n, stage.folder / f"loaded-{n}", names[n::_LOADERS], tasks // queues, _PAYLOAD)
        for n in range(_LOADERS)
    ]
    _run(stage, load_waiting, calls, tasks)  # type: ignore[arg-type]
    findings.note("s to load, by push_many in two processes", round(time.monotonic() - began, 1))
    used = stage.raw.info("memory")["used_memory"] - before
    counts = stage.client.stats().values()
    findings.equals("tasks waiting", sum(count.waiting for count in counts), tasks)
    findings.at_most("bytes a task in addition to its payload", round(used / tasks - _PAYLOAD), 600)
    with right_of_way(stage.server.pid):
        took = list(_reserve(stage, names, reserves))
    worked, clock = (sorted(times) for times in zip(*took, strict=True))
    findings.equals("reserved", len(took), reserves)
    p99 = round(worked[len(took) * 99 // 100], 3)
    findings.at_most("ms that server and caller work for a reserve, p99", p99, most_ms)
    findings.note("the same, p50 and longest", f"{worked[len(took) // 2]:.3f}, {worked[-1]:.3f}")
    quantiles = (clock[len(took) // 2], clock[len(took) * 99 // 100], clock[-1])
    findings.note("ms of reserve by the clock, p50, p99, longest", ", ".join(f"{ms:.3f}" for ms in quantiles))
    findings.note("GB of the server", round((used + before) / 1e9, 2))


def _reserve(stage: Stage, names: list[str], count: int) -> Iterator[tuple[float, float]]:
    """Of each of so many calls that got a task, from queues chosen by chance: for how long the server and this thread
    had a processor, and how long it took by the clock, which other things the machine does may add to; ms."""
    chance, pid = random.Random(24), stage.server.pid
    for name in chance.choices(names, k=count):
        queue = stage.client.queue(name)
        began, ran, own = time.perf_counter(), ran_s(pid), time.thread_time()
        taken = queue.reserve()
        spent = time.thread_time() - own + ran_s(pid) - ran
        took = time.perf_counter() - began
        if taken:
            yield spent * 1000, took * 1000
            taken[0].commit()


ROWS = (due, deep)
