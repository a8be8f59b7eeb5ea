"""Flows in the form in which they are sent, and the operations that FlowHandle and AsyncFlowHandle share.

Invariant: joins exist before the first task does, so that no end of a task is lost and nothing fires early. All ids are
made before anything is sent, so a task or join that is sent twice exists once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec import structs

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import flows, queues, tasks
from jobrunner.broker.calls.new_tasks import WAIT_ADVICE
from jobrunner.broker.calls.server import SEND_AGAIN
from jobrunner.broker.keys import Keys, check_id, tag_of_id
from jobrunner.broker.resp import Arg
from jobrunner.client.encryption import encrypted_task
from jobrunner.client.flow_results import sources
from jobrunner.client.operations.enqueue import EnqueueBatch, batches
from jobrunner.client.operations.flow_relay import relaying
from jobrunner.client.operations.hints import LONGEST_PAUSE_S, PollPause
from jobrunner.client.operations.operation import Durable, EachReply, InThread, Operation, ask
from jobrunner.client.operations.task import KEEP_CANCELLED_MS
from jobrunner.clock import monotonic, unix_ms
from jobrunner.codec import decode
from jobrunner.encryption.cipher import EncryptionContext, PayloadEncryption, decrypt_result
from jobrunner.errors import (
    InvalidName,
    JobrunnerError,
    OutcomeUnknown,
    PayloadStoreError,
    PayloadTooLarge,
    QueueFull,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskGone,
    TaskTimeout,
)
from jobrunner.join import Ended, FlowMember, Join, JoinRef
from jobrunner.payload_store.stored_payloads import without_store
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import Task, check_size

_STOPPED = {"ok", "posted", "reserved", "noted", "unknown"}
"""Replies to the calls of `_stop` that stopped a step. 'unknown' is the reply to a call that was sent again, as its
first reply was lost: most likely it stopped one."""
_AT_ONCE = 500
STEPS_AT_ONCE = 1000
"""The number of steps in one field of a tally."""
MOST_CALLBACKS = 100
Noted = tuple[str, bytes]
"""The end of a member: outcome and result."""


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """How many tasks a flow has, callbacks not counted, and how they ended so far.

    A step that cannot begin, because a step before it died or was cancelled, counts as ended like that step.
    """

    total: int
    succeeded: int
    dead: int
    cancelled: int

    @property
    def pending(self) -> int:
        """How many tasks have not ended."""
        return self.total - self.succeeded - self.dead - self.cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A flow ready to send. `steps` are its tasks in the order of writing, without callbacks; `heads` are the tasks
    that start at once, `later` the joins of the other steps. `signals` replace the tasks of empty groups. `shape` tells
    which steps have the results: the number of a step, or a list of shapes."""

    tally: JoinRef
    joins: Sequence[Join] = field(repr=False)
    heads: Sequence[Task] = field(repr=False)
    steps: Sequence[Task] = field(repr=False)
    later: Sequence[JoinRef] = field(repr=False)
    signals: Sequence[Ended] = field(repr=False)
    shape: Any = field(repr=False)
    awaited: Sequence[int] = field(repr=False)
    """The steps after which the flow has ended: those of `shape`, or those before a group without steps."""
    members: Sequence[FlowMember] = field(repr=False, default=())
    """The steps as rendered in the dashboard and CLI, in the order of `steps`."""
    callbacks: Sequence[FlowMember] = field(repr=False, default=())

    @property
    def prepared(self) -> list[Task]:
        """All tasks that are sent: the heads, then those that joins hold until they fire."""
        return [*self.heads, *(join.task for join in self.joins if join.task is not None)]

    def with_tasks(self, tasks: Sequence[Task]) -> "Flow":
        """The same flow with these tasks instead of `prepared`; they have the same ids."""
        held = iter(tasks[len(self.heads) :])
        joins = [join if join.task is None else structs.replace(join, task=next(held)) for join in self.joins]
        return replace(self, heads=tasks[: len(self.heads)], joins=joins)

    def check(self, limit: int) -> None:
        """Raises PayloadTooLarge for payloads and lists of joins above a client's payload limit."""
        prepared = self.prepared
        for task in prepared:
            check_size(task.payload, limit)
        for onward in (*(task.then or b"" for task in prepared), *(join.onward for join in self.joins)):
            if len(onward) > limit:
                raise PayloadTooLarge(
                    f"too many tasks wait for one: their list has {len(onward)} bytes, the limit is {limit}; "
                    "make the group behind it smaller, or raise payload_limit"
                )

    @property
    def id(self) -> str:
        """The id of the whole flow."""
        return self.tally.join

    def blamed(self, noted: Mapping[int, Noted]) -> tuple[Task, str] | None:
        """The first step that died or was cancelled, so that the results will not come, and its outcome."""
        ends = ((self.steps[number], outcome) for number, (outcome, _) in sorted(noted.items()))
        return next(((step, outcome) for step, outcome in ends if outcome in ("dead", "cancelled")), None)

    def stopped(self, step: Task, outcome: str, error: str = "") -> TaskError:
        """The error for a flow that this step stopped; `error` is the step's own, from its record."""
        blamed = f"flow {self.id}: task {step.id} ({step.type})"
        if outcome == "cancelled":
            return TaskCancelled(f"{blamed} was cancelled")
        why = f": {error.splitlines()[0]}; " if error else "; its record says why, and "
        return TaskFailed(f"{blamed} is dead{why}requeued it takes the flow on")


