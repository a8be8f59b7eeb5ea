"""The server of the demo loses what was written behind its last sync, and nothing else."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import ConnectionError as Refused
from redis import Redis

from jobs_example.demos.lakehouse import server as module
from jobs_example.demos.lakehouse.server import DemoServer


def test_what_was_synced_is_there_and_what_came_behind_it_is_lost(tmp_path: Path) -> None:
    with DemoServer(tmp_path / "server") as server:
        redis: Any = Redis.from_url(server.url)
        redis.set("synced", "yes")
        redis.incr("count")  # the thread below may begin after the sync
        assert redis.execute_command("WAITAOF", 1, 0, 10_000)[0] == 1
        written = 0

        def write() -> None:
            nonlocal written
            with suppress(Refused):
                while True:
                    written = redis.incr("count")

        writer = threading.Thread(target=write)
        writer.start()
        lost = server.lose_the_last_second()
        writer.join(30)

        after: Any = Redis.from_url(server.url)
        assert after.get("synced") == b"yes"
        assert 0 < int(after.get("count")) < written
        assert lost > 0


def test_it_is_not_killed_before_something_was_written_behind_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients may be quiet when its turn comes, as while a new driver starts Spark."""
    with DemoServer(tmp_path / "server") as server:
        waits = 0

        class Time:
            @staticmethod
            def sleep(seconds: float) -> None:
                nonlocal waits
                waits += seconds == module._BEHIND_THE_SYNC_S
                if waits == 3:
                    Redis.from_url(server.url).set("late", "yes")

        monkeypatch.setattr(module, "time", Time)
        lost = server.lose_the_last_second()

        after: Any = Redis.from_url(server.url)
        assert (lost > 0, waits, after.get("late")) == (True, 3, None)


def test_what_was_overwritten_before_is_not_read_again(tmp_path: Path) -> None:
    place = tmp_path / "server"
    with DemoServer(place) as server:
        redis: Any = Redis.from_url(server.url)
        for _ in range(100):
            redis.set("big", "x" * 100_000)
        writer = threading.Thread(target=_write_until_it_is_gone, args=[redis])
        writer.start()
        server.lose_the_last_second()
        writer.join(30)

        assert Redis.from_url(server.url).strlen("big") == 100_000
        assert sum(file.stat().st_size for file in place.rglob("*.aof")) < 10_000_000


def _write_until_it_is_gone(redis: Any) -> None:
    with suppress(Refused):
        while True:
            redis.set("other", "x")
