"""OpenLineage events of batches: which queue and tables each attempt read and wrote.

Off unless the environment names a receiver, by the variables of OpenLineage's own Python client: OPENLINEAGE_URL (with
OPENLINEAGE_ENDPOINT and OPENLINEAGE_API_KEY), or OPENLINEAGE__TRANSPORT__TYPE `http`, `file` or `console`. An attempt
at a batch is a run: START when its function begins, then COMPLETE, FAIL, or ABORT when it was handed back or lost.

Invariant: a background thread sends the events; a receiver that is away delays and fails nothing.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import NAMESPACE_URL, uuid5

import msgspec

from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, keys_of
from jobrunner.clock import utc_now
from jobrunner.errors import InvalidOption
from jobrunner.etl.spark_station import SparkStation
from jobrunner.formatting import DISTRIBUTION, describe
from jobrunner.inspector.snapshot import shown_url
from jobrunner.jobs.batch_record import BatchOutcome, BatchRecord
from jobrunner.logs import SafeLogger
from jobrunner.spark.background_sender import BackgroundSender

PRODUCER = f"https://pypi.org/project/{DISTRIBUTION}"
_SPEC = "https://openlineage.io/spec"
_SCHEMA = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_TYPES: Mapping[BatchOutcome, str] = {
    "decided": "COMPLETE", "failed": "FAIL", "split": "FAIL", "dead": "FAIL", "released": "ABORT", "lost": "ABORT",
}  # fmt: skip
_ENDPOINT = "api/v1/lineage"
_TIMEOUT_S = 5.0
_FLUSH_S = 2.0
_TRANSPORTS = ("http", "file", "console")
_TRANSPORT = "OPENLINEAGE__TRANSPORT__"
Event = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_log = SafeLogger("jobrunner.spark")


class Lineage:
    """Sends the events of one station."""

    def __init__(self, station: SparkStation, client: Client, send: Callable[[Event], None], namespace: str) -> None:
        self._station = station
        self._prefix = keys_of(client).prefix
        self._server = _without_database(shown_url(client))
        self._namespace = namespace or self._prefix
        self._sender: BackgroundSender[Event] = BackgroundSender("openlineage events", send)

    def started(self, batch: str, attempt: int) -> None:
        """The function of a batch begins."""
        self._sender.put(self._event("START", utc_now(), batch, attempt))

    def ended(self, record: BatchRecord, *, attempt: int | None = None) -> None:
        """An attempt is over. `attempt`: its number, if another driver finished what it decided."""
        event = self._event(_TYPES[record.outcome], utc_now(), record.id, attempt or record.attempt)
        event["inputs"][0]["inputFacets"] = {
            "inputStatistics": _facet("1-0-0", "InputStatisticsInputDatasetFacet", rowCount=record.items)
        }
        if record.outcome == "decided" and len(event["outputs"]) == 1 and record.rows:
            event["outputs"][0]["outputFacets"] = {
                "outputStatistics": _facet("1-0-2", "OutputStatisticsOutputDatasetFacet", rowCount=record.rows)
            }
        if record.cause:
            event["run"]["facets"]["errorMessage"] = _facet(
                "1-0-1", "ErrorMessageRunFacet", message=record.cause, programmingLanguage="PYTHON"
            )
        self._sender.put(event)

    def close(self) -> None:
        """Sends the remaining events, for at most two seconds."""
        self._sender.close(_FLUSH_S)

    def _event(self, kind: str, at: datetime, batch: str, attempt: int) -> Event:
        queue = whole_queue(self._station.queue)
        named = {"processingType": "BATCH", "integration": "JOBRUNNER", "jobType": "STATION"}
        job_type = _facet("2-0-3", "JobTypeJobFacet", **named)
        return {
            "eventType": kind,
            "eventTime": at.astimezone(UTC).isoformat(timespec="milliseconds"),
            "run": {"runId": run_id(self._prefix, queue, batch, attempt), "facets": {}},
            "job": {"namespace": self._namespace, "name": queue, "facets": {"jobType": job_type}},
            "inputs": [self._queue(queue)],
            "outputs": self._outputs(),
            "producer": PRODUCER,
            "schemaURL": _SCHEMA,
        }

    def _outputs(self) -> list[Event]:
        """The target queues of a station, or the tables that a sink, or the sinks of a chain, name. Writes of a user's
        own function are not known."""
        if tables := self._station.tables:
            return [_table(str(one)) for one in tables]
        return [self._queue(to) for to in self._station.targets]

    def _queue(self, name: str) -> Event:
        return {"namespace": self._server, "name": f"{self._prefix}:{whole_queue(name)}", "facets": {}}


def _table(address: str) -> Event:
    kind, _, name = address.partition(":")
    return {"namespace": "file" if name.startswith("/") else kind, "name": name, "facets": {}}


def run_id(prefix: str, queue: str, batch: str, attempt: int) -> str:
    """The id of a run: the same for START and end, whichever process sends them."""
    return str(uuid5(NAMESPACE_URL, f"jobrunner:{prefix}:{queue}:{batch}:{attempt}"))


def lineage_of(
    station: SparkStation, client: Client, environment: Mapping[str, str] = os.environ
) -> Lineage | None:
    """The Lineage of a station; None when the environment names no receiver. Raises InvalidOption."""
    if environment.get("OPENLINEAGE_DISABLED", "").lower() in ("true", "1"):
        return None
    url = environment.get(f"{_TRANSPORT}URL") or environment.get("OPENLINEAGE_URL") or ""
    kind = (environment.get(f"{_TRANSPORT}TYPE") or ("http" if url else "")).lower()
    if not kind:
        return None
    if kind not in _TRANSPORTS:
        raise InvalidOption(f"{_TRANSPORT}TYPE={describe(kind)}: choose one of {', '.join(_TRANSPORTS)}")
    send = {"http": _http, "file": _file, "console": _console}[kind](url, environment)
    return Lineage(station, client, send, environment.get("OPENLINEAGE_NAMESPACE", ""))


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: urllib would follow it by a GET, without the event, and take its answer for success.
    """

    def redirect_request(self, *_: object) -> None:
        """Follows none."""


