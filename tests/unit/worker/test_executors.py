"""Slots on threads, coroutines and processes: each submitted attempt runs once, and none waits behind a long one."""

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jobrunner import Client, job
from jobrunner.attempt import Attempt
from jobrunner.client.client import keys_of
from jobrunner.outcome import Failed, Outcome, Released, Succeeded
from jobrunner.worker.run import child_process, event_loop, processes
from jobrunner.worker.run import executor as executor_module
from jobrunner.worker.run.child import frame, read_outcome, serve, write_attempt, write_greeting, write_outcome
from jobrunner.worker.run.coroutines import CoroutineExecutor
from jobrunner.worker.run.executor import (
    CannotStartError,
    DispatchingExecutor,
    Executor,
    FinishedAttempts,
    RunAttempt,
    ThreadExecutor,
)
from jobrunner.worker.run.processes import ProcessSlots
from jobrunner.worker.run.runner import Runner
from tests.acceptance.fleet import is_alive
from tests.support.server import Server
from tests.support.waiting import wait_for
from tests.unit.worker import child_jobs
from tests.unit.worker.attempts import attempt_at

MODULE = child_jobs.__name__


@job(name="executors.awaited")
async def awaited() -> int:
    return 1


@job(name="executors.plain")
def plain() -> int:
    return 2


class Slots:
    """Runs attempts by calling a function."""

    def __init__(self, run: RunAttempt) -> None:
        self._run = run
        self.closed = False

    def new_run(self) -> RunAttempt:
        return self._run

    def end(self, run: RunAttempt) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def finished() -> FinishedAttempts:
    return FinishedAttempts(lambda: None)


@pytest.fixture
def threads(finished: FinishedAttempts) -> Iterator[Callable[..., ThreadExecutor]]:
    made: list[ThreadExecutor] = []

    def start(run: RunAttempt, slots: int = 4) -> ThreadExecutor:
        made.append(ThreadExecutor(slots, Slots(run), finished))
        return made[-1]

    yield start
    for executor in made:
        executor.close()


def drain(finished: FinishedAttempts, count: int) -> list[tuple[Attempt, Outcome]]:
    """Waits for `count` reports."""
    reports: list[tuple[Attempt, Outcome]] = []
    wait_for(lambda: (reports.extend(finished.drain()), len(reports) >= count)[1])
    return reports


def test_who_waits_for_outcomes_is_woken_once_for_all_that_wait() -> None:
    woken: list[int] = []
    finished = FinishedAttempts(lambda: woken.append(1))
    finished.notify_at = 3
    for count in (0, 0, 1, 1, 1):
        finished.add(attempt_at("job"), Succeeded())
        assert len(woken) == count
    assert len(finished.drain()) == 5
    finished.notify_at = 1
    finished.add(attempt_at("job"), Succeeded())
    assert len(woken) == 2


def test_all_that_is_submitted_is_run_once(threads: Any, finished: FinishedAttempts) -> None:
    executor = threads(lambda attempt: Succeeded(attempt.id.encode()))
    attempts = [attempt_at("x") for _ in range(500)]
    for first in range(0, 500, 7):
        executor.submit(attempts[first : first + 7])
    reports = drain(finished, 500)
    assert sorted(attempt.id for attempt, _ in reports) == sorted(attempt.id for attempt in attempts)
    assert all(outcome == Succeeded(attempt.id.encode()) for attempt, outcome in reports)


def test_as_many_run_at_a_time_as_there_are_slots(threads: Any, finished: FinishedAttempts) -> None:
    go, running = threading.Event(), []

    def run(attempt: Attempt) -> Outcome:
        running.append(attempt)
        go.wait(30)
        return Succeeded()

    executor = threads(run, slots=4)
    executor.submit([attempt_at("x") for _ in range(6)])
    wait_for(lambda: len(running) == 4)
    assert executor.backlog == 2
    go.set()
    drain(finished, 6)


def test_a_long_task_keeps_nobody_waiting_behind_it(threads: Any, finished: FinishedAttempts) -> None:
    go = threading.Event()

    def run(attempt: Attempt) -> Outcome:
        if attempt.type == "long":
            go.wait(30)
        return Succeeded()

    executor = threads(run, slots=2)
    executor.submit([attempt_at("long"), *(attempt_at("short") for _ in range(50))])
    assert len(drain(finished, 50)) == 50
    go.set()
    drain(finished, 1)


