"""`jobrunner work`: a worker in this process, or a supervisor over several."""

import json
import sys
import threading
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from jobrunner.cli.metrics_port import NOWHERE, Served
from jobrunner.cli.options import Shared, duration, modules_or_configured, size, with_shared_options
from jobrunner.cli.renewal import Renewal
from jobrunner.cli.stopping import Lifeline, ask_at_signals
from jobrunner.cli.suggestions import queue_names
from jobrunner.cli.supervisor.supervisor import Supervisor
from jobrunner.client.client import Client
from jobrunner.client.current import configure, current_client
from jobrunner.errors import InvalidOption
from jobrunner.etl.pipeline import all_pipelines
from jobrunner.jobs.registry import load_modules
from jobrunner.log_setup import FORMATS, log_to_stderr
from jobrunner.logs import IDENTITY
from jobrunner.settings import EVENTS
from jobrunner.worker.wear import WORN
from jobrunner.worker.worker import Worker, WorkerSummary

_TRACED = "jobrunner.tracing.exporting"
_FAREWELL_S = 30.0
_EXAMPLES = """\b
Examples:
  jobrunner work myapp.jobs
  jobrunner work myapp.jobs -q mail:3 -q default --concurrency 20
  jobrunner work myapp.jobs --burst --log-format json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one worker process is to do."""

    modules: tuple[str, ...]
    queues: tuple[str, ...]
    concurrency: int
    executor: str
    burst: bool
    drain: bool
    max_tasks: int
    grace: float
    log_format: str
    allow_eviction: bool
    otel: bool = False
    heartbeat: float = 10.0
    events: str = "notable"
    max_memory: int = 0

    @property
    def imported(self) -> tuple[str, ...]:
        """The modules that this process, and those it runs attempts in, import."""
        return (*self.modules, _TRACED) if self.otel else self.modules

    def check(self) -> None:
        """Raises InvalidOption for what needs a package that is not installed."""
        if self.otel and find_spec("opentelemetry") is None:
            raise InvalidOption('--otel needs OpenTelemetry; pip install "jobrunner[otel]"')

    def serving(self, queues: tuple[str, ...]) -> "Wanted":
        """The same for these queues."""
        return replace(self, queues=queues)

    @property
    def leave_s(self) -> float:
        """How long one that was asked to stop may take: tasks have the grace, then threads that they left behind."""
        return 2 * self.grace + _FAREWELL_S

    def endless(self) -> "Wanted":
        """The same until it is stopped."""
        return replace(self, burst=False, drain=False)


@click.command(epilog=_EXAMPLES)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("-q", "--queue", "queues", multiple=True, metavar="NAME[:WEIGHT]", shell_complete=queue_names,
              help="A queue to serve, and its share of the turns; default: every queue of the jobs.")  # fmt: skip
@click.option("--concurrency", type=int, default=10, show_default=True, help="Tasks at a time, in each process.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Worker processes; one that crashes is started again.")  # fmt: skip
@click.option("--executor", type=click.Choice(["threads", "processes", "async"]), default="threads",
              show_default=True, help="How tasks are run.")  # fmt: skip
@click.option("--burst", is_flag=True, help="Ends when nothing is waiting or pending.")
@click.option("--drain", is_flag=True, help="Ends when nothing is scheduled either.")
@click.option("--max-tasks", type=click.IntRange(min=0), default=0, metavar="N",
              help="Ends a process after N tasks; with --processes another takes its place; 0: never.")  # fmt: skip
@click.option("--max-memory", type=size, default="0", metavar="SIZE",
              help="The same when its resident memory is above SIZE (512MB, 1.5GB); 0: never.")  # fmt: skip
@click.option("--grace", type=duration, default="25", show_default=True, metavar="S",
              help="How long running tasks may finish after SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--heartbeat", type=duration, default="10", show_default=True, metavar="S",
              help="How often it says that it lives, and reads what it is told.")  # fmt: skip
@click.option("--events", type=click.Choice(EVENTS), default="notable", show_default=True,
              help="What it writes to the stream of events; all: the end of every attempt, too.")  # fmt: skip
