"""`jobrunner lake`: services for tables of a lakehouse that sinks write."""

from datetime import timedelta

import click

from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, talk

_EXAMPLES = """\b
Examples:
  jobrunner lake compact delta:/lake/late
  jobrunner lake clean iceberg:lake.flights.late --dry-run
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def lake() -> None:
    """Compact and clean up tables of a lakehouse."""


@lake.command(epilog="Example:  jobrunner lake compact delta:/lake/late")
@click.argument("table")
@with_shared_options
def compact(shared: CommonOptions, table: str) -> None:
    """Rewrite the small files of TABLE into large ones.

    TABLE is as in spark_sink(table=...): delta:/path or iceberg:catalog.namespace.table. Sinks may write to it
    meanwhile. Needs the extra lake; starts no Spark and asks no server.
    """
    from jobrunner.spark.lake.services import compact_table  # needs the extra

    files = compact_table(table)
    if shared.as_json:
        answer_json({"table": table, "files": files})
    else:
        talk(f"{files} small files rewritten" if files else "no small files")


@lake.command(epilog="Example:  jobrunner lake clean delta:/lake/late --older-than 30d")
@click.argument("table")
@click.option("--older-than", type=seconds_of, default="8d", show_default=True, metavar="S",
              help="Age of versions and of files of unknown attempts that are removed.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only lists the files.")
@with_shared_options
def clean(shared: CommonOptions, table: str, older_than: float, dry_run: bool) -> None:
    """Remove files that no version of TABLE names, and old versions.

    Files of attempts that ended go at once, others when they are old. Give --older-than 0 only while nothing writes
    to the table.
    """
    from jobrunner.spark.lake.services import clean_up_table  # needs the extra

    done = clean_up_table(table, older_than=timedelta(seconds=older_than), dry_run=dry_run)
    if shared.as_json:
        answer_json(done)
        return
    for name in done.files:
        echo(name)
    talk(f"{len(done.files)} files {'would be removed' if dry_run else 'removed'}")
