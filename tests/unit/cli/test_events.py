"""jobrunner events."""

import json
from typing import Any

from jobrunner.client.client import broker_of, keys_of


def test_the_command_shows_what_happened(client: Any, cli: Any) -> None:
    client.queue("q").pause()
    client.queue("q").resume()

    shown = cli("events").out.splitlines()
    result = cli("events", "--json", "--kind", "queue_resumed").out.splitlines()

    assert [line.split()[2:4] for line in shown] == [["queue_paused", "queue=q"], ["queue_resumed", "queue=q"]]
    assert [json.loads(line)["kind"] for line in result] == ["queue_resumed"]


def test_a_line_is_one_line_whatever_an_error_says(client: Any, cli: Any) -> None:
    from jobrunner.broker.calls.events import note

    broker_of(client).run(note(keys_of(client), "task_died", queue="q", error="no\x1b[31m\nmore"))

    (line,) = cli("events").out.splitlines()
    assert "error=no?[31m?more" in line


def test_what_is_no_id_is_misuse(cli: Any) -> None:
    result = cli("events", "--after", "yesterday")

    assert result.code == 2
    assert "give the id of an event" in result.err
