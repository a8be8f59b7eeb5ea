"""One line about what was just done, carried over a redirect in a short-lived signed cookie, shown once."""

import secrets

from starlette.requests import Request
from starlette.responses import Response

from jobrunner.clock import unix_ms
from jobrunner.web.sessions import signed, verified

COOKIE = "jobrunner_flash"
_LASTS_S = 20


class Flash:
    """Signs with a key of this process: the line is only worth something for some seconds."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def put(self, response: Response, text: str, kind: str, *, path: str) -> None:
        """Has the next page show it. `kind` is done or refused."""
        value = {"text": text[:500], "kind": kind, "until": unix_ms() + _LASTS_S * 1000}
        cookie = signed(value, self._key, purpose="flash")
        response.set_cookie(COOKIE, cookie, max_age=_LASTS_S, path=path, httponly=True, samesite="strict")

    def take(self, request: Request) -> dict[str, str] | None:
        """The line for this page, if there is one: {"text": …, "kind": …}."""
        return verified(request.cookies.get(COOKIE, ""), self._key, purpose="flash")
