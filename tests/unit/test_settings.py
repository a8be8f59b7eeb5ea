"""Where a setting comes from: argument, environment, pyproject.toml, default."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli.work import work
from jobrunner.client.client import Client, endpoint_of
from jobrunner.errors import EmbeddedServerError, InvalidOption, ModuleNotLoadable, UnknownOption
from jobrunner.jobs.registry import load_modules
from jobrunner.queue_settings import RateLimit
from jobrunner.settings import (
    _OF_WORK,
    ClientOptions,
    ClientSettings,
    FileSettings,
    client_settings,
    file_settings,
    working_folder,
)
from jobrunner.worker.settings import WorkerOptions, WorkerSettings
from jobrunner.worker.worker_state import RELEASE_VARIABLES, configured_release


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.jobrunner]\nurl = "redis://file:1"\nprefix = "file"\nmodules = ["tasks"]\n'
    )
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path


def test_an_argument_beats_the_environment_beats_the_file_beats_the_default(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (client_settings().url, client_settings().prefix) == ("redis://file:1", "file")
    monkeypatch.setenv("REDIS_URL", "redis://env:2")
    assert client_settings().url == "redis://env:2"
    monkeypatch.setenv("JOBRUNNER_URL", "redis://own:3")
    monkeypatch.setenv("JOBRUNNER_PREFIX", "env")
    assert (client_settings().url, client_settings().prefix) == ("redis://own:3", "env")
    assert client_settings("redis://arg:4", "arg").url == "redis://arg:4"
    (project / "pyproject.toml").unlink()
    monkeypatch.delenv("REDIS_URL")
    monkeypatch.delenv("JOBRUNNER_URL")
    assert client_settings().url == "embedded://"


@pytest.mark.usefixtures("project")
def test_an_empty_variable_is_none_and_an_empty_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX"):
        monkeypatch.setenv(name, "")
    assert (client_settings().url, client_settings().prefix) == ("redis://file:1", "file")
    for arguments in ({"url": ""}, {"prefix": ""}):
        with pytest.raises(InvalidOption, match="='': give one"):
            Client(**arguments)


def test_what_was_read_stays_in_force_when_the_working_directory_is_deleted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later deployment deletes the folder of an earlier release, of which processes still run."""
    here = file_settings()
    assert here.modules == ("tasks",)
    shutil.rmtree(project)

    assert working_folder() is None
    assert file_settings() == here
    assert client_settings().url == "redis://file:1"
    assert file_settings(Path("/")) == FileSettings()
    with pytest.raises(EmbeddedServerError, match="the working directory was deleted, so the project and its"):
        Client("embedded://")
    with pytest.raises(ModuleNotLoadable, match="here is a deleted folder"):
        load_modules(["json", "gone_with_the_folder"])
    (project / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "src" / "deep")
    assert file_settings() == FileSettings()


