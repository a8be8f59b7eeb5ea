"""A join waits for the ends of several tasks and then enqueues a task.

A task of a flow has a field `then`, opaque to the server: the joins to notify of its end. The script that ends the task
writes an entry into the outbox of its tag, the relay delivers it to the joins, and a join whose rule is met enqueues
its task in the step in which the last member arrives; a large join in the last of the steps that collect its members'
results. Each of these steps may be repeated at any time without effect.

The hash of a join has these fields:

=================== ==========================================================================================
field               content
=================== ==========================================================================================
rule                `success`: fires when all members succeeded; `complete`: when all ended, in any way; `dead`: when
                    the first died; `pass`: notifies its own `then` when all ended, with the array of their results;
                    `tally`: only counts
total, ttl_ms       how many members there are; how long it lives after the last arrival
m0, m1, ...         members that ended: outcome, a colon, result; `@<pieces>:<bytes>` for a result in pieces
m0.0, m0.1, ...     the pieces of a result that a large group passed on (see lua/join_arrive_part.lua)
succeeded, dead, cancelled   members by outcome; a death is replaced when the task is requeued and ends otherwise
results             absent: the results are those of the members; `[]`: none; `*`: the array of its only member
id, priority, due, names, f:<name>   the prepared task: `due` as in lua/enqueue.lua, names of the fields of its hash
                    and their values; `f:then` also of `pass`
bytes               total length of the large results among them, pieces included
gathered            present once the rule is met and nothing arrives any more: how many members' results and outcomes
                    are collected in `join:<id>:collected` (see lua/join_collect.lua)
steps:<n>           of a tally: the tasks of the flow, a thousand in each field, JSON arrays (see FlowMember)
callbacks, sent_ms  of a tally: the first hundred tasks of callbacks, as in `steps:0`; when the flow was sent
fired               id of the task, once it is enqueued, or how the join ended without one; nothing arrives after that
=================== ==========================================================================================
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from jobrunner.task import Task

Rule = Literal["success", "complete", "dead", "pass", "tally"]
NO_RESULTS = b"[]"
AS_BROUGHT = b"*"


class JoinRef(NamedTuple):
    """The reference to a join: a queue with its hash tag (the queue of its task, if it has one), and its id."""

    queue: str
    join: str


class Arrival(NamedTuple):
    """The recipient of an end: a join, and the member of it that ended."""

    queue: str
    join: str
    member: int


class FlowMember(NamedTuple):
    """The description of a task of a flow in its tally, for dashboard and CLI. `after` and `then`: (number of the
    first, count) of the steps before and after it; for a callback, `after` are the steps that it waits for."""

    queue: str
    id: str
    type: str
    after: tuple[int, int] = (0, 0)
    then: tuple[int, int] = (0, 0)
    rule: str = ""
    """The rule of a callback: success, complete or dead."""


class Ended(NamedTuple):
    """An entry of an outbox: an end to deliver to a join. `onward` is the `then` of the task."""

    tag: str
    outcome: str
    onward: bytes
    result: bytes


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A join to prepare. `task` carries its own `then`; `onward` is the `then` of a `pass`."""

    id: str
    queue: str
    rule: Rule
    total: int
    ttl_ms: int
    task: Task | None = None
    onward: bytes = b""
    results: bytes = b""
    shown: Sequence[str | int | float | bytes] = ()
    """In a tally: fields and values for dashboard and CLI."""
    flow: str = ""
    """For the task of a callback, which arrives at no tally: the id of its flow."""

    @property
    def place(self) -> JoinRef:
        """The reference to the join."""
        return JoinRef(self.queue, self.id)


_arrivals = msgspec.json.Decoder(list[Arrival])


def write_onward(arrivals: Iterable[Arrival]) -> bytes:
    """Encodes the field `then`."""
    return msgspec.json.encode(list(arrivals))


def read_onward(raw: bytes) -> list[Arrival]:
    """The joins to notify. Raises ValueError for a damaged field."""
    return _arrivals.decode(raw)
