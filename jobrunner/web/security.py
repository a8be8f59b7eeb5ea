"""Browser-side protection: security headers on every answer, CSRF tokens, cookies, and values signed for them.

A request that changes something must come from a page of this dashboard. Two things prove it, and both are needed: the
browser says so (Sec-Fetch-Site; for browsers or plain HTTP that do not send it, Origin), and the form has a token that
is bound to this browser (a random cookie that scripts cannot read) and to who asks. (OWASP, "Cross-Site Request Forgery
Prevention": signed double submit, bound to the session, with the origin check in depth.) A bearer token in a header is
itself a proof, as no browser sends one unasked.

Over https the names of cookies begin with `__Host-` (or `__Secure-` below a path). A browser takes a cookie of such a
name only over https, and `__Host-` only from this very host, so a neighbouring subdomain or a plain http page cannot
plant one. (RFC 6265bis, section 4.1.3.) Signed values are `text.hex digest`, HMAC-SHA256 (RFC 2104).
"""

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobrunner.clock import unix_ms
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
_LONGEST_SIGNED = 2000
_FLASH_COOKIE = "jobrunner_flash"
_FLASH_LASTS_S = 20


class SecurityHeaders:
    """Gives each request a nonce of its own, and each answer the headers that go with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, with the headers added to its answer; refuses a head that is too large."""
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
    """The random id in this browser's cookie; None without one."""
    found = read_cookie(request, BROWSER_COOKIE)
    return found if len(found) == _BROWSER_LENGTH else None


def new_browser() -> str:
    """A random id for a browser."""
    return secrets.token_urlsafe(32)


def form_token(key: bytes, browser: str, name: str) -> str:
    """The CSRF token for the forms of one browser and one user."""
    return hmac.new(key + browser.encode(), f"form\0{name}".encode(), hashlib.sha256).hexdigest()


def check_meant(request: HTTPConnection, identity: Identity, key: bytes, given: str | None) -> None:
    """Raises NotAllowed unless the request comes from a page of this dashboard. `given`: its token."""
    if not identity.by_browser and request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return
    if not is_same_origin(request):
        raise NotAllowed("this did not come from a page of this dashboard: open the page and try again there")
    browser = browser_of(request)
    expected = form_token(key, browser, identity.name) if browser else secrets.token_hex()
    if not hmac.compare_digest((given or "").encode(), expected.encode()):
        raise NotAllowed("the form is out of date: reload the page and try again")


def is_same_origin(request: HTTPConnection) -> bool:
    """Whether the browser states that a page of this origin made the request. No statement counts as no."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    here = f"{'https' if is_secure(request) else 'http'}://{request.headers.get('host', '')}"
    return request.headers.get("origin", "") == here


def local_path(path: str, default: str) -> str:
    """The path of a redirect if it stays on this site, else `default`."""
    plain = path.isprintable() and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if plain else default


def is_secure(request: HTTPConnection) -> bool:
    """Whether the browser uses https, with this server or with a proxy that says so."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def read_cookie(request: HTTPConnection, name: str) -> str:
    """The value that the browser sent; empty without one."""
    return request.cookies.get(_full_name(request, name), "")


def set_cookie(
    request: HTTPConnection, response: Response, name: str, value: str, lasts_s: int | None, *, strict: bool = False
) -> None:
    """Sets a cookie that scripts cannot read."""
    response.set_cookie(
        _full_name(request, name),
        value,
        max_age=lasts_s,
        path=_path(request),
        httponly=True,
        samesite="strict" if strict else "lax",
        secure=is_secure(request),
    )


def delete_cookie(request: HTTPConnection, response: Response, name: str) -> None:
    """Deletes a cookie in the browser."""
    response.delete_cookie(
        _full_name(request, name), path=_path(request), secure=is_secure(request), httponly=True, samesite="lax"
    )


def _full_name(request: HTTPConnection, name: str) -> str:
    if not is_secure(request):
        return name
    return f"__Host-{name}" if _path(request) == "/" else f"__Secure-{name}"


def _path(request: HTTPConnection) -> str:
    return request.scope.get("root_path", "") or "/"


def signed(value: dict[str, Any], key: bytes, *, purpose: str) -> str:
    """`value` as a signed text; only a holder of the key can make one for that purpose."""
    text = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    return f"{text}.{_digest(text, key, purpose)}"


def verified(given: str, key: bytes, *, purpose: str) -> dict[str, Any] | None:
    """The value of a signed text; None when the signature or purpose is wrong, or it has expired (`until`, Unix ms)."""
    text, dot, digest = given[:_LONGEST_SIGNED].rpartition(".")
    if not dot or not hmac.compare_digest(digest.encode(), _digest(text, key, purpose).encode()):
        return None
    value = json.loads(base64.urlsafe_b64decode(text))
    return value if isinstance(value, dict) and value.get("until", 0) > unix_ms() else None


def _digest(text: str, key: bytes, purpose: str) -> str:
    return hmac.new(key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


class Flash:
    """One line about what was just done, carried over a redirect in a short-lived signed cookie, and shown once.

    Signed with a key of this process: the line is only worth something for some seconds.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def put(self, request: Request, response: Response, text: str, kind: str) -> None:
        """Leaves a line for the next page. `kind` is done or refused."""
        value = {"text": text[:500], "kind": kind, "until": unix_ms() + _FLASH_LASTS_S * 1000}
        word = signed(value, self._key, purpose="flash")
        set_cookie(request, response, _FLASH_COOKIE, word, _FLASH_LASTS_S, strict=True)

    def take(self, request: Request) -> dict[str, str] | None:
        """The line for this page, if there is one: {"text": …, "kind": …}."""
        return verified(read_cookie(request, _FLASH_COOKIE), self._key, purpose="flash")

    def forget(self, request: Request, response: Response) -> None:
        """Deletes the line in the browser after it was rendered."""
        delete_cookie(request, response, _FLASH_COOKIE)