def test_modules_come_from_the_nearest_pyproject(project: Path) -> None:
    assert file_settings().modules == ("tasks",)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[tool.jobrunner]\nulr = 'x'", UnknownOption, "did you mean 'url'"),
        ("[tool.jobrunner]\nconcurrency = 4", UnknownOption, "option of a worker: jobrunner work --concurrency"),
        ("[tool.jobrunner]\nmax-tasks = 4", UnknownOption, "option of a worker: jobrunner work --max-tasks"),
        ("[tool.jobrunner]\ndurability = 'fsync'", UnknownOption, "option of configure() and Client()"),
        ("[tool.jobrunner]\nurl = 5", InvalidOption, "url = 5"),
        ("[tool.jobrunner]\nmodules = 'tasks'", InvalidOption, "list of module names"),
        ("[tool.jobrunner]\nredact = 5", InvalidOption, "redact = 5"),
        ("[tool.jobrunner]\npayload_limit = '1MB'", InvalidOption, "='1MB': give a whole number from 1"),
        ("[tool.jobrunner]\nresult_limit = 0", InvalidOption, "=0: give a whole number from 1"),
        ("[tool.jobrunner]\npayload_store_above = -1", InvalidOption, "=-1: give a whole number from 0"),
        ("[tool.jobrunner]\npayload_encryption = 'aes'", InvalidOption, "payload_encryption = 'aes'"),
        ("[tool.jobrunner]\nrequire_encryption = 'yes'", InvalidOption, "require_encryption = 'yes'"),
        ("[tool]\njobrunner = 5", InvalidOption, "give a table, [tool.jobrunner]"),
        ("[tool.jobrunner", InvalidOption, "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(project: Path, text: str, error: type[Exception], words: str) -> None:
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(error, match=r"pyproject\.toml") as raised:
        file_settings()
    assert words in str(raised.value)


def test_every_option_that_is_said_to_be_of_work_is_one() -> None:
    options = {option for parameter in work.params for option in parameter.opts}

    assert {f"--{name.replace('_', '-')}" for name in _OF_WORK} <= options


@pytest.mark.parametrize(
    "url", ["", "foo://x", "localhost:6379", "redis+cluster://", "redis+sentinel://a:1", "redis://h:notaport"]
)
def test_a_url_that_cannot_be_used_is_refused_before_connecting(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption):
        Client(url or "://", "p")


def test_a_password_is_never_shown() -> None:
    client = Client("redis://user:s3cret@host:6379/0")
    assert "s3cret" not in repr(client) + str(endpoint_of(client))


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"executor": "gevent"}, {"max_tasks": -1}, {"max_memory": -1}])
def test_wrong_settings_of_a_worker_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        WorkerSettings(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("per", "interval", "unit"),
    [
        (timedelta(hours=1), 1, "HOURS"), (7200, 2, "HOURS"), (timedelta(minutes=90), 90, "MINUTES"),
        (60.0, 1, "MINUTES"), (timedelta(days=1), 24, "HOURS"), (1, 1, "SECONDS"), (3601, 3601, "SECONDS"),
    ],
)  # fmt: skip
def test_a_rate_is_given_per_length_of_time(per: Any, interval: int, unit: str) -> None:
    rate = RateLimit(15, per=per)

    assert rate == RateLimit(max_tokens=15, interval=interval, interval_unit=unit)
    assert rate.seconds == (per.total_seconds() if isinstance(per, timedelta) else per)
    assert eval(repr(rate)) == rate  # what is shown can be written


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_tokens": 0, "per": 60}, "max_tokens=0: give a whole number from 1"),
        ({"max_tokens": -1}, "max_tokens=-1: give a whole number from 1"),
        ({"max_tokens": 5, "per": 0}, "per is 0; give a timedelta or seconds, from 1"),
        ({"max_tokens": 5, "per": timedelta(seconds=-1)}, "per is .*; give a timedelta or seconds, from 1"),
        ({"max_tokens": 5, "per": 0.5}, "per is 0.5; give a timedelta or seconds, from 1"),
        ({"max_tokens": 5, "per": 1.5}, r"per=1.5: give whole seconds; .* RateLimit\(10, per=1\)"),
        ({"max_tokens": 5, "per": "1h"}, "per is '1h'; give a timedelta or seconds"),
        ({"max_tokens": 5, "per": None}, "per is None; give a timedelta or seconds"),
        ({"max_tokens": 5, "per": 60, "interval": 1}, "per=60 beside interval or interval_unit: give per alone"),
        ({"max_tokens": 5, "per": 60, "interval_unit": "HOURS"}, "per=60 beside interval or interval_unit"),
        ({"max_tokens": 5, "interval": 0}, "interval=0: give a whole number from 1"),
        ({"max_tokens": 5, "interval_unit": "DAYS"}, "interval_unit='DAYS': choose one of SECONDS, MINUTES, HOURS"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        RateLimit(**given)


@pytest.fixture
def no_release(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no release."""
    for name in ("JOBRUNNER_RELEASE", *RELEASE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_release_comes_from_the_environment_the_file_then_the_host(
    project: Path, no_release: pytest.MonkeyPatch
) -> None:
    assert configured_release() == ""
    no_release.setenv("K_REVISION", "web-00042-abc")
    assert configured_release() == "web-00042-abc"
    no_release.setenv("GIT_COMMIT", "1f2e3d4c")
    assert configured_release() == "1f2e3d4c"
    (project / "pyproject.toml").write_text('[tool.jobrunner]\nrelease = "1.4.2"\n')
    assert configured_release() == "1.4.2"
    no_release.setenv("JOBRUNNER_RELEASE", "1.4.3-rc1 (blue)")
    assert configured_release() == "1.4.3-rc1 (blue)"


@pytest.mark.parametrize("name", ["a\nb", "x" * 65, " 1.0", "\x1b[31m", "\u202e1.0"])
def test_a_release_with_odd_characters_is_refused_and_of_the_host_cleaned(
    project: Path, no_release: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(InvalidOption, match=r"^release=.*at most 64 printable"):
        WorkerSettings(release=name)
    (project / "pyproject.toml").write_text(f"[tool.jobrunner]\nrelease = {json.dumps(name)}\n")
    with pytest.raises(InvalidOption, match=r"^release in .*pyproject\.toml=.*at most 64"):
        configured_release()
    no_release.setenv("JOBRUNNER_RELEASE", name)
    with pytest.raises(InvalidOption, match=r"^JOBRUNNER_RELEASE=.*at most 64"):
        configured_release()
    no_release.delenv("JOBRUNNER_RELEASE")
    (project / "pyproject.toml").write_text("")
    no_release.setenv("SOURCE_VERSION", name)
    WorkerSettings(release=configured_release())
    assert configured_release()


def test_a_release_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidOption, match="release=14"):
        WorkerSettings(release=14)  # type: ignore[arg-type]


def test_type_checkers_know_every_option() -> None:
    """Also editors, which complete them."""
    assert ("url", "prefix", *ClientOptions.__annotations__) == ClientSettings.__slots__
    assert ("concurrency", *WorkerOptions.__annotations__) == WorkerSettings.__slots__
