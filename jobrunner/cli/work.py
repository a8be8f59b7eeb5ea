"""`jobrunner work`: a worker in this process."""

import json
import os
import sys
from dataclasses import asdict

import click

from jobrunner.cli.logs import FORMATS, log_to_stderr
from jobrunner.cli.options import Shared, duration, modules_or_configured, with_shared_options
from jobrunner.cli.stopping import on_stop_signals
from jobrunner.client.current import configure
from jobrunner.errors import InvalidOption
from jobrunner.worker.worker import Worker, WorkerSummary

_EXAMPLES = """\b
Examples:
  jobrunner work myapp.jobs
  jobrunner work myapp.jobs -q mail:3 -q default --concurrency 20
  jobrunner work myapp.jobs --burst --log-format json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("-q", "--queue", "queues", multiple=True, metavar="NAME[:WEIGHT]",
              help="A queue to serve, and its share of the turns; default: every queue of the jobs.")  # fmt: skip
@click.option("--concurrency", type=int, default=10, show_default=True, help="Tasks at a time.")
@click.option("--executor", type=click.Choice(["threads", "processes", "async"]), default="threads",
              show_default=True, help="How tasks are run.")  # fmt: skip
@click.option("--burst", is_flag=True, help="Ends when nothing is waiting or pending.")
@click.option("--drain", is_flag=True, help="Ends when nothing is scheduled either.")
@click.option("--max-tasks", type=click.IntRange(min=0), default=0, metavar="N", help="Ends after N tasks; 0: never.")
@click.option("--grace", type=duration, default="25", show_default=True, metavar="S",
              help="How long running tasks may finish after SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), default="console", show_default=True, help="Lines on stderr.")
@click.option("--allow-eviction", is_flag=True, help="Works on a server that may delete tasks to make room.")
@with_shared_options
def work(
    shared: Shared,
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int,
    executor: str,
    burst: bool,
    drain: bool,
    max_tasks: int,
    grace: float,
    log_format: str,
    allow_eviction: bool,
) -> int:
    """Runs the tasks of queues until stopped.

    MODULEs declare the jobs; without one, those of [tool.jobrunner] in pyproject.toml. SIGTERM or Ctrl-C once: takes
    no more, finishes what runs within the grace period, hands back the rest; twice: hands back all at once.
    """
    chosen = modules_or_configured(modules)
    if not chosen:
        raise InvalidOption(
            "no module with jobs is named; write jobrunner work MODULE, or modules = [...] in [tool.jobrunner]"
        )
    log_to_stderr(log_format)
    worker = Worker(
        chosen, queues or None, concurrency, configure(shared.url, shared.prefix),
        allow_eviction=allow_eviction, executor=executor, grace=grace, max_tasks=max_tasks,
    )  # fmt: skip
    on_stop_signals(worker.ask_to_stop)
    summary = worker.run(burst=burst, drain=drain)
    if shared.as_json:
        click.echo(json.dumps(asdict(summary)))
    worker.client.close()
    return _leave(summary)


def _leave(summary: WorkerSummary) -> int:
    if not summary.released:
        return 0
    # What was handed back may run on in a thread that nothing ends; the interpreter would wait for some of them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
