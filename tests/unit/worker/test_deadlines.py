"""Timeouts of jobs on threads: the error is raised in the late job, and nowhere else."""

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner import Cancel, Job, Snooze, job
from jobrunner.attempt import Attempt
from jobrunner.outcome import Cancelled, Failed, Outcome, Succeeded
from jobrunner.worker.run import executor, watchdog
from jobrunner.worker.run.executor import Deadlines
from jobrunner.worker.run.runner import Runner
from jobrunner.worker.run.watchdog import Alarm, Guard, Watchdog
from tests.support.stopped_clock import stopped
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at, client_of


@job(name="deadlines.brief", timeout=0.05, max_attempts=1)
def brief(seconds: float) -> str:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.001)
    return "done"


@job(name="deadlines.timely", timeout=60, max_attempts=1)
def timely() -> str:
    """Ends in time on the busiest machine."""
    return "done"


@job(name="deadlines.spinning", timeout=0.03, max_attempts=1)
def spinning(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


@job(name="deadlines.swallowing", timeout=0.05)
def swallowing() -> str:
    from jobrunner.errors import AttemptTimeout

    try:
        brief(5.0)
    except AttemptTimeout:
        return "cleaned up"
    return "not interrupted"


class Swallowing:
    """Python ignores what is raised in here."""

    def __del__(self) -> None:
        spinning(5.0)


@job(name="deadlines.collecting", timeout=0.05)
def collecting() -> str:
    for _ in range(3):
        Swallowing()
    spinning(5.0)
    return "not interrupted"


@job(name="deadlines.unlimited")
def unlimited() -> str:
    brief(0.1)
    return "done"


hooked: list[str] = []


@job(name="deadlines.stubborn", timeout=0.03)
class Stubborn(Job):
    then: str

    def run(self) -> object:
        try:
            brief(30)
        except BaseException:
            if self.then == "cancel":
                raise Cancel("no use") from None
        return Snooze(in_=5) if self.then == "snooze" else "done"

    def after(self) -> None:
        hooked.append("after")

    def on_failure(self, error: BaseException) -> None:
        hooked.append(f"on_failure {type(error).__name__}")


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    made = Deadlines(Runner(client_of(None), lambda token: False), Watchdog())
    yield made
    made.close()


def run(deadlines: Deadlines, attempt: Attempt) -> Outcome:
    return deadlines.new_run()(attempt)


def test_an_attempt_that_runs_too_long_is_ended(deadlines: Deadlines) -> None:
    began = time.monotonic()
    outcome = run(deadlines, attempt_at("deadlines.brief", b'{"seconds": 30}'))
    assert isinstance(outcome, Failed)
    said, _, where = outcome.error.partition("\n")
    assert said == "AttemptTimeout: the attempt ran longer than timeout=0.05 s of job 'deadlines.brief'"
    assert "in brief" in where
    assert time.monotonic() - began < 10


def test_one_in_time_is_left_alone(deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that is stopped while the job runs, and is moved far beyond the deadline after it."""
    watch = stopped(monkeypatch, executor, watchdog)
    assert run(deadlines, attempt_at("deadlines.timely")) == Succeeded(b'"done"')
    watch.now += 3600
    assert deadlines._watch._fire_due() == math.inf, "a guard is still armed"
    for _ in range(1000):  # bytecodes between which the error would be delivered
        pass


def test_a_job_without_a_timeout_has_none(deadlines: Deadlines) -> None:
    assert run(deadlines, attempt_at("deadlines.unlimited")) == Succeeded(b'"done"')


def test_a_job_may_clean_up_and_is_out_of_time_all_the_same(deadlines: Deadlines) -> None:
    outcome = run(deadlines, attempt_at("deadlines.swallowing"))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("AttemptTimeout: the attempt ran longer than timeout=")
    assert outcome.error_type == "jobrunner.errors.AttemptTimeout"


@pytest.mark.parametrize(("then", "kind"), [("return", Failed), ("snooze", Failed), ("cancel", Cancelled)])
def test_hooks_of_a_job_that_catches_its_timeout_see_it(deadlines: Deadlines, then: str, kind: type) -> None:
    hooked.clear()
    outcome = run(deadlines, attempt_at("deadlines.stubborn", f'{{"then": "{then}"}}'.encode()))
    assert type(outcome) is kind
    assert hooked == ([] if kind is Cancelled else ["on_failure AttemptTimeout"])


def test_a_timeout_that_python_ignores_as_it_falls_into_a_finalizer_is_raised_again(deadlines: Deadlines) -> None:
    began = time.monotonic()
    outcome = run(deadlines, attempt_at("deadlines.collecting"))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("AttemptTimeout")
    assert time.monotonic() - began < 5, "four times it would have spun for so long"


def test_no_timeout_is_raised_in_the_hook_that_hears_of_an_ignored_one(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost there, on a machine where the hook takes longer than the pause before the next try."""
    raise_again = Watchdog.raise_again

    def raise_again_and_linger(watch: Watchdog) -> bool:
        found = raise_again(watch)
        ends = time.monotonic() + 10 * watchdog._AGAIN_S
        while time.monotonic() < ends:
            pass
        return found

    monkeypatch.setattr(Watchdog, "raise_again", raise_again_and_linger)
    began = time.monotonic()
    outcome = run(deadlines, attempt_at("deadlines.collecting"))
    assert isinstance(outcome, Failed)
    assert time.monotonic() - began < 5, "three times it would have spun for so long"


def test_each_of_many_threads_gets_its_own(deadlines: Deadlines) -> None:
    outcomes: list[tuple[bool, Outcome]] = []

    def work(n: int) -> None:
        attempt_run = deadlines.new_run()
        for turn in range(4):
            late = (n + turn) % 2 == 0
            attempt = attempt_at("deadlines.brief", b'{"seconds": 20}') if late else attempt_at("deadlines.timely")
            outcomes.append((late, attempt_run(attempt)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 32
    assert all(isinstance(outcome, Failed) is late for late, outcome in outcomes)


def test_attempts_right_at_their_deadline_end_one_way_or_the_other(deadlines: Deadlines) -> None:
    """The error may fall between the end of the job and the disarming, or be on its way then."""
    for n in range(50):
        payload = b'{"seconds": %f}' % (0.0295 + n * 0.00002)
        outcome = run(deadlines, attempt_at("deadlines.spinning", payload))
        assert isinstance(outcome, (Succeeded, Failed))
    time.sleep(0.06)  # an error that was left armed would be delivered here


def test_an_error_that_falls_while_its_guard_is_armed_is_a_timeout(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that waits for the interpreter right then may be later than the whole timeout."""
    arm = deadlines._watch.arm

    def arm_late(guard: Guard | Alarm) -> None:
        guard.ends = 0.0
        arm(guard)
        brief(30)

    monkeypatch.setattr(deadlines._watch, "arm", arm_late)
    outcome = run(deadlines, attempt_at("deadlines.timely"))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("AttemptTimeout: the attempt ran longer than timeout=")


def test_a_watch_without_a_thread_to_run_on_tries_again(deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            run(deadlines, attempt_at("deadlines.timely"))
    assert not deadlines._watch._armed
    outcome = run(deadlines, attempt_at("deadlines.brief", b'{"seconds": 30}'))
    assert isinstance(outcome, Failed)


def test_finished_attempts_are_forgotten(deadlines: Deadlines) -> None:
    """Else an hour's timeout on short tasks would fill the memory."""
    for _ in range(100):
        run(deadlines, attempt_at("deadlines.brief", b'{"seconds": 0}'))
    assert not deadlines._watch._armed


def test_closing_ends_the_watching_thread(deadlines: Deadlines) -> None:
    run(deadlines, attempt_at("deadlines.brief", b'{"seconds": 0}'))
    thread: Any = deadlines._watch._thread
    assert thread.is_alive()
    deadlines.close()
    wait_for(lambda: not thread.is_alive())