@dataclass(slots=True)
class Sending:
    """The state of sending a flow, for a caller that may abandon it midway."""

    has_begun: bool = False
    """Whether its first steps may be on the server."""
    may_run: bool = False
    """Whether steps may run although the next call is not sent: the server took some, or a signal that starts them,
    which may be applied without a reply."""
    is_given_up: bool = False
    """Set by the caller: nothing more of the flow is sent."""


def send(
    flow: Flow, keys: Keys, encryption: PayloadEncryption | None, limit: int, sending: Sending | None = None
) -> Operation[None]:
    """Sends joins first, then tasks. Raises PayloadTooLarge before anything is sent; QueueFull, PayloadStoreUnavailable
    and ServerRefused, after which no step begins any more and running steps are asked to stop; other ServerErrors, of
    which ServerUnavailable means that no step was sent. An OutcomeUnknown says whether some step may run.

    After an error no join fires: it waits for members that never arrive, and expires.
    """
    flow.check(limit)
    sending = sending or Sending()
    try:
        yield from _send(flow, keys, encryption, limit, sending)
    except OutcomeUnknown as error:
        if sending.has_begun:
            raise _may_run(flow, error) from error
        problem = str(error).removesuffix(SEND_AGAIN)
        raise OutcomeUnknown(f"{problem}; no step of the flow was sent and none will run: enqueue it again") from error
    except ServerUnavailable as error:
        if sending.may_run:
            raise _may_run(flow, error) from error
        raise
    except (QueueFull, PayloadStoreError, ServerRefused) as error:
        try:
            yield from take_back(flow, keys)
        except ServerError:
            if sending.may_run:
                raise _may_run(flow, error) from error
        if isinstance(error, QueueFull):
            error.args = (str(error).replace(WAIT_ADVICE, ""),)  # which a flow refuses
        raise


def _may_run(flow: Flow, error: JobrunnerError) -> OutcomeUnknown:
    problem = str(error).removesuffix(SEND_AGAIN)
    return OutcomeUnknown(
        f"{problem}; steps of flow {flow.id} may run, and enqueued again they run twice: look at the flow first"
    )


