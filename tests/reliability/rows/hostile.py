"""Hostile input through every entry point: R33."""

import logging
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from jobrunner.client.client import keys_of
from jobrunner.client.queue import Queue
from jobrunner.errors import LeaseError, QueueFull, TaskError, UsageError
from tests.acceptance.fleet import ROOT
from tests.reliability.checker import judge
from tests.reliability.entry_points import Doors
from tests.reliability.hostile_input import TEXTS, Nasty
from tests.reliability.rows.workers import SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.support.queue_audit import problems

_TRIES = 5
_REFUSALS = (UsageError, TaskError, LeaseError, QueueFull)
_SHOWN = 20
_COMMANDS = (["queues", "pause"], ["tasks", "show"], ["dead", "list"], ["enqueue"], [])
_NEIGHBOURS = 50


@dataclass(slots=True)
class Heard:
    """The results of the inputs to one entry point. Times in ms."""

    answers: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)


@scenario(
    "R33", short={"inputs": 1_200, "processes": 2, "seed": 1, "longest_ms": 1_000},
    full={"inputs": 10_000, "processes": 40, "seed": 33, "longest_ms": 50},
)  # fmt: skip
def hostile(stage: Stage, findings: Findings, inputs: int, processes: int, seed: int, longest_ms: int) -> None:
    """Cron fuzz, names with {}, :, NUL, CRLF or 10 kB, pages of a billion, odd numbers: API, commands, dashboard.

    Each input is refused with a typed error, or answered, in ≤ 50 ms (the fastest of five tries). No key outside the
    prefix, no traceback, no HTTP 500; counters stay right and other queues are served.
    """
    rng = Nasty(seed)
    doors = Doors(stage.client, rng)
    _fill(stage)
    heard: defaultdict[str, Heard] = defaultdict(Heard)
    odd: Counter[str] = Counter()
    slow: list[str] = []
    with _log_lines() as logged:
        for door in ("pages", "actions", "command line"):  # the first answers import what the others use
            for _ in range(20):
                _answer(doors.each[door]()[1])
        for number in range(inputs):
            door = list(doors.each)[number % len(doors.each)]
            what, call = doors.each[door]()
            word, took_ms = _answer(call)
            for _ in range(_TRIES - 1):  # the machine may have stood still
                took_ms = took_ms if took_ms <= longest_ms else min(took_ms, _answer(call)[1])
            heard[door].answers[word] += 1
            heard[door].times.append(took_ms)
            if word.startswith("unforeseen"):
                odd[f"{word} of {what}"] += 1
            if took_ms > longest_ms:
                slow.append(f"{took_ms:.0f} ms: {what}")
            stage.say(f"{number + 1:,} of {inputs:,} inputs")
    odd.update(f"logged: {line}" for line in logged)
    odd.update(_in_processes(stage, rng, processes))

    findings.equals("inputs", sum(len(one.times) for one in heard.values()), inputs)
    findings.equals("unforeseen answers", sorted(odd)[:_SHOWN], [])
    findings.equals(f"inputs above {longest_ms} ms", slow[:_SHOWN], [])
    _judge_server(stage, findings)
    for door, one in heard.items():
        findings.at_least(f"{door}: answers of different kinds", len(one.answers), 1 if door in _COARSE else 2)
        findings.note(door, _kind_of(one))


_COARSE = ("command line", "pages", "actions")
"""Entry points whose refusals are answers: exit codes and HTTP statuses."""


def _answer(call: Callable[[], object]) -> tuple[str, float]:
    """The result as a word, and the time that it took, in ms."""
    began = time.perf_counter()
    try:
        call()
        word = "answered"
    except _REFUSALS as error:
        word = type(error).__name__
    except Exception as error:
        word = f"unforeseen {type(error).__name__}: {str(error)[:200]}"
    return word, (time.perf_counter() - began) * 1000


def _fill(stage: Stage) -> None:
    """Fills queues with tasks in every state, so that there is something to read and to damage."""
    mail = stage.client.queue("mail")
    mail.configure(history=3600, max_attempts=1)
    mail.push_many(range(2_000))
    for lease in mail.reserve(300):
        lease.commit()
    mail.rollback_many(mail.reserve(300), error="no")
    mail.push("later", in_=3600)
    stage.client.queue("shop/raw").push_many(range(100))
    stage.client.queue("nasty").push(1)


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    """The errors that are logged in the block."""
    lines: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: lines.append(record.getMessage()[:200])  # type: ignore[method-assign]
    logging.root.addHandler(handler)
    try:
        yield lines
    finally:
        logging.root.removeHandler(handler)


def _in_processes(stage: Stage, rng: Nasty, processes: int) -> Iterator[str]:
    """Runs commands as a shell does; returns output that no user should see."""
    words = [text for text in TEXTS if "\0" not in text and "\ud800" not in text]
    for number in range(processes):
        given = [*rng.pick(_COMMANDS), rng.pick(words)]
        command = [sys.executable, "-m", "jobrunner", *given, "--url", stage.server.url, "--prefix", "rel"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
        if ended.returncode not in (0, 1, 2) or b"Traceback" in ended.stderr or b"not foreseen" in ended.stderr:
            yield f"exit code {ended.returncode} of {given!r}: {ended.stderr[-200:]!r}"
        stage.say(f"{number + 1} of {processes} processes")


def _judge_server(stage: Stage, findings: Findings) -> None:
    """All queues that there are now, and neighbours that are enqueued now."""
    client = stage.client
    names = client.queues()
    wrong = {name: found for name in names if (found := problems(stage.raw, keys_of(client).queue(name)))}
    findings.equals("queues with wrong books", wrong, {})
    findings.note("queues there are then", len(names))
    findings.note("good tasks that commands enqueued", sum(_empty(client.queue(QUEUE)).values()))
    stage.fleet.start_one(concurrency=SLOTS)
    stage.enqueue(_NEIGHBOURS)
    stage.drain()
    judge(stage, findings, more_starts=0)


def _empty(queue: Queue) -> dict[str, int]:
    """Deletes the tasks of valid `jobrunner enqueue` commands, which the ledger does not know."""
    return {state: queue.purge(state) for state in ("waiting", "scheduled", "dead")}


def _kind_of(one: Heard) -> str:
    times = sorted(one.times)
    p99 = times[min(int(len(times) * 0.99), len(times) - 1)]
    refused = sum(count for word, count in one.answers.items() if word != "answered")
    took = f"median {median(times):.2f} ms, p99 {p99:.1f}, max {times[-1]:.1f}"
    return f"{len(times):,}, {refused:,} refused by an error; {took}"


ROWS = (hostile,)
