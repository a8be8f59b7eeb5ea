"""Access control: identifies requests, checks their role, begins sessions, and writes the audit log."""

from collections.abc import Collection

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from jobrunner.client.client import Client
from jobrunner.inspector import audit
from jobrunner.web import cookies
from jobrunner.web.addresses import Network, address_of
from jobrunner.web.audit_notes import NOTED, AccessAudit
from jobrunner.web.auth import Auth, Basic, Identity, LoginAuth
from jobrunner.web.errors import NotAllowed, NotIdentified
from jobrunner.web.login_throttle import LoginThrottle
from jobrunner.web.roles import Role
from jobrunner.web.sessions import LASTS_S, Session, Sessions

_IDENTITY = "jobrunner.identity"


class Access:
    """Sessions, throttling of logins, and the audit log, around one `auth`."""

    def __init__(self, client: Client, auth: Auth, *, key: bytes, trusted: Collection[Network]) -> None:
        self.auth = auth
        self.key = key
        self._client = client
        self._trusted = trusted
        self._notes = AccessAudit(client)
        self.throttle = LoginThrottle(client, key, trusted, self._notes)
        self.sessions = Sessions(client, key)

    @property
    def has_login(self) -> bool:
        """Whether users log in on the login page, and so have sessions."""
        return isinstance(self.auth, LoginAuth)

    def address_of(self, request: HTTPConnection) -> str:
        """The address of a request's client, as far as it is trusted (see addresses.py)."""
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
            raise NotAllowed(f"a {identity.role.name.lower()} may not do this: it takes the role {least.name.lower()}")
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
            self._notes.came_in(who=identity.name, role=identity.role.name.lower(), address=address)
        return identity

    def known(self, request: HTTPConnection) -> Identity | None:
        """Returns the identity of a session of the login page. Raises ServerError."""
        session = self.session(request)
        return self.auth.session_of(session.name) if session and isinstance(self.auth, LoginAuth) else None

    def session(self, request: HTTPConnection) -> Session | None:
        """The session that the browser's cookie stands for. Raises ServerError."""
        return self.sessions.of(request) if isinstance(self.auth, LoginAuth) else None

    def log_in(self, request: Request, response: Response, identity: Identity) -> None:
        """Gives a browser a session. Raises ServerError."""
        word = self.sessions.begin(identity.name, self.address_of(request))
        cookies.give(request, response, self.sessions.cookie, word, LASTS_S)
        self.noted(request, identity, "login", "logged in")

    def noted(self, request: HTTPConnection, identity: Identity, action: str, outcome: str, what: str = "") -> None:
        """Writes an action, its user and its outcome into the audit log."""
        audit.write(
            self._client,
            who=identity.name,
            role=identity.role.name.lower() if identity.name else "",
            action=action,
            what=what,
            outcome=outcome,
            address=self.address_of(request),
        )

    def note_refusal(self, request: HTTPConnection, error: Exception, text: str) -> None:
        """Writes a refusal into the audit log, unless it is the first visit of a browser without a session."""
        is_first_visit = isinstance(error, NotIdentified) and request.scope.get("method") in ("GET", "HEAD")
        if not isinstance(error, NotIdentified | NotAllowed) or is_first_visit or NOTED in request.scope:
            return
        identity = request.scope.get(_IDENTITY)
        self._notes.refused(
            who=identity.name if identity else "unknown",
            role=identity.role.name.lower() if identity else "",
            action="refused",
            what=f"{request.scope.get('method')} {request.scope['path']}",
            outcome=f"refused: {text}",
            address=self.address_of(request),
        )
