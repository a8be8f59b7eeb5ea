"""`jobrunner work`: a worker in this process, or a supervisor over several."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from jobrunner.broker.keys import split_queue
from jobrunner.cli.options import (
    LOG_LEVEL,
    NOWHERE,
    CommonOptions,
    MetricsAddress,
    announce_start,
    bytes_of,
    modules_or_configured,
    seconds_of,
    with_shared_options,
)
from jobrunner.cli.output import echo
from jobrunner.cli.signals import Lifeline, Restart, ask_at_signals, exit_within, report_to_service_manager
from jobrunner.cli.suggestions import queue_names
from jobrunner.cli.supervisor import Supervisor
from jobrunner.client.client import Client
from jobrunner.client.current import configure, configured_client, current_client, use
from jobrunner.errors import InvalidOption, WorkerBroken
from jobrunner.etl.spark_conf import choose
from jobrunner.formatting import install_command
from jobrunner.jobs.registry import load_modules
from jobrunner.log_output import FORMATS, log_to_stderr
from jobrunner.logs import IDENTITY
from jobrunner.settings import check_release
from jobrunner.worker.child_processes import claim_children
from jobrunner.worker.recycling import DUE, OVER
from jobrunner.worker.settings import EVENTS
from jobrunner.worker.worker import Worker, WorkerSummary

_TRACED = "jobrunner.tracing.exporter"
_URL = "JOBRUNNER_URL"
_FAREWELL_S = 30.0
_BROKEN_FAREWELL_S = 5.0
_RELEASED_FAREWELL_S = 1.0
_EXAMPLES = """\b
Examples:
  jobrunner work myapp.jobs
  jobrunner work myapp.jobs -q mail:3 -q default --concurrency 20
  jobrunner work myapp.jobs --burst --log-format json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """The options of one worker process."""

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
    log_level: str = "info"
    otel: bool = False
    heartbeat: float = 10.0
    events: str = "lifecycle"
    max_memory: int = 0
    unknown_grace: float = 86_400.0
    release: str | None = None
    max_per_queue: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    min_concurrency: int = 0
    pipeline: str = ""
    """The worker has the client of this one."""

    @property
    def caps(self) -> dict[str, int]:
        """Most tasks of single queues at a time. Raises InvalidOption for what is not NAME=N."""
        return dict(map(cap_of, self.max_per_queue))

    @property
    def imported(self) -> tuple[str, ...]:
        """The modules that this process, and those it runs attempts in, import."""
        return (*self.modules, _TRACED) if self.otel else self.modules

    def check(self) -> None:
        """Raises InvalidOption for what needs a package that is not installed, and for a release that is no name."""
        check_release(self.release or "", "--release")
        _ = self.caps
        if self.otel and find_spec("opentelemetry") is None:
            raise InvalidOption(f"--otel needs OpenTelemetry; {install_command('otel')}")

    def serving(self, queues: tuple[str, ...]) -> "WorkOptions":
        """The same for these queues."""
        return replace(self, queues=queues)

    @property
    def leave_s(self) -> float:
        """How long one that was asked to stop may take: tasks have the grace, then threads that they left behind."""
        return 2 * self.grace + _FAREWELL_S

    def endless(self) -> "WorkOptions":
        """The same until it is stopped."""
        return replace(self, burst=False, drain=False)


@click.command(epilog=_EXAMPLES)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("-q", "--queue", "queues", multiple=True, metavar="NAME[:WEIGHT]", shell_complete=queue_names,
              help="A queue to serve, and its weight; default: every queue of the jobs.")  # fmt: skip
@click.option("--concurrency", type=int, default=10, show_default=True, help="Tasks that run at once, per process.")
@click.option("--min-concurrency", type=click.IntRange(min=0), default=0, metavar="N",
              help="Threads or child processes kept when idle; more start with the load; 0: all of --concurrency.")
@click.option("--max-per-queue", multiple=True, metavar="NAME=N",
              help="Most tasks of a queue at a time, per process: thumbnails=4. Repeatable.")  # fmt: skip
@click.option("--gate", "gates", multiple=True, metavar="WHAT",
              help="Takes no tasks while memory=90% or cpu=95% is in use, or module:function returns a reason.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N",
              help="Worker processes, with a supervisor that restarts a crashed one; default: one, without.")
@click.option("--executor", type=click.Choice(["threads", "processes", "async"]), default="threads",
              show_default=True, help="How tasks run.")  # fmt: skip
@click.option("--burst", is_flag=True, help="Exits when no task is waiting or pending, paused queues aside.")
@click.option("--drain", is_flag=True, help="Exits when no task is scheduled either.")
@click.option("--max-tasks", type=click.IntRange(min=0), default=0, metavar="N",
              help="Exits after N tasks; with --processes another process replaces it; 0: never.")  # fmt: skip
@click.option("--max-memory", type=bytes_of, default="0", metavar="SIZE",
              help="Exits when resident memory exceeds SIZE (512MB, 1.5GB); 0: never.")  # fmt: skip
