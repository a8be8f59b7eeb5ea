"""`jobrunner pipeline`: list, diagram, lag, run; `show` and `push` have modules of their own."""

import os
from dataclasses import asdict
from typing import Any

import click

from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import (
    LOG_LEVEL,
    CommonOptions,
    connected,
    modules_or_configured,
    seconds_of,
    with_shared_options,
)
from jobrunner.cli.output import Refusal, answer_json, echo, table, talk
from jobrunner.cli.pipeline_push import push
from jobrunner.cli.pipeline_show import loaded_pipeline, show
from jobrunner.cli.signals import Restart
from jobrunner.cli.status import tell_unread, unread_queues
from jobrunner.cli.suggestions import pipeline_names
from jobrunner.cli.supervisor import Supervisor
from jobrunner.cli.work import WorkOptions, chosen_client, work_here, worker_command
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.etl.graph import nearest
from jobrunner.etl.pipeline import Pipeline, all_pipelines
from jobrunner.etl.progress import Emptied, undeclared
from jobrunner.etl.spark_conf import choose
from jobrunner.formatting import duration, rate
from jobrunner.inspector.lag import WITHIN_S, StationLag, read_lags
from jobrunner.inspector.shards import OTHERS
from jobrunner.inspector.snapshot import QueueView, queue_views
from jobrunner.jobs.registry import load_modules
from jobrunner.log_output import FORMATS, log_to_stderr
from jobrunner.logs import SafeLogger

_EXAMPLES = """\b
Examples:
  jobrunner pipeline run orders myapp.orders --processes 2
  jobrunner pipeline push orders/raw '{"id": 7}'
  jobrunner pipeline show orders myapp.orders --watch
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def pipeline() -> None:
    """List, show, draw and run pipelines, and push items into them.

    A pipeline is a graph of stations that are joined by queues."""


@pipeline.command("list", epilog="Example:  jobrunner pipeline list myapp.orders --json")
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@with_shared_options
def list_(shared: CommonOptions, modules: tuple[str, ...]) -> None:
    """List declared pipelines, and those the server has queues of.

    MODULEs default to those of [tool.jobrunner] in pyproject.toml.
    """
    load_modules(modules_or_configured(modules))
    with connected(shared) as client:
        found = queue_views(client, [])
    tell_unread(unread_queues(one for one in found if "/" in one.name or one.name == OTHERS))
    rows = _rows({one.name: one for one in all_pipelines()}, {one.name: one for one in found})
    if shared.as_json:
        answer_json(rows)
    elif rows:
        columns = ("PIPELINE", "STATIONS", "QUEUES", "OPEN", "DEAD")
        names = ("name", "stations", "queues", "open", "dead")
        shown = [tuple(_or_dash(row[name]) for name in names) for row in rows]
        echo(table(columns, shown))
    else:
        talk("no pipeline is declared, and the server has none")


@pipeline.command(epilog="Example:  jobrunner pipeline diagram orders myapp.orders --format mermaid")
@click.argument("name", shell_complete=pipeline_names)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--format", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True,
              help="text: for a terminal; mermaid: for a document.")  # fmt: skip
@with_shared_options
def diagram(shared: CommonOptions, name: str, modules: tuple[str, ...], form: str) -> None:
    """Draw the pipeline NAME: its queues, stations and links.

    MODULEs declare the pipeline; default: those of [tool.jobrunner] in pyproject.toml."""
    found = loaded_pipeline(name, modules)
    found.check()
    if shared.as_json:
        answer_json({"pipeline": name, "queues": [asdict(node) for node in found.graph.in_order()]})
    else:
        echo(found.diagram(form))


pipeline.add_command(show)
pipeline.add_command(push)


def _rows(declared: dict[str, Pipeline], stats: dict[str, QueueView]) -> list[dict[str, object]]:
    named = {name.partition("/")[0] for name in stats if "/" in name}
    return [_row(name, declared.get(name), stats) for name in sorted(named | declared.keys())]


def _row(name: str, declared: Pipeline | None, stats: dict[str, QueueView]) -> dict[str, object]:
    own = {queue: found for queue, found in stats.items() if queue.startswith(f"{name}/")}
    nodes = [] if declared is None else declared.graph.nodes
    is_unread = any(found.problem for found in own.values())
    return {
        "name": name,
        "stations": None if declared is None else sum(node.is_served for node in nodes),
        "queues": len(own.keys() | {node.queue for node in nodes}),
        "open": None if is_unread else sum(found.open for found in own.values()),
        "dead": None if is_unread else sum(found.dead for found in own.values()),
    }


def _or_dash(number: object) -> object:
    return "-" if number is None else number


_LAG_EXAMPLES = """\b
Examples:
  jobrunner pipeline lag
  jobrunner pipeline lag orders --within 5m
  jobrunner pipeline lag orders --json | jq '.[] | {queue, suggested_workers}'
