"""Limits on what clients without a login can cause: guesses of passwords and tokens, and entries of the audit log.

Invariant: no client can use the throttle to lock out another user.

Wrong secrets are counted on the server, so in all dashboards of a prefix together: of an address for a name, and of an
address for all names. Never for a name alone, as then anybody could lock anybody out. Even at one address, behind one
router, a stranger locks out only browsers that never logged in: one that did carries a signed word, and is counted by
that and not by its address. (OWASP, "Slow Down Online Guessing Attacks with Device Cookies".)

Refusals must not fill the audit log or a disk: the first few of one kind (from one site, for one reason) are logged as
they are. Further ones are counted, and the count is logged with the first refusal after a quarter of an hour.
"""

import hashlib
import hmac
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import Response

from jobrunner.broker.call import command
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import monotonic, unix_ms
from jobrunner.inspector import audit
from jobrunner.web import security
from jobrunner.web.addresses import Network, address_of, site_of
from jobrunner.web.auth import Identity
from jobrunner.web.errors import TooMany

_FIRST = 5
_ALL = 25
_WINDOW_S = 900.0
_SITES = 1000
_AGAIN_S = 12 * 3600.0
NOTED = "jobrunner.noted"
"""Key in the scope of a request whose refusal is already logged."""
MOST = 10
"""Wrong secrets of an address for a name."""
MOST_OF_ADDRESS = 50
"""Wrong secrets of an address, for whatever names."""
WAIT_S = 900
"""They count for so long after the last of them; so long whoever reached the limit has to wait."""
_NOTED_AN_HOUR = 20
"""Lockouts in the audit log; more would push out what people did."""
_RECOGNISED_S = 90 * 86400
_SCOPE = "jobrunner.recognised"


@dataclass(slots=True)
class _Count:
    since_s: float
    noted: int = 0
    left_out: int = 0


class AccessAudit:
    """Audit entries for accesses without a session, refusals and failed logins.

    At most five of a kind in a quarter of an hour, and 25 of all kinds.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[str, str], _Count] = OrderedDict()
        self._came_in: OrderedDict[tuple[str, str], float] = OrderedDict()

    def came_in(self, *, who: str, role: str, address: str) -> None:
        """Logs an access without a session, once in 12 hours for a name and a site."""
        key, now = (who, site_of(address)), monotonic()
        with self._lock:
            if now - self._came_in.get(key, -_AGAIN_S) < _AGAIN_S:
                return
            self._came_in[key] = now
            self._came_in.move_to_end(key)
            while len(self._came_in) > _SITES:
                self._came_in.popitem(last=False)
        audit.write(
            self._client, who=who, role=role, action="login", what="", outcome="let in without a session",
            address=address,
        )  # fmt: skip

    def refused(self, *, who: str, role: str, action: str, what: str, outcome: str, address: str) -> None:
        """Logs a refusal, or counts it."""
        before = self._before(site_of(address), f"{who} {action}")
        if before is None:
            return
        left_out, is_last = before
        outcome += f" ({left_out} more since the last entry)" if left_out else ""
        outcome += f" (more of them are counted for {_WINDOW_S / 60:.0f} minutes)" if is_last else ""
        audit.write(self._client, who=who, role=role, action=action, what=what, outcome=outcome, address=address)

    def _before(self, site: str, kind: str) -> tuple[int, bool] | None:
        """Returns (entries left out before this one, whether further ones will be); None when this one is left out."""
        with self._lock:
            own, everybody = self._count((site, kind)), self._count(("", ""))
            if own.noted >= _FIRST or everybody.noted >= _ALL:
                own.left_out += 1
                return None
            own.noted += 1
            everybody.noted += 1
            left_out, own.left_out = own.left_out, 0
            return left_out, own.noted == _FIRST

    def _count(self, key: tuple[str, str]) -> _Count:
        now = monotonic()
        found = self._counts.setdefault(key, _Count(now))
        self._counts.move_to_end(key)
        if now - found.since_s > _WINDOW_S and found.noted:
            found.since_s, found.noted = now, 0
        while len(self._counts) > _SITES:
            self._counts.popitem(last=False)
        return found


class LoginThrottle:
    """Counts for one dashboard. `key` signs, and is that of all processes with the same secrets."""

    def __init__(self, client: Client, key: bytes, trusted: Collection[Network], notes: AccessAudit) -> None:
        self._client, self._key, self._trusted, self._notes = client, key, trusted, notes
        self.cookie = f"jobrunner_known_{self._digest('cookie')[:8]}"

    def tried(
        self, request: HTTPConnection, name: str, prove: Callable[[], Identity | None], *, known: bool
    ) -> Identity | None:
        """Returns the result of `prove` for a login as `name`. Raises TooMany, also for a right secret.

        `known` tells whether there is such a name: of others the audit log says nothing, they may be passwords.
        """
        device = self._device(request, name)
        limits = self._limits(request, name, device)
        self._check(limits)
        identity = prove()
        if identity is None:
            self._note_wrong(request, name if known else "unknown")
            self._count(request, limits, name if known else "unknown")
        elif identity.by_browser and not device:
            request.scope[_SCOPE] = name
        return identity

    def recognise(self, request: HTTPConnection, response: Response) -> None:
        """Gives a browser that just proved who it is the word that it is known by."""
        name = request.scope.get(_SCOPE)
        if name is not None:
            value = {"name": name, "id": secrets.token_hex(8), "until": unix_ms() + _RECOGNISED_S * 1000}
            word = security.signed(value, self._key, purpose="known")
            security.set_cookie(request, response, self.cookie, word, _RECOGNISED_S)

    def _limits(self, request: HTTPConnection, name: str, device: str) -> dict[bytes, int]:
        """Keys of the counts that concern this request, each with its limit."""
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
        self._notes.refused(
            who=who,
            role="",
            action="login.failed",
            what=f"{request.scope.get('method', '')} {request.scope['path']}",
            outcome="refused: a wrong password or token",
            address=address_of(request, self._trusted),
        )

    def _device(self, request: HTTPConnection, name: str) -> str:
        value = security.verified(security.read_cookie(request, self.cookie), self._key, purpose="known")
        return str(value["id"]) if value and value.get("name") == name else ""

    def _digest(self, *words: str) -> str:
        return hmac.new(self._key, "\0".join(words).encode(), hashlib.sha256).hexdigest()[:32]
