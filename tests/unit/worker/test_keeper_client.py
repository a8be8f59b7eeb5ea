"""The lease keeper's process as the worker uses it: start, messages in both directions, replacement, end."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from structlog.testing import capture_logs

from jobrunner import Client
from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases as calls
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.worker.lease_keeper import keeper_client, keeper_link
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.lease_keeper.keeper_link import HeldWork
from tests.support.server import Server
from tests.support.stopped_clock import stopped
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at


@pytest.fixture
def held(server: Server, keys: Keys) -> Iterator[KeeperClient]:
    made = KeeperClient(server.url, keys.prefix)
    made.start()
    wait_for(lambda: made.leases.is_ready)
    made.leases.attempts()  # the lock: the watcher has rung for the keeper that is ready
    yield made
    made.close()


def reserve(client: Client, broker: Broker, keys: Keys, count: int, keepalive_s: float) -> list[Attempt]:
    client.queue("q").push_many(range(count))
    return broker.run(
        calls.reserve(keys.queue("q"), count, token=os.urandom(4).hex(), keepalive_ms=round(keepalive_s * 1000))
    ).attempts


def ends(raw: redis.Redis, keys: Keys, attempt: Attempt) -> float:
    found = raw.zscore(keys.queue("q").pending, attempt.id)
    assert found is not None
    return found


def pid_of(held: KeeperClient) -> int:
    assert held._keeper is not None
    return held._keeper.pid


def test_what_is_held_is_kept_and_what_is_dropped_is_not(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """MOAB-27"""
    kept, dropped = reserve(client, broker, keys, 2, keepalive_s=2)
    held.leases.hold([kept, dropped], monotonic())
    held.leases.drop([dropped])
    assert held.leases.attempts() == [kept]
    wait_for(lambda: ends(raw, keys, kept) > kept.deadline_ms)
    assert ends(raw, keys, dropped) == dropped.deadline_ms


def test_it_hears_who_should_stop(held: KeeperClient, client: Client, broker: Broker, keys: Keys) -> None:
    asked, other = reserve(client, broker, keys, 2, keepalive_s=0.6)
    held.leases.hold([asked, other], monotonic())
    client.task(asked.id).cancel()
    wait_for(lambda: held.leases.is_stopped(asked.token))
    assert not held.leases.is_stopped(other.token)
    held.leases.drop([asked])
    assert not held.leases.is_stopped(asked.token), "nothing is remembered of what is over"


def test_a_lost_lease_is_logged_of_an_attempt_that_runs(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys
) -> None:
    running, ended, fetched = reserve(client, broker, keys, 3, keepalive_s=0.6)
    running.began_s = ended.began_s = 1.0
    ended.run_s = 0.1
    broker.run(calls.release(keys.queue("q"), [(one.id, one.token, "") for one in (running, ended, fetched)]))

    with capture_logs() as lines:
        held.leases.hold([running, ended, fetched], monotonic())
        wait_for(lambda: all(held.leases.is_stopped(one.token) for one in (running, ended, fetched)))
        wait_for(lambda: lines)

    assert [line.get("token") for line in lines] == [running.token]


def test_all_can_be_asked_to_stop(held: KeeperClient, client: Client, broker: Broker, keys: Keys) -> None:
    attempts = reserve(client, broker, keys, 2, keepalive_s=30)
    held.leases.hold(attempts, monotonic())
    held.leases.stop_all()
    assert all(held.leases.is_stopped(attempt.token) for attempt in attempts)


def test_a_killed_keeper_is_replaced_and_told_everything(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    attempts = reserve(client, broker, keys, 3, keepalive_s=20)
    held.leases.hold(attempts, monotonic())
    os.kill(pid_of(held), signal.SIGKILL)
    wait_for(lambda: all(ends(raw, keys, attempt) > attempt.deadline_ms for attempt in attempts))


def test_a_keeper_for_which_no_descriptor_is_left_is_started_later(
    held: KeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs have used them up."""
    real, refused = held._wake_pipe.open, list[str]()

    def open_pipe() -> int:
        if not refused:
            refused.append("pipe")
            raise OSError(errno.EMFILE, "Too many open files")
        return real()

    monkeypatch.setattr(held._wake_pipe, "open", open_pipe)
    before = pid_of(held)
    os.kill(before, signal.SIGKILL)

    wait_for(lambda: pid_of(held) != before and held.leases.is_ready)
    assert refused == ["pipe"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_process_group_does_not_end_a_keeper_that_starts(
    server: Server, keys: Keys, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    starting = KeeperClient(server.url, keys.prefix)
    starting.start()
    try:
        first = wait_for(lambda: starting._keeper)
        os.kill(first.pid, number)
        wait_for(lambda: starting.leases.is_ready)
        assert starting._keeper is first
        assert "Traceback" not in capfd.readouterr().err
    finally:
        starting.close()


def test_telling_a_dead_keeper_is_no_error(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """The watcher informs the next keeper."""
    dropped, kept = reserve(client, broker, keys, 2, keepalive_s=20)
    os.kill(pid_of(held), signal.SIGKILL)
    for attempt in (dropped, kept):
        held.leases.hold([attempt], monotonic())
    held.leases.drop([dropped])
    wait_for(lambda: ends(raw, keys, kept) > kept.deadline_ms)
    assert ends(raw, keys, dropped) == dropped.deadline_ms


def test_close_ends_the_process_and_starts_no_other(held: KeeperClient) -> None:
    pid, keeper = pid_of(held), held._keeper
    held.close()
    assert keeper is not None
    pipes = [keeper.stdin, keeper.stdout]  # the warning of the collector would fail a run of `pytest -W error`
    assert [pipe is not None and pipe.closed for pipe in pipes] == [True, True]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not held._watcher.is_alive()


def test_short_leases_wait_for_a_keeper_that_is_still_starting(server: Server, keys: Keys) -> None:
    held = KeeperClient(server.url, keys.prefix)
    assert not held.leases.can_keep([attempt_at("x"), attempt_at("x", keepalive_ms=2000.0)])
    assert held.leases.can_keep([attempt_at("x", keepalive_ms=30_000.0)])
    held.start()
    wait_for(lambda: held.leases.can_keep([attempt_at("x", keepalive_ms=2000.0)]))
    os.kill(pid_of(held), signal.SIGKILL)
    wait_for(lambda: not held.leases.can_keep([attempt_at("x", keepalive_ms=2000.0)]))
    held.close()


def test_a_keeper_starts_while_the_certificate_of_its_worker_is_being_replaced(keys: Keys, tmp_path: Path) -> None:
    """It ended with a traceback, and its worker took no tasks."""
    held = KeeperClient(f"rediss://127.0.0.1:1/0?ssl_certfile={tmp_path}/gone.pem", keys.prefix)
    held.start()
    try:
        wait_for(lambda: held.leases.is_ready)
    finally:
        held.close()


def test_a_keeper_is_missing_when_it_is_away_for_longer_than_a_start(
    held: KeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped(monkeypatch, keeper_link)
    assert (held.leases.away_s, held.leases.is_missing, held.problem) == (0.0, False, "")

    held.leases.disconnect()
    clock.now += 5.0
    held.leases.disconnect()  # after each start that failed
    assert (held.leases.away_s, held.leases.is_missing) == (5.0, False)
    clock.now += 25.5
    assert held.leases.is_missing
    assert held.problem.startswith("no tasks are taken: the lease keeper could not be started for 30 s")


def test_a_keeper_that_is_still_starting_does_not_stop_its_worker(
    server: Server, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MDQ-04: more messages than a pipe holds, and no reader."""
    never_ready = tmp_path / "python"
    never_ready.write_text("#!/bin/sh\nexec sleep 60\n")
    never_ready.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never_ready))
    held = KeeperClient(server.url, keys.prefix)
    held.start()
    wait_for(lambda: held._keeper)
    for number in range(3000):
        attempt = attempt_at("x" * 100, token=str(number))
        held.leases.hold([attempt], monotonic())
        held.leases.drop([attempt])
    assert not held.leases.is_ready
    assert held.leases.attempts() == []
    held.close()


def test_a_keeper_is_told_what_was_held_before_it_was_ready(
    server: Server, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """MOAB-27"""
    kept, dropped = reserve(client, broker, keys, 2, keepalive_s=20)
    held = KeeperClient(server.url, keys.prefix)
    held.leases.hold([kept, dropped], monotonic())
    held.leases.drop([dropped])
    held.start()
    wait_for(lambda: ends(raw, keys, kept) > kept.deadline_ms)
    assert ends(raw, keys, dropped) == dropped.deadline_ms
    held.close()


def test_only_short_leases_and_a_full_pipe_ring(held: KeeperClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking the keeper for each task would delay each; it learns of long tasks within a second."""
    rings: list[int] = []
    real = held._wake_pipe.ring
    monkeypatch.setattr(held._wake_pipe, "ring", lambda: (rings.append(1), real()))
    attempt = attempt_at("x", keepalive_ms=30_000.0)
    held.leases.hold([attempt], monotonic())
    held.leases.drop([attempt])
    assert not rings
    held.leases.hold([attempt_at("x", keepalive_ms=2000.0)], monotonic())
    assert len(rings) == 1
    for number in range(3000):
        attempt = attempt_at("x" * 100, token=str(number), keepalive_ms=30_000.0)
        held.leases.hold([attempt], monotonic())
        held.leases.drop([attempt])
    assert 1 < len(rings) < 500


def test_a_stopped_keeper_is_replaced_before_a_short_lease_ends(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """C13, R36"""
    attempts = reserve(client, broker, keys, 3, keepalive_s=5)
    held.leases.hold(attempts, monotonic())
    before = pid_of(held)
    os.kill(before, signal.SIGSTOP)
    wait_for(lambda: pid_of(held) != before and held.leases.is_ready)
    wait_for(lambda: all(ends(raw, keys, attempt) > attempt.deadline_ms for attempt in attempts))
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_keeper_that_is_stopped_while_it_starts_is_replaced(held: KeeperClient) -> None:
    """R36"""
    before = pid_of(held)
    os.kill(before, signal.SIGKILL)
    starting = wait_for(lambda: pid_of(held) != before and pid_of(held))
    os.kill(starting, signal.SIGSTOP)
    wait_for(lambda: pid_of(held) != starting and held.leases.is_ready)


def test_a_keeper_that_does_not_read_holds_nobody_up(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: more messages than the pipe holds, while nothing checks that the keeper lives."""
    monkeypatch.setattr(keeper_client.KeeperHealth, "is_lost", lambda *_: False)
    (kept,) = reserve(client, broker, keys, 1, keepalive_s=20)
    held.leases.hold([kept], monotonic())
    before = pid_of(held)
    os.kill(before, signal.SIGSTOP)
    for number in range(3000):
        attempt = attempt_at("x" * 100, token=str(number))
        held.leases.hold([attempt], monotonic())
        held.leases.drop([attempt])
    held.leases.stop_all()
    wait_for(lambda: pid_of(held) != before and held.leases.is_ready)
    wait_for(lambda: ends(raw, keys, kept) > kept.deadline_ms)


def test_closing_does_not_wait_for_a_stopped_keeper(held: KeeperClient) -> None:
    os.kill(pid_of(held), signal.SIGSTOP)
    began = monotonic()
    held.close()
    assert monotonic() - began < 30
    assert not held._watcher.is_alive()


def test_a_keeper_that_gives_no_sign_of_life_is_replaced(held: KeeperClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs, though the system says that it runs."""
    before = pid_of(held)
    monkeypatch.setattr(keeper_client, "is_suspended", lambda _: False)
    os.kill(before, signal.SIGSTOP)
    wait_for(lambda: pid_of(held) != before and held.leases.is_ready)


def test_what_the_worker_cannot_hear_of_is_kept_while_its_interpreter_stands_still(
    held: KeeperClient, client: Client, broker: Broker, keys: Keys, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job holds the interpreter lock, so the reply to a reserve is not read."""
    (known,) = reserve(client, broker, keys, 1, keepalive_s=1)
    (unread,) = reserve(client, broker, keys, 1, keepalive_s=4)
    (of_another,) = reserve(client, broker, keys, 1, keepalive_s=4)
    held.leases.memory.write(msgspec.json.encode(HeldWork(["other", "q"], "", False)))
    held.leases.took(int(unread.token), int(unread.token))
    held.leases.hold([known], monotonic())
    wait_for(lambda: ends(raw, keys, known) > known.deadline_ms)
    assert ends(raw, keys, unread) == unread.deadline_ms, "as long as it can read the reply"

    monkeypatch.setattr(held.leases.memory, "sign", lambda: None)
    wait_for(lambda: ends(raw, keys, unread) > unread.deadline_ms)
    assert ends(raw, keys, of_another) == of_another.deadline_ms

    monkeypatch.undo()
    signs = held.leases.memory.signs_of_worker
    wait_for(lambda: held.leases.memory.signs_of_worker > signs + 1)
    kept_until, renewed = ends(raw, keys, unread), ends(raw, keys, known)
    wait_for(lambda: ends(raw, keys, known) > renewed + 1_000)
    assert ends(raw, keys, unread) == kept_until, "it can read replies again"
