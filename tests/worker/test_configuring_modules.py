"""Workers whose module calls `configure`, which closes the client that the process had before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner import Client, Worker, job
from jobrunner.broker.keys import Keys
from jobrunner.client.current import forget as forget_client
from jobrunner.client.current import pinned, use
from jobrunner.errors import UsageError
from jobrunner.jobs.registry import forget
from tests.support.server import Server


@job(name="configuring.note", queue="configuring", result_ttl=60)
def note() -> str:
    return "ran"


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    forget("configuring.note")


@pytest.fixture
def module(server: Server, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is not imported yet, and has the process use the server of the test."""
    name = f"configures_{keys.prefix}"
    (tmp_path / f"{name}.py").write_text(f"import jobrunner\njobrunner.configure({server.url!r}, {keys.prefix!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    forget_client()


def test_a_worker_has_the_client_that_its_module_configures(module: str, server: Server, keys: Keys) -> None:
    """It went on with the closed one: ClientClosed, which named neither the module nor `configure`."""
    use(Client("unix:///no-server", "before"))
    worker = Worker([module], queues=["configuring"])
    with Client(server.url, keys.prefix) as producer:
        with pinned(producer):
            task = note.enqueue()

        assert worker.run(burst=True).finished == 1
        assert task.result(timeout=0) == "ran"


def test_a_module_that_closes_the_client_that_its_worker_was_given_is_an_error_that_names_the_remedy(
    module: str, server: Server, keys: Keys
) -> None:
    given = use(Client(server.url, keys.prefix))
    with pytest.raises(UsageError, match=r"a module of this worker calls configure\(…\), which closed the client"):
        Worker([module], queues=["configuring"], client=given).start()


def test_a_client_of_its_own_stays_that_of_a_worker(module: str, server: Server) -> None:
    with Client(server.url, "own") as own:
        worker = Worker([module], queues=["configuring"], client=own)
        assert worker.run(burst=True).finished == 0
        assert worker.client is own
