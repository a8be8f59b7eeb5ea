"""`jobrunner history report`: statistics of an archive of finished tasks."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from jobrunner.cli.options import CommonOptions, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, echo, table, talk
from jobrunner.cli.suggestions import queue_names
from jobrunner.clock import perf_counter, utc_now
from jobrunner.etl.spark_conf import conf_of_options
from jobrunner.formatting import counted, duration

if TYPE_CHECKING:
    from jobrunner.spark.history.report import Report

_EXAMPLES = """\b
Examples:
  jobrunner history report --from archive
  jobrunner history report --from archive --queue 'orders/*' --from-time 24h --html report.html
  jobrunner history report --from iceberg:lake.db.history
  jobrunner history report --from archive --split-at 2026-11-20T20:00 --csv figures
"""
_MOST_LINES = 40


def instant(text: str) -> datetime:
    """The aware instant of `2026-11-20T20:00+01:00`, of the same without a zone (UTC), or of `2h`: that long ago.

    Raises click.BadParameter.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return _ago(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _ago(text: str) -> datetime:
    try:
        return utc_now() - timedelta(seconds=seconds_of(text))
    except (click.BadParameter, OverflowError) as error:
        hint = "write 2026-11-20T20:00 (UTC), or 2h for 2 hours ago"
        raise click.BadParameter(f"{text!r} is no instant; {hint}") from error


@click.command(epilog=_EXAMPLES)
@click.option("--from", "path", required=True, metavar="PATH",
              help="Folder or URL of the archive, as Spark reads from, or its table: delta:/lake/history.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="PATTERN", shell_complete=queue_names,
              help="Only queues that match: mail, 'orders/*'. Repeatable.")  # fmt: skip
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only tasks of this job. Repeatable.")
@click.option("--from-time", "since", type=instant, metavar="WHEN",
              help="Only tasks that ended at this time or later: 2026-11-20T20:00, 2h (ago).")  # fmt: skip
@click.option("--to-time", "until", type=instant, metavar="WHEN", help="Only tasks that ended before this time.")
@click.option("--split-at", type=instant, metavar="WHEN",
              help="Compares tasks that ended before and after this time, for example a release.")  # fmt: skip
@click.option("--csv", "csv_to", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder to write each table to, as CSV.")  # fmt: skip
@click.option("--parquet", "parquet_to", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder to write each table to, as Parquet.")  # fmt: skip
@click.option("--html", "html_to", type=click.Path(path_type=Path), metavar="FILE",
              help="File to write, as one HTML page with plots.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master URL: spark://host:7077; default: this machine.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@with_shared_options
def report(
    shared: CommonOptions,
    path: str,
    queues: tuple[str, ...],
    jobs: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    split_at: datetime | None,
    csv_to: Path | None,
    parquet_to: Path | None,
    html_to: Path | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Report on an archive: throughput, times and failures.

    Also slow parameters, and the effect of a change. Prints the tables, unless an option writes them to files.
    Needs the extra spark.
    """
    from jobrunner.spark.session import spark_session  # starts nothing; its errors tell what is missing

    for option, target in (("--csv", csv_to), ("--parquet", parquet_to), ("--html", html_to)):
        if target is not None:
            _check_target(option, target, target.parent if target is html_to else target)
    began = perf_counter()
    spark = spark_session(master=master, **conf_of_options(conf))
    from jobrunner.spark.history.archive_files import read_archive, reading  # needs Spark
    from jobrunner.spark.history.report import build_report
    from jobrunner.spark.ui_names import job_names

    rows = read_archive(spark, path, queues=queues, jobs=jobs, since=since, until=until)
    selected = _selected(queues, jobs, since, until)
    with job_names(spark, f"history report --from {path}"), reading(path):
        made = build_report(rows, source=path, split_at=split_at, selected=selected)
    written = _write(made, csv_to, parquet_to, html_to)
    (tasks,) = made.table("summary").column("tasks")
    talk(f"{counted(tasks, 'task')} in {duration(perf_counter() - began)}")
    if shared.as_json:
        answer_json(made.as_json() | {"written": written})
    elif written:
        echo("\n".join(map(str, written)))
    else:
        echo(_text(made))


def _check_target(option: str, target: Path, folder: Path) -> None:
    """Raises click.BadParameter for a target that cannot be written, before Spark works for minutes. `folder`: the
    folder of the files, which may not exist yet. Creates nothing."""
    problem = ""
    if target != folder and target.exists():
        problem = "it is a folder" if target.is_dir() else "" if os.access(target, os.W_OK) else "permission denied"
    else:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            TemporaryFile(dir=folder).close()
        except OSError as error:
            problem = str(error.strerror)
    if problem:
        raise click.BadParameter(f"{target} cannot be written: {problem}; name another place", param_hint=option)


def _write(made: "Report", csv_to: Path | None, parquet_to: Path | None, html_to: Path | None) -> list[Path]:
    from jobrunner.spark.history.report_html import write_page
    from jobrunner.spark.history.report_output import write_csv, write_parquet  # needs Spark's extra

    written = [] if csv_to is None else write_csv(made, csv_to)
    written += [] if parquet_to is None else write_parquet(made, parquet_to)
    return written + ([] if html_to is None else [write_page(made, html_to)])


def _text(made: "Report") -> str:
    from jobrunner.spark.history.report_output import presented, shown  # needs Spark's extra

    parts = []
    for one in presented(made):
        headings, rows = shown(one)
        note = f"  ({one.note})" if one.note else ""
        body = table([heading.upper() for heading in headings], rows[:_MOST_LINES]) if rows else "none"
        more = f"\n… {len(rows) - _MOST_LINES} more" if len(rows) > _MOST_LINES else ""
        parts.append(f"{one.title}{note}\n{body}{more}")
    return "\n\n".join(parts)


def _selected(
    queues: tuple[str, ...], jobs: tuple[str, ...], since: datetime | None, until: datetime | None
) -> dict[str, str]:
    filters = {"queue": ", ".join(queues), "job": ", ".join(jobs)}
    filters |= {name: when.isoformat() for name, when in (("from", since), ("until", until)) if when is not None}
    return {name: text for name, text in filters.items() if text}
