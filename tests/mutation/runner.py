"""A pytest plugin that runs mutants against the collected tests, in one process with one server.

The first run of a folder records which statements of the scripts each test runs: every test runs once with scripts that
log the numbers of their statements. Then each mutant is put in place and the tests that run its statement follow, those
that killed most mutants of the file first, until one of them fails.
"""

import json
import os
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import IO, Any, NamedTuple

import pytest
import redis
from _pytest.runner import runtestprotocol

from jobrunner.broker.scripts import Script
from tests.mutation.installed import install, lua_files, own_text, statement_numbers, traced
from tests.mutation.lua_syntax import parse
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.results import PLAN, Result, Results
from tests.mutation.traces import Traces
from tests.simulation.checks import NAMES
from tests.support.registries import as_before

_STALE_THREADS = 12
_SLOW_S = 4.0
_LIMIT_S, _LIMIT_TIMES, _LONGEST_S = 4.0, 12, 60.0
_PYTEST, _UNRAISABLE = "/_pytest/", "/_pytest/unraisableexception.py"
_NOT_AT_ALL = ("test_a_seeded_bug_is_found", "test_the_command_", "tests/simulation/test_server")
"""Tests that start processes, which read the scripts from disk, or compare two servers that both have the mutant."""
_READ_THE_TEXT = ("batch_fill.lua", "/test_split_batches.py")
"""A script, and tests that compare its text."""


class TookTooLong(BaseException):
    """A test ran into the time limit."""


class Failure(NamedTuple):
    """How a test failed: `by` is test or time (the limit ended it), `reason` the first line."""

    by: str
    reason: str


