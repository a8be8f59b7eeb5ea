"""From an attempt to its outcome: control flow, errors, hooks. Without a server, as only the job matters here."""

import asyncio
import math
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

from jobrunner import Backoff, Cancel, Fail, Job, PeriodicJob, Retry, Snooze, job
from jobrunner.errors import (
    AttemptCancelled,
    AttemptCrashed,
    AttemptTimeout,
    JobrunnerError,
    MiddlewareError,
    OutcomeUnknown,
)
from jobrunner.jobs.registry import find
from jobrunner.outcome import Acknowledged, Cancelled, Failed, Outcome, Released, Snoozed, Succeeded, Unknown
from jobrunner.worker.run.error_outcome import after_error
from jobrunner.worker.run.runner import Runner
from tests.unit.worker.attempts import attempt_at, client_of, without_origin

Act = Callable[[Job], Any]
acts: dict[str, Act] = {}
calls: list[str] = []


class NoServer:
    """Replaces the broker: fails a test that calls it, unless the test sets an answer."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def run(self, call: Any) -> Any:
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@job(name="runner.plain", backoff=Backoff(base=7, jitter=0), max_attempts=3)
class Plain(Job):
    def run(self) -> Any:
        return acts["run"](self)


@job(name="runner.async", backoff=Backoff(base=7, jitter=0), timeout=30)
class Awaited(Job):
    async def run(self) -> Any:
        return await acts["run"](self)


@job(name="runner.async_brief", timeout=0.05)
class AwaitedBriefly(Awaited):
    """Only for what outlasts its timeout: anything else could be late on a busy machine."""


@job(name="runner.hooked", max_attempts=3)
class Hooked(Job):
    def before(self) -> None:
        note(self, "before")

    def run(self) -> Any:
        return note(self, "run")

    def after(self) -> None:
        note(self, "after")

    def on_failure(self, error: BaseException) -> None:
        note(self, "on_failure", error)

    def on_dead(self, error: BaseException) -> None:
        note(self, "on_dead", error)


@job(name="runner.async_hooked", max_attempts=1)
class AsyncHooked(Job):
    async def before(self) -> None:
        await anote(self, "before")

    async def run(self) -> Any:
        return await anote(self, "run")

    async def after(self) -> None:
        await anote(self, "after")

    async def on_failure(self, error: BaseException) -> None:
        await anote(self, "on_failure", error)

    async def on_dead(self, error: BaseException) -> None:
        await anote(self, "on_dead", error)


@job(name="runner.early", ack="early", max_attempts=5)
class Early(Job):
    def run(self) -> Any:
        return note(self, "run")

    def on_failure(self, error: BaseException) -> None:
        note(self, "on_failure", error)

    def on_dead(self, error: BaseException) -> None:
        note(self, "on_dead", error)


@job(name="runner.tick", every=60)
class Periodic(PeriodicJob):
    def run(self) -> Any:
        return acts["run"](self)


class Exploding(msgspec.Struct):
    """A parameter whose construction fails with an error that msgspec does not wrap."""

    n: int

    def __post_init__(self) -> None:
        raise KeyError("no such n")


@job(name="runner.exploding")
class TakesExploding(Job):
    value: Exploding

    def run(self) -> None:
        calls.append("run")


class Mute(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def note(own: Job, name: str, *args: Any) -> Any:
    calls.append(name)
    return acts[name](own, *args) if name in acts else None


async def anote(own: Job, name: str, *args: Any) -> Any:
    await asyncio.sleep(0)
    noted = note(own, name, *args)
    return await noted if hasattr(noted, "__await__") else noted


def throw(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    acts.clear()
    calls.clear()


@pytest.fixture
def server() -> NoServer:
    return NoServer()


@pytest.fixture
def runner(server: NoServer) -> Runner:
    return Runner(client_of(server), lambda token: False)


def outcome_of(runner: Runner, act: Act, job: str = "runner.plain", **fields: Any) -> Outcome:
    acts["run"] = act
    return runner.run(attempt_at(job, **fields))


@pytest.mark.parametrize(
    ("returned", "result"),
    [(None, b""), (0, b"0"), (False, b"false"), ([], b"[]"), ("", b'""'), ({"a": [1]}, b'{"a":[1]}')],
)
def test_what_a_job_returns_is_its_result(runner: Runner, returned: Any, result: bytes) -> None:
    assert outcome_of(runner, lambda _: returned) == Succeeded(result)


@pytest.mark.parametrize("say", ["return", "raise"])
@pytest.mark.parametrize(
    ("steer", "outcome"),
    [
        (Retry("later", in_=3), Failed("Retry: later", 3.0)),
        (Retry(), Failed("Retry: the job asked for a retry", 7.0)),
        (Snooze(in_=9), Snoozed(9.0)),
        (Fail("no"), Failed("Fail: no", 7.0)),
        (Fail("never", retry=False), Failed("Fail: never", 7.0, retry=False)),
        (Cancel("not wanted"), Cancelled("not wanted")),
    ],
)
def test_a_job_steers_by_returning_or_raising(runner: Runner, say: str, steer: Any, outcome: Outcome) -> None:
    assert without_origin(outcome_of(runner, throw(steer) if say == "raise" else lambda _: steer)) == outcome


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()]
)
def test_whatever_a_job_raises_is_a_failed_attempt(runner: Runner, error: BaseException) -> None:
    """MOAB-32: sys.exit() in a job ends the attempt, not the worker and not the task."""
    outcome = outcome_of(runner, throw(error))
    assert isinstance(outcome, Failed)
    assert outcome.retry
    assert outcome.error.startswith(type(error).__name__)


def test_sys_exit_ends_the_attempt_only(runner: Runner) -> None:
    """MOAB-32"""
    outcome = outcome_of(runner, lambda _: sys.exit("bye"))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("SystemExit: bye")


class Detached:
    """As a row of an ORM whose session is closed."""

    def __repr__(self) -> str:
        raise RuntimeError("not bound to a session")


@pytest.mark.parametrize("returned", [(n for n in range(3)), object(), {1: object()}, lambda: None, [Detached()]])
def test_a_result_that_cannot_be_stored_is_a_failure_for_good(runner: Runner, returned: Any) -> None:
    """MOAB-32: a job that returns a generator did nothing; its task is kept, with the reason."""
    outcome = outcome_of(runner, lambda _: returned)
    assert isinstance(outcome, Failed)
    assert not outcome.retry
    assert "the result of job 'runner.plain' cannot be stored as JSON" in outcome.error


@pytest.mark.parametrize("returned", [math.nan, {"mean": math.inf}, [1.5, {"a": (None, -math.inf)}]])
def test_a_number_that_json_does_not_have_is_not_lost_in_silence(runner: Runner, returned: Any) -> None:
    outcome = outcome_of(runner, lambda _: returned)
    assert isinstance(outcome, Failed)
    assert not outcome.retry
    assert "which JSON does not have" in outcome.error


def test_a_result_has_a_limit_and_work_that_is_done_is_not_done_again(server: NoServer) -> None:
    runner = Runner(client_of(server, result_limit=100), lambda token: False)

    assert outcome_of(runner, lambda _: "x" * 98) == Succeeded(b'"' + b"x" * 98 + b'"')
    outcome = outcome_of(runner, lambda _: "x" * 99)
    assert isinstance(outcome, Failed)
    assert not outcome.retry
    assert "ResultTooLarge: the result of job 'runner.plain' has 101 bytes, the limit is 100" in outcome.error


def test_an_unknown_job_is_tried_again_elsewhere(runner: Runner) -> None:
    """MOSQ-09: another worker may know it; the outcome has the reason."""
    outcome = runner.run(attempt_at("runner.unknown"))
    assert isinstance(outcome, Unknown)
    assert "knows no job 'runner.unknown'" in outcome.error


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"value": 3}', b'{"value": {"n": 1}}', None]
)
def test_a_payload_that_cannot_be_read_is_a_failure_for_good(runner: Runner, payload: bytes | None) -> None:
    outcome = runner.run(attempt_at("runner.exploding", payload))  # type: ignore[arg-type]
    assert isinstance(outcome, Failed)
    assert not outcome.retry
    assert calls == []


def test_the_backoff_grows_with_the_failures(runner: Runner) -> None:
    """MOSQ-31"""
    delays = [outcome_of(runner, throw(ValueError()), retry_count=n).delay_s for n in range(4)]  # type: ignore[union-attr]
    assert delays == [7, 14, 28, 56]


def test_a_failure_of_a_periodic_job_waits_for_the_next_tick(runner: Runner) -> None:
    """MOSQ-29"""
    for error in (ValueError("no"), Fail("no"), Fail("no", retry=True)):
        outcome = outcome_of(runner, throw(error), job="runner.tick")
        assert isinstance(outcome, Failed)
        assert not outcome.retry, error


@pytest.mark.parametrize("kind", [AttemptCancelled, AttemptCrashed, MiddlewareError, AttemptTimeout])
def test_a_periodic_job_is_tried_again_after_what_it_did_not_raise(kind: type[JobrunnerError]) -> None:
    """A tick is not lost because a neighbour on the event loop or a middleware went wrong. A job that runs longer than
    its timeout fails by itself, and waits for the next tick."""
    definition = find("runner.tick")
    assert definition is not None
    outcome, _ = after_error(attempt_at("runner.tick"), definition, kind("not by the job"))
    assert isinstance(outcome, Failed)
    assert outcome.retry == (kind is not AttemptTimeout)


def test_a_periodic_job_may_ask_for_a_retry(runner: Runner) -> None:
    outcome = outcome_of(runner, throw(Retry(in_=1)), job="runner.tick")
    assert without_origin(outcome) == Failed("Retry: the job asked for a retry", 1.0)


def test_the_error_text_is_one_line_and_then_the_traceback(runner: Runner) -> None:
    outcome = outcome_of(runner, throw(ValueError("two\nlines")))
    assert isinstance(outcome, Failed)
    first, second, *_ = outcome.error.split("\n")
    assert first == "ValueError: two lines"
    assert second.startswith("Traceback")


def test_a_long_error_is_cut(runner: Runner) -> None:
    outcome = outcome_of(runner, throw(ValueError("x" * 10_000_000)))
    assert isinstance(outcome, Failed)
    assert len(outcome.error) < 10_000


def test_an_error_that_cannot_be_shown_is_still_a_failed_attempt(runner: Runner) -> None:
    outcome = outcome_of(runner, throw(Mute()))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("Mute: ")


def test_an_error_text_can_always_be_sent(runner: Runner) -> None:
    """A lone surrogate has no UTF-8; a report that cannot be packed would block all later reports."""
    outcome = outcome_of(runner, throw(ValueError("broken \ud800 name")))
    assert isinstance(outcome, Failed)
    assert "broken \\ud800 name" in outcome.error.encode().decode()


def test_hooks_run_around_a_good_run(runner: Runner) -> None:
    assert runner.run(attempt_at("runner.hooked")) == Succeeded()
    assert calls == ["before", "run", "after"]


def test_an_error_in_before_fails_the_attempt(runner: Runner) -> None:
    acts["before"] = throw(ValueError("not ready"))
    outcome = runner.run(attempt_at("runner.hooked"))
    assert isinstance(outcome, Failed)
    assert calls == ["before", "on_failure"]


@pytest.mark.parametrize("error", [ValueError("late"), SystemExit(), Snooze(in_=1)])
def test_an_error_in_after_changes_nothing(runner: Runner, error: BaseException) -> None:
    acts["after"] = throw(error)
    acts["run"] = lambda _: 5
    assert runner.run(attempt_at("runner.hooked")) == Succeeded(b"5")


@pytest.mark.parametrize(
    ("number", "expected"), [(1, ["on_failure"]), (2, ["on_failure"]), (3, ["on_failure", "on_dead"])]
)
def test_on_dead_follows_the_last_failure(runner: Runner, number: int, expected: list[str]) -> None:
    acts["run"] = throw(ValueError())
    runner.run(attempt_at("runner.hooked", number=number, max_attempts=3))
    assert calls[2:] == expected


def test_on_dead_follows_a_failure_without_retry(runner: Runner) -> None:
    acts["run"] = throw(Fail("no", retry=False))
    runner.run(attempt_at("runner.hooked", number=1, max_attempts=0))
    assert calls[2:] == ["on_failure", "on_dead"]


def test_hooks_that_raise_change_nothing(runner: Runner) -> None:
    acts.update(run=throw(ValueError("first")), on_failure=throw(SystemExit("second")), on_dead=throw(Mute()))
    outcome = runner.run(attempt_at("runner.hooked", number=3, max_attempts=3))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("ValueError: first")
    assert calls == ["before", "run", "on_failure", "on_dead"]


@pytest.mark.parametrize("steer", [Snooze(in_=1), Cancel()])
def test_no_failure_hook_runs_when_nothing_failed(runner: Runner, steer: Any) -> None:
    acts["run"] = throw(steer)
    runner.run(attempt_at("runner.hooked", number=3, max_attempts=3))
    assert calls == ["before", "run"]


def test_a_coroutine_is_awaited_and_steers_alike(runner: Runner) -> None:
    async def snooze(_: Job) -> Any:
        await asyncio.sleep(0)
        return Snooze(in_=2)

    acts["run"] = snooze
    assert asyncio.run(runner.run_async(attempt_at("runner.async"))) == Snoozed(2.0)


@pytest.mark.parametrize("kind", ["runner.async", "runner.async_hooked"])
def test_a_coroutine_that_outlived_its_loop_is_thrown_away_in_silence(runner: Runner, kind: str) -> None:
    async def begun() -> Any:
        attempt = runner.run_async(attempt_at(kind))
        attempt.send(None)
        return attempt

    acts["run"] = lambda _: asyncio.sleep(60)
    asyncio.run(begun()).close()
    assert not {"on_failure", "on_dead", "after"} & set(calls)


def test_a_coroutine_that_runs_too_long_fails(runner: Runner) -> None:
    async def linger(_: Job) -> None:
        await asyncio.sleep(60)

    acts["run"] = linger
    outcome = asyncio.run(runner.run_async(attempt_at("runner.async_brief")))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.05 s")


def test_a_timeout_of_the_jobs_own_is_an_ordinary_failure(runner: Runner) -> None:
    async def give_up(_: Job) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    acts["run"] = give_up
    outcome = asyncio.run(runner.run_async(attempt_at("runner.async")))
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("TimeoutError")


def test_a_coroutine_that_raises_cancellederror_failed(runner: Runner) -> None:
    async def cancel(_: Job) -> None:
        raise asyncio.CancelledError

    acts["run"] = cancel
    assert isinstance(asyncio.run(runner.run_async(attempt_at("runner.async"))), Failed)


def test_a_coroutine_that_is_cancelled_from_outside_has_no_outcome(runner: Runner) -> None:
    async def cancelled() -> bool:
        task = asyncio.ensure_future(runner.run_async(attempt_at("runner.async_hooked")))
        while calls != ["before", "run"]:  # else it is cancelled before its job began
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    acts["run"] = lambda own: asyncio.sleep(60)
    assert asyncio.run(cancelled())
    assert calls == ["before", "run"]


def test_hooks_may_be_coroutines_too(runner: Runner) -> None:
    acts["run"] = throw(ValueError())
    asyncio.run(runner.run_async(attempt_at("runner.async_hooked", number=1, max_attempts=1)))
    acts["run"] = lambda _: 1
    assert asyncio.run(runner.run_async(attempt_at("runner.async_hooked"))) == Succeeded(b"1")
    assert calls == ["before", "run", "on_failure", "on_dead", "before", "run", "after"]


def test_an_early_acknowledgement_comes_before_the_run_and_nothing_is_reported_after_it(
    runner: Runner, server: NoServer
) -> None:
    """KEU-10"""
    server.answers = [["ok"]]
    assert runner.run(attempt_at("runner.early")) == Acknowledged()
    assert calls == ["run"]
    assert server.answers == []


def test_a_task_whose_early_acknowledgement_is_refused_does_not_run(runner: Runner, server: NoServer) -> None:
    """KEU-10: another attempt may run it."""
    for answer in (["lost"], ["gone"], OutcomeUnknown("the connection broke")):
        server.answers = [answer]
        assert runner.run(attempt_at("runner.early")) == Released()
    assert calls == []


@pytest.mark.parametrize("answer", [["unknown"], OutcomeUnknown("the connection broke")])
def test_an_early_acknowledgement_without_a_reply_is_logged(
    runner: Runner, server: NoServer, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    """The task counts as succeeded and never ran: only the log tells."""
    server.answers = [answer]
    assert runner.run(attempt_at("runner.early")) == Released()
    assert calls == []
    assert "not begun: its early acknowledgement failed" in caplog.text


def test_an_early_task_that_fails_is_given_up_at_once(runner: Runner, server: NoServer) -> None:
    server.answers = [["ok"]]
    acts["run"] = throw(ValueError("no"))
    outcome = runner.run(attempt_at("runner.early"))
    assert isinstance(outcome, Acknowledged)
    assert (outcome.succeeded, outcome.error.partition("\n")[0]) == (False, "ValueError: no")
    assert calls == ["run", "on_failure", "on_dead"]


@pytest.mark.parametrize("kind", ["runner.hooked", "runner.async_hooked"])
def test_an_attempt_ended_from_outside_has_its_hooks_too(runner: Runner, kind: str) -> None:
    outcome = runner.timed_out(attempt_at(kind, number=3, max_attempts=3), ChildProcessError("it died"))
    assert isinstance(outcome, Failed)
    assert outcome.error == "ChildProcessError: it died"
    assert calls == ["on_failure", "on_dead"]


def test_what_an_attempt_sets_in_its_context_is_gone_with_it(runner: Runner) -> None:
    """The next task on the thread may be another tenant's."""
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    found: list[str] = []

    def act(*_: Any) -> None:
        found.append(tenant.get())
        tenant.set("ada")

    acts.update({"before": act, "run": act, "after": act})
    runner.run(attempt_at("runner.hooked"))
    runner.run(attempt_at("runner.hooked"))
    assert found == ["nobody", "ada", "ada"] * 2
    acts.clear()
    acts["on_dead"] = act
    for _ in range(2):
        runner.timed_out(attempt_at("runner.hooked", number=3, max_attempts=3), ChildProcessError("it died"))
    assert found[6:] == ["nobody"] * 2
    assert tenant.get() == "nobody"


