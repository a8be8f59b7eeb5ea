"""Audit entries for accesses without a session, for refusals and for failed logins.

Clients without a login can cause refusals, so those must not fill the audit log or a disk: the first few of one kind
(from one site, for one reason) are logged as they are. Further ones are counted, and the count is logged with the first
refusal after a quarter of an hour.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.inspector import audit
from jobrunner.web.addresses import site_of

_FIRST = 5
_ALL = 25
_WINDOW_S = 900.0
_SITES = 1000
_AGAIN_S = 12 * 3600.0
NOTED = "jobrunner.noted"
"""Key in the scope of a request whose refusal is already logged."""


@dataclass(slots=True)
class _Count:
    since_s: float
    noted: int = 0
    left_out: int = 0


class AccessAudit:
    """Writes at most five entries of a kind in a quarter of an hour, and 25 of all kinds."""

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
