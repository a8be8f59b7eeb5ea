"""Statistics over time: the counts of workers as the inspector reads them."""

import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from jobrunner import Backoff, Client, Item, Worker, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import stats as calls
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.calls.queues import register
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of
from jobrunner.coordinator.records import StatsSampler
from jobrunner.errors import InvalidOption, ServerUnavailable
from jobrunner.inspector.stats import StatsWindow, by_job, by_queue, series, series_of
from jobrunner.inspector.stats_types import Timings
from jobrunner.jobs.batch_driver import BatchEnd
from jobrunner.outcome import Cancel, Cancelled, Failed, Outcome, Snooze, Succeeded
from jobrunner.worker.report.stats import StatsRecorder
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at


@job(name="figures.good", queue="fig", keepalive=20)
def good(seconds: float = 0.0) -> None:
    """Succeeds."""
    time.sleep(seconds)


@job(name="figures.bad", queue="fig", keepalive=20, max_attempts=2, backoff=Backoff(base=0.01, factor=1))
def bad() -> None:
    """Fails."""
    raise ValueError("bad")


@job(name="figures.steered", queue="fig2", keepalive=20)
async def steered(how: str) -> None:
    """Snoozes once, or cancels."""
    raise Snooze(in_=60) if how == "snooze" else Cancel()


@job(name="figures.early", queue="fig2", ack="early")
def early() -> None:
    """Acknowledged before it runs."""


def test_figures_are_what_ran(current: Client, run: Any) -> None:
    good.enqueue_many([good.bind()] * 300)
    bad.enqueue_many([bad.bind()] * 3)
    steered.enqueue("cancel")
    steered.enqueue("snooze")
    early.enqueue()

    run(queues=["fig2"])
    run(queues=["fig"], drain=True)

    found = {(one.queue, one.type): dict(one.counts) for one in by_job(current)}
    assert found == {
        ("fig", "figures.good"): {"succeeded": 300},
        ("fig", "figures.bad"): {"failed": 6, "dead": 3},
        ("fig2", "figures.steered"): {"cancelled": 1, "snoozed": 1},
        ("fig2", "figures.early"): {"succeeded": 1},
    }
    assert series(current, queue="fig").total.counts == {"succeeded": 300, "failed": 6, "dead": 3}
    assert series(current, step="hour", type="figures.good").total.succeeded == 300
    assert series(current, queue="fig", type="figures.steered").total.counts == {}
    ended = {name: one.ended for name, one in by_queue(current).items() if one.ended}  # others have no tasks
    assert ended == {"fig": 306, "fig2": 2}
    totals = current.stats()["fig"].totals
    assert (totals["succeeded"], totals["failed"], totals["dead"]) == (300, 6, 3)


def test_times_are_those_of_the_runs(current: Client, run: Any) -> None:
    good.enqueue_many([good.bind(0.1)] * 4)
    good.enqueue()

    run(queues=["fig"], concurrency=1)

    total = series(current, queue="fig").total
    assert total.run.count == total.wait.count == 5
    assert 100 <= total.run.p95_ms < 1000 * 60
    assert 80 <= total.run.mean_ms < 1000 * 60
    assert total.wait.p99_ms >= 250, "four ran before the last one"


def test_a_task_that_was_due_later_waited_from_then_on(current: Client, run: Any) -> None:
    began = time.monotonic()
    good.using(in_=2).enqueue()

    run(queues=["fig"], drain=True)

    late_ms = (time.monotonic() - began - 2) * 1000
    assert series(current, queue="fig").total.wait.total_ms <= late_ms + 10


def test_figures_are_there_while_the_worker_works(current: Client, start: Any) -> None:
    worker = start(queues=["fig"])
    good.enqueue_many([good.bind()] * 10)
    wait_for(lambda: current.stats()["fig"].totals.get("succeeded") == 10)

    wait_for(lambda: worker._parts.tasks.stats.step() and series(current).total.succeeded == 10)

    assert worker._parts.tasks.broker is not None


def test_steps_are_without_a_gap_and_end_now(current: Client) -> None:
    found = series(current, since=timedelta(minutes=30))

    assert len(found.steps) == 30
    assert {later.start - one.start for one, later in zip(found.steps, found.steps[1:], strict=False)} == {found.step}
    assert all(one.counts == {} and one.depth is None and one.enqueued is None for one in found.steps)
    assert len(series(current, since=timedelta(days=900), step="hour").steps) == calls.HOURS_KEPT
    with pytest.raises(InvalidOption, match="above zero"):
        series(current, since=timedelta(0))