@click.option("--grace", type=seconds_of, default="25", show_default=True, metavar="S",
              help="Seconds that running tasks get to finish after SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--heartbeat", type=seconds_of, default="10", show_default=True, metavar="S",
              help="Seconds between heartbeats; commands from the dashboard are read then, too.")  # fmt: skip
@click.option("--unknown-grace", type=seconds_of, default="86400", show_default=True, metavar="S",
              help="Seconds for which tasks of unknown jobs are handed back before they fail.")  # fmt: skip
@click.option("--events", type=click.Choice(EVENTS), default="lifecycle", show_default=True,
              help="Which events to write; all: also the end of every attempt.")  # fmt: skip
@click.option("--release", metavar="NAME",
              help="The deployed version, for pages and events; default: JOBRUNNER_RELEASE, then the host's variable.")
@click.option("--reload", is_flag=True, help="Restarts when a .py file below this folder changes.")
@click.option("--log-format", type=click.Choice(FORMATS), default="console", show_default=True,
              help="Format of log lines on stderr.")  # fmt: skip
@LOG_LEVEL
@click.option("--allow-eviction", is_flag=True, help="Starts although the server may evict tasks when it is full.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="N",
              help="Port of /metrics, /health and /ready, for all processes; 0: any free port.")  # fmt: skip
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Address of that port; 0.0.0.0: all interfaces.")  # fmt: skip
@click.option("--metrics-token", default="", metavar="T", envvar="JOBRUNNER_METRICS_TOKEN",
              help="Bearer token that /metrics requires; prefer JOBRUNNER_METRICS_TOKEN.")  # fmt: skip
@click.option("--otel", is_flag=True, help="Exports OpenTelemetry spans, as the OTEL_… variables say.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE",
              help="A Spark setting, for stations on Spark; repeatable.")  # fmt: skip
@click.option("--lifeline", type=int, hidden=True, help="A descriptor of the supervisor's.")
@click.option("--pipeline", default="", hidden=True, help="Has the client of this pipeline.")
@click.option("--url-of-environment", is_flag=True, hidden=True,
              help="JOBRUNNER_URL counts as --url: the supervisor's.")  # fmt: skip
@with_shared_options
def work(
    shared: CommonOptions, modules: tuple[str, ...], processes: int | None, reload: bool, lifeline: int | None,
    url_of_environment: bool, metrics_host: str, metrics_port: int | None, metrics_token: str,
    conf: tuple[str, ...], **options: Any,
) -> int:  # fmt: skip
    """Run the tasks of queues until stopped.

    MODULEs declare the jobs; default: those of [tool.jobrunner] in pyproject.toml. SIGTERM or Ctrl-C once: reserves
    no more, lets running tasks finish within the grace period, hands back the rest; twice: hands back all at once.
    SIGHUP: restarts with the present code; with --processes one process after the other.
    """
    if url_of_environment:
        shared = replace(shared, url=os.environ[_URL])
    chosen = modules_or_configured(modules)
    if not chosen:
        raise InvalidOption(
            "no module with jobs is named; write jobrunner work MODULE, or modules = [...] in [tool.jobrunner]"
        )
    wanted = WorkOptions(modules=chosen, **options)
    wanted.check()
    metrics = MetricsAddress(host=metrics_host, port=metrics_port, token=metrics_token)
    metrics.check()
    log_to_stderr(wanted.log_format, wanted.log_level)
    os.environ.update(choose(conf=conf))  # inherited by children
    if processes is not None or reload:
        return _supervise(shared, wanted, processes or 1, metrics, watched=Path.cwd() if reload else None)
    renewal = Restart()
    load_modules(wanted.imported)  # first, as a module may configure the client
    if declaring := sys.modules.get("jobrunner.etl.pipeline"):  # most applications have no pipelines
        for pipeline in declaring.all_pipelines():
            pipeline.check()
    own = import_module("jobrunner.etl.pipeline").find_pipeline(wanted.pipeline).own_client if wanted.pipeline else None
    return work_here(shared, wanted, lifeline, chosen_client(shared, own), renewal, metrics)


def _supervise(
    shared: CommonOptions, wanted: WorkOptions, processes: int, metrics: MetricsAddress, watched: Path | None
) -> int:
    supervisor = Supervisor([worker_command(shared, wanted)] * processes, watched=watched, leave_s=wanted.leave_s)
    with metrics.serving(None, supervisor.health) as endpoint, ExitStack() as clients:
        if endpoint is not None:
            supervisor.on_client = lambda url, prefix: endpoint.use(clients.enter_context(Client(url, prefix)))
        return supervisor.run()


def cap_of(text: str) -> tuple[str, int]:
    """The queue and the number of `thumbnails=4`. Raises InvalidName, InvalidOption."""
    name, equals, most = text.partition("=")
    if not (equals and most.isascii() and most.isdecimal() and int(most[:9]) > 0 and len(most) < 9):
        raise InvalidOption(f"--max-per-queue {text!r}: write NAME=N, such as thumbnails=4, with a whole number from 1")
    split_queue(name)
    return name, int(most)


