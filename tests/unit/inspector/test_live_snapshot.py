"""Looks, and the rates between them."""

from dataclasses import replace
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.error_groups import telling_line
from jobrunner.inspector.live_rates import LiveRates, live_rates_of
from jobrunner.inspector.live_snapshot import LiveSnapshot, look, recent_failures
from tests.support.clock import Clock


def test_a_look_tells_what_runs_and_what_died(client: Client) -> None:
    mail = client.queue("mail")
    mail.configure(max_attempts=1)
    mail.push_many(["a", "b", "c"])
    first, second = mail.reserve(2)
    second.rollback(error="Traceback (most recent call last):\n  ...\nValueError: no\n")

    seen = look(client)

    assert [(line.id, line.attempt, line.state) for line in seen.running] == [(first.id, 1, "pending")]
    assert [(one.queue, one.dead, one.error) for one in seen.failing] == [("mail", 1, "ValueError: no")]
    assert seen.running[0].when is not None
    assert 0 < (seen.running[0].when - seen.now).total_seconds() <= 30


def test_a_task_that_several_calls_read_is_there_once(client: Client, raw: Any) -> None:
    client.queue("mail").push_many(["a", "b"])
    (running,) = client.queue("mail").reserve(1)
    raw.hset(keys_of(client).queue("mail").counters, "recovered", 2)  # so the queue is searched for what was lost, too

    assert [line.id for line in look(client).running] == [running.id]


def test_the_most_frequent_failure_comes_first_with_its_newest_error(client: Client) -> None:
    for name, errors in (("rare", ["old"]), ("often", ["first", "last"])):
        client.queue(name).configure(max_attempts=1)
        client.queue(name).push_many(errors)
        for error in errors:
            client.queue(name).reserve(1)[0].rollback(error=error)

    found = [(one.queue, one.dead, one.error) for one in look(client).failing]
    assert found == [("often", 2, "last"), ("rare", 1, "old")]


def test_the_dead_of_a_job_are_all_of_them_and_not_those_among_the_last(client: Client) -> None:
    client.queue("mail").configure(max_attempts=1)
    client.queue("mail").push_many(range(120))
    client.queue("mail").rollback_many(client.queue("mail").reserve(100), error="card 4711 declined")
    client.queue("mail").rollback_many(client.queue("mail").reserve(20), error="late")
    for number in range(7):
        client.queue(f"q{number}").configure(max_attempts=1)
        client.queue(f"q{number}").push(1)
        client.queue(f"q{number}").reserve(1)[0].rollback(error="no")

    found = look(client).failing

    assert [(one.queue, one.dead) for one in found] == [("mail", 120), *[(f"q{number}", 1) for number in range(7)]]
    assert client.queue("mail").purge("dead") == 120
    assert [one.dead for one in look(client).failing] == [1] * 7


def test_what_workers_counted_comes_before_what_died(client: Client, raw: Any) -> None:
    client.queue("mail").configure(max_attempts=1)
    client.queue("mail").push("x")
    client.queue("mail").reserve(1)[0].rollback(error="no")

    seen = look(client, {("Send", "post"): 5, ("", "mail"): 1})

    found = [(one.type, one.queue, one.failed, one.dead, one.error) for one in seen.failing]
    assert found == [("Send", "post", 5, 0, ""), ("", "mail", 1, 1, "no")]
    assert recent_failures(client) == {}


def test_rates_are_what_the_totals_grew_by(client: Client) -> None:
    rates, queue = LiveRates(), client.queue("mail")
    queue.push_many(range(10))
    rates.add(first := look(client))
    assert rates.rates("mail").out is None
    queue.push_many(range(6))
    queue.pop(4)

    rates.add(replace(look(client), at_s=first.at_s + 2.0))

    assert (rates.rates("mail").into, rates.rates("mail").out, rates.rates("mail").course) == (3.0, 2.0, (2.0,))
    assert rates.total().out == 2.0
    assert rates.rates("never seen").out == 0.0


def test_rates_are_of_the_last_ten_seconds_and_a_new_queue_counts_from_nothing(client: Client) -> None:
    rates, empty = LiveRates(), look(client)
    client.queue("mail").push_many(range(20))
    full = look(client)

    for at_s, seen in ((0.0, empty), (1.0, full), (2.0, full)):
        rates.add(replace(seen, at_s=at_s))
    assert rates.rates("mail").into == 10.0
    for at_s in range(3, 20):
        rates.add(replace(full, at_s=float(at_s)))
    assert rates.rates("mail").into == 0.0


