"""A TCP way to a server that can be slow, fall silent, break, or break in the middle of a reply."""

import threading
import time
from pathlib import Path

from tests.conftest import Cable


class Proxy(Cable):
    """A cable with more faults. `latency_s` delays every piece in both directions; `silence` lets nothing pass.

    What arrives in a silence is kept and passed on when it ends, as a network does that drops packets for a while and
    has them sent again.
    """

    def __init__(self, target: Path) -> None:
        self.latency_s = 0.0
        self.resets = 0
        self._open = threading.Event()
        self._open.set()
        super().__init__(target)

    def silence(self, is_silent: bool) -> None:
        """Begins or ends one."""
        (self._open.clear if is_silent else self._open.set)()

    def reset_every(self, seconds: float, over: threading.Event) -> threading.Thread:
        """Breaks all connections again and again, in a thread, until `over` is set."""

        def cut() -> None:
            while not over.wait(seconds):
                self.drop()
                self.resets += 1

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Breaks all connections and takes no more."""
        self._open.set()
        super().close()

    def _passes(self, data: bytes) -> bytes:
        if self.latency_s:
            time.sleep(self.latency_s)
        self._open.wait()
        return data
