"""Options for all jobs: which of several counts, and where they are read from."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Backoff, Job, job, job_defaults, queue
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.jobs.build import build_task
from jobrunner.jobs.enqueue_options import NOW, EnqueueOptions
from jobrunner.jobs.job_defaults import read_configured_defaults

SLOW = Backoff(base=15, cap=600)
OWN = Backoff(base=1)


@pytest.fixture
def plain() -> Any:
    @job(name="defaults.plain", queue="mail")
    def plain() -> None: ...

    return plain.definition


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """project(text): the pyproject.toml of the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "pyproject.toml").write_text(text)
        read_configured_defaults()

    return write


def test_a_job_gets_the_options_that_it_does_not_declare(plain: Any) -> None:
    job_defaults(max_attempts=9, timeout=timedelta(minutes=5), backoff=SLOW, retry_on=OSError, result_ttl=5)

    assert plain.options.max_attempts == 9
    assert (plain.options.timeout, plain.options.backoff, plain.options.retry_on) == (300.0, SLOW, OSError)
    task = build_task(plain, plain.parameters.struct(), NOW)
    assert (task.max_attempts, task.kept_s) == (9, 0)
    own = EnqueueOptions(max_attempts=2)
    assert build_task(plain, plain.parameters.struct(), own).max_attempts == 2


def test_the_own_options_of_a_job_win_also_those_that_are_the_usual_ones() -> None:
    job_defaults(max_attempts=9, result_ttl=5, timeout=300)

    @job(name="defaults.own", queue="mail", max_attempts=5, result_ttl=60)
    class Own(Job):
        def run(self) -> None: ...

    assert Own.definition is not None
    options = Own.definition.options
    assert (options.max_attempts, options.result_ttl, options.timeout) == (5, 60.0, 300.0)


def test_they_may_be_given_after_a_job_was_used_and_taken_back(plain: Any) -> None:
    assert (plain.options.timeout, plain.template.max_attempts) == (None, None)
    job_defaults(timeout=10, max_attempts=2)
    assert (plain.options.timeout, plain.template.max_attempts) == (10.0, 2)
    job_defaults(timeout=20)
    assert (plain.options.timeout, plain.template.max_attempts) == (20.0, 2)
    job_defaults(max_attempts=None)
    assert (plain.options.timeout, plain.template.max_attempts) == (20.0, None)


def test_the_queue_of_the_job_decides_also_for_a_task_that_goes_to_another(plain: Any) -> None:
    queue("slow", max_attempts=3)
    queue("mail", expires_in=60)
    job_defaults(max_attempts=9, expires_in=5)

    task = build_task(plain, plain.parameters.struct(), EnqueueOptions(queue="slow"))
    assert (task.queue, task.max_attempts, task.expires_in_ms) == ("slow", 9, None)


def test_what_the_queue_of_a_job_declares_goes_before(plain: Any) -> None:
    job_defaults(max_attempts=9, keepalive=10, expires_in=60, backoff=SLOW, timeout=7)
    assert plain.options.max_attempts == 9
    queue("mail", max_attempts=20, backoff=OWN, keepalive=None)

    assert (plain.options.max_attempts, plain.options.backoff, plain.options.keepalive) == (None, None, None)
    assert (plain.options.expires_in, plain.options.timeout) == (60.0, 7.0)


def test_they_may_be_in_the_file_and_code_goes_before_option_by_option(
    plain: Any, project: Callable[[str], None]
) -> None:
    project("""
        [tool.jobrunner.job_defaults]
        max_attempts = 9
        timeout = "5m"
        expires_in = 60
        backoff = { base = 15, cap = 600 }
        [tool.jobrunner.queues.mail]
        expires_in = "1h"
    """)
    assert (plain.options.max_attempts, plain.options.timeout, plain.options.backoff) == (9, 300.0, SLOW)
    assert plain.options.expires_in is None
    job_defaults(timeout=7)
    assert (plain.options.max_attempts, plain.options.timeout) == (9, 7.0)


def test_the_file_is_read_at_the_first_use(plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.jobrunner.job_defaults]\ntimeout = 3\n")
    monkeypatch.chdir(tmp_path)
    assert plain.options.timeout == 3.0


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ("max_retries = 3", UnknownOption, r"'max_retries' in .*toml; did you mean 'max_attempts'\?"),
        ("queue = 'mail'", UnknownOption, "'queue'"),
        ("timeout = 'soon'", InvalidOption, "timeout = 'soon' .*no length of time"),
        ("timeout = 0", InvalidOption, "timeout=0"),
        ("backoff = 5", InvalidOption, "backoff = 5 .* give a table"),
        ("backoff = { bass = 5 }", InvalidOption, "did you mean .base"),
        ("retry_on = 'OSError'", InvalidOption, r"retry_on .*job_defaults\(retry_on=…\)"),
        ("max_attempts = -1", InvalidOption, "max_attempts=-1"),
    ],
)
def test_a_wrong_option_of_the_file_is_refused_with_its_place(
    plain: Any, project: Callable[[str], None], table: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        project(f"[tool.jobrunner.job_defaults]\n{table}\n")
    assert "[tool.jobrunner.job_defaults] of " in str(raised.value)
    with pytest.raises(error):
        plain.options  # noqa: B018


def test_a_table_of_the_file_that_is_none_is_refused(plain: Any, project: Callable[[str], None]) -> None:
    with pytest.raises(InvalidOption, match="give a table"):
        project("[tool.jobrunner]\njob_defaults = 3\n")


@pytest.mark.parametrize(("options", "text"), [({"retries": 3}, "'retries'"), ({"timeout": -1}, "timeout is -1")])
def test_a_wrong_option_in_code_is_refused_and_changes_nothing(plain: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidOption if "timeout" in options else UnknownOption, match=text):
        job_defaults(max_attempts=9, **options)
    assert plain.options.max_attempts is None
