"""`jobrunner history`: list, replay, purge, archive and report on finished tasks."""

import secrets
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import click

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import check_id, check_name
from jobrunner.cli.events import noted
from jobrunner.cli.history_report import report
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, not_empty, seconds_of, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, rising, table, talk, warn
from jobrunner.cli.queues import purge_state
from jobrunner.cli.suggestions import check_queue, queue_names
from jobrunner.cli.task_lists import (
    LIMIT,
    QUEUE,
    TaskConditions,
    find_tasks,
    nothing_found,
    show_list,
    with_conditions,
)
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.queue import Queue
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import perf_counter
from jobrunner.errors import EncryptionError, PayloadObjectChanged, PayloadObjectMissing, TaskGone, UsageError
from jobrunner.etl.spark_conf import conf_of_options
from jobrunner.formatting import counted, duration
from jobrunner.inspector.shards import known_queues

_SETTINGS_AT_ONCE = 500
_EXAMPLES = """\b
Examples:
  jobrunner history list mail --limit 20
  jobrunner history replay mail 01a1fe85769b0000c6650a2fcc89-mail
  jobrunner history archive --to archive --trim
  jobrunner history report --from archive --html report.html
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def history() -> None:
    """List, replay, archive, delete and report on finished tasks."""


history.add_command(report)


_LIST_EXAMPLES = """\b
Examples:
  jobrunner history list mail --limit 20
  jobrunner history list --job Invoice --since 2h --until 1h
  jobrunner history list --param customer=17 --wide
"""


@history.command("list", epilog=_LIST_EXAMPLES)
@QUEUE
@with_conditions
@LIMIT
@with_wide
@with_shared_options
def list_(shared: CommonOptions, queue: str | None, conditions: TaskConditions, limit: int, wide: bool) -> None:
    """List the finished tasks that QUEUE, or any queue, keeps.

    Those that meet all conditions, the latest first. --since and --until are of the time at which a task finished.
    """
    with connected(shared) as client:
        check_queue(client, queue)
        hides = client.redaction()
        found = find_tasks(client, conditions.filter(queue, "done"), limit, hides)
        nothing = "" if found.records else _nothing(client, queue, conditions, found.problems)
    show_list(shared, hides, found, nothing, wide=wide)


@history.command(epilog="Example:  jobrunner history purge mail --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def purge(shared: CommonOptions, queue: str, yes: bool) -> None:
    """Delete the finished tasks that QUEUE keeps."""
    purge_state(shared, queue, "done", yes=yes)


def _nothing(client: Client, queue: str | None, conditions: TaskConditions, unread: Container[str]) -> str:
    names = [name for name in (known_queues(client, {}) if queue is None else [queue]) if name not in unread]
    if names and not _some_keep_history(client, names):
        which = "no queue keeps history" if queue is None else f"queue {queue} keeps no history"
        return f"{which}; jobrunner queues limit {queue or 'QUEUE'} --history 7d has it keep one"
    return nothing_found(queue, "finished", conditions)


def _some_keep_history(client: Client, names: Sequence[str]) -> bool:
    for some in in_slices(names, _SETTINGS_AT_ONCE):
        stored = broker_of(client).run_many([queues.settings(keys_of(client).queue(name)) for name in some])
        if any(one.history is not None or one.history_max is not None for one in map(read_settings, stored)):
            return True
    return False


_REPLAY_EXAMPLES = """\b
Examples:
  jobrunner history replay mail 01a1fe85769b0000c6650a2fcc89-mail
  jobrunner history replay mail --where "get_json_object(payload, '$.to') = 'ada'" --dry-run
  jobrunner history replay --from archive --where "_state = 'dead' AND _finished_at > '2026-11-20'"
