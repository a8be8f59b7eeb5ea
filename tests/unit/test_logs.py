"""Logs of a process that works."""

import io
import json
import logging
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout
from jobrunner.log_output import log_to_stderr
from jobrunner.logs import IDENTITY, RUNNING, SafeLogger, logger
from jobrunner.loop import Loop
from jobrunner.outcome import Failed
from jobrunner.redaction import Redaction, hide_in_errors
from jobrunner.tracebacks import short_traceback
from jobrunner.worker import process_guard
from jobrunner.worker.run.executor import FinishedAttempts, RunAttempt, ThreadExecutor
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at


def test_a_log_that_cannot_be_written_ends_no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = (tmp_path / "log").open("w")
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("console")
    stream.close()
    structlog.get_logger().warning("no reader")


class BlockedStream(io.StringIO):
    """A stream on which the process of the test writes for as long as `ends` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.owner, self.begun, self.ends = os.getpid(), threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        if os.getpid() == self.owner:
            self.begun.set()
            self.ends.wait(60)
        return super().write(text)


def test_a_fork_logs_while_a_thread_of_its_parent_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BlockedStream()
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("json")
    log = structlog.get_logger()
    writer = threading.Thread(target=log.info, args=["of a thread"])
    writer.start()
    assert stream.begun.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        log.info("of a fork")
        os._exit(7 if '"of a fork"' in stream.getvalue() else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        stream.ends.set()
        writer.join()


@pytest.mark.parametrize("error", [ValueError("it fails"), SystemExit("it fails")])
def test_the_error_that_ends_a_fork_of_a_job_is_a_line_of_the_log(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "log"
    pid = os.fork()
    if pid == 0:
        with path.open("w") as stream:
            sys.stderr = stream
            log_to_stderr("json")
            process_guard.leave_fork(os.getppid(), error)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    line = json.loads(path.read_text())
    assert (line["event"], line["pid"]) == ("an error ended a forked process", pid)
    assert "it fails" in line.get("exception", "") + line.get("error", "")


class BrokenSlots:
    """Slots whose attempts cannot be run, which a slot logs."""

    def new_run(self) -> RunAttempt:
        def run(_: Attempt) -> Failed:
            raise ValueError("no")

        return run

    def end(self, run: RunAttempt) -> None:
        pass

    def close(self) -> None:
        """Nothing to end."""


def _fails(*_: object) -> str:
    raise RuntimeError("this log is broken")


@pytest.fixture(params=["closed stream", "broken processor"])
def _broken_log(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """structlog as a program set it up that does not run under the command line."""
    if request.param == "broken processor":
        structlog.configure(processors=[_fails])
        return
    stream = (tmp_path / "log").open("w")
    stream.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(stream))


@pytest.mark.usefixtures("_broken_log")
def test_a_log_that_somebody_else_set_up_ends_no_loop() -> None:
    def step() -> float:
        SafeLogger("jobrunner.any").info("a turn")
        raise ValueError("and the loop tells of this")

    assert Loop("any", step).turn() > 0


@pytest.mark.usefixtures("_broken_log")
def test_a_log_that_somebody_else_set_up_ends_no_slot() -> None:
    finished = FinishedAttempts(lambda: None)
    executor = ThreadExecutor(1, BrokenSlots(), finished)
    try:
        for _ in range(2):
            executor.submit([attempt_at("any")])
            ((_, outcome),) = wait_for(finished.drain)
            assert isinstance(outcome, Failed)
    finally:
        executor.close()


def test_an_own_log_says_what_structlog_is_set_up_for() -> None:
    with structlog.testing.capture_logs() as lines:
        log = SafeLogger("jobrunner.any")
        log.info("one", number=1)
        log.warning("two")
        log.error("three")
        log.exception("four")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("one", "info"), ("two", "warning"), ("three", "error"), ("four", "error"),
    ]  # fmt: skip
    assert lines[0]["number"] == 1


def _raise_in_library() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise KeyError("no") from error


def _traceback_of(function: Callable[[], None]) -> str:
    try:
        function()
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError


class Unprintable:
    """An object that no log can write."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture(params=["console", "json"])
