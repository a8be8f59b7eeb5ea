"""Flows for pages and commands: counts, steps with state and result, callbacks; read from the tally of a flow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from jobrunner.broker.broker import run_each_or_errors
from jobrunner.broker.calls import flows, tasks
from jobrunner.broker.keys import tag_of_id
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.flow import STEPS_AT_ONCE
from jobrunner.clock import read_instant
from jobrunner.errors import JobrunnerError
from jobrunner.join import FlowMember, read_onward
from jobrunner.task_record import TaskRecord

_COUNTS = ("total", "succeeded", "dead", "cancelled", "sent_ms")
_MOST_CALLBACKS = 6
_LONGEST_RESULT = 2000
NOT_BEGUN = "not begun"
MAYBE_ENDED = "not begun, or no longer kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStep:
    """A task of a flow. `state` is `not begun` for a step that waits for others, or whose record is gone; `not begun,
    or no longer kept` for a callback without a record whose steps may have ended."""

    number: int
    """The number of the step, from 0; -1 for a callback."""
    member: FlowMember
    state: str
    result: str = ""
    """The result that the step passed on, formatted by `render` of `read_flow`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """A flow: the outcomes of its tasks so far, without callbacks, and a page of its steps."""

    id: str
    total: int
    succeeded: int
    dead: int
    cancelled: int
    sent: datetime | None
    first: int = 0
    steps: Sequence[FlowStep] = ()
    callbacks: Sequence[FlowStep] = ()
    is_described: bool = True
    """False for a flow of an older version, which did not store its steps."""
    problem: str = ""
    """Why the flow cannot be read, such as a cluster node that is away; then only its id is known."""

    @property
    def pending(self) -> int:
        """The number of tasks that have not ended."""
        return self.total - self.succeeded - self.dead - self.cancelled


def flow_id_of(record: TaskRecord) -> str:
    """The id of the flow of a task; '' for a task without a flow."""
    if "flow" in record.fields:
        return record.fields["flow"].decode("utf-8", "replace")
    try:
        arrivals = read_onward(record.fields.get("then", b"[]"))
    except ValueError:
        return ""
    return arrivals[-1].join if arrivals else ""


def recent_flows(client: Client, *, first: int = 0, count: int = 20) -> list[FlowView]:
    """Flows among the last thousand with their counts, the last sent first, without forgotten flows."""
    keys = keys_of(client)
    ids = [one for one in broker_of(client).run(flows.recent_flows(keys, first, count)) if tag_of_id(one)]
    calls = [flows.described(keys.queue(tag_of_id(one) or ""), one, _COUNTS) for one in ids]
    found = run_each_or_errors(broker_of(client), calls)
    return [
        _unread(one, fields) if isinstance(fields, JobrunnerError) else _flow(one, fields)
        for one, fields in zip(ids, found, strict=True)
        if isinstance(fields, JobrunnerError) or fields[0] is not None
    ]


def has_flows_from(client: Client, first: int) -> bool:
    """Whether the list of the last thousand flows has an entry at position `first`, forgotten or not."""
    return bool(broker_of(client).run(flows.recent_flows(keys_of(client), first, 1)))


def read_flow(
    client: Client, flow_id: str, *, first: int = 0, count: int = 20, render: Callable[[bytes], str] = lambda _: ""
) -> FlowView | None:
    """A flow with `count` steps from number `first` on, a multiple of `count`; None when it is forgotten or never was.

    `render` formats a stored result, cut to 2000 bytes; b"" stands for no result.
    """
    tag = tag_of_id(flow_id)
    if tag is None:
        return None
    place, run = keys_of(client).queue(tag), broker_of(client).run
    chunk = first // STEPS_AT_ONCE
    *counts, callbacks, steps = run(flows.described(place, flow_id, (*_COUNTS, "callbacks", f"steps:{chunk}")))
    if counts[0] is None:
        return None
    here = _members(steps)[first - chunk * STEPS_AT_ONCE :][:count]
    ended = run(flows.members(place, flow_id, range(first, first + len(here)))) if here else []
    known = {number: one for number, one in zip(range(first, first + len(here)), ended, strict=True) if one is not None}
    called = _members(callbacks)[:_MOST_CALLBACKS]
    final = {number: one for number, one in known.items() if one[0] != "dead"}
    asked = [*(one for n, one in enumerate(here, first) if n not in final), *called]
    states = dict(zip((one.id for one in asked), _states(client, asked), strict=True))

    def state(number: int, member: FlowMember) -> str:
        if number in final:
            return final[number][0]
        ended = known[number][0] if number in known else ""
        return states[member.id] or ended or NOT_BEGUN

    flow = _flow(flow_id, counts)
    return replace(
        flow,
        first=first,
        steps=[
            FlowStep(number=n, member=one, state=state(n, one), result=render(_stored(known.get(n))))
            for n, one in enumerate(here, first)
        ],
        callbacks=[
            FlowStep(number=-1, member=one, state=states[one.id] or _without_record(flow, one)) for one in called
        ],
        is_described=steps is not None or first > 0,
    )


def _without_record(flow: FlowView, callback: FlowMember) -> str:
    """The state of a callback without a record, by its rule and the counts of the flow."""
    if callback.rule == "dead":
        may_have_begun = flow.dead > 0
    else:
        failed = flow.dead + flow.cancelled if callback.rule == "success" else 0
        may_have_begun = callback.after != (0, flow.total) or not (flow.pending or failed)
    return MAYBE_ENDED if may_have_begun else NOT_BEGUN


def _unread(flow_id: str, error: JobrunnerError) -> FlowView:
    return FlowView(id=flow_id, total=0, succeeded=0, dead=0, cancelled=0, sent=None, problem=str(error))


def _flow(flow_id: str, counts: Sequence[bytes | None]) -> FlowView:
    total, succeeded, dead, cancelled = (int(one or 0) for one in counts[:4])
    return FlowView(
        id=flow_id, total=total, succeeded=succeeded, dead=dead, cancelled=cancelled, sent=read_instant(counts[4])
    )


def _stored(ended: tuple[str, bytes] | None) -> bytes:
    return b"" if ended is None else ended[1][:_LONGEST_RESULT]


def _members(raw: bytes | None) -> list[FlowMember]:
    try:
        return msgspec.json.decode(raw or b"[]", type=list[FlowMember])
    except msgspec.MsgspecError:
        return []


def _states(client: Client, asked: Sequence[FlowMember]) -> list[str]:
    calls = [tasks.show(keys_of(client), one.id, queue=one.queue) for one in asked]
    found = broker_of(client).run_each(calls) if calls else []
    return [str(one.state) if isinstance(one, TaskRecord) else "" for one in found]
