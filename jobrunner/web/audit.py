"""Who did what, when, to what and from where: one stream per prefix, of bounded length, that the page /audit shows.

A stream of its own, so that events of a busy day do not push it out. It holds no parameters of tasks.
"""

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobrunner.broker.call import command
from jobrunner.client.client import Client
from jobrunner.clock import from_ms
from jobrunner.errors import JobrunnerError
from jobrunner.web.context import Context

_KEPT = 10_000
_LONGEST = 300
_log = logging.getLogger("jobrunner.web")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One action as it was noted. `id` is its place in the stream, for reading on."""

    id: str
    at: datetime
    who: str
    role: str
    action: str
    what: str
    """What it was done to: the parameters of the path, such as a queue."""
    outcome: str
    address: str


def note(context: Context, action: str, *, outcome: str) -> None:
    """Notes one action. A server that does not take the note does not undo the action; the log has it in any case."""
    request = context.request
    write(
        context.client,
        who=context.identity.name,
        role=context.role.name.lower(),
        action=action,
        what=" ".join(str(part) for part in request.path_params.values()),
        outcome=outcome,
        address=context.address,
    )


def write(client: Client, *, in_stream: bool = True, **fields: str) -> None:
    """Notes one entry, fields as of an Entry; without `in_stream` only in the log."""
    words = [word for name, text in fields.items() for word in (name, text[:_LONGEST])]
    _log.info("%(action)s %(what)s by %(who)s (%(role)s) from %(address)s: %(outcome)s", fields)
    if not in_stream:
        return
    try:
        client.broker.run(
            command("XADD", client.keys.audit, "MAXLEN", "~", _KEPT, "*", *words, read=bytes, repeatable=False)
        )
    except JobrunnerError as error:
        _log.warning("the action is not in the audit log of the server: %s", error)


def entries(client: Client, *, before: str = "", limit: int = 100) -> list[Entry]:
    """What was done, the latest first, at most `limit`; `before` is the id of the last entry of the page before."""
    newest = f"({before}" if before else "+"
    return client.broker.run(command("XREVRANGE", client.keys.audit, newest, "-", "COUNT", limit, read=_entries))


def _entries(reply: list[Any]) -> list[Entry]:
    return [_entry(raw.decode(), fields) for raw, fields in reply]


def _entry(entry_id: str, words: list[bytes]) -> Entry:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    names = ("who", "role", "action", "what", "outcome", "address")
    told = {name: fields.get(name.encode(), b"").decode("utf-8", "replace") for name in names}
    return Entry(id=entry_id, at=from_ms(float(entry_id.partition("-")[0])), **told)
