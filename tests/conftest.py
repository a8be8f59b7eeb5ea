"""What every test of the queue stands on: a real server, a fresh prefix, a clock to set, a cable to cut.

One private server for each test process (xdist worker), on a unix socket in a short temporary folder. Every
test has its own prefix, and the server is emptied behind it. Nothing here listens on a fixed port, and a
server ends with the process that started it, however that ends.
"""

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobrunner import own_signals
from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.embedded_process import find_binary
from jobrunner.broker.keys import Keys
from jobrunner.cli.boundary import guarded
from jobrunner.cli.main import jobrunner
from jobrunner.client.client import Client
from jobrunner.client.current import forget, use
from jobrunner.soak.cable import Cable
from tests.books import census, problems
from tests.said import Said

# Hundreds of processes of these tests import the package, and each test process rewrites the tests: half of the time
# of a run goes into compiling where an environment, as that of many containers, keeps Python from storing bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_SERVER = "JOBRUNNER_TEST_SERVER"
"""In the environment: what the option --server says."""
_STARTED_MS = 1_700_000_000_000
_prefixes = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which server the tests run on."""
    told = "the tests' server: a program (/usr/bin/redis-server), `sentinel`, `cluster`, or program:sentinel"
    parser.addoption("--server", default=os.environ.get(_SERVER, ""), metavar="WHAT", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Tells all processes of the run, before the first one starts a server."""
    os.environ[_SERVER] = config.getoption("--server")
    if hasattr(config, "workerinput"):  # what tests start must hear signals also when nohup or `&` started the run
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def server_binary() -> Path:
    """The program that tests start their servers from."""
    named = os.environ.get(_SERVER, "").removesuffix(topology_name()).rstrip(":")
    return Path(named) if named else find_binary()


def topology_name() -> str:
    """sentinel or cluster, when the tests run on one; else empty."""
    last = os.environ.get(_SERVER, "").rpartition(":")[2]
    return last if last in ("sentinel", "cluster") else ""


class Server:
    """A server of its own: `url`, `socket` and `folder` stay the same over `kill` and `start`."""

    def __init__(self, **options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jr-", dir="/tmp"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self._options = {"port": "0", "save": "", "appendonly": "no", "loglevel": "warning"} | options
        self.start()

    def start(self) -> None:
        """Returns when the server answers."""
        options = self._options.items()  # Redis 6.2 takes no two words as one
        words = [word for name, value in options for word in (f"--{name}", *(value.split() or [""]))]
        command = [str(server_binary()), "--dir", str(self.folder), "--unixsocket", str(self.socket), *words]
        # The shell waits for the end of its input: the server ends with this process, even a killed one.
        self._process = subprocess.Popen(
            ["sh", "-c", '"$@" >&2 & echo $!; read _; kill -9 $!; wait', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "log").open("ab"),
            text=True,
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        with self.connect() as connection:
            wait_for(lambda: _answers(connection), timeout_s=20)

    def connect(self, **options: Any) -> redis.Redis:
        """A plain client that tries everything once."""
        options["retry"] = Retry(NoBackoff(), 0)
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, **options)

    def kill(self) -> None:
        """SIGKILL; what it has on disk stays."""
        self._process.communicate()
        self.socket.unlink(missing_ok=True)

    def remove(self) -> None:
        """Ends it for good."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def version_of(raw: redis.Redis) -> tuple[int, ...]:
    """Of Redis, (7, 0, 15); of Valkey the version of Redis that it is compatible with."""
    return tuple(map(int, raw.info("server")["redis_version"].split(".")))


class Clock:
    """The server's own clock until it is set; then the instant it was set to, in Unix ms."""

    def __init__(self) -> None:
        self.ms: float | None = None

    def __call__(self) -> bytes:
        return b"" if self.ms is None else repr(self.ms).encode()

    def set(self, ms: float = _STARTED_MS) -> float:
        """Stops the clock at an instant and returns it."""
        self.ms = ms
        return ms

    def advance(self, ms: float) -> float:
        """Moves a clock that was set, back when negative, and returns its new instant."""
        assert self.ms is not None, "set the clock first"
        self.ms += ms
        return self.ms


def _answers(connection: redis.Redis) -> bool:
    try:
        return bool(connection.ping())
    except redis.exceptions.AuthenticationError:
        return True
    except redis.exceptions.ConnectionError:
        return False


def wait_for(fact: Callable[[], Any], *, timeout_s: float = 10.0) -> Any:
    """What `fact` returns as soon as that is true; fails the test when it does not become so."""
    ends = time.monotonic() + timeout_s
    while not (found := fact()):
        assert time.monotonic() < ends, f"waited {timeout_s:g} s in vain"
        time.sleep(0.002)
    return found


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command that runs within a test sets logging up, on a stream that ends with the test, and answers signals."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    own_signals.answer_signals_as_before()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of this test process, shared by its tests; what `--server` says."""
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
    """A plain client of the server, to look at the keys themselves."""
    with server.connect() as connection:
        yield connection


@pytest.fixture
def keys(raw: redis.Redis) -> Iterator[Keys]:
    """The keys below a prefix that no other test uses."""
    yield Keys(f"t{next(_prefixes)}")
    raw.flushall()


@pytest.fixture
def clock() -> Clock:
    """The clock of `broker` and `client`: the server's own until the test sets it."""
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
def says(
    server: Any, keys: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """says("status", "--json"): what the command says of the server of this test, run in this process."""
    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", keys.prefix)
    monkeypatch.chdir(tmp_path)

    def say(*words: str) -> Said:
        code = guarded(jobrunner, words)
        heard = capsys.readouterr()
        return Said(code, heard.out, heard.err)

    return say


@pytest.fixture
def cable(server: Server) -> Iterator[Cable]:
    """A TCP way to the server that the test can cut."""
    if topology_name() == "cluster":
        pytest.skip("a cable leads to one server")
    laid = Cable(server.socket)
    yield laid
    laid.close()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """wait_until(fact, timeout_s=10): what `fact` returns as soon as that is true."""
    return wait_for


@pytest.fixture
def audit(raw: redis.Redis, keys: Keys) -> Callable[..., dict[str, int]]:
    """audit("mail"): recounts the queue and checks its books; returns how many tasks are in each state."""

    def recount(name: str) -> dict[str, int]:
        queue = keys.queue(name)
        assert problems(raw, queue) == []
        return {state: len(ids) for state, ids in census(raw, queue).items()} | {"done": raw.zcard(queue.done)}

    return recount


def _server_of(topology: str) -> Server:
    if not topology:
        return Server()
    from tests.topologies import suite  # which stands on this module

    return suite.Sentinel() if topology == "sentinel" else suite.Cluster()
