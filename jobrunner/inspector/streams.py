"""Reads the last progress of streaming queries that programs watch (`jobrunner.spark.watch_queries`)."""

import msgspec

from jobrunner.broker.calls import streams
from jobrunner.client.client import Client, broker_of, keys_of

MOST = 100
"""Most queries with their own series; queries with the latest reports take precedence."""


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress of a streaming query."""

    name: str
    """Its query name, else the first part of its id."""
    active: bool
    rows: int
    """Rows read since the query started."""
    batch_id: int
    trigger_s: float
    """Duration of the last micro-batch."""
    lag_s: float | None = None
    """Seconds between the newest row read and the trigger; None without a source that is jobrunner history."""
    at_ms: float
    """Unix ms, by the clock of the program."""
    error: str = ""
    """The error that ended the query, in one line."""


_decoder = msgspec.json.Decoder(StreamProgress)


def read_streams(client: Client) -> list[StreamProgress]:
    """Every watched query of the last two days, by name; at most 100. Raises ServerError."""
    found = []
    for raw in broker_of(client).run(streams.noted(keys_of(client))):
        try:
            found.append(_decoder.decode(raw))
        except (msgspec.DecodeError, msgspec.ValidationError):  # damaged, or of another version
            continue
    newest = sorted(found, key=lambda one: -one.at_ms)[:MOST]
    return sorted(newest, key=lambda one: one.name)
