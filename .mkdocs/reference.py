"""The reference pages, generated from the code: ``python .mkdocs/reference.py`` writes docs/reference/.

`PAGES` maps the path of a page to the function that makes it. The pages are committed, so that they can be read without
a build; a test in tests/contracts fails when they are not those of the code.
"""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from copy import copy
from importlib.resources import files
from pathlib import Path
from typing import Any, get_overloads

import click

sys.path.insert(0, str(Path(__file__).parent))

import python_api

from jobrunner import due_ticks, errors, queue_settings, settings
from jobrunner.broker import keys as all_keys
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.inspector.stats_types import Timings
from jobrunner.jobs import decorator
from jobrunner.jobs.decorator import job
from jobrunner.jobs.enqueue_options import EnqueueKeywords
from jobrunner.metrics.exposition import families
from jobrunner.metrics.reading import MetricsReading
from jobrunner.worker import settings as worker_settings

OPTION_GROUPS = {
    "Name and queue": ("name", "queue", "priority", "partition_by", "unique"),
    "Attempts": ("max_attempts", "backoff", "retry_on", "max_stalled", "on_crash", "ack"),
    "Time": ("timeout", "keepalive", "expires_in", "result_ttl"),
    "Periodic jobs": ("every", "cron", "tz", "catch_up", "overlap", "jitter"),
    "Jobs that poll": ("poll_every",),
}
"""The options of @job under headings; a test compares them with its parameters."""
VARIABLES = {
    "JOBRUNNER_URL": "The server, when no argument names one.",
    "REDIS_URL": "The same, when JOBRUNNER_URL is not set.",
    "JOBRUNNER_PREFIX": "The prefix of all keys.",
    "JOBRUNNER_MIDDLEWARE": "Middleware as `module:Name`, with commas between; see [middleware](../middleware.md).",
    "JOBRUNNER_REDACT": "Names of parameters to hide, with commas between them; see [security](../security.md).",
    "JOBRUNNER_LOG_LEVEL": "The least level of log lines, when no option names one: debug, info, warning, error",
    "JOBRUNNER_RELEASE": "The release of the application that a worker runs, when no argument names one",
    "JOBRUNNER_PAYLOAD_KEYS": "Keys that encrypt payloads, with commas between them; see [security](../security.md).",
    "JOBRUNNER_PAYLOAD_STORE": "The URL of the store for large payloads; see [payload store](../payload-store.md).",
    "JOBRUNNER_PAYLOAD_STORE_ABOVE": "Payloads of at most so many bytes stay on the server, also with a payload store.",
    "JOBRUNNER_PROCESS": "Set by a worker for processes that its jobs start, which are killed together with it.",
    "JOBRUNNER_SPARK_MASTER": "The master of the Spark session, instead of a local one.",
    "JOBRUNNER_SPARK_REMOTE": "A Spark Connect server for the session.",
    "JOBRUNNER_SPARK_CONF": "Settings of Spark's own for the session, as a JSON object.",
    "JOBRUNNER_DASHBOARD_TOKEN": "The token that the dashboard asks for: unlike --token it is not seen in `ps`.",
    "JOBRUNNER_DASHBOARD_BASIC": "USER:PASSWORD[:ROLE] of the dashboard, for the same reason.",
    "JOBRUNNER_DASHBOARD_USER_TOKEN": "USER:TOKEN[:ROLE] of the dashboard; several with spaces between them.",
    "JOBRUNNER_DASHBOARD_SECRET": "Signs the dashboard's forms; the same for several dashboards behind a proxy.",
    "JOBRUNNER_METRICS_TOKEN": "The token that `/metrics` of `jobrunner work --metrics-port` asks for.",
    "PROMETHEUS_MULTIPROC_DIR": "The folder for metrics that jobs define; see [monitoring](../monitoring.md).",
    "OTEL_TRACES_EXPORTER": "`otlp`, `console` or `none`, for `jobrunner work --otel`; see [tracing](../tracing.md).",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "How `--otel` sends spans: `http/protobuf` (the default) or `grpc`.",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "The same, for spans alone; it comes first.",
    "OTEL_SERVICE_NAME": "The name of the service in spans; else `jobrunner`.",
}


def overview() -> str:
    """The list of the other pages."""
    rows = [(f"[{title}]({Path(path).name})", _line(make.__doc__).rstrip(".")) for path, (title, make) in PAGES.items()]
    how = "Generated from the code by `python .mkdocs/reference.py`: change the docstrings there, not these pages."
    return "\n\n".join(["# Reference", how, _table(("page", "holds"), rows[1:])])


