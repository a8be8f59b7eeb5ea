"""A TCP proxy to a server that can cut connections, fall silent, be slow, or lose replies; and URLs through it."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from jobrunner.clock import sleep

Target = Path | tuple[str, int]
"""A unix socket, or host and port."""
_REPLY = "cut_reply"


class FaultProxy:
    """A TCP proxy to a server, with faults.

    `cut_request` and `cut_reply`: the connection breaks, once, after this many more bytes of that direction; None lets
    all bytes pass. The bytes before the cut arrive: after a cut reply the command was applied. `latency_s` delays every
    piece in both directions. `replies_to_lose` pieces of replies never arrive; their connections break instead. Data
    that arrives during a silence is passed on when it ends, as in a network that drops packets for a while and
    retransmits them.
    """

    def __init__(self, target: Target) -> None:
        self.cut_request: int | None = None
        self.cut_reply: int | None = None
        self.latency_s = 0.0
        self.replies_to_lose = 0
        self.connections = 0
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Breaks all connections and accepts no more. Data held back by a silence never arrives."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._open.set()  # last: the threads that wait in a silence find their connections broken

    def drop(self) -> None:
        """Breaks all present connections; new ones work."""
        for end in list(self._sockets):
            _hang_up(end)

    def silence(self, is_silent: bool) -> None:
        """Begins or ends a silence."""
        (self._open.clear if is_silent else self._open.set)()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = _connected(self._target)
            except OSError:  # the server is down: so is the proxy to it
                near.close()
                continue
            self.connections += 1
            self._sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near, _REPLY), daemon=True)
        back.start()
        self._pump(near, far, "cut_request")
        back.join()
        for end in (near, far):
            self._sockets.remove(end)
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.latency_s:
                    sleep(self.latency_s)
                self._open.wait()
                if self._closed:
                    break
                data = self._passes(data, source, sink, name)
                if name == _REPLY and self.replies_to_lose > 0:
                    self.replies_to_lose -= 1
                    break
                left = getattr(self, name)
                if left is not None and len(data) > left:
                    setattr(self, name, None)
                    sink.sendall(data[:left])
                    break
                if left is not None:
                    setattr(self, name, left - len(data))
                sink.sendall(data)
            else:
                if name != _REPLY:  # a client that closed its sending side may still read the reply
                    sink.shutdown(socket.SHUT_WR)
                    return
        _hang_up(source)
        _hang_up(sink)

    def _passes(self, data: bytes, source: socket.socket, sink: socket.socket, name: str) -> bytes:  # noqa: ARG002
        """The part of `data` to pass on; an OSError breaks the connection. `name` is that of the direction's cut."""
        return data


def _connected(target: Target) -> socket.socket:
    if isinstance(target, Path):
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(target))
        except OSError:
            far.close()
            raise
        return far
    far = socket.create_connection(target, timeout=5)
    far.settimeout(None)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return far


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def target_of(url: str) -> Target | None:
    """The address of a plain URL; None for one that the proxy cannot replace: TLS, Sentinel, a cluster."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return Path(unquote(parts.path))
    if parts.scheme == "redis":
        return unquote(parts.hostname or "localhost"), parts.port or 6379
    return None


def url_through(cable: FaultProxy, url: str) -> str:
    """The same URL through the proxy: user, password, database and other options stay."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = "" if parts.scheme == "unix" else parts.path
    return urlunsplit(("redis", f"{user}127.0.0.1:{cable.port}", path, parts.query, ""))
