"""chain and group: tasks that wait for each other, and callbacks after several tasks ended."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from jobrunner.client.current import current_client
from jobrunner.client.flow_handle import AsyncFlowHandle, FlowHandle, send, send_async
from jobrunner.client.loop_clients import current_async_client
from jobrunner.client.operations.flow import Flow
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.build import BoundCall, FunctionJob, build_task, definition_of
from jobrunner.jobs.enqueue_options import NOW
from jobrunner.jobs.flow_layout import ChainNode, GroupNode, Leaf, Node, count, lay_out, leaves
from jobrunner.jobs.job import Job
from jobrunner.join import FlowMember
from jobrunner.option_names import checks_options, no_attribute
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import Task

WEEK_S = 7 * 86_400.0
Span: TypeAlias = tuple[int, int]
"""The number of the first step, and the number of steps."""
_NONE: Span = (0, 0)


@checks_options
class _Steps:
    """Base of chains and groups, which can be sent."""

    def node(self) -> Node:
        """The steps as checked tasks."""
        raise NotImplementedError

    def enqueue(self, *, ttl: Duration = WEEK_S) -> FlowHandle:
        """Sends the flow and returns a handle on it. The whole flow is checked before anything is sent.

        `ttl` is how long the flow waits for any one of its tasks to end; after that it is forgotten, and later steps do
        not begin. Raises the errors of Job.enqueue.
        """
        return send(current_client(), _laid_out(self.node(), _ttl_ms(ttl)))

    async def aenqueue(self, *, ttl: Duration = WEEK_S) -> AsyncFlowHandle:
        """`enqueue` for asyncio."""
        return await send_async(current_async_client(), _laid_out(self.node(), _ttl_ms(ttl)))


    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name)


class Chain(_Steps):
    """Steps one after the other. Made by `chain`."""

    def __init__(self, steps: "tuple[Step, ...]") -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.steps))})"

    def node(self) -> ChainNode:
        """The steps as tasks; the steps of a chain in a chain are steps of the outer chain."""
        nodes: list[Node] = []
        for step in self.steps:
            found = node_of(step)
            nodes += found.nodes if isinstance(found, ChainNode) else [found]
        if not nodes:
            raise UsageError("chain() has no steps; give it at least one")
        return ChainNode(nodes=tuple(nodes))


class Group(_Steps):
    """Steps side by side, with callbacks. Made by `group`."""

    def __init__(self, steps: "tuple[Step, ...]", callbacks: "dict[str, Step | None]") -> None:
        self.steps = steps
        self.callbacks = callbacks

    def __repr__(self) -> str:
        parts = [repr(step) for step in self.steps]
        parts += [f"on_{name}={step!r}" for name, step in self.callbacks.items() if step is not None]
        return f"group({', '.join(parts)})"

    def node(self) -> GroupNode:
        """The steps as tasks."""
        callbacks = [(rule, node_of(step)) for rule, step in self.callbacks.items() if step is not None]
        return GroupNode(nodes=tuple(map(node_of, self.steps)), callbacks=tuple(callbacks))


Step: TypeAlias = Job | BoundCall[Any] | Chain | Group


@checks_options
def chain(*steps: Step) -> Chain:
    """Steps one after the other: each begins when the step before it succeeded, and finds its result in
    `self.task.results[0]`; after a group, `results` has the results of its members in their order.

    A step is a Job, a call `add.bind(1)`, or another chain or group. When a step is dead or cancelled, later steps do
    not begin; when a dead step is requeued and succeeds, the chain goes on.
    """
    return Chain(steps)


@checks_options
def group(
    *steps: Step, on_complete: Step | None = None, on_success: Step | None = None, on_dead: Step | None = None
) -> Group:
    """Steps side by side, with callbacks, each enqueued at most once:

    on_complete   when all steps ended, in any way; `self.task.outcomes` has the outcomes
    on_success    when all steps succeeded
    on_dead       when the first step died

    Callbacks find the results in `self.task.results`, in the order of the steps. The result of a chain is the result of
    its last step, the result of a group the list of its results. (Batches with these three callbacks are Sidekiq's.)
    """
    return Group(steps, {"complete": on_complete, "success": on_success, "dead": on_dead})


def node_of(step: object) -> Node:
    """A step as checked tasks. Raises the errors of a wrong parameter or option, UsageError for an object that is no
    step."""
    if isinstance(step, (Chain, Group)):
        return step.node()
    if isinstance(step, (Job, BoundCall)):
        return _leaf(step)
    name = getattr(step, "__name__", None)
    hint = f"write {name}.bind(…)" if isinstance(step, FunctionJob) else "give jobs, calls like add.bind(1), or flows"
    if isinstance(step, Iterable) and not isinstance(step, (str, bytes, Mapping)):
        hint = "each step is an argument of its own: write group(*steps) or chain(*steps)"
    raise UsageError(f"{describe(step)} is no step of a flow; {hint}")


def _leaf(step: Job | BoundCall[Any]) -> Leaf:
    options = step.options if isinstance(step, BoundCall) else NOW
    definition = step.definition if isinstance(step, BoundCall) else definition_of(type(step))
    if options.id is not None:
        raise InvalidOption(f"id={describe(options.id)}: a task of a flow gets its id from the flow; leave it out")
    if definition.options.unique is not None:
        raise InvalidOption(f"job {definition.name!r} is unique: another task could stand for a step; not in a flow")
    if options.wait:
        raise InvalidOption(f"wait={options.wait!r} of job {definition.name!r}: a flow waits for no room; leave it out")
    if definition.options.ack == "early":
        raise InvalidOption(f"job {definition.name!r} ends before it runs (ack='early'): not in a flow")
    return Leaf(task=build_task(definition, step.values if isinstance(step, BoundCall) else step, options))


def _ttl_ms(ttl: Duration) -> int:
    ttl_s = seconds(ttl, option="ttl")
    if ttl_s <= 0:
        raise InvalidOption(f"ttl={describe(ttl)}: give more than 0")
    return max(round(ttl_s * 1000), 1)


def _laid_out(root: Node, ttl_ms: int) -> Flow:
    """The flow with its description for dashboard and CLI."""
    members = [_member(*place) for place in _places(root, 0, _NONE, _NONE)]
    return replace(lay_out(root, ttl_ms), members=members, callbacks=list(_callbacks(root, 0)))


def _places(node: Node, first: int, after: Span, then: Span) -> Iterator[tuple[Task, Span, Span]]:
    """The tasks of a step, each with the steps before and after it."""
    if isinstance(node, Leaf):
        yield node.task, after, then
        return
    spans: list[Span] = []
    for one in node.nodes:
        spans.append((first, count(one)))
        first += spans[-1][1]
    last = len(spans) - 1
    for k, one in enumerate(node.nodes):
        is_chain = isinstance(node, ChainNode)
        before = spans[k - 1] if is_chain and k else after
        behind = spans[k + 1] if is_chain and k < last else then
        yield from _places(one, spans[k][0], before, behind)


def _callbacks(node: Node, first: int) -> Iterator[FlowMember]:
    """The tasks of callbacks, with the members that they wait for; also callbacks of inner groups."""
    if isinstance(node, Leaf):
        return
    if isinstance(node, GroupNode):
        span = (first, count(node))
        for rule, one in node.callbacks:
            yield from (_member(leaf.task, span, _NONE, rule) for leaf in leaves(one, callbacks=True))
    for one in node.nodes:
        yield from _callbacks(one, first)
        first += count(one)


def _member(task: Task, after: Span, then: Span, rule: str = "") -> FlowMember:
    return FlowMember(task.queue, task.id, task.type, after, then, rule)
