"""Every page of the dashboard and the commands that look, with 1 000 000 tasks: time and Redis commands.

    python -m benchmarks.pages                                   # some three minutes
    python -m benchmarks.pages --tasks 100000 --rounds 3 --json pages.json

A private server is filled: large and small queues, tasks that wait, are scheduled, pending and dead of many errors,
history, statistics, workers, a flow and a pipeline. The pages are those that the routing has, found by following the
links of the overview: of each page one address for each set of query parameters, so a new page or filter is measured
without being listed here. Searches that find nothing are asked, too. Each answer is that to the first tab after a
while: the snapshot that tabs share is read anew. Commands run in this process, so their times are without the start
of the interpreter. Exit code: 0 all within the targets, 1 something missed them, 2 misuse.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from html import unescape
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import structlog
from starlette.applications import Starlette
from starlette.routing import Match, Route
from starlette.testclient import TestClient

from benchmarks.results import Table, write_json
from benchmarks.server import PrivateServer
from jobrunner import Client, group, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.cli.main import main as command_line
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import within
from jobrunner.etl import Pipeline
from jobrunner.inspector.search_filter import Filter
from jobrunner.task import Task, new_id
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from jobrunner.web.operations import Operations
from jobrunner.web.pages import all_pages

MOST_MS, MOST_COMMANDS = 200.0, 50
PREFIX = "pages"
_CALL = 1000
_MOST_PAGES = 200
_LARGE = ("orders", "mail", "billing", "images", "search")
_SMALL = tuple(f"tenant-{n}" for n in range(45))
_JOBS = {"orders": "ChargeCard", "mail": "send_mail", "billing": "send_invoice", "images": "resize", "search": "index"}
_ERRORS = (
    "ValueError: order {n} has no customer",
    "TimeoutError: payments.example.com did not answer within {n} ms",
    "ConnectionError: 503 Service Unavailable for shard {n}",
    "KeyError: 'sku-{n}'",
    "stripe.CardError: the card was declined, request req_{n:08x}",
)
_SEARCHES = ("/tasks?param=nowhere", "/tasks?error=nowhere", "/tasks?job=nowhere", "/dead?error=nowhere",
             "/dead?job=charge&error=503", "/history?job=nowhere", "/tasks?job=send&state=waiting", "/queues?q=tenant",
             "/tasks?queue=orders&order=newest", "/?span=6h", "/?span=24h", "/queues/orders?span=24h")  # fmt: skip
_COMMANDS = ("status", "queues list", "tasks list --job send_invoice --limit 20", "dead list --limit 20",
             "dead list --error 503 --limit 20", "workers list", "top --once --every 0.1")  # fmt: skip
_EVERY_MS = {"top --once --every 0.1": 100.0}
"""What a command waits for by its options, which is not counted."""
_DISTINCT = ("state", "span")
_LINK = re.compile(r'href="([^"#]+)"')
_PAGES = Pipeline("checkout")


@_PAGES.station("raw", to="priced")
def price(item: Any) -> Any:
    """A station, so that there is a pipeline."""
    return item.payload


@_PAGES.sink("priced")
def store(item: Any) -> None:
    """The sink of the pipeline."""


@job(queue="mail", name="page_member")
def member(n: int) -> int:
    """A member of the group of the flow."""
    return n


@dataclass(slots=True)
class Asked:
    """One page or command, and what its answers took."""

    what: str
    took_ms: list[float] = field(default_factory=list)
    commands: int = 0
    """The most of any answer."""

    @property
    def missed(self) -> bool:
        """Whether it is above a target."""
        return median(self.took_ms) > MOST_MS or self.commands > MOST_COMMANDS


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """The commands that the drivers of this process send within the block, a number for each round trip."""
    sent: list[int] = []
    replies = Broker._replies  # noqa: SLF001 - below everything that sends

    def counted(broker: Broker, calls: Sequence[Any], *rest: Any) -> list[Any]:
        sent.append(len(calls))
        return replies(broker, calls, *rest)

    Broker._replies = counted  # type: ignore[method-assign, assignment]  # noqa: SLF001
    try:
        yield sent
    finally:
        Broker._replies = replies  # type: ignore[method-assign]  # noqa: SLF001


def fill(client: Client, tasks: int) -> None:
    """Fills a server: of 100 tasks 5 are dead, 5 history, 10 scheduled, a few pending, and the others wait."""
    _end(client, "orders", tasks // 25, dead=True)
    _end(client, "billing", tasks // 100, dead=True)
    _end(client, "mail", tasks // 20, dead=False)
    _enqueue(client, "mail", tasks // 10, delay_ms=86_400_000.0)
    _enqueue(client, "images", min(tasks // 100, 2000))
    while client.queue("images").reserve(_CALL, keepalive=3600):
        pass
    for name in _SMALL:
        _enqueue(client, name, tasks // 1000)
    rest = tasks - tasks // 5 - min(tasks // 100, 2000) - len(_SMALL) * (tasks // 1000)
    for name, share in zip(_LARGE, (40, 30, 20, 5, 5), strict=True):
        _enqueue(client, name, rest * share // 100)
    client.queue("search").pause()
    client.queue("orders").configure(max_inflight=50)
    _around(client)


def _enqueue(client: Client, queue: str, count: int, *, delay_ms: float | None = None) -> None:
    kind = _JOBS.get(queue, "sync_tenant")
    for first in range(0, count, _CALL):
        client.enqueue_many(
            Task(id=new_id(queue), queue=queue, type=kind, payload=b'{"number": %d, "tenant": "t%d"}' % (n, n % 97),
                 max_attempts=1, delay_ms=delay_ms)
            for n in range(first, min(first + _CALL, count))
        )  # fmt: skip


def _end(client: Client, name: str, count: int, *, dead: bool) -> None:
    queue = client.queue(name)
    queue.configure(history=timedelta(days=1), max_attempts=1)
    _enqueue(client, name, count)
    number = 0
    while leases := queue.reserve(_CALL):
        if dead:
            for at in range(0, len(leases), 50):  # each error has a number of its own, as those of programs have
                number += 1
                error = _ERRORS[number % len(_ERRORS)].format(n=number)
                queue.rollback_many(leases[at : at + 50], error=error)
        else:
            queue.commit_many(leases)


def _around(client: Client) -> None:
    """Statistics of an hour and a week, workers, a flow, a pipeline: what pages show besides tasks."""
    now_ms = time.time() * 1000
    hours = range(2, 7 * 24)
    minutes_back = [*range(1, 60), *(60 * hour for hour in hours)]
    for report, back in enumerate(minutes_back):
        changes: dict[str, int] = {}
        for queue in (*_LARGE, *_SMALL):
            name = f"{queue} {_JOBS.get(queue, 'sync_tenant')}"
            changes |= {f"{name} succeeded": 900, f"{name} failed": 40, f"{name} dead": 3}
            changes |= {f"{name} {kind}:{bucket}": 90 for kind in ("run", "wait") for bucket in (6, 9, 12, 15)}
            changes |= {f"{name} run_us": 9_000_000, f"{name} wait_us": 4_000_000}
        calls = stats_calls.observe(keys_of(client), now_ms - back * 60_000, "past", report * 100, changes)
        broker_of(client).run_many(calls)
    for number in range(20):
        said = {"queues": ",".join((*_LARGE[:4], *_SMALL)), "types": ",".join({*_JOBS.values(), "sync_tenant"})}
        said |= {"host": f"host-{number % 4}", "pid": str(100 + number), "concurrency": "16", "release": "1.4.2"}
        announced = leader_calls.announce(keys_of(client), f"host.{number}.00c0de", said, ttl_ms=3_600_000)
        broker_of(client).run(announced)
    with within(client):
        group(*(member.bind(n) for n in range(500))).enqueue()
    _PAGES.apply(client)
    _PAGES.push_many("raw", [{"n": n} for n in range(500)])


def found_pages(app: Starlette, client: Client, ask: Callable[[str], str]) -> list[str]:
    """Addresses of all pages: one for each page and set of query parameters that a link leads to, and the searches.

    Raises LookupError for a page of the routing that no link leads to."""
    names = {page.name for page in all_pages() if page.name != "sessions"}  # that one is of the login page
    routes = [route for route in app.routes if isinstance(route, Route) and route.name in names]
    wanted = [route.path for route in routes if "{" not in route.path]
    wanted += [*_SEARCHES, *_begun(client)]
    known = {shape for path in wanted if (shape := shape_of(routes, path))}
    for path in wanted:  # grows while it is walked
        for link in _LINK.findall(ask(path)):
            there = urljoin(path, unescape(link))
            shape = shape_of(routes, there)
            if shape and shape not in known and len(wanted) < _MOST_PAGES:
                known.add(shape)
                wanted.append(there)
    if missing := sorted(names - {name for name, _ in known}):
        raise LookupError(f"no link leads to these pages: {', '.join(missing)}")
    return wanted


def shape_of(routes: Sequence[Route], path: str) -> tuple[str, frozenset[str]] | None:
    """The page of an address and the names of its parameters; None when it is of no page."""
    parts = urlsplit(path)
    if parts.netloc:
        return None
    scope: Mapping[str, Any] = {"type": "http", "method": "GET", "path": parts.path, "root_path": ""}
    name = next((route.name for route in routes if route.matches(scope)[0] is Match.FULL), None)  # type: ignore[arg-type]
    asked = parse_qsl(parts.query)
    return (name, frozenset(f"{key}={value}" if key in _DISTINCT else key for key, value in asked)) if name else None


def _begun(client: Client) -> list[str]:
    """An operation on nothing, so that its page is there."""
    begun = Operations(client).start("requeue", who="somebody", wanted=Filter(queue="search", state="dead"))
    return [f"/operations/{begun}"]


def ask_pages(client: Client, rounds: int, said: Callable[[str], None]) -> list[Asked]:
    """Asks each page `rounds` times, and once before to warm up."""
    app = create_app(client, auth=Loopback())
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as browser, counting() as sent:

        def ask(path: str) -> str:
            sent.clear()
            app.state.dashboard.live.forget()  # as for the first tab after a while
            reply = browser.get(path, headers={"accept": "text/html"}, follow_redirects=False)
            if reply.status_code != 200:
                raise LookupError(f"{path} is answered with {reply.status_code}")
            return reply.text

        said("following links")
        asked = [Asked(path) for path in found_pages(app, client, ask)]
        for number in range(rounds):
            said(f"{len(asked)} pages, round {number + 1} of {rounds}")
            for one in asked:
                began = time.perf_counter()
                ask(one.what)
                one.took_ms.append((time.perf_counter() - began) * 1000)
                one.commands = max(one.commands, sum(sent))
    return asked


def ask_commands(url: str, rounds: int) -> list[Asked]:
    """Runs each command `rounds` times, and once before to import what it needs."""
    asked = [Asked(f"jobrunner {words}") for words in _COMMANDS]
    for number in range(rounds + 1):
        for one, words in zip(asked, _COMMANDS, strict=True):
            with (
                counting() as sent,
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                began = time.perf_counter()
                with contextlib.suppress(SystemExit):
                    command_line([*words.split(), "--url", url, "--prefix", PREFIX])
                took_ms = (time.perf_counter() - began) * 1000 - _EVERY_MS.get(words, 0.0)
            if number:
                one.took_ms.append(took_ms)
                one.commands = max(one.commands, sum(sent))
    return asked


def table_of(asked: Sequence[Asked]) -> Table:
    """A row for each page and command, the slowest first, with what missed a target."""
    rows = [
        (one.what[:78], f"{median(one.took_ms):,.0f}", f"{max(one.took_ms):,.0f}", f"{one.commands}",
         "MISSED" if one.missed else "")
        for one in sorted(asked, key=lambda one: -median(one.took_ms))
    ]  # fmt: skip
    return Table(("page or command", "median ms", "worst ms", "commands", ""), rows, left=(0, 4))


def main() -> int:
    """Prints the table. Exit code: 0 all within the targets, 1 something missed them."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--tasks", type=int, default=1_000_000, help="on the server (default 1000000)")
    asked.add_argument("--rounds", type=int, default=5, help="answers of each page (default 5)")
    asked.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
    given = asked.parse_args()
    load = os.getloadavg()[0]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with PrivateServer() as server, Client(server.url, PREFIX) as client:
        _progress(f"filling a server with {given.tasks:,} tasks")
        fill(client, given.tasks)
        found = [*ask_pages(client, given.rounds, _progress), *ask_commands(server.url, given.rounds)]
    missed = [one for one in found if one.missed]
    verdict = f"{len(missed)} of {len(found)} are" if missed else f"none of {len(found)} is"
    print(table_of(found).text(), f"{verdict} above {MOST_MS:.0f} ms (median) or {MOST_COMMANDS} commands", sep="\n")
    print(f"load before: {load:.1f}")
    if given.json:
        write_json(given.json, [{"what": one.what, "ms": one.took_ms, "commands": one.commands} for one in found])
    return 1 if missed else 0


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
