"""How a worker takes, shares and leaves work."""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis
import structlog
from msgspec import structs

from jobrunner import Backoff, Client, Worker, chain, group, job
from jobrunner.broker.call import command
from jobrunner.broker.calls.server import facts
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of
from jobrunner.clock import monotonic, unix_ms
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.recovery import FlowRecovery
from jobrunner.errors import (
    InvalidName,
    InvalidOption,
    ModuleNotLoadable,
    ServerUnavailable,
    UnknownOption,
    UnsafeServer,
    UsageError,
)
from jobrunner.jobs.enqueue_options import NOW
from jobrunner.jobs.registry import forget
from jobrunner.worker import worker as worker_module
from jobrunner.worker.drain import EmptyQueues
from jobrunner.worker.fetch.reporting import AfterReport
from jobrunner.worker.recycling import resident_bytes
from tests.acceptance.fleet import children_of
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for
from tests.worker.conftest import Start

Run = Callable[..., Any]
Audit = Callable[..., dict[str, int]]
lock = threading.Lock()
running: Counter[str] = Counter()
most: Counter[str] = Counter()
order: list[str] = []
gates: dict[str, threading.Event] = {}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for kept in (running, most, order, gates):  # other modules run these jobs too
        kept.clear()
    yield
    for gate in gates.values():
        gate.set()
    for kept in (running, most, order, gates):
        kept.clear()


@job(name="work.step", queue="w", keepalive=20, backoff=Backoff(base=0.01, factor=1))
def step(name: str = "", seconds: float = 0.0) -> None:
    """Notes how many run at a time."""
    with lock:
        order.append(name)
        running["all"] += 1
        most["all"] = max(most["all"], running["all"])
    time.sleep(seconds)
    with lock:
        running["all"] -= 1


@job(name="work.gated", queue="w", keepalive=20)
def gated(name: str) -> None:
    """Runs until its gate opens."""
    order.append(name)
    gates.setdefault(name, threading.Event()).wait(30)


@job(name="work.awaited", queue="w", keepalive=20)
async def awaited(seconds: float) -> None:
    running["all"] += 1
    most["all"] = max(most["all"], running["all"])
    await asyncio.sleep(seconds)
    running["all"] -= 1


@job(name="work.failing", queue="w", max_attempts=2, backoff=Backoff(base=0.2, factor=1))
def failing() -> None:
    order.append("failing")
    raise ValueError("no")


@job(name="work.other", queue="w2")
def other(name: str) -> None:
    order.append(name)


