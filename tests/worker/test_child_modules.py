"""Child processes of a worker know the jobs that its program has imported, and have the options of its client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client, Worker, job
from jobrunner.client.current import pinned
from jobrunner.errors import InvalidOption
from jobrunner.jobs import registry
from jobrunner.settings import ClientOptions
from tests.support.server import Server
from tests.worker import current_jobs


@pytest.fixture
def only() -> Callable[..., None]:
    """only(name, …): these jobs alone are declared, as in a small program."""

    def keep(*names: str) -> None:
        for name in set(registry._definitions) - set(names):
            registry.forget(name)

    return keep


def test_a_worker_without_modules_runs_jobs_of_imported_modules_in_processes(
    run: Any, only: Callable[..., None], current: Client
) -> None:
    name = current_jobs.in_child.definition.name
    only(name)
    task = current_jobs.in_child.enqueue()
    assert run(queues=["current"], executor="processes", concurrency=1).finished == 1
    assert task.state == "succeeded"


def test_the_client_of_a_child_has_all_options_of_its_worker_but_the_buffer(
    only: Callable[..., None], current: Client, server: Server, tmp_path: Path
) -> None:
    """A durability was dropped: an enqueue of a job returned before its task was safe."""
    given: dict[str, Any] = {
        "payload_limit": 200_000, "result_limit": 300_000, "retry_timeout": 9.0, "durability_timeout": 3.0,
        "payload_keys": ["q" * 43 + "="], "payload_encryption": "sign", "require_encryption": True,
        "payload_store": tmp_path.as_uri(), "payload_store_above": 70_000,
        "middleware": ["tests.worker.stacked_jobs:Tenant"], "redact": ["iban"],
    }  # fmt: skip
    safe, buffering = {"durability": "fsync"}, {"buffer_tasks": 5, "buffer_bytes": 7_000, "buffer_flush": 1.0}
    assert given.keys() | safe.keys() | buffering.keys() == ClientOptions.__annotations__.keys()
    only(current_jobs.options_in_child.definition.name)
    where = server.url, current.settings.prefix
    for options in (safe, buffering):
        with Client(*where, **given) as producer, Client(*where, **given, **options) as client:
            with pinned(producer):
                task = current_jobs.options_in_child.enqueue()
            Worker(queues=["current"], executor="processes", concurrency=1, client=client).run(burst=True)
            found = task.result()
        expected = {**given, **options, "buffer_tasks": 0}
        del expected["middleware"]  # sent as objects: see test_middleware.py
        assert {name: found[name] for name in expected} == expected


def test_a_module_that_no_other_process_can_import_costs_no_job_of_the_others(
    run: Any, only: Callable[..., None], current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(current_jobs.in_child.definition.name)
    monkeypatch.setattr("jobrunner.worker.assembly.declaring_modules", lambda: ["no.such", "tests.worker.current_jobs"])
    task = current_jobs.in_child.enqueue()
    run(queues=["current"], executor="processes", concurrency=1)
    assert task.state == "succeeded"


def test_a_job_of_the_program_itself_is_refused_where_processes_would_not_know_it(current: Client) -> None:
    def here() -> None: ...

    here.__module__ = "__main__"
    job(name="child_modules.here", queue="of_main")(here)
    assert "__main__" not in registry.declaring_modules()
    with pytest.raises(InvalidOption, match=r"'child_modules.here' is declared in __main__, .*declare it in a"):
        Worker(queues=["of_main"], executor="processes", client=current).run(burst=True)
    assert Worker(queues=["of_main"], client=current).run(burst=True).finished == 0
