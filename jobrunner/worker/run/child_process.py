"""A child process that runs attempts, as its worker sees it: its start, the messages to and from it, its end. The other
end of the socket is in child.py.
"""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jobrunner.clock import monotonic
from jobrunner.worker.child_processes import environment_of_child
from jobrunner.worker.recycling import resident_bytes
from jobrunner.worker.run.child import PIECE, frame, lacks, unframed

_LOOK_S = 0.25
_LAST_WORDS_S = 0.2
_SMALL = 4096
"""Bytes of a message that the socket takes at once, whether the child reads or not."""


class NotTakenError(EOFError):
    """The child died before it had read the whole message."""


class ChildProcess:
    """One child, the socket to it, and the pipe that ends it when this process ends."""

    def __init__(self) -> None:
        self.is_ready = False
        """Whether it has answered the greeting."""
        self.hidden: tuple[str, ...] | None = None
        """The names that it was told to hide in errors."""
        self._is_greeted = False
        self._stop_sent = ""
        self._received = bytearray()
        self._timeout_s: float | None = None
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "jobrunner.worker.run.child", str(theirs.fileno()), str(lifeline)]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=(theirs.fileno(), lifeline), stdin=subprocess.DEVNULL, env=environment_of_child()
            )
        except BaseException:
            self._socket.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    def greet(self, greeting: bytes, timeout_s: float) -> bytes:
        """Sends the greeting with the first call, and waits for the answer: why the child cannot work, or b"".

        Raises as `exchange`; after a TimeoutError it may be called again."""
        message, self._is_greeted = None if self._is_greeted else greeting, True
        answer: bytes = self.exchange(message, timeout_s, bytes)
        self.is_ready = True
        return answer

    def exchange(
        self, message: bytes | None, timeout_s: float | None, read: Callable[[bytes], Any],
        look: Callable[[], object] = lambda: None,
    ) -> Any:  # fmt: skip
        """Sends a message, unless it is None, and waits for the answer, calling `look` a few times a second. Answers
        for which `read` returns None are ignored.

        Raises TimeoutError, or EOFError when the child died. A local socket that is closed with unread bytes resets its
        peer (unix(7)), so a reset tells that the child had not read the message; other systems may not tell.
        """
        ends = math.inf if timeout_s is None else monotonic() + timeout_s
        try:
            if message is not None:
                if len(message) > _SMALL:
                    self._limit(timeout_s)
                self._socket.sendall(frame(message))
            while (answer := read(self._receive(ends, look))) is None:
                pass
            return answer
        except ConnectionError as error:
            raise NotTakenError from error

    def _receive(self, ends: float, look: Callable[[], object]) -> bytes:
        received, has_ended = self._received, False
        while (lacking := lacks(received)) > 0:
            left = ends - monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(0.0 if has_ended else min(left, _LOOK_S))
            try:
                piece = self._socket.recv(max(lacking, PIECE))
            except (TimeoutError, BlockingIOError):
                if has_ended:  # what it started may hold its end of the socket
                    raise EOFError from None
                has_ended = self.has_ended
                look()
                continue
            if not piece:
                raise EOFError
            received += piece
        return unframed(received)

    def _limit(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # each change is a call of the system
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether the child died, or was killed."""
        return self._process.poll() is not None

    @property
    def resident_bytes(self) -> int:
        """Its resident memory; 0 where the system has no /proc."""
        return resident_bytes(self._process.pid)

    def stop(self, token: str) -> None:
        """Notifies the child, once, that an attempt should stop."""
        if token == self._stop_sent:
            return
        self._stop_sent = token
        with suppress(OSError):
            os.write(self._lifeline, f"{token}\n".encode())

    def kill(self) -> None:
        """SIGKILL; nothing is cleaned up."""
        self._process.kill()

    def end(self) -> str:
        """Kills the child and says how it had ended, when it had. Cleans up."""
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_LAST_WORDS_S)
        self._process.kill()
        self._process.wait()
        self._socket.close()
        os.close(self._lifeline)
        if code is None:
            return "was killed"
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
