"""`jobrunner events`: prints the event log. Also writes the audit log entries of commands that change something.

An entry has the user of the operating system, the host, the action and its outcome.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import click

from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import INDENT, echo, plain_json, screen_width
from jobrunner.client.client import Client
from jobrunner.clock import sleep
from jobrunner.errors import NO_ANSWER, UsageError
from jobrunner.events import KINDS, Event
from jobrunner.formatting import display_width
from jobrunner.inspector import audit

_AWAY_S = 1.0
"""Seconds before the next try at an unreachable server."""
_EXAMPLES = """\b
Examples:
  jobrunner events
  jobrunner events --follow --kind task_died
  jobrunner events --follow --json | while read line; do …; done
"""


@click.command(epilog=_EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Waits for new events until Ctrl-C.")
@click.option("--after", metavar="ID", help="Only events after the one with this id.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)),
              help="Only events of this kind. Repeatable.")  # fmt: skip
@with_shared_options
def events(shared: CommonOptions, follow: bool, after: str | None, kinds: tuple[str, ...]) -> None:
    """Print the event log, and follow it.

    Workers that started, stopped or were lost, dead tasks, changes of queues. Oldest first, one event per line, on a
    narrow terminal with the rest below; with --json one object per line. The server keeps about 10 000 events.
    """
    room = screen_width()
    with connected(shared) as client, suppress(KeyboardInterrupt):
        for event in read(client, after, follow=follow):
            if not kinds or event.kind in kinds:
                echo(json.dumps(plain_json(event)) if shared.as_json else _line(event, room))


def read(client: Client, after: str | None, *, follow: bool) -> Iterator[Event]:
    """Yields events without hidden values, oldest first; with `follow` without end, also across outages of the server
    once it has answered."""
    has_answered = is_told = False
    while True:
        try:
            for event in client.events(after, follow=has_answered):
                shown = audit.without_secrets(event, client.redaction())
                has_answered, is_told, after = follow, False, event.id
                yield shown
            if not follow:
                return
            has_answered = True
        except NO_ANSWER as error:
            if not has_answered:
                raise
            if not is_told:
                click.echo(f"the server is away, and is waited for: {error}", err=True)
            is_told = True
            sleep(_AWAY_S)


def _line(event: Event, room: int | None) -> str:
    """Formats an event on one line, or on as many lines as `room` columns need: text is wrapped, not cut."""
    named = [(name, getattr(event, name)) for name in ("queue", "job", "task", "worker", "by")]
    details = " ".join(f"{name}={value}" for name, value in (*named, *event.details.items()) if value)
    shown = "".join(char if char.isprintable() else "?" for char in details)
    at = event.at.astimezone().isoformat(sep=" ", timespec="seconds")  # with its offset, as --since accepts it
    line = f"{at}  {event.kind:<16}  {shown}".rstrip()
    if room is None or display_width(line) <= room:
        return line
    head, *words = f"{at}  {event.kind}", *shown.split(" ")
    lines = [head]
    for word in words:
        if display_width(lines[-1]) + 1 + display_width(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{INDENT}{word}")
    return "\n".join(lines)


def operator_name() -> str:
    """The user who runs this command: user@host."""
    who, host = audit.operator()
    return f"{who}@{host}"


def note(client: Client, action: str, what: str, outcome: str, ids: Sequence[str] = ()) -> None:
    """Writes a command's change into the audit log, with the ids of chosen tasks. If the Redis user may not write it, a
    warning goes to stderr."""
    who, host = audit.operator()
    audit.write(client, who=who, role="command line", action=action, what=what, ids=ids, outcome=outcome, address=host)


@contextmanager
def noted(
    client: Client, action: str, what: str, outcome: Callable[[], str], ids: Sequence[str] = ()
) -> Iterator[None]:
    """Writes the outcome of a block that changes many tasks into the audit log at its end, also when it is interrupted,
    as by Ctrl-C: changes made by then stay. Not after a UsageError, which precedes every change."""
    try:
        yield
    except UsageError:
        raise
    except BaseException:
        note(client, action, what, f"broke off: {outcome()}, or about that", ids)
        raise
    note(client, action, what, outcome(), ids)
