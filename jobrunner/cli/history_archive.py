"""`jobrunner history archive`: finished and dead tasks from Redis to Parquet."""

from functools import partial

import click

from jobrunner.cli.options import CommonOptions, connected, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, table, talk
from jobrunner.cli.progress_bar import rising
from jobrunner.cli.suggestions import queue_names
from jobrunner.clock import perf_counter
from jobrunner.formatting import counted, duration

_EXAMPLES = """\b
Examples:
  jobrunner history archive --to archive
  jobrunner history archive --to archive --queue 'orders/*' --trim
  jobrunner history archive --to s3a://bucket/history --json
"""


@click.command(epilog=_EXAMPLES)
@click.option("--to", "path", required=True, metavar="PATH", help="Folder or URL of the archive, as Spark writes to.")
@click.option("--queue", "likes", multiple=True, metavar="PATTERN", shell_complete=queue_names,
              help="Only queues that match: mail, 'orders/*'. Repeatable.")  # fmt: skip
@click.option("--trim", is_flag=True, help="Deletes archived tasks from Redis.")
@click.option("--lag", "lag_s", type=seconds_of, default="5s", show_default=True, metavar="S",
              help="Leaves tasks that ended within this time to the next run.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master URL: spark://host:7077; default: this machine.")
@with_shared_options
def archive(
    shared: CommonOptions, path: str, likes: tuple[str, ...], trim: bool, lag_s: float, master: str | None
) -> None:
    """Appends finished and dead tasks to a Parquet archive, each exactly once, also when it is interrupted.

    Takes the tasks that finished since the last run, of queues that keep history (configure(history=…)), and the
    dead tasks of all queues. Run it regularly, for example from cron. Needs Spark: pip install "jobrunner[spark]".
    """
    from jobrunner.spark.session import spark_session  # starts nothing; its errors tell what is missing

    began = perf_counter()
    spark = spark_session(master=master)
    from jobrunner.spark.history.archive import archive as run  # needs Spark

    watch = partial(rising, label="Archiving", noun="rows")
    with connected(shared) as client:
        done = run(spark, client, path, likes=likes, trim=trim, lag_s=lag_s, tell=talk, watch=watch)
    for warning in done.warnings:
        talk(f"Warning: {warning}")
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
