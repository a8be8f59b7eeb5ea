"""The clock that tests move."""

from datetime import timedelta

import pytest
import redis

from jobrunner import Client
from jobrunner.client.client import keys_of
from jobrunner.errors import InvalidOption
from jobrunner.testing import worker as module
from jobrunner.testing.worker import Travel
from tests.support.server import Server


def test_what_is_due_in_a_minute_is_due_after_a_minute_however_soon(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within the millisecond in which it was enqueued."""
    travel = Travel()
    with Client(server.url, "travel", now_ms=travel) as client:
        queue = client.queue("q")
        queue.push("x", in_=60)
        ((_, due_ms),) = raw.zrange(keys_of(queue).scheduled, 0, -1, withscores=True)
        enqueued_s = (due_ms - 60_000 - 0.9 - module._BOOT_MS) / 1000  # a whole millisecond less when rounded down
        monkeypatch.setattr(module, "since_boot", lambda: enqueued_s)

        travel.forward(60)

        assert len(queue.pop(1)) == 1


def test_a_journey_beyond_the_last_datetime_is_refused_before_it_begins() -> None:
    travel = Travel()
    while travel.now.year < 9899:
        travel.forward(timedelta(days=36_524))
    with pytest.raises(InvalidOption, match=r"travel.forward is 3155673600 s, and it is 9\d\d\d-.*: stay before 9999"):
        travel.forward(timedelta(days=36_524))
    assert travel.now.year < 9999
