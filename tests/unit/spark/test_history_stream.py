"""Offsets of a stream of history on a cluster whose clocks differ; needs no Spark and no server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from jobrunner.broker.call import Call
from jobrunner.broker.keys import Keys
from jobrunner.errors import InvalidOption
from jobrunner.spark.source import history_stream
from jobrunner.spark.source.history_stream import HistoryStream
from jobrunner.spark.source.options import ReadSchema, stream_options


class Primaries:
    """One that is five seconds behind the other, and has the queue. Something finished just before it is asked."""

    def __init__(self) -> None:
        self.clocks = [[b"1015", b"0"], [b"1010", b"500000"]]
        self.finished = [1_010_499.0]
        self.asked: list[tuple[Any, ...]] = []

    def run(self, call: Call[Any]) -> Any:
        assert call.words == ("TIME",)
        return call.read(self.clocks if call.everywhere else self.clocks[0])

    def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        (count,) = calls
        assert count.words[0] == "ZCOUNT"
        self.asked.append(count.words[2:])
        return [len(self.finished)]


def make() -> HistoryStream:
    given = {"history": "mail", "startingOffset": "latest", "missingQueues": "ignore"}
    given |= {"url": "redis://nowhere", "prefix": "t"}
    return HistoryStream(stream_options(given), ReadSchema(schema=StructType(), item=(), fields=StructType()))


@pytest.fixture
def primaries(monkeypatch: pytest.MonkeyPatch) -> Primaries:
    made = Primaries()

    @contextmanager
    def broker_at(*_: str) -> Iterator[Primaries]:
        yield made

    monkeypatch.setattr(history_stream, "broker_at", broker_at)
    monkeypatch.setattr(HistoryStream, "_keys", lambda *_: [Keys("t").queue("mail")])
    return made


def test_it_reads_up_to_the_clock_that_is_furthest_behind(primaries: Primaries) -> None:
    """What finishes there a moment later is before the other clock, and would be passed over."""
    stream = make()
    assert stream.initialOffset() == {"at": "1010500.0"}
    end = stream.latestOffset({"at": "1000000.0"}, ReadAllAvailable())
    assert end == {"at": "1010500.0"}
    assert primaries.asked == [(b"1000000.0", b"(1010500.0")]


def test_a_run_of_what_is_available_now_ends_there(primaries: Primaries) -> None:
    stream = make()
    stream.prepareForTriggerAvailableNow()
    primaries.clocks = [[b"1020", b"0"], [b"1016", b"0"]]
    assert stream.latestOffset({"at": "1000000.0"}, ReadAllAvailable()) == {"at": "1010500.0"}


@pytest.mark.parametrize("offset", [12, None, {"logOffset": 0}, {"at": "soon"}, {"at": None}])
def test_an_offset_of_another_source_is_named(primaries: Primaries, offset: Any) -> None:
    """Spark passes on what the checkpoint has: that of a rate source is a number, one of files an object."""
    for call in (lambda: make().latestOffset(offset, ReadAllAvailable()), lambda: make().partitions(offset, offset)):
        with pytest.raises(InvalidOption, match=r"a query with another source.* checkpointLocation of its own"):
            call()
    assert primaries.asked == []