"""


@history.command(epilog=_REPLAY_EXAMPLES)
@click.argument("queue", required=False, callback=not_empty, shell_complete=queue_names)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--where", metavar="SQL", callback=not_empty,
              help="SQL expression that selects the tasks, in place of ids; needs Spark.")  # fmt: skip
@click.option("--from", "path", metavar="PATH",
              help="Archive to read, a folder or table, in place of the history in Redis.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only counts the tasks.")
@click.option("--replay-id", metavar="NAME",
              help="Name of this replay; a second run with it enqueues only missing tasks.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master URL: spark://host:7077; default: this machine.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@with_shared_options
def replay(
    shared: CommonOptions,
    queue: str | None,
    ids: tuple[str, ...],
    where: str | None,
    path: str | None,
    dry_run: bool,
    replay_id: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Enqueue finished tasks again, each as a new task.

    The new task has the header replayed_from. By ids: tasks of QUEUE; prints the new ids, and exits with 1 after
    naming the ids that were not replayed. By --where: the tasks of QUEUE (a pattern; default: all queues) that
    match a SQL expression on the columns of the history: _id, _queue, _type, _state, _attempts, _enqueue_time,
    _finished_at, _error, _result, payload, and more.
    """
    if where is None:
        _replay_ids(shared, queue, ids, may=path is None and not dry_run and replay_id is None)
        return
    if ids:
        raise click.UsageError("give ids or --where, not both")
    name = check_name(replay_id or f"replay-{secrets.token_hex(4)}", "replay id")
    _replay_selected(shared, queue, where, path, dry_run, name, master, conf)


def _replay_ids(shared: CommonOptions, queue: str | None, ids: tuple[str, ...], *, may: bool) -> None:
    if queue is None or not ids or not may:
        raise click.UsageError(
            "no tasks are selected; give QUEUE and ids; or --where SQL, with --from, --dry-run and --replay-id"
        )
    asked = [check_id(one) for one in dict.fromkeys(ids)]
    replayed: dict[str, str] = {}
    unfit: dict[str, Exception] = {}
    try:
        with (
            connected(shared, starts=True) as client,
            noted(client, "task.replay", queue, lambda: f"enqueued {len(replayed)} again", asked),
        ):
            gone = _replay_each(client.queue(queue), asked, replayed, unfit)
    finally:
        _answer(shared, queue, replayed)  # also when the server went away in the middle
    missing = f"not in the history of queue {queue}: {', '.join(gone)}" if gone else ""
    if unfit:
        reason = f"not replayed: {', '.join(unfit)}: {next(iter(unfit.values()))}"
        raise Refusal(f"{missing}; {reason}" if missing else reason)
    if gone:
        raise Refusal(f"{missing}; jobrunner history list shows what is")


def _replay_selected(
    shared: CommonOptions, queue: str | None, where: str, path: str | None, dry_run: bool, name: str,
    master: str | None, conf: tuple[str, ...],
) -> None:  # fmt: skip
    from jobrunner.spark.session import spark_session  # starts nothing; its errors tell what is missing

    spark = spark_session(master=master, **conf_of_options(conf))
    from jobrunner.spark.history import replay as spark_replay  # needs Spark
    from jobrunner.spark.history.archive import read_history
    from jobrunner.spark.history.archive_files import read_archive
    from jobrunner.spark.ui_names import job_names

    with connected(shared, starts=True) as client, job_names(spark, f"history replay {name}"):
        if path is None:
            found = read_history(spark, client, queue or "*")
        else:
            found = read_archive(spark, path, queues=[queue] if queue else [])
        selected = spark_replay.select(found, where)
        if dry_run:
            _tell_count(shared, spark_replay.count(selected))
            return
        talk(f"replay {name}; after a crash run it again with --replay-id {name}")
        where_to = spark_replay.Replay(name=name, url=endpoint_of(client).shared_url(), prefix=client.settings.prefix)
        added = "some"  # for an interrupted replay: Spark counts at the end
        with noted(client, "task.replay", f"{queue or 'all queues'} where {where}",
                   lambda: f"enqueued {added} again, {name}"):  # fmt: skip
            done = spark_replay.replay(selected, where_to)
            added = f"{sum(one.added for one in done.values()):,}"
    if shared.as_json:
        answer_json({"replay_id": name, "queues": done})
    elif done:
        rows = [(queue, one.added, one.there) for queue, one in done.items()]
        echo(table(("QUEUE", "REPLAYED", "THERE BEFORE"), rows))
    else:
        talk("no finished tasks were selected")


def _tell_count(shared: CommonOptions, found: dict[str, int]) -> None:
    if shared.as_json:
        answer_json({"would_replay": found})
    elif found:
        echo(table(("QUEUE", "WOULD BE REPLAYED"), list(found.items())))
    else:
        talk(f"{counted(0, 'finished task')} would be replayed")


