"""`jobrunner history`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.client.client import Client

Says = Callable[..., Any]


@pytest.fixture
def done(client: Client) -> list[str]:
    """Two finished tasks that the queue keeps, the first one first."""
    queue = client.queue("mail")
    queue.configure(history=3600)
    ids = queue.push_many([{"to": "ada"}, {"to": "bob"}])
    for lease in queue.reserve(2):
        lease.commit()
    return ids


def test_finished_tasks_are_listed_the_last_one_first(cli: Says, done: list[str]) -> None:
    result = cli("history", "list", "mail", "--json").value

    assert {task["id"] for task in result} == set(done)
    assert [task["when"] for task in result] == sorted((task["when"] for task in result), reverse=True)
    assert len(cli("history", "list", "mail", "--limit", "1", "--json").value) == 1
    assert "to=ada" in cli("history", "list", "mail").out


def test_a_queue_without_history_says_how_to_get_one(cli: Says, client: Client, raw: Any) -> None:
    assert cli("history", "list", "mail").code == 1
    assert raw.dbsize() == 0
    client.queue("mail").push(1)
    result = cli("history", "list", "mail")
    assert (result.code, result.out) == (0, "")
    assert result.err == "queue mail keeps no history; jobrunner queues limit mail --history 7d has it keep one\n"
    of_all = cli("history", "list")
    assert (of_all.code, of_all.out) == (0, "")
    assert of_all.err == "no queue keeps history; jobrunner queues limit QUEUE --history 7d has it keep one\n"

    assert cli("queues", "limit", "mail", "--history-max", "5", "--json").value["history_max"] == 5
    assert cli("history", "list", "mail").err == "queue mail has no finished tasks\n"
    assert cli("history", "list", "mail", "--json").value == []


def test_all_queues_are_searched_by_the_conditions_of_lists(cli: Says, client: Client, done: list[str]) -> None:
    other = client.queue("bills")
    other.configure(history=3600)
    other.push({"to": "ada"})
    other.push({"to": "eve"})
    for lease in other.reserve(2):
        lease.commit()

    def found(*words: str) -> list[tuple[str, str]]:
        return [(one["queue"], one["payload"]["to"]) for one in cli("history", "list", *words, "--json").value]

    assert sorted(found()) == [("bills", "ada"), ("bills", "eve"), ("mail", "ada"), ("mail", "bob")]
    assert found("--param", "to=ada") == [("bills", "ada"), ("mail", "ada")]
    assert found("mail", "--param", "to=ada") == [("mail", "ada")]
    assert found("--until", "1h") == []
    assert len(found("--since", "1h", "--limit", "3")) == 3
    nothing = cli("history", "list", "--job", "Welcome")
    assert (nothing.code, nothing.err) == (0, "there are no finished tasks of job 'Welcome'\n")


@pytest.mark.parametrize(
    ("words", "kept"), [(("--history", "2h"), (7200.0, None)), (("--history", "none"), (None, None)),
                        (("--history", "0"), (None, None)), (("--history-max", "7"), (3600.0, 7))]
)  # fmt: skip
def test_a_command_sets_how_long_history_is_kept(
    cli: Says, client: Client, words: tuple[str, ...], kept: tuple[float | None, int | None]
) -> None:
    client.queue("mail").configure(history=3600)

    assert cli("queues", "limit", "mail", *words).code == 0

    settings = client.queue("mail").settings()
    assert (settings.history, settings.history_max) == kept


def test_a_history_that_is_no_time_changes_nothing(cli: Says, client: Client, done: list[str]) -> None:
    result = cli("queues", "limit", "mail", "--history", "week")

    assert (result.code, "'week' is no length of time" in result.err) == (2, True)
    assert client.queue("mail").settings().history == 3600


def test_a_finished_task_is_done_again_as_a_new_one(cli: Says, client: Client, done: list[str]) -> None:
    result = cli("history", "replay", "mail", done[1], done[0], done[1])

    new = result.out.split()
    assert (result.code, len(new)) == (0, 2)
    held = client.queue("mail").reserve(3)
    assert [(lease.id, lease.payload["to"], lease.headers) for lease in held] == [
        (new[0], "bob", {"replayed_from": done[1]}),
        (new[1], "ada", {"replayed_from": done[0]}),
    ]


def test_what_the_history_does_not_have_is_named_and_the_others_are_replayed(
    cli: Says, client: Client, done: list[str]
) -> None:
    result = cli("history", "replay", "mail", "gone", done[0], "--json")

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "not in the history of queue mail: gone" in result.err
    assert result.value == {"queue": "mail", "replayed": {done[0]: client.queue("mail").ids("waiting")[0]}}


def test_a_full_queue_takes_what_it_has_room_for_and_says_so(cli: Says, client: Client, done: list[str]) -> None:
    client.queue("mail").configure(max_size=1)

    result = cli("history", "replay", "mail", *done)

    assert (result.code, result.out.split()) == (1, client.queue("mail").ids("waiting"))
    assert "max_size" in result.err


def test_a_wrong_id_replays_nothing(cli: Says, client: Client, done: list[str]) -> None:
    assert cli("history", "replay", "mail", done[0], "{a}").code == 2
    assert cli("history", "replay", "mail").code == 2

    assert client.queue("mail").counts()["waiting"] == 0


def test_the_history_is_purged_when_somebody_says_so(cli: Says, client: Client, done: list[str]) -> None:
    assert cli("history", "purge", "mail").code == 2
    assert client.queue("mail").counts()["done"] == 2

    assert cli("history", "purge", "mail", "--yes", "--json").value == {"queue": "mail", "state": "done", "purged": 2}
    assert cli("history", "purge", "mail", "--yes").err == "Error: queue mail has no done tasks\n"


@pytest.mark.parametrize(
    "words",
    [["archive", "--to", "x"], ["report", "--from", "x"], ["replay", "mail", "--where", "true"]],
    ids=lambda words: words[0],
)
def test_commands_on_spark_take_settings_of_spark(cli: Says, words: list[str]) -> None:
    result = cli("history", *words, "--conf", "driver.memory=4g")

    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert "did you mean 'spark.driver.memory'?" in result.err


@pytest.mark.parametrize(
    ("option", "target"),
    [
        ("--html", "/proc/report.html"),
        ("--csv", "/proc/figures"),
        ("--parquet", "a-file/figures"),
        ("--html", "a-file/deeper/report.html"),
        ("--html", "a-folder"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_spark_starts(
    cli: Says, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, target: str
) -> None:
    session = pytest.importorskip("jobrunner.spark.session")
    monkeypatch.setattr(session, "spark_session", lambda **_: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    Path("a-folder").mkdir()

    result = cli("history", "report", "--from", "archive", option, target)

    assert result.code == 2
    assert f"{option}: {target} cannot be written: " in result.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a-file", "a-folder"]
