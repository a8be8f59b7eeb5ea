"""One line about what was just done, carried over a redirect in a short-lived signed cookie, shown once."""

import secrets

from starlette.requests import Request
from starlette.responses import Response

from jobrunner.clock import unix_ms
from jobrunner.web import cookies
from jobrunner.web.signing import signed, verified

COOKIE = "jobrunner_flash"
_LASTS_S = 20


class Flash:
    """Signs with a key of this process: the line is only worth something for some seconds."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def put(self, request: Request, response: Response, text: str, kind: str) -> None:
        """Has the next page show it. `kind` is done or refused."""
        value = {"text": text[:500], "kind": kind, "until": unix_ms() + _LASTS_S * 1000}
        cookies.give(request, response, COOKIE, signed(value, self._key, purpose="flash"), _LASTS_S, strict=True)

    def take(self, request: Request) -> dict[str, str] | None:
        """The line for this page, if there is one: {"text": …, "kind": …}."""
        return verified(cookies.cookie(request, COOKIE), self._key, purpose="flash")

    def forget(self, request: Request, response: Response) -> None:
        """Has the browser forget the line: it was shown."""
        cookies.take_away(request, response, COOKIE)
