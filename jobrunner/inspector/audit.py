"""The audit log: user, action, target, time and address of changes by the dashboard and the command line.

One stream per prefix, of bounded length, outside of the keys that workers may write (`Keys.audit`), so a worker's
password can neither change nor delete it. Each entry is also a log record of the logger `jobrunner.audit`, which
`jobrunner dashboard` writes to stderr as JSON. Entries hold no parameters of tasks.
"""

import getpass
import logging
import os
import platform
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobrunner.broker.call import command
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import from_ms
from jobrunner.errors import JobrunnerError

_KEPT = 50_000
_LONGEST = 300
_log = logging.getLogger("jobrunner.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action as it was noted. `id` is its place in the stream, for reading on."""

    id: str
    at: datetime
    who: str
    role: str
    action: str
    what: str
    """The target: the parameters of the path, such as a queue."""
    outcome: str
    address: str


def write(client: Client, *, in_stream: bool = True, **fields: str) -> bool:
    """Notes one entry, fields as of an Entry; without `in_stream` only in the log. Returns False if the server refuses.

    A server that does not take the entry does not undo the action, and the log record is written in any case.
    """
    entry = {name: _on_one_line(text) for name, text in fields.items()}
    _log.info("%(action)s %(what)s by %(who)s (%(role)s) from %(address)s: %(outcome)s", entry, extra=entry)
    if not in_stream:
        return True
    words = [word for pair in entry.items() for word in pair]
    try:
        broker_of(client).run(
            command("XADD", keys_of(client).audit, "MAXLEN", "~", _KEPT, "*", *words, read=bytes, repeatable=False)
        )
    except JobrunnerError as error:
        _log.warning("the audit log on the server has no entry of the last action: %s", error)
        return False
    return True


def operator() -> tuple[str, str]:
    """(user of the operating system, host) of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    sudo = os.environ.get("SUDO_USER")
    return (f"{user} (sudo by {sudo})" if sudo and sudo != user else user), platform.node()


def entries(client: Client, *, before: str = "", limit: int = 100) -> list[AuditEntry]:
    """Entries of the audit log, the latest first, at most `limit`; `before`: id of the last one on the page before."""
    newest = f"({before}" if before else "+"
    call = command("XREVRANGE", keys_of(client).audit, newest, "-", "COUNT", limit, read=_entries)
    return broker_of(client).run(call)


def _on_one_line(text: str) -> str:
    # Parts of a path are percent-decoded: a line break would forge a second entry wherever the log is plain text.
    plain = "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"


def _entries(reply: list[Any]) -> list[AuditEntry]:
    return [_entry(raw.decode(), fields) for raw, fields in reply]


def _entry(entry_id: str, words: list[bytes]) -> AuditEntry:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    names = ("who", "role", "action", "what", "outcome", "address")
    told = {name: fields.get(name.encode(), b"").decode("utf-8", "replace") for name in names}
    return AuditEntry(id=entry_id, at=from_ms(float(entry_id.partition("-")[0])), **told)
