"""Periodic jobs that programs add, replace and remove at run time."""

import base64
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis

from jobrunner import Client, Job, Unique, chain, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client import added_periodics
from jobrunner.client.client import broker_of, encryption_of
from jobrunner.clock import from_ms
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.errors import (
    InvalidName,
    InvalidOption,
    JobrunnerError,
    NaiveDatetime,
    ParameterError,
    PayloadTooLarge,
    QueueNotEmpty,
    UnknownJob,
    UnknownOption,
    UsageError,
)
from jobrunner.jobs.build import published
from jobrunner.jobs.registry import forget
from jobrunner.periodic import read_added
from tests.support.clock import Clock

KEY = base64.b64encode(bytes(32)).decode()


@job(name="added.report", queue="reports", max_attempts=3, partition_by="customer")
class Report(Job):
    customer: str
    days: int = 7

    def run(self) -> None: ...


@job(name="added.ping", queue="mail")
def ping(who: str) -> None: ...


@job(name="added.once", queue="mail", unique=Unique())
def once(who: str) -> None: ...


def test_a_job_with_its_parameters_is_added_and_listed(way: Any, clock: Clock) -> None:
    clock.set()
    way.add_periodic("acme", Report(customer="acme"), cron="0 7 * * 1-5", tz="Europe/Madrid", catch_up=3)
    way.add_periodic("bob", ping.using(queue="slow").bind("bob"), every=timedelta(minutes=5), overlap="allow")

    acme, bob = way.periodics()
    assert (acme.name, acme.job, acme.queue, acme.catch_up, acme.added) == ("acme", "added.report", "reports", 3, True)
    assert acme.schedule == "at 07:00 from Monday to Friday in Europe/Madrid"
    assert (bob.name, bob.job, bob.queue, bob.overlap, bob.served) == ("bob", "added.ping", "slow", "allow", True)
    assert set(way.queues()) == {"reports", "slow"}


def test_what_is_equal_changes_nothing_and_what_is_not_replaces(
    way: Any, raw: redis.Redis, keys: Keys, broker: Broker
) -> None:
    for _ in range(2):
        way.add_periodic("acme", Report(customer="acme"), every=60)
    first = read_added(raw.hget(keys.periodics_added, "acme"))
    assert raw.get(keys.periodics_version) == b"1"

    way.add_periodic("acme", Report(customer="acme", days=1), every=30)
    second = read_added(raw.hget(keys.periodics_added, "acme"))
    assert first is not None
    assert second is not None
    assert (second.payload, second.schedule) == (b'{"customer":"acme","days":1}', {"every": 30.0})
    assert second.state == first.state
    noted = [one for one in broker.run(events.newest(keys, count=100)) if one.kind == "periodic_added"]
    assert [(one.job, one.details["schedule"]) for one in noted] == [
        ("acme", "every minute"), ("acme", "every 30 seconds"),
    ]  # fmt: skip


def test_what_is_removed_is_gone_and_what_is_added_by_its_name_is_another(
    way: Any, raw: redis.Redis, keys: Keys
) -> None:
    states = []
    for _ in range(2):
        way.add_periodic("acme", Report(customer="acme"), every=60)
        found = read_added(raw.hget(keys.periodics_added, "acme"))
        assert found is not None
        states.append(found.state)
        way.remove_periodic("acme")
        assert way.periodics() == []
        state = keys.queue("reports").periodic(found.state)
        assert raw.hget(state, "disabled") == b"1"
        assert 0 < raw.ttl(state) <= 600
    assert states[0] != states[1]
    with pytest.raises(UnknownJob, match="'acme' was added at run time; none was added yet"):
        way.remove_periodic("acme")