class Runner:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, stderr: IO[str]) -> None:
        self._stderr = stderr
        self._plan = json.loads(Path(os.environ[PLAN]).read_text("utf-8"))
        self._results = Results(Path(self._plan["folder"]))
        self._traces = Traces()
        self._usual_s: dict[str, float] = {}
        self._is_broken = False
        self._unfit: set[str] = set()
        """Tests that failed when they ran once more without a mutant."""
        self._kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for result in self._results.read().values():
            if result.test:
                self._kills[result.file][result.test] += 1

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the plan."""
        items = {item.nodeid: item for item in session.items if not any(one in item.nodeid for one in _NOT_AT_ALL)}
        coverage = self._coverage(items)
        self._usual_s = {test: took_s for test, (took_s, _) in coverage.items()}
        tests_of: defaultdict[int, list[str]] = defaultdict(list)
        for test, (_, numbers) in coverage.items():
            for number in numbers:
                tests_of[number].append(test)
        mutants = {one.key: one for file in lua_files() for one in mutants_of(file, own_text(file))}
        wanted = [mutants[key] for key in self._plan["mutants"]]
        threads = threading.active_count()
        for mutant in wanted:
            if self._is_broken or threading.active_count() > threads + _STALE_THREADS:
                break  # by tests that were ended, or threads that failed tests left: the command starts a new process
            self._results.begin(mutant)
            covering = [test for test in self._tests(mutant, tests_of) if test in items and not reads(test, mutant)]
            result = self._run(mutant, covering, items)
            if not self._is_broken:
                self._results.add(result)
        return True

    def _coverage(self, items: dict[str, pytest.Item]) -> dict[str, tuple[float, list[int]]]:
        """For each test that passes its seconds and the statements that it runs, or what is known of an earlier run."""
        known = self._results.read_coverage()
        _install({file: traced(file) for file in lua_files()}, is_traced=True)
        new = [test for test in items if test not in known]
        for n, test in enumerate(new, 1):
            self._traces.take()
            began = time.perf_counter()
            failure = self._failure(items[test], _LONGEST_S) and self._failure(items[test], _LONGEST_S)
            took = time.perf_counter() - began
            numbers = self._traces.take()
            known[test] = took, [] if failure else numbers
            if self._is_broken:
                break
            if failure:
                self._say_left_out(test, failure)
            else:
                self._results.add_coverage(test, took, numbers)
            if n % 50 == 0:
                self._say(f"{n} of {len(new)} tests traced\n")
        _install({})
        return known

    def _tests(self, mutant: Mutant, tests_of: dict[int, list[str]]) -> list[str]:
        """The tests that run a mutant's statement, or one of those that use what it declares."""
        numbers = statement_numbers()
        found = tests_of[numbers[mutant.file] + mutant.statement] if mutant.statement >= 0 else []
        statement = parse(mutant.text).statements[mutant.statement]
        if found or statement.kind != "local":
            return found
        names = re.findall(r"\w+", mutant.text[statement.start : statement.end].partition("=")[0])[1:]
        used = re.compile(rf"\b(?:{'|'.join(names)})\b")
        tests = dict[str, None]()
        for file in lua_files():
            text = own_text(file)
            for number, one in enumerate(parse(text).statements, numbers[file]):
                if used.search(text, one.start, one.end):
                    tests |= dict.fromkeys(tests_of[number])
        return list(tests)

    def _run(self, mutant: Mutant, covering: list[str], items: dict[str, pytest.Item]) -> Result:
        self._traces.restart_busy()
        changed = _install({mutant.file: mutant.mutated})
        try:
            if problem := self._refusal(changed):
                return Result.of_mutant(mutant, "invalid", reason=problem)
            kills, own = self._kills[mutant.file], f"test_{Path(mutant.file).stem}.py"
            order = sorted(covering, key=lambda test: (-kills[test], own not in test, self._usual_s[test]))
            return self._judge(mutant, [items[test] for test in order])
        finally:
            _install({})

    def _judge(self, mutant: Mutant, order: Sequence[pytest.Item]) -> Result:
        """Runs tests until one fails or the budget is spent, by the seconds that they usually take."""
        began, spent, tried = time.perf_counter(), 0.0, 0
        for item in order:
            if spent > self._plan["budget_s"] or self._is_broken:
                break
            if item.nodeid in self._unfit:
                continue
            before, usual_s = time.perf_counter(), self._usual_s[item.nodeid]
            tried, spent = tried + 1, spent + usual_s
            failure = self._fails(item, self._limit_s(item))
            self._usual_s[item.nodeid] = min(usual_s, time.perf_counter() - before)
            if failure and self._passes_without(item):
                self._kills[mutant.file][item.nodeid] += 1
                took_s = time.perf_counter() - began
                return Result.of_mutant(
                    mutant, "killed", test=item.nodeid, by=failure.by, reason=failure.reason, took_s=took_s
                )
            if failure:
                _install({mutant.file: mutant.mutated})
        took_s = time.perf_counter() - began
        return Result.of_mutant(mutant, "survived", tests=tried, of=len(order), took_s=took_s)

    def _limit_s(self, item: pytest.Item) -> float:
        return min(_LIMIT_S + _LIMIT_TIMES * self._usual_s[item.nodeid], _LONGEST_S)

    def _passes_without(self, item: pytest.Item) -> bool:
        """Whether a test that failed passes without the mutant. A test that leaves something behind fails from its
        second run on, and would seem to kill whatever runs then: it is left out."""
        self._traces.restart_busy()
        _install({})
        failure = self._failure(item, self._limit_s(item))
        if failure and not self._is_broken:
            self._unfit.add(item.nodeid)
            self._say_left_out(item.nodeid, failure)
        return not failure

    def _refusal(self, changed: Sequence[Script]) -> str:
        """What the server says to the text of the first changed script; empty when it compiles."""
        if not changed:
            return "no script contains it"
        if self._traces.servers:
            with self._traces.servers[0].connect() as connection:
                try:
                    connection.script_load(changed[0].source)
                except redis.ResponseError as error:
                    return str(error)
        return ""

    def _fails(self, item: pytest.Item, limit_s: float) -> Failure | None:
        """Runs a test; how it failed, or None. A slow failure counts when it comes again: the machine
        may have stood still, and no test waits so long for what a mutant does."""
        began = time.monotonic()
        failure = self._failure(item, limit_s)
        if failure and time.monotonic() - began > _SLOW_S and not self._is_broken:
            return self._failure(item, limit_s)
        return failure

    def _failure(self, item: pytest.Item, limit_s: float) -> Failure | None:
        # Pytest keeps what the next item needs as well: the fixtures of the session, such as the server, and no more.
        # Those of the module end with each test, and may remove its jobs, which are declared once: when it is imported.
        following: Any = SimpleNamespace(listchain=lambda: [item.session])
        with as_before(), self._limited(limit_s):
            reports = runtestprotocol(item, log=False, nextitem=following)
        failed = [report for report in reports if report.failed]
        if not failed:
            return None
        crash = getattr(failed[0].longrepr, "reprcrash", None)
        if crash is None:
            return Failure("test", str(failed[0].longrepr)[:200])
        is_late = TookTooLong.__name__ in crash.message
        if _PYTEST in crash.path and not (is_late or crash.path.endswith(_UNRAISABLE)):
            self._is_broken = True  # a fixture was not torn down, and every test that follows would fail
            return None
        return Failure("time" if is_late else "test", str(crash.message)[:200].split("\n")[0])

    @contextmanager
    def _limited(self, limit_s: float) -> Iterator[None]:
        """Ends a test at the limit. The simulated server may run a script without end in this process, where no
        signal reaches Python: SIGPROF ends the process."""

        def stop(_: int, __: FrameType | None) -> None:
            self._traces.restart()
            raise TookTooLong(f"took longer than {limit_s:.0f} s")

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGALRM, before)

    def _say_left_out(self, test: str, failure: Failure) -> None:
        self._say(f"fails without a mutant, so it is left out: {test}: {failure.reason}\n")

    def _say(self, text: str) -> None:
        self._stderr.write(text)
        self._stderr.flush()


def reads(test: str, mutant: Mutant) -> bool:
    """Whether a test compares the text of a mutant's file."""
    file, tests = _READ_THE_TEXT
    return mutant.file == file and tests in test


def _install(texts: dict[str, str], *, is_traced: bool = False) -> list[Script]:
    """The same for the checks of the simulation, which know scripts by their digests."""
    changed = install(texts, is_traced=is_traced)
    for script in changed:
        NAMES[script.sha] = NAMES[script.source] = script.name
    return changed


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Takes over the loop, and keeps the true stderr, which pytest replaces while tests run."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        stderr = os.fdopen(os.dup(2), "w")
    config.pluginmanager.register(Runner(stderr), "mutation-runner")
