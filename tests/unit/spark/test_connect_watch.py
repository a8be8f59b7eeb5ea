"""Log lines about the connection of a Spark Connect session, and the end of its retries; needs no Spark server."""

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobrunner.spark.connect_watch import end_retries, note_own, watch_connection


class State(Enum):
    """Named as in gRPC."""

    IDLE, CONNECTING, READY, TRANSIENT_FAILURE, SHUTDOWN = range(5)


class Channel:
    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def subscribe(self, callback: Any) -> None:
        self.callbacks.append(callback)


def session_with(channel: Any) -> Any:
    return SimpleNamespace(client=SimpleNamespace(host="spark.example", _channel=channel))


def test_an_outage_is_logged_once_with_its_end() -> None:
    channel = Channel()
    for _ in range(2):  # each station of the process asks for it
        watch_connection(session_with(channel))
    (changed,) = channel.callbacks
    connecting = [State.CONNECTING, State.TRANSIENT_FAILURE]
    with capture_logs() as logs:
        for state in [State.IDLE, State.CONNECTING, State.READY, *connecting, *connecting, State.READY, State.SHUTDOWN]:
            changed(state)
    assert [(line["log_level"], line["server"]) for line in logs] == [
        ("warning", "spark.example"), ("info", "spark.example"),
    ]  # fmt: skip


def test_other_sessions_are_left_alone() -> None:
    watch_connection(session_with(None))  # a version of PySpark without it
    watch_connection(SimpleNamespace(_jsparkSession=None))  # type: ignore[arg-type]


class Client:
    """Of a server that is away."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def get_retry_policies(self) -> list[Any]:
        return [self.policy]


@pytest.mark.parametrize("is_own", [True, False])
def test_calls_of_an_own_session_that_repeat_end_with_the_process(is_own: bool) -> None:
    """They run in threads that the interpreter waits for."""
    retries = pytest.importorskip("pyspark.sql.connect.client.retries")

    class Unlimited(retries.RetryPolicy):  # type: ignore[misc]
        def can_retry(self, exception: BaseException) -> bool:
            return isinstance(exception, ConnectionError)

    session: Any = type("Session", (), {"client": Client(Unlimited(initial_backoff=0))})()
    if is_own:
        note_own(session)
    tries = 0

    def call() -> None:
        nonlocal tries
        for attempt in retries.Retrying([session.client.policy]):
            with attempt:
                tries += 1
                if tries == 3:
                    end_retries(session)
                if tries < 6:
                    raise ConnectionError("away")

    if is_own:
        with pytest.warns(UserWarning, match="RETRIES_EXCEEDED"), pytest.raises(ConnectionError):
            call()
    else:
        call()
    assert tries == (3 if is_own else 6)