def test_a_change_by_another_program_meanwhile_is_not_lost(
    client: Client, broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one adds the name first, so both have one generation, and its first tick is fired once."""
    real = added_periodics._protected

    def beaten(*given: Any) -> Any:
        monkeypatch.setattr(added_periodics, "_protected", real)
        client.add_periodic("acme", Report(customer="first"), every=60)
        beaten.state = read_added(broker.run(leader_calls.added_periodic(keys, "acme"))).state  # type: ignore
        return real(*given)

    monkeypatch.setattr(added_periodics, "_protected", beaten)
    client.add_periodic("acme", Report(customer="second"), every=60)

    found = read_added(broker.run(leader_calls.added_periodic(keys, "acme")))
    assert found is not None
    assert msgspec.json.decode(found.payload)["customer"] == "second"
    assert found.state == beaten.state  # type: ignore


@pytest.mark.parametrize(
    ("add", "error", "words"),
    [
        (lambda add: add("x", ping, every=5), UsageError, r"give a job with its parameters: ping\.bind\(…\)"),
        (lambda add: add("x", Report, every=5), UsageError, r"give a job with its parameters: Report\(…\)"),
        (lambda add: add("x", ping.using(queue="q"), every=5), UsageError, r"parameters: ping\.bind\(…\)"),
        (lambda add: add("x", Report.using(queue="q"), every=5), UsageError, r"parameters: job\.bind\(…\)"),
        (lambda add: add("x", chain(ping.bind("b")), every=5), UsageError, "for a flow, a job that enqueues it"),
        (lambda add: add("x", "ping", every=5), UsageError, r"parameters: SendReport\(…\), or send_report\.bind"),
        (lambda add: add("x", ping.bind("b")), InvalidOption, "no schedule: a periodic job takes either"),
        (lambda add: add("x", ping.bind("b"), every=5, cron="* * * * *"), InvalidOption, "every=5 and cron="),
        (lambda add: add("x", ping.bind("b"), every=5, tz="UTC"), InvalidOption, "tz='UTC' goes with cron"),
        (lambda add: add("x", ping.bind("b"), cron="61 * * * *"), InvalidOption, "its minute is '61'; give 0-59"),
        (lambda add: add("x", ping.bind("b"), cron="* * * * *", tz="Mars/X"), InvalidOption, "tz is 'Mars/X'"),
        (lambda add: add("x", ping.bind("b"), every=5, catch_up="all"), InvalidOption, "catch_up is 'all'"),
        (lambda add: add("x", ping.bind("b"), every=5, overlap="no"), InvalidOption, "overlap='no'"),
        (lambda add: add("x", ping.bind("b"), every=5, jitter=-1), InvalidOption, "jitter"),
        (lambda add: add("x", ping.bind("b"), every=5, limit=0), InvalidOption, "limit=0: give a whole number from 1"),
        (lambda add: add("x", ping.bind("b"), every=5, end=5), InvalidOption, "end=5: give an aware datetime"),
        (lambda add: add("x", ping.bind("b"), every=5, start=datetime(2030, 1, 1)), NaiveDatetime, "no time zone"),
        (lambda add: add("x", ping.bind("b"), schedule="@daily"), UnknownOption, "did you mean 'cron'"),
        (lambda add: add("x", ping.bind("b").using(in_=3), every=5), InvalidOption, "in_ is that of one task"),
        (lambda add: add("x", ping.bind("b").using(id="i"), every=5), InvalidOption, "id is that of one task"),
        (lambda add: add("x", once.bind("b"), every=5), InvalidOption, "'added.once' is unique"),
        (lambda add: add("x y", ping.bind("b"), every=5), InvalidName, "name of a periodic job 'x y'"),
        (lambda add: add("x", ping.bind(3), every=5), ParameterError, "who"),
        (lambda add: add("x", ping.bind("b" * 70_000), every=5), PayloadTooLarge, "the limit is 65536"),
    ],
)
def test_what_cannot_be_added_is_refused_where_it_is_called(
    way: Any, add: Callable[[Any], None], error: type[JobrunnerError], words: str
) -> None:
    with pytest.raises(error, match=words):
        add(way.add_periodic)
    assert way.periodics() == []


@pytest.fixture
def nightly() -> Iterator[Any]:
    @job(name="added.nightly", queue="reports", every=3600)
    def nightly() -> None: ...

    yield nightly
    forget("added.nightly")


def test_a_name_that_code_declares_is_refused(client: Client, broker: Broker, keys: Keys, nightly: Any) -> None:
    broker.run(leader_calls.define_periodics(keys, published([nightly.definition])))
    with pytest.raises(InvalidName, match=r"'added\.nightly' is declared in code"):
        client.add_periodic("added.nightly", nightly.bind(), every=60)
    with pytest.raises(UnknownJob, match=r"'added\.nightly' is declared in code: disable it"):
        client.remove_periodic("added.nightly")
    client.add_periodic("more-often", nightly.bind(), every=60)
    assert [record.name for record in client.periodics()] == ["added.nightly", "more-often"]


def test_it_is_disabled_and_enabled_by_its_name(client: Client) -> None:
    client.add_periodic("acme", Report(customer="acme"), every=60)
    client.disable_periodic("acme")
    client.add_periodic("acme", Report(customer="acme", days=1), every=60)
    assert [record.enabled for record in client.periodics()] == [False]
    client.enable_periodic("acme")
    assert [record.enabled for record in client.periodics()] == [True]


def test_its_queue_is_not_deleted_unless_by_force(client: Client, raw: redis.Redis, keys: Keys) -> None:
    client.add_periodic("acme", Report(customer="acme"), every=60)
    client.disable_periodic("acme")
    with pytest.raises(QueueNotEmpty, match="periodic job 'acme' runs on queue 'reports': remove it first"):
        client.queue("reports").delete()
    assert client.queue("reports").delete(force=True)
    assert raw.keys(f"{keys.prefix}:{{reports}}:*periodic*") == []


@pytest.mark.parametrize("kind", ["encrypt", "sign"])
def test_its_parameters_are_kept_and_sent_as_those_of_a_task(
    server: Any, keys: Keys, raw: redis.Redis, clock: Clock, kind: Any
) -> None:
    with Client(server.url, keys.prefix, payload_keys=[KEY], payload_encryption=kind, require_encryption=True) as own:
        own.add_periodic("acme", Report(customer="secret-name").using(headers={"by": "ada"}), every=60)
        stored = raw.hget(keys.periodics_added, "acme")
        found = read_added(stored)
        assert found is not None
        assert (b"secret-name" in found.payload) == (kind == "sign")
        PeriodicTicks(broker_of(own), keys, encryption_of(own)).step(1, from_ms(clock.set()))
        (record,) = own.queue("reports").tasks("waiting")
        assert msgspec.json.decode(record.payload) == {"customer": "secret-name", "days": 7}
        assert (record.type, record.fields["headers"]) == ("added.report", b'{"by":"ada"}')

        damaged = msgspec.structs.replace(found, payload=found.payload[:-1] + b"x")
        raw.hset(keys.periodics_added, "acme", msgspec.json.encode(damaged))
        PeriodicTicks(broker_of(own), keys, encryption_of(own)).step(2, from_ms(clock.advance(60_000)))
        assert len(own.queue("reports").tasks("waiting")) == 1


def test_to_add_it_again_encrypts_it_with_the_new_key(server: Any, keys: Keys, raw: redis.Redis) -> None:
    new = base64.b64encode(bytes([1] * 32)).decode()
    for payload_keys in ([KEY, new], [new, KEY], [new]):
        with Client(server.url, keys.prefix, payload_keys=payload_keys) as own:
            if len(payload_keys) == 2:
                own.add_periodic("acme", Report(customer="acme"), every=60)
            found = read_added(raw.hget(keys.periodics_added, "acme"))
            assert found is not None
            task = found.task("id", encryption_of(own))
            assert msgspec.json.decode(task.payload)["customer"] == "acme"
            assert [one.kind for one in own.events()] == ["periodic_added"], "an equal call is no event"
