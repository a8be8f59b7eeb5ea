"""`jobrunner server` and `jobrunner doctor`, on an embedded server of a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.client import current
from jobrunner.client.client import Client
from jobrunner.errors import JavaMissing
from jobrunner.jobs.registry import forget
from jobrunner.task import Task, new_id


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/own"


def test_a_look_starts_nothing(cli: Callable[..., Any], url: str, tmp_path: Path) -> None:
    result = cli("server", "status", "--url", url, "--json")

    assert (result.code, result.value["running"], result.value["users"]) == (1, False, 0)
    assert not (tmp_path / "own").exists()


@pytest.fixture
def subfolder(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in a project whose server no variable names."""
    monkeypatch.delenv("JOBRUNNER_URL")
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / "src" / "app"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


READS = ("status", "queues list", "queues settings mail", "tasks list mail", "dead list mail", "history list mail",
         "periodic list", "pipeline list", "redact list", "events", "top --json")  # fmt: skip


@pytest.mark.parametrize("words", READS)
def test_a_command_that_reads_starts_no_server(
    cli: Callable[..., Any], subfolder: Path, tmp_path: Path, words: str
) -> None:
    result = cli(*words.split())

    assert (result.code, result.out) == (1, "")
    assert f"no server is running for {tmp_path}" in result.line
    assert "start one with jobrunner work" in result.line
    assert not [*subfolder.iterdir()]
    assert not (tmp_path / ".jobrunner").exists()


def test_a_command_that_writes_starts_the_server_of_the_project_and_says_so(
    cli: Callable[..., Any], subfolder: Path, tmp_path: Path
) -> None:
    first = cli("redact", "add", "iban")
    after = cli("redact", "list")

    assert (first.code, first.line) == (0, f"started a private server in {tmp_path}/.jobrunner")
    assert not [*subfolder.iterdir()]
    assert after.code == 1
    assert f"its tasks are kept in {tmp_path}/.jobrunner" in after.err


def test_a_cancel_by_conditions_starts_the_server_that_keeps_the_tasks(
    cli: Callable[..., Any], keys: Any, subfolder: Path, tmp_path: Path
) -> None:
    with Client(f"embedded://{tmp_path}/.jobrunner", keys.prefix) as client:
        client.queue("mail").push(1)

    result = cli("tasks", "cancel", "--queue", "mail", "--yes")

    assert (result.code, result.out) == (0, "cancelled 1 task of queue mail\n")
    assert result.line == f"started a private server in {tmp_path}/.jobrunner"


def test_a_folder_below_finds_the_server_that_runs(cli: Callable[..., Any], subfolder: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").unlink()
    with Client(f"embedded://{tmp_path}/.jobrunner") as client:
        client.redact("iban")

        seen = cli("redact", "list", "--json")

    assert (seen.code, seen.err) == (0, "")
    assert seen.value["server"] == ["iban"]


def test_a_server_in_use_is_shown_and_stopped(cli: Callable[..., Any], url: str) -> None:
    with Client(url) as client:
        client.queues()
        assert "running  yes, pid" in cli("server", "status", "--url", url).out

        assert cli("server", "stop", "--url", url).out == "stopped\n"
        assert cli("server", "status", "--url", url).code == 1
    assert cli("server", "stop", "--url", url).code == 1


def test_a_server_that_is_not_embedded_is_not_touched(cli: Callable[..., Any], client: Client) -> None:
    assert cli("server", "stop").code == 2

    assert client.queues() == []


def test_a_sound_set_up_passes_the_doctor(cli: Callable[..., Any], url: str) -> None:
    result = cli("doctor", "json", "--url", url)

    assert result.code == 0
    assert not [line for line in result.out.splitlines() if line.startswith("fail")]


def test_the_doctor_says_no_when_the_server_is_away(cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("doctor", "--url", f"unix://{tmp_path}/nothing", "--json")

    assert result.code == 1
    assert [check["what"] for check in result.value if check["verdict"] == "fail"] == ["server"]


def test_the_doctor_finds_a_server_that_evicts_and_a_module_that_is_not_there(
    cli: Callable[..., Any], start_server: Callable[..., Any]
) -> None:
    evicting = start_server(maxmemory="100mb", maxmemory_policy="allkeys-lru")

    result = cli("doctor", "not_there", "--url", evicting.url, "--json")

    assert result.code == 1
    assert [check["what"] for check in result.value if check["verdict"] == "fail"] == ["module", "eviction"]


def test_the_doctor_holds_a_durability_against_the_server_and_sums_up(
    cli: Callable[..., Any], start_server: Callable[..., Any]
) -> None:
    result = cli("doctor", "json", "--durability", "fsync", "--url", start_server().url)

    assert result.code == 1
    assert 'fail  promise     durability="fsync" without an append-only file; set appendonly yes' in result.out
    assert result.err.startswith("1 check failed, ")


def test_the_doctor_finds_that_spark_has_no_java(cli: Callable[..., Any], url: str, monkeypatch: Any) -> None:
    def nowhere(_: Any) -> Any:
        raise JavaMissing("Spark needs Java 17 or newer and there is none; pip install it")

    monkeypatch.setattr("jobrunner.spark.java.find_java", nowhere)
    monkeypatch.setattr("jobrunner.cli.doctor.find_spec", lambda _: True)

    result = cli("doctor", "json", "--url", url)

    assert (result.code, "fail  java" in result.out) == (1, True)


def test_the_doctor_looks_at_tasks_with_the_modules_that_are_named(
    cli: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "doctored.py").write_text("from jobrunner import job\n\n@job()\ndef here(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    client.enqueue(Task(id=new_id("mail"), queue="mail", type="gone", payload=b"{}"))

    found = cli("doctor", "doctored", "--json").value
    forget("here")

    assert [check["found"] for check in found if check["what"] == "job"] == [
        "mail: tasks of job 'gone', which the modules do not declare"
    ]


@pytest.mark.parametrize(
    "table", ["[tool.jobrunner.queues.mail]\nmax_atempts = 3", "[tool.jobrunner.job_defaults]\nmax_atempts = 3"]
)
def test_doctor_finds_a_table_that_keeps_workers_from_starting(cli: Any, tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(table)
    result = cli("doctor", "--json")
    assert result.code == 1
    (found,) = [check for check in result.value if check["what"] == "file"]
    assert (found["verdict"], "did you mean 'max_attempts'?" in found["found"]) == ("fail", True)


def test_the_doctor_looks_at_the_server_that_a_module_configures(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    away = f"unix://{tmp_path}/nothing"
    (tmp_path / "configuring.py").write_text(f"import jobrunner\n\njobrunner.configure({away!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        found = {check["what"]: check for check in cli("doctor", "configuring", "--json").value}
    finally:
        current.forget()

    assert found["url"]["found"] == f"{away}, of the client that a module configures"
    assert found["server"]["verdict"] == "fail"
