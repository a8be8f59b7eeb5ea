"""Fixtures of all tests: a real server, a fresh prefix, a clock to set, a connection to cut.

Each test process (xdist worker) has one private server on a unix socket in a short temporary folder. Every test has
its own prefix, and the server is emptied after it. Nothing here listens on a fixed port, and a server ends with the
process that started it, however that ends.
"""

import contextlib
import gc
import importlib
import itertools
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_rerunfailures
import redis
import structlog
from hypothesis import HealthCheck, settings

from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import jobrunner
from jobrunner.client.client import Client
from jobrunner.client.current import forget, use
from jobrunner.logs import IDENTITY
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.worker import child_processes, process_guard
from tests.support.clock import Clock
from tests.support.command_result import CommandResult
from tests.support.object_store import Bucket, object_store
from tests.support.queue_audit import census, problems
from tests.support.registries import as_before
from tests.support.server import VARIABLE, Server, topology_name
from tests.support.waiting import wait_for

# Hundreds of processes of these tests import the package, and each test process rewrites the tests: half of the time
# of a run goes into compiling where an environment, as that of many containers, keeps Python from storing bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(  # a busy machine is slow, and fixtures that are no part of an example are meant
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("tests")
_prefixes = itertools.count(1)
_MARKED_FOLDERS = ("spark", "browser")
"""Folders whose tests all carry the mark of the same name."""
_MUST_HAVE = re.compile(r"(spark|processes|reliability|topology|browser)(?: and not slow| and slow)?$")
"""Expressions of -m that select only tests with that mark."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which server the tests run on."""
    told = "the tests' server: a program (/usr/bin/redis-server), `sentinel`, `cluster`, or program:sentinel"
    parser.addoption("--server", default=os.environ.get(VARIABLE, ""), metavar="WHAT", help=told)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Passes the choice to all processes of the run, before the first of them starts a server."""
    os.environ[VARIABLE] = config.getoption("--server")
    if not hasattr(config, "workerinput"):
        return
    # nohup and `&` ignore signals that processes under test must receive
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # pytest-rerunfailures tells the first process of each test, over a socket that makes a test wait up to 40 ms for
    # the last one's acknowledgement, so that a test whose process dies could run again, which `loadgroup` never does.
    vars(config)["failures_db"] = pytest_rerunfailures.StatusDB()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collects without the garbage collector, and exempts what is left from it.

    The thousands of tests, fixtures and modules live as long as the process. To scan them again and again takes a sixth
    of the time of collecting, and a second for each full collection that a test causes.
    """
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has groups of tests (`xdist_group`) run in one process each, which xdist up to 3.8 fails to with pytest 9.2.

    xdist adds the name of the group to `_nodeid`, by which the processes agree on who runs a test. There pytest makes
    the id of `_id` instead, so xdist sees tests without a group and spreads them.
    """
    for item in items:
        named: Any = item
        marked = getattr(named, "_nodeid", item.nodeid)
        if marked != item.nodeid and hasattr(named, "_id"):
            named._id = type(named._id).parse(marked)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips what -m deselects as a whole: each process of a run imports all modules that it collects, which takes ten
    seconds. These are folders, unless one is named (they import pandas and PySpark), and modules that do not have the
    mark which each selected test must have."""
    if collection_path.is_file():
        wanted = _MUST_HAVE.match(config.getoption("markexpr"))
        return True if wanted and not _may_have(wanted[1], collection_path) else None
    mark = collection_path.name
    if mark not in _MARKED_FOLDERS or collection_path.parent != Path(__file__).parent:
        return None
    if not re.search(rf"\bnot {mark}\b", config.getoption("markexpr")):
        return None
    is_named = any(Path(word.partition("::")[0]).resolve().is_relative_to(collection_path) for word in config.args)
    return None if is_named else True


def _import_share(config: pytest.Config) -> None:
    """Imports those modules first that fall to this process of several, so that each module is compiled by one of them
    and the others read its bytecode: on a fresh clone, all compile all otherwise, for half of the time of collecting.
    """
    process: dict[str, Any] = getattr(config, "workerinput", {})
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or not process:
        return
    here = Path(__file__).parent
    modules = sorted(here.rglob("test_*.py"))
    for module in modules[int(process["workerid"].removeprefix("gw")) :: process["workercount"]]:
        if any(pytest_ignore_collect(path, config) for path in (module, *module.parents)):
            continue
        with contextlib.suppress(Exception):  # collecting tells what is wrong with it
            importlib.import_module(".".join(module.relative_to(here.parent).with_suffix("").parts))


