"""Suspects run in a process of their own: what processes died with twice harms nobody else on threads."""

import os
from collections.abc import Iterator

import pytest

from jobrunner import Client
from jobrunner.attempt import Attempt
from jobrunner.outcome import Failed, Outcome, Succeeded
from jobrunner.worker.executors.alone import Alone, is_suspect
from jobrunner.worker.executors.handover import RunAttempt
from jobrunner.worker.executors.wire import write_greeting
from jobrunner.worker.runner import Runner
from tests.conftest import Server
from tests.unit.worker import child_jobs
from tests.unit.worker.attempts import attempt_at

TOGETHER = Succeeded(b"together")


class Plain:
    """Runs nothing."""

    def new_run(self) -> RunAttempt:
        def run(_: Attempt) -> Outcome:
            return TOGETHER

        return run

    def close(self) -> None: ...


@pytest.fixture
def alone(server: Server, client: Client) -> Iterator[Alone]:
    runner = Runner(client.broker, client.keys, lambda _: False)
    made = Alone(
        Plain(), lambda names: write_greeting(server.url, client.keys.prefix, tuple(names)), runner, lambda _: False
    )
    yield made
    made.close()


def test_only_who_lost_two_leases_runs_in_a_child_which_serves_the_next_one_too(alone: Alone) -> None:
    run = alone.new_run()

    assert [run(attempt_at("child.pid", expiries=lost)) for lost in (0, 1)] == [TOGETHER] * 2
    first, second = (run(attempt_at("child.pid", expiries=lost)) for lost in (2, 3))

    assert isinstance(first, Succeeded)
    assert first == second
    assert first.result != str(os.getpid()).encode()
    assert run(attempt_at("child.pid")) == TOGETHER
    assert not alone._open


def test_a_suspect_that_ends_its_process_is_a_failed_attempt(alone: Alone) -> None:
    outcome = alone.new_run()(attempt_at(child_jobs.fork_and_die.definition.name, expiries=2))

    assert isinstance(outcome, Failed)
    assert "AttemptCrashed" in outcome.error


def test_a_job_that_nobody_declares_is_no_suspect() -> None:
    assert not is_suspect(attempt_at("no such job", expiries=9))
