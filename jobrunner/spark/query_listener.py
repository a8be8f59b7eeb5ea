"""Reports the progress of a session's streaming queries as metrics.

Invariant: nothing here delays or fails a query. A background thread writes the progress; while the server is away,
progress is dropped, as the next report replaces it.
"""

import json
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from jobrunner.broker.calls import streams
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.current import current_client
from jobrunner.clock import unix_ms
from jobrunner.inspector.streams import StreamProgress, read_streams
from jobrunner.spark.background_sender import BackgroundSender

_LONGEST_NAME = 128
_FORGOTTEN_MS = 86_400_000
_encode = msgspec.json.Encoder().encode


def watch_queries(spark: SparkSession, client: Client | None = None) -> "QueryListener":
    """Reports the progress of every streaming query of this session to the server: metrics `jobrunner_stream_…`.

    Works in a session of your own and under Spark Connect. Give queries a name (`.queryName("archive")`): the metrics
    are by name, and a restarted query goes on under it. `spark.streams.removeListener(watch)` ends it.
    """
    watch = QueryListener(client or current_client())
    spark.streams.addListener(watch)
    return watch


class QueryListener(StreamingQueryListener):
    """The listener that `watch_queries` adds. Spark calls it, from threads of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queries: dict[str, StreamProgress] = {}
        self._sender: BackgroundSender[StreamProgress] = BackgroundSender("progress of streaming queries", self._write)
        self._is_clean = False

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - its name in Spark
        """A query began, or was restarted under the same name."""
        self._note(
            str(event.runId),
            StreamProgress(name=name_of(event.name, event.id), active=True, rows=0, batch_id=-1, trigger_s=0.0,
                           at_ms=unix_ms()),
        )  # fmt: skip

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A micro-batch is done."""
        told = event.progress
        known = self._queries.get(str(told.runId))
        progress = read_progress(json.loads(told.json), rows_before=0 if known is None else known.rows)
        self._note(str(told.runId), progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new came: the query has no lag."""
        if (known := self._queries.get(str(event.runId))) is not None:
            lag_s = None if known.lag_s is None else 0.0
            self._note(str(event.runId), msgspec.structs.replace(known, lag_s=lag_s, at_ms=unix_ms()))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query ended, well or with an error."""
        known = self._queries.pop(str(event.runId), None)
        if known is not None:
            error = (event.exception or "").strip().partition("\n")[0][:500]
            self._sender.put(msgspec.structs.replace(known, active=False, error=error, at_ms=unix_ms()))

    def _note(self, run: str, progress: StreamProgress) -> None:
        self._queries[run] = progress
        self._sender.put(progress)

    def _write(self, progress: StreamProgress) -> None:
        broker, keys = broker_of(self._client), keys_of(self._client)
        if not self._is_clean:  # removes names that no program uses any more
            old = [one.name for one in read_streams(self._client) if unix_ms() - one.at_ms > _FORGOTTEN_MS]
            if old:
                broker.run(streams.forget(keys, old))
            self._is_clean = True
        broker.run_many(streams.note(keys, progress.name, _encode(progress)))


def name_of(name: str | None, query: object) -> str:
    """The name that the metrics have for a query."""
    return (name or str(query).partition("-")[0])[:_LONGEST_NAME]


def read_progress(told: dict[str, Any], *, rows_before: int) -> StreamProgress:
    """The progress that Spark reports of a micro-batch, as JSON, added to the rows that the query read before."""
    rows = int(told.get("numInputRows") or 0)
    return StreamProgress(
        name=name_of(told.get("name"), told.get("id", "")), active=True, rows=rows_before + rows,
        batch_id=int(told.get("batchId") or 0), trigger_s=float(told.get("batchDuration") or 0) / 1000,
        lag_s=_lag_s(told), at_ms=unix_ms(),
    )  # fmt: skip


def _lag_s(told: dict[str, Any]) -> float | None:
    """The largest lag of its sources that are jobrunner's history, whose offsets are instants; None without one."""
    found = [_lag_of(source, told.get("timestamp", "")) for source in told.get("sources") or ()]
    return max((lag for lag in found if lag is not None), default=None)


def _lag_of(source: dict[str, Any], trigger: str) -> float | None:
    try:
        offset = source["endOffset"]
        at_ms = float((json.loads(offset) if isinstance(offset, str) else offset)["at"])
        began_s = datetime.fromisoformat(trigger.replace("Z", "+00:00")).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
    if not source.get("numInputRows"):
        return 0.0  # the offset stays where it is while nothing finishes
    return max(began_s - at_ms / 1000, 0.0)
