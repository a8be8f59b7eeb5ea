"""`jobrunner pipeline`: list, show, diagram, push, run."""

from dataclasses import asdict

import click

from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.cli.group import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, with_shared_options
from jobrunner.cli.output import answer_json, echo, table, talk
from jobrunner.cli.pipeline_modules import loaded_pipeline
from jobrunner.cli.pipeline_push import push
from jobrunner.cli.pipeline_run import run
from jobrunner.cli.pipeline_show import show
from jobrunner.cli.suggestions import pipeline_names
from jobrunner.etl.pipeline import Pipeline, all_pipelines
from jobrunner.jobs.registry import load_modules

_EXAMPLES = """\b
Examples:
  jobrunner pipeline run orders myapp.orders --processes 2
  jobrunner pipeline push orders/raw '{"id": 7}'
  jobrunner pipeline show orders myapp.orders --watch
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def pipeline() -> None:
    """Lists, shows, draws and runs pipelines (stations joined by queues), and pushes items into them."""


@pipeline.command("list", epilog="Example:  jobrunner pipeline list myapp.orders --json")
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@with_shared_options
def list_(shared: CommonOptions, modules: tuple[str, ...]) -> None:
    """Lists the pipelines that MODULEs declare and those of which the server has queues.

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
    """Draws the pipeline NAME of MODULEs: its queues, their stations, and where stations send items."""
    found = loaded_pipeline(name, modules)
    found.check()
    if shared.as_json:
        answer_json({"pipeline": name, "queues": [asdict(node) for node in found.graph.in_order()]})
    else:
        echo(found.diagram(form))


for command in (show, push, run):
    pipeline.add_command(command)


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
        "open": sum(found.waiting + found.scheduled + found.pending for found in own.values()),
        "dead": sum(found.dead for found in own.values()),
    }


def _or_dash(number: object) -> object:
    return "-" if number is None else number