def test_a_long_task_among_short_ones_is_left_behind_by_a_nudge(threads: Any, finished: FinishedAttempts) -> None:
    """Short tasks are left to few threads; when these block all the same, another thread is woken."""
    go = threading.Event()

    def run(attempt: Attempt) -> Outcome:
        if attempt.type == "long":
            go.wait(30)
        return Succeeded()

    executor = threads(run, slots=2)

    def known_as_short() -> bool:
        executor.submit([attempt_at("short") for _ in range(20)])
        drain(finished, 20)
        return executor._typical_s < executor_module.SHORT_S

    wait_for(known_as_short)
    wait_for(lambda: len(executor._parked) == 2)
    executor.submit([attempt_at("long"), attempt_at("short")])
    wait_for(lambda: (executor.nudge(), len(finished))[1])
    go.set()
    drain(finished, 2)


def test_an_error_that_nobody_foresaw_costs_no_slot(threads: Any, finished: FinishedAttempts) -> None:
    def run(attempt: Attempt) -> Outcome:
        raise SystemExit("unforeseen")

    executor = threads(run, slots=1)
    executor.submit([attempt_at("x"), attempt_at("x")])
    reports = drain(finished, 2)
    assert all(isinstance(outcome, Failed) and outcome.error.startswith("SystemExit") for _, outcome in reports)


def test_what_was_not_begun_can_be_taken_back(threads: Any, finished: FinishedAttempts) -> None:
    go = threading.Event()
    executor = threads(lambda attempt: Succeeded(str(go.wait(30)).encode()), slots=1)
    attempts = [attempt_at("x") for _ in range(3)]
    executor.submit(attempts)
    wait_for(lambda: executor.backlog == 2)
    assert executor.take_back() == attempts[1:]
    go.set()
    assert len(drain(finished, 1)) == 1


def test_no_more_threads_than_slots_run_tasks_whoever_brings_them(finished: FinishedAttempts) -> None:
    ran: set[threading.Thread] = set()

    def run(attempt: Attempt) -> Outcome:
        ran.add(threading.current_thread())
        return Succeeded()

    executor = ThreadExecutor(2, Slots(run), finished)
    for number in range(40):
        bringer = threading.Thread(target=executor.submit, args=([attempt_at(str(number))],))
        bringer.start()
        bringer.join(30)
        wait_for(lambda: len(finished) == number + 1)  # noqa: B023  called before the loop goes on
    assert len(ran) <= 2
    executor.close()


def test_a_task_brought_while_all_slots_are_busy_waits_for_the_first_that_is_free(finished: FinishedAttempts) -> None:
    go_on = threading.Event()

    def run(attempt: Attempt) -> Outcome:
        go_on.wait(30)
        return Succeeded()

    executor = ThreadExecutor(2, Slots(run), finished)
    executor.submit([attempt_at("a"), attempt_at("b")])
    wait_for(lambda: not executor.backlog)
    executor.submit([attempt_at("c")])
    assert executor.backlog == 1
    go_on.set()
    wait_for(lambda: len(finished) == 3)
    executor.close()


def test_closing_ends_the_threads(finished: FinishedAttempts) -> None:
    before = set(threading.enumerate())
    slots = Slots(lambda attempt: Succeeded())
    executor = ThreadExecutor(3, slots, finished)
    executor.submit([attempt_at("x")])
    drain(finished, 1)
    executor.close()
    assert slots.closed
    wait_for(lambda: set(threading.enumerate()) <= before)


async def succeed(attempt: Attempt, on_cancel: object) -> Outcome:
    return Succeeded(attempt.id.encode())


def test_a_slot_that_is_used_no_more_ends_its_child_and_no_other(children: Any) -> None:
    slots = children(MODULE)
    first, second = slots.new_run(), slots.new_run()
    pids = [int(run(attempt_at("child.pid")).result) for run in (first, second)]
    slots.end(first)
    assert [is_alive(pid) for pid in pids] == [False, True]