def _may_have(mark: str, module: Path) -> bool:
    """Whether a test of this module may have the mark: its folder has the name of the mark, or the module or the
    conftest of the folder names it."""
    named_in = (module, module.with_name("conftest.py"))
    is_named = any(f"mark.{mark}" in one.read_text("utf-8") for one in named_in if one.exists())
    return mark == module.parent.name or is_named


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undoes what a command that runs in the test process sets up: logging to a stream that ends with the test, signal
    handlers, and the mark in the environment of child processes."""
    handlers, level = list(logging.root.handlers), logging.root.level
    hooks = threading.excepthook, sys.unraisablehook, warnings.showwarning
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
    IDENTITY.log_format, IDENTITY.log_level = "", "info"
    process_guard.answer_signals_as_before()
    os.environ.pop(child_processes.VARIABLE, None)


@pytest.fixture(autouse=True)
def _nothing_declared() -> Iterator[None]:
    """Removes jobs and pipelines after the test: workers of later tests would publish its periodic jobs."""
    with as_before():
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of this test process, shared by its tests and chosen by `--server`."""
    started = _server_of(topology_name())
    yield started
    started.remove()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts further servers with options of their own: start_server(maxmemory="10mb")."""
    started: list[Server] = []

    def start(**options: str) -> Server:
        started.append(Server(**{name.replace("_", "-"): value for name, value in options.items()}))
        return started[-1]

    yield start
    for one in started:
        one.remove()


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the server, to read the keys themselves."""
    with server.connect() as connection:
        yield connection


@pytest.fixture
def keys(raw: redis.Redis) -> Iterator[Keys]:
    """The keys below a prefix that no other test uses."""
    yield Keys(f"t{next(_prefixes)}")
    raw.flushall()


@pytest.fixture
def clock() -> Clock:
    """The clock of `broker` and `client`: the server's until the test sets it."""
    return Clock()


@pytest.fixture
def broker(server: Server, clock: Clock) -> Iterator[Broker]:
    """A driver for threads on the server, on the test's clock."""
    made = Broker(Endpoint(server.url), now_ms=clock)
    yield made
    made.close()


@pytest.fixture
def client(server: Server, keys: Keys, clock: Clock) -> Iterator[Client]:
    """A client on the server, with the prefix of `keys`, on the test's clock."""
    with Client(server.url, keys.prefix, now_ms=clock) as made:
        yield made


@pytest.fixture
def current(client: Client) -> Iterator[Client]:
    """The test's client as the one that jobs are enqueued through."""
    yield use(client)
    forget()


@pytest.fixture
def cli(
    server: Any, keys: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CommandResult]:
    """cli("status", "--json"): runs a command in this process on the server of this test; its output and exit code."""
    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", keys.prefix)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jobrunner.client.current._state", {})  # as in a process that begins: no client is configured

    def say(*words: str) -> CommandResult:
        code = guarded(jobrunner, words)
        heard = capsys.readouterr()
        return CommandResult(code, heard.out, heard.err)

    return say


@pytest.fixture
def fault_proxy(server: Server) -> Iterator[FaultProxy]:
    """A TCP proxy to the server whose connections the test can cut."""
    if topology_name() == "cluster":
        pytest.skip("the proxy leads to one server")
    laid = FaultProxy(server.socket)
    yield laid
    laid.close()


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """A bucket of an S3-compatible server; tests use keys of their own in it."""
    with object_store() as made:
        yield made


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """wait_until(fact, timeout_s=30): waits until `fact` returns a true value, and returns it."""
    return wait_for


@pytest.fixture
def audit(raw: redis.Redis, keys: Keys) -> Callable[..., dict[str, int]]:
    """audit("mail"): recounts the queue and compares it with its counters; returns the number of tasks by state."""

    def recount(name: str) -> dict[str, int]:
        queue = keys.queue(name)
        assert problems(raw, queue) == []
        return {state: len(ids) for state, ids in census(raw, queue).items()} | {"done": raw.zcard(queue.done)}

    return recount


def _server_of(topology: str) -> Server:
    if not topology:
        return Server()
    from tests.topologies import suite  # imports tests.support, and is needed for these two alone

    return suite.Sentinel() if topology == "sentinel" else suite.Cluster()
