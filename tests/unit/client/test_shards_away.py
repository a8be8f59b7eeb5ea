"""A queue with `partitions` of which shards do not answer: how waits go on, and what is told of reports."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Client, Item
from jobrunner.broker.call import key_of
from jobrunner.broker.shards import shard_name
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations import shard_leases
from jobrunner.client.operations.hints import WorkHint
from jobrunner.client.queue import Queue
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerUnavailable

SHARDS = [shard_name("mail", number) for number in range(4)]
Break = Callable[[dict[str, JobrunnerError]], None]


@pytest.fixture
def mail(client: Client) -> Queue:
    queue = client.queue("mail")
    queue.configure(partitions=4)
    return queue


@pytest.fixture
def break_shards(client: Client, monkeypatch: pytest.MonkeyPatch) -> Break:
    """From then on calls about these shards meet these errors."""
    broker = broker_of(client)
    replies = broker._replies

    def use(errors: dict[str, JobrunnerError]) -> None:
        broken = {keys_of(client).queue(name).waiting.partition(b"}")[0]: error for name, error in errors.items()}

        def replies_of_others(calls: Any, *meanwhile: Any) -> list[Any]:
            found = [broken.get((key_of(call) or b"").partition(b"}")[0]) for call in calls]
            there = iter(replies([call for call, error in zip(calls, found, strict=True) if error is None], *meanwhile))
            return [next(there) if error is None else error for error in found]

        monkeypatch.setattr(broker, "_replies", replies_of_others)

    return use


def test_a_reserve_that_waits_rests_while_the_first_shard_does_not_answer(
    client: Client, mail: Queue, break_shards: Break
) -> None:
    """The look at the slices, which goes by the first shard, stayed due, so that it asked again and again."""
    ref, broker = mail._ref, broker_of(client)
    assert mail.reserve(1) == []
    assert ref.balancer is not None
    ref.balancer.due_at = 0.0
    break_shards({SHARDS[0]: ServerUnavailable("no server")})
    steps = shard_leases.reserve(ref, 1, None, 30, [])
    step = next(steps)
    while not isinstance(step, WorkHint):
        step = steps.send(broker.run_each(step.calls))

    assert [queue.name for queue in step.queues] == SHARDS[1:]
    assert step.at_most_s == pytest.approx(2.0)


def test_reports_that_no_shard_answered_may_have_been_taken_where_one_may(mail: Queue, break_shards: Break) -> None:
    """The error of the first shard said that nothing had been sent."""
    mail.push_many(Item(number, partition=str(number)) for number in range(40))
    taken = mail.reserve(40)
    errors: list[JobrunnerError] = [ServerUnavailable("no server"), OutcomeUnknown("it broke")]
    break_shards(dict(zip(dict.fromkeys(one.queue for one in taken), [*errors, *errors], strict=True)))

    with pytest.raises(OutcomeUnknown):
        mail.commit_many(taken)