def _send(
    flow: Flow, keys: Keys, encryption: PayloadEncryption | None, limit: int, sending: Sending
) -> Operation[None]:
    names = {task.queue for task in flow.prepared}
    if names:
        yield queues.register(keys, sorted(names))
    inline = without_store(encryption)  # later steps have no hash yet to protect stored objects from a sweep
    joins = flow.joins if inline is None else _encrypted(flow.joins, keys, inline)
    shown = list(_described(flow))
    joins = [structs.replace(joins[0], shown=shown[0]), *joins[1:]]
    prepared = [flows.prepare(keys.queue(join.queue), join) for join in joins]
    for calls in in_slices([*prepared, *flows.note_flow(keys, flow.id, unix_ms())], _AT_ONCE):
        yield Durable(list(calls))
    if shown[1:]:  # after the tally: an earlier HSET would look like a prepared tally
        place = keys.queue(flow.tally.queue)
        yield Durable([flows.describe(place, flow.id, fields) for fields in shown[1:]])
    for heads in batches(flow.heads, limit, encryption=encryption):
        if sending.is_given_up:
            return
        sending.has_begun = True
        made = partial(EnqueueBatch, keys, encryption, heads, limit, names)
        batch = made() if encryption is inline else (yield InThread(made))
        yield Durable([call for _, call in batch.written])
        sending.may_run = True
    if flow.signals and not sending.is_given_up:
        sending.has_begun = sending.may_run = True
        yield from _confirmed(relaying(keys, ended=flow.signals))


def take_back(flow: Flow, keys: Keys) -> Operation[None]:
    """Ends a flow of which a part could not be sent: none of its steps begins any more, and no callback fires. A step
    that ran and died meanwhile keeps its error."""
    joins = [join.place for join in flow.joins]
    yield from _stop(keys, joins, flow.prepared)  # a join may have fired: a quick worker ended a head
    yield from relaying(keys, tags={keys.queue(place.queue).tag for place in joins})


def _confirmed(relay: Operation[Any]) -> Operation[None]:
    """Carries out a relay of signals with confirmed round trips; raises the first error. Signals are in no outbox, so
    no leader would repeat an arrival that was refused or lost."""
    reply: Any = None
    with suppress(StopIteration):
        while True:
            step = relay.send(reply)
            reply = yield Durable(step.calls) if isinstance(step, EachReply) else step


def _described(flow: Flow) -> Iterator[list[Arg]]:
    """The description of the flow for dashboard and CLI, as fields of its tally: a thousand steps at a time."""
    first: list[Arg] = ["sent_ms", unix_ms(), "callbacks", msgspec.json.encode(flow.callbacks[:MOST_CALLBACKS])]
    for at in range(0, max(len(flow.members), 1), STEPS_AT_ONCE):
        steps = msgspec.json.encode(flow.members[at : at + STEPS_AT_ONCE])
        yield [*(first if at == 0 else ()), f"steps:{at // STEPS_AT_ONCE}", steps]


def _encrypted(joins: Sequence[Join], keys: Keys, encryption: PayloadEncryption) -> list[Join]:
    """The joins with the payloads of their tasks encrypted, and bound to the results that these tasks will get."""
    after = sources(joins)

    def encrypted(join: Join) -> Join:
        if join.task is None:
            return join
        queue = keys.queue(join.queue)
        return structs.replace(join, task=encrypted_task(encryption, queue, join.task, after=after.get(join.id, b"")))

    return [encrypted(join) for join in joins]


def cancel(flow: Flow, keys: Keys) -> Operation[bool]:
    """Keeps further steps from beginning, then cancels those that began; dead steps keep their error. Returns whether
    any step was stopped."""
    stopped = yield from _stop(keys, flow.later, flow.steps)
    yield from relaying(keys, tags={keys.queue(task.queue).tag for task in flow.steps})
    return stopped


def _stop(keys: Keys, joins: Iterable[JoinRef], begun: Iterable[Task]) -> Operation[bool]:
    """Keeps the steps behind these joins from beginning, then cancels the tasks that may have begun, except dead tasks.
    Returns whether any step was stopped."""
    abandoned = [flows.abandon(keys.queue(place.queue), place.join) for place in joins]
    cancelled = [
        tasks.cancel(keys.queue(task.queue), task.id, keep_ms=KEEP_CANCELLED_MS, leave="dead") for task in begun
    ]
    words: set[str] = set()
    for calls in in_slices([*abandoned, *cancelled], _AT_ONCE):
        words.update((yield list(calls)))
    return not _STOPPED.isdisjoint(words)