def test_a_queue_that_could_not_be_read_for_a_while_is_not_new_afterwards(client: Client) -> None:
    """All that it had ever counted was a rate then, also of the total: a million tasks in one second."""
    for queue in ("mail", "other"):
        client.queue(queue).push_many(range(20))
        client.queue(queue).pop(10)
    seen = look(client)

    def at(at_s: float, done: int, away: str = "") -> Any:
        totals = {"enqueued": 20, "succeeded": done}
        queues = (replace(one, totals=totals) for one in seen.queues if one.name != away)
        lost = (replace(one, totals={}, problem="away") for one in seen.queues if one.name == away)
        return replace(seen, at_s=at_s, queues=(*queues, *lost))

    rates = LiveRates()
    for snapshot in (at(0.0, 10), at(1.0, 12), at(2.0, 12, away="mail"), at(3.0, 13), at(4.0, 14)):
        rates.add(snapshot)
    assert rates.rates("mail").out == rates.rates("other").out == 1.0
    assert rates.rates("mail").course == (2.0, 0.0, 0.0, 1.0)
    assert rates.rates("other").course == (2.0, 0.0, 1.0, 1.0)

    for second in range(20):
        rates.add(at(5.0 + second, 20, away="mail"))
    rates.add(at(25.0, 30))
    assert (rates.rates("mail").out, rates.rates("other").out) == (0.0, 1.0), "it may have been much or little"
    rates.add(at(26.0, 32))
    assert rates.rates("mail").out == 2.0


def test_rates_begin_with_the_minutes_before(client: Client, clock: Clock) -> None:
    minute_ms, now_ms = 60_000, clock.set()  # no minute may end between the figures and their reading
    for back, done in ((3, 120), (1, 60), (0, 600)):
        changes = {"mail send succeeded": done, "mail send failed": 7}
        at_ms = now_ms - back * minute_ms
        broker_of(client).run_many(stats_calls.observe(keys_of(client), at_ms, "w1", back + 1, changes))
    client.queue("mail").push(1)

    rates = live_rates_of(client)
    rates.add(first := look(client))
    assert rates.rates("mail").course[-3:] == (2.0, 0.0, 1.0)  # the minute that runs is left out
    client.queue("mail").pop(1)
    rates.add(replace(look(client), at_s=first.at_s + 2.0))

    assert rates.rates("mail").course[-3:] == (0.0, 1.0, 0.5)
    assert rates.total().course == rates.rates("mail").course


def test_totals_that_went_back_are_no_negative_rate(client: Client) -> None:
    rates = LiveRates()
    client.queue("mail").push_many(range(20))
    full = look(client)
    emptied = replace(full, queues=tuple(replace(one, totals={"enqueued": 3}) for one in full.queues))

    rates.add(replace(full, at_s=0.0))
    rates.add(replace(emptied, at_s=1.0))

    assert rates.rates("mail").into == 0.0


def test_a_look_takes_few_round_trips_however_many_queues_there_are(client: Client, monkeypatch: Any) -> None:
    for number in range(200):
        client.queue(f"q{number}").push_many(range(3))
        client.queue(f"q{number}").reserve(1)
    broker_of(client).run(leader_calls.announce(keys_of(client), "w1", {"queues": "q1", "pid": 7}, ttl_ms=60_000))
    trips = []
    exchange = Broker._exchange

    def counting(self: Broker, connection: Any, calls: Any, *rest: Any) -> Any:
        trips.append(len(calls))
        return exchange(self, connection, calls, *rest)

    monkeypatch.setattr(Broker, "_exchange", counting)
    seen = look(client)

    assert len(seen.queues) == 200
    assert len(trips) <= 10, trips
    assert sum(trips) < 200 * 2 + 250, trips


def test_a_look_at_an_empty_server_and_at_a_damaged_queue(client: Client, raw: Any) -> None:
    empty = look(client)
    assert (empty.queues, empty.workers, empty.running, empty.failing) == ((), (), (), ())
    client.queue("mail").push(1)
    client.queue("maths").push(1)
    raw.delete(keys_of(client).queue("mail").waiting)
    raw.set(keys_of(client).queue("mail").waiting, "damage")

    assert [(one.name, bool(one.problem)) for one in look(client).queues] == [("mail", True), ("maths", False)]


def test_a_look_at_a_damaged_leader_knows_none(client: Client, raw: Any) -> None:
    raw.set(keys_of(client).leader, "of another type")

    assert look(client).leader is None


def test_the_line_that_says_most_of_an_error() -> None:
    assert telling_line("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n") == "KeyError: 'a'"
    assert telling_line("no room\nmore") == "no room"
    assert telling_line("\n") == ""


def test_a_look_writes_nothing(client: Client, raw: Any) -> None:
    assert isinstance(look(client), LiveSnapshot)
    assert raw.dbsize() == 0


def test_the_course_of_a_queue_that_is_gone_is_forgotten(client: Client) -> None:
    """A program that ran for months beside queues that come and go kept the course of each."""
    client.queue("gone").push(1)
    rates = LiveRates({"gone": [1.0], "before": [2.0]})
    rates.add(first := look(client))
    rates.add(replace(first, at_s=first.at_s + 1.0, queues=()))

    assert rates.rates("gone").course == rates.rates("before").course == ()
