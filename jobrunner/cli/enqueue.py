"""`jobrunner enqueue`: one task of a job, with parameters from the command line."""

import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from jobrunner.cli.options import (
    CommonOptions,
    connected,
    modules_or_configured,
    redaction,
    seconds_of,
    with_shared_options,
)
from jobrunner.cli.output import answer_json, echo, talk
from jobrunner.cli.suggestions import check_queue, job_names, queue_names, with_create
from jobrunner.errors import InvalidOption, ParameterError, UnknownJob
from jobrunner.formatting import describe
from jobrunner.jobs.build import build_task
from jobrunner.jobs.declared_queues import declared_names
from jobrunner.jobs.enqueue_options import EnqueueOptions
from jobrunner.jobs.registry import JobDefinition, all_jobs, find, load_modules, lookup
from jobrunner.option_names import check_names, nearest

_FEW = 10
_EXAMPLES = """\b
Examples:
  jobrunner enqueue myapp.jobs.SendWelcomeEmail address=ada@example.org
  jobrunner enqueue SendWelcomeEmail address=ada@example.org -m myapp.jobs
  jobrunner enqueue add x=1 y=2 --in 5m --priority 2
  jobrunner enqueue report 'days=[1, 2]' --at 2030-01-01T03:00:00+01:00
  jobrunner enqueue report --expires-in 1h --max-attempts 1 --timeout 5m --header tenant=acme
"""


