"""A limit on wrong passwords and tokens. Invariant: no client can use it to lock out another user.

Wrong secrets are counted on the server, so in all dashboards of a prefix together: of an address for a name, and of an
address for all names. Never for a name alone, as then anybody could lock anybody out. Even at one address, behind one
router, a stranger locks out only browsers that never logged in: one that did carries a signed word, and is counted by
that and not by its address. (OWASP, "Slow Down Online Guessing Attacks with Device Cookies".)
"""

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Collection

from starlette.requests import HTTPConnection
from starlette.responses import Response

from jobrunner.broker.call import command
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.inspector import audit
from jobrunner.web import security
from jobrunner.web.addresses import Network, address_of, site_of
from jobrunner.web.auth import Identity
from jobrunner.web.errors import NOTED, TooMany

MOST = 10
"""Wrong secrets of an address for a name."""
MOST_OF_ADDRESS = 50
"""Wrong secrets of an address, for whatever names."""
WAIT_S = 900
"""They count for so long after the last of them; so long whoever reached the limit has to wait."""
_NOTED_AN_HOUR = 20
"""Lockouts in the audit log; more would push out what people did."""
_RECOGNISED_S = 90 * 86400
RECOGNISED = "jobrunner.recognised"
"""Key in the scope of a request whose browser just proved who it is."""


class LoginThrottle:
    """Counts for one dashboard. `key` signs, and is that of all processes with the same secrets."""

    def __init__(self, client: Client, key: bytes, trusted: Collection[Network], notes: audit.AccessAudit) -> None:
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
            request.scope[RECOGNISED] = name
        return identity

    def recognise(self, request: HTTPConnection, response: Response) -> None:
        """Gives a browser that just proved who it is the word that it is known by."""
        name = request.scope[RECOGNISED]
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
        value = security.verified(security.read_cookie(request, self.cookie), self._key, purpose="known")
        return str(value["id"]) if value and value.get("name") == name else ""

    def _digest(self, *words: str) -> str:
        return hmac.new(self._key, "\0".join(words).encode(), hashlib.sha256).hexdigest()[:32]
