"""Prefixes of other set-ups on the same server, also in databases with other numbers: producers and workers that use
different ones wait for each other. The scan for them is bounded in time.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.clock import monotonic, unix_ms
from jobrunner.errors import JobrunnerError
from jobrunner.inspector.doctor import Check, ok, warn

_ALIVE_MS = 60_000
_LOOKS_FOR_S = 0.3
_NAMES_AT_ONCE = 1000
_QUEUES_COUNTED = 100
_ENDING = b":queues"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrefix:
    """A prefix in a database (None: the client's own), with its open tasks and live workers."""

    prefix: str
    database: int | None
    undone: int
    workers: int

    def __str__(self) -> str:
        return f"prefix {self.prefix!r}" + (f" of database {self.database}" if self.database is not None else "")


def other_prefixes(client: Client, facts: ServerFacts | None) -> list[OtherPrefix]:
    """Other prefixes of this database that a scan of 0.3 s finds, and prefixes of all other databases with keys."""
    found = [one for one in _in_database(broker_of(client), None) if one.prefix != keys_of(client).prefix]
    for number, url in _other_databases(client, facts):
        with closing(Broker(Endpoint(url), retry_timeout_s=0)) as broker:
            found += _in_database(broker, number)
    return found


def _in_database(broker: Broker, number: int | None) -> Iterator[OtherPrefix]:
    prefixes: set[str] = set()
    with suppress(JobrunnerError):  # this user may not scan, or not read that database
        prefixes = _prefixes(broker)
    for prefix in sorted(prefixes):
        with suppress(JobrunnerError):  # a key of another program with a similar name
            if (found := _look(broker, Keys(prefix), number)) is not None:
                yield found


def _prefixes(broker: Broker) -> set[str]:
    nodes = broker.nodes()
    return set[str]().union(*(_prefixes_of(one, _LOOKS_FOR_S / len(nodes)) for one in nodes))


def _prefixes_of(node: Broker, at_most_s: float) -> set[str]:
    found, cursor, ends = set[str](), b"0", monotonic() + at_most_s
    while True:
        cursor, names = node.run(_scan(cursor))
        found.update(name.removesuffix(_ENDING).decode("utf-8", "replace") for name in names)
        if cursor == b"0" or monotonic() > ends:
            return found


def _scan(cursor: bytes) -> Call[tuple[bytes, list[bytes]]]:
    words = ("SCAN", cursor, "MATCH", b"*" + _ENDING, "COUNT", _NAMES_AT_ONCE, "TYPE", "set")
    return command(*words, read=lambda reply: (reply[0], reply[1]))


def _look(broker: Broker, keys: Keys, number: int | None) -> OtherPrefix | None:
    names = run_operation(broker, queue_names(keys))[:_QUEUES_COUNTED]
    if not names:
        return None
    sets = [getattr(keys.queue(name), state) for name in names for state in ("waiting", "scheduled", "pending")]
    alive = command("ZCOUNT", keys.workers, unix_ms() - _ALIVE_MS, "+inf", read=int)
    workers, *counts = broker.run_many([alive, *(command("ZCARD", key, read=int) for key in sets)])
    return OtherPrefix(prefix=keys.prefix, database=number, undone=sum(counts), workers=workers)


def _other_databases(client: Client, facts: ServerFacts | None) -> Iterable[tuple[int, str]]:
    parts = urlsplit(endpoint_of(client).url)
    if facts is None or parts.scheme not in ("redis", "rediss", "unix"):
        return
    asked = parse_qs(parts.query)
    is_socket = parts.scheme == "unix"
    named = asked.pop("db", ["" if is_socket else parts.path.strip("/")])[0]
    own = int(named) if named.isdigit() else 0
    for number in facts.databases:
        if number != own:
            query = urlencode({"db": str(number)} | {name: values[0] for name, values in asked.items()})
            yield number, f"{parts.scheme}://{parts.netloc}{parts.path if is_socket else ''}?{query}"


def neighbour_checks(here: OtherPrefix, others: Collection[OtherPrefix]) -> Iterator[Check]:
    """Whether producers and workers appear to use different prefixes or databases."""
    for other in others:
        idle, busy = sorted((here, other), key=lambda one: one.undone and not one.workers)
        if busy.undone and not busy.workers and idle.workers:
            found = f"{busy} has {busy.undone} to do and no worker, while {idle} has {idle.workers} at work"
            yield warn("prefix", found, "if the two should be one, use the same --url and --prefix everywhere")
        elif other.undone or other.workers:
            yield ok("prefix", f"{other} is in use too: {other.undone} to do, {other.workers} at work")
