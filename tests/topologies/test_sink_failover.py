"""An asynchronous failover that loses a batch after a sink wrote it: its rows are there once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.errors import BatchLost, JobrunnerError
from tests.support.plain_sink import PlainSink, left_of, rows_in
from tests.topologies.servers import Behind

pytestmark = pytest.mark.topology


@pytest.fixture
def behind() -> Iterator[Behind]:
    started = Behind(sentinels=1)
    yield started
    started.remove()


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "not decided"])
def test_a_failover_that_loses_the_batch_doubles_no_row(behind: Behind, tmp_path: Path, decided: bool) -> None:
    root, primary = tmp_path / "late", behind.primary()
    sink = PlainSink(behind.url, root, retry_timeout_s=30)
    ids = sink.queue.push_many(range(10))
    sink.write(first := sink.take(3))
    sink.end(first)
    with primary.connect() as connection:  # WAIT is for what its own connection wrote, and for all before that
        connection.set("t:mark", 1)
        assert connection.wait(1, 20_000) == 1
    behind.cut_replicas_off()

    sink.write(lost := sink.take(4))
    if decided:
        sink.end(lost)
    primary.kill()
    behind.fail_over(primary)
    if not decided:
        with pytest.raises((BatchLost, JobrunnerError)):
            sink.end(lost)
    assert sink.queue.counts()["waiting"] == 7
    sink.drain(5)

    assert rows_in(root) == Counter(ids)
    assert left_of(sink) == 0
    sink.client.close()
