"""Pushes any number of items in slices: the client encodes the next slice while the server adds the last one."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call_stream import CallStream, Round
from jobrunner.client.operations.capacity import registering_again
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.queue import OnClash, Progress, batches_of, push_call, tell_clashes
from jobrunner.client.outgoing import BatchedCall, forget_unknown, remember_unknown
from jobrunner.task import Task


def push_all(
    broker: Broker,
    ref: QueueRef,
    payloads: Iterable[Any],
    on_clash: OnClash,
    progress: Progress | None,
    *,
    may_go_ahead: Callable[[Sequence[Task]], bool],
    push: Callable[[Sequence[Task]], object],
) -> int:
    """Returns how many items were pushed. Slices that may not be pipelined are pushed alone, by `push`. Raises the
    errors of a push."""
    pushed = 0

    def added(tasks: Sequence[Task], replies: Sequence[Any] = ()) -> None:
        nonlocal pushed
        forget_unknown(tasks)
        run_operation(broker, registering_again([ref.keys] * len(replies), replies))
        for flags in replies:
            tell_clashes(tasks, flags, on_clash)
        pushed += len(tasks)
        call.added(tasks)
        if progress is not None:
            progress(pushed)

    with BatchedCall() as call, CallStream(broker) as stream:
        for tasks in batches_of(ref, payloads):
            if may_go_ahead(tasks):
                calls = [push_call(ref, ref.keys, tasks)]
                stream.send(Round(calls, partial(added, tasks), partial(remember_unknown, tasks)))
            else:
                stream.drain()
                push(tasks)
                added(tasks)
    return pushed
