"""Rules for every command: JSON on stdout, messages on stderr, exit codes 0 done, 1 no, 2 misuse, an own example."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.cli import options
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.periodic import AddedDefinition, PeriodicDefinition
from tests.unit.cli.test_main import ALL

PROJECT = """
from datetime import timedelta
from jobrunner import PeriodicJob, job
from jobrunner.etl import Pipeline

@job(queue="maths")
def add_up(x: int): ...

@job(every=timedelta(minutes=5))
class Tick(PeriodicJob):
    def run(self): ...

shop = Pipeline("shop")

@shop.sink("raw")
def store(item): ...
"""
ANSWERS = {
    "enqueue": ["add_up", "x=1"],
    "status": [],
    "jobs": [],
    "top": ["--every", "0.1"],
    "queues limit": ["mail", "--max-inflight", "3"],
    "queues delete": ["mail", "--force", "--yes"],
    "queues list": [],
    "queues pause": ["mail"],
    "queues purge": ["mail", "--yes"],
    "queues resume": ["mail"],
    "queues settings": ["mail"],
    "tasks cancel": ["waits", "--queue", "mail"],
    "tasks enqueue": ["add_up", "x=1"],
    "tasks list": ["mail"],
    "tasks run-now": ["later", "--queue", "mail"],
    "tasks show": ["waits", "--queue", "mail"],
    "dead groups": ["mail"],
    "dead list": ["mail"],
    "dead purge": ["mail", "--all", "--yes"],
    "dead requeue": ["mail", "--all"],
    "pipeline list": [],
    "pipeline push": ["shop/raw", "{}"],
    "pipeline show": ["shop", "--over", "0"],
    "history list": ["mail"],
    "history purge": ["mail", "--yes"],
    "history replay": ["mail", "done"],
    "periodic add": ["acme-tick", "add_up", "x=1", "--every", "5m"],
    "periodic disable": ["Tick"],
    "periodic enable": ["Tick"],
    "tasks requeue": ["dies", "--queue", "mail"],
    "workers list": [],
    "periodic list": [],
    "periodic remove": ["added"],
    "periodic run": ["Tick"],
    "redact add": ["iban"],
    "redact list": [],
    "redact remove": ["pin"],
    "bench": ["--tasks", "100"],
    "doctor": [],
}
"""Arguments for each command, on a server that has the named objects."""
NEEDS_NO_SERVER = {"pipeline diagram": ["shop"], "completion": ["bash"]}
TESTED_ELSEWHERE = {
    "work": "tests/acceptance/test_cli_work.py",
    "pipeline run": "tests/acceptance/test_cli_pipeline.py",
    "history archive": "tests/spark/test_archive.py",
    "history report": "tests/spark/test_report.py",
    "pipeline lag": "tests/worker/test_batch_log.py",
    "spark compact": "tests/unit/spark/test_compaction.py",
    "spark clean": "tests/unit/spark/lake/test_services.py",
    "server status": "tests/unit/cli/test_server.py",
    "server stop": "tests/unit/cli/test_server.py",
    "demo": "tests/unit/cli/test_demo.py",
    "dashboard": "tests/unit/web",
    "events": "tests/unit/cli/test_events.py",
    "payloads sweep": "tests/worker/test_payload_store.py",
    "queues reset": "tests/unit/cli/test_queues.py",
    "workers quiet": "tests/unit/cli/test_workers.py",
    "workers resume": "tests/unit/cli/test_workers.py",
    "workers stop": "tests/unit/cli/test_workers.py",
    "soak": "tests/unit/cli/test_soak.py",
}
"""The tests of commands that run until stopped, run Spark, or read a folder."""


@pytest.fixture
def project(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with a job, a periodic job and a pipeline."""
    (tmp_path / "contract_jobs.py").write_text(PROJECT)
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nmodules = ["contract_jobs"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "contract_jobs", raising=False)


