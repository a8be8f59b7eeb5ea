"""The audit log: user, action, target, time and address of changes by the dashboard and the command line. Also reads
pages of the event log, which workers write.

One stream per prefix, of bounded length, outside of the keys that workers may write (`Keys.audit`), so a worker's
password can neither change nor delete it. Each entry is also a log record of the logger `jobrunner.audit`, which
`jobrunner dashboard` writes to stderr as JSON. Entries hold no parameters of tasks.
"""

import getpass
import logging
import os
import platform
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jobrunner.broker.call import command
from jobrunner.broker.calls import events
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms, monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.events import Event
from jobrunner.redaction import Redaction

_KEPT = 50_000
_LONGEST = 300
_LONGEST_WHAT = 2000
"""Characters of a target: more than every filter of the dashboard has."""
_IDS_AT_ONCE = 100
"""Ids in an entry, some 4 KB: a selection of the dashboard has up to 500, and the stream holds 50,000 entries."""
_FIRST = 5
_ALL = 25
_WINDOW_S = 900.0
_SITES = 1000
_AGAIN_S = 12 * 3600.0
_EVENTS_AT_ONCE = 2500
_MOST_READS = 5
"""Most reads for one page. Together they cover more than the event stream keeps, so a rare kind is found among any
number of other events."""
_log = logging.getLogger("jobrunner.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log. `id` is its position in the stream, for the next page."""

    id: str
    at: datetime
    who: str
    role: str
    action: str
    what: str
    """The target: the parameters of the path, such as a queue."""
    outcome: str
    address: str


def write(client: Client, *, in_stream: bool = True, what: str, ids: Sequence[str] = (), **fields: str) -> bool:
    """Writes an entry with the fields of AuditEntry; without `in_stream` to the log only. `ids`: tasks to be named in
    full after `what`, a hundred for each entry.

    Returns False if the server refuses it. That does not undo the action, and the log record is written in any case.
    """
    calls, text = [], ""
    for named in _with_ids(_on_one_line(what, _LONGEST_WHAT), [_on_one_line(one) for one in ids]):
        entry = {"what": named, **{name: _on_one_line(text) for name, text in fields.items()}}
        text = _sentence(**entry)
        _log.info("%s", text, extra=entry)
        words = [word for pair in entry.items() for word in pair]
        calls.append(
            command("XADD", keys_of(client).audit, "MAXLEN", "~", _KEPT, "*", *words, read=bytes, repeatable=False)
        )
    if not in_stream:
        return True
    try:
        broker_of(client).run_many(calls)
    except JobrunnerError as error:
        _log.warning("the audit log on the server has no entry of the last action, %s: %s", text, error)
        return False
    return True


def _with_ids(what: str, ids: Sequence[str]) -> Iterator[str]:
    """The target of each entry."""
    if len(ids) <= _IDS_AT_ONCE:
        yield " ".join(filter(None, (what, *ids)))
        return
    for first in range(0, len(ids), _IDS_AT_ONCE):
        some = ids[first : first + _IDS_AT_ONCE]
        yield " ".join(filter(None, (what, f"({first + 1:,} to {first + len(some):,} of {len(ids):,})", *some)))


def _sentence(*, who: str, role: str, action: str, what: str, outcome: str, address: str) -> str:
    """An entry in one line, without the parts that it lacks."""
    parts = (action, what, f"by {who}", role and f"({role})", address and f"from {address}")
    return f"{' '.join(filter(None, parts))}: {outcome}"


@dataclass(slots=True)
class _Count:
    since_s: float
    noted: int = 0
    left_out: int = 0


class AccessAudit:
    """Entries that clients without a login can cause: accesses without a session, refusals and failed logins.

    They must not fill the audit log or a disk: the first few of one kind (from one site, for one reason) are logged in
    full. Further refusals are counted, and the count is logged with the first refusal after a quarter of an hour.

    At most five of a kind in a quarter of an hour, and 25 of all kinds.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[str, str], _Count] = OrderedDict()
        self._came_in: OrderedDict[tuple[str, str], float] = OrderedDict()

    def came_in(self, *, who: str, role: str, address: str, site: str) -> None:
        """Logs an access without a session, once in 12 hours for a name and a site."""
        key, now = (who, site), monotonic()
        with self._lock:
            if now - self._came_in.get(key, -_AGAIN_S) < _AGAIN_S:
                return
            self._came_in[key] = now
            self._came_in.move_to_end(key)
            while len(self._came_in) > _SITES:
                self._came_in.popitem(last=False)
        write(
            self._client, who=who, role=role, action="login", what="", outcome="let in without a session",
            address=address,
        )  # fmt: skip

    def refused(
        self, *, who: str, role: str, action: str, what: str, outcome: str, address: str, site: str
    ) -> None:
        """Logs a refusal, or counts it."""
        before = self._before(site, f"{who} {action}")
        if before is None:
            return
        left_out, is_last = before
        outcome += f" ({left_out} more since the last entry)" if left_out else ""
        outcome += f" (more of them are counted for {_WINDOW_S / 60:.0f} minutes)" if is_last else ""
        write(self._client, who=who, role=role, action=action, what=what, outcome=outcome, address=address)

    def _before(self, site: str, kind: str) -> tuple[int, bool] | None:
        """Returns (entries omitted before this one, whether further entries will be omitted); None when this entry is
        omitted."""
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


def operator() -> tuple[str, str]:
    """(user of the operating system, host) of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    sudo = os.environ.get("SUDO_USER")
    return (f"{user} (sudo by {sudo})" if sudo and sudo != user else user), platform.node()


def entries(client: Client, *, before: str = "", limit: int = 100) -> list[AuditEntry]:
    """Entries of the audit log, the latest first, at most `limit`; `before`: id of the last entry on the previous
    page."""
    newest = f"({before}" if before else "+"
    call = command("XREVRANGE", keys_of(client).audit, newest, "-", "COUNT", limit, read=_entries)
    return broker_of(client).run(call)


def _on_one_line(text: str, longest: int = _LONGEST) -> str:
    # Parts of a path are percent-decoded: a line break would forge a second entry in a plain text log.
    plain = "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)
    return plain if len(plain) <= longest else f"{plain[:longest]}…"


def _entries(reply: list[Any]) -> list[AuditEntry]:
    return [_entry(raw.decode(), fields) for raw, fields in reply]


def _entry(entry_id: str, words: list[bytes]) -> AuditEntry:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    names = ("who", "role", "action", "what", "outcome", "address")
    values = {name: fields.get(name.encode(), b"").decode("utf-8", "replace") for name in names}
    return AuditEntry(id=entry_id, at=from_ms(float(entry_id.partition("-")[0])), **values)


def newest_events(client: Client, kind: str, before: str, *, most: int) -> list[Event]:
    """Up to `most` events of one kind ('' for all) before the one with the id `before` ('' for all), newest first."""
    found: list[Event] = []
    count = _EVENTS_AT_ONCE if kind else most
    for _ in range(_MOST_READS if kind else 1):
        some = broker_of(client).run(events.before(keys_of(client), before, count=count))
        found += [event for event in some if kind in ("", event.kind)]
        if len(found) >= most or len(some) < count:
            break
        before = some[-1].id
    return found[:most]


def without_secrets(event: Event, redaction: Redaction) -> Event:
    """The event with the hidden values in its details hidden, such as those in the error of a dead task."""
    return replace(event, details={name: redaction.text(text) for name, text in event.details.items()})
