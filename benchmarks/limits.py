"""jobrunner compared with its limits: its own scripts without the package, and Python without the scripts.

    python -m benchmarks.limits --tasks 100000 --rounds 5 --json limits.json

It measures a drain and enqueueing. All clients take turns in every round, in another order each time, on one private
server; the results are the ratios of medians. With one task in a call a tenth of the tasks is enough.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import enqueue, server_tool
from benchmarks.bare_scripts import BULK as AT_ONCE
from benchmarks.bare_scripts import BareScripts, payload
from benchmarks.child import ChildFailed
from benchmarks.contenders import jobrunner, jobrunner_left
from benchmarks.drain import NotDelivered, drain
from benchmarks.measures import OURS
from benchmarks.results import limits_table, write_json
from benchmarks.server import PrivateServer

DRAIN, SINGLE, BULK = "drain", "enqueue one by one", "enqueue in bulk"
_BATCHES = (1, 50, 500)
_CLIENTS = 50
_STRAYS = 0.001
"""The share of tasks that may be missing: the server's tool draws ids at random, some of them twice."""
Rates = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Row:
    """`rate(tasks)` is tasks a second. `leaves`: 1 when all of them must be on the server then, 0 when none."""

    part: str
    name: str
    rate: Callable[[int], float]
    share: float = 1.0
    """The part of --tasks that it gets."""
    leaves: int | None = None


class Payload(msgspec.Struct):
    """The parameters of a no-op task."""

    n: int


def rows(server: PrivateServer, tool: str | None) -> Iterator[Row]:
    """All rows. In each part jobrunner comes first."""
    yield from _drains(server, tool)
    yield from _single(server, tool)
    yield from _bulk(server, tool)


def _drains(server: PrivateServer, tool: str | None) -> Iterator[Row]:
    bare = BareScripts(server)
    yield Row(DRAIN, OURS, partial(_drain, server))
    for name, loop in (("in a Python loop", bare.drain_in_python), ("packed beforehand", bare.drain_packed)):
        for batch in _BATCHES:
            yield Row(DRAIN, f"scripts {name}, {batch} a call", partial(loop, batch=batch), _share(batch), leaves=0)
    if tool:
        for batch in _BATCHES:
            rate = partial(server_tool.reserve, tool, server, batch=batch)
            yield Row(DRAIN, f"{Path(tool).name}, reserve alone, {batch} a call", rate, _share(batch), leaves=1)
    yield Row(DRAIN, "Python alone: decode, call", _decode_and_call)


def _single(server: PrivateServer, tool: str | None) -> Iterator[Row]:
    bare, share = BareScripts(server), _share(1)
    yield Row(SINGLE, OURS, partial(_enqueue, server, "enqueue"), share)
    yield Row(SINGLE, "scripts in a Python loop", partial(bare.enqueue_in_python, batch=1), share, leaves=1)
    yield Row(SINGLE, "scripts packed beforehand", partial(bare.enqueue_packed, batch=1), share, leaves=1)
    if tool:
        for clients in (1, _CLIENTS):
            rate = partial(server_tool.enqueue, tool, server, clients=clients)
            yield Row(SINGLE, f"{Path(tool).name}, {clients} at a time", rate, share, leaves=1)
    yield Row(SINGLE, "Python alone: encode", _encode)


def _bulk(server: PrivateServer, tool: str | None) -> Iterator[Row]:
    bare = BareScripts(server)
    yield Row(BULK, OURS, partial(_enqueue, server, "bulk"))
    yield Row(
        BULK, f"scripts in a Python loop, {AT_ONCE} a call", partial(bare.enqueue_in_python, batch=AT_ONCE), leaves=1
    )
    yield Row(
        BULK, f"scripts packed beforehand, {AT_ONCE} a call", partial(bare.enqueue_packed, batch=AT_ONCE), leaves=1
    )
    if tool:
        rate = partial(server_tool.enqueue, tool, server, batch=AT_ONCE)
        yield Row(BULK, f"{Path(tool).name}, {AT_ONCE} a call", rate, leaves=1)
    yield Row(BULK, "Python alone: encode", _encode)


def _share(batch: int) -> float:
    return 0.1 if batch == 1 else 1.0


def _drain(server: PrivateServer, tasks: int) -> float:
    return tasks / drain(server, jobrunner(), tasks).seconds


def _enqueue(server: PrivateServer, way: str, tasks: int) -> float:
    rate = enqueue.measure(server, way, tasks, [OURS])[OURS]
    if isinstance(rate, str):
        raise NotDelivered(rate)
    return rate


def _decode_and_call(tasks: int) -> float:
    payloads, decode = [payload(number) for number in range(tasks)], msgspec.json.Decoder(Payload).decode
    began = time.perf_counter()
    for one in payloads:
        _nothing(decode(one).n)
    return tasks / (time.perf_counter() - began)


def _nothing(_number: int) -> None:
    pass


def _encode(tasks: int) -> float:
    encode = msgspec.json.Encoder().encode
    began = time.perf_counter()
    for number in range(tasks):
        encode(Payload(number))
    return tasks / (time.perf_counter() - began)


def measure(
    server: PrivateServer, asked: Sequence[Row], tasks: int, rounds: int, report: Callable[[str], None]
) -> Rates:
    """Tasks a second in each round, by part and name. Raises SystemExit when a delivery is not complete."""
    rates: Rates = {row.part: {} for row in asked}
    for row in asked:
        rates[row.part][row.name] = []
    for turn in range(rounds):
        first = turn * len(asked) // rounds
        for row in (*asked[first:], *asked[:first]):
            report(f"round {turn + 1} of {rounds}: {row.part}, {row.name}")
            try:
                rates[row.part][row.name].append(_take(server, row, int(tasks * row.share)))
            except (NotDelivered, ChildFailed) as failed:
                raise SystemExit(f"{row.part}, {row.name}: {failed}") from failed
    return rates


def _take(server: PrivateServer, row: Row, tasks: int) -> float:
    rate = row.rate(tasks)
    if row.leaves is not None:
        left, wanted = jobrunner_left(server.url), tasks * row.leaves
        if abs(left - wanted) > tasks * _STRAYS:
            raise NotDelivered(f"{left} tasks are on the server, not {wanted}")
    return rate


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    load, tool = os.getloadavg()[0], server_tool.find()
    with PrivateServer() as server:
        asked = list(rows(server, tool))
        rates = measure(server, asked, given.tasks, given.rounds, _progress)
    print(limits_table(rates).text())
    if tool is None:
        print("neither valkey-benchmark nor redis-benchmark is here: not measured")
    print(f"load before: {load:.1f}")
    if given.json:
        write_json(given.json, {"tasks": given.tasks, "rates": rates})
    return 0


if __name__ == "__main__":
    sys.exit(main())
