"""Child processes of a worker know the jobs that its program has imported."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Client, Worker, job
from jobrunner.errors import InvalidOption
from jobrunner.jobs import registry
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