def test_a_read_is_one_round_trip(current: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    replies = Broker._replies

    def counted(self: Broker, asked: Any) -> Any:
        trips.append(len(asked))
        return replies(self, asked)

    monkeypatch.setattr(Broker, "_replies", counted)

    series(current, since=timedelta(minutes=60))
    by_job(current)
    by_queue(current)

    assert len(trips) == 3
    assert max(trips) <= 10


@pytest.mark.parametrize("minutes", [-600, -10, 1, 10, 600])
def test_figures_are_those_of_the_servers_clock(
    server: Any, keys: Keys, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """They were empty on a machine whose clock was more than two minutes off."""
    with Client(server.url, keys.prefix) as client:
        for call in calls.observe(keys, broker_of(client).run(server_time()), "w", 1, {"mail Job succeeded": 7}):
            broker_of(client).run(call)
        here_ms = time.time() * 1000
        monkeypatch.setattr("jobrunner.inspector.stats.unix_ms", lambda: here_ms + minutes * 60_000)

        found = series(client, since=timedelta(minutes=5))

    assert found.total.counts == {"succeeded": 7}


def test_samples_tell_depth_and_what_no_worker_counted(current: Client, broker: Broker, keys: Keys, clock: Any) -> None:
    now_ms = clock.set()
    broker.run_many(register(keys, ["bare", "fig"]))
    leader = StatsSampler(broker, keys)
    leader.take(ScanReply(holding=["bare", "fig"]))
    assert leader.step(now_ms) == pytest.approx((60_000 - now_ms % 60_000) / 1000)
    bare = current.queue("bare")
    bare.push_many(range(5))
    for lease in bare.reserve(n=3):
        lease.commit()
    good.enqueue()
    clock.advance(60_000)

    leader.take(ScanReply(holding=["bare"], changed=["fig"]))
    leader.step(clock.ms)
    leader.step(clock.ms + 1)

    *_, before, last = series(current, since=timedelta(minutes=3)).steps
    assert (before.depth.waiting, before.enqueued) == (0, 0)
    assert (last.depth.waiting, last.depth.pending, last.enqueued) == (3, 0, 6)
    assert last.counts == {"succeeded": 3}
    alone = series(current, since=timedelta(minutes=3), queue="bare")
    assert (alone.steps[-1].depth.waiting, alone.steps[-1].enqueued, alone.total.succeeded) == (2, 5, 3)
    found = by_queue(current, since=timedelta(minutes=3))
    assert {name: (one.enqueued, one.succeeded) for name, one in found.items()} == {"bare": (5, 3), "fig": (1, 0)}
    hour = series(current, since=timedelta(hours=1), step="hour").steps[-1]
    assert (hour.depth.waiting, hour.enqueued) == (3, 6)


def counted(broker: Broker, keys: Keys, at_ms: float, report: int, **figures: int) -> None:
    """Figures of a worker, of job Job on queue mail."""
    changes = {f"mail Job {name}": by for name, by in figures.items()}
    broker.run_many(calls.observe(keys, at_ms, "w", report, changes))


def test_deaths_that_no_worker_reported_are_counted_and_the_others_once(
    client: Client, broker: Broker, keys: Keys, clock: Any
) -> None:
    """Tasks that expired, or whose workers were killed, were not among those that died in the last hour."""
    now_ms = clock.set()
    leader = StatsSampler(broker, keys)
    leader.step(now_ms)
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push_many(range(4))
    for lease in queue.reserve(n=4, keepalive=30)[:3]:
        assert lease.rollback(error="no")
    queue.push_many([Item(n, expires_in=1) for n in range(20)])
    counted(broker, keys, now_ms, 1, succeeded=5, failed=3, dead=3)
    clock.advance(60_000)
    assert not queue.reserve()
    leader.take(ScanReply(changed=["mail"]))
    leader.step(clock.ms)

    for unit in ("minute", "hour"):
        found = series(client, step=unit, since=timedelta(hours=2))
        assert found.total.counts == {"succeeded": 5, "failed": 3, "dead": 24}
        assert sum(step.dead for step in found.steps) == client.queue("mail").counts()["dead"]
        assert by_queue(client, step=unit, since=timedelta(hours=2))["mail"].counts == found.total.counts
    assert by_queue(client)["mail"].course[-2:] == (8, 21)
    assert [one.counts for one in by_job(client)] == [{"succeeded": 5, "failed": 3, "dead": 3}], "of no job"
    assert series(client, type="Job").total.dead == 3


@pytest.mark.parametrize(
    ("reported", "grown", "died"),
    [
        ([0, 4, 4, 4, 0, 0], [None, None, 4, 4, 4, None], [4, 4, 4, 0, 0]),
        ([9, 0, 0, 0], [None, 9, None, None], [0, 0, 0]),
        ([0, 4, 0, 4, 0], [None, None, 4, 2, 4], [4, 0, 4, 2]),
        ([0, 4, 4, 4, 0], [None, None, None, None, 15], [4, 4, 4, 3]),
        ([0, 0, 4, 0], [None, 4, 0, None], [4, 0, 0]),
        ([0, 0, 0, 5, 0], [None, 20, None, None, 5], [20, 0, 5, 0]),
        ([0, 9, 0, 0], [None, 0, 0, 6], [9, 0, 6]),
    ],
    ids=["reported alone", "before the window", "both", "one late sample", "a late flush", "one after the other",
         "a gap without samples"],
)  # fmt: skip
def test_a_death_is_counted_once_whichever_of_report_and_sample_comes_first(
    reported: list[int], grown: list[int | None], died: list[int]
) -> None:
    figures = [[(("mail", "Job", "succeeded"), 1), (("mail", "Job", "dead"), by)] for by in reported]
    hashes = [{} if by is None else {"mail - from": "0 0 0 7", "mail - to": f"0 0 0 {7 + by}"} for by in grown]
    window = StatsWindow(
        starts=[60_000.0 * n for n in range(1, len(reported))], step_ms=60_000, hashes=hashes[1:], figures=figures[1:],
        before=figures[0],
    )  # fmt: skip

    found = series_of(window)

    assert [step.dead for step in found.steps] == died
    assert found.total.dead == sum(died)


@pytest.mark.parametrize("name", ["mail", "orders/mail"])
def test_figures_of_one_queue_are_those_of_all_its_shards(
    current: Client, broker: Broker, keys: Keys, clock: Any, name: str
) -> None:
    """They were those of the first shard, without a filter those of all."""
    now_ms = clock.set()
    queue = current.queue(name)
    queue.configure(partitions=4)
    shards = [name, *(f"{name}@{n}" if "/" not in name else f"orders@{n}/mail" for n in range(1, 4))]
    leader = StatsSampler(broker, keys)
    leader.take(ScanReply(holding=shards))
    leader.step(now_ms)
    queue.push_many(range(20))
    current.queue("mail2").push(1)
    for lease in queue.reserve(n=8):
        lease.commit()
    clock.advance(60_000)
    leader.take(ScanReply(holding=[*shards, "mail2"]))
    leader.step(clock.ms)

    alone = series(current, since=timedelta(minutes=3), queue=name)

    last = alone.steps[-1]
    assert (last.depth.waiting, last.enqueued, alone.total.succeeded) == (12, 20, 8)
    assert by_queue(current, since=timedelta(minutes=3))[name].succeeded == 8


@pytest.mark.parametrize("away", ["the server", "the node of the statistics", "the node of a queue"])
def test_a_queue_that_could_not_be_sampled_is_sampled_later(
    client: Client, broker: Broker, keys: Keys, clock: Any, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """It was forgotten. What it had counted since its last sample was of a later minute then, or lost: a scan finds a
    queue that is empty once."""
    now_ms = clock.set()
    leader = StatsSampler(broker, keys)
    leader.take(ScanReply(changed=["bare", "fig"]))
    leader.step(now_ms)
    for name in ("bare", "fig"):
        client.queue(name).push("x")
        client.queue(name).pop()
    leader.take(ScanReply(changed=["bare", "fig"]))
    gone = ServerUnavailable("away")

    def refuse(*_: Any) -> Any:
        raise gone

    with monkeypatch.context() as patched:
        if away == "the node of a queue":
            run_each = broker.run_each
            patched.setattr(broker, "run_each", lambda asked: [gone, *run_each(asked)[1:]])
            leader.step(now_ms + 60_000)
        else:
            patched.setattr(broker, "run_each" if away == "the server" else "run", refuse)
            with pytest.raises(ServerUnavailable):
                leader.step(now_ms + 60_000)
    clock.advance(120_000)
    for later_ms in (61_000, 120_000):
        leader.step(now_ms + later_ms)

    found = by_queue(client, since=timedelta(minutes=5))
    assert {name: (one.enqueued, one.succeeded) for name, one in found.items()} == {"bare": (1, 1), "fig": (1, 1)}


class Unreliable:
    """A broker whose answers are lost, or that reaches no server, as the test says."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.mood = "well"

    def run(self, call: Any) -> Any:
        if self.mood != "away":
            self.broker.run(call)
        if self.mood != "well":
            raise ServerUnavailable("gone")


def test_each_report_counts_once_also_when_the_server_was_away(client: Client, broker: Broker, keys: Keys) -> None:
    unreliable = Unreliable(broker)
    counted = StatsRecorder(unreliable, keys, "w1")  # type: ignore[arg-type]
    for mood in ("deaf", "deaf", "away", "well", "well"):
        counted.batch("q", BatchEnd(items=1, counts={"succeeded": 1}, run_s=0.1))
        unreliable.mood = mood
        if mood == "well":
            counted.step()
        else:
            with pytest.raises(ServerUnavailable):
                counted.step()

    assert series(client).total.succeeded == 5


def test_a_report_whose_reply_was_lost_counts_as_taken_and_not_as_stale(
    client: Client, broker: Broker, keys: Keys
) -> None:
    counted = StatsRecorder(broker, keys, "w1")
    attempt = attempt_at("t")
    ends: list[Outcome] = [Succeeded(), Failed("no"), Cancelled(), Succeeded()]
    counted.observe([(attempt, end) for end in ends], ["unknown", "unknown", "unknown", "lost"])
    counted.flush()

    assert series(client).total.counts == {"succeeded": 1, "failed": 1, "cancelled": 1, "stale": 1}


def test_memory_is_bounded_however_many_names_there_are(client: Client, broker: Broker, keys: Keys) -> None:
    counted = StatsRecorder(broker, keys, "w1")
    for n in range(3000):
        one = attempt_at(f"type{n}" + "x" * 500)
        counted.observe([(one, Succeeded())], ["ok"])

    counted.step()

    found = by_job(client)
    assert sum(one.succeeded for one in found) == 3000
    assert len(found) <= 1002
    assert max(len(one.type) for one in found) <= 128


@pytest.mark.parametrize("times", [[5.0] * 100, [1.0, 2.0, 4.0, 1000.0], [0.5] * 10])
def test_percentiles_are_within_a_bucket_of_the_truth(times: list[float]) -> None:
    buckets: dict[int, int] = {}
    for ms in times:
        buckets[calls.bucket(ms)] = buckets.get(calls.bucket(ms), 0) + 1
    found = Timings(count=len(times), total_ms=sum(times), buckets=buckets)

    assert found.mean_ms == sum(times) / len(times)
    for share, ms in ((0.5, found.p50_ms), (0.95, found.p95_ms), (0.99, found.p99_ms)):
        true = sorted(times)[min(int(share * len(times)), len(times) - 1)]
        assert ms <= 1.0 if true < 1 else true / 2 <= ms <= true * 2**0.5
    assert Timings().p50_ms is Timings().mean_ms is None


def test_a_stopped_worker_left_nothing_behind(current: Client) -> None:
    good.enqueue_many([good.bind()] * 50)
    worker = Worker(client=current, queues=["fig"])
    worker.start()
    wait_for(lambda: current.stats()["fig"].totals.get("succeeded") == 50)

    worker.stop()

    assert series(current).total.succeeded == 50


def test_an_idle_worker_tells_of_its_round_trips_once_a_minute(
    broker: Broker, keys: Keys, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [1000.0]
    monkeypatch.setattr("jobrunner.worker.report.stats.monotonic", lambda: at[0])
    counted = StatsRecorder(broker, keys, "w1")

    def told() -> int:
        counted.round_trip(0.001)
        counted.step()
        return sum(int(by) for name, by in raw.hgetall(keys.stats_total).items() if b"round_trip:" in name)

    assert told() == 1
    at[0] += 59
    assert told() == 1
    at[0] += 1
    assert told() == 3
    counted.observe([(attempt_at("t"), Succeeded())], ["ok"])
    assert told() == 4
    counted.round_trip(0.001)
    counted.flush()
    assert told() == 5