def test_coroutines_are_run_once_each(finished: FinishedAttempts) -> None:
    executor = CoroutineExecutor(5, succeed, finished)
    attempts = [attempt_at("x") for _ in range(100)]
    for first in range(0, 100, 9):
        executor.submit(attempts[first : first + 9])
    reports = drain(finished, 100)
    assert sorted(attempt.id for attempt, _ in reports) == sorted(attempt.id for attempt in attempts)
    executor.close()


def test_as_many_coroutines_run_at_a_time_as_asked_for(finished: FinishedAttempts) -> None:
    running: list[Attempt] = []

    async def wait(attempt: Attempt, on_cancel: object) -> Outcome:
        running.append(attempt)
        await asyncio.sleep(60)
        return Succeeded()

    executor = CoroutineExecutor(2, wait, finished)
    executor.submit([attempt_at("x") for _ in range(5)])
    wait_for(lambda: len(running) == 2)
    assert executor.backlog == 3
    executor.close()
    assert not executor._loops[0].is_alive
    assert finished.drain() == [], "attempts that close() cancels are released, not reported"


def test_an_unforeseen_error_in_a_coroutine_is_reported(finished: FinishedAttempts) -> None:
    async def fail(attempt: Attempt, on_cancel: object) -> Outcome:
        raise KeyError("unforeseen")

    executor = CoroutineExecutor(1, fail, finished)
    executor.submit([attempt_at("x"), attempt_at("x")])
    assert all(isinstance(outcome, Failed) for _, outcome in drain(finished, 2))
    executor.close()


def test_each_kind_of_job_goes_its_way(threads: Any, finished: FinishedAttempts) -> None:
    started: list[CoroutineExecutor] = []

    def new_coroutines() -> Executor:
        started.append(CoroutineExecutor(2, succeed, finished))
        return started[-1]

    executor = DispatchingExecutor(threads(lambda attempt: Succeeded(b"thread")), new_coroutines)
    executor.submit([attempt_at("executors.plain")])
    assert drain(finished, 1)[0][1] == Succeeded(b"thread")
    assert not started, "the event loop starts with the first coroutine job"
    executor.submit([attempt_at("executors.plain"), attempt_at("executors.awaited"), attempt_at("executors.unknown")])
    by_type = {attempt.type: outcome for attempt, outcome in drain(finished, 3)}
    assert by_type["executors.plain"] == by_type["executors.unknown"] == Succeeded(b"thread")
    assert by_type["executors.awaited"] != Succeeded(b"thread")
    executor.close()


