"""Opens connections to the server of a URL: standalone, TLS, unix socket, embedded, behind Sentinel, a cluster."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec

from jobrunner.broker.connection import PASSWORD_FILE, ConnectionOptions
from jobrunner.broker.open_connection import (
    BlockingConnection,
    is_understood,
    open_connection,
    without_credentials,
)
from jobrunner.errors import EmbeddedServerError, InvalidOption
from jobrunner.formatting import describe, safe_url
from jobrunner.settings import working_folder

if TYPE_CHECKING:
    from jobrunner.broker.cluster import Cluster
    from jobrunner.broker.embedded.server import EmbeddedServer
    from jobrunner.broker.topology import Address, Sentinels, Topology

_PLAIN = ("redis", "rediss", "unix")
FOLDER = ".jobrunner"
_NOT_OF_A_PATH = re.compile(r"[%?#\t\r\n]")
"""Characters that `urlsplit` takes for the end of a path or for an escape, or leaves out."""
_AROUND = " \t\r\n'\""
"""Characters that a file of variables may leave around a URL."""
_NAME = re.compile(r"[a-z_]{1,40}")
_FILES = {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", PASSWORD_FILE}


class Endpoint:
    """The location of the server, and the way to open a connection to it.

    `sentinels` name the primary of a server behind Sentinel. `cluster` is the map of the nodes of a cluster; there a
    connection leads to the node of a key. Each is None for other servers.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 5.0, client_name: str = "jobrunner", checks_files: bool = True
    ) -> None:
        """`checks_files`: raises InvalidOption for a file of the URL that cannot be used. Off where a running program
        has checked its URL before: a file that is being replaced is an outage there, and passes."""
        self.url = url
        self.folder = _embedded_folder(url)
        """The folder of the embedded server; None for the URL of another server."""
        self._options = ConnectionOptions(client_name=client_name, timeout_s=timeout_s, connect_timeout_s=timeout_s)
        self.embedded: EmbeddedServer | None = None
        self._topology: Topology | None = None
        self.cluster: Cluster | None = None
        self.sentinels: Sentinels | None = None
        if self.folder is not None:
            self.embedded = _embedded_server(self.folder)
        elif "+" in url.partition("://")[0]:
            self._find_servers()
        if self.embedded is None:
            one = url if self._topology is None else self._topology.url_of(self._topology.hosts[0])
            _check_url(one, checks_files=checks_files)

    def _find_servers(self) -> None:
        from jobrunner.broker import cluster, topology  # most programs use one server and need neither

        self._topology = found = topology.topology_of(self.url)
        if found is not None and found.kind == "cluster":
            self.cluster = cluster.Cluster(found, self._open_at)
        elif found is not None:
            self.sentinels = topology.Sentinels(found, self._options)

    @property
    def _is_fixed(self) -> bool:
        return self.embedded is None and self.sentinels is None and self.cluster is None

    def _url(self, key: bytes = b"") -> str:
        if self.sentinels is not None and self._topology is not None:
            return self._topology.url_of(self.sentinels.primary())
        if self.cluster is not None:
            return self.cluster.url_of(self.cluster.node_for(key))
        return self.url if self.embedded is None else unix_url(self.embedded.ensure())

    def open(self, *, key: bytes = b"") -> BlockingConnection:
        """An unconnected connection.

        On a cluster it is to the node that serves `key`. Raises RedisConnectionError when none is known.
        """
        return self._open_at(self._url(key))

    def _open_at(self, url: str) -> BlockingConnection:
        check = None if self.sentinels is None else self.sentinels.check_primary
        return open_connection(url, self._options, check)

    async def open_async(self, *, blocking: bool = False, key: bytes = b"") -> Any:
        """`open` for asyncio; a `blocking` connection never times out while it waits for a reply."""
        from asyncio import to_thread

        from jobrunner.broker import redis_py

        # Finding the server may block, so a thread does it. A fixed address must not wait for a thread of the default
        # executor: the application may use them all.
        url = self._url() if self._is_fixed else await to_thread(self._url, key)
        check = None if self.sentinels is None else self.sentinels.check_primary_async
        options = msgspec.structs.replace(self._options, timeout_s=None) if blocking else self._options
        url, credentials = without_credentials(url)
        return redis_py.open_async(url, options, check, credentials)

    def at(self, address: "Address") -> "Endpoint":
        """One node of the cluster."""
        assert self.cluster is not None, "only a cluster has nodes"
        options = self._options
        url = self.cluster.url_of(address)
        timeout_s = options.connect_timeout_s
        return Endpoint(url, timeout_s=timeout_s, client_name=options.client_name, checks_files=False)

    def shared_url(self) -> str:
        """The URL for child processes, independent of their working directory."""
        return self.url if self.folder is None else f"embedded://{self.folder}"

    def release(self) -> None:
        """Releases the embedded server, which stops when this was its last user."""
        if self.embedded is not None:
            self.embedded.release()

    def __str__(self) -> str:
        """The location of the server, without anything that may be a secret."""
        return safe_url(self.url)


def unix_url(socket: Path) -> str:
    """The URL of a unix socket; any characters of its path are escaped."""
    return f"unix://{_NOT_OF_A_PATH.sub(lambda found: f'%{ord(found[0]):02X}', os.fspath(socket))}"