def instant(text: str) -> datetime:
    """The datetime of an ISO 8601 text with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no instant; write 2030-01-01T03:00:00Z") from error
    if found.tzinfo is None:
        raise click.BadParameter(f"{text} has no time zone; write {found.isoformat()}Z for UTC, or its offset, +01:00")
    return found


@click.command(epilog=_EXAMPLES)
@click.argument("name", shell_complete=job_names)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module that declares the job; default: modules of [tool.jobrunner]. Repeatable.")  # fmt: skip
@click.option("--in", "in_", type=seconds_of, metavar="S",
              help="Delay before the task is due: 90 (seconds), 5m, 2h, 1d.")  # fmt: skip
@click.option("--at", type=instant, metavar="ISO", help="Instant at which the task is due, with its UTC offset.")
@click.option("--priority", type=int, metavar="0..2", help="Higher runs first; default: the priority of the job.")
@click.option("--queue", metavar="NAME", shell_complete=queue_names, help="Queue; default: the queue of the job.")
@click.option("--id", "task_id", metavar="ID",
              help="Task id; default: a new one. Enqueueing the same id again changes nothing.")  # fmt: skip
@click.option("--expires-in", type=seconds_of, metavar="S",
              help="A task that has not started by then goes to dead; default: as the job declares.")  # fmt: skip
@click.option("--max-attempts", type=int, metavar="N",
              help="Attempts before the task is dead; 1: no retry, 0: no limit; default: as the job.")  # fmt: skip
@click.option("--timeout", type=seconds_of, metavar="S", help="Time limit of one attempt; default: that of the job.")
@click.option("--result-ttl", type=seconds_of, metavar="S",
              help="How long the finished task stays readable; 0 deletes it at once; default: as the job.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="Header that travels with the task. Repeatable.")  # fmt: skip
@with_create
@with_shared_options
def enqueue(
    shared: CommonOptions,
    name: str,
    words: tuple[str, ...],
    modules: tuple[str, ...],
    in_: float | None,
    at: datetime | None,
    priority: int | None,
    queue: str | None,
    task_id: str | None,
    expires_in: float | None,
    max_attempts: int | None,
    timeout: float | None,
    result_ttl: float | None,
    headers: tuple[str, ...],
    create: bool,
) -> None:
    """Enqueue one task of the job NAME and print its id.

    NAME is the name of a job in the modules of -m or [tool.jobrunner], or a job with its module, as in
    myapp.jobs.SendWelcomeEmail, which is then imported. A VALUE is read as JSON if that gives the parameter's
    type, else as text. A --queue that neither exists nor is declared is refused, unless --create is given: no worker
    would take the task.
    """
    definition = named_job(name, modules_or_configured(modules))
    options = EnqueueOptions(
        in_=in_, at=at, priority=priority, queue=queue, id=task_id, expires_in=expires_in, max_attempts=max_attempts,
        timeout=timeout, result_ttl=result_ttl, headers=read_headers(headers),
    )  # fmt: skip
    task = build_task(definition, read_parameters(definition, words), options)
    with connected(shared, starts=True) as client:
        check_queue(client, queue, create=create, declared=declared_names())
        sent = client.enqueue(task)
    if not sent.is_new:
        talk(f"no new task: {sent.id} is there already, see `jobrunner tasks show`")
    if shared.as_json:
        answer_json({"id": sent.id, "queue": task.queue, "type": task.type, "is_new": sent.is_new})
    else:
        echo(sent.id)


def named_job(name: str, modules: tuple[str, ...]) -> JobDefinition:
    """The job of that name, or the job at MODULE.NAME. Raises UnknownJob, ModuleNotLoadable."""
    load_modules(modules)
    module, _, attribute = name.rpartition(".")
    if find(name) is not None or (modules and not module):
        return lookup(name)
    dotted = name.replace(":", ".")  # other programs take module:name, which may be the name of a job here
    if not module:
        wanted = f"MODULE.{name}" if dotted == name else dotted
        raise UnknownJob(f"unknown job {name!r}: no module is named; write {wanted}, or add -m MODULE")
    load_modules([module])
    target = getattr(sys.modules[module], attribute, None)
    declared = getattr(target, "definition", None)
    is_inherited = isinstance(target, type) and "definition" not in vars(target)
    if isinstance(declared, JobDefinition) and not is_inherited:
        return declared
    there = [one.name for one in all_jobs() if one.origin.startswith(f"{module}:")]
    if attribute in there:  # declared with name=… of its own
        return lookup(attribute)
    hint = nearest(attribute, there) if dotted == name else f"write {dotted}"
    raise UnknownJob(f"module {module!r} has no job {attribute!r}; {hint}")


def read_parameters(definition: JobDefinition, words: Iterable[str]) -> Any:
    """The parameters of a job. Raises ParameterError, UnknownOption for one that the job does not have."""
    struct = definition.parameters.struct
    hints = get_type_hints(struct, include_extras=True)
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ParameterError(f"{word!r} is no parameter; write name=value")
        check_names([name], struct.__struct_fields__, f"parameter of job {definition.name!r}")
        if name in given:
            raise ParameterError(f"parameter {name} is given twice; give it once")
        given[name] = _read(name, text, hints.get(name, Any), definition.name)
    return struct(**given)


def read_headers(words: Iterable[str]) -> dict[str, str] | None:
    """The headers of `NAME=VALUE` words; None for none. Raises InvalidOption."""
    headers: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InvalidOption(f"--header {describe(word)}: write NAME=VALUE")
        if name in headers:
            raise InvalidOption(f"--header {describe(name)} is given twice; give it once")
        headers[name] = value
    return headers or None


def _read(name: str, text: str, expected: Any, job: str) -> Any:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:  # of bytes that are no UTF-8
        raise ParameterError(f"parameter {name} of job {job!r} is no UTF-8; give a text") from error
    try:
        return msgspec.json.decode(raw, type=expected)
    except (msgspec.MsgspecError, ValueError):
        pass
    try:
        return msgspec.convert(text, expected)
    except (msgspec.MsgspecError, ValueError) as error:
        hides = redaction().hides(name)
        given, why = ("not" if hides else f"{text!r}; it must be"), ("" if hides else f": {error}")
        wanted = f"{_wanted(expected)}{why}{_how(expected)}"
        raise ParameterError(f"parameter {name} of job {job!r} is {given} {wanted}") from error


def _wanted(expected: Any) -> str:
    """The type of a parameter, with the values that there are when they are few."""
    if get_origin(expected) is Literal:
        return f"one of {', '.join(map(repr, get_args(expected)[:_FEW]))}"
    if isinstance(expected, type) and issubclass(expected, Enum):
        return f"{expected.__name__}, one of {', '.join(repr(one.value) for one in islice(expected, _FEW))}"
    return expected.__name__ if isinstance(expected, type) else str(expected)


def _how(expected: Any) -> str:
    """How a value that is no plain text is written in a shell."""
    if get_origin(expected) in (Union, UnionType):
        return next((how for part in get_args(expected) if (how := _how(part))), "")
    kind = get_origin(expected) or expected
    if kind is bool:
        return "; write true or false"
    if kind in (list, tuple, set, frozenset):
        return """; write JSON, as '["a", "b"]'"""
    is_object = kind is dict or is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
    return """; write JSON, as '{"a": 1}'""" if is_object else ""
