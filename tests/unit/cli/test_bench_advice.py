"""The advice that `jobrunner bench` prints with its figures."""

from dataclasses import replace

from jobrunner.cli.bench_steps import BenchFigures, Drained, Percentiles, advice, verdict
from jobrunner.inspector.doctor import ok, warn

QUICK = Percentiles(p50=0.1, p95=0.2, max=1.0)
BUSY_WORKER = Drained(per_s=50_000, worker_share=0.98, worker_us=19.6, server_share=0.4, server_us=8.0)
USUAL = BenchFigures(
    round_trip_ms=QUICK, enqueue_per_s=10_000, bulk_per_s=20_000, drained=BUSY_WORKER, idle_latency_ms=QUICK,
    payload_bytes=100, cores=4, is_local=True,
)  # fmt: skip


def drained(worker: float, server: float) -> BenchFigures:
    return replace(USUAL, drained=replace(BUSY_WORKER, worker_share=worker, server_share=server))


def test_the_one_that_is_busy_is_the_limit() -> None:
    assert verdict(drained(0.98, 0.4)).startswith("the interpreter of the worker is the limit: 20 µs")
    assert verdict(drained(0.5, 0.97)).startswith("the server is the limit")
    assert verdict(drained(0.9, 0.95)).startswith("the server is the limit")
    assert verdict(drained(0.3, 0.2)).startswith("neither worker nor server is busy (30% and 20% of a core)")


def test_more_processes_help_as_far_as_server_and_cores_have_room() -> None:
    (line,) = advice(drained(0.98, 0.4))
    assert line.startswith("work --processes 2 uses more cores: the server has room for about 2.1 times")
    (line,) = advice(drained(0.98, 0.1))
    assert line.startswith("work --processes 4")
    assert list(advice(drained(0.98, 0.8))) == []
    assert list(advice(replace(drained(0.98, 0.1), cores=1))) == []
    assert list(advice(drained(0.3, 0.1))) == []


def test_a_server_far_away_wants_batches() -> None:
    far = replace(drained(0.3, 0.1), round_trip_ms=Percentiles(p50=20.0, p95=25.0, max=30.0), is_local=False)

    (line,) = advice(far)

    assert "at most 50 tasks/s" in line
    assert line.endswith("a server nearer by")


def test_batches_payloads_and_an_uneven_machine_are_told() -> None:
    odd = replace(
        drained(0.3, 0.1),
        bulk_per_s=100_000,
        payload_bytes=50_000,
        round_trip_ms=Percentiles(p50=0.1, p95=1.0, max=9.0),
    )

    in_bulk, uneven, large = advice(odd)

    assert in_bulk.endswith("with enqueue_many: 10 times as fast as one by one")
    assert "95 %: 10 times the median" in uneven
    assert large.startswith("a payload of 50,000 bytes")


def test_what_the_doctor_advises_comes_last() -> None:
    checks = [ok("version", "9"), warn("eviction", "maxmemory-policy is allkeys-lru", "set it to noeviction")]

    *_, last = advice(USUAL, checks)

    assert last == "eviction: maxmemory-policy is allkeys-lru; set it to noeviction"
