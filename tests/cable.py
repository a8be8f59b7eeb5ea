"""A way to a server that the tests can cut."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Cable:
    """A TCP way to a server, that can be cut.

    `cut_request` and `cut_reply` say after how many more bytes of that direction the connection breaks
    (once); None lets all pass. The bytes before the cut arrive: after a cut reply the command was applied.
    """

    def __init__(self, target: Path) -> None:
        self.cut_request: int | None = None
        self.cut_reply: int | None = None
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Breaks all connections and takes no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Breaks the connections there are; new ones work."""
        for end in list(self._sockets):
            _hang_up(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._target))
                self.connections += 1
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near, "cut_reply"), daemon=True)
        back.start()
        self._pump(near, far, "cut_request")
        back.join()
        for end in (near, far):
            self._sockets.remove(end)
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                data = self._passes(data, source, sink, name)
                left = getattr(self, name)
                if left is not None and len(data) > left:
                    setattr(self, name, None)
                    sink.sendall(data[:left])
                    break
                if left is not None:
                    setattr(self, name, left - len(data))
                sink.sendall(data)
        _hang_up(source)
        _hang_up(sink)

    def _passes(self, data: bytes, source: socket.socket, sink: socket.socket, name: str) -> bytes:
        """What is passed on of a piece; OSError breaks the connection. `name` is that of the direction's cut."""
        return data


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
