"""Sessions of the login page, and a limit on wrong passwords and tokens; both are kept on the server.

Sessions are in Redis with user, time and address until they end. The browser has a random key, the server a record
under the key's digest, so a reader of the server's data cannot log in. The record is signed with the key of the login,
so a program that writes to the server cannot create a session either. Several dashboards with the same secret share the
sessions; another secret ends them all. Signed values are `text.hex digest`, HMAC-SHA256 (RFC 2104).

Invariant: no client can use the limit to lock out another user. Wrong secrets are counted for all dashboards of a
prefix together: by address and name, and by address for all names. They are never counted by name alone, as then any
client could lock out any user. Even from the same address, behind one router, an attacker locks out only browsers that
never logged in: a browser that did sends a signed device cookie, and is counted by that instead of its address. (OWASP,
"Slow Down Online Guessing Attacks with Device Cookies".)
"""

import base64
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from jobrunner.broker.call import command, text_fields
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms, unix_ms
from jobrunner.inspector import audit
from jobrunner.web.addresses import Network, address_of, site_of
from jobrunner.web.auth import Identity
from jobrunner.web.cookies import read_cookie, set_cookie
from jobrunner.web.errors import NOTED, TooMany

LASTS_S = 12 * 3600
_MOST_SESSIONS = 1000
_WORD = 43
MOST = 10
"""Most wrong secrets of an address for a name."""
MOST_OF_ADDRESS = 50
"""Most wrong secrets of an address, for any names."""
WAIT_S = 900
"""Seconds after the last wrong secret for which they count, and for which a client at the limit has to wait."""
_NOTED_AN_HOUR = 20
"""Most lockouts per hour in the audit log; more would push out entries of users' actions."""
_LONGEST_SIGNED = 2000
_RECOGNISED_S = 90 * 86400
RECOGNISED = "jobrunner.recognised"
"""Key in the scope of a request whose browser just proved its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A logged-in browser. `id` identifies the session, and is useless for logging in."""

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
        """Begins a session; returns the key for the browser's cookie. Raises ServerError."""
        word = secrets.token_urlsafe(32)
        digest, now = self._digest("session", word), unix_ms()
        value = {"name": name, "address": address[:60], "began": now, "until": now + LASTS_S * 1000}
        signed_value = signed(value, self._key, purpose=_purpose(digest))
        place = keys_of(self._client).sessions
        self._tidy()
        broker_of(self._client).run_many(
            [command("HSET", place, digest, signed_value, read=int), command("EXPIRE", place, LASTS_S, read=int)]
        )
        return word

    def find(self, word: str) -> Session | None:
        """The session of a browser by its key; None when it ended or never existed. Raises ServerError."""
        return self.with_id(self._digest("session", word)) if len(word) == _WORD else None

    def of(self, request: HTTPConnection) -> Session | None:
        """The session of the browser's cookie. Raises ServerError."""
        return self.find(read_cookie(request, self.cookie))

    def with_id(self, digest: str) -> Session | None:
        """The session with this id, while it lasts. Raises ServerError."""
        call = command("HGET", keys_of(self._client).sessions, digest, read=lambda found: found)
        raw = broker_of(self._client).run(call)
        return self._read(digest, (raw or b"").decode("ascii", "replace"))

    def all(self) -> list[Session]:
        """The sessions that last and were signed with this key, the latest first. Raises ServerError."""
        found = (self._read(digest, text) for digest, text in self._stored().items())
        return sorted((one for one in found if one), key=lambda one: one.began, reverse=True)

    def end(self, *ids: str) -> None:
        """Ends sessions; their cookies, and copies of those, become invalid. Raises ServerError."""
        if ids:
            broker_of(self._client).run(command("HDEL", keys_of(self._client).sessions, *ids, read=int))

    def _tidy(self) -> None:
        """Removes sessions before one is added, when there are a thousand: keeps the latest half of the sessions that
        last and are signed with this key. Others have expired, are signed with another key, or are the oldest."""
        stored = self._stored()
        if len(stored) >= _MOST_SESSIONS:
            lasting = [one.id for one in self.all()][: _MOST_SESSIONS // 2]
            self.end(*(set(stored) - set(lasting)))

    def _stored(self) -> dict[str, str]:
        return broker_of(self._client).run(command("HGETALL", keys_of(self._client).sessions, read=text_fields))

    def _read(self, digest: str, text: str) -> Session | None:
        value = verified(text, self._key, purpose=_purpose(digest))
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
    return f"session {digest}"  # a record copied to another session's key is invalid there


class LoginThrottle:
    """Limits wrong secrets for one dashboard. `key` signs, and is shared by all processes with the same secrets."""

    def __init__(self, client: Client, key: bytes, trusted: Collection[Network], notes: audit.AccessAudit) -> None:
        self._client, self._key, self._trusted, self._notes = client, key, trusted, notes
        self.cookie = f"jobrunner_known_{self._digest('cookie')[:8]}"

    def tried(
        self, request: HTTPConnection, name: str, prove: Callable[[], Identity | None], *, known: bool
    ) -> Identity | None:
        """Returns the result of `prove` for a login as `name`. Raises TooMany at the limit, also for a right secret.

        `known` returns whether the name exists: unknown names are not written to the audit log, as they may be
        passwords.
        """
        device = self._device(request, name)
        limits = self._limits(request, name, device)
        self._check(limits)
        identity = prove()
        if identity is None:
            self._note_wrong(request, name if known else "unknown")
            self._count(request, limits, name if known else "unknown")
        elif identity.by_browser and not device:
            request.scope[RECOGNISED] = name
        return identity

    def recognise(self, request: HTTPConnection, response: Response) -> None:
        """Sets the device cookie of a browser that just proved its identity."""
        name = request.scope[RECOGNISED]
        value = {"name": name, "id": secrets.token_hex(8), "until": unix_ms() + _RECOGNISED_S * 1000}
        word = signed(value, self._key, purpose="known")
        set_cookie(request, response, self.cookie, word, _RECOGNISED_S)

    def _limits(self, request: HTTPConnection, name: str, device: str) -> dict[bytes, int]:
        """Keys of the counts for this request, each with its limit."""
        keys = keys_of(self._client)
        if device:
            return {keys.login_attempts(self._digest("browser", device, name)): MOST}
        site = site_of(address_of(request, self._trusted))
        return {
            keys.login_attempts(self._digest("address and name", site, name)): MOST,
            keys.login_attempts(self._digest("address", site)): MOST_OF_ADDRESS,
        }

    def _check(self, limits: dict[bytes, int]) -> None:
        calls = [command("GET", key, read=lambda raw: int(raw or 0)) for key in limits]
        calls += [command("PTTL", key, read=int) for key in limits]
        found = broker_of(self._client).run_many(calls)
        counts, waits_ms = found[: len(limits)], found[len(limits) :]
        over = [wait for count, most, wait in zip(counts, limits.values(), waits_ms, strict=True) if count >= most]
        if over:
            raise TooMany(math.ceil(max(*over, 1000) / 1000))

    def _count(self, request: HTTPConnection, limits: dict[bytes, int], who: str) -> None:
        calls = [command("INCR", key, read=int, repeatable=False) for key in limits]
        calls += [command("EXPIRE", key, WAIT_S, read=int) for key in limits]
        counts = broker_of(self._client).run_many(calls)[: len(limits)]
        if any(count == most for count, most in zip(counts, limits.values(), strict=True)):
            self._note(request, who)
        if any(count >= most for count, most in zip(counts, limits.values(), strict=True)):
            raise TooMany(WAIT_S)

    def _note(self, request: HTTPConnection, who: str) -> None:
        noted = keys_of(self._client).login_attempts("noted")
        calls = [command("INCR", noted, read=int, repeatable=False), command("EXPIRE", noted, 3600, read=int)]
        count = broker_of(self._client).run_many(calls)[0]
        audit.write(
            self._client,
            who=who,
            role="",
            action="login.locked",
            what="",
            outcome=f"locked out for {WAIT_S // 60} minutes: too many wrong passwords or tokens",
            address=address_of(request, self._trusted),
            in_stream=count <= _NOTED_AN_HOUR,
        )

    def _note_wrong(self, request: HTTPConnection, who: str) -> None:
        request.scope[NOTED] = True
        address = address_of(request, self._trusted)
        self._notes.refused(
            who=who,
            role="",
            action="login.failed",
            what=f"{request.scope.get('method', '')} {request.scope['path']}",
            outcome="refused: a wrong password or token",
            address=address,
            site=site_of(address),
        )

    def _device(self, request: HTTPConnection, name: str) -> str:
        value = verified(read_cookie(request, self.cookie), self._key, purpose="known")
        return str(value["id"]) if value and value.get("name") == name else ""

    def _digest(self, *words: str) -> str:
        return hmac.new(self._key, "\0".join(words).encode(), hashlib.sha256).hexdigest()[:32]


def signed(value: dict[str, Any], key: bytes, *, purpose: str) -> str:
    """`value` as a signed text; only a holder of the key can create one for this purpose."""
    text = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    return f"{text}.{_signature(text, key, purpose)}"


def verified(given: str, key: bytes, *, purpose: str) -> dict[str, Any] | None:
    """The value of a signed text; None when the signature or purpose is wrong, or it has expired (`until`, Unix ms)."""
    text, dot, digest = given[:_LONGEST_SIGNED].rpartition(".")
    if not dot or not hmac.compare_digest(digest.encode(), _signature(text, key, purpose).encode()):
        return None
    value = json.loads(base64.urlsafe_b64decode(text))
    return value if isinstance(value, dict) and value.get("until", 0) > unix_ms() else None


def _signature(text: str, key: bytes, purpose: str) -> str:
    return hmac.new(key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()
