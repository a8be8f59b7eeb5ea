"""Routes a batch of calls to the nodes of a cluster: which node gets a call, whether it is sent again, its reply.

Invariants: a call goes to the node of its hash tag; calls of one slot keep their order; a call that a node refused
before it did anything is sent again; a call that may have been applied is sent again only when it is repeatable. This
module does no I/O, so the drivers for threads and for asyncio share it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from jobrunner.broker.call import Call, command, key_of, may_repeat, told_again
from jobrunner.broker.cluster import Cluster
from jobrunner.broker.redis_errors import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ResponseError,
    SlotNotServed,
    TryAgainError,
)
from jobrunner.broker.slots import slot_of
from jobrunner.broker.topology import Address
from jobrunner.clock import since_boot
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerError, ServerRefused, ServerUnavailable

Troubles = dict[Address | None, Exception]
"""Errors by node; None stands for the slots that no node serves, and for a cluster of which no node answers."""
_MOST_HOPS = 8
_AWAY = "non local key"
"""The error of a script that uses a key of another node, or a key that is missing while its slot is being moved."""
_TOO_LATE = "the connection broke, and it is too late to send the call again; it was applied or it was not"
_ASKING: Call[Any] = command("ASKING", read=lambda reply: reply)


@dataclass(frozen=True, slots=True)
class _CallPart:
    """Call number `index`, or its share for the keys at `places`, or for one node (`address`)."""

    index: int
    call: Call[Any]
    slot: int | None
    places: tuple[int, ...] = ()
    address: Address | None = None
    asking: bool = False
    sent_at: float | None = None
    """The instant at which the part was first sent, if it may have been applied."""
    failed_at: Address | None = None
    """The node that did not answer it, or is not ready."""


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """The calls for one node in one exchange."""

    address: Address
    parts: tuple[_CallPart, ...]
    calls: tuple[Call[Any], ...]
    asking: bool


class ClusterBatch:
    """The state of one batch. `groups` returns the calls to send, `take` and `failed` take the replies, until no call
    is `open`.

    `troubles` are the errors for which open calls have to wait before they are sent again; empty when they need not.
    """

    def __init__(self, calls: Sequence[Call[Any]], cluster: Cluster, confirmation: Call[None] | None) -> None:
        self._cluster = cluster
        self._confirmation = confirmation if confirmation is not None and calls[-1] is confirmation else None
        wanted = calls if self._confirmation is None else calls[:-1]
        self._replies: list[Any] = [_no_reply(call) for call in wanted]
        self._confirmed: list[Any] = []
        self._open = [part for index, call in enumerate(wanted) for part in _parts_of(index, call)]
        self._answered = 0
        self._hops = 0
        self._sent_at = 0.0
        self.troubles: Troubles = {}

    @property
    def open(self) -> bool:
        """Whether anything is still to be sent."""
        return bool(self._open)

    def groups(self) -> list[NodeBatch]:
        """The calls to send now, one group for each node. Calls of a slot without a node stay open."""
        by_node: dict[tuple[Address, bool], list[_CallPart]] = {}
        self._sent_at = since_boot()
        wanted, self._open, self.troubles = [*self._all_open()], [], {}
        for part in wanted:
            try:
                by_node.setdefault((part.address or self._node_of(part), part.asking), []).append(part)
            except SlotNotServed as error:
                self.troubles[None] = error
                self._open.append(replace(part, failed_at=None))
        return [self._group(address, parts, asking) for (address, asking), parts in by_node.items()]

    def take(self, group: NodeBatch, replies: list[Any]) -> None:
        """Takes the replies of a node."""
        if down := next((reply for reply in replies if isinstance(reply, ClusterDownError)), None):
            self._cluster.failed(group.address, down)  # it may be cut off from the others, which have replaced it
        else:
            self._cluster.answered(group.address)
        confirmed = replies.pop() if self._confirmation is not None else None
        done = 0
        for part, reply in zip(group.parts, replies[1::2] if group.asking else replies, strict=True):
            if isinstance(reply, BusyLoadingError) and _is_needed(part.call):
                self._open_again(part, reply, group.address)
            elif not (isinstance(reply, ResponseError) and self._goes_again(part, reply, group.address)):
                self._settle(part, reply)
                done += 1
        if self._confirmation is not None and done:  # a node that applied nothing, as a replica by now, cannot confirm
            self._confirmed.append(confirmed)

    def failed(self, group: NodeBatch, error: ServerError) -> None:
        """Takes the error of a node: out of reach, a broken connection, or a refusal of the user by this node alone."""
        self._cluster.failed(group.address, error.__cause__ or error)
        was_sent = isinstance(error, OutcomeUnknown)
        may_go_again = isinstance(error, ServerUnavailable) or (was_sent and may_repeat(group.calls))
        if isinstance(error, ServerRefused):  # a node that does not know the user yet counts as away
            error = ServerUnavailable(str(error))
        for part in group.parts:
            if may_go_again and _is_needed(part.call):
                cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
                sent_at = self._sent_at if was_sent and part.sent_at is None else part.sent_at
                self._open_again(replace(part, sent_at=sent_at), cause, group.address)
            else:
                self._settle(part, _given_up(part, error))

    def give_up(self, error: JobrunnerError, of_nodes: Mapping[Address | None, JobrunnerError] | None = None) -> None:
        """Ends the batch when the time is up: open calls fail with the error of the node that did not answer them, else
        with `error`; with an unknown outcome for a call that was sent and must be answered. Raises the first error when
        no call was answered, an unknown outcome before others."""
        failed, self._open, by_node = self._open, [], of_nodes or {}
        errors = [_given_up(part, by_node.get(part.failed_at, error)) for part in failed]
        if not self._answered:
            raise next((one for one in errors if isinstance(one, OutcomeUnknown)), errors[0] if errors else error)
        for part, told in zip(failed, errors, strict=True):
            self._settle(part, told)

    def replies(self) -> list[Any]:
        """A reply or an error for each call, in order. Where several nodes confirmed, the weakest confirmation
        counts."""
        if self._confirmation is None:
            return self._replies
        refusals = [reply for reply in self._confirmed if isinstance(reply, Exception)]
        return [*self._replies, refusals[0] if refusals else min(self._confirmed, default=0)]

    def _all_open(self) -> Iterator[_CallPart]:
        for part in self._open:
            if part.sent_at is not None and part.call.repeat_s < self._sent_at - part.sent_at:
                self._settle(part, OutcomeUnknown(_TOO_LATE))
            elif part.call.everywhere:
                self._replies[part.index] = []
                yield from (replace(part, address=address) for address in self._cluster.primaries())
            else:
                yield part

    def _node_of(self, part: _CallPart) -> Address:
        return self._cluster.any_primary() if part.slot is None else self._cluster.node_of(part.slot)

    def _group(self, address: Address, parts: list[_CallPart], asking: bool) -> NodeBatch:
        calls = [one for part in parts for one in ((_ASKING, part.call) if asking else (part.call,))]
        if self._confirmation is not None:
            calls.append(self._confirmation)
        return NodeBatch(address, tuple(parts), tuple(calls), asking)

    def _goes_again(self, part: _CallPart, reply: ResponseError, asked: Address) -> bool:
        """Whether the call is to be sent again: the node applied nothing, or the call is repeatable."""
        if isinstance(reply, AskError) and part.slot is not None:  # and so MovedError
            return self._goes_elsewhere(part, part.slot, reply, asked)
        if isinstance(reply, TryAgainError | ClusterDownError) or (_AWAY in str(reply) and part.call.repeatable):
            return self._waits(part, reply)
        return False

    def _goes_elsewhere(self, part: _CallPart, slot: int, reply: AskError, asked: Address) -> bool:
        address = (reply.host or asked[0], reply.port)
        if isinstance(reply, MovedError):
            self._cluster.note(slot, address)
            self._hops += 1
            if self._hops > _MOST_HOPS * len(self._replies):
                return self._waits(part, reply)
            self._open.append(replace(part, address=None, asking=False))
        elif part.call.script is None:
            self._open.append(replace(part, address=address, asking=True))
        else:
            # A script touches more keys than it declares, and the importing node would treat keys that it does not have
            # yet as missing. So the script waits until the slot has been moved.
            return self._waits(part, reply)
        return True

    def _waits(self, part: _CallPart, reply: ResponseError) -> bool:
        self._cluster.is_stale = True
        self._open_again(part, SlotNotServed(f"slot {part.slot} is being moved or has no node ({reply})"), None)
        return True

    def _open_again(self, part: _CallPart, trouble: Exception, node: Address | None) -> None:
        self.troubles[node] = trouble
        self._goes_anew(replace(part, failed_at=node))

    def _goes_anew(self, part: _CallPart) -> None:
        if part.call.everywhere and any(one.index == part.index for one in self._open):
            return  # it goes to all primaries again
        self._open.append(replace(part, address=None, asking=False))

    def _settle(self, part: _CallPart, reply: Any) -> None:
        self._answered += not isinstance(reply, JobrunnerError) or isinstance(reply, OutcomeUnknown)
        reply = reply if part.sent_at is None else told_again(part.call, reply)
        index = part.index
        if part.places:
            values = [str(reply).encode()] * len(part.places) if isinstance(reply, Exception) else reply
            for place, answer in zip(part.places, values, strict=True):
                self._replies[index][place] = answer
        elif part.call.everywhere:
            self._replies[index] = _more(self._replies[index], reply, part.call)
        elif isinstance(reply, ResponseError) and _AWAY in str(reply):
            told_by = f"slot {part.slot} was being moved: {reply}"
            self._replies[index] = OutcomeUnknown(f"{told_by}; it was applied, in part, or not")
        else:
            self._replies[index] = reply


def _given_up(part: _CallPart, error: JobrunnerError) -> JobrunnerError:
    if part.sent_at is None or not part.call.must_be_answered:
        return error
    return OutcomeUnknown(f"the connection broke; the call was applied or it was not; since then: {error}")


def _is_needed(call: Call[Any]) -> bool:
    """Whether a call needs the answer of the node that it was sent to."""
    return call.needs_all or not call.everywhere


def _more(before: Any, reply: Any, call: Call[Any]) -> Any:
    """The replies of primaries with one more. An error counts while no primary has answered, or where all have to."""
    if isinstance(reply, Exception):
        return reply if call.needs_all else before or reply
    if call.needs_all and isinstance(before, Exception):
        return before
    return [*before, reply] if isinstance(before, list) else [reply]


def _no_reply(call: Call[Any]) -> list[None] | None:
    return [None] * len(call.keys) if call.divisible else None


def _parts_of(index: int, call: Call[Any]) -> list[_CallPart]:
    if call.script is None:
        key = key_of(call)
        return [_CallPart(index, call, None if key is None else slot_of(key))]
    call = structs.replace(call, script=call.script.on_cluster, head=None)
    if not call.divisible:
        return [_CallPart(index, call, slot_of(call.keys[0]))]
    by_slot: dict[int, list[int]] = {}
    for place, key in enumerate(call.keys):
        by_slot.setdefault(slot_of(key), []).append(place)
    return [
        _CallPart(index, structs.replace(call, keys=tuple(call.keys[place] for place in places)), slot, tuple(places))
        for slot, places in by_slot.items()
    ]
