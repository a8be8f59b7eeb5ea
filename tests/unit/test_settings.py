"""Where a setting comes from: argument, environment, pyproject.toml, default."""

from pathlib import Path

import pytest

from jobrunner.client.client import Client
from jobrunner.client.internals import endpoint_of
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.settings import WorkerSettings, client_settings, file_settings


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


def test_modules_come_from_the_nearest_pyproject(project: Path) -> None:
    assert file_settings().modules == ("tasks",)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[tool.jobrunner]\nulr = 'x'", UnknownOption, "did you mean 'url'"),
        ("[tool.jobrunner]\nurl = 5", InvalidOption, "url = 5"),
        ("[tool.jobrunner]\nmodules = 'tasks'", InvalidOption, "list of module names"),
        ("[tool.jobrunner", InvalidOption, "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(project: Path, text: str, error: type[Exception], words: str) -> None:
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(error, match=r"pyproject\.toml") as raised:
        file_settings()
    assert words in str(raised.value)


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
