"""The metrics endpoint of a worker: its answers, and its access control."""

import base64
import http.client
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.metrics.endpoint import MetricsEndpoint

Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def ask(client: Client) -> Iterator[Callable[..., Ask]]:
    """ask(token="…")("GET", "/metrics", authorization="…"): the answer of an endpoint."""
    made: list[Any] = []

    def serve(token: str = "") -> Ask:
        endpoint = MetricsEndpoint(client, "127.0.0.1", 0, lambda: (True, {}), token)
        endpoint.start()
        line = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=20)
        made.extend((line, endpoint))

        def asked(method: str, path: str, **headers: str) -> http.client.HTTPResponse:
            line.close()
            line.request(method, path, headers=headers)
            return line.getresponse()

        return asked

    yield serve
    for one in made:
        one.close()


@pytest.mark.parametrize("path", ["/metrics", "/health", "/ready"])
def test_head_is_get_without_a_body(ask: Callable[..., Ask], path: str) -> None:
    asked = ask()
    got, head = asked("GET", path), None
    length = len(got.read())
    head = asked("HEAD", path)

    assert (got.status, head.status) == (200, 200)
    assert (length > 0, head.read()) == (True, b"")
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/metrics"), ("X", "/")]
)
def test_no_answer_names_the_software(ask: Callable[..., Ask], method: str, path: str) -> None:
    answer = ask()(method, path)

    assert "server" not in answer.headers
    assert b"Python" not in answer.read()


def test_with_a_token_metrics_are_for_those_who_have_it(ask: Callable[..., Ask]) -> None:
    def basic(secret: str) -> str:
        return "Basic " + base64.b64encode(f"prometheus:{secret}".encode()).decode()

    asked = ask("long enough")
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "long enough"}, {"authorization": "Basic ?"},
                  {"authorization": basic("wrong")}, {"authorization": "Digest long enough"}):  # fmt: skip
        for method in ("GET", "HEAD"):
            refused = asked(method, "/metrics?x=1", **wrong)
            assert (refused.status, b"jobrunner_workers" in refused.read()) == (401, False)
            assert refused.headers["www-authenticate"].startswith("Bearer")
    for right in ("Bearer long enough", basic("long enough")):
        answer = asked("GET", "/metrics", authorization=right)
        assert (answer.status, b"jobrunner_workers" in answer.read()) == (200, True)
    assert [asked("GET", path).status for path in ("/health", "/ready")] == [200, 200]


def test_a_worker_that_waits_for_its_server_is_well_but_not_ready(client: Client) -> None:
    said: dict[str, object] = {"waits": "it takes no writes"}
    endpoint = MetricsEndpoint(client, "127.0.0.1", 0, lambda: (True, said))
    endpoint.start()
    line = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=20)

    def answer(path: str) -> tuple[int, bytes]:
        line.close()
        line.request("GET", path)
        found = line.getresponse()
        return found.status, found.read()

    try:
        assert answer("/health")[0] == 200
        status, body = answer("/ready")
        assert (status, b"it takes no writes" in body) == (503, True)
        said.clear()
        assert answer("/ready")[0] == 200
    finally:
        line.close()
        endpoint.close()


def test_until_a_server_is_known_the_process_is_well_but_not_ready(client: Client) -> None:
    endpoint = MetricsEndpoint(None, "127.0.0.1", 0, lambda: (True, {}))
    endpoint.start()
    line = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=20)

    def statuses() -> list[int]:
        found = []
        for path in ("/health", "/ready", "/metrics"):
            line.close()
            line.request("GET", path)
            found.append(line.getresponse().status)
        return found

    try:
        before = statuses()
        endpoint.use(client)
        assert (before, statuses()) == ([200, 503, 503], [200, 200, 200])
    finally:
        line.close()
        endpoint.close()
