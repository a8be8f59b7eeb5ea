"""The pytest plugin: fixtures for the tests of applications. Installed with jobrunner; see docs/testing.md."""

import itertools
from collections.abc import Iterator, Mapping
from uuid import uuid4

import pytest

from jobrunner.client.client import Client, broker_of
from jobrunner.client.current import configured_client, pinned
from jobrunner.settings import ClientOptions
from jobrunner.testing.enqueued import Enqueued
from jobrunner.testing.inline import inline as run_inline
from jobrunner.testing.servers import open_server, remove_keys
from jobrunner.testing.worker import JobrunnerWorker, Travel


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the ini option and the command line option that choose the server."""
    about = "server of the fixture jobrunner_client: embedded (a real one; default) or fake (fakeredis[lua])"
    parser.addini("jobrunner_server", about)
    parser.getgroup("jobrunner").addoption("--jobrunner-server", choices=("embedded", "fake"), help=about)


@pytest.fixture(scope="session")
def jobrunner_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """URL of the server that the tests of this session share. Override the fixture to use your own server."""
    chosen = pytestconfig.getoption("jobrunner_server") or pytestconfig.getini("jobrunner_server") or "embedded"
    with open_server(chosen) as url:
        yield url


@pytest.fixture(scope="session")
def _jobrunner_prefixes(pytestconfig: pytest.Config) -> Iterator[str]:
    return prefixes(getattr(pytestconfig, "workerinput", {}))


def prefixes(of_xdist: Mapping[str, str]) -> Iterator[str]:
    """Prefixes that no other session uses: on a user's own server, other sessions may run, or have been killed."""
    session = of_xdist.get("testrunuid") or uuid4().hex
    return (f"{session[:8]}-{of_xdist.get('workerid', 'main')}-{number}" for number in itertools.count(1))


@pytest.fixture
def travel() -> Travel:
    """The clock of jobrunner_client and jobrunner_worker: travel.forward(timedelta(hours=3)), travel.to(instant)."""
    return Travel()


@pytest.fixture
def jobrunner_client(
    jobrunner_url: str, _jobrunner_prefixes: Iterator[str], travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """The client through which this test enqueues jobs, with a prefix of its own.

    Clients and processes created without a URL use the same server and prefix, by the environment. Its middleware and
    its limits of payloads and results are those of the client that the application configured.
    """
    options = _options_of(configured_client())
    prefix = next(_jobrunner_prefixes)
    monkeypatch.setenv("JOBRUNNER_URL", jobrunner_url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", prefix)
    with Client(jobrunner_url, prefix, now_ms=travel, **options) as client:
        with pinned(client):
            yield client
        remove_keys(broker_of(client), prefix)


def _options_of(configured: Client | None) -> ClientOptions:
    if configured is None:
        return {}
    found = configured.settings
    return {
        "middleware": found.middleware,
        "payload_limit": found.payload_limit,
        "result_limit": found.result_limit,
    }


@pytest.fixture
def jobrunner_worker(jobrunner_client: Client, travel: Travel) -> JobrunnerWorker:
    """jobrunner_worker.run(): a worker runs what jobrunner_client enqueued, until nothing is waiting or pending."""
    return JobrunnerWorker(jobrunner_client, travel)


@pytest.fixture
def enqueued() -> Iterator[Enqueued]:
    """Records the tasks that this test enqueues, and sends none."""
    with Enqueued().recording() as recorder:
        yield recorder


@pytest.fixture
def inline() -> type[run_inline]:
    """`with inline():` runs jobs at once where they are enqueued. The same as jobrunner.testing.inline."""
    return run_inline