def job_options() -> str:
    """Every option of the decorator: what it does, and its default."""
    said = _options_of(inspect.getdoc(job) or "")
    how = "See [jobs](../jobs.md) for how to use them. `Duration` is a number of seconds or a `timedelta`."
    parts = ["# Options of `@job`", how]
    of_options = get_overloads(job)[-1]  # that of @job(option=…)
    parameters = inspect.signature(of_options, eval_str=True, globals=vars(decorator) | vars(due_ticks)).parameters
    for title, names in OPTION_GROUPS.items():
        rows = [(f"`{name}`", _type_of(parameters[name]), said[name]) for name in names]
        parts += [f"## {title}", _table(("option", "type", "what it does"), rows)]
    parts.append((inspect.getdoc(job) or "").rpartition("\n\n")[2])
    of_call = _table(("option", "what it does"), [
        (f"`{name}`", text) for name, text in _options_of(inspect.getdoc(EnqueueKeywords) or "").items()
    ])  # fmt: skip
    return "\n\n".join([*parts, "## Options of one enqueue", of_call])


def _options_of(doc: str) -> dict[str, str]:
    """Option → text of the docstring of @job, where each option begins a line and its text may go on."""
    lines = doc.partition("\n\n")[2].splitlines()
    found: dict[str, str] = {}
    for line in lines:
        begin = re.match(r"([a-z_]+) {2,}(.+)", line)
        if begin:
            found[begin[1]] = begin[2]
        elif line.startswith(" ") and found:
            found[[*found][-1]] += " " + line.strip()
    return {name: f"{text[0].upper()}{text[1:]}" for name, text in found.items()}


def _type_of(parameter: inspect.Parameter) -> str:
    """The types of an option in words: what a table has room for."""
    text = python_api.shorter(str(parameter).partition(": ")[2].rpartition(" = ")[0])
    words = [word for mark, word in (("type[", "error classes"), ("Callable[", "function")) if mark in text]
    plain = re.sub(r"(type|tuple|Callable)\[.*|Union\[", "", text)
    kinds = [kind for kind in re.split(r"[\], |]+", plain) if kind not in ("", "None", "NoneType")]
    return ", ".join([*(f"`{kind}`" for kind in kinds), *words])


def configuration() -> str:
    """Settings by who has them, then variables of the environment."""
    order = "The first of these counts: argument, environment, `[tool.jobrunner]` in `pyproject.toml`, default."
    parts = ["# Settings", order]
    for owner, title in (
        (settings.ClientSettings, "Client: `configure(…)`, `Client(…)`"),
        (queue_settings.QueueSettings, "Queue: `queue.configure(…)`, `jobrunner queues limit`"),
        (queue_settings.RateLimit, "Rate limit: `RateLimit(15, per=timedelta(hours=1))`, or in parts"),
        (worker_settings.WorkerSettings, "Worker: `Worker(…)`"),
        (settings.FileSettings, "File: `[tool.jobrunner]` in `pyproject.toml`"),
    ):
        told = fields_of(owner)
        real = {one.name: one.default for one in dataclasses.fields(owner)}
        rows = [(f"`{name}`", _default(default, real[name]), said) for name, default, said in told]
        parts += [f"## {title}", _table(("setting", "default", ""), rows)]
    rows = [(f"`{name}`", said) for name, said in VARIABLES.items()]
    return "\n\n".join([*parts, "## Environment", _table(("variable", ""), rows)])


def commands() -> str:
    """The help of every command."""
    parts = ["# Command line", "Exit code 0: done. 1: no. 2: usage error. Results go to stdout, messages to stderr."]
    for words, command in walk(command_line, ("jobrunner",)):
        command = copy(command)
        setattr(command, "_help_option", None)  # noqa: B010  click keeps the option with the names of the first context
        context = click.Context(
            command, info_name=" ".join(words), max_content_width=80, terminal_width=80,
            help_option_names=command_line.context_settings["help_option_names"],
        )  # fmt: skip
        parts += [f"## {' '.join(words)}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts)


def error_tree() -> str:
    """The tree, then each error."""
    tree = (errors.__doc__ or "").partition("::")[2]
    rows = [(f"`{name}`", _line(found.__doc__)) for name, found in vars(errors).items() if isinstance(found, type)]
    drawn = f"```text\n{inspect.cleandoc(tree)}\n```"
    return "\n\n".join(["# Errors", "All of them are in `jobrunner.errors`.", drawn, _table(("error", ""), rows)])


def keys() -> str:
    """The table of keys."""
    lines = (all_keys.__doc__ or "").splitlines()
    first, last = (n for n, line in enumerate(lines) if line.startswith("====")), len(lines)
    _, begin, end = (*first, last)[:3]
    rows: list[list[str]] = []
    for line in lines[begin + 1 : end]:
        if line.startswith("``"):
            key, kind, *said = line.split(None, 2) if " " not in line[: line.rindex("``")] else _split_key(line)
            rows.append([f"`{key.strip('`')}`", kind, " ".join(said)])
        else:
            rows[-1][2] += f" {line.strip()}"
    shown = [[name, kind, said.replace("``", "`")] for name, kind, said in rows]
    told = (
        "`P` is the prefix, `tag` the hash tag, which keeps a queue, or all queues of a pipeline, in one slot of a "
        "cluster; `Q` is the name of the queue. Keys are not an interface: read them with `redis-cli` to understand a "
        "problem, and never write them."
    )
    return "\n\n".join(["# Keys", told, _table(("key", "type", "content"), shown)])


def scripts() -> str:
    """What each Lua script does, from its header."""
    parts = ["# Scripts", "Each transition is one script, so no crash can leave a task between two states."]
    folder = files("jobrunner.broker") / "lua"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".lua"):
            head = []
            for line in path.read_text("utf-8").splitlines()[2:]:
                if not line.startswith("--"):
                    break
                head.append(line.removeprefix("--").removeprefix(" "))
            parts += [f"## {path.name.removesuffix('.lua')}", "```text\n" + "\n".join(head) + "\n```"]
    return "\n\n".join(parts)


