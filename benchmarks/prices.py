"""The price of each feature: the same drain with one of them on, and with all.

    python -m benchmarks.prices --tasks 100000 --rounds 5 --json prices.json

Plain is a job with default options, as in `python -m benchmarks`; its finished tasks stay readable for a minute. Every
feature takes its turn in every round, deliveries are verified, and the price follows from the medians. Each round also
measures OpenTelemetry's SDK alone with the same spans.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import bare_spans
from benchmarks.child import ChildFailed
from benchmarks.contender import Contender
from benchmarks.contenders import jobrunner_environment, jobrunner_left
from benchmarks.drain import NotDelivered, drain
from benchmarks.measures import EVERYTHING, FEATURES, PLAIN, PRICE_TARGET, SAMPLED
from benchmarks.results import price_share, prices_table, write_json
from benchmarks.server import PrivateServer

_CASES = (PLAIN, "nothing kept", *FEATURES, "tracing 1 in 100", EVERYTHING, SAMPLED)
_MANY = 10**6
_ON = "BENCHMARK_FEATURES"


def fill(features: Sequence[str], tasks: int) -> None:
    """Enqueues the tasks of the drain, in a queue with these features."""
    from benchmarks import noop_jobs
    from jobrunner import Client, RateLimit

    queue = Client().queue(noop_jobs.QUEUE)
    if "limits" in features:
        queue.configure(max_inflight=_MANY, rate=RateLimit(max_tokens=_MANY, interval=1))
    if "history" in features:
        queue.configure(history=3600, history_max=10_000)
    job = next((one for name, one in noop_jobs.WITH.items() if name in features), noop_jobs.Noop)
    for first in range(0, tasks, 10_000):
        job.enqueue_many(job(n) for n in range(first, min(first + 10_000, tasks)))


def work(features: Sequence[str]) -> None:
    """Runs a worker as `jobrunner work --concurrency 10` does, with these features."""
    from jobrunner import Worker

    worker = Worker(modules=["benchmarks.noop_jobs"], concurrency=10, executor="threads")
    with ExitStack() as stack:
        if "metrics" in features:
            from jobrunner.metrics.endpoint import MetricsEndpoint

            endpoint = MetricsEndpoint(worker.client, "127.0.0.1", 0, worker.health)
            endpoint.start()
            stack.callback(endpoint.close)
        for name in features:
            if name in bare_spans.SHARES:
                from jobrunner.tracing import instrument

                instrument(bare_spans.provider(bare_spans.SHARES[name]))
        worker.run()


def _case(name: str) -> Contender:
    command = [sys.executable, "-m", "benchmarks.prices"]
    return Contender(
        name=name,
        produce=command,
        work=lambda _task, count: [[*command, "work"]] * count,
        left=lambda server: jobrunner_left(server.url),
        environment=lambda server: {**jobrunner_environment(server), _ON: name},
    )


def measure(
    server: PrivateServer, tasks: int, rounds: int, report: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """In each round: tasks a second of each case, µs of each bare span. Raises SystemExit when a delivery is not
    complete."""
    rates: dict[str, list[float]] = {name: [] for name in _CASES}
    bare: dict[str, list[float]] = {name: [] for name in bare_spans.SHARES}
    for turn in range(rounds):
        for name, share in bare_spans.SHARES.items():
            bare[name].append(bare_spans.span_us(share))
        first = turn % len(_CASES)
        for name in _CASES[first:] + _CASES[:first]:
            report(f"round {turn + 1} of {rounds}: {name}")
            server.renew()
            try:
                done = drain(server, _case(name), tasks)
            except (NotDelivered, ChildFailed) as failed:
                raise SystemExit(f"{name}: {failed}") from failed
            rates[name].append(tasks / done.seconds)
    return rates, bare


def main() -> int:
    """Prints the table; 1 when the target is missed."""
    if sys.argv[1:3] == ["many", "noop"]:
        fill(os.environ[_ON].split("+"), int(sys.argv[3]))
        return 0
    if sys.argv[1:2] == ["work"]:
        work(os.environ[_ON].split("+"))
        return 0
    asked = argparse.ArgumentParser(prog="python -m benchmarks.prices", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--tasks", type=int, default=100_000)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--json", type=Path, metavar="FILE")
    given = asked.parse_args()
    load = os.getloadavg()[0]
    with PrivateServer() as server:
        rates, bare = measure(server, given.tasks, given.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    print(prices_table(rates).text(), bare_spans.table(bare).text(), sep="\n\n")
    ratio = price_share(rates, EVERYTHING)
    print(f"all of them: {ratio:.2f} of plain (target {PRICE_TARGET}); load before: {load:.1f}")
    if given.json:
        write_json(given.json, {"tasks": given.tasks, "rates": rates, "bare_us": bare})
    return 0 if PRICE_TARGET.met(ratio) else 1


if __name__ == "__main__":
    sys.exit(main())
