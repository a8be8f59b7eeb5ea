"""What all pages know of this moment: queues, workers, what runs, what is wrong."""

from dataclasses import dataclass

from jobrunner.client.records import WorkerRecord
from jobrunner.etl.published import published
from jobrunner.inspector.check import Check
from jobrunner.inspector.lines import TaskLine
from jobrunner.inspector.overview import QueueView
from jobrunner.inspector.pulse import Failing, Rates, look
from jobrunner.web.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """This moment, a second old at most. `nav` has the figures beside the names of pages."""

    queues: tuple[QueueView, ...]
    workers: tuple[WorkerRecord, ...]
    running: tuple[TaskLine, ...]
    failing: tuple[Failing, ...]
    warnings: tuple[Check, ...]
    rates: Rates
    unserved: tuple[QueueView, ...]
    """Queues with something to do that no worker serves, but for those that a pipeline declares as ends."""
    nav: dict[str, int]


def now(context: Context) -> Now:
    """Looks. Raises ServerError."""
    seen = look(context.client)
    ends = _ends(context)
    return Now(
        queues=seen.queues,
        workers=seen.workers,
        running=seen.running,
        failing=seen.failing,
        warnings=(),
        rates=Rates(),
        unserved=tuple(queue for queue in seen.queues if _is_stuck(queue) and queue.name not in ends),
        nav={"dead": sum(queue.dead for queue in seen.queues)},
    )


def _is_stuck(queue: QueueView) -> bool:
    return not queue.workers and bool(queue.waiting or queue.scheduled or queue.pending)


def _ends(context: Context) -> set[str]:
    graphs = context.client.broker.run(published(context.client.keys)).values()
    return {node.queue for graph in graphs for node in graph.nodes if not node.is_served}
