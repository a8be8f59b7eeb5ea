"""A private server for tests on a unix socket in a short temporary folder. It ends with the process that started it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis.utils
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobrunner.broker.embedded.process import find_binary
from tests.support.waiting import wait_for

# redis-py reads the metadata of its package for each client: a millisecond for each of thousands of tests.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

VARIABLE = "JOBRUNNER_TEST_SERVER"
"""The environment variable that carries the option --server to all test processes."""


def server_binary() -> Path:
    """The program that tests start their servers from."""
    named = os.environ.get(VARIABLE, "").removesuffix(topology_name()).rstrip(":")
    return Path(named) if named else find_binary()


def topology_name() -> str:
    """`sentinel` or `cluster` when the tests run on one of these, else empty."""
    last = os.environ.get(VARIABLE, "").rpartition(":")[2]
    return last if last in ("sentinel", "cluster") else ""


UNTIL_END_OF_INPUT = '"$@" >&2 & echo $!; read word; kill -9 $!; wait; [ "$word" = keep ] || rm -rf "$0"'
"""The shell that ends a server, and deletes its folder, when the process of the tests is no more, even a killed one."""


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
        self._process = subprocess.Popen(
            ["sh", "-c", UNTIL_END_OF_INPUT, str(self.folder), *self.command()],
            start_new_session=True,  # a signal to the group of the tests must not end the shell before the server
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "log").open("ab"),
            text=True,
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        with self.connect() as connection:
            wait_for(lambda: self.answers(connection), timeout_s=20)

    def command(self) -> Sequence[str]:
        """The program and its arguments."""
        options = self._options.items()  # Redis 6.2 takes no two words as one
        words = [word for name, value in options for word in (f"--{name}", *(value.split() or [""]))]
        return [str(server_binary()), "--dir", str(self.folder), "--unixsocket", str(self.socket), *words]

    def answers(self, connection: redis.Redis) -> bool:
        """Whether the server replies to PING."""
        return _answers(connection)

    def connect(self, **options: Any) -> redis.Redis:
        """A plain client that tries everything once."""
        options["retry"] = Retry(NoBackoff(), 0)
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, **options)

    def kill(self) -> None:
        """Kills the server with SIGKILL; its files stay."""
        if self._process.poll() is None:
            self._process.communicate("keep\n")
        self.socket.unlink(missing_ok=True)

    def remove(self) -> None:
        """Stops the server and deletes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def version_of(raw: redis.Redis) -> tuple[int, ...]:
    """The version of Redis, such as (7, 0, 15); for Valkey, that of the Redis that it is compatible with."""
    return tuple(map(int, raw.info("server")["redis_version"].split(".")))


def _answers(connection: redis.Redis) -> bool:
    try:
        return bool(connection.ping())
    except redis.exceptions.AuthenticationError:
        return True
    except redis.exceptions.ConnectionError:
        return False
