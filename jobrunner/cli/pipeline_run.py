"""`jobrunner pipeline run`: workers for exactly the queues of one pipeline."""

import os
import sys
from typing import Any

import click

from jobrunner.cli.options import CommonOptions, modules_or_configured, seconds_of, with_shared_options
from jobrunner.cli.pipeline_modules import loaded_pipeline
from jobrunner.cli.restart import Restart
from jobrunner.cli.suggestions import pipeline_names
from jobrunner.cli.supervisor.supervisor import Supervisor
from jobrunner.cli.work import WorkOptions, chosen_client, words, work_here
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.etl.pipeline import Pipeline
from jobrunner.etl.progress import Emptied
from jobrunner.etl.spark_conf import choose
from jobrunner.jobs.registry import load_modules
from jobrunner.log_setup import FORMATS, log_to_stderr

_EXAMPLES = """\b
Examples:
  jobrunner pipeline run orders myapp.orders
  jobrunner pipeline run orders myapp.orders --processes 4 --concurrency 2
  jobrunner pipeline run flights --burst --master 'local[2]' --conf spark.driver.memory=4g
"""


@click.command(epilog=_EXAMPLES)
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
    """Runs the stations of the pipeline NAME of MODULEs until stopped. Other queues are not served.

    MODULEs declare the pipeline; default: those of [tool.jobrunner] in pyproject.toml. The pipeline is validated first.
    """
    renewal = Restart()
    variables = choose(master=master, remote=remote, conf=conf)
    found = loaded_pipeline(name, modules)
    found.check()
    if (master or remote or conf) and not found.spark_stations:
        raise InvalidOption(f"pipeline {name!r} has no station on Spark; leave out --master, --remote and --conf")
    os.environ.update(variables)  # inherited by the worker that has the session
    log_to_stderr(options["log_format"])
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