"""


@pipeline.command(epilog=_LAG_EXAMPLES)
@click.argument("name", required=False, shell_complete=pipeline_names)
@click.option("--within", type=seconds_of, default=f"{WITHIN_S:g}", show_default=True, metavar="S",
              help="Seconds in which the suggested workers clear what waits.")  # fmt: skip
@with_shared_options
def lag(shared: CommonOptions, name: str | None, within: float) -> None:
    """Show the lag of a pipeline, or of all.

    That is what waits in the queues of the pipeline NAME, and how many workers would keep up. Rates are those of the
    last 5 minutes. SUGGESTED: ceil((arrivals + waiting / within) * run time of an item / items that one worker runs at
    once). For autoscalers: the metric jobrunner_station_suggested_workers. STATE: stopped, while a station on Spark
    waits and tries again because no item is to blame. Needs no MODULE.
    """
    with connected(shared) as client:
        unread: dict[str, str] = {}
        problems: list[str] = []
        found = read_lags(client, name, within_s=max(within, 1.0), unread=unread, problems=problems)
        for problem in problems:
            talk(problem)
        tell_unread(unread)
        if name is not None and not found and not unread:
            known = sorted({queue.partition("/")[0] for queue in client.queues() if "/" in queue})
            raise Refusal(f"the server has no queue of a pipeline {name!r}; {nearest(name, known)}")
    if shared.as_json:
        answer_json(found)
    elif found or unread:
        columns = ("QUEUE", "WAITING", "PENDING", "OLDEST", "IN/S", "OUT/S", "DRAIN", "WORKERS", "SUGGESTED", "STATE")
        echo(table(columns, [_lag_row(one) for one in found]))
    else:
        talk("the server has no queue of a pipeline")


def _lag_row(one: StationLag) -> tuple[object, ...]:
    state = "paused" if one.paused else "stopped" if one.stopped else ""
    return (
        one.queue, one.waiting, one.pending, duration(one.oldest_s) if one.waiting else "-",
        *("-" if per_s is None else rate(per_s) for per_s in (one.arrivals_per_s, one.throughput_per_s)),
        "-" if one.drain_s is None else duration(one.drain_s), one.workers, _or_dash(one.suggested_workers), state,
    )  # fmt: skip


_log = SafeLogger("jobrunner.pipeline")
_UNDECLARED_HINT = "if a station was renamed or removed, keep one on the old queue until it is empty"
_RUN_EXAMPLES = """\b
Examples:
  jobrunner pipeline run orders myapp.orders
  jobrunner pipeline run orders myapp.orders --processes 4 --concurrency 2
  jobrunner pipeline run flights --burst --master 'local[2]' --conf spark.driver.memory=4g
"""


@pipeline.command(epilog=_RUN_EXAMPLES)
@click.argument("name", shell_complete=pipeline_names)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--processes", type=click.IntRange(min=1), metavar="N",
              help="Worker processes of the Python stations; stations on Spark share one more. Default: 1.")
@click.option("--concurrency", type=int, default=10, show_default=True, help="Items that run at once, per process.")
@click.option("--executor", type=click.Choice(["threads", "processes", "async"]), default="threads",
              show_default=True, help="How Python stations run.")  # fmt: skip
@click.option("--burst", is_flag=True, help="Exits when no item is waiting or pending in the whole pipeline.")
@click.option("--drain", is_flag=True, help="Exits when no item is scheduled either.")
@click.option("--grace", type=seconds_of, default="25", show_default=True, metavar="S",
              help="Seconds that running items get to finish after SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master URL: local[*], spark://host:7077, ...")
@click.option("--remote", metavar="URL", help="URL of a Spark Connect server: sc://host:15002.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting. Repeatable.")
@click.option("--log-format", type=click.Choice(FORMATS), default="console", show_default=True,
              help="Format of log lines on stderr.")  # fmt: skip
@LOG_LEVEL
@click.option("--allow-eviction", is_flag=True, help="Starts although the server may evict items when it is full.")
@click.option("--otel", is_flag=True, help="Exports OpenTelemetry spans, as the OTEL_… variables say.")
@with_shared_options
def run(
    shared: CommonOptions,
    name: str,
    modules: tuple[str, ...],
    processes: int | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    **options: Any,
) -> int:
    """Run the stations of the pipeline NAME until stopped.

    MODULEs declare the pipeline; default: those of [tool.jobrunner] in pyproject.toml. The pipeline is validated first.
    Other queues are not served.
    """
    renewal = Restart()
    variables = choose(master=master, remote=remote, conf=conf)
    found = loaded_pipeline(name, modules)
    found.check()
    if (master or remote or conf) and not found.spark_stations:
        raise InvalidOption(f"pipeline {name!r} has no station on Spark; leave out --master, --remote and --conf")
    os.environ.update(variables)  # inherited by the worker that has the session
    log_to_stderr(options["log_format"], options["log_level"])
    client = chosen_client(shared, found.own_client)
    found.apply(client)
    for node in undeclared(client, found.graph):
        _log.warning("items are in a queue that the pipeline does not declare", queue=node.queue, hint=_UNDECLARED_HINT)
    wanted = WorkOptions(modules=modules_or_configured(modules), queues=(), max_tasks=0, pipeline=name, **options)
    wanted.check()
    load_modules(wanted.imported)
    python, spark = _queues(found)
    if processes is None and not (python and spark):
        return work_here(shared, wanted.serving(python or spark), None, client, renewal)
    of_python = [python] * (processes or 1) if python else []
    return _supervise(shared, wanted, found, client, of_python, [spark] if spark else [])


def _supervise(
    shared: CommonOptions, wanted: WorkOptions, found: Pipeline, client: Client, *slots: list[tuple[str, ...]]
) -> int:
    # A worker sees only its own queues, so only this process can find out that the whole pipeline is empty.
    endless = wanted.endless()
    commands = [
        worker_command(shared, endless.serving(queues))
        for alike in slots
        for queues in alike
    ]
    until = Emptied(client, found.graph, also_scheduled=wanted.drain) if wanted.burst or wanted.drain else None
    return Supervisor(commands, until=until, leave_s=wanted.leave_s).run()


def _queues(found: Pipeline) -> tuple[tuple[str, ...], tuple[str, ...]]:
    served = [node.queue for node in found.graph.in_order() if node.is_served]
    on_spark = tuple(queue for queue in served if queue in found.spark_stations)
    return tuple(queue for queue in served if queue not in found.spark_stations), on_spark