def _http(url: str, environment: Mapping[str, str]) -> Callable[[Event], None]:
    parts = _checked(url)
    endpoint = environment.get(f"{_TRANSPORT}ENDPOINT") or environment.get("OPENLINEAGE_ENDPOINT") or _ENDPOINT
    key = environment.get("OPENLINEAGE_API_KEY", "").strip()  # a secret that is read from a file may end with a newline
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    elif parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    host = parts.netloc.rpartition("@")[2]
    path = f"{parts.path.rstrip('/')}/{endpoint.lstrip('/')}"
    target = urlunsplit((parts.scheme, host, path, parts.query, ""))
    shown = urlunsplit((parts.scheme, host, path, "", ""))
    opener = build_opener(_NoRedirects)

    def send(event: Event) -> None:
        try:
            with opener.open(Request(target, _encode(event), headers), timeout=_TIMEOUT_S):  # noqa: S310 - checked
                return
        except HTTPError as error:
            with error:  # the error holds the connection
                moved = error.headers.get("Location")
                hint = f"; name the receiver itself, which moved to {moved.partition('?')[0]}" if moved else ""
                raise ConnectionError(f"{shown} answers {error.code} {error.reason}{hint}") from None
        except (OSError, HTTPException) as error:
            raise ConnectionError(f"{shown}: {getattr(error, 'reason', error)}") from None

    return send


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, or a port that is none
        is_url = False
    if not is_url:
        shown = url.rpartition("@")[2]  # what is in front may be a password
        raise InvalidOption(f"OPENLINEAGE_URL={describe(shown)} is no URL; write http://marquez:5000")
    return parts


def _file(_url: str, environment: Mapping[str, str]) -> Callable[[Event], None]:
    path = environment.get(f"{_TRANSPORT}LOG_FILE_PATH", "")
    if not path:
        raise InvalidOption(f"{_TRANSPORT}TYPE=file needs {_TRANSPORT}LOG_FILE_PATH, the file that events are added to")

    def send(event: Event) -> None:
        with Path(path).open("ab") as file:
            file.write(_encode(event) + b"\n")

    return send


def _console(_url: str, _environment: Mapping[str, str]) -> Callable[[Event], None]:
    return lambda event: _log.info("openlineage event", content=_encode(event).decode())


def _facet(version: str, name: str, **fields: Any) -> Event:
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}", **fields}


def _without_database(url: str) -> str:
    """The URL of the server without its database: the namespace of its queues."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "", "", "")) if parts.netloc else url
