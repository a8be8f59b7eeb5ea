"""The clock of scripts, set by tests."""

_STARTED_MS = 1_700_000_000_000


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
