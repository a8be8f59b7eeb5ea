"""Turns the steps of a flow into the joins and tasks to send.

A flow is laid out from its end to its beginning, as a task carries the joins after it. Every step that does not begin
at once is the task of a join of its own, and its predecessors arrive there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from msgspec.structs import replace as with_fields

from jobrunner.broker.keys import split_queue
from jobrunner.client.operations.flow import Flow
from jobrunner.clock import unix_ms
from jobrunner.errors import UsageError
from jobrunner.join import AS_BROUGHT, NO_RESULTS, Arrival, Ended, Join, JoinRef, Rule, write_onward
from jobrunner.task import Task, new_id

_NO_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One task."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainNode:
    """Steps one after the other, none of which is a chain."""

    nodes: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """Steps side by side; callbacks by rule."""

    nodes: "tuple[Node, ...]"
    callbacks: "tuple[tuple[Any, Node], ...]" = ()


Node: TypeAlias = Leaf | ChainNode | GroupNode


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepStart:
    """The condition for a step to begin: the number of arrivals, and the results that it gets. `now`: only empty groups
    are before it."""

    rule: Rule = "success"
    total: int = 1
    results: bytes = b""
    now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepSlot:
    """The place of a step in the flow: its start (None: at once), the latest delay until then, and the number of its
    first task in the tally (None for callbacks)."""

    start: _StepStart | None
    waits_ms: int
    first: int | None


def lay_out(root: Node, ttl_ms: int) -> Flow:
    """The flow of these steps. Raises UsageError for steps that cannot be in a flow."""
    return _Layout(root, ttl_ms).flow()


class _Layout:
    """The flow under construction."""

    def __init__(self, root: Node, ttl_ms: int) -> None:
        self._root = root
        self._ttl_ms = ttl_ms
        queue = next((leaf.task.queue for leaf in leaves(root, callbacks=True)), _NO_QUEUE)
        self._tally = JoinRef(queue, new_id(split_queue(queue)[0]))
        self._joins: list[Join] = []
        self._heads: list[Task] = []
        self._laid: dict[str, Task] = {}
        self._later: list[JoinRef] = []
        self._signals: list[JoinRef] = []

    def flow(self) -> Flow:
        """The whole flow."""
        self._lay(self._root, (), 0, _StepSlot(start=None, waits_ms=self._ttl_ms, first=0))
        steps = [self._laid[leaf.task.id] for leaf in leaves(self._root)]
        lasts_ms = self._lasts_ms(self._root) + self._ttl_ms
        tally = Join(id=self._tally.join, queue=self._tally.queue, rule="tally", total=len(steps), ttl_ms=lasts_ms)
        return Flow(
            tally=self._tally,
            joins=[tally, *self._joins],
            heads=self._heads,
            steps=steps,
            later=self._later,
            signals=[self._signal(place) for place in self._signals],
            shape=_shape(self._root, 0),
            awaited=_last(self._root, 0),
        )

    def _lay(self, node: Node, behind: Sequence[JoinRef], number: int, slot: _StepSlot) -> list[JoinRef]:
        """Adds a step whose end is arrival `number` at the joins `behind`; returns the joins for its predecessors."""
        if isinstance(node, Leaf):
            return self._lay_task(node, behind, number, slot)
        if isinstance(node, ChainNode):
            return self._lay_chain(node, behind, number, slot)
        if not behind:
            return self._lay_members(node, (), slot)
        results = b"" if node.nodes else NO_RESULTS
        total = len(node.nodes) or (slot.start.total if slot.start else 1)
        through = self._pass(
            behind, number, total, slot.waits_ms + self._lasts_ms(node), _queue_of(node, behind), results
        )
        if not node.nodes and _is_now(slot):
            self._signals.append(through)
        return self._lay_members(node, (through,), slot)

    def _lay_task(self, leaf: Leaf, behind: Sequence[JoinRef], number: int, slot: _StepSlot) -> list[JoinRef]:
        arrivals = [Arrival(*place, number) for place in behind]
        if slot.first is not None:
            arrivals.append(Arrival(*self._tally, slot.first))
        task = with_fields(leaf.task, then=write_onward(arrivals) if arrivals else None)
        self._laid[task.id] = task
        if slot.start is None:
            self._heads.append(task)
            return []
        join = Join(
            id=new_id(split_queue(task.queue)[0]), queue=task.queue, rule=slot.start.rule, total=slot.start.total,
            results=slot.start.results, ttl_ms=slot.waits_ms, task=task,
            flow=self._tally.join if slot.first is None else "",
        )  # fmt: skip
        self._joins.append(join)
        if slot.first is not None:
            self._later.append(join.place)
        if slot.start.now:
            self._signals.append(join.place)
            return []
        return [join.place]

    def _lay_chain(self, chain: ChainNode, behind: Sequence[JoinRef], number: int, slot: _StepSlot) -> list[JoinRef]:
        slots = list(self._slots(chain.nodes, slot))
        last = len(chain.nodes) - 1
        for k in range(last, -1, -1):
            node = chain.nodes[k]
            if k == last:
                behind = self._lay(node, behind, number, slots[k])
            elif isinstance(node, GroupNode):
                if _needs_pass(node, chain.nodes[k + 1]):
                    lasts_ms = slots[k].waits_ms + self._lasts_ms(node)
                    behind = [self._pass(behind, 0, len(node.nodes), lasts_ms, _queue_of(node, behind))]
                behind = self._lay_members(node, behind, slots[k])
            else:
                behind = self._lay(node, behind, 0, slots[k])
        return list(behind)

    def _slots(self, nodes: Sequence[Node], slot: _StepSlot) -> Iterator[_StepSlot]:
        for k, node in enumerate(nodes):
            yield slot
            start = _StepStart(total=len(node.nodes) if isinstance(node, GroupNode) else 1)
            if isinstance(node, GroupNode) and not node.nodes:
                start = replace(slot.start or _StepStart(now=True), results=NO_RESULTS)
            elif k + 1 < len(nodes) and _needs_pass(node, nodes[k + 1]):
                start = _StepStart(results=AS_BROUGHT)
            first = None if slot.first is None else slot.first + count(node)
            slot = _StepSlot(start=start, waits_ms=slot.waits_ms + self._lasts_ms(node), first=first)

    def _lay_members(self, group: GroupNode, behind: Sequence[JoinRef], slot: _StepSlot) -> list[JoinRef]:
        """Adds a group; each member arrives at the joins `behind` under its own number."""
        called = [place for rule, node in group.callbacks for place in self._lay_callback(rule, node, group, slot)]
        if not group.nodes:
            return [] if _is_now(slot) else [*behind, *called]
        entries: list[JoinRef] = []
        first = slot.first
        for number, node in enumerate(group.nodes):
            entries += self._lay(node, [*behind, *called], number, replace(slot, first=first))
            first = None if first is None else first + count(node)
        return entries

    def _lay_callback(self, rule: Rule, node: Node, group: GroupNode, slot: _StepSlot) -> list[JoinRef]:
        waits_ms = slot.waits_ms + self._lasts_ms(group)
        start = _StepStart(rule=rule, total=len(group.nodes))
        if not group.nodes:
            if rule == "dead":
                return []
            before = slot.start or _StepStart(now=True)
            start = replace(before, rule=rule, results=NO_RESULTS)
        if not _begins_with_a_task(node):
            raise UsageError("a callback that begins with an empty group would wait for nobody; leave the group out")
        return self._lay(node, (), 0, _StepSlot(start=start, waits_ms=waits_ms, first=None))

    def _pass(
        self, behind: Sequence[JoinRef], number: int, total: int, ttl_ms: int, queue: str, results: bytes = b""
    ) -> JoinRef:
        """A join that turns the arrivals of a group into one arrival at all joins `behind`, with the list of
        results."""
        onward = write_onward(Arrival(*place, number) for place in behind)
        join = Join(
            id=new_id(split_queue(queue)[0]), queue=queue, rule="pass", total=total, ttl_ms=ttl_ms, onward=onward,
            results=results,
        )  # fmt: skip
        self._joins.append(join)
        return join.place

    def _signal(self, place: JoinRef) -> Ended:
        return Ended(split_queue(place.queue)[0], "succeeded", write_onward([Arrival(*place, 0)]), NO_RESULTS)

    def _lasts_ms(self, node: Node) -> int:
        """The longest duration of a step: for every task its time to live and its delay."""
        if isinstance(node, Leaf):
            delay_ms = node.task.delay_ms if node.task.at_ms is None else node.task.at_ms - unix_ms()
            return self._ttl_ms + max(round(delay_ms or 0), 0)
        each = [self._lasts_ms(one) for one in node.nodes]
        return sum(each) if isinstance(node, ChainNode) else max(each, default=0)


def _needs_pass(node: Node, following: Node) -> bool:
    """Whether many members would arrive at many joins: then one join goes between."""
    return isinstance(node, GroupNode) and len(node.nodes) > 1 and isinstance(following, GroupNode)


def _is_now(slot: _StepSlot) -> bool:
    return slot.start is None or slot.start.now


def _begins_with_a_task(node: Node) -> bool:
    if isinstance(node, Leaf):
        return True
    if isinstance(node, ChainNode):
        return _begins_with_a_task(node.nodes[0])
    return bool(node.nodes) and all(map(_begins_with_a_task, node.nodes))


def leaves(node: Node, *, callbacks: bool = False) -> Iterator[Leaf]:
    """The tasks of a step in the order of writing."""
    if isinstance(node, Leaf):
        yield node
        return
    for one in node.nodes:
        yield from leaves(one, callbacks=callbacks)
    if callbacks and isinstance(node, GroupNode):
        for _, one in node.callbacks:
            yield from leaves(one, callbacks=True)


def count(node: Node) -> int:
    """How many tasks a step has, callbacks not counted."""
    return sum(1 for _ in leaves(node))


def _queue_of(node: Node, behind: Sequence[JoinRef]) -> str:
    return next((leaf.task.queue for leaf in leaves(node)), behind[0].queue if behind else _NO_QUEUE)


def _last(node: Node, first: int) -> list[int]:
    """The numbers of the last tasks of a step: it has ended when these have."""
    if isinstance(node, Leaf):
        return [first]
    each = []
    for one in node.nodes:
        each.append(_last(one, first))
        first += count(one)
    if isinstance(node, GroupNode):
        return [number for found in each for number in found]
    return next((found for found in reversed(each) if found), [])


def _shape(node: Node, first: int) -> Any:
    """The numbers of the tasks whose results are the result of a step."""
    if isinstance(node, Leaf):
        return first
    if isinstance(node, ChainNode):
        return _shape(node.nodes[-1], first + sum(map(count, node.nodes[:-1])))
    shapes = []
    for one in node.nodes:
        shapes.append(_shape(one, first))
        first += count(one)
    return shapes
