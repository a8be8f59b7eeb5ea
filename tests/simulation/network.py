"""The network between actors and the simulated server: connections as the driver of the product sees them, and what may
become of an exchange."""

from enum import StrEnum
from typing import Any, NoReturn, Protocol


class _World(Protocol):
    """The part of a World that a connection uses."""

    raised: list[Exception]

    def send(self, connection: Any, commands: list[list[bytes]]) -> None: ...
    def wait(self, actor: Any) -> None: ...


TIMEOUT_MS = 5000.0
"""How long a client waits for a reply, as the product's connections do."""


class Fate(StrEnum):
    """The fault that hits one exchange. Its calls may be executed at different times."""

    FINE = "fine"
    SLOW = "slow"
    """Request or reply takes long, so that others overtake it."""
    REQUEST_LOST = "the request was lost"
    REPLY_LOST = "the reply was lost"
    LATE = "the connection broke, and the server got the request afterwards"
    SILENT = "no reply in time, and the server got the request about then"
    CUT = "the connection broke behind some of the calls"
    DIES_BEFORE = "killed before it sends"
    DIES_AFTER = "killed when it had sent"
    DIES_BEHIND = "killed when it was applied, before the reply"
    FORGETS = "the server forgot its scripts"


FAULTS = tuple(fate for fate in Fate if fate is not Fate.FINE)
DEATHS = (Fate.DIES_BEFORE, Fate.DIES_AFTER, Fate.DIES_BEHIND)
BROKEN = (Fate.REQUEST_LOST, Fate.REPLY_LOST, Fate.LATE, Fate.CUT)
"""After these the client hears soon that its connection broke."""
APART = 0.3
"""How often other commands come in between two of one exchange."""
DELAYS_MS = {Fate.SLOW: 2400.0, Fate.LATE: 3000.0}


class Connection:
    """A connection of one actor, as the driver of the product sees it."""

    def __init__(self, world: _World, actor: Any) -> None:
        self._world = world
        self.actor = actor
        self.replies: list[Any] = []
        self.error: Exception | None = None
        self._at = 0

    def connect(self) -> None:
        """Succeeds at once: what matters is lost with the first exchange."""

    def can_read(self, timeout: float = 0) -> bool:
        """Whether it was closed while it rested. A broken one is disconnected at once."""
        return False

    def disconnect(self) -> None:
        """Whatever is on its way still arrives at the server."""

    def send(self, calls: list[list[bytes]]) -> None:
        """Sends a piece of calls, as virtual_time.py packs them."""
        self.replies, self._at = [], 0
        self._world.send(self, calls)

    def read_response(self) -> Any:
        """The next reply. Waits until all of them are there, or the connection broke."""
        if self._at == len(self.replies):
            self._world.wait(self.actor)
            if self.error is not None:
                self._raise(self.error)
        reply = self.replies[self._at]
        self._at += 1
        if isinstance(reply, Exception):
            self._raise(reply)
        return reply

    def _raise(self, error: Exception) -> NoReturn:
        self._world.raised.append(error)
        raise error


class Address:
    """Stands for an endpoint: opens connections of one actor."""

    sentinels = cluster = None

    def __init__(self, world: _World, actor: Any) -> None:
        self._world, self._actor = world, actor

    def open(self, *, blocking: bool = False, key: bytes = b"") -> Connection:
        """Another connection."""
        return Connection(self._world, self._actor)

    def __str__(self) -> str:
        return "the simulated server"
