"""Streaming queries that programs watch (`jobrunner.spark.watch_queries`), as their listeners noted them last."""

import msgspec

from jobrunner.broker.calls import streams
from jobrunner.client.client import Client, broker_of, keys_of

MOST = 100
"""Queries that have series of their own; those that reported last come first."""


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress of a streaming query."""

    name: str
    """Its query name, else the first part of its id."""
    active: bool
    rows: int
    """Rows read since the query started."""
    batch_id: int
    trigger_s: float
    """How long the last micro-batch took."""
    rows_per_s: float = 0.0
    lag_s: float | None = None
    """How far the newest row that it read is behind the trigger; None where no source is a jobrunner history."""
    at_ms: float
    """Unix ms, by the clock of the program."""
    error: str = ""
    """Why it ended, in one line."""


_decoder = msgspec.json.Decoder(StreamProgress)


def read_streams(client: Client) -> list[StreamProgress]:
    """Every watched query of the last two days, by name; at most 100. Raises ServerError."""
    found = []
    for raw in broker_of(client).run(streams.noted(keys_of(client))):
        try:
            found.append(_decoder.decode(raw))
        except (msgspec.DecodeError, msgspec.ValidationError):  # damage, or another version
            continue
    newest = sorted(found, key=lambda one: -one.at_ms)[:MOST]
    return sorted(newest, key=lambda one: one.name)
