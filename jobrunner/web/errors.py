"""Answers that are no: each has an HTTP status and one line that says why."""


class Refused(Exception):
    """Not done. The text is shown to whoever asked, so it names no secret."""

    status = 400


class NotIdentified(Refused):
    """Nobody knows who asks."""

    status = 401


class NotAllowed(Refused):
    """Who asks may not do this, or did not prove that they meant it."""

    status = 403


class NotThere(Refused):
    """There is no such thing, or no longer."""

    status = 404


class TooMany(Refused):
    """Too many wrong secrets came from there; `wait_s` is how long it has to wait."""

    status = 429

    def __init__(self, wait_s: int) -> None:
        length = f"{wait_s} seconds" if wait_s < 120 else f"{-(-wait_s // 60)} minutes"
        super().__init__(f"too many wrong passwords or tokens: wait {length}, then try again")
        self.wait_s = wait_s


class TooLarge(Refused):
    """More bytes than a form of this dashboard has."""

    status = 413


class TooSlow(Refused):
    """A form that did not arrive in time."""

    status = 408


class TooBusy(Refused):
    """As many as can be served are served."""

    status = 503