def worker_command(shared: CommonOptions, wanted: WorkOptions) -> list[str]:
    """The command line of a worker process for this. Puts the URL into the environment, which such a process inherits
    and, other than its arguments, only its owner can read."""
    found = [sys.executable, "-m", "jobrunner", "work"]
    if shared.url:
        os.environ[_URL] = shared.url
        found.append("--url-of-environment")
    return found + _words(shared, wanted)


def _words(shared: CommonOptions, wanted: WorkOptions) -> list[str]:
    found = [*wanted.modules, *(f"--queue={name}" for name in wanted.queues)]
    found += [f"--gate={gate}" for gate in wanted.gates]
    found += [f"--max-per-queue={cap}" for cap in wanted.max_per_queue]
    for name in ("concurrency", "min_concurrency", "executor", "max_tasks", "max_memory", "grace", "heartbeat",
                 "unknown_grace", "events", "log_format", "log_level"):  # fmt: skip
        found.append(f"--{name.replace('_', '-')}={getattr(wanted, name)}")
    for name in ("burst", "drain", "allow_eviction", "otel"):
        if getattr(wanted, name):
            found.append(f"--{name.replace('_', '-')}")
    if wanted.pipeline:
        found.append(f"--pipeline={wanted.pipeline}")
    if wanted.release is not None:
        found.append(f"--release={wanted.release}")
    return found + shared.words()


def chosen_client(shared: CommonOptions, otherwise: Client | None = None) -> Client:
    """The client of this process: `otherwise`, else as a module configured it; at the address of the command line, if
    that names one."""
    if not (shared.url or shared.prefix):
        return otherwise or current_client()
    in_code = otherwise or configured_client()
    if in_code is None:
        return configure(shared.url, shared.prefix)
    return use(Client.like(shared.at_address(in_code.settings)))


def work_here(
    shared: CommonOptions,
    wanted: WorkOptions,
    lifeline: int | None,
    client: Client,
    renewal: Restart,
    metrics: MetricsAddress = NOWHERE,
) -> int:
    """A worker in this process, until it is stopped; returns the exit code. Its modules are loaded."""
    supervisor = None if lifeline is None else Lifeline(lifeline)
    if supervisor is None:
        announce_start(client)
    else:
        supervisor.report_client(client)
    worker = _worker(wanted, client, None if supervisor is None else supervisor.report)
    IDENTITY.worker = worker.id
    claim_children()
    if supervisor is None:
        ask_at_signals(lambda: renewal.stop(worker.ask_to_stop), lambda: renewal.ask(worker.ask_to_stop))
        report_to_service_manager(lambda: worker.health()[0], lambda: _is_alive(worker))
    else:
        ask_at_signals(worker.ask_to_stop, lambda: supervisor.report(DUE))
        supervisor.ask_at_end(worker.ask_to_stop)
    streams = sys.stdout, sys.stderr
    with metrics.serving(client, worker.health), _ending_after_errors(wanted.grace):
        summary = worker.run(burst=wanted.burst, drain=wanted.drain)
    if supervisor is not None:
        supervisor.report(OVER)
    sys.stdout, sys.stderr = streams  # a job may have put others there, as redirect_stdout on two threads does
    if shared.as_json:
        echo(json.dumps(asdict(summary)))
    worker.client.close()
    return _leave(summary, wanted.grace, renewal)


def _worker(wanted: WorkOptions, client: Client, report: Callable[[str], None] | None) -> Worker:
    return Worker(
        wanted.imported,
        wanted.queues or None,
        wanted.concurrency,
        client,
        allow_eviction=wanted.allow_eviction,
        max_per_queue=wanted.caps,
        gates=wanted.gates,
        min_concurrency=wanted.min_concurrency,
        executor=wanted.executor,
        grace=wanted.grace,
        max_tasks=wanted.max_tasks,
        max_memory=wanted.max_memory,
        heartbeat=wanted.heartbeat,
        unknown_grace=wanted.unknown_grace,
        events=wanted.events,
        release=wanted.release,
        report=report,
    )


def _is_alive(worker: Worker) -> bool:
    """Whether it is not to be restarted: it works, or it stops, for which it has its grace."""
    is_well, report = worker.health()
    return is_well or report["problem"] == "stopped"


@contextmanager
def _ending_after_errors(grace_s: float) -> Iterator[None]:
    """Has the process end some time after an error: the interpreter waits for threads that jobs left behind (see
    `_leave`), and a worker that lost its descriptors might wait for one of them in its exit handlers."""
    try:
        yield
    except Exception as error:
        exit_within(_BROKEN_FAREWELL_S if isinstance(error, WorkerBroken) else grace_s)
        raise


def _leave(summary: WorkerSummary, grace_s: float, renewal: Restart) -> int:
    # The interpreter waits for threads that jobs left behind, and nothing can end those: they get as long as tasks get.
    # A task that was handed back still runs here, and another worker may begin it, so exit handlers get only a second.
    end = threading.Timer(_RELEASED_FAREWELL_S if summary.released else grace_s, renewal.leave)
    end.daemon = True
    end.start()
    return 0