@click.option("--reload", is_flag=True, help="Starts again when a .py file below this folder changes.")
@click.option("--log-format", type=click.Choice(FORMATS), default="console", show_default=True, help="Lines on stderr.")
@click.option("--allow-eviction", is_flag=True, help="Works on a server that may delete tasks to make room.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="N",
              help="Serves /metrics, /health and /ready there, for all processes; 0: any free port.")  # fmt: skip
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where that listens; 0.0.0.0: everywhere.")  # fmt: skip
@click.option("--otel", is_flag=True, help="Sends OpenTelemetry spans; OTEL_… variables say where.")
@click.option("--lifeline", type=int, hidden=True, help="A descriptor of the supervisor's.")
@with_shared_options
def work(
    shared: Shared, modules: tuple[str, ...], processes: int, reload: bool, lifeline: int | None,
    metrics_host: str, metrics_port: int | None, **options: Any,
) -> int:  # fmt: skip
    """Runs the tasks of queues until stopped.

    MODULEs declare the jobs; without one, those of [tool.jobrunner] in pyproject.toml. SIGTERM or Ctrl-C once: takes
    no more, finishes what runs within the grace period, hands back the rest; twice: hands back all at once. SIGHUP:
    begins anew with the code as it is now; with --processes one process after the other.
    """
    chosen = modules_or_configured(modules)
    if not chosen:
        raise InvalidOption(
            "no module with jobs is named; write jobrunner work MODULE, or modules = [...] in [tool.jobrunner]"
        )
    wanted = Wanted(modules=chosen, **options)
    wanted.check()
    metrics = Served(host=metrics_host, port=metrics_port)
    metrics.check()
    log_to_stderr(wanted.log_format)
    if processes > 1 or reload:
        return _supervise(shared, wanted, processes, metrics, watched=Path.cwd() if reload else None)
    renewal = Renewal()
    load_modules(wanted.imported)  # first, as a module may configure the client
    for pipeline in all_pipelines():
        pipeline.check()
    return work_here(shared, wanted, lifeline, chosen_client(shared), renewal, metrics)


def _supervise(shared: Shared, wanted: Wanted, processes: int, metrics: Served, watched: Path | None) -> int:
    command = [sys.executable, "-m", "jobrunner", "work", *words(shared, wanted)]
    supervisor = Supervisor([command] * processes, watched=watched, leave_s=wanted.leave_s)
    if metrics.port is None:
        return supervisor.run()
    client = chosen_client(shared)
    with client, metrics.serving(client, supervisor.health):
        return supervisor.run()


def words(shared: Shared, wanted: Wanted) -> list[str]:
    """The words of the command line that ask one process for this."""
    found = [*wanted.modules, *(f"--queue={name}" for name in wanted.queues)]
    for name in ("concurrency", "executor", "max_tasks", "max_memory", "grace", "heartbeat", "events", "log_format"):
        found.append(f"--{name.replace('_', '-')}={getattr(wanted, name)}")
    for name in ("burst", "drain", "allow_eviction", "otel"):
        if getattr(wanted, name):
            found.append(f"--{name.replace('_', '-')}")
    return found + shared.words()


def chosen_client(shared: Shared, otherwise: Client | None = None) -> Client:
    """The client of this process, by the command line if that names one; else `otherwise`, else as configured."""
    if shared.url or shared.prefix:
        return configure(shared.url, shared.prefix)
    return otherwise or current_client()


def work_here(
    shared: Shared, wanted: Wanted, lifeline: int | None, client: Client, renewal: Renewal, metrics: Served = NOWHERE
) -> int:
    """A worker in this process, until it is stopped; returns the exit code. Its modules are loaded."""
    supervisor = None if lifeline is None else Lifeline(lifeline)
    worker = Worker(
        wanted.imported,
        wanted.queues or None,
        wanted.concurrency,
        client,
        allow_eviction=wanted.allow_eviction,
        executor=wanted.executor,
        grace=wanted.grace,
        max_tasks=wanted.max_tasks,
        max_memory=wanted.max_memory,
        heartbeat=wanted.heartbeat,
        events=wanted.events,
        tell=None if supervisor is None else supervisor.tell,
    )
    IDENTITY.worker = worker.id
    if supervisor is None:
        ask_at_signals(lambda: renewal.stop(worker.ask_to_stop), lambda: renewal.ask(worker.ask_to_stop))
    else:
        ask_at_signals(worker.ask_to_stop, lambda: supervisor.tell(WORN))
        supervisor.ask_at_end(worker.ask_to_stop)
    with metrics.serving(client, worker.health):
        summary = worker.run(burst=wanted.burst, drain=wanted.drain)
    if shared.as_json:
        click.echo(json.dumps(asdict(summary)))
    worker.client.close()
    return _leave(summary, wanted.grace, renewal)


def _leave(summary: WorkerSummary, grace_s: float, renewal: Renewal) -> int:
    # The interpreter waits for threads that jobs left behind, and nothing can end those. What was handed back runs on
    # for certain; other threads get as long as tasks get.
    end = threading.Timer(0 if summary.released else grace_s, renewal.leave)
    end.daemon = True
    end.start()
    return 0
