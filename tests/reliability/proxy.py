"""A TCP proxy that can break connections, lose chosen replies, or answer with errors itself."""

import random
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jobrunner.broker.scripts import load
from jobrunner.clock import sleep
from jobrunner.soak.fault_proxy import FaultProxy

_REQUEST = "cut_request"
_SILENT = 1 / 3
_SILENCE_S = 0.5


class Proxy(FaultProxy):
    """A proxy that loses the replies of chosen scripts. While `error` is set no command arrives: each is answered with
    that, and `refused` counts round trips. `cut_share` of all pieces, in both directions, end at a random byte, and
    their connections with them, every third one after a silence; `cuts` counts them.
    """

    def __init__(self, target: Path) -> None:
        self.resets = 0
        self.error = b""
        self.refused = 0
        self.cut_share = 0.0
        self.cuts = 0
        self.lost: Counter[str] = Counter()
        self.before_loss: Callable[[], object] = lambda: None
        """Called when the reply has arrived, before the connection breaks."""
        self._losing: dict[bytes, tuple[str, int, int]] = {}
        self._seen: Counter[str] = Counter()
        self._doomed: dict[socket.socket, str] = {}
        self._parsers: dict[socket.socket, _Commands] = defaultdict(_Commands)
        self._lock = threading.Lock()
        self._random = random.Random(9)
        super().__init__(target)

    def lose_replies(self, script: str, *, times: int = 1, every: int = 1) -> None:
        """Breaks the connection instead of sending the reply to every nth call of a script, which was applied."""
        with self._lock:
            self._losing[load(script).sha] = (script, times, every)

    def reset_every(self, seconds: float, over: threading.Event) -> threading.Thread:
        """Breaks all connections again and again, in a thread, until `over` is set."""

        def cut() -> None:
            while not over.wait(seconds):
                self.drop()
                self.resets += 1

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        return thread

    def _passes(self, data: bytes, source: socket.socket, sink: socket.socket, name: str) -> bytes:
        if self.cut_share and self._random.random() < self.cut_share:
            self._cut(data, sink)
        if name == _REQUEST:
            return self._request(data, source, sink)
        if source in self._doomed and not data.startswith(b"-NOSCRIPT"):
            self.before_loss()
            self.lost[self._doomed.pop(source)] += 1
            raise ConnectionError("this reply is lost")
        return data

    def _cut(self, data: bytes, sink: socket.socket) -> None:
        self.cuts += 1
        with suppress(OSError):
            sink.sendall(data[: self._random.randrange(len(data))])
        if self._random.random() < _SILENT:
            sleep(self._random.uniform(0, _SILENCE_S))  # the fault: a silence before the cut
        raise ConnectionError("this connection is cut")

    def _request(self, data: bytes, source: socket.socket, sink: socket.socket) -> bytes:
        if self.error:
            count = self._parsers[source].read(data)
            self.refused += bool(count)
            source.sendall(b"-%b\r\n" % self.error * count)
            return b""
        if source in self._parsers:
            data = self._parsers.pop(source).rest + data
        if self._losing:
            self._look_for_scripts(data, sink)
        return data

    def _look_for_scripts(self, data: bytes, sink: socket.socket) -> None:
        with self._lock:
            for sha, (script, times, every) in self._losing.items():
                if sha in data:
                    self._seen[script] += 1
                    if self.lost[script] < times and self._seen[script] % every == 0:
                        self._doomed[sink] = script


class _Commands:
    """Counts the commands in a stream of requests."""

    def __init__(self) -> None:
        self.rest = b""
        """The bytes of a command that is not complete yet."""

    def read(self, data: bytes) -> int:
        """How many commands are complete with this piece; these are forgotten."""
        self.rest += data
        count = 0
        while end := self._end_of_one():
            self.rest, count = self.rest[end:], count + 1
        return count

    def _end_of_one(self) -> int:
        head = self.rest.find(b"\r\n")
        if head < 0:
            return 0
        at = head + 2
        for _ in range(int(self.rest[1:head])):
            line = self.rest.find(b"\r\n", at)
            if line < 0:
                return 0
            at = line + 2 + int(self.rest[at + 1 : line]) + 2
        return at if at <= len(self.rest) else 0