def _embedded_server(folder: Path) -> "EmbeddedServer":
    from jobrunner.broker.embedded.server import EmbeddedServer

    return EmbeddedServer(folder)


def _embedded_folder(url: object) -> Path | None:
    if not isinstance(url, str):
        raise InvalidOption(f"the URL of a server is {describe(url)}: give text, such as redis://localhost:6379/0")
    if not url.startswith("embedded:"):
        return None
    path = url.removeprefix("embedded://")  # not decoded, as a folder may be named C# or 100%
    if path and not path.startswith("/"):
        raise InvalidOption(
            f"URL {safe_url(url)!r}: write embedded:///absolute/folder, or embedded:// for .jobrunner of the project"
        )
    return Path(path).absolute() if path else project_server_folder()


def project_server_folder() -> Path:
    """The folder of the project's embedded server: `.jobrunner` in the nearest folder, from the working directory
    upwards, that has a `.jobrunner` or a pyproject.toml; else in the working directory.

    So a command in a subfolder finds the server of the project, as git finds the repository, and starts no second
    server. A folder of another user does not count: in /tmp any user could make one. Raises EmbeddedServerError.
    """
    here = working_folder()
    if here is None:
        raise EmbeddedServerError(
            "the working directory was deleted, so the project and its embedded server cannot be found; set the URL "
            "of a server, or run this in the folder of the project"
        )
    for place in (here, *here.parents):
        folder = place / FOLDER
        if _is_own_folder(folder) or ((place / "pyproject.toml").is_file() and os.access(place, os.W_OK)):
            return folder
    return here / FOLDER


def _is_own_folder(folder: Path) -> bool:
    try:
        return folder.is_dir() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _check_url(url: str, *, checks_files: bool) -> None:
    scheme = url.split("://")[0] if "://" in url else ""
    if scheme not in _PLAIN:
        named = f"URL {describe(safe_url(url), 80)}" if "://" in url else "a URL without a scheme"
        if url.strip(_AROUND).lower().startswith(tuple(f"{one}://" for one in _PLAIN)):
            raise InvalidOption(f"{named} has capitals in its scheme, or a blank or quotation mark before it")
        raise InvalidOption(
            f"{named} is not one of redis://host:port/db, rediss://…, unix:///path, "
            "embedded:///folder, redis+sentinel://host:port,…/master, redis+cluster://host:port,…"
        )
    if not is_understood(url):
        raise InvalidOption(f"URL of the server cannot be used: {safe_url(url)!r}; {_reason(url)}")
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if scheme in ("redis", "rediss") and database and not (database.isascii() and database.isdecimal()):
        # redis-py would take database 0, and database 12 for /1/2
        raise InvalidOption(
            f"URL {describe(safe_url(url), 80)}: the database behind the host is no number; write redis://host:port/0"
        )
    if parts.query and checks_files:
        _check_files(parse_qs(parts.query))


def _reason(url: str) -> str:
    """What keeps a URL from being understood, without any part of it that may be a secret."""
    scheme, _, rest = url.partition("://")
    hosts = re.split("[/?#]", rest)[0]
    host = hosts.rpartition("@")[2]
    if "@" in rest[len(hosts) :]:
        return "a / ? or # of its user or password must be escaped: urllib.parse.quote(password, safe='')"
    if host.count(":") > 1 and "[" not in host:
        return "write an address of IPv6 in brackets: redis://[::1]:6379/0"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "its port is no number up to 65535"
    options = parse_qs(parts.query)
    wrong = sorted(name for name in options if not is_understood(f"{scheme}://h?{urlencode({name: options[name][0]})}"))
    named = [name for name in wrong if _NAME.fullmatch(name)]
    if named:
        return f"its option {named[0]} is unknown, or has a wrong value"
    return "check its port and options"


def _check_files(options: Mapping[str, Sequence[str]]) -> None:
    """Raises InvalidOption for a file that cannot be read, or that lacks the key of the client's certificate. Without a
    password for an encrypted key OpenSSL would ask the terminal, for each connection."""
    of_url = "of the server's URL"
    for option in sorted(_FILES & options.keys()):
        name = options[option][0]
        if not os.access(name, os.R_OK) or (Path(name).is_dir() and option != "ssl_ca_path"):
            raise InvalidOption(f"{option} {of_url} names no file that can be read: {name!r}")
    if "ssl_certfile" not in options:
        if "ssl_keyfile" in options:
            raise InvalidOption(f"ssl_keyfile {of_url} needs ssl_certfile, the certificate of that key")
        return
    option = "ssl_keyfile" if "ssl_keyfile" in options else "ssl_certfile"
    file = Path(options[option][0])
    if not file.is_file():  # a pipe, which can be read once
        return
    content = file.read_bytes()
    if b"PRIVATE KEY" not in content:
        raise InvalidOption(f"{option} {of_url} names a file without a private key: {str(file)!r}; see ssl_keyfile")
    if b"ENCRYPTED" in content and "ssl_password" not in options:
        raise InvalidOption(f"{option} {of_url} names an encrypted key: {str(file)!r}; add its ssl_password")
