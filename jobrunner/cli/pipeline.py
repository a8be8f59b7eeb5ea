"""`jobrunner pipeline`: list, show, diagram, push, run."""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import (
    LOG_LEVEL,
    CommonOptions,
    connected,
    modules_or_configured,
    seconds_of,
    with_shared_options,
)
from jobrunner.cli.output import answer_json, echo, table, talk
from jobrunner.cli.pipeline_show import loaded_pipeline, show
from jobrunner.cli.signals import Restart
from jobrunner.cli.suggestions import pipeline_names, pipeline_queues
from jobrunner.cli.supervisor import Supervisor
from jobrunner.cli.work import WorkOptions, chosen_client, words, work_here
from jobrunner.client.client import Client
from jobrunner.client.item import Item
from jobrunner.client.queue import Queue
from jobrunner.errors import InvalidOption, JobrunnerError, UsageError
from jobrunner.etl.graph import full_name
from jobrunner.etl.pipeline import Pipeline, all_pipelines, find_pipeline
from jobrunner.etl.progress import Emptied
from jobrunner.etl.spark_station import choose
from jobrunner.formatting import counted
from jobrunner.jobs.registry import load_modules
from jobrunner.logs import FORMATS, log_to_stderr

_AT_ONCE = 1000
"""Items that `push -` sends in one batch."""
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
        rows = _rows({one.name: one for one in all_pipelines()}, client.stats())
    if shared.as_json:
        answer_json(rows)
    elif rows:
        columns = ("PIPELINE", "STATIONS", "QUEUES", "OPEN", "DEAD")
        shown = [(row["name"], _or_dash(row["stations"]), row["queues"], row["open"], row["dead"]) for row in rows]
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


def _rows(declared: dict[str, Pipeline], stats: dict[str, QueueCounts]) -> list[dict[str, object]]:
    named = {name.partition("/")[0] for name in stats if "/" in name}
    return [_row(name, declared.get(name), stats) for name in sorted(named | declared.keys())]


def _row(name: str, declared: Pipeline | None, stats: dict[str, QueueCounts]) -> dict[str, object]:
    own = {queue: found for queue, found in stats.items() if queue.startswith(f"{name}/")}
    nodes = [] if declared is None else declared.graph.nodes
    return {
        "name": name,
        "stations": None if declared is None else sum(node.is_served for node in nodes),
        "queues": len(own.keys() | {node.queue for node in nodes}),
        "open": sum(found.open for found in own.values()),
        "dead": sum(found.dead for found in own.values()),
    }


def _or_dash(number: object) -> object:
    return "-" if number is None else number


_RUN_EXAMPLES = """\b
Examples:
  jobrunner pipeline run orders myapp.orders
  jobrunner pipeline run orders myapp.orders --processes 4 --concurrency 2
  jobrunner pipeline run flights --burst --master 'local[2]' --conf spark.driver.memory=4g
"""


@pipeline.command(epilog=_RUN_EXAMPLES)
@click.argument("name", shell_complete=pipeline_names)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Worker processes of the Python stations; stations on Spark share one more.")  # fmt: skip
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
    processes: int,
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
    client = chosen_client(shared, found.client)
    found.apply(client)
    wanted = WorkOptions(modules=modules_or_configured(modules), queues=(), max_tasks=0, **options)
    wanted.check()
    load_modules(wanted.imported)
    python, spark = _queues(found)
    if processes == 1 and not (python and spark):
        return work_here(shared, wanted.serving(python or spark), None, client, renewal)
    return _supervise(shared, wanted, found, client, [python] * processes if python else [], [spark] if spark else [])


def _supervise(
    shared: CommonOptions, wanted: WorkOptions, found: Pipeline, client: Client, *slots: list[tuple[str, ...]]
) -> int:
    # A worker sees only its own queues, so it cannot know that the whole is done: that is looked for here.
    endless = wanted.endless()
    commands = [
        [sys.executable, "-m", "jobrunner", "work", *words(shared, endless.serving(queues))]
        for alike in slots
        for queues in alike
    ]
    until = Emptied(client, found.graph, also_scheduled=wanted.drain) if wanted.burst or wanted.drain else None
    return Supervisor(commands, until=until, leave_s=wanted.leave_s).run()