def logged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The text that the log of a command writes."""
    yield from set_up(request.param, monkeypatch)


@pytest.fixture
def logged_as_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The same, in JSON."""
    yield from set_up("json", monkeypatch)


def set_up(form: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Yields what the log writes. Logging is set up as before when the test ends."""
    stream, root, before = io.StringIO(), logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr(form)
    yield stream
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ({"exception": ValueError("broken pipe")}, "ValueError: broken pipe"),
        ({"stack": 5}, "5"),
        ({"seats": {(1, 2): "ada"}}, "(1, 2)"),
        ({"value": Unprintable(), "other": "kept"}, "kept"),
    ],
)
def test_a_job_may_log_any_value(logged: io.StringIO, said: dict[str, Any], written: str) -> None:
    structlog.get_logger().warning("sending", **said)

    assert "sending" in logged.getvalue()
    assert written in logged.getvalue()


def test_a_line_is_json_whatever_numbers_it_has(logged_as_json: io.StringIO) -> None:
    numbers = [{"most": math.inf, "n": 1}, (-math.inf,)]
    structlog.get_logger().info("own", share=math.nan, of=numbers, by={math.nan: 2})
    logging.getLogger("of a library").warning("its own", extra={"share": math.nan, "n": 1})
    structlog.get_logger().info("endless", inner=endless())

    lines = logged_as_json.getvalue().splitlines()
    own, others, last = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert own["share"] == "nan"
    assert own["of"] == [{"most": "inf", "n": 1}, ["-inf"]]
    assert own["by"] == {"nan": 2}
    assert (others["share"], others["n"]) == ("nan", 1)
    assert last["event"] == "endless"


def endless() -> list[Any]:
    found: list[Any] = [math.nan]
    found.append(found)
    return found


def test_fields_named_as_those_of_every_line_are_kept(logged_as_json: io.StringIO) -> None:
    """The level and the time of the line replaced them."""
    structlog.get_logger().info("sold", level="gold", timestamp=5, logger="till", stack_info=True)

    (said,) = map(json.loads, logged_as_json.getvalue().splitlines())
    assert (said["extra_level"], said["extra_timestamp"], said["logger"]) == ("gold", 5, "till")
    assert said["level"] == "info"
    assert "in test_fields_named_as_those_of_every_line_are_kept" in said["stack"]


def test_arguments_that_do_not_fit_their_message_are_one_line(
    logged_as_json: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own handler writes two tracebacks in plain text, and not which task it was."""
    root = logging.getLogger()
    of_command = [one for one in root.handlers if type(one).__name__ == "StandardHandler"]
    monkeypatch.setattr(root, "handlers", of_command)  # pytest's own raises the error
    token = RUNNING.set(SimpleNamespace(attempt=attempt_at("mail", id="id1")))  # type: ignore[arg-type]
    try:
        logging.getLogger("of a library").warning("%d sent", "three")
    finally:
        RUNNING.reset(token)

    (said,) = map(json.loads, logged_as_json.getvalue().splitlines())
    assert (said["event"], said["message"], said["args"]) == ("a log line cannot be written", "%d sent", "('three',)")
    assert said["error"].startswith("TypeError: ")
    assert (said["level"], said["task"], said["file"]) == ("error", "id1", __file__)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("of a library").warning("%d sent", "three")
    assert len(logged_as_json.getvalue().splitlines()) == 1


class Late:
    """A value that is written as the time of the job ends."""

    def __repr__(self) -> str:
        raise AttemptTimeout("late")


@pytest.mark.parametrize(
    "write",
    [
        lambda: structlog.get_logger().info("said", value=Late()),
        lambda: logging.getLogger("of a library").warning("said %s", Late()),
        lambda: SafeLogger("jobrunner.worker").info("said", value=Late()),
    ],
)
def test_a_timeout_that_falls_into_the_writing_of_a_line_ends_the_job(
    logged: io.StringIO, write: Callable[[], object]
) -> None:
    with pytest.raises(AttemptTimeout):
        write()
    assert logged.getvalue() == ""


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What a program without a worker that has set up standard logging alone finds in its handlers, from `info` on."""
    monkeypatch.setattr(IDENTITY, "worker", "")
    caplog.set_level(logging.INFO)
    return caplog


def test_a_program_that_has_not_set_structlog_up_finds_lines_in_its_own_logging(
    records: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log = SafeLogger("jobrunner.any")
    log.debug("below the level")
    log.info("one", number=1, share="50 %s")
    log.warning("two", exception="Traceback …")

    first, second = records.records
    assert (first.name, first.levelname, first.getMessage()) == ("jobrunner.any", "INFO", "one number=1 share=50 %s")
    assert first.jobrunner == {"number": 1, "share": "50 %s"}
    assert (second.levelname, second.getMessage()) == ("WARNING", "two\nTraceback …")
    assert capsys.readouterr().out == "", "the output of the program is its own"


def test_lines_about_different_tasks_are_one_group_for_an_error_tracker(records: pytest.LogCaptureFixture) -> None:
    """Sentry and others group by the message without its arguments: each task that died was an issue of its own."""
    for task in ("first", "second 100%"):
        SafeLogger("jobrunner.any").error("died, 50% left", task=task, exception="Traceback …")
    first, second = records.records
    assert first.msg == second.msg
    assert second.getMessage() == "died, 50% left task=second 100%\nTraceback …"


def test_its_lines_have_the_ids_of_the_attempt_and_the_traceback_of_an_error(records: pytest.LogCaptureFixture) -> None:
    running = RUNNING.set(SimpleNamespace(attempt=attempt_at("mail")))
    try:
        raise ValueError("no address")
    except ValueError as error:
        logger("jobrunner.job").bind(customer=7).exception("%s of %d failed", "one", 2)
        logger("jobrunner.job").error("failed", exception=error)
    finally:
        RUNNING.reset(running)

    for record in records.records:
        assert record.exc_info is not None
        assert record.exc_info[0] is ValueError
        assert record.jobrunner["job"] == "mail"
    assert records.records[0].getMessage().startswith("one of 2 failed customer=7 ")


def test_any_value_can_be_logged_there_and_a_timeout_ends_the_job(records: pytest.LogCaptureFixture) -> None:
    logger("jobrunner.job").info("sending", value=Unprintable())

    assert records.messages == ["sending value=(Unprintable cannot be written: RuntimeError)"]
    with pytest.raises(AttemptTimeout):
        SafeLogger("jobrunner.any").info("said", value=Late())


@pytest.mark.parametrize("name", ["event", "level", "timestamp", "logger"])
def test_extra_fields_of_standard_logging_replace_nothing(logged: io.StringIO, name: str) -> None:
    logging.getLogger("app").warning("order %d", 7, extra={name: 7031, "article": "tea"})

    written = logged.getvalue()
    assert all(part in written for part in ("order 7", "warning", "app", "tea", f"extra_{name}", "7031"))
    assert "Logging error" not in written


def _log_secrets() -> None:
    secret, log = "S3CRET", structlog.get_logger()
    logging.getLogger("app").warning("password=%s and %s", secret, {"api_key": secret}, extra={"iban": secret})
    log.warning("sending", card={"numbers": [{"iban": secret}]}, token=secret, article="tea")
    log.warning("refused", exception=ValueError(f"iban={secret!r}"))
    try:
        raise ValueError(f"password={secret}")
    except ValueError:
        log.exception("failed")


def test_lines_of_a_job_hide_what_redaction_hides(logged: io.StringIO) -> None:
    hide_in_errors(Redaction(["iban"]))
    running = RUNNING.set(SimpleNamespace(attempt=attempt_at("any")))
    try:
        _log_secrets()
    finally:
        RUNNING.reset(running)
        hide_in_errors(Redaction())

    assert all(part in logged.getvalue() for part in ("sending", "tea", "refused", "failed", "ValueError"))
    assert "S3CRET" not in logged.getvalue()


def test_a_line_of_a_job_shows_numbers_of_what_is_counted(logged: io.StringIO) -> None:
    running = RUNNING.set(SimpleNamespace(attempt=attempt_at("any")))
    try:
        structlog.get_logger().info("answered: tokens=7031, token=S3CRET", max_tokens=4096, api_tokens="S3CRET")
    finally:
        RUNNING.reset(running)

    assert all(part in logged.getvalue() for part in ("tokens=7031", "4096"))
    assert "S3CRET" not in logged.getvalue()


def test_a_short_traceback_folds_libraries_and_keeps_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)

    lines = short_traceback(_traceback_of(_raise_in_library)).splitlines()

    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith('  File "test_logs.py", line ')
    assert any(line.startswith("  … ") and "json/decoder.py:" in line for line in lines)
    assert not any("decoder.py" in line and "File" in line for line in lines)
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines[-1] == "KeyError: 'no'"
    assert "    raise KeyError(\"no\") from error" in lines


def test_an_error_is_logged_when_the_working_directory_was_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its line was lost, and one that a job wrote ended the attempt."""
    text, stream = _traceback_of(_raise_in_library), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("console")
    (folder := tmp_path / "release").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    structlog.get_logger().error("mine", exception=text)

    assert "mine" in stream.getvalue()
    assert f'File "{__file__}", line ' in stream.getvalue()


def test_the_way_from_the_worker_to_a_job_is_left_out_and_an_end_in_a_library_is_named() -> None:
    ours = f'  File "{Path(SafeLogger.__init__.__code__.co_filename)}", line 7, in run\n    work()\n    ^^^^'
    theirs = '  File "/srv/app/jobs.py", line 2, in job\n    helper()'
    head, last = "Traceback (most recent call last):", "ValueError: no"

    assert short_traceback("\n".join((head, ours, theirs, last))).splitlines() == [head, *theirs.splitlines(), last]
    for path in ("/venv/lib/python3.13/site-packages/jobrunner/worker/run/runner.py", "/usr/lib/python3.12/runpy.py"):
        elsewhere = f'  File "{path}", line 7, in run'  # of a worker on another machine
        assert short_traceback("\n".join((head, elsewhere, theirs, last))).splitlines()[1:3] == theirs.splitlines()[:2]
    alone = short_traceback("\n".join((head, ours, ours, last))).splitlines()
    assert alone == [head, "  … 2 frames of libraries, to jobrunner/logs.py:7", last]


def test_a_short_traceback_is_bounded_and_ends_with_the_error() -> None:
    frames = "\n".join(f'  File "/srv/{number}.py", line 1, in f\n    f()' for number in range(500))

    lines = short_traceback(f"{frames}\nValueError: no").splitlines()

    assert len(lines) == 41
    assert lines[0] == "… 961 lines"
    assert lines[-1] == "ValueError: no"


def test_the_console_shortens_lists_and_gives_durations_a_unit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w+") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        log_to_stderr("console", "warning")
        log = SafeLogger("jobrunner.any")
        log.info("not logged")
        log.warning("found", jobs=[f"job{number}" for number in range(300)], took=0.012)
        log.error("died", exception="one\x1b[31m\ntwo")
        stream.seek(0)
        written = stream.read()

    assert "not logged" not in written
    assert "300 (job0, job1, job2, job3, job4, job5, job6, job7 …)" in written
    assert "12 ms" in written
    assert "one\\x1b[31m\ntwo" in written