def progress(flow_id: str, keys: Keys) -> Operation[FlowProgress]:
    """Returns how the flow's tasks ended so far. Raises TaskGone; InvalidName for an id that no flow can have."""
    tag = tag_of_id(check_id(flow_id))
    if tag is None:
        raise InvalidName(f"{flow_id!r} is not the id of a flow; FlowHandle.id has it")
    found = yield from ask(flows.tally(keys.queue(tag), flow_id))
    if found is None:
        raise _gone(flow_id)
    return FlowProgress(found.total, found.succeeded, found.dead, found.cancelled)


def _gone(flow_id: str) -> TaskGone:
    return TaskGone(f"no flow {flow_id}: it ended, or waited, longer ago than its ttl; see enqueue(ttl=…)")


def wait_for_result(
    flow: Flow, keys: Keys, encryption: PayloadEncryption | None, timeout: Duration | None
) -> Operation[Any]:
    """Returns the result, or the results of a group. Raises TaskFailed, TaskCancelled, TaskTimeout, TaskGone,
    EncryptionError."""
    from jobrunner.client.operations.unserved import UNSERVED_AFTER_S, warn_of_unserved  # most programs do not wait

    limit_s = None if timeout is None else seconds(timeout, option="timeout")
    began = monotonic()
    ends = None if limit_s is None else began + limit_s
    noted: dict[int, Noted] = {}
    missing = list(flow.awaited)
    while True:
        ended = yield from _members(flow, keys, missing)
        # A dead step may be requeued between the two reads, so only a success is final; the next turn reads the rest.
        noted.update({number: one for number, one in ended.items() if one[0] == "succeeded"})
        if any(outcome != "succeeded" for outcome, _ in ended.values()):
            blamed = flow.blamed((yield from _members(flow, keys, range(len(flow.steps)))))
            if blamed is not None:
                record = yield from ask(tasks.show(keys, blamed[0].id, queue=blamed[0].queue))
                raise flow.stopped(*blamed, "" if record is None else record.error)
        missing = [number for number in missing if number not in noted]
        if not missing:
            return _read(flow, keys, encryption, flow.shape, noted)
        left = LONGEST_PAUSE_S if ends is None else min(LONGEST_PAUSE_S, ends - monotonic())
        if left <= 0:
            raise TaskTimeout(
                f"flow {flow.id} still waits for {len(missing)} results after {limit_s:g} s; it goes on, ask again"
            )
        if monotonic() - began >= UNSERVED_AFTER_S:
            yield from warn_of_unserved(keys, (step.queue for step in flow.steps))
        yield PollPause(left)


def _members(flow: Flow, keys: Keys, numbers: Sequence[int]) -> Operation[dict[int, Noted]]:
    """Returns the outcome and result of the steps, of these numbers, that have ended. Raises TaskGone."""
    place = keys.queue(flow.tally.queue)
    known, *found = yield [
        flows.tally(place, flow.id),
        *(flows.members(place, flow.id, some) for some in in_slices(numbers, _AT_ONCE)),
    ]
    if known is None:
        raise _gone(flow.id)
    ended = zip(numbers, chain.from_iterable(found), strict=True)
    return {number: one for number, one in ended if one is not None}


def _read(flow: Flow, keys: Keys, encryption: PayloadEncryption | None, shape: Any, noted: Mapping[int, Noted]) -> Any:
    if isinstance(shape, list):
        return [_read(flow, keys, encryption, one, noted) for one in shape]
    step = flow.steps[shape]
    context = EncryptionContext(step.id, step.type, keys.queue(step.queue).tag, then=step.then or b"")
    return decode(decrypt_result(encryption, noted[shape][1], context))
