"""jobrunner events."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.cli import events
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import instant_of, utc_now
from jobrunner.errors import ServerUnavailable
from jobrunner.task import new_id


def test_the_command_shows_what_happened(client: Any, cli: Any) -> None:
    client.queue("q").pause()
    client.queue("q").resume()

    shown = cli("events").out.splitlines()
    result = cli("events", "--json", "--kind", "queue_resumed").out.splitlines()

    assert [line.split()[2:4] for line in shown] == [["queue_paused", "queue=q"], ["queue_resumed", "queue=q"]]
    assert [json.loads(line)["kind"] for line in result] == ["queue_resumed"]


def test_the_time_of_an_event_can_be_given_to_since_in_any_zone(
    client: Client, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue("q").pause()
    try:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        (line,) = cli("events").out.splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()

    at = " ".join(line.split()[:2])
    instant = instant_of(at, option="since")
    assert at.endswith(("-05:00", "-04:00"))
    assert instant is not None
    assert abs(instant - utc_now()) < timedelta(minutes=1)


def test_a_line_is_one_line_whatever_an_error_says(client: Any, cli: Any) -> None:
    from jobrunner.broker.calls.events import note

    broker_of(client).run(note(keys_of(client), "task_died", queue="q", error="no\x1b[31m\nmore"))

    (line,) = cli("events").out.splitlines()
    assert "error=no?[31m?more" in line


@pytest.mark.parametrize("columns", [80, 40, 20])
def test_on_a_terminal_an_event_fits_and_nothing_of_it_is_cut(
    client: Any, cli: Any, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    from jobrunner.broker.calls.events import note

    task = f"{new_id('a-queue-with-a-long-name')}"
    said = {"queue": "a-queue-with-a-long-name", "task": task, "error": "ValueError: no such address " * 3}
    broker_of(client).run(note(keys_of(client), "task_died", **said))
    (whole,) = cli("events").out.splitlines()
    monkeypatch.setattr("jobrunner.cli.events.screen_width", lambda: columns)

    lines = cli("events").out.splitlines()

    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
    assert f"task={task}" in {word for line in lines for word in line.split()}
    assert all(len(line) <= columns or len(line.split()) == 1 for line in lines[1:]), (
        "an id is whole, though it is longer"
    )
    assert lines[0].split()[2] == "task_died"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["for people", "for programs"])
def test_what_lists_and_pages_hide_is_hidden(client: Client, cli: Any, form: tuple[str, ...]) -> None:
    from jobrunner.broker.calls.events import note

    client.redact("iban")
    said = {"queue": "mail", "error": "ValueError: login failed: password='hunter2', iban=DE00 end"}
    broker_of(client).run(note(keys_of(client), "task_died", **said))

    out = cli("events", *form).out

    assert ("hunter2" in out, "DE00" in out, "login failed" in out) == (False, False, True)


def test_what_is_no_id_is_misuse(cli: Any) -> None:
    result = cli("events", "--after", "yesterday")

    assert result.code == 2
    assert "give the id of an event" in result.err


def test_a_follower_outlasts_a_restart_of_the_server(
    start_server: Any, keys: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, away = start_server(), []

    def start_again(_seconds: float) -> None:
        away.append(1)
        if len(away) == 2:
            server.start()
            Client(server.url, keys.prefix).queue("q").resume()

    monkeypatch.setattr(events, "sleep", start_again)
    with Client(server.url, keys.prefix, retry_timeout=0) as client:
        client.queue("q").pause()
        followed = events.read(client, None, follow=True)
        first = next(followed).kind
        server.kill()

        assert (first, next(followed).kind) == ("queue_paused", "queue_resumed")
    assert len(away) == 2
    assert capsys.readouterr().err.count("the server is away, and is waited for") == 1


def test_a_server_that_is_away_from_the_beginning_is_not_waited_for(tmp_path: Any) -> None:
    with Client(f"unix://{tmp_path}/none", retry_timeout=0) as client, pytest.raises(ServerUnavailable):
        next(events.read(client, None, follow=True))
