"""The guards of every request: security headers, identity, role, form token; and the request's entries in the audit
log.

A request that changes something must come from a page of this dashboard. Two proofs are required: the browser states
the origin (Sec-Fetch-Site; Origin for browsers or plain HTTP that do not send it), and the form has a token that is
bound to this browser (a random cookie that scripts cannot read) and to the user. (OWASP, "Cross-Site Request Forgery
Prevention": signed double submit, bound to the session, with the origin check in depth.) A bearer token in a header is
itself a proof, as no browser sends one unprompted.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobrunner.client.client import Client
from jobrunner.inspector import audit
from jobrunner.web.addresses import Network, address_of, site_of
from jobrunner.web.auth import Auth, Identity, Role
from jobrunner.web.cookies import is_secure, read_cookie, set_cookie
from jobrunner.web.credentials import Basic, LoginAuth
from jobrunner.web.errors import NOTED, NotAllowed, NotIdentified
from jobrunner.web.sessions_and_login_throttle import LASTS_S, LoginThrottle, Session, Sessions

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
_IDENTITY = "jobrunner.identity"


class Access:
    """Sessions, throttling of logins, and the audit log, around one `auth`."""

    def __init__(self, client: Client, auth: Auth, *, key: bytes, trusted: Collection[Network]) -> None:
        self.auth = auth
        self.key = key
        self._client = client
        self._trusted = trusted
        self._notes = audit.AccessAudit(client)
        self.throttle = LoginThrottle(client, key, trusted, self._notes)
        self.sessions = Sessions(client, key)

    @property
    def has_login(self) -> bool:
        """Whether users log in on the login page, and so have sessions."""
        return isinstance(self.auth, LoginAuth)

    def address_of(self, request: HTTPConnection) -> str:
        """The address of a request's client, as far as it is trusted (see `auth.address_of`)."""
        return address_of(request, self._trusted)

    def is_identified(self, request: HTTPConnection) -> bool:
        """Whether `identified` has found the identity of this request."""
        return _IDENTITY in request.scope

    async def identified(self, request: HTTPConnection, least: Role) -> Identity:
        """Returns the identity of the user. Raises NotIdentified, or NotAllowed below the least role."""
        identity = await run_in_threadpool(lambda: self.known(request) or self._proved(request))
        if identity is None:
            raise NotIdentified("you are not logged in: log in first")
        request.scope[_IDENTITY] = identity
        if identity.role < least:
            raise NotAllowed(f"your role is {identity.role.name.lower()}: this takes the role {least.name.lower()}")
        return identity

    def _proved(self, request: HTTPConnection) -> Identity | None:
        """Returns the identity that the headers prove. Raises TooMany."""
        auth = self.auth
        name = auth.offered(request) if isinstance(auth, LoginAuth | Basic) else None
        if name is None or not isinstance(auth, LoginAuth | Basic):
            identity = auth.identify(request)
        else:
            identity = self.throttle.tried(request, name, lambda: auth.identify(request), known=auth.knows(name))
        if identity is not None:
            address = self.address_of(request)
            role = identity.role.name.lower()
            self._notes.came_in(who=identity.name, role=role, address=address, site=site_of(address))
        return identity

    def known(self, request: HTTPConnection) -> Identity | None:
        """Returns the identity of a session of the login page. Raises ServerError."""
        session = self.session(request)
        return self.auth.session_of(session.name) if session and isinstance(self.auth, LoginAuth) else None

    def session(self, request: HTTPConnection) -> Session | None:
        """The session of the browser's cookie. Raises ServerError."""
        return self.sessions.of(request) if isinstance(self.auth, LoginAuth) else None

    def log_in(self, request: Request, response: Response, identity: Identity) -> None:
        """Begins a session for a browser. Raises ServerError."""
        word = self.sessions.begin(identity.name, self.address_of(request))
        set_cookie(request, response, self.sessions.cookie, word, LASTS_S)
        self.noted(request, identity, "login", "logged in")

    def noted(
        self, request: HTTPConnection, identity: Identity, action: str, outcome: str, what: str = "",
        ids: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Writes an action, its user and its outcome into the audit log, with the ids of selected tasks."""
        audit.write(
            self._client,
            who=identity.name,
            role=identity.role.name.lower() if identity.name else "",
            action=action,
            what=what,
            ids=ids,
            outcome=outcome,
            address=self.address_of(request),
        )

    def note_refusal(self, request: HTTPConnection, error: Exception, text: str) -> None:
        """Writes a refusal into the audit log, unless it is the first visit of a browser without a session."""
        is_first_visit = isinstance(error, NotIdentified) and request.scope.get("method") in ("GET", "HEAD")
        if not isinstance(error, NotIdentified | NotAllowed) or is_first_visit or NOTED in request.scope:
            return
        identity = request.scope.get(_IDENTITY)
        address = self.address_of(request)
        self._notes.refused(
            who=identity.name if identity else "unknown",
            role=identity.role.name.lower() if identity else "",
            action="refused",
            what=f"{request.scope.get('method')} {request.scope['path']}",
            outcome=f"refused: {text}",
            address=address,
            site=site_of(address),
        )


class SecurityHeaders:
    """Gives each request a new nonce, and each answer the security headers with that nonce."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, with the headers added to its answer; refuses a head that is too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = scope[_NONCE] = secrets.token_urlsafe(16)
        if is_secure(HTTPConnection(scope)):
            scope["scheme"] = "https"  # for redirects, such as from /jobs to /jobs/, behind a proxy with TLS

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
        if _is_same_host(request):
            raise NotAllowed(
                "the browser has this page at another port or scheme than the dashboard: let the proxy between them "
                "pass on Host with its port (nginx: $http_host, not $host), and X-Forwarded-Proto"
            )
        raise NotAllowed("this did not come from a page of this dashboard: open the page and try again there")
    browser = browser_of(request)
    expected = form_token(key, browser, identity.name) if browser else secrets.token_hex()
    if not hmac.compare_digest((given or "").encode(), expected.encode()):
        raise NotAllowed("the form is out of date: reload the page and try again")


def is_same_origin(request: HTTPConnection) -> bool:
    """Whether the browser states that a page of this origin made the request. False without a statement."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    here = f"{'https' if is_secure(request) else 'http'}://{request.headers.get('host', '')}"
    return request.headers.get("origin", "") == here


def _is_same_host(request: HTTPConnection) -> bool:
    """Whether the origin differs in its scheme or port only, as behind a proxy that does not pass them on."""
    _, _, origin = request.headers.get("origin", "").partition("://")
    return bool(origin) and _without_port(origin) == _without_port(request.headers.get("host", ""))


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdecimal() else host
