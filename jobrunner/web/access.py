"""Access control: identifies requests, checks their role, keeps sessions, and writes the audit log.

Sessions of the login page are in Redis with user, time and address until they end. The browser has a random word, the
server a record under the word's digest, so a reader of the server's data cannot log in. The record is signed with the
key of the login, so a program that writes to the server cannot make a session either. Several dashboards with the same
secret share the sessions; another secret ends them all.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from jobrunner.broker.call import command, text_fields
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import from_ms, unix_ms
from jobrunner.inspector import audit
from jobrunner.web import security
from jobrunner.web.addresses import Network, address_of, site_of
from jobrunner.web.auth import Auth, Basic, Identity, LoginAuth
from jobrunner.web.errors import NOTED, NotAllowed, NotIdentified
from jobrunner.web.login_throttle import LoginThrottle
from jobrunner.web.roles import Role

LASTS_S = 12 * 3600
_MOST = 1000
_WORD = 43
_IDENTITY = "jobrunner.identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One browser that logged in. `id` names it, and is of no use for coming in."""

    id: str
    name: str
    began: datetime
    until: datetime
    address: str


class Sessions:
    """Begins, finds, lists and ends the sessions of dashboards that sign with one key."""

    def __init__(self, client: Client, key: bytes) -> None:
        self._client, self._key = client, key
        self.cookie = f"jobrunner_session_{self._digest('cookie')[:8]}"

    def begin(self, name: str, address: str) -> str:
        """Begins one; returns the word for the browser's cookie. Raises ServerError."""
        word = secrets.token_urlsafe(32)
        digest, now = self._digest("session", word), unix_ms()
        value = {"name": name, "address": address[:60], "began": now, "until": now + LASTS_S * 1000}
        signed_value = security.signed(value, self._key, purpose=_purpose(digest))
        place = keys_of(self._client).sessions
        self._tidy()
        broker_of(self._client).run_many(
            [command("HSET", place, digest, signed_value, read=int), command("EXPIRE", place, LASTS_S, read=int)]
        )
        return word

    def find(self, word: str) -> Session | None:
        """The session of a browser; None when it ended or never was. Raises ServerError."""
        return self.with_id(self._digest("session", word)) if len(word) == _WORD else None

    def of(self, request: HTTPConnection) -> Session | None:
        """The session that the browser's cookie stands for. Raises ServerError."""
        return self.find(security.read_cookie(request, self.cookie))

    def with_id(self, digest: str) -> Session | None:
        """The session of that id, while it lasts. Raises ServerError."""
        call = command("HGET", keys_of(self._client).sessions, digest, read=lambda found: found)
        raw = broker_of(self._client).run(call)
        return self._read(digest, (raw or b"").decode("ascii", "replace"))

    def all(self) -> list[Session]:
        """Those that last and were signed with this key, the latest first. Raises ServerError."""
        found = (self._read(digest, text) for digest, text in self._stored().items())
        return sorted((one for one in found if one), key=lambda one: one.began, reverse=True)

    def end(self, *ids: str) -> None:
        """Ends sessions; their cookies, and copies of those, become invalid. Raises ServerError."""
        if ids:
            broker_of(self._client).run(command("HDEL", keys_of(self._client).sessions, *ids, read=int))

    def _tidy(self) -> None:
        """Removes expired sessions before one is added. An entry that cannot be verified may be of another dashboard,
        so it is removed only when there are many."""
        stored = self._stored()
        if len(stored) >= _MOST:
            lasting = [one.id for one in self.all()][: _MOST // 2]
            self.end(*(set(stored) - set(lasting)))

    def _stored(self) -> dict[str, str]:
        return broker_of(self._client).run(command("HGETALL", keys_of(self._client).sessions, read=text_fields))

    def _read(self, digest: str, text: str) -> Session | None:
        value = security.verified(text, self._key, purpose=_purpose(digest))
        if value is None:
            return None
        return Session(
            id=digest,
            name=str(value["name"]),
            began=from_ms(value["began"]),
            until=from_ms(value["until"]),
            address=str(value["address"]),
        )

    def _digest(self, *words: str) -> str:
        return hmac.new(self._key, "\0".join(words).encode(), hashlib.sha256).hexdigest()[:32]


def _purpose(digest: str) -> str:
    return f"session {digest}"  # a record that is copied to another session's key fits it not


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
            role = identity.role.name.lower()
            self._notes.came_in(who=identity.name, role=role, address=address, site=site_of(address))
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
        security.set_cookie(request, response, self.sessions.cookie, word, LASTS_S)
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