def events() -> str:
    """Every kind of event, and what an event has."""
    module = importlib.import_module("jobrunner.events")
    kinds = [(f"`{kind}`", said) for kind, said in module.KINDS.items()]
    has = [(f"`{name}`", said) for name, _, said in fields_of(module.Event)]
    told = inspect.cleandoc(module.__doc__ or "")
    how = "Follow them with `jobrunner events`; see [monitoring](../monitoring.md)."
    return "\n\n".join(["# Events", told, how, _table(("kind", "when, and its details"), kinds), "## Fields",
                        _table(("field", ""), has)])  # fmt: skip


def metrics() -> str:
    """Every metric as Prometheus has it, with its type, labels and help."""
    rows = [
        (f"`{name}`", family.type, ", ".join(family._labelnames), family.documentation)  # noqa: SLF001 - in no text
        for name, family in sorted(metric_families().items())
    ]
    how = "See [monitoring](../monitoring.md) for the endpoint."
    return "\n\n".join(["# Metrics", how, _table(("metric", "type", "labels", ""), rows)])


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/README.md": ("Reference", overview),
    "reference/python.md": ("Python API", python_api.api),
    "reference/job-options.md": ("Options of @job", job_options),
    "reference/settings.md": ("Settings", configuration),
    "reference/commands.md": ("Command line", commands),
    "reference/errors.md": ("Errors", error_tree),
    "reference/keys.md": ("Keys", keys),
    "reference/scripts.md": ("Scripts", scripts),
    "reference/events.md": ("Events", events),
    "reference/metrics.md": ("Metrics", metrics),
}


def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below one, itself first, with the words that call it; hidden ones are left out."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk(below, (*words, name))


def _default(written: str, real: object) -> str:
    """A default as the code writes it; the value of a constant and of `field(…)`."""
    if re.match(r"field\(|[A-Z_]+$", written):
        return "" if real is dataclasses.MISSING else f"`{real!r}`"
    return f"`{written}`" if written else ""


def fields_of(owner: type) -> list[tuple[str, str, str]]:
    """(name, default as written, docstring) of the fields of a class."""
    return [(name, default, said) for name, _, default, said in python_api.declared_in(owner)]


def metric_families() -> dict[str, Any]:
    """The families of a scrape of an empty server, by their names in queries: those of counters end with _total."""
    server = ServerFacts(
        name="valkey", version="", maxmemory=0, maxmemory_policy="noeviction", used_memory=0, clients=0, aof=True
    )
    reading = MetricsReading(
        queues=[], others=[], ended={}, measured={}, stations={}, lags=[], streams=[], round_trip=Timings(), workers=[],
        leader=None, periodics=[], server=server, is_list_unread=False, unread={},
    )  # fmt: skip
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in families(reading)}


def _line(doc: str | None) -> str:
    return " ".join((doc or "").split())


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _split_key(line: str) -> list[str]:
    key, rest = line[2:].split("``", 1)
    return [key, *rest.split(None, 1)]


def write_pages(docs: Path) -> list[Path]:
    """Writes the pages that differ below a folder, and returns them."""
    written = []
    for path, (_, make) in PAGES.items():
        target, text = docs / path, make() + "\n"
        if not target.is_file() or target.read_text("utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
            written.append(target)
    return written


if __name__ == "__main__":
    for changed in write_pages(Path(__file__).parents[1] / "docs"):
        print(changed)
