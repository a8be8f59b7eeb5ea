"""`jobrunner spark`: maintenance of what sinks on Spark have written."""

from functools import partial

import click

from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, bytes_of, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, rising, table, talk
from jobrunner.clock import perf_counter
from jobrunner.formatting import duration, size

_EXAMPLES = """\b
Examples:
  jobrunner spark compact /data/late
  jobrunner spark compact /data/late --older-than 1h --size 256MB --dry-run
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def spark() -> None:
    """Maintain what sinks on Spark have written."""


@spark.command(epilog=_EXAMPLES)
@click.argument("path")
@click.option("--older-than", "older_than_s", type=seconds_of, default="10m", show_default=True, metavar="S",
              help="Leaves folders that were written to within this time.")  # fmt: skip
@click.option("--size", "largest", type=bytes_of, default="128MB", show_default=True, metavar="BYTES",
              help="Size that merged files come to, about.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only counts the files.")
@with_shared_options
def compact(shared: CommonOptions, path: str, older_than_s: float, largest: int, dry_run: bool) -> None:
    """Merge the small files of batches into few large ones.

    PATH is the path that a sink passes to write_batch. Each row stays there once, also when this is killed (run it
    again), while stations write to PATH, and when a batch comes again. Needs the extra spark; starts no Spark and asks
    no server.
    """
    from jobrunner.spark.compaction import compact as run  # needs the extra

    began = perf_counter()
    done = run(
        path, older_than_s=older_than_s, size=largest, dry_run=dry_run,
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