async def in_a_task_group(error: BaseException) -> None:
    async def child() -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(child())
        group.create_task(asyncio.sleep(60))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Snooze(in_=9), Snoozed(9)),
        (Cancel("enough"), Cancelled("enough")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_task_of_a_task_group_raises_is_what_the_job_raises(
    runner: Runner, error: BaseException, outcome: Outcome
) -> None:
    acts["run"] = lambda *_: in_a_task_group(error)
    assert asyncio.run(runner.run_async(attempt_at("runner.async"))) == outcome


def test_the_error_of_a_task_group_is_told_and_grouped_by_what_failed_in_it(runner: Runner) -> None:
    acts["run"] = lambda *_: in_a_task_group(KeyError("k"))
    failed = asyncio.run(runner.run_async(attempt_at("runner.async")))
    assert isinstance(failed, Failed)
    assert failed.error.startswith("KeyError: 'k'\n")
    assert "unhandled errors in a TaskGroup" in failed.error
    assert failed.error_type == "KeyError"
    assert failed.place.endswith("in_a_task_group.<locals>.child")
    assert failed.retry
    acts["run"] = lambda *_: in_a_task_group(Fail("no", retry=False))
    refused = asyncio.run(runner.run_async(attempt_at("runner.async")))
    assert isinstance(refused, Failed)
    assert not refused.retry
    acts["run"] = lambda *_: in_a_task_group(Retry(in_=33))
    again = asyncio.run(runner.run_async(attempt_at("runner.async")))
    assert isinstance(again, Failed)
    assert (again.retry, again.delay_s, again.error) == (True, 33, "Retry: the job asked for a retry")


def test_a_group_of_several_errors_names_the_first_of_them(runner: Runner) -> None:
    inner = ExceptionGroup("inner", [ValueError("b"), OSError("c")])
    acts["run"] = throw(ExceptionGroup("outer", [KeyError("a"), inner, TypeError("d")]))
    failed = runner.run(attempt_at("runner.plain"))
    assert isinstance(failed, Failed)
    first = failed.error.partition("\n")[0]
    assert first == "ExceptionGroup: outer (3 sub-exceptions): KeyError: 'a'; ValueError: b; OSError: c"
    assert failed.error_type == "ExceptionGroup"
