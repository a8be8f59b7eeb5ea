"""`jobrunner bench`: it measures, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli.bench_steps import Bench, Drained, percentiles_of, prepared, throw_away_prefix
from jobrunner.client.client import Client, keys_of
from jobrunner.jobs.registry import all_jobs
from jobrunner.soak.audit import delete_all

DRAINED = Drained(per_s=1.0, worker_share=1.0, worker_us=1.0, server_share=0.1, server_us=1.0)


def test_it_measures_says_what_it_writes_and_leaves_nothing(
    cli: Callable[..., Any], client: Client, raw: Any
) -> None:
    client.queue("mail").push(1)
    before = set(raw.keys())

    result = cli("bench", "--tasks", "300", "--json")

    assert result.code == 0
    assert "writes 380 tasks" in result.err
    assert f"below {keys_of(client).prefix}-bench-" in result.err
    for name in ("enqueue_per_s", "bulk_per_s", "drain_per_s"):
        assert result.value[name] > 0, name
    for name in ("round_trip_ms", "idle_latency_ms"):
        assert 0 < result.value[name]["p50"] <= result.value[name]["p95"] <= result.value[name]["max"]
    assert set(raw.keys()) <= before, "the note of the push may have expired meanwhile"
    assert not [job for job in all_jobs() if "bench" in job.name]


def test_a_person_gets_a_table(cli: Callable[..., Any]) -> None:
    result = cli("bench", "--tasks", "100")

    assert result.code == 0
    assert [line.split("  ")[0] for line in result.out.splitlines()[:6]] == [
        *("MEASURE", "round trip", "enqueue, one by one", "enqueue, in bulk", "run, 10 at a time in one process"),
        "enqueue to start, idle worker",
    ]


def test_it_says_what_holds_the_set_up_back_and_what_would_help(cli: Callable[..., Any]) -> None:
    result = cli("bench", "--tasks", "100", "--json")

    assert "µs of this interpreter and" in result.value["verdict"]
    assert result.value["worker_us_per_task"] > 0
    assert isinstance(result.value["advice"], list)
    assert "Verdict: " in cli("bench", "--tasks", "100").out


def test_tasks_bring_along_the_payload_that_is_given(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.json").write_text('{"user": 17, "text": "é"}')
    sent: list[bytes] = []
    monkeypatch.setattr(Client, "enqueue_many", lambda _, tasks: sent.extend(task.payload for task in tasks))
    monkeypatch.setattr(Bench, "drain", lambda *_: DRAINED)

    result = cli("bench", "--tasks", "100", "--payload", tmp_path / "task.json", "--json")

    assert result.code == 0
    assert set(sent) == {'{"payload":{"user":17,"text":"é"}}'.encode()}
    assert result.value["payload_bytes"] == len('{"user":17,"text":"é"}'.encode())


@pytest.mark.parametrize(
    ("text", "told"),
    [(b"{", "give one JSON value"), (b"\xff", "give one JSON value"), (b'"%b"' % (b"x" * 2**20), "limit")],
)
def test_a_payload_that_cannot_be_sent_is_refused_before_anything_is(
    cli: Callable[..., Any], tmp_path: Path, raw: Any, text: bytes, told: str
) -> None:
    (tmp_path / "task.json").write_bytes(text)

    result = cli("bench", "--payload", tmp_path / "task.json")

    assert result.code == 2
    assert told in result.err
    assert raw.keys("*-bench-*") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_keys_are_deleted_however_it_ends(server: Any, raw: Any, error: type[BaseException]) -> None:
    prefix = throw_away_prefix("t")

    def interrupted(bench: Bench) -> None:
        with prepared(bench):
            bench.in_bulk(2500, None)
            assert raw.keys(f"{prefix}:*")
            raise error

    with Client(server.url, prefix) as client, pytest.raises(error):
        interrupted(Bench(client, 2))

    assert raw.keys(f"{prefix}:*") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_process_deletes_what_it_wrote(
    server: Any, client: Client, raw: Any, wait_until: Callable[..., Any], number: int, code: int
) -> None:
    environment = {
        "JOBRUNNER_URL": server.url,
        "JOBRUNNER_PREFIX": keys_of(client).prefix,
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    command = [sys.executable, "-m", "jobrunner", "bench", "--tasks", "1000000"]
    with subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: raw.keys("*-bench-*"), timeout_s=30)
        process.send_signal(number)
        process.communicate(timeout=30)

    assert process.returncode == code
    assert raw.keys("*-bench-*") == []


def test_only_keys_of_its_own_prefix_are_deleted(server: Any, client: Client, raw: Any) -> None:
    client.queue("mail").push(1)
    with Client(server.url, f"{keys_of(client).prefix}-bench-1") as throw_away:
        throw_away.queue("bench").push_many(range(2000))
        assert delete_all(throw_away) > 2000

    assert client.queue("mail").counts()["waiting"] == 1


def test_a_spread_is_of_the_times_in_order() -> None:
    times = percentiles_of([float(number) for number in range(100, 0, -1)])

    assert (times.p50, times.p95, times.max) == (51.0, 96.0, 100.0)
    assert percentiles_of([2.0]).p95 == 2.0