def _queues(found: Pipeline) -> tuple[tuple[str, ...], tuple[str, ...]]:
    served = [node.queue for node in found.graph.in_order() if node.is_served]
    on_spark = tuple(queue for queue in served if queue in found.spark_stations)
    return tuple(queue for queue in served if queue not in found.spark_stations), on_spark


_PUSH_EXAMPLES = """\b
Examples:
  jobrunner pipeline push orders/raw '{"id": 7}' -m myapp.orders
  jobrunner pipeline push orders/raw - < orders.jsonl
  zcat orders.jsonl.gz | jobrunner pipeline push orders/raw - --priority 0
"""


@pipeline.command(epilog=_PUSH_EXAMPLES)
@click.argument("target", metavar="NAME/QUEUE", shell_complete=pipeline_queues)
@click.argument("payload", metavar="JSON|-")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module that declares the pipeline; default: modules of [tool.jobrunner]. Repeatable.")  # fmt: skip
@click.option("--in", "in_", type=seconds_of, metavar="S",
              help="Delay before the item is due: 90 (seconds), 5m, 2h, 1d.")  # fmt: skip
@click.option("--priority", type=int, metavar="0..2", help="Higher runs first.")
@with_shared_options
def push(shared: CommonOptions, target: str, payload: str, modules: tuple[str, ...], **options: Any) -> None:
    """Push an item into QUEUE of pipeline NAME and print its id.

    `-` reads one item from each line of stdin. When a module declares the pipeline, the command checks the queue's
    name and writes its settings first.
    """
    name, slash, short = target.partition("/")
    if not slash:
        raise click.UsageError(f"{target!r} is no queue of a pipeline; write NAME/QUEUE")
    with connected(shared, starts=True) as client:
        queue = _target(client, name, short, modules)
        if payload == "-":
            _push_lines(shared, queue, options)
            return
        pushed = queue.push(_read(payload, "the payload"), **options)
    if shared.as_json:
        answer_json({"id": pushed, "queue": queue.name})
    else:
        echo(pushed)


def _target(client: Client, name: str, short: str, modules: tuple[str, ...]) -> Queue:
    chosen = modules_or_configured(modules)
    load_modules(chosen)
    full = full_name(name, short)
    if chosen:
        declared = find_pipeline(name)
        declared.graph.find(full)
        declared.apply(client)
    return client.queue(full)


def _push_lines(shared: CommonOptions, queue: Queue, options: dict[str, Any]) -> None:
    pushed = 0
    lines = enumerate(sys.stdin.buffer, 1)
    try:
        with _bar() as advance:
            while numbered := list(islice(lines, _AT_ONCE)):
                items = [Item(_read(line, f"line {number}"), **options) for number, line in numbered if line.strip()]
                pushed += len(queue.push_many(items))
                advance([line for _, line in numbered])
    except JobrunnerError:
        talk(f"of the lines before, {counted(pushed, 'item')} were pushed into {queue.name}")
        raise
    if shared.as_json:
        answer_json({"queue": queue.name, "pushed": pushed})
    else:
        echo(f"pushed {counted(pushed, 'item')} into {queue.name}")


def _read(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
        raise UsageError(
            f"{what} is no JSON: {shown.strip()[:60]!r} ({error}); a text is written '\"like this\"'"
        ) from error


@contextmanager
def _bar() -> Iterator[Callable[[list[bytes]], None]]:
    """Tells a person who looks how far it is, line by line: a bar when stdin is a file, else a number."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    status = os.fstat(sys.stdin.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        with click.progressbar(length=status.st_size, label="Pushing", file=sys.stderr) as bar:
            yield lambda lines: bar.update(sum(map(len, lines)))
        return
    total = 0

    def tell(lines: list[bytes]) -> None:
        nonlocal total
        total += len(lines)
        echo(f"\rPushing  {total} lines", nl=False, err=True)

    yield tell
    echo("", err=True)
