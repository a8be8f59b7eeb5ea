"""Sessions of the login page, kept in Redis with user, time and address until they end.

The browser has a random word, the server a record under the word's digest, so whoever reads the server cannot log in.
The record is signed with the key of the login, so whoever writes to the server cannot make a session either. Several
dashboards with the same secret share the sessions; another secret ends them all.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import HTTPConnection

from jobrunner.broker.call import command
from jobrunner.broker.replies import text_fields
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import from_ms, unix_ms
from jobrunner.web import cookies
from jobrunner.web.signing import signed, verified

LASTS_S = 12 * 3600
_MOST = 1000
_WORD = 43


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
        signed_value = signed(value, self._key, purpose=_purpose(digest))
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
        return self.find(cookies.cookie(request, self.cookie))

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
    return f"session {digest}"  # a record that is copied to another session's key fits it not
