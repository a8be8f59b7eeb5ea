"""Browser-side protection: security headers on every answer, and CSRF tokens.

A request that changes something must come from a page of this dashboard. Two things prove it, and both are needed: the
browser says so (Sec-Fetch-Site; for browsers or plain HTTP that do not send it, Origin), and the form has a token that
is bound to this browser (a random cookie that scripts cannot read) and to who asks. (OWASP, "Cross-Site Request Forgery
Prevention": signed double submit, bound to the session, with the origin check in depth.) A bearer token in a header is
itself a proof, as no browser sends one unasked.
"""

import hashlib
import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobrunner.web import cookies
from jobrunner.web.auth import Identity
from jobrunner.web.errors import NotAllowed

BROWSER_COOKIE = "jobrunner_browser"
TOKEN_FIELD = "csrf"  # noqa: S105
TOKEN_HEADER = "x-csrf-token"  # noqa: S105
_NONCE = "jobrunner.nonce"
_BROWSER_LENGTH = 43
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
# Not no-referrer: browsers then send `Origin: null` with forms, and the proof of origin is lost.
_REFERRER = "same-origin"
_LONGEST_HEAD = 64 * 1024
_MOST_HEADERS = 100


class SecurityHeaders:
    """Gives each request a nonce of its own, and each answer the headers that go with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = scope[_NONCE] = secrets.token_urlsafe(16)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = _POLICY.format(nonce=nonce)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("referrer-policy", _REFERRER)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        given = scope["headers"]
        size = sum(len(name) + len(value) for name, value in given) + len(scope.get("raw_path") or b"")
        if len(given) > _MOST_HEADERS or size + len(scope["query_string"]) > _LONGEST_HEAD:
            text = f"the head of a request has at most {_MOST_HEADERS} headers and {_LONGEST_HEAD // 1024} KiB\n"
            await PlainTextResponse(text, 431)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def nonce_of(request: HTTPConnection) -> str:
    """The CSP nonce of this answer's scripts and styles."""
    nonce: str = request.scope[_NONCE]
    return nonce


def browser_of(request: HTTPConnection) -> str | None:
    """The random word this browser was given; None when it has none yet."""
    found = cookies.cookie(request, BROWSER_COOKIE)
    return found if len(found) == _BROWSER_LENGTH else None


def new_browser() -> str:
    """A random word for a browser."""
    return secrets.token_urlsafe(32)


def form_token(key: bytes, browser: str, name: str) -> str:
    """The token that forms carry, of one browser and one person."""
    return hmac.new(key + browser.encode(), f"form\0{name}".encode(), hashlib.sha256).hexdigest()


def check_meant(request: HTTPConnection, identity: Identity, key: bytes, given: str | None) -> None:
    """Raises NotAllowed unless the request comes from a page of this dashboard. `given` is the token it brought."""
    if not identity.by_browser and request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return
    if not is_same_origin(request):
        raise NotAllowed("this did not come from a page of this dashboard: open the page and try again there")
    browser = browser_of(request)
    expected = form_token(key, browser, identity.name) if browser else secrets.token_hex()
    if not hmac.compare_digest((given or "").encode(), expected.encode()):
        raise NotAllowed("the form is out of date: reload the page and try again")


def is_same_origin(request: HTTPConnection) -> bool:
    """Whether the browser says that the request was made by a page from here. Silence is a no."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    here = f"{'https' if cookies.is_secure(request) else 'http'}://{request.headers.get('host', '')}"
    return request.headers.get("origin", "") == here


def local_path(path: str, default: str) -> str:
    """A path to go on to that stays on this site; `default` for anything else."""
    plain = path.isprintable() and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if plain else default
