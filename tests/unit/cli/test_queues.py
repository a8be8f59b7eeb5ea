"""`jobrunner queues`."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobrunner import queue
from jobrunner.cli.events import operator_name
from jobrunner.client.client import Client, keys_of
from jobrunner.clock import utc_now
from jobrunner.inspector.audit import entries
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.worker.declarations import publish_declared


def test_the_list_counts_every_queue(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many([1, 2, 3])
    client.queue("maths").push(1, in_=60)

    listed = {queue["name"]: queue for queue in cli("queues", "list", "--json").value}

    assert (listed["mail"]["waiting"], listed["maths"]["scheduled"]) == (3, 1)
    assert cli("queues", "list").out.splitlines()[1].split()[:2] == ["mail", "3"]


def test_a_pause_lasts_until_the_queue_is_resumed(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push(1)
    assert cli("queues", "pause", "mail").out == "queue mail is paused\n"
    assert client.queue("mail").is_paused()

    assert cli("queues", "resume", "mail", "--json").value == {"queue": "mail", "state": "open"}
    assert not client.queue("mail").is_paused()


def test_a_pause_may_end_by_itself_and_the_list_says_when(cli: Callable[..., Any], client: Client) -> None:
    assert cli("queues", "pause", "mail", "--for", "10m", "--create").out == "queue mail is paused for 10m\n"
    answer = cli("queues", "pause", "maths", "--create", "--json").value
    assert answer == {"queue": "maths", "state": "paused", "for_s": None}

    mail, maths = cli("queues", "list", "--json").value
    assert abs(datetime.fromisoformat(mail["paused_until"]) - utc_now() - timedelta(minutes=10)) < timedelta(minutes=1)
    assert (maths["paused"], maths["paused_until"]) == (True, None)
    assert re.search("paused, ends in (10|9) min\n", cli("queues", "list").out)
    assert "paused\n" in cli("status").out


def test_a_pause_that_has_ended_is_shown_no_more(cli: Callable[..., Any], client: Client, raw: Any) -> None:
    cli("queues", "pause", "mail", "--for", "1d", "--create")
    raw.hset(keys_of(client).queue("mail").settings, "paused", 1000)

    (mail,) = cli("queues", "list", "--json").value
    assert (mail["paused"], mail["paused_until"]) == (False, None)


def test_a_damaged_pause_is_one_without_an_end(cli: Callable[..., Any], client: Client, raw: Any) -> None:
    cli("queues", "pause", "mail", "--create")
    raw.hset(keys_of(client).queue("mail").settings, "paused", "damage")

    (mail,) = cli("queues", "list", "--json").value
    assert (mail["paused"], mail["paused_until"]) == (True, None)


@pytest.mark.parametrize("length", ["0", "-5", "soon"])
def test_a_pause_has_a_length(cli: Callable[..., Any], client: Client, length: str) -> None:
    result = cli("queues", "pause", "mail", "--for", length)

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert not client.queue("mail").is_paused()


def test_limits_are_set_one_by_one_and_shown(cli: Callable[..., Any], client: Client) -> None:
    assert cli("queues", "limit", "mail", "--max-inflight", "10", "--rate", "2000/1m", "--create").out == (
        "queue                       mail\nmax-inflight                10\nrate                        2000/1m\n"
        "max-size                    none\n"
        "max-inflight-per-partition  none\nrate-per-partition          none\nfair                        no\n"
        "history                     none\nhistory-max                 none\n"
    )
    limits = ("--max-size", "500", "--max-inflight-per-partition", "2", "--fair")
    result = cli("queues", "limit", "mail", *limits, "--json")

    assert result.value == {
        "queue": "mail", "max_inflight": 10, "max_size": 500,
        "rate": {"max_tokens": 2000, "interval": 1, "interval_unit": "MINUTES"},
        "max_inflight_per_partition": 2, "rate_per_partition": None, "fair": True, "history": None, "history_max": None,
    }  # fmt: skip
    found = client.queue("mail").settings()
    assert (found.max_inflight, found.max_size) == (10, 500)
    assert (found.max_inflight_per_partition, found.fair) == (2, True)
    assert found.rate == RateLimit(max_tokens=2000, interval_unit="MINUTES")


@pytest.mark.parametrize("lifted", ["none", "None", "0"])
def test_a_limit_is_lifted(cli: Callable[..., Any], client: Client, lifted: str) -> None:
    client.queue("mail").configure(max_inflight=3, max_size=3, rate=RateLimit(max_tokens=1))

    cli("queues", "limit", "mail", "--max-inflight", lifted, "--max-size", lifted)
    assert client.queue("mail").settings() == QueueSettings(rate=RateLimit(max_tokens=1))
    cli("queues", "limit", "mail", "--rate", "none")
    assert client.queue("mail").settings() == QueueSettings()


@pytest.mark.parametrize(
    "words",
    [(), ("--rate", "fast"), ("--rate", "0/1s"), ("--max-inflight", "-1"), ("--max-size", "1.5"), ("--rate", "1/1d")],
    ids=" ".join,
)
def test_a_limit_that_is_none_changes_nothing(cli: Callable[..., Any], client: Client, words: tuple[str, ...]) -> None:
    result = cli("queues", "limit", "mail", *words)

    assert (result.code, result.err.count("\n"), result.out) == (2, 1, "")
    assert all(word in result.err for word in words)
    assert client.queues() == []


def test_settings_say_how_far_limits_are_used(cli: Callable[..., Any], client: Client, raw: Any) -> None:
    client.queue("mail").configure(max_inflight=2, max_size=5, rate=RateLimit(3, interval_unit="HOURS"))
    client.queue("mail").push_many([1, 2, 3])
    raw.hset(keys_of(client).queue("mail").bucket, mapping={"level": "damage", "at": "0", "interval": "0"})

    shown = cli("queues", "settings", "mail").out
    used = cli("queues", "settings", "mail", "--json").value["used"]

    assert used == {"max_inflight": 0, "rate": 0, "max_size": 3}
    assert "3 of 5" in next(line for line in shown.splitlines() if line.startswith("max_size"))


def test_settings_are_shown_with_those_that_are_defaults(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").configure(max_attempts=3, history=timedelta(days=1))

    rows = {line.split()[0]: line for line in cli("queues", "settings", "mail").out.splitlines()}
    result = cli("queues", "settings", "mail", "--json").value

    assert set(rows) == {"SETTING", *QueueSettings.__slots__}
    assert rows["history"].split()[:5] == ["history", "1d", "-", "changed", "by"]
    assert rows["keepalive"].split() == ["keepalive", "30s", "-", "default"]
    assert rows["max_inflight"].split() == ["max_inflight", "no", "limit", "-", "default"]
    assert "2s, each 2 times longer, at most 1h, jitter 10%" in rows["backoff"]
    assert (result["configured"], result["settings"]["max_attempts"]) == (["max_attempts", "history"], 3)


@pytest.mark.parametrize(
    "words",
    [("pause",), ("resume",), ("limit", "--fair"), ("settings",), ("purge", "--yes"), ("purge", "--state", "dead")],
    ids=" ".join,
)
def test_a_mistyped_queue_is_refused_with_the_nearest_and_nothing_is_written(
    cli: Callable[..., Any], client: Client, raw: Any, words: tuple[str, ...]
) -> None:
    client.queue("mail").push(1)
    before = sorted(raw.keys())

    result = cli("queues", words[0], "mial", *words[1:])

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("Error: there is no queue 'mial'; did you mean 'mail'?")
    assert sorted(raw.keys()) == before


def test_a_declared_queue_that_no_task_was_in_is_none_mistyped(
    cli: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declares.py").write_text('from jobrunner import job\n\n@job(queue="reports")\ndef f(): ...\n')
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nmodules = ["declares"]\n')
    monkeypatch.chdir(tmp_path)

    assert cli("queues", "pause", "reports").code == 0
    assert client.queue("reports").is_paused()


def test_queues_declared_by_themselves_and_in_the_file_are_none_mistyped(
    cli: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'import jobrunner\nfrom jobrunner import queue\n\nqueue("calls")\njobrunner.queue("texts")\n'
    (tmp_path / "declares_queues.py").write_text(source + 'client.queue("used")\n')
    (tmp_path / "declares_broken.py").write_text("def (\n")
    settings = '[tool.jobrunner]\nmodules = ["declares_broken", "declares_queues"]\n'
    (tmp_path / "pyproject.toml").write_text(f"{settings}[tool.jobrunner.queues.filed]\nfair = true\n")
    monkeypatch.chdir(tmp_path)

    for declared in ("calls", "texts", "filed"):
        assert cli("queues", "pause", declared).code == 0
    assert "there is no queue 'used'" in cli("queues", "pause", "used").err
    assert "did you mean 'filed'?" in cli("queues", "pause", "fild").err


def test_queues_are_read_from_modules_in_the_encoding_that_they_declare(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "# -*- coding: latin-1 -*-\nfrom jobrunner import queue\n\nqueue('caf\xe9')\n"
    (tmp_path / "declares_latin.py").write_bytes(source.encode("latin-1"))
    (tmp_path / "declares_marked.py").write_bytes(b"\xef\xbb\xbffrom jobrunner import queue\n\nqueue('marked')\n")
    (tmp_path / "declares_undeclared.py").write_bytes(b"name = '\xe9'\n")
    settings = 'modules = ["declares_undeclared", "declares_latin", "declares_marked"]'
    (tmp_path / "pyproject.toml").write_text(f"[tool.jobrunner]\n{settings}\n")
    monkeypatch.chdir(tmp_path)

    refused = cli("queues", "pause", "markd")
    assert (refused.code, "did you mean 'marked'?" in refused.err) == (1, True), refused.err
    assert "did you mean 'caf\xe9'?" in cli("queues", "pause", "cafe").err
    assert cli("queues", "pause", "marked").code == 0


def test_what_is_done_is_listed_where_there_is_such_a_thing(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push(1)
    assert "HISTORY" not in cli("queues", "list").out

    client.queue("mail").configure(history=60)
    client.queue("mail").reserve()[0].commit()

    assert cli("queues", "list").out.splitlines()[0].split()[4:6] == ["DEAD", "HISTORY"]
    assert cli("queues", "purge", "mail", "--state", "done", "--yes").out == "deleted 1 done task of queue mail\n"


def test_a_purge_deletes_the_state_it_names_and_no_other(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many([1, 2])
    client.queue("mail").push(3, in_=60)

    result = cli("queues", "purge", "mail", "--state", "scheduled", "--yes")

    assert (result.code, result.out) == (0, "deleted 1 scheduled task of queue mail\n")
    assert client.queue("mail").counts()["waiting"] == 2


def test_a_long_purge_shows_a_person_how_far_it_is(
    cli: Callable[..., Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue("mail").push_many(range(2500))
    told: list[int] = []
    assert client.queue("mail").purge("waiting", progress=told.append) == told[-1] == 2500
    assert told == [1000, 2000, 2500]
    client.queue("mail").push_many(range(1500))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    result = cli("queues", "purge", "mail", "--yes")

    assert result.out == "deleted 1,500 waiting tasks of queue mail\n"
    assert "1500/1500" in result.err


def test_a_purge_of_nothing_is_a_no(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push(1, in_=60)
    result = cli("queues", "purge", "mail", "--yes")

    assert (result.code, result.err) == (1, "Error: queue mail has no waiting tasks\n")


def test_a_purge_that_nobody_confirms_deletes_nothing(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push(1)

    result = cli("queues", "purge", "mail")

    assert result.code == 2
    assert "Delete 1 waiting task of queue mail" in result.err
    assert client.queue("mail").counts()["waiting"] == 1


def test_looking_at_a_server_without_queues_says_so(cli: Callable[..., Any], raw: Any) -> None:
    result = cli("queues", "list")

    assert (result.code, result.out, result.err) == (0, "", "no queue was ever used\n")
    assert raw.dbsize() == 0


def test_a_deleted_queue_is_in_the_audit_log_with_what_it_held(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many([1, 2])

    assert cli("queues", "delete", "mail", "--force", "--yes").code == 0

    (entry,) = entries(client)
    assert (entry.action, entry.what, entry.outcome) == ("queue.delete", "mail", "deleted with 2 tasks")


def test_a_declared_setting_that_was_changed_by_hand_says_so_and_can_be_reset(
    cli: Callable[..., Any], client: Client
) -> None:
    queue("mail", max_inflight=4, rate=RateLimit(15, per=3600))
    publish_declared(client, heartbeat_s=10)
    cli("queues", "limit", "mail", "--max-inflight", "1")
    me = operator_name()

    rows = {line.split()[0]: line for line in cli("queues", "settings", "mail").out.splitlines()}
    assert f"changed by {me} now; declared 4 by {__name__}:" in rows["max_inflight"]
    assert rows["rate"].split()[1:6] == ["15/1h", "0", "of", "15", "declared"]
    assert f"max_inflight changed by {me}" in cli("queues", "list").out
    assert cli("queues", "list", "--json").value[0]["changed"]["max_inflight"]["declared"] == 4
    origins = cli("queues", "settings", "mail", "--json").value["origins"]
    assert (origins["max_inflight"]["changed_by"], origins["rate"]["changed_by"]) == (me, "")

    refused = cli("queues", "reset", "mail", "--setting", "history")
    assert (refused.code, "no program declares history of queue mail" in refused.err) == (1, True)
    assert cli("queues", "reset", "mail").out.split() == ["queue", "mail", "max-inflight", "4"]
    assert client.queue("mail").settings().max_inflight == 4
    assert "changed by" not in cli("queues", "list").out
    cli("queues", "limit", "mail", "--rate", "none")
    assert cli("queues", "reset", "mail", "--json").value["reset"]["rate"]["max_tokens"] == 15
    assert cli("queues", "reset", "mail").err.strip().endswith("no declared setting of queue mail was changed by hand")

    cli("queues", "limit", "mail", "--history", "7d", "--max-size", "none")
    undeclared = cli("queues", "reset", "mail").err
    assert "no program declares history: jobrunner queues limit mail changes or lifts it" in undeclared
