"""Errors of real attempts come into groups with their place in the code and the release of the worker."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Backoff, Client, job
from jobrunner.inspector.error_groups import ErrorGroupView, read_groups
from jobrunner.task import Task, new_id

AT_ONCE = Backoff(base=0, factor=1, jitter=0)


class CardDeclined(Exception):
    """An error of the user's own."""


def deep_in_the_bank(card: int) -> None:
    raise CardDeclined(f"card {card} of 'ada' was declined")


@job(name="groups.charge", queue="groups", max_attempts=3, backoff=AT_ONCE)
def charge(card: int) -> None:
    deep_in_the_bank(card)


@job(name="groups.parse", queue="groups", max_attempts=1)
def parse(text: str) -> None:
    int(text)


@job(name="groups.fine", queue="groups")
def fine() -> None:
    pass


def by_job(client: Client) -> dict[str, ErrorGroupView]:
    return {one.job: one for one in read_groups(client).groups}


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_attempts_of_a_worker_are_grouped(current: Client, run: Callable[..., Any], executor: str) -> None:
    for card in (1, 22, 333):
        charge.enqueue(card)
    parse.enqueue("4x")
    fine.enqueue()

    run(queues=["groups"], executor=executor, concurrency=2, release="v7 ü<b>", modules=[__name__])

    found = by_job(current)
    assert found.keys() == {"groups.charge", "groups.parse"}
    one = found["groups.charge"]
    assert (one.count, one.dead, one.message, one.release) == (9, 3, "card # of '…' was declined", "v7 ü<b>")
    assert one.error_type.endswith("test_error_groups.CardDeclined")
    assert one.place == "worker/test_error_groups.py:deep_in_the_bank"
    assert (found["groups.parse"].error_type, found["groups.parse"].count) == ("ValueError", 1)


def test_a_job_that_no_worker_knows_has_a_group(current: Client, run: Callable[..., Any]) -> None:
    current.enqueue(Task(id=new_id("groups"), queue="groups", type="groups.gone", payload=b"{}", max_attempts=1))

    run(queues=["groups"], drain=True)

    one = by_job(current)["groups.gone"]
    assert (one.error_type, one.dead) == ("UnknownJob", 1)
