"""`jobrunner pipeline push`: pushes one item from the command line, or one for each line of stdin."""

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import click

from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, talk
from jobrunner.cli.suggestions import check_queue, pipeline_queues, with_create
from jobrunner.client.client import Client
from jobrunner.client.item import Item
from jobrunner.client.queue import Queue
from jobrunner.errors import JobrunnerError, UsageError
from jobrunner.etl.graph import full_name
from jobrunner.etl.pipeline import Pipeline, find_pipeline
from jobrunner.formatting import counted
from jobrunner.jobs.registry import load_modules

_AT_ONCE = 1000
"""Lines between two updates of the progress of `push -`."""
_EXAMPLES = """\b
Examples:
  jobrunner pipeline push orders/raw '{"id": 7}' -m myapp.orders
  jobrunner pipeline push orders/raw - < orders.jsonl
  zcat orders.jsonl.gz | jobrunner pipeline push orders/raw - --priority 0
"""


@click.command(epilog=_EXAMPLES)
@click.argument("target", metavar="NAME/QUEUE", shell_complete=pipeline_queues)
@click.argument("payload", metavar="JSON|-")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module that declares the pipeline; default: modules of [tool.jobrunner]. Repeatable.")  # fmt: skip
@click.option("--in", "in_", type=seconds_of, metavar="S",
              help="Delay before the item is due: 90 (seconds), 5m, 2h, 1d.")  # fmt: skip
@click.option("--priority", type=int, metavar="0..2", help="Higher runs first.")
@with_create
@with_shared_options
def push(
    shared: CommonOptions, target: str, payload: str, modules: tuple[str, ...], create: bool, **options: Any
) -> None:
    """Push an item into QUEUE of pipeline NAME and print its id.

    `-` reads one item from each line of stdin. When a module declares the pipeline, the command checks the queue's
    name and writes its settings first; without a module the queue must exist, or be served by a worker.
    """
    name, slash, short = target.partition("/")
    if not slash:
        raise click.UsageError(f"{target!r} is no queue of a pipeline; write NAME/QUEUE")
    declared = _declared(name, modules)
    own = None if declared is None else declared.own_client
    with connected(shared, starts=True, like=own) as client:
        queue = _target(client, declared, full_name(name, short), create=create)
        if payload == "-":
            _push_lines(shared, queue, options)
            return
        pushed = queue.push(_read(payload, "the payload"), **options)
    if shared.as_json:
        answer_json({"id": pushed, "queue": queue.name})
    else:
        echo(pushed)


def _declared(name: str, modules: tuple[str, ...]) -> Pipeline | None:
    chosen = modules_or_configured(modules)
    load_modules(chosen)
    return find_pipeline(name) if chosen else None


def _target(client: Client, declared: Pipeline | None, full: str, *, create: bool) -> Queue:
    if declared is not None:
        declared.graph.find(full)
        declared.apply(client)
    else:
        check_queue(client, full, create=create)
    return client.queue(full)


def _push_lines(shared: CommonOptions, queue: Queue, options: dict[str, Any]) -> None:
    pushed = at = last = 0
    sent = deque[int]()
    """Line numbers of items without a reply of the server yet; blank lines are no items."""

    def note(count: int) -> None:
        nonlocal pushed, last
        for _ in range(count - pushed):
            last = sent.popleft()
        pushed = count

    def items(lines: Iterable[bytes]) -> Iterator[Item]:
        nonlocal at
        for at, line in enumerate(lines, 1):
            if line.strip():
                item = Item(_read(line, f"line {at}"), **options)
                sent.append(at)
                yield item

    def done() -> str:
        return f"{counted(pushed, 'item')} were pushed into {queue.name}{f', up to line {last}' if last else ''}"

    try:
        with _bar() as advance:
            queue.push_all(items(_lines(advance)), progress=note)
    except JobrunnerError as error:
        # A wrong item is detected before the next line is read, a refusal by the server later.
        where = f" line {at}" if isinstance(error, UsageError) else ""
        talk(f"of the lines before{where}, {done()}")
        raise
    except BaseException:  # Ctrl-C, SIGTERM, a failed read: the reply for the last items may have been on its way
        talk(f"interrupted: {done()}, and maybe the next ones")
        raise
    if shared.as_json:
        answer_json({"queue": queue.name, "pushed": pushed})
    else:
        echo(f"pushed {counted(pushed, 'item')} into {queue.name}")


def _lines(advance: Callable[[list[bytes]], None]) -> Iterator[bytes]:
    while some := list(islice(sys.stdin.buffer, _AT_ONCE)):
        yield from some
        advance(some)


def _read(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
        raise UsageError(
            f"{what} is no JSON: {shown.strip()[:60]!r} ({error}); a text is written '\"like this\"'"
        ) from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is a number of Python and not of JSON")


@contextmanager
def _bar() -> Iterator[Callable[[list[bytes]], None]]:
    """Shows the progress on a terminal: a bar when stdin is a file, else the number of lines."""
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
        click.echo(f"\rPushing  {total:,} lines", nl=False, err=True)  # `echo` would show the control character

    yield tell
    echo("", err=True)
