"""A TCP proxy that delays each direction by half a round trip: ``python -m benchmarks.delay_proxy HOST PORT MS``.

It writes the port it listens on to standard output, and ends with its standard input. Bytes are stamped when they come
and delivered when their time has come, so a delay costs no throughput, as on a long wire.
"""

import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress

_PIECE = 1 << 16


def main() -> None:
    """Serves until standard input ends."""
    host, port, delay_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener, (host, port), delay_ms / 2000), daemon=True).start()
    sys.stdin.read()


def _accept(listener: socket.socket, target: tuple[str, int], delay_s: float) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(target)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((near, far), (far, near)):
            _Direction(source, sink, delay_s).start()


class _Direction:
    """Bytes from one socket to the other."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        self._source = source
        self._sink = sink
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._some = threading.Semaphore(0)

    def start(self) -> None:
        threads = (self._receive, self._deliver) if self._delay_s else (self._pass,)
        for work in threads:
            threading.Thread(target=work, daemon=True).start()

    def _pass(self) -> None:
        with suppress(OSError):
            while piece := self._source.recv(_PIECE):
                self._sink.sendall(piece)
        self._hang_up()

    def _receive(self) -> None:
        piece = b"-"
        while piece:
            try:
                piece = self._source.recv(_PIECE)
            except OSError:
                piece = b""
            self._waiting.append((time.monotonic() + self._delay_s, piece))
            self._some.release()

    def _deliver(self) -> None:
        with suppress(OSError):
            while True:
                self._some.acquire()
                due, piece = self._waiting.popleft()
                time.sleep(max(due - time.monotonic(), 0.0))
                if not piece:
                    break
                self._sink.sendall(piece)
        self._hang_up()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
