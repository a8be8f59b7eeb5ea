"""The polling of the live view, and the error that it displays when a poll fails."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.cli.top import poller as module
from jobrunner.cli.top.command import _show_live
from jobrunner.cli.top.poller import ServerPoller
from jobrunner.cli.top.state import Screen, ServerRequest, lists_groups
from jobrunner.client.client import broker_of
from jobrunner.client.queue import Queue
from jobrunner.errors import ServerUnavailable
from jobrunner.etl import Pipeline
from jobrunner.inspector.audit import entries


@pytest.fixture
def changed(client: Client) -> Iterator[Callable[[], Screen]]:
    """The screen after one more poll."""
    server = ServerPoller(client)
    server.start()

    def look() -> Screen:
        server.read(Screen())
        return server.answers.get(timeout=10)(Screen())

    yield look
    server.stop()


def test_what_is_done_is_in_the_audit_log(client: Client) -> None:
    mail = client.queue("mail")
    mail.push(1, id="dies", max_attempts=1)
    mail.reserve()[0].rollback(error="no")
    server = ServerPoller(client)
    server.start()

    for act, task in (("pause", ""), ("resume", ""), ("requeue all", ""), ("requeue", "dies"), ("cancel", "dies")):
        server.act(ServerRequest(act=act, queue="mail", id=task))
    messages = [server.answers.get(timeout=10)(Screen()).message for _ in range(5)]
    server.stop()

    found = [(one.action, one.what, one.outcome) for one in reversed(entries(client))]
    assert [outcome for _, _, outcome in found] == messages
    assert [(action, what) for action, what, _ in found] == [
        ("queue.pause", "mail"), ("queue.resume", "mail"), ("dead.requeue", "mail"), ("task.requeue", "mail dies"),
        ("task.cancel", "mail dies"),
    ]  # fmt: skip
    assert messages[2:4] == ["requeued 1 of queue mail", "task dies is not dead any more"]


def test_a_task_that_died_while_its_question_was_open_is_not_deleted(client: Client) -> None:
    mail = client.queue("mail")
    mail.push(1, id="dies", max_attempts=1)
    mail.reserve()[0].rollback(error="no")
    server = ServerPoller(client)
    server.start()

    server.act(ServerRequest(act="cancel", queue="mail", id="dies"))
    message = server.answers.get(timeout=10)(Screen()).message
    server.stop()

    assert message == "task dies is over already, or dead"
    assert mail.ids("dead") == ["dies"]


def fail(client: Client, queue: str, *errors: str, max_attempts: int = 1) -> None:
    for error in errors:
        client.queue(queue).push(1, max_attempts=max_attempts)
        client.queue(queue).reserve()[0].rollback(error=error, delay=3600)


def test_groups_are_read_with_their_exact_counts_in_one_round_trip_of_however_many_queues(
    changed: Callable[[], Screen], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    broker = broker_of(client)
    replies = broker._replies

    def count(calls: Any, *rest: Any, **named: Any) -> Any:
        trips.append(len(calls))
        return replies(calls, *rest, **named)

    def looked() -> tuple[Screen, int]:
        with monkeypatch.context() as counting:
            counting.setattr(broker, "_replies", count)
            trips.clear()
            return changed(), len(trips)

    monkeypatch.setattr(module, "_GROUPS_KEPT_S", 0.0)
    monkeypatch.setattr("jobrunner.client.shared_redaction._KNOWN_FOR_S", 0.0)  # else a refresh in 5 s reads the names
    fail(client, "mail", "card 4711", "card 12", max_attempts=1)
    fail(client, "mail", "late", max_attempts=5)
    changed()  # the first refresh reads the quarter of an hour before, too
    few, trips_of_few = looked()
    for number in range(130):
        fail(client, f"q{number}", "no")
    many, trips_of_many = looked()

    assert few.groups is not None
    assert {(one.title, one.count, one.dead) for one in few.groups.groups} == {("card #", 2, 2), ("late", 1, 0)}
    assert many.groups is not None
    assert (len(many.groups.groups), many.groups.dead) == (132, 132)
    assert trips_of_many == trips_of_few


def test_the_ends_of_pipelines_are_known(changed: Callable[[], Screen], client: Client) -> None:
    orders = Pipeline("orders", client)
    orders.declare("lost")

    @orders.sink("raw")
    def store(item: object) -> None: ...

    orders.push("lost", 1)

    assert changed().ends == {"orders/lost"}


def test_the_dead_of_a_group_are_listed_and_requeued_and_no_others(client: Client) -> None:
    fail(client, "mail", "card 4711", "late", "card 12")
    server = ServerPoller(client)
    server.start()

    def looked(**page: Any) -> Screen:
        asked = Screen(page="tasks", queue="mail", state="dead", **page)
        server.read(asked)
        return server.answers.get(timeout=10)(asked)

    opened = looked()
    assert opened.groups is not None
    ids = {one.title: one.id for one in opened.groups.groups}
    assert (lists_groups(opened), opened.tasks) == (True, ())
    assert [one.error for one in looked(group=ids["card #"]).tasks or ()] == ["card 12", "card 4711"]
    assert len(looked(group="").tasks or ()) == 3

    server.act(ServerRequest(act="requeue group", queue="mail", id=ids["card #"]))
    assert server.answers.get(timeout=10)(Screen()).message == "requeued 2 of queue mail"
    assert [one.error for one in looked(group="").tasks or ()] == ["late"]
    assert looked(group=ids["card #"]).tasks == ()
    server.stop()
    (entry,) = entries(client)
    assert (entry.action, entry.what) == ("dead.requeue", f"mail group={ids['card #']}")


def test_groups_are_kept_for_some_seconds_and_read_anew_after_an_action(client: Client) -> None:
    server = ServerPoller(client)
    server.start()

    def groups() -> tuple[str, ...]:
        server.read(Screen())
        found = server.answers.get(timeout=10)(Screen()).groups
        assert found is not None
        return tuple(one.title for one in found.groups if one.dead)

    fail(client, "mail", "first")
    assert groups() == ("first",)
    fail(client, "mail", "second")
    assert groups() == ("first",)
    server.act(ServerRequest(act="requeue all", queue="mail"))
    server.answers.get(timeout=10)
    assert groups() == ()
    server.stop()


@pytest.mark.parametrize("error", [ServerUnavailable("no server"), ValueError("an unexpected error")])
def test_a_look_that_fails_says_so_and_the_next_one_is_taken(
    changed: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(module, "look", fail)
        assert str(error) in changed().trouble

    assert changed().look is not None


def test_the_error_of_an_act_stays_when_the_next_look_succeeds(client: Client) -> None:
    server = ServerPoller(client)
    server.start()
    screen = Screen()

    server.act(ServerRequest(act="cancel", queue="mail", id="no id"))
    screen = server.answers.get(timeout=10)(screen)
    server.read(screen)
    screen = server.answers.get(timeout=10)(screen)
    server.stop()

    assert screen.message.startswith("failed: task id 'no id'")
    assert screen.look is not None


def test_an_act_that_goes_on_after_q_is_awaited(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = []

    class Acting:
        def __init__(self, _client: Client) -> None: ...

        def stop(self, timeout_s: float | None = None) -> bool:
            waited.append(timeout_s)
            return timeout_s is None

    monkeypatch.setattr("jobrunner.cli.top.command.ServerPoller", Acting)
    monkeypatch.setattr("jobrunner.cli.top.live.run_live", lambda *_, **__: None)

    _show_live(client, 1.0)

    assert waited == [0.2, None]
    assert capsys.readouterr().err == "the last request is still running; Ctrl-C aborts it\n"


def test_an_act_that_ctrl_c_leaves_without_its_answer_is_in_the_audit_log_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    polled = []

    def requeue(_queue: Queue) -> int:
        begun.set()
        assert goes_on.wait(30)
        return 3

    def pressed(server: ServerPoller, **_: Any) -> None:
        polled.append(server)
        server.start()
        server.act(ServerRequest(act="requeue all", queue="mail"))
        assert begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr("jobrunner.client.queue.Queue.requeue_dead", requeue)
    monkeypatch.setattr("jobrunner.cli.top.live.run_live", pressed)

    with pytest.raises(KeyboardInterrupt):
        _show_live(client, 1.0)
    found = entries(client)
    goes_on.set()
    polled[0].stop()

    entry = ("dead.requeue", "mail", "broke off: it may be done, or a part of it")
    assert [(one.action, one.what, one.outcome) for one in found] == [entry]
    assert entries(client) == found


def test_an_act_that_the_server_cuts_off_is_in_the_audit_log(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_queue: Queue) -> int:
        raise ServerUnavailable("no server; start it")

    monkeypatch.setattr("jobrunner.client.queue.Queue.requeue_dead", away)
    server = ServerPoller(client)
    server.start()

    server.act(ServerRequest(act="requeue all", queue="mail"))

    assert server.answers.get(timeout=10)(Screen()).message == "failed: no server; start it"
    server.stop()
    assert [one.outcome for one in entries(client)] == ["broke off: it may be done, or a part of it"]


@pytest.mark.parametrize("state", ["waiting", "dead"])
def test_the_tasks_of_a_queue_with_partitions_are_those_of_all(client: Client, state: str) -> None:
    mail = client.queue("mail")
    mail.configure(partitions=4, max_attempts=1)
    mail.push_many(range(40))
    while state == "dead" and (held := mail.reserve(10)):
        mail.rollback_many(held, error="no")
    server = ServerPoller(client)
    server.start()

    asked = Screen(page="tasks", queue="mail", state=state, group="")
    server.read(asked)
    tasks = server.answers.get(timeout=10)(asked).tasks
    server.stop()

    assert tasks is not None
    assert len({one.id for one in tasks}) == len(tasks) == mail.counts()[state] == 40
    assert len({one.queue for one in tasks}) > 1
    times = [one.when or one.enqueued for one in tasks]
    assert times == sorted(times, reverse=state == "dead")
