"""Power cuts lose what was not synced, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.reliability import sync_filter
from tests.reliability.power import PoweredServer
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(sync_filter.unsupported()), reason=sync_filter.unsupported()),
]
Started = Callable[..., PoweredServer]


@pytest.fixture
def started() -> Iterator[Started]:
    servers: list[PoweredServer] = []

    def start(**options: Any) -> PoweredServer:
        servers.append(PoweredServer(1, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.remove()


def after_a_cut(server: PoweredServer, *, is_exact: bool = True) -> dict[str, str]:
    """The keys that a cut left, with their values."""
    server.cut(is_exact=is_exact)
    server.start()
    with server.connect(decode_responses=True) as raw:
        return {key: raw.get(key) for key in raw.scan_iter()}


def test_a_cut_loses_what_came_after_the_last_sync(started: Started) -> None:
    server = started(appendfsync="everysec")
    with server.connect() as raw:
        raw.set("before", 1)
        wait_for(lambda: server.disk.syncs, timeout_s=10)
        raw.set("after", 1)

        assert after_a_cut(server) == {"before": "1"}


def test_a_sync_that_is_not_over_saves_nothing(started: Started) -> None:
    server = started(appendfsync="everysec", longest_sync_s=0)
    with server.connect() as raw:
        raw.set("a", 1)
        wait_for(lambda: server.disk.syncs, timeout_s=10)
        server.disk.stall()
        raw.set("b", 1)
        wait_for(lambda: raw.info("persistence")["aof_pending_bio_fsync"], timeout_s=10)

        assert after_a_cut(server) == {"a": "1"}


@pytest.mark.parametrize("is_exact", [True, False])
def test_what_was_synced_survives_cuts_and_rewrites(started: Started, is_exact: bool) -> None:
    server = started(appendfsync="always", **{"auto-aof-rewrite-min-size": "20kb", "auto-aof-rewrite-percentage": "20"})
    expected = {}
    for turn in range(3):
        with server.connect() as raw:
            rewrites = raw.info("persistence")["aof_rewrites"]
            number = 0
            while raw.info("persistence")["aof_rewrites"] < rewrites + 2:
                number += 1
                expected[f"{turn}-{number % 50}"] = f"{number:1000}"
                raw.set(f"{turn}-{number % 50}", f"{number:1000}")

        assert after_a_cut(server, is_exact=is_exact) == expected


def test_a_disk_that_lies_is_found_out(started: Started) -> None:
    server = started(appendfsync="always", is_lying=True)
    with server.connect() as raw:
        raw.set("a", 1)

        assert after_a_cut(server) == {}


def test_a_torn_command_at_the_end_is_gone_for_good(started: Started) -> None:
    """The server cuts its file there when it starts: what it appends then is not safe because that place once was."""
    server = started(appendfsync="always")
    with server.connect() as raw:
        raw.set("a", 1)
        raw.set("b", "x" * 100)
    server.cut(is_exact=True)
    [log] = (server.folder / "appendonlydir").glob("*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    server.start()
    with server.connect() as raw:
        raw.config_set("appendfsync", "no")
        raw.set("c", 1)

        assert after_a_cut(server) == {"a": "1"}


def test_a_server_that_refuses_a_log_torn_before_the_last_starts_the_next_time(started: Started) -> None:
    server = started(appendfsync="always")
    with server.connect() as raw:
        raw.set("a", 1)
        raw.set("b", "x" * 100)
    server.cut(is_exact=True)
    folder = server.folder / "appendonlydir"
    [log] = folder.glob("*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    (folder / "appendonly.aof.2.incr.aof").touch()
    with (folder / "appendonly.aof.manifest").open("a") as file:
        file.write("file appendonly.aof.2.incr.aof seq 2 type i\n")
    server.start()

    assert server.refusals == 1
    assert after_a_cut(server) == {"a": "1"}


def test_a_machine_that_cannot_cut_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert sync_filter.unsupported() == "Linux on riscv64: power cuts need Linux on x86_64 or aarch64"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.release", lambda: "4.19.0-27-amd64")
    assert sync_filter.unsupported().startswith("Linux 4.19.0-27-amd64: power cuts need 5.5 or later")
