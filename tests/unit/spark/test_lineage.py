"""OpenLineage events, sent to a small HTTP server of the test, to a file, and to a receiver that is away."""

import json
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from uuid import UUID

import pytest
from structlog.testing import capture_logs

pytest.importorskip("pyspark")

from jobrunner.client.batches import Batches
from jobrunner.errors import InvalidOption
from jobrunner.etl import Pipeline
from jobrunner.etl.pipeline import find_pipeline
from jobrunner.jobs.batch_record import BatchRecord
from jobrunner.spark.background_sender import BackgroundSender
from jobrunner.spark.lineage import lineage_of
from jobrunner.spark.station.batch_jobs import SparkUsage
from jobrunner.spark.station.batch_log import BatchLog
from tests.support.registries import forget_pipelines
from tests.support.waiting import wait_for


@pytest.fixture
def station(client):
    """A declared station, which nothing runs."""
    forget_pipelines()
    made = Pipeline("flights", client)

    @made.spark_station("clean", to="late")
    def clean(df, spark): ...

    made.declare("late")
    yield made.spark_stations["flights/clean"]
    forget_pipelines()


@pytest.fixture
def receiver():
    """An HTTP server: `url`, and `got`, the path, key and content of what was posted. `status`: what it answers."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.got.append((self.path, self.headers["Authorization"], body))
            self.send_response(server.status)
            self.send_header("Content-Length", "0")
            if server.status == 301:
                self.send_header("Location", f"{server.url}/elsewhere?key=secret")
            self.end_headers()

        def do_GET(self):
            server.got.append((self.path, None, None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.status = [], 201
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def record(**changed):
    values = {"outcome": "decided", "attempt": 2, "began_ms": 1e12, "items": 10, "rows": 8}
    return BatchRecord(id="b1", **values | changed)


def test_a_batch_is_a_run_from_its_queue_to_its_targets(station, client, keys, receiver):
    lineage = lineage_of(station, client, {"OPENLINEAGE_URL": receiver.url, "OPENLINEAGE_API_KEY": "key"})
    lineage.started("b1", 2)
    lineage.ended(record())
    lineage.close()

    (path, key, start), (_, _, end) = receiver.got
    assert (path, key) == ("/api/v1/lineage", "Bearer key")
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"] == str(UUID(start["run"]["runId"]))
    assert start["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    assert start["producer"].startswith("https://")
    assert start["eventTime"].endswith("+00:00")
    assert (start["job"]["namespace"], start["job"]["name"]) == (keys.prefix, "flights/clean")
    assert start["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert [one["name"] for one in end["inputs"]] == [f"{keys.prefix}:flights/clean"]
    assert [one["name"] for one in end["outputs"]] == [f"{keys.prefix}:flights/late"]
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 8
    for facet in (start["job"]["facets"]["jobType"], end["inputs"][0]["inputFacets"]["inputStatistics"]):
        assert facet["_producer"]
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")


def test_a_chain_names_the_tables_of_all_its_sinks(station, client, receiver):
    made = find_pipeline("flights")
    made.station("raw", to=("a", "b", "c"))(lambda item: None)
    made.spark_sink("a", table="delta:/lake/a")
    made.spark_sink("b", table="iceberg:lake.db.b")
    made.spark_sink("c")(lambda df, spark, batch: None)
    made.chain("raw")
    lineage = lineage_of(made.spark_stations["flights/raw"], client, {"OPENLINEAGE_URL": receiver.url})
    lineage.ended(record())
    lineage.close()

    ((_, _, end),) = receiver.got
    tables = sorted((one["namespace"], one["name"]) for one in end["outputs"])
    assert tables == [("file", "/lake/a"), ("iceberg", "lake.db.b")]


def test_a_batch_that_another_driver_rolls_forward_ends_the_run_that_decided_it(
    station, client, broker, keys, raw, tmp_path, monkeypatch
):
    """There was a run without an end, and another one without a start."""
    file = tmp_path / "events"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    client.queue("flights/clean").push_many(range(3))
    batches = Batches(broker, keys.queue("flights/clean"))
    died, log = batches.take(3, lease_s=60), BatchLog(station, client, lambda _: None)
    log.filled(log.begin(died), SimpleNamespace(usage=SparkUsage))
    died.decide({}, rest="succeeded")
    raw.zadd(batches.keys.finishing, {died.id: 0})
    raw.hset(batches.keys.batch + died.id.encode(), "ends", 1)

    other = batches.take(0, lease_s=60)
    assert (other.id, other.epoch, other.state) == (died.id, 2, "committed")
    log.done(log.begin(other))
    log.close()
    start, end = map(json.loads, file.read_text().splitlines())
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]


@pytest.mark.parametrize(
    ("outcome", "kind"), [("failed", "FAIL"), ("split", "FAIL"), ("dead", "FAIL"), ("lost", "ABORT")]
)
def test_other_ends_have_their_kind_and_cause(station, client, tmp_path, outcome, kind):
    file = tmp_path / "events"
    told = {"OPENLINEAGE__TRANSPORT__TYPE": "file", "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(file)}
    lineage = lineage_of(station, client, told | {"OPENLINEAGE_NAMESPACE": "shop"})
    lineage.ended(record(outcome=outcome, cause="ValueError: no"))
    lineage.ended(record(attempt=3))
    lineage.close()
    event, other = map(json.loads, file.read_text().splitlines())
    assert (event["eventType"], event["run"]["facets"]["errorMessage"]["message"]) == (kind, "ValueError: no")
    assert event["job"]["namespace"] == "shop"
    assert event["run"]["runId"] != other["run"]["runId"], "another attempt is another run"


def test_a_receiver_that_refuses_or_is_away_delays_and_fails_nothing(station, client, receiver):
    receiver.status = 500
    lineage = lineage_of(station, client, {"OPENLINEAGE_URL": receiver.url})
    for attempt in range(3):
        lineage.started("b1", attempt)
    lineage.close()
    assert len(receiver.got) == 3
    away = lineage_of(station, client, {"OPENLINEAGE_URL": "http://127.0.0.1:1"})
    away.ended(record())
    away.close()


def test_a_redirect_is_not_followed_as_it_would_lose_the_event(station, client, receiver):
    """An ingress that redirects http to https: urllib follows by a GET, and its answer passed for success."""
    receiver.status = 301
    with capture_logs() as logs:
        lineage = lineage_of(station, client, {"OPENLINEAGE_URL": receiver.url})
        lineage.ended(record())
        lineage.close()
    assert [path for path, *_ in receiver.got] == ["/api/v1/lineage"]
    (told,) = [one for one in logs if one["event"] == "openlineage events not sent"]
    assert told["lost"] == 1
    assert told["error"].endswith(f"answers 301 Moved Permanently; name the receiver itself, which moved to "
                                  f"{receiver.url}/elsewhere")  # fmt: skip


def test_a_login_in_the_url_is_sent_and_never_logged(station, client, receiver):
    with_login = receiver.url.replace("://", "://ada:l%40st@") + "?token=secret"
    lineage = lineage_of(station, client, {"OPENLINEAGE_URL": with_login})
    lineage.ended(record())
    lineage.close()
    ((path, key, _),) = receiver.got
    assert (path, key) == ("/api/v1/lineage?token=secret", "Basic " + b64encode(b"ada:l@st").decode())
    receiver.status = 401
    with capture_logs() as logs:
        lineage = lineage_of(station, client, {"OPENLINEAGE_URL": with_login})
        lineage.ended(record())
        lineage.close()
    (told,) = [one for one in logs if one["event"] == "openlineage events not sent"]
    assert told["error"].endswith(f"{receiver.url}/api/v1/lineage answers 401 Unauthorized")


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_slow_receiver_does_not_take_is_counted_in_warnings(fails):
    gate, sent = threading.Event(), []

    def send(message):
        gate.wait(30)
        if fails:
            raise ConnectionError("away")
        sent.append(message)

    with capture_logs() as logs:
        sender = BackgroundSender("numbers", send)
        for number in range(1500):
            sender.put(number)
        sender.close(0)
        gate.set()
        sender._thread.join(30)
    told = [one["lost"] for one in logs if one["event"] == "numbers not sent"]
    assert len(told) == 2, "at once, and at the end"
    assert sum(told) == 1500


def test_messages_beyond_the_bound_push_the_oldest_out_and_none_waits():
    gate, sent = threading.Event(), []

    def send(message):
        gate.wait(30)
        sent.append(message)

    sender = BackgroundSender("numbers", send)
    for number in range(3000):
        sender.put(number)
    wait_for(lambda: sender._sending)
    gate.set()
    sender.close(30)
    assert sent[-1000:] == list(range(2000, 3000))
    assert len(sent) <= 1001
    sender.put(7)
    assert sent[-1] == 2999, "closed"


@pytest.mark.parametrize("environment", [{}, {"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "true"}])
def test_without_a_receiver_there_are_no_events(station, client, environment):
    assert lineage_of(station, client, environment) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"OPENLINEAGE_URL": "marquez:5000"}, "write http://marquez:5000"),
        ({"OPENLINEAGE_URL": "http://ada:secret@marquez:port"}, "OPENLINEAGE_URL='marquez:port' is no URL; write http"),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "kafka"}, "choose one of http, file, console"),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "file"}, "needs OPENLINEAGE__TRANSPORT__LOG_FILE_PATH"),
    ],
)
def test_a_wrong_receiver_is_an_error_of_the_start(station, client, environment, message):
    with pytest.raises(InvalidOption, match=message):
        lineage_of(station, client, environment)
