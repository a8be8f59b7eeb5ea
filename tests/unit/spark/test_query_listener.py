"""What a watched streaming query reports, as metrics."""

from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from jobrunner.metrics.exposition import render
from jobrunner.spark.query_listener import QueryListener, read_progress

TRIGGER, TRIGGER_MS = "2026-11-25T10:00:00.000Z", 1795600800000


def progress(**changed):
    told = {
        "id": "aaaa-1", "name": "archive", "batchId": 4, "numInputRows": 7, "batchDuration": 1500,
        "processedRowsPerSecond": 4.5, "timestamp": TRIGGER,
        "sources": [{"numInputRows": 7, "endOffset": {"at": repr(TRIGGER_MS - 2500.0)}}],
    }  # fmt: skip
    return told | changed


@pytest.mark.parametrize(
    ("sources", "lag_s"),
    [
        ([{"numInputRows": 7, "endOffset": {"at": repr(TRIGGER_MS - 2500.0)}}], 2.5),
        ([{"numInputRows": 7, "endOffset": '{"at": "%s"}' % (TRIGGER_MS - 2500.0)}], 2.5),
        ([{"numInputRows": 0, "endOffset": {"at": "1.0"}}], 0.0),
        ([{"numInputRows": 7, "endOffset": {"topic": {"0": 12}}}], None),
        ([{"numInputRows": 7, "endOffset": None}, {}], None),
        (None, None),
    ],
)
def test_the_lag_is_known_where_offsets_are_instants(sources, lag_s):
    assert read_progress(progress(sources=sources), rows_before=0).lag_s == lag_s


def test_the_progress_of_queries_is_among_the_metrics(client):
    import json

    def event(**fields):
        return SimpleNamespace(runId="run-1", id="aaaa-1", name="archive", **fields)

    watch = QueryListener(client)
    watch.onQueryStarted(event())
    for rows in (7, 3):
        watch.onQueryProgress(
            SimpleNamespace(progress=SimpleNamespace(runId="run-1", json=json.dumps(progress(numInputRows=rows))))
        )
    watch._sender.close(10)
    lines = render(client).decode().splitlines()
    for expected in ("rows_total", "active", "batch_id", "trigger_seconds", "lag_seconds"):
        values = {"rows_total": 10, "active": 1, "batch_id": 4, "trigger_seconds": 1.5, "lag_seconds": 2.5}
        assert f'jobrunner_stream_{expected}{{query="archive"}} {float(values[expected])}' in lines

    ended = QueryListener(client)
    ended._queries = watch._queries
    ended.onQueryTerminated(event(exception="HistoryTrimmed: gone\n  at x"))
    ended._sender.close(10)
    assert 'jobrunner_stream_active{query="archive"} 0.0' in render(client).decode()
