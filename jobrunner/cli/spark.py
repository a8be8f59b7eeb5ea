"""`jobrunner spark`: maintenance of files and tables that sinks on Spark wrote."""

from datetime import timedelta
from functools import partial

import click

from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, bytes_of, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, rising, table, talk
from jobrunner.clock import perf_counter
from jobrunner.etl.table_sink import is_table
from jobrunner.formatting import duration, size

_EXAMPLES = """\b
Examples:
  jobrunner spark compact /data/late
  jobrunner spark compact /data/late --older-than 1h --size 256MB --dry-run
  jobrunner spark compact delta:/lake/late
  jobrunner spark clean iceberg:lake.flights.late --dry-run
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def spark() -> None:
    """Maintain what sinks on Spark have written."""


@spark.command(epilog=_EXAMPLES)
@click.argument("target")
@click.option("--older-than", "older_than_s", type=seconds_of, default="10m", show_default=True, metavar="S",
              help="Leaves folders that were written to within this time.")  # fmt: skip
@click.option("--size", "largest", type=bytes_of, default="128MB", show_default=True, metavar="BYTES",
              help="Size that merged files come to, about.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only counts the files.")
@with_shared_options
def compact(shared: CommonOptions, target: str, older_than_s: float, largest: int, dry_run: bool) -> None:
    """Merge the small files of batches into few large ones.

    TARGET is the path that a sink passes to write_batch, or a table of a lakehouse, as in spark_sink(table=...); a
    table is rewritten in one transaction, without the options. Each row stays there once, also when this is killed (run
    it again), while stations write, and when a batch comes again. Needs the extra spark, for a table lake; starts no
    Spark and asks no server.
    """
    if is_table(target):
        _compact_table(shared, target)
        return
    from jobrunner.spark.compaction import compact as run  # needs the extra

    began = perf_counter()
    done = run(
        target, older_than_s=older_than_s, size=largest, dry_run=dry_run,
        watch=partial(rising, label="Compacting", noun="bytes"),
    )  # fmt: skip
    for one in done.skipped:
        talk(f"Left as it is: {one}")
    if done.recovered:
        talk("an earlier run had died while it switched folders; that was carried out to its end")
    if shared.as_json:
        answer_json(done)
        return
    after = "AFTER, IF RUN" if dry_run else "AFTER"
    rows = [("folders", done.folders_before, done.folders_after), ("files", done.files_before, done.files_after)]
    echo(table(("", "BEFORE", after), rows))
    if not dry_run:
        talk(f"{size(done.bytes_merged)} merged in {duration(perf_counter() - began)}")


def _compact_table(shared: CommonOptions, name: str) -> None:
    from jobrunner.spark.lake.services import compact_table  # needs the extra

    files = compact_table(name)
    if shared.as_json:
        answer_json({"table": name, "files": files})
    else:
        talk(f"{files} small files rewritten" if files else "no small files")


@spark.command(epilog="Example:  jobrunner spark clean delta:/lake/late --older-than 30d")
@click.argument("table")
@click.option("--older-than", type=seconds_of, default="8d", show_default=True, metavar="S",
              help="Age of versions and of files of unknown attempts that are removed.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only lists the files.")
@with_shared_options
def clean(shared: CommonOptions, table: str, older_than: float, dry_run: bool) -> None:
    """Remove files that no version of TABLE names, and old versions.

    TABLE is delta:/path or iceberg:catalog.namespace.table. Needs the extra lake. Files of attempts that ended go at
    once, others when they are old. Give --older-than 0 only while nothing writes to the table.
    """
    from jobrunner.spark.lake.services import clean_up_table  # needs the extra

    done = clean_up_table(table, older_than=timedelta(seconds=older_than), dry_run=dry_run)
    if shared.as_json:
        answer_json(done)
        return
    for name in done.files:
        echo(name)
    talk(f"{len(done.files)} files {'would be removed' if dry_run else 'removed'}")
