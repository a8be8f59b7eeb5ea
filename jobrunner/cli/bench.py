"""`jobrunner bench`: measures the speed of this set-up, on temporary keys of its own."""

import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO

import click
import msgspec

from jobrunner.cli.bench_steps import (
    Bench,
    BenchFigures,
    Percentiles,
    Progress,
    advice,
    prepared,
    throw_away_prefix,
    verdict,
)
from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import answer_json, echo, rising, table, talk
from jobrunner.cli.signals import handling
from jobrunner.client.client import Client, endpoint_of, keys_of
from jobrunner.errors import PayloadTooLarge, UsageError
from jobrunner.formatting import size
from jobrunner.inspector.doctor.environment import check_server, parser_check
from jobrunner.inspector.snapshot import server_facts, shown_url
from jobrunner.log_output import warnings_to_stderr

_EXAMPLES = """\b
Examples:
  jobrunner bench
  jobrunner bench --tasks 100000 --concurrency 20 --url redis://localhost
  jobrunner bench --json | jq .drain_per_s
"""
_ONE_BY_ONE = 10
"""One of this many tasks is enqueued singly, because that is slow."""
_LATENCIES = 50
_ROUND_TRIPS = 200
_BYTES_A_TASK = 400
_LOCAL = re.compile(r"^unix:|@?(localhost|127\.0\.0\.1|\[::1\])(?=[:/]|$)")
_DOCTORED = ("protocol", "version", "role", "eviction", "durability", "fsync")
"""The doctor's checks that matter for a benchmark."""


@click.command(epilog=_EXAMPLES)
@click.option("--tasks", type=click.IntRange(100, 10_000_000), default=10_000, show_default=True, metavar="N",
              help="Tasks to enqueue in bulk and run; a tenth as many are also enqueued one by one.")  # fmt: skip
@click.option("--payload", type=click.File("rb"), metavar="FILE",
              help="File with the JSON payload of each task; -: stdin; default: no payload.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 1000), default=10, show_default=True,
              help="Tasks that run at once in the worker.")  # fmt: skip
@with_shared_options
def bench(shared: CommonOptions, tasks: int, payload: BinaryIO | None, concurrency: int) -> None:
    """Measure latency and throughput of this set-up.

    Measures round trips, enqueue rates, the rate of tasks that do nothing, and the latency of an idle worker. Names
    the bottleneck and what would help. It writes to the configured server below a prefix of its own and deletes its
    keys at the end, also after Ctrl-C. Results on a busy machine vary: measure twice.
    """
    warnings_to_stderr()
    brought = _json(payload)
    with connected(shared, starts=True) as settled:
        prefix = throw_away_prefix(keys_of(settled).prefix)
        if len(brought) > settled.settings.payload_limit:
            limit = settled.settings.payload_limit
            raise PayloadTooLarge(f"--payload: {len(brought)} bytes, the limit is {limit}; raise payload_limit")
    with closing(Client(settled.settings.url, prefix)) as client, _ended_by_sigterm():
        talk(
            f"writes {tasks + tasks // _ONE_BY_ONE + _LATENCIES:,} tasks, about "
            f"{size(tasks * (_BYTES_A_TASK + len(brought)))}, to {shown_url(client)} below {prefix}:, "
            "and deletes them"
        )
        measures = Bench(client, concurrency, brought)
        with prepared(measures):
            figures = _measured(measures, tasks, len(brought))
        checks = [check for check in (parser_check(), *check_server(client)) if check.what in _DOCTORED]
        found = {
            **_conditions(client, tasks, concurrency), **_rounded(figures), "verdict": verdict(figures),
            "advice": list(advice(figures, checks)),
        }  # fmt: skip
    if shared.as_json:
        answer_json(found)
    else:
        echo(_shown(found))


def _json(payload: BinaryIO | None) -> bytes:
    if payload is None:
        return b"null"
    try:
        return msgspec.json.encode(msgspec.json.decode(payload.read()))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--payload {payload.name}: {error}; give one JSON value") from error


def _measured(bench: Bench, tasks: int, payload_bytes: int) -> BenchFigures:
    alone, client = tasks // _ONE_BY_ONE, bench.client
    return BenchFigures(
        round_trip_ms=bench.round_trips(_ROUND_TRIPS),
        enqueue_per_s=_watched(alone, "Enqueueing", lambda progress: bench.one_by_one(alone, progress)),
        bulk_per_s=_watched(tasks, "In bulk", lambda progress: bench.in_bulk(tasks, progress)),
        drained=_watched(tasks + alone, "Running", lambda progress: bench.drain(tasks + alone, progress)),
        idle_latency_ms=_watched(_LATENCIES, "Waiting", lambda progress: bench.idle_latency(_LATENCIES, progress)),
        payload_bytes=payload_bytes,
        cores=os.cpu_count() or 1,
        is_local=endpoint_of(client).embedded is not None or _LOCAL.search(client.settings.url or "") is not None,
    )


def _rounded(figures: BenchFigures) -> dict[str, Any]:
    drained = figures.drained
    return {
        "payload_bytes": figures.payload_bytes,
        "round_trip_ms": figures.round_trip_ms,
        "enqueue_per_s": round(figures.enqueue_per_s, 1),
        "bulk_per_s": round(figures.bulk_per_s, 1),
        "drain_per_s": round(drained.per_s, 1),
        "worker_us_per_task": round(drained.worker_us, 1),
        "server_us_per_task": round(drained.server_us, 1),
        "idle_latency_ms": figures.idle_latency_ms,
    }


def _watched(total: int, label: str, measure: Callable[[Progress], Any]) -> Any:
    with rising(total, label, "tasks") as progress:
        return measure(progress)


def _conditions(client: Client, tasks: int, concurrency: int) -> dict[str, Any]:
    server = server_facts(client)
    return {
        "url": shown_url(client),
        "server": f"{server.name} {server.version}" if server else None,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "tasks": tasks,
        "concurrency": concurrency,
    }


def _shown(found: dict[str, Any]) -> str:
    rows = [
        ("round trip", _times(found["round_trip_ms"])),
        ("enqueue, one by one", f"{found['enqueue_per_s']:,.0f} tasks/s"),
        ("enqueue, in bulk", f"{found['bulk_per_s']:,.0f} tasks/s"),
        (f"run, {found['concurrency']} at a time in one process", f"{found['drain_per_s']:,.0f} tasks/s"),
        ("enqueue to start, idle worker", _times(found["idle_latency_ms"])),
    ]
    where = f"{found['server'] or 'server'} at {found['url']}; Python {found['python']}, {found['cores']} cores"
    advices = "".join(f"\n- {line}" for line in found["advice"])
    return f"{table(('MEASURE', 'FOUND'), rows)}\n\n{where}\n\nVerdict: {found['verdict']}.{advices}"


def _times(times: Percentiles) -> str:
    return f"{times.p50:.2f} ms (95 %: {times.p95:.2f}, longest: {times.max:.2f})"


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise in the block, so that the block cleans up."""

    def end(number: int, _: object) -> None:
        raise _TerminatedError(128 + number)

    with handling({signal.SIGTERM: end}):
        try:
            yield
        except _TerminatedError as ended:
            sys.stderr.flush()
            os._exit(ended.code)  # clean-up is done; threads still in C have crashed the interpreter's own exit


class _TerminatedError(SystemExit):
    code: int
