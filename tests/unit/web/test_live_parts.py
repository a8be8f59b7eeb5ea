"""What changes on an open page is in a part that live updates replace, and each such part is there from the start.

A part that is rendered only where it has something to say is missing in one of two documents, and the script replaces
what both have: the figure of an open tab would stay as it was.
"""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from jobrunner.broker.call import command
from jobrunner.broker.calls import events as event_calls
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector import audit
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import Task
from jobrunner.web.pages import all_pages

PATHS = [page.path for page in all_pages() if "{" not in page.path] + [
    "/queues/mail", "/tasks?state=dead", "/tasks?param=n", "/history?param=n", "/tasks/open?queue=mail",
]  # fmt: skip
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "use"}
_CHANGES = re.compile(r'nonce="[^"]*"|name="csrf" value="[^"]*"|(?<="All that match") hidden')
"""The last one: of the bar of bulk actions, which the script shows when there are rows."""


class Parts(HTMLParser):
    """The ids of the live parts of a page, and what is outside of them and of the form that searches."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.live, self.still = list[str](), list[str]()
        self._within = list[str]()
        self.feed(_CHANGES.sub("", page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._within:
            self._within += [tag] * (tag not in _VOID)
        elif "data-live" in given:
            self.live.append(str(given["id"]))
            self._within = [tag]
        elif given.get("role") == "search" or given.get("class") in ("limits", "edit"):  # a person fills it in
            self._within = [tag]
        else:
            self.still.append(f"<{tag} {given}>")

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._within and data.strip():
            self.still.append(data.strip())


def add(client: Client, *ids: str) -> None:
    for task_id in ids:
        client.enqueue(Task(id=task_id, queue="mail", type="send", payload=b'{"n": 1}', encoding="json"))


def work(client: Client) -> None:
    """Leaves something on every page; the task `open` dies after it has reported its progress."""
    run, keys, mail = broker_of(client).run, keys_of(client), client.queue("mail")
    add(client, "b", "c", "d")
    for lease in mail.reserve(2):
        run(leases.progress(keys.queue("mail"), lease.id, lease.token, b'{"done": 1, "total": 2, "note": "half"}'))
        lease.rollback(error="ValueError: no")
    mail.configure(history=3600)
    mail.reserve()[0].commit()
    client.queue("other").push_many([{"n": 1}] * 60)
    client.queue("orders/raw").push_many([{"n": 1}] * 3)
    job = PeriodicDefinition(name="Nightly", queue="mail", schedule={"every": 60}, payload=b"{}", catch_up="last",
                             overlap="skip", jitter=0.0)  # fmt: skip
    run(leader_calls.define_periodics(keys, {"Nightly": msgspec.json.encode(job)}))
    run(command("HSET", keys.queue("mail").periodic("Nightly"), "recent", "3000000,fired,n-mail;", read=int))
    for n in range(130):
        run(event_calls.note(keys, "task_died", queue="mail", task=f"t{n}", error="no"))
        audit.write(client, who="ann", role="admin", action="queue.pause", what="mail", outcome="paused", address="")


@pytest.mark.parametrize("path", PATHS)
def test_what_changes_is_in_a_live_part(browse: Callable[..., Any], client: Client, path: str) -> None:
    client.queue("mail").configure(max_attempts=1)
    add(client, "open")
    before = Parts(browse().get(path).text)

    work(client)

    after = Parts(browse().get(path).text)
    assert after.live == before.live
    assert after.still == before.still