@pytest.fixture
def filled(client: Client) -> None:
    """A queue `mail` with a task in each state, and one that is done and kept."""
    mail = client.queue("mail")
    client.redact("pin")
    mail.configure(max_attempts=1, history=3600)
    for task_id in ("dies", "done", "waits"):
        mail.push({"token": "hunter2"}, id=task_id)
    mail.push({"token": "hunter2"}, id="later", in_=60)
    tick = PeriodicDefinition(name="Tick", queue="mail", schedule={"cron": "0 3 * * *", "tz": "UTC"}, payload=b"",
                              catch_up="last", overlap="skip", jitter=0.0)  # fmt: skip
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"Tick": msgspec.json.encode(tick)}))
    added = AddedDefinition(**{**msgspec.structs.asdict(tick), "name": "added", "runs": "Tick", "generation": "1"})
    broker_of(client).run(
        leader_calls.set_added_periodic(
            keys_of(client), "added", expected=b"", definition=msgspec.json.encode(added)
        )
    )
    dies, done = mail.reserve(2)
    dies.rollback(error="no")
    done.commit()


def test_every_command_is_asked_here_or_has_its_own_tests() -> None:
    root = Path(__file__).parents[3]

    assert ANSWERS.keys() | NEEDS_NO_SERVER.keys() | TESTED_ELSEWHERE.keys() == ALL.keys()
    assert not ANSWERS.keys() & TESTED_ELSEWHERE.keys()
    assert all((root / place).exists() for place in TESTED_ELSEWHERE.values())


@pytest.mark.parametrize("name", [*ANSWERS, *NEEDS_NO_SERVER])
def test_with_json_the_answer_is_one_value_and_nothing_else(
    cli: Callable[..., Any], project: None, filled: None, name: str
) -> None:
    words = {**ANSWERS, **NEEDS_NO_SERVER}[name]

    result = cli(*name.split(), *words, "--json")

    assert result.code == 0, result.err
    assert isinstance(result.value, dict | list)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_that_is_away_is_a_no_in_one_line(
    cli: Callable[..., Any], project: None, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_RETRY_TIMEOUT_S", 0.0)

    result = cli(*name.split(), *ANSWERS[name], "--url", f"unix://{tmp_path}/nothing")

    assert result.code == 1
    if name != "doctor":  # its answer is that the server is away
        assert result.out == ""
        assert result.err.splitlines()[-1].startswith("Error: no server at unix://")


@pytest.mark.parametrize("option", ["--url", "--prefix"])
def test_an_empty_server_or_prefix_is_not_the_default_one(cli: Callable[..., Any], filled: None, option: str) -> None:
    result = cli("queues", "purge", "mail", "--yes", option, "")

    assert (result.code, result.out) == (2, "")
    assert f"'{option}': it is empty: give one" in result.err


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_option_is_misuse_and_help_has_an_example_of_this_command(
    cli: Callable[..., Any], name: str
) -> None:
    misuse, help_ = cli(*name.split(), "--no-such-option"), cli(*name.split(), "--help")

    assert (misuse.code, misuse.out) == (2, "")
    assert misuse.err.startswith("Error: ")
    assert help_.code == 0
    shown = name if name != "tasks enqueue" else "enqueue"
    assert f"jobrunner {shown}" in " ".join(help_.out.split())


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in ("bench", "top", "doctor")])
def test_the_prefix_of_the_line_is_the_one_that_is_used(
    cli: Callable[..., Any], project: None, raw: Any, name: str
) -> None:
    cli(*name.split(), *ANSWERS[name], "--prefix", "own-prefix")

    assert [key for key in raw.scan_iter() if not key.startswith((b"own-prefix:", b"own-prefix/"))] == []


@pytest.mark.parametrize("name", ["tasks list", "tasks show", "dead list", "history list"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_is_named_like_a_secret_is_not_shown(
    cli: Callable[..., Any], filled: None, tmp_path: Path, name: str, form: list[str]
) -> None:
    shown = cli(*name.split(), *ANSWERS[name], *form).out

    assert "hunter2" not in shown
    assert name == "dead list" or "token" in shown


def test_a_command_that_deletes_asks_and_without_a_person_says_so(
    cli: Callable[..., Any], filled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    for words in (("queues", "purge", "mail"), ("dead", "purge", "mail", "--all"), ("history", "purge", "mail")):
        result = cli(*words)
        assert result.code == 2, words
        assert "add --yes" in result.err
