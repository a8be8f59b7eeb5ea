"""A join waits for the ends of several tasks and then enqueues a task.

A task of a flow has a field `then`, opaque to the server: whom to tell of its end. The script that ends it leaves word
of it in the outbox of its tag, the relay takes it to the joins, and a join whose rule is met enqueues its task in the
step in which the last member arrives; a large one in the last of the steps that collect what its members brought. Each
of these steps may be repeated at any time and changes nothing then.

The hash of a join has these fields:

=================== ==========================================================================================
field               content
=================== ==========================================================================================
rule                `success`: fires when all members succeeded; `complete`: when all ended, whatever how; `dead`: when
                    the first died; `pass`: tells its own `then` when all ended, with the array of their results;
                    `tally`: only counts
total, ttl_ms       how many members there are; how long it lives after the last arrival
m0, m1, ...         members that ended: outcome, a colon, result; `@<pieces>:<bytes>` for one that came in pieces
m0.0, m0.1, ...     the pieces of a result that a large group passed on (see lua/join_arrive_part.lua)
succeeded, dead, cancelled   how many ended so; a death is replaced when the task is put back and ends otherwise
results             absent: the results are those of the members; `[]`: none; `*`: the array that its one member brings
id, priority, due, names, f:<name>   the prepared task: `due` as in lua/enqueue.lua, names of the fields of its hash
                    and their values; `f:then` also of `pass`
bytes               how long the large results among them are together, pieces included
gathered            when it is there the rule is met and nothing arrives any more: results and outcomes of so many
                    members are collected in `join:<id>:collected` (see lua/join_collect.lua)
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
    """Where a join is: a queue whose hash tag it has (that of its task, if it has one), and its id."""

    queue: str
    join: str


class Arrival(NamedTuple):
    """The recipient of an end: a join, and the member of it that ended."""

    queue: str
    join: str
    member: int


class FlowMember(NamedTuple):
    """A task of a flow as its tally describes it, for people who look at the flow. `after` and `then`: (number of the
    first, how many) of the steps before and behind it; of a callback, `after` are those that it waits for."""

    queue: str
    id: str
    type: str
    after: tuple[int, int] = (0, 0)
    then: tuple[int, int] = (0, 0)
    rule: str = ""
    """Of a callback: success, complete or dead."""


class Ended(NamedTuple):
    """An entry of an outbox: an end to deliver to a join. `onward` is the `then` of the task."""

    tag: str
    outcome: str
    onward: bytes
    result: bytes


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A join as it is prepared. `task` carries its own `then`; `onward` is that of a `pass`."""

    id: str
    queue: str
    rule: Rule
    total: int
    ttl_ms: int
    task: Task | None = None
    onward: bytes = b""
    results: bytes = b""
    shown: Sequence[str | int | float | bytes] = ()
    """Of a tally: fields and values for people who look at the flow."""
    flow: str = ""
    """Of the task of a callback, which arrives at no tally: the id of its flow."""

    @property
    def place(self) -> JoinRef:
        """Where it is."""
        return JoinRef(self.queue, self.id)


_arrivals = msgspec.json.Decoder(list[Arrival])


def write_onward(arrivals: Iterable[Arrival]) -> bytes:
    """The field `then`."""
    return msgspec.json.encode(list(arrivals))


def read_onward(raw: bytes) -> list[Arrival]:
    """The joins to notify. Raises ValueError for a damaged field."""
    return _arrivals.decode(raw)