def test_a_burst_does_not_end_between_two_steps_of_a_flow(
    run: Run, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the report of the first step and before the second is enqueued no queue has anything."""
    pass_on = AfterReport.pass_on

    def pass_on_late(aftermath: AfterReport) -> None:
        if len(aftermath):
            time.sleep(0.2)  # a burst polls ten times meanwhile
        pass_on(aftermath)

    monkeypatch.setattr(AfterReport, "pass_on", pass_on_late)
    chain(step.bind("first"), step.bind("second")).enqueue()
    assert run(queues=["w"]).finished == 2


@pytest.mark.parametrize("drain", [False, True])
def test_a_burst_does_not_end_before_the_callback_of_a_step_that_expired(
    run: Run, current: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    """No report has the end of such a step, and the leader may be another worker."""
    monkeypatch.setattr(FlowRecovery, "take", lambda *_: None)
    clock.set()
    group(step.using(expires_in=5).bind("late"), on_complete=step.bind("told")).enqueue()
    clock.advance(6000)
    run(queues=["w"], drain=drain)
    assert order == ["told"]


def test_all_tasks_go_through_a_few_slots(run: Run, client: Client, current: Client, audit: Audit) -> None:
    """MOAB-17, MDQ-02: 25 tasks through 5 slots, never more than 5 at a time."""
    step.enqueue_many([step.bind(str(n), seconds=0.02) for n in range(25)])
    assert run(queues=["w"], concurrency=5).finished == 25
    assert most["all"] == 5
    assert sorted(order, key=int) == [str(n) for n in range(25)]
    assert not any(audit("w").values())


def test_coroutines_go_through_their_slots_as_well(run: Run, current: Client) -> None:
    awaited.enqueue_many([awaited.bind(0.02) for _ in range(25)])
    assert run(queues=["w"], concurrency=5).finished == 25
    assert most["all"] == 5


def test_one_slot_keeps_the_order(run: Run, current: Client) -> None:
    """MOAB-15, MOAB-01"""
    step.enqueue_many([step.bind(str(n)) for n in range(300)])
    run(queues=["w"], concurrency=1)
    assert order == [str(n) for n in range(300)]


def test_a_worker_that_was_not_started_holds_nothing_and_has_not_failed(current: Client) -> None:
    worker = Worker(client=current)
    assert (worker.in_hand, worker.failure) == (0, None)
    assert worker.health() == (False, {"worker": worker.id, "problem": "not started"})
    worker.stop()
    assert worker.health()[1]["problem"] == "stopped", "it does not start any more"


def test_a_worker_that_waits_begins_at_once(start: Start, current: Client) -> None:
    """MOAB-09"""
    worker = start(queues=["w"], poll=60)
    for _ in range(5):
        wait_for(lambda: worker._parts.tasks.notifier.is_armed)
        step.enqueue().result(timeout=30)  # by its hint, not by the poll


def test_a_delayed_task_begins_when_it_is_due(start: Start, current: Client) -> None:
    """MOSQ-23"""
    start(queues=["w"], poll=60)
    began = time.monotonic()
    step.using(in_=0.3).enqueue().result(timeout=30)  # when it is due, not by the poll
    assert time.monotonic() - began >= 0.3


def test_a_failed_task_is_tried_again_when_its_backoff_is_over(start: Start, current: Client) -> None:
    start(queues=["w"], poll=60)
    task = failing.enqueue()
    wait_for(lambda: task.record().state == "dead")
    assert order == ["failing"] * 2


def test_a_resumed_queue_is_served_at_once(start: Start, current: Client) -> None:
    """MDQ-22, MDQ-23"""
    queue = current.queue("w")
    queue.pause()
    worker = start(queues=["w"], poll=60)
    task = step.enqueue()
    wait_for(lambda: worker._parts.tasks.notifier.is_armed)
    assert task.state == "waiting"
    queue.resume()
    task.result(timeout=30)


def test_a_hint_that_a_busy_worker_took_goes_to_an_idle_one(
    start: Start, current: Client, raw: redis.Redis, keys: Keys
) -> None:
    """The busy worker still listens, as it did when it was idle, and cannot use the notification."""
    busy = start(queues=["w"], concurrency=1, poll=60)
    wait_for(lambda: busy._parts.tasks.notifier.is_armed)
    gated.enqueue("long")
    wait_for(lambda: order == ["long"])
    busy._parts.tasks.notifier.arm()
    idle = start(queues=["w"], concurrency=1, poll=60)
    wait_for(lambda: idle._parts.tasks.notifier.is_armed)
    for _ in range(5):
        step.enqueue("short").result(timeout=30)
    assert busy.in_hand == 1


def test_a_long_task_keeps_no_short_one_waiting(start: Start, current: Client) -> None:
    """Short tasks make a worker prefetch; when long tasks take its slots, its prefetched tasks go to another worker."""
    first = start(queues=["w"], concurrency=2, poll=60)
    for task in step.enqueue_many([step.bind("warm") for _ in range(2000)]):
        task.result(timeout=10)
    assert first._parts.fetcher._prefetch.depth > 2
    gated.enqueue_many([gated.bind("long1"), gated.bind("long2")])
    short = step.enqueue_many([step.bind("short") for _ in range(40)])
    wait_for(lambda: {"long1", "long2"} <= set(order))
    start(queues=["w"], concurrency=2, poll=60)
    for task in short:
        task.result(timeout=30)
    wait_for(lambda: first.in_hand == 2)  # the long ones still run; of short ones it reads the replies first


def test_a_long_task_keeps_no_short_one_waiting_in_its_own_worker(start: Start, current: Client) -> None:
    start(queues=["w"], concurrency=3, poll=60)
    gated.enqueue_many([gated.bind("long1"), gated.bind("long2")])
    for task in step.enqueue_many([step.bind("short") for _ in range(500)]):
        task.result(timeout=30)


def test_short_tasks_are_fetched_in_large_batches(run: Run, current: Client, raw: redis.Redis) -> None:
    """At most one round trip for ten tasks, and reporting them is in it."""
    step.enqueue_many([step.bind(str(n)) for n in range(3000)])
    before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    run(queues=["w"])
    spent = raw.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert len(order) == 3000
    assert spent / 2 <= 300, f"{spent} scripts for 3000 tasks: about half of them reserves, half reports"


def test_queues_are_served_by_their_weights(start: Start, current: Client) -> None:
    other.enqueue_many([other.bind("light") for _ in range(100)])
    step.enqueue_many([step.bind("heavy") for _ in range(100)])
    start(queues={"w": 4, "w2": 1}, concurrency=1, prefetch_time=0)
    wait_for(lambda: len(order) == 200)
    assert 60 <= order[:100].count("heavy") <= 90


def test_without_queues_it_serves_those_of_all_jobs(run: Run, current: Client) -> None:
    other.enqueue("2")
    step.enqueue("1")
    run()
    assert sorted(order) == ["1", "2"]


def test_burst_leaves_what_is_scheduled(run: Run, current: Client, audit: Audit) -> None:
    step.enqueue("now")
    step.using(in_=60).enqueue("later")
    assert run(queues=["w"]).finished == 1
    assert audit("w")["scheduled"] == 1


def test_drain_waits_for_what_is_scheduled(run: Run, current: Client) -> None:
    failing.enqueue()
    step.using(in_=0.3).enqueue("later")
    assert run(queues=["w"], drain=True).finished == 3
    assert sorted(order) == ["failing", "failing", "later"]


def test_burst_does_not_wait_for_a_paused_queue(run: Run, current: Client) -> None:
    step.enqueue("x")
    current.queue("w").pause()
    with structlog.testing.capture_logs() as logged:
        assert run(queues=["w"]).finished == 0
    said = [(line["queue"], line["waiting"]) for line in logged if "wait in a paused queue" in line["event"]]
    assert said == [("w", 1)]


def test_burst_waits_for_what_another_worker_runs(start: Start, run: Run, current: Client) -> None:
    start(queues=["w"], concurrency=1)
    gated.enqueue("long")
    wait_for(lambda: order == ["long"])
    began = time.monotonic()
    threading.Timer(0.3, gates.setdefault("long", threading.Event()).set).start()
    run(queues=["w"], concurrency=1)
    assert time.monotonic() - began > 0.2


def test_burst_waits_for_what_another_runs_whatever_the_clock_of_this_machine_says(
    current: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ten days behind that of the server."""
    clock.set(unix_ms() + 10 * 86_400_000)
    step.enqueue("held")
    (lease,) = current.queue("w").reserve()
    looks: list[bool] = []
    are_reached = EmptyQueues.are_reached
    monkeypatch.setattr(EmptyQueues, "are_reached", lambda empty: looks.append(are_reached(empty)) or looks[-1])
    working = threading.Thread(target=Worker(queues=["w"], client=current).run, kwargs={"burst": True})
    working.start()
    wait_for(lambda: len(looks) >= 2 or any(looks))
    still_held = not any(looks)
    lease.commit()
    working.join(30)
    assert still_held
    assert looks[-1]


@pytest.mark.parametrize("most_tasks", [1, 7, 30])
def test_no_more_tasks_are_run_than_asked_for(current: Client, most_tasks: int, audit: Audit) -> None:
    step.enqueue_many([step.bind(str(n)) for n in range(40)])
    summary = Worker(queues=["w"], client=current, max_tasks=most_tasks).run()
    assert summary.finished == most_tasks == len(order)
    assert audit("w") == {"waiting": 40 - most_tasks, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_a_burst_ends_after_so_many_tasks_too(current: Client, audit: Audit) -> None:
    step.enqueue_many([step.bind(str(n)) for n in range(5)])
    assert Worker(queues=["w"], client=current, max_tasks=2).run(burst=True).finished == 2
    assert audit("w") == {"waiting": 3, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


@pytest.mark.parametrize("while_it_waits", ["for tasks", "for a driver that starts"])
def test_ctrl_c_while_a_worker_in_a_program_stops_hands_back_what_runs(
    current: Client, monkeypatch: pytest.MonkeyPatch, while_it_waits: str
) -> None:
    """The second one, when the first ended `run`; its attempt was spent as that of a worker that died."""
    task = gated.enqueue("waits")
    worker = Worker(queues=["w"], client=current)
    worker.start()
    wait_for(lambda: order)

    interrupted: list[bool] = []

    def interrupt(*_: float) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    if while_it_waits == "for tasks":
        monkeypatch.setattr(worker._state, "wait", interrupt)
    else:
        monkeypatch.setattr(worker._parts.drivers, "ask_to_stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.stop(grace=3600)

    record = task.record()
    assert (record.state.value, record.attempts) == ("waiting", 0)
    assert current.workers() == []


@pytest.mark.parametrize("how", ["stop()", "by itself"])
def test_a_signal_handler_that_calls_stop_during_a_stop_ends_the_grace(
    current: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The thread waited for a lock of its own, for ever, with the task that it held. The first signal to a worker that
    stops by itself takes no time from that task."""
    task = gated.enqueue("waits")
    worker = Worker(queues=["w"], client=current)
    worker.start()
    wait_for(lambda: order)
    if how == "by itself":
        worker._state.stop_gracefully()
    signals: list[bool] = []

    def handle(pause_s: float) -> None:
        signals.append(worker._state.must_stop_now)
        worker.stop()

    monkeypatch.setattr(worker._state, "wait", handle)
    stopping = threading.Thread(target=worker.stop, args=(3600,), daemon=True)
    stopping.start()
    stopping.join(30)

    assert not stopping.is_alive()
    assert len(signals) == (1 if how == "stop()" else 2)
    record = task.record()
    assert (record.state.value, record.attempts) == ("waiting", 0)


def test_a_worker_runs_once(current: Client, audit: Audit) -> None:
    """A second start gave it a second set of threads, which went on after `stop`; a second run did nothing."""
    worker = Worker(queues=["w"], client=current)
    worker.start()
    for again in (worker.start, worker.run):
        with pytest.raises(UsageError, match="this worker works already"):
            again()
    worker.stop()

    step.enqueue()
    for again in (worker.start, lambda: worker.run(burst=True)):
        with pytest.raises(UsageError, match="this worker has ended"):
            again()

    assert audit("w")["waiting"] == 1
    assert Worker(queues=["w"], client=current).run(burst=True).finished == 1


def test_a_worker_ends_when_it_takes_too_much_memory_and_spends_no_attempt(current: Client, audit: Audit) -> None:
    kept: list[bytearray] = []
    limit = resident_bytes() + 64 * 2**20
    gated.enqueue("first")
    worker = Worker(queues=["w"], client=current, concurrency=1, max_memory=limit)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: order == ["first"])
    step.enqueue_many([step.bind(str(n)) for n in range(5)])
    kept.append(bytearray(b"x" * (96 * 2**20)))
    wait_for(lambda: worker.health()[1].get("problem") == "stopped")
    gates["first"].set()
    thread.join(30)
    assert not thread.is_alive()
    assert order == ["first"], "it finished what it had in hand, and took no more"
    assert audit("w") == {"waiting": 5, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_a_worker_is_stopped_from_another_thread(current: Client) -> None:
    worker = Worker(queues=["w"], client=current)
    thread = threading.Thread(target=worker.run)
    thread.start()
    step.enqueue().result(timeout=10)
    worker.ask_to_stop()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("by", ["another thread", "a signal handler"])
@pytest.mark.parametrize("runs", [True, False])
def test_a_stop_while_a_worker_starts_stops_it(current: Client, by: str, runs: bool) -> None:
    """It was ignored: the worker then ran for ever."""
    stopping = threading.Thread(target=lambda: worker.stop(grace=30))

    def gate() -> None:  # called while the worker starts, and later by a loop
        if worker._state.is_stopping:
            return
        if by == "a signal handler":
            worker.stop(grace=30)
        else:
            stopping.start()
            wait_for(lambda: worker._state.is_stopping)

    worker = Worker(queues=["w"], client=current, gates=[gate])
    starting = threading.Thread(target=worker.run if runs else worker.start)
    starting.start()
    starting.join(30)
    if by == "another thread":
        stopping.join(30)
    assert worker.health()[1]["problem"] == "stopped"
    assert not any(loop.is_alive for loop in worker._parts.loops)


def test_a_leader_whose_turn_is_long_is_well_as_long_as_it_gets_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when thousands of ticks are made up for. A probe restarted its worker, and the next leader began anew."""
    gets_on, ends = threading.Event(), threading.Event()
    gets_on.set()

    def long(ticks: PeriodicTicks, *_: Any) -> float:
        while not ends.wait(0.01):
            if gets_on.is_set():
                ticks.progressed_at = monotonic()
        return 60.0

    monkeypatch.setattr(PeriodicTicks, "step", long)
    monkeypatch.setattr(worker_module, "_HANGS_S", 0.5)
    worker = start(queues=["w"])
    (loop,) = (one for one in worker._parts.loops if one.name == "coordinator")
    try:
        wait_for(lambda: loop._turn_began is not None and monotonic() - loop._turn_began > 1.0)
        wait_for(lambda: worker.health()[0])
        gets_on.clear()
        wait_for(lambda: "loops that do not turn: coordinator" in worker.health()[1].get("problem", ""))
    finally:
        ends.set()


@pytest.mark.parametrize("queues", [None, [], {}])
def test_a_worker_without_queues_serves_those_of_its_jobs(start: Start, queues: Any) -> None:
    """With an empty mapping it served none, and did nothing."""
    assert "w" in start(queues=queues)._parts.queues


def test_a_worker_that_was_stopped_before_it_began_never_starts(current: Client) -> None:
    worker = Worker(queues=["w"], client=current)
    worker.stop()
    worker.start()
    assert worker._parts is None
    assert worker.run().finished == 0


def test_stopping_twice_is_stopping_once(start: Start) -> None:
    worker = start(queues=["w"])
    threads = [threading.Thread(target=worker.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    worker.stop()


def test_a_stopped_worker_leaves_no_thread_and_no_process(current: Client, raw: redis.Redis) -> None:
    """TITAN-23"""
    threads, children = set(threading.enumerate()), set(children_of(os.getpid()))
    worker = Worker(queues=["w"], client=current, concurrency=3)
    worker.start()
    awaited.enqueue(0.0).result(timeout=10)
    step.enqueue().result(timeout=10)
    worker.stop()
    wait_for(lambda: set(threading.enumerate()) <= threads)
    wait_for(lambda: set(children_of(os.getpid())) <= children)
    assert current.queue("w").counts()["pending"] == 0


def test_stopping_hands_back_what_was_not_begun_and_waits_for_what_was(
    start: Start, current: Client, audit: Audit
) -> None:
    """MOSQ-11: no attempt is spent."""
    worker = start(queues=["w"], concurrency=2)
    step.enqueue_many([step.bind(str(n), seconds=0.1) for n in range(20)])
    wait_for(lambda: len(order) >= 2)
    with structlog.testing.capture_logs() as lines:
        worker.stop(grace=10)
    (stopping,) = (line for line in lines if line["event"] == "worker stopping")
    assert stopping["hint"] == "waits up to 10 s for them; asked once more, it hands them back at once"
    left = audit("w")
    assert left["pending"] == 0
    assert left["waiting"] == 20 - len(order)
    assert current.queue("w").totals()["succeeded"] == len(order)


def test_a_queue_that_refuses_its_tasks_keeps_no_others_from_going_back(
    start: Start, current: Client, keys: Keys, raw: redis.Redis
) -> None:
    worker = start(queues=["w", "w2"], concurrency=2)
    gated.enqueue("first")
    wait_for(lambda: order == ["first"])
    gated.using(queue="w2").enqueue("second")
    wait_for(lambda: len(order) == 2)
    damaged = keys.queue("w").leases
    raw.rename(damaged, "aside")
    raw.set(damaged, "no zset")
    with structlog.testing.capture_logs() as lines:
        worker.stop(grace=0)

    assert current.queue("w2").counts()["waiting"] == 1
    (left,) = (line for line in lines if line["event"].startswith("tasks not handed back"))
    assert left["tasks"] == 1
    raw.rename("aside", damaged)
    for gate in gates.values():
        gate.set()


@pytest.mark.parametrize("is_stuck", [True, False], ids=["stuck", "stopped"])
def test_an_attempt_that_ended_is_never_handed_back_as_if_it_had_not(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """It ends behind the last turn of the fetch loop, which may not have stopped in time."""
    worker = start(queues=["w"], concurrency=1)
    gated.enqueue("last")
    wait_for(lambda: order == ["last"])
    loop, finished = worker._parts.fetcher.loop, worker._parts.tasks.finished
    assert loop.stop()
    gates["last"].set()
    wait_for(lambda: finished)
    monkeypatch.setattr(loop, "stop", lambda *_: not is_stuck)

    worker.stop(grace=0)

    counts = current.queue("w").counts()
    assert (counts["waiting"], counts["pending"]) == (0, 1 if is_stuck else 0)
    assert current.queue("w").totals().get("succeeded", 0) == (0 if is_stuck else 1)


def test_a_module_that_cannot_be_loaded_starts_nothing(current: Client) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ModuleNotLoadable, match="no_such_module"):
        Worker(["no_such_module"], client=current).start()
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_a_thread_too_many_at_the_start_leaves_no_other_behind(
    current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, children = set(threading.enumerate()), set(children_of(os.getpid()))
    step.enqueue_many([step.bind(str(n)) for n in range(3)])
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "jobrunner-stats":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    worker = Worker(queues=["w"], client=current)
    with pytest.raises(RuntimeError, match="new thread"):
        worker.start()

    wait_for(lambda: set(threading.enumerate()) <= threads)
    wait_for(lambda: set(children_of(os.getpid())) <= children)
    assert current.queue("w").counts()["pending"] == 0


def test_an_impossible_queue_starts_nothing(current: Client) -> None:
    with pytest.raises(InvalidName):
        Worker(queues=["{}"], client=current).start()


def test_one_name_where_a_list_is_meant_is_refused(current: Client) -> None:
    with pytest.raises(InvalidOption, match=r"queues='mail': give a list, \['mail'\]"):
        Worker(queues="mail", client=current)
    with pytest.raises(InvalidOption, match=r"modules='shop.jobs': give a list"):
        Worker("shop.jobs", client=current)
    with pytest.raises(InvalidOption, match="modules=5: give a list of names"):
        Worker(modules=5, client=current)  # type: ignore[arg-type]
    assert Worker(modules=None, client=current).modules == ()


def test_what_follows_a_colon_must_be_a_weight_unless_there_is_such_a_queue(start: Start, current: Client) -> None:
    for slip in ("w:heavy", "w:", "w:1.5", "w:-1", "w:²"):
        with pytest.raises(UsageError, match=r"weight|queue"):
            start(queues=["w2", slip])
    with pytest.raises(InvalidOption, match=r"'heavy' is not a weight; write w:3, .* or w:heavy:1"):
        start(queues=["w:heavy"])
    with pytest.raises(InvalidOption, match="from 1 to 1000"):
        start(queues=["w:" + "9" * 5000])
    assert start(queues=["w:heavy:2", "w:3"])._parts.tasks.rotation.queues == ["w:heavy", "w"]
    step.using(queue="w:light").enqueue().exists()
    worker = start(queues=["w:light"])
    assert worker._parts.tasks.rotation.queues == ["w:light"], "it has a task, so it is a name"


def test_a_queue_of_a_job_with_a_colon_in_its_name_is_served(start: Start, current: Client) -> None:
    @job(name="work.colon", queue="w:7")
    def colon() -> None: ...

    try:
        assert "w:7" in start()._parts.tasks.rotation.queues
    finally:
        forget("work.colon")


def test_a_queue_that_nobody_knows_is_warned_of(
    start: Start, current: Client, caplog: pytest.LogCaptureFixture
) -> None:
    step.using(queue="mail").enqueue()
    start(queues=["mial", "w", "mail", "default", "zzzzzz"])
    told = [line for line in caplog.messages if "no declared job" in line]
    assert len(told) == 2
    assert "queue=mial" in told[0]
    assert "did you mean 'mail'?" in told[0]
    assert "queue=zzzzzz" in told[1]


def test_an_unknown_option_names_the_nearest(current: Client) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'grace'"):
        Worker(client=current, grase=3)


def test_a_server_that_is_away_at_the_start_is_an_error(tmp_path: Any) -> None:
    with Client(f"unix://{tmp_path}/none", retry_timeout=0.1) as away, pytest.raises(ServerUnavailable):
        Worker(queues=["w"], client=away).run(burst=True)


def test_a_server_that_may_delete_tasks_is_refused(start_server: Callable[..., Server]) -> None:
    """MOAB-07"""
    server = start_server(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    with Client(server.url) as client:
        with pytest.raises(UnsafeServer, match="allkeys-lru"):
            Worker(queues=["w"], client=client).run(burst=True)
        assert Worker(queues=["w"], client=client, allow_eviction=True).run(burst=True).finished == 0


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "6.2.0", "?"])
def test_a_server_that_is_too_old_for_the_scripts_is_refused(
    current: Client, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """It has no ZMSCORE: every report failed there, and tasks stayed pending."""
    seen = structs.replace(broker_of(current).run(facts()), name="redis", version=version)
    monkeypatch.setattr(
        "jobrunner.worker.startup.facts", lambda: command("INFO", read=lambda _: seen, everywhere=True)
    )
    worker = Worker(queues=["w"], client=current, allow_eviction=True)
    if version in ("6.2.0", "?"):
        assert worker.run(burst=True).finished == 0
        return
    with pytest.raises(UnsafeServer, match=rf"^the server is redis {version}, which .*; use Redis 6\.2 or later"):
        worker.run(burst=True)


def test_it_says_what_it_is_and_takes_itself_off_the_list(
    start: Start, current: Client, raw: redis.Redis, keys: Keys
) -> None:
    worker = start(queues=["w"], concurrency=3)
    said = raw.hgetall(keys.worker(worker.id))
    assert (said[b"queues"], said[b"concurrency"], said[b"executor"]) == (b"w", b"3", b"threads")
    assert raw.zrange(keys.workers, 0, -1) == [worker.id.encode()]
    wait_for(lambda: raw.exists(keys.leader))
    worker.stop()
    assert not raw.exists(keys.worker(worker.id), keys.workers, keys.leader)


def test_what_it_said_of_itself_is_back_after_the_server_lost_it(
    start: Start, current: Client, raw: redis.Redis, keys: Keys
) -> None:
    """R8"""
    with structlog.testing.capture_logs() as lines:
        start(queues=["w"], heartbeat=0.1)
        raw.flushall()
        wait_for(lambda: raw.zcard(keys.workers) and raw.sismember(keys.queues, "w"))
        wait_for(lambda: raw.hget(record_of_a_worker(raw, keys), "at"))
        wait_for(lambda: losses(lines))  # the worker writes the line when it has read the reply
        wait_for_heartbeats(raw, keys, 2)

    assert losses(lines) == 1


def test_a_queue_that_was_deleted_is_no_loss(start: Start, current: Client, raw: redis.Redis, keys: Keys) -> None:
    with structlog.testing.capture_logs() as lines:
        start(queues=["w"], heartbeat=0.1)
        raw.srem(keys.queues, "w")
        wait_for(lambda: raw.sismember(keys.queues, "w"))
        wait_for_heartbeats(raw, keys, 2)

    assert losses(lines) == 0


def losses(lines: Sequence[Mapping[str, Any]]) -> int:
    return sum("the server has lost the keys" in line["event"] for line in lines)


def record_of_a_worker(raw: redis.Redis, keys: Keys) -> bytes:
    """The key of its record. A worker whose heartbeat is late is not in the list until it comes."""
    (worker,) = wait_for(lambda: raw.zrange(keys.workers, 0, 0))
    return keys.worker(worker.decode())


def wait_for_heartbeats(raw: redis.Redis, keys: Keys, count: int) -> None:
    record = record_of_a_worker(raw, keys)
    seen = {raw.hget(record, "at")}

    def have_come() -> bool:
        seen.add(raw.hget(record, "at"))
        return len(seen) > count

    wait_for(have_come)


def test_workers_that_were_killed_long_ago_are_forgotten(start: Start, raw: redis.Redis, keys: Keys) -> None:
    now_ms = raw.time()[0] * 1000
    raw.zadd(keys.workers, {"killed yesterday": now_ms - 86_500_000, "at work": now_ms - 1_000})
    raw.hset(keys.worker("at work"), "host", "another")
    worker = start(queues=["w"])
    assert raw.zrange(keys.workers, 0, -1) == [b"at work", worker.id.encode()]


@job(name="work.passes_on", queue="passes", keepalive=20)
def passes_on() -> None:
    step.enqueue(name="from a thread")


@job(name="work.passes_on_async", queue="passes", keepalive=20)
async def passes_on_async() -> None:
    await step.aenqueue(name="from a coroutine")
    await asyncio.to_thread(step.enqueue, name="from a thread of it")


def test_jobs_enqueue_through_the_client_of_their_worker(current: Client, server: Server) -> None:
    with Client(server.url, "elsewhere") as elsewhere:
        for made in (passes_on, passes_on_async):
            elsewhere.enqueue(made.bind().task(NOW))
        Worker(queues=["passes"], client=elsewhere).run(burst=True)
        assert elsewhere.queue("w").counts()["waiting"] == 3
    assert current.queue("w").counts()["waiting"] == 0


def test_a_queue_that_keeps_history_is_told_how_long_tasks_ran_without_their_wait_here(
    current: Client, run: Run, raw: redis.Redis, keys: Keys
) -> None:
    current.queue("w").configure(history=60)
    step.enqueue_many([step.bind("slow", 0.3), *(step.bind(f"{n}") for n in range(20))])
    began = time.monotonic()

    run(queues=["w"], concurrency=1)

    ran = [int(raw.hget(keys.queue("w").task(one.id), "run_ms") or -1) for one in current.queue("w").history(100)]
    assert len(ran) == 21
    assert min(ran) >= 0
    assert max(ran) >= 300
    assert sum(ran) <= (time.monotonic() - began) * 1000 + len(ran), "one at a time: no moment counts twice"


def test_a_concurrency_beyond_the_limit_on_threads_is_refused_with_its_value(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("jobrunner.worker.assembly.ThreadExecutor", refuse)
    with pytest.raises(InvalidOption, match=r"concurrency=40000: can't start new thread, .* give less"):
        start(queues=["w"], concurrency=40_000)
