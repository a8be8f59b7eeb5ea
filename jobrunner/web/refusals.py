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


class TooLarge(Refused):
    """More bytes than a form of this dashboard has."""

    status = 413