def _replay_each(
    queue: Queue, ids: list[str], replayed: dict[str, str], unfit: dict[str, Exception]
) -> list[str]:  # fmt: skip
    """Returns the ids that are not in the history. `unfit` receives the ids that cannot be replayed, each with its
    error. Such an id must not stop the ids after it: a second try would enqueue all ids before it once more."""
    gone = []
    for one in ids:
        try:
            replayed[one] = queue.replay(one)
        except TaskGone:
            gone.append(one)
        except (EncryptionError, PayloadObjectChanged, PayloadObjectMissing, UsageError) as error:
            unfit[one] = error
    return gone


def _answer(shared: CommonOptions, queue: str, replayed: dict[str, str]) -> None:
    if shared.as_json and replayed:
        answer_json({"queue": queue, "replayed": replayed})
    else:
        for new in replayed.values():
            echo(new)


_ARCHIVE_EXAMPLES = """\b
Examples:
  jobrunner history archive --to archive
  jobrunner history archive --to archive --queue 'orders/*' --trim
  jobrunner history archive --to s3a://bucket/history --json
  jobrunner history archive --to delta:/lake/history --trim
"""


@history.command(epilog=_ARCHIVE_EXAMPLES)
@click.option("--to", "path", required=True, metavar="PATH",
              help="Folder or URL of the archive, as Spark writes to, or a table: delta:/lake/history, "
                   "iceberg:catalog.db.history.")  # fmt: skip
@click.option("--queue", "likes", multiple=True, metavar="PATTERN", shell_complete=queue_names,
              help="Only queues that match: mail, 'orders/*'. Repeatable.")  # fmt: skip
@click.option("--trim", is_flag=True, help="Deletes archived tasks from Redis.")
@click.option("--lag", "lag_s", type=seconds_of, default="5s", show_default=True, metavar="S",
              help="Leaves tasks that ended within this time to the next run.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master URL: spark://host:7077; default: this machine.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@with_shared_options
def archive(
    shared: CommonOptions, path: str, likes: tuple[str, ...], trim: bool, lag_s: float, master: str | None,
    conf: tuple[str, ...],
) -> None:  # fmt: skip
    """Append finished and dead tasks to an archive.

    An archive is a folder of Parquet, or a table of Delta Lake or Iceberg. Writes each task exactly once, also when it
    is interrupted. Takes the tasks that finished since the last run, of queues that keep history (queues limit
    --history), and the dead tasks of all queues. Run it regularly, for example from cron. Needs the extra spark, for a
    table lake.
    """
    from jobrunner.spark.session import spark_session  # starts nothing; its errors tell what is missing

    began = perf_counter()
    spark = spark_session(master=master, **conf_of_options(conf))
    from jobrunner.spark.history.archive import archive as run  # needs Spark
    from jobrunner.spark.ui_names import job_names

    watch = partial(rising, label="Archiving", noun="rows")
    with connected(shared, starts=True) as client, job_names(spark, f"history archive --to {path}"):
        trimming = partial(_noted_trim, client, path, likes)
        done = run(
            spark, client, path, likes=likes, trim=trim, lag_s=lag_s, tell=talk, watch=watch, trimming=trimming
        )
    for warning in done.warnings:
        warn(warning)
    total, took_s = sum(done.rows.values()), perf_counter() - began
    took = duration(took_s)
    talk(f"{counted(total, 'task')} in {took}, {total / took_s:,.0f} a second; up to {done.until.isoformat()}")
    if shared.as_json:
        answer_json(done)
        return
    if done.rows:
        echo(table(("QUEUE", "ARCHIVED"), sorted(done.rows.items())))
    if trim:
        echo(f"deleted {counted(done.trimmed, 'task')} from Redis")


@contextmanager
def _noted_trim(client: Client, path: str, likes: tuple[str, ...]) -> Iterator[Callable[[int], None]]:
    """Writes the number of deleted tasks into the audit log, also when trimming is interrupted."""
    gone = 0

    def deleted(total: int) -> None:
        nonlocal gone
        gone = total

    what = " ".join(likes) or "all queues"
    with noted(client, "history.trim", what, lambda: f"deleted {counted(gone, 'task')} that {path} has"):
        yield deleted