@pytest.mark.parametrize("what", ["descriptor", "thread"])
def test_what_no_event_loop_can_be_started_for_is_not_taken(
    threads: Any, finished: FinishedAttempts, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The process has no free descriptor, or may start no more threads, when the first coroutine job comes."""
    made: list[asyncio.AbstractEventLoop] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        if what == "descriptor":
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(asyncio.new_event_loop())
        return made[-1]

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    executor = DispatchingExecutor(
        threads(lambda attempt: Succeeded(b"thread")), lambda: CoroutineExecutor(2, succeed, finished)
    )
    awaited_one, plain_one = attempt_at("executors.awaited"), attempt_at("executors.plain")
    with monkeypatch.context() as scarce:
        scarce.setattr(event_loop, "_new_loop", new_loop)
        if what == "thread":
            scarce.setattr(threading.Thread, "start", start)
        with pytest.raises(CannotStartError, match=r"Too many open files|can't start new thread") as refused:
            executor.submit([awaited_one, plain_one])
    assert refused.value.attempts == [awaited_one]
    assert [attempt for attempt, _ in drain(finished, 1)] == [plain_one]
    assert executor.backlog == 0
    assert all(loop.is_closed() for loop in made), "their descriptors are free again"

    executor.submit([awaited_one])
    assert [attempt for attempt, _ in drain(finished, 1)] == [awaited_one]
    executor.close()


def test_a_loop_that_ended_and_cannot_be_replaced_takes_nothing_until_it_can(
    finished: FinishedAttempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_loop() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    async def stop(attempt: Attempt, on_cancel: object) -> Outcome:
        if attempt.type == "stop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)
        return Succeeded()

    executor = CoroutineExecutor(2, stop, finished)
    with monkeypatch.context() as scarce:
        scarce.setattr(event_loop, "_new_loop", new_loop)
        executor.submit([attempt_at("stop")])
        drain(finished, 1)
        wait_for(lambda: not executor._loops[-1].is_alive)
        with pytest.raises(OSError, match="Too many open files"):
            executor.submit([attempt_at("x")])
        assert executor.backlog == 0
        executor.begin_more()  # as the watching thread does, which has to live

    executor.submit([attempt_at("x")])
    assert drain(finished, 1)[0][1] == Succeeded()
    executor.close()


@pytest.mark.parametrize(
    "outcome", [Succeeded(b"\x00\xff"), Failed("é", 1.5, retry=False), Released(), Succeeded()], ids=repr
)
def test_outcomes_come_through_the_wire_as_they_went_in(outcome: Outcome) -> None:
    assert read_outcome(write_outcome(outcome, "7"), "7") == outcome
    assert read_outcome(write_outcome(outcome, "7"), "8") is None, "it answers to another attempt"


def test_a_child_that_cannot_be_started_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    pipe = os.pipe

    def pipe_and_copy() -> tuple[int, int]:
        ends = pipe()
        kept.append(os.dup(ends[0]))
        return ends

    def popen(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "pipe", pipe_and_copy)
    monkeypatch.setattr(child_process.subprocess, "Popen", popen)
    with pytest.raises(BlockingIOError):
        child_process.ChildProcess()
    (copy,) = kept
    with os.fdopen(copy, "rb") as reading:
        os.set_blocking(copy, False)
        assert reading.read() == b"", "the end of the file: nobody has the end for writing any more"


def test_an_attempt_for_which_no_process_can_be_started_is_handed_back(
    children: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a pause, as it would come again at once; a worker that stops does not wait for its end."""
    monkeypatch.setattr(processes, "_NO_CHILD_PAUSE_S", 0.0)
    slots, attempt = children(MODULE), attempt_at("child.echo", b'{"text":"8"}')
    run = slots.new_run()
    with monkeypatch.context() as scarce:
        scarce.setattr(processes, "ChildProcess", no_process)
        assert run(attempt) == Released()
    assert "no process can be started: [Errno 11] Resource temporarily unavailable" in caplog.text
    assert run(attempt) == Succeeded(b'"8"'), "as soon as there is one"

    monkeypatch.setattr(processes, "_NO_CHILD_PAUSE_S", 3600.0)
    monkeypatch.setattr(processes, "ChildProcess", no_process)
    ended: list[Outcome] = []
    waiting = threading.Thread(target=lambda: ended.append(slots.new_run()(attempt)))
    waiting.start()
    wait_for(lambda: len(slots._slots) == 2 and slots._slots[1]._running)
    slots.close()
    waiting.join(30)
    assert ended == [Released()]


def no_process() -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.fixture
def children(server: Server, client: Client) -> Iterator[Callable[..., ProcessSlots]]:
    made: list[ProcessSlots] = []

    def start(
        *modules: str, is_stopped: Callable[[str], bool] = lambda token: False, max_memory: int = 0
    ) -> ProcessSlots:
        greeting = write_greeting(server.url, keys_of(client).prefix, modules, options={"result_limit": 4_000_000})
        runner = Runner(client, is_stopped)
        made.append(ProcessSlots(greeting, runner, is_stopped, max_memory))
        return made[-1]

    yield start
    for slots in made:
        slots.close()


def test_a_child_that_cannot_load_its_modules_says_why(children: Any) -> None:
    outcome = children("no_such_module").new_run()(attempt_at("executors.plain"))
    assert isinstance(outcome, Failed)
    assert "AttemptCrashed: the process of the attempt cannot start: module 'no_such_module'" in outcome.error


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("import no_such_module", "a process cannot start: module 'deployed' cannot be imported"),
        ("import os; os._exit(3)", "a process exited with code 3 as it started"),
        ("import os; os.kill(os.getpid(), 9)", "a process was ended by signal 9 as it started"),
    ],
)
def test_a_child_that_cannot_start_any_more_costs_no_attempt(
    broken: str, reason: str, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A deploy into the folder of a worker, half done: each task spent an attempt, until it was dead."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(processes, "_NO_CHILD_PAUSE_S", 0.0)
    deployed, attempt = tmp_path / "deployed.py", attempt_at("child.pid", max_attempts=1)
    deployed.write_text("")
    slots = children("deployed", MODULE)
    assert isinstance(slots.new_run()(attempt), Succeeded)
    deployed.write_text(broken)
    run = slots.new_run()
    for _ in range(2):
        assert run(attempt) == Released()
    assert f"tasks cannot begin and are handed back error={reason}" in caplog.text

    deployed.write_text("")
    assert isinstance(run(attempt), Succeeded)


def test_a_child_that_takes_long_to_start_is_waited_for_and_costs_no_attempt(
    children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On an overloaded machine each task failed once more, until it was dead, though none had begun."""
    imported, goes_on = tmp_path / "imported", tmp_path / "goes_on"
    (tmp_path / "slow_to_import.py").write_text(
        f"import time\nfrom pathlib import Path\nPath({str(imported)!r}).write_text('x')\n"
        f"while not Path({str(goes_on)!r}).exists():\n    time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(processes, "_NO_CHILD_PAUSE_S", 0.0)
    run = children("slow_to_import", MODULE).new_run()
    monkeypatch.setattr(processes, "_START_S", 0.01)
    while not imported.exists():
        assert run(attempt_at("child.pid", max_attempts=1)) == Released()
    assert run(attempt_at("child.pid", max_attempts=1)) == Released()
    assert "a process did not start within 0.01 s" in caplog.text
    imported.unlink()
    goes_on.touch()
    monkeypatch.setattr(processes, "_START_S", 60.0)
    assert isinstance(run(attempt_at("child.pid", max_attempts=1)), Succeeded)
    assert not imported.exists(), "another process was started"


def test_a_child_keeps_a_stop_of_the_next_attempt_that_is_there_as_soon_as_it_has_answered() -> None:
    first, second = attempt_at("child.echo"), attempt_at("child.echo")
    stopped: set[str] = {first.token}
    seen: list[bool] = []
    worker, child = socket.socketpair()

    def run(attempt: Attempt) -> Outcome:
        seen.append(attempt.token in stopped)
        return Released()

    def sendall(answer: bytes) -> None:  # the child stands still behind it, while the worker goes on
        child.sendall(answer)
        if len(seen) == 1:
            worker.sendall(frame(write_attempt(second)))
            stopped.add(second.token)
        else:
            worker.shutdown(socket.SHUT_WR)

    with worker, child:
        worker.sendall(frame(write_attempt(first)))
        serve(SimpleNamespace(recv=child.recv, sendall=sendall), SimpleNamespace(run=run), stopped)  # type: ignore[arg-type]

    assert seen == [True, True]


def test_a_child_is_used_again(children: Any) -> None:
    run = children(MODULE).new_run()
    first, second = (run(attempt_at("child.pid")) for _ in range(2))
    assert isinstance(first, Succeeded)
    assert first == second


def test_payloads_and_results_of_any_size_go_to_a_child_and_back(children: Any) -> None:
    run = children(MODULE).new_run()
    for size in (0, 5_000, 17_000, 3_000_000, 1):
        text = b'"' + b"x" * size + b'"'
        assert run(attempt_at("child.echo", b'{"text":' + text + b"}")) == Succeeded(text)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory another process has")
def test_a_child_that_has_too_much_memory_after_an_attempt_is_replaced(children: Any) -> None:
    run = children(MODULE, max_memory=1).new_run()
    first, second = (run(attempt_at("child.pid")) for _ in range(2))
    assert isinstance(first, Succeeded)
    assert first != second
    assert not is_alive(int(first.result))
    assert not is_alive(int(second.result))


def test_a_child_that_died_while_it_had_nothing_to_do_costs_no_attempt(children: Any) -> None:
    run = children(MODULE).new_run()
    first = run(attempt_at("child.pid"))
    os.kill(int(first.result), signal.SIGKILL)
    wait_for(lambda: not is_alive(int(first.result)))
    second = run(attempt_at("child.pid"))
    assert isinstance(second, Succeeded)
    assert second != first


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that a message was not read")
def test_a_child_that_died_before_it_read_the_attempt_costs_no_attempt(children: Any) -> None:
    stopped: list[int] = []

    def kill_stopped(token: str) -> bool:  # asked for while the slot waits, hence after the attempt was sent
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
        stopped.clear()
        return False

    run = children(MODULE, is_stopped=kill_stopped).new_run()
    first = run(attempt_at("child.pid"))
    os.kill(int(first.result), signal.SIGSTOP)
    stopped.append(int(first.result))
    second = run(attempt_at("child.pid"))
    assert isinstance(second, Succeeded)
    assert second != first


def test_a_closing_slot_hands_back_what_its_child_ran(children: Any, tmp_path: Path) -> None:
    slots = children(MODULE)
    run = slots.new_run()
    run(attempt_at("child.pid"))
    outcomes: list[Outcome] = []
    began = tmp_path / "began"
    attempt = attempt_at("child.begin_and_sleep", msgspec.json.encode({"path": str(began)}))
    thread = threading.Thread(target=lambda: outcomes.append(run(attempt)))
    thread.start()
    wait_for(began.exists)
    slots.close()
    thread.join(30)
    assert outcomes == [Released()]
    assert run(attempt_at("child.pid")) == Released(), "a closed slot starts nothing"


@pytest.mark.parametrize("name", ["child.forking", "child.forking_async"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("exits", 3), ("fails", 1)])
def test_a_copy_that_a_job_forked_answers_for_nobody(children: Any, name: str, how: str, code: int) -> None:
    run = children(MODULE).new_run()
    first = run(attempt_at("child.pid"))
    assert run(attempt_at(name, b'{"how": "%b"}' % how.encode())) == Succeeded(str(code).encode())
    for number in range(3):
        assert run(attempt_at("child.echo", b'{"text": "%d"}' % number)) == Succeeded(b'"%d"' % number)
    assert run(attempt_at("child.pid")) == first


@pytest.mark.skipif(sys.platform != "linux", reason="calls fork of the C library")
def test_a_copy_that_python_does_not_know_of_answers_for_nobody_either(children: Any) -> None:
    run = children(MODULE).new_run()
    assert run(attempt_at("child.forking_unseen")) == Succeeded(b"0")
    assert run(attempt_at("child.echo", b'{"text": "next"}')) == Succeeded(b'"next"')


def test_what_is_no_answer_to_the_attempt_at_hand_is_left_out(children: Any) -> None:
    run = children(MODULE).new_run()
    assert run(attempt_at("child.impostor")) == Succeeded(b'"own"')
    assert run(attempt_at("child.echo", b'{"text": "next"}')) == Succeeded(b'"next"')


def test_a_coroutine_that_cancels_or_stops_its_loop_fails_and_its_child_goes_on(children: Any) -> None:
    run = children(MODULE).new_run()
    first = run(attempt_at("child.pid"))
    cancelled, stopped = run(attempt_at("child.cancelling")), run(attempt_at("child.stopping"))
    assert isinstance(cancelled, Failed)
    assert cancelled.error.startswith("AttemptCancelled")
    assert isinstance(stopped, Failed)
    assert stopped.error.startswith("AttemptCrashed: the event loop of the attempt ended")
    assert run(attempt_at("child.pid")) == first


def test_a_job_may_end_the_processes_it_started(children: Any) -> None:
    """Signals that the child itself does not follow must not be ignored in what its jobs start."""
    assert children(MODULE).new_run()(attempt_at("child.terminate")) == Succeeded(b"-15")


def test_a_child_whose_own_child_holds_the_socket_is_seen_to_have_ended(children: Any) -> None:
    outcome = children(MODULE).new_run()(attempt_at("child.fork_and_die"))
    assert isinstance(outcome, Failed)
    assert "exited with code 3" in outcome.error


def test_a_coroutine_in_a_child_may_clean_up_when_its_time_is_over(children: Any) -> None:
    run = children(MODULE).new_run()
    first = run(attempt_at("child.pid"))
    outcome = run(attempt_at("child.brief"))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.1 s")
    assert run(attempt_at("child.pid")) == first, "the child was not killed for it"


def test_threads_of_an_event_loop_end_with_it(finished: FinishedAttempts) -> None:
    async def use_a_thread(attempt: Attempt) -> Outcome:
        await asyncio.to_thread(time.sleep, 0)
        return Succeeded()

    before = set(threading.enumerate())
    executor = CoroutineExecutor(1, use_a_thread, finished)
    executor.submit([attempt_at("x")])
    drain(finished, 1)
    executor.close()
    wait_for(lambda: set(threading.enumerate()) <= before)
