"""Flows without a server: joins in this process, by the rules of lua/join_arrive.lua, and handles on these flows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client
from jobrunner.client.flow_handle import AsyncFlowHandle, FlowHandle
from jobrunner.client.operations.flow import Flow, FlowProgress
from jobrunner.codec import decode
from jobrunner.errors import TaskGone, TaskTimeout
from jobrunner.join import AS_BROUGHT, NO_RESULTS, Ended, Join, read_onward
from jobrunner.settings import Duration
from jobrunner.task import Task
from jobrunner.testing.memory_task import MemoryTask

Noted = tuple[str, bytes]
"""Outcome and result of an ended member."""
Begun: TypeAlias = tuple[Task, bytes, bytes]
"""A task that begins, with the results and outcomes passed to it."""


@dataclass(slots=True)
class _Joining:
    """A join and the reports that arrived at it."""

    join: Join
    noted: dict[int, Noted] = field(default_factory=dict)
    is_over: bool = False

    def note(self, member: int, outcome: str, result: bytes) -> bool:
        """Records the end of a member; returns whether that changed anything. A later end replaces a death, as of a
        requeued task; any other end stays."""
        before = self.noted.get(member)
        if self.is_over or (before is not None and (before[0] != "dead" or outcome == "dead")):
            return False
        self.noted[member] = (outcome, b"" if self.join.results == NO_RESULTS else result)
        return True

    def count(self, outcome: str) -> int:
        return sum(ended == outcome for ended, _ in self.noted.values())

    def verdict(self) -> str:
        if self.count("succeeded") == self.join.total:
            return "succeeded"
        return "dead" if self.count("dead") else "cancelled"

    def given(self) -> tuple[bytes, bytes]:
        """The results that the join passes on, and the outcomes, as JSON arrays."""
        ended = [self.noted.get(member, ("pending", b"")) for member in range(self.join.total)]
        brought = b"[" + b",".join(result or b"null" for _, result in ended) + b"]"
        if self.join.results == AS_BROUGHT:
            brought = ended[0][1] or b"[]"
        elif self.join.results:
            brought = self.join.results
        return brought, msgspec.json.encode([outcome for outcome, _ in ended])


class MemoryJoins:
    """The joins of all flows that one client sent."""

    def __init__(self) -> None:
        self._joinings: dict[str, _Joining] = {}

    def prepare(self, joins: Iterable[Join]) -> None:
        """Adds the joins of a flow."""
        for join in joins:
            self._joinings[join.id] = _Joining(join)

    def end(self, onward: bytes | None, outcome: str, result: bytes) -> list[Begun]:
        """Records the end of a task whose `then` is `onward`. Returns the tasks that begin now, each with the results
        and outcomes passed to it."""
        begun: list[Begun] = []
        ended = [(onward, outcome, result)] if onward else []
        while ended:
            onward, outcome, result = ended.pop(0)
            for arrival in read_onward(onward):
                joining = self._joinings.get(arrival.join)
                if joining is not None and joining.note(arrival.member, outcome, result):
                    self._go_on(joining, begun, ended)
        return begun

    def abandon(self, join_id: str) -> list[Begun]:
        """Records that the task of a join will not begin; later joins get its outcome as cancelled."""
        joining = self._joinings[join_id]
        if joining.is_over or joining.join.task is None:
            return []
        joining.is_over = True
        return self.end(joining.join.task.then, "cancelled", b"")

    def noted(self, join_id: str) -> dict[int, Noted]:
        """The ends that arrived at a join, by member."""
        return self._joinings[join_id].noted

    def progress(self, flow_id: str) -> FlowProgress:
        """The outcomes of the steps of a flow so far. Raises TaskGone."""
        if (tally := self._joinings.get(flow_id)) is None:
            raise TaskGone(f"no flow {flow_id} was sent here")
        return FlowProgress(tally.join.total, *(tally.count(one) for one in ("succeeded", "dead", "cancelled")))

    def is_over(self, join_id: str) -> bool:
        """Whether the task of a join began, or never will."""
        return self._joinings[join_id].is_over

    def _go_on(
        self, joining: _Joining, begun: list[Begun], ended: list[tuple[bytes, str, bytes]]
    ) -> None:
        join, rule, verdict = joining.join, joining.join.rule, joining.verdict()
        if rule == "tally":
            return
        are_all = len(joining.noted) == join.total
        is_met = (rule == "complete" and are_all) or (rule == "success" and verdict == "succeeded")
        if join.task is not None and (is_met or (rule == "dead" and joining.count("dead"))):
            joining.is_over = True
            begun.append((join.task, *joining.given()))
            return
        if not are_all or rule == "dead":
            return
        joining.is_over = verdict != "dead"
        onward = join.onward or (join.task.then if join.task is not None else b"")
        is_passed = rule == "pass" and verdict == "succeeded"
        if onward:
            ended.append((onward, verdict, joining.given()[0] if is_passed else b""))


class FlowOwner(Protocol):
    """The client that a flow was sent through."""

    joins: MemoryJoins

    def entry_of(self, task: Task) -> MemoryTask | None:
        """The entry of this task; None when it has not begun."""

    def begin(self, begun: Iterable[Begun]) -> None:
        """Adds the steps of a flow that begin now."""

    def cancel(self, entry: MemoryTask) -> bool:
        """Cancels a task, and adds the steps of its flow that begin as a result."""


class MemoryFlow:
    """The state of a flow in memory, which its handles read."""

    def __init__(self, owner: FlowOwner, flow: Flow) -> None:
        self._owner = owner
        self.flow = flow

    @property
    def heads(self) -> list[Task]:
        """The tasks that began at once."""
        return [task for task in self.flow.heads if self._owner.entry_of(task) is not None]

    def progress(self) -> FlowProgress:
        """The outcomes of its steps so far."""
        return self._owner.joins.progress(self.flow.id)

    def result(self) -> Any:
        """The result of the flow. Raises as FlowHandle.result; TaskTimeout at once for a step that has not ended."""
        noted = self._owner.joins.noted(self.flow.id)
        ended = [noted[number][0] for number in self.flow.awaited if number in noted]
        if any(outcome != "succeeded" for outcome in ended) and (blamed := self.flow.blamed(noted)):
            entry = self._owner.entry_of(blamed[0])
            raise self.flow.stopped(*blamed, "" if entry is None else entry.error)
        missing = [number for number in self.flow.awaited if number not in noted]
        if missing:
            step = self.flow.steps[missing[0]]
            raise TaskTimeout(
                f"flow {self.flow.id} waits for {len(missing)} results, the first of task {step.id} ({step.type}), "
                "and no worker runs it in this test"
            )
        return _read(self.flow.shape, noted)

    def cancel(self) -> bool:
        """Starts no further step. Returns False when nothing was left to stop."""
        joins, stopped = self._owner.joins, False
        for place in self.flow.later:
            if not joins.is_over(place.join):
                stopped = True
                self._owner.begin(joins.abandon(place.join))
        for task in self.flow.steps:
            entry = self._owner.entry_of(task)
            if entry is not None and not entry.state.is_final and self._owner.cancel(entry):
                stopped = True
        return stopped


def _read(shape: Any, noted: dict[int, Noted]) -> Any:
    if isinstance(shape, list):
        return [_read(one, noted) for one in shape]
    return decode(noted[shape][1]) if noted[shape][1] else None


class MemoryFlowHandle(FlowHandle):
    """A handle on a flow in memory."""

    def __init__(self, client: Client, memory: MemoryFlow) -> None:
        super().__init__(client, memory.flow)
        self.tasks = [client.task(head.id, queue=head.queue) for head in memory.heads]
        self._memory = memory

    def progress(self) -> FlowProgress:
        return self._memory.progress()

    def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        return self._memory.result()

    def cancel(self) -> bool:
        return self._memory.cancel()


class AsyncMemoryFlowHandle(AsyncFlowHandle):
    """An asyncio handle on a flow in memory."""

    def __init__(self, twin: AsyncClient, memory: MemoryFlow) -> None:
        super().__init__(twin, memory.flow)
        self.tasks = [twin.task(head.id, queue=head.queue) for head in memory.heads]
        self._memory = memory

    async def progress(self) -> FlowProgress:
        return self._memory.progress()

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        return self._memory.result()

    async def cancel(self) -> bool:
        return self._memory.cancel()


def signals_of(flow: Flow, joins: MemoryJoins) -> list[Begun]:
    """The tasks that begin after empty groups."""
    ends: Sequence[Ended] = flow.signals
    return [one for end in ends for one in joins.end(end.onward, end.outcome, end.result)]
