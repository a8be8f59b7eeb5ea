"""The report on an archive: its figures against a plain count in Python, its files, its page."""

import csv
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.errors import InvalidOption, UsageError
from jobrunner.spark.history.archive_files import read_archive
from jobrunner.spark.history.report import Report, build_report
from jobrunner.spark.history.report_aggregates import measured
from jobrunner.spark.history.report_html import write_page
from jobrunner.spark.history.report_output import presented, write_csv, write_parquet

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
SPLIT = START + timedelta(seconds=300)
SCHEMA = (
    "_id string, _queue string, _type string, _state string, _attempts int, _enqueue_time timestamp, "
    "_due_time timestamp, _started_at timestamp, _finished_at timestamp, _error string, payload string, "
    "date date, queue string, window string"
)


def task(number: int) -> dict[str, Any]:
    """Three jobs on two queues, one with two shards, a task each second; `Slow` runs ten times as long on host 3, and
    twice after the split."""
    job = ("Welcome", "Slow", "")[number % 3]
    due = START + timedelta(seconds=number)
    is_dead = number % 20 == 0
    run_s = 0.1 * (1 + number % 7) * (2 if job == "Slow" and due >= SPLIT else 1)
    run_s *= 10 if job == "Slow" and number % 8 == 3 else 1
    started = due + timedelta(seconds=0.01 * (number % 11))
    return {
        "_id": f"t{number}",
        "_queue": ("mail", "mail@1")[number % 2] if job else "orders/raw",
        "_type": job,
        "_state": "dead" if is_dead else "succeeded",
        "_attempts": 2 if number % 10 == 0 else 1,
        "_enqueue_time": due - timedelta(hours=1),
        "_due_time": due,
        "_started_at": started,
        "_finished_at": started + timedelta(seconds=run_s),
        "_error": f"TimeoutError: host {number} is away\nTraceback" if number % 10 == 0 else None,
        "payload": f'{{"host": {number % 8}, "n": {number}}}' if number % 50 else "no json",
        "date": due.date(),
        "queue": "mail" if job else "orders/raw",
        "window": "0-1",
    }


TASKS = [task(number) for number in range(600)]


@pytest.fixture(scope="module")
def archive(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("archive") / "history")
    _frame(spark, TASKS).coalesce(1).write.partitionBy("date", "queue", "window").parquet(path)
    return path


@pytest.fixture(scope="module")
def made(spark: Any, archive: str) -> Report:
    """It is the same in every time zone of the session."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # where it is always the next day
    try:
        return build_report(read_archive(spark, archive), source=archive, split_at=SPLIT)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture(scope="module")
def instant(spark: Any, archive: str) -> Report:
    """On one job, whose runs took no time."""
    history = read_archive(spark, archive, jobs=["Slow"]).withColumn("_run_ms", F.lit(0))
    return build_report(history, source=archive, split_at=SPLIT)


def _frame(spark: Any, rows: list[dict[str, Any]]) -> Any:
    columns = [name.split()[0] for name in SCHEMA.split(", ")]
    return spark.createDataFrame([tuple(one[name] for name in columns) for one in rows], SCHEMA)


def rank(values: list[float], share: float) -> float:
    return sorted(values)[max(round(share * len(values)) - 1, 0)]


def run_s(one: dict[str, Any]) -> float:
    length: float = (one["_finished_at"] - one["_started_at"]).total_seconds()
    return length


def test_each_group_has_the_figures_that_a_plain_count_has(made: Report) -> None:
    for name, column, group in (("jobs", "_type", "job"), ("queues", "queue", "queue")):
        found = {row[group]: row for row in made.table(name).records()}
        for value in {one[column] for one in TASKS}:
            alike = [one for one in TASKS if one[column] == value]
            row = found[value or "(no job)"]
            assert row["tasks"] == len(alike)
            assert row["dead"] == pytest.approx(mean(one["_state"] == "dead" for one in alike))
            assert row["retried"] == pytest.approx(mean(one["_attempts"] > 1 for one in alike))
            waits = [(one["_started_at"] - one["_due_time"]).total_seconds() for one in alike]
            for share, told in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
                assert row[f"run_{told}"] == pytest.approx(rank([run_s(one) for one in alike], share), rel=0.02)
                assert row[f"wait_{told}"] == pytest.approx(rank(waits, share), abs=0.011)


def test_queues_are_told_apart_from_jobs_only_where_they_differ(made: Report, instant: Report) -> None:
    assert made.queue_of_job == {}  # two jobs share a queue
    assert instant.queue_of_job == {"Slow": "mail"}
    assert "queues" not in [one.name for one in presented(instant)]


def test_jobs_that_are_too_short_to_measure_have_runs_of_no_length(instant: Report) -> None:
    assert instant.table("jobs").records()[0]["run_p99"] == 0
    assert instant.table("parameters").rows == ()
    assert {row["change"] for row in instant.table("change").records() if row["figure"].startswith("run")} == {None}


def test_a_run_is_what_the_worker_measured_and_the_wait_is_the_time_before(spark: Any, archive: str) -> None:
    history = read_archive(spark, archive, jobs=["Slow"]).withColumn("_run_ms", F.expr("if(_attempts = 1, 40, null)"))
    found = measured(history.where("_id in ('t1', 't10')")).orderBy("attempts").collect()
    (once, again), (one, ten) = found, (TASKS[1], TASKS[10])
    assert (once.run_s, once.wait_s) == pytest.approx((0.04, run_s(one) + 0.01 - 0.04))
    assert (again.run_s, again.wait_s) == pytest.approx((run_s(ten), 0.1)), "from being handed out to the report"


def test_throughput_adds_up_and_hours_are_those_of_the_clock(made: Report) -> None:
    rows = made.table("throughput").records()
    assert sum(row["succeeded"] + row["dead"] + row["cancelled"] for row in rows) == 600
    assert sum(row["per_s"] * made.bucket_s for row in rows) == pytest.approx(600)
    assert [row["from"] for row in rows] == sorted(row["from"] for row in rows)
    assert made.table("hours").column("hour") == ["08"]
    (summary,) = made.table("summary").records()
    assert (summary["tasks"], summary["dead"]) == (600, 30 / 600)


def test_errors_that_differ_in_their_numbers_alone_are_one(made: Report) -> None:
    (row,) = made.table("errors").records()
    assert (row["error"], row["tasks"], row["dead"]) == ("TimeoutError: host … is away", 60, 30)
    assert row["jobs"] == "(no job), Slow, Welcome"


def test_the_parameter_that_makes_a_job_slow_comes_first(made: Report) -> None:
    first = made.table("parameters").records()[0]
    assert (first["job"], first["parameter"], first["value"]) == ("Slow", "host", "3")
    assert first["factor"] > 3
    alike = [one for one in TASKS if one["_type"] == "Slow" and '"host": 3' in one["payload"]]
    assert first["tasks"] == len(alike)
    assert first["run_mean"] == pytest.approx(mean(map(run_s, alike)))
    assert "n" not in made.table("parameters").column("parameter")  # each value once: nothing to learn


def test_a_change_is_told_where_it_was_and_not_where_it_was_not(made: Report) -> None:
    rows = {(row["job"], row["figure"]): row for row in made.table("change").records()}
    slow, calm = rows["Slow", "run mean"], rows["Welcome", "run mean"]
    assert slow["verdict"] == "clearly more"
    assert slow["after"] / slow["before"] == pytest.approx(2, rel=0.3)
    assert (calm["verdict"], rows["Slow", "dead"]["verdict"]) == ("no clear change", "no clear change")
    before = [run_s(one) for one in TASKS if one["_type"] == "Welcome" and one["_finished_at"] < SPLIT]
    assert calm["before"] == pytest.approx(1000 * mean(before))


def test_a_change_of_tasks_whose_starts_lie_after_their_ends_has_no_runs_and_its_waits(spark: Any) -> None:
    """As where the clock of a worker is wrong."""
    wrong = [one | {"_started_at": one["_finished_at"] + timedelta(seconds=9)} for one in TASKS[300:]]
    change = build_report(_frame(spark, TASKS[:280] + wrong), source="a", split_at=SPLIT).table("change").records()
    figures = {row["figure"]: row["verdict"] for row in change if row["job"] == "all jobs"}
    assert figures["wait mean"] == "clearly more"
    assert "run mean" not in figures


def test_filters_leave_out_queues_jobs_and_times(spark: Any, archive: str) -> None:
    def count(**chosen: Any) -> int:
        return int(read_archive(spark, archive, **chosen).count())

    assert count(queues=["orders/*"]) == 200
    assert count(queues=["mail", "orders/raw"]) == 600
    assert count(queues=["mai"]) == 0
    assert count(jobs=["Slow"]) == 200
    ended = [one["_finished_at"] for one in TASKS]
    assert count(since=SPLIT) == sum(one >= SPLIT for one in ended)
    assert count(until=SPLIT) == sum(one < SPLIT for one in ended)


def test_what_cannot_be_told_is_an_error_that_says_why(spark: Any, archive: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no finished tasks that the filters select"):
        build_report(read_archive(spark, archive, jobs=["Unknown"]), source=archive)
    with pytest.raises(UsageError, match="name an instant in between"):
        build_report(read_archive(spark, archive), source=archive, split_at=START - timedelta(days=1))
    with pytest.raises(InvalidOption, match="cannot be read as an archive: it is not there; make one: jobrunner"):
        read_archive(spark, str(tmp_path / "nothing"))
    (tmp_path / "damaged").mkdir()
    with pytest.raises(InvalidOption, match="cannot be read as an archive: no task is in it; make one: jobrunner"):
        read_archive(spark, str(tmp_path / "damaged"))
    (tmp_path / "damaged" / "part-0.parquet").write_bytes(b"PAR1")
    for place, reason in ((tmp_path / "damaged", "FAILED_READ_FILE"), ("s3://bucket/history", "No FileSystem for")):
        with pytest.raises(InvalidOption, match=reason) as told:
            read_archive(spark, str(place))
        assert str(told.value).startswith(f"{place} cannot be read as an archive: ")
        assert "\tat " not in str(told.value)
    spark.range(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(InvalidOption, match="has no column _id"):
        read_archive(spark, str(tmp_path / "other"))


def test_a_damaged_file_among_others_is_named_in_one_line(spark: Any, archive: str, tmp_path: Path, cli: Any) -> None:
    """Spark takes the columns from one file, and meets the other in its queries."""
    copy = shutil.copytree(archive, tmp_path / "copy")
    damaged = copy / "date=2099-01-01" / "queue=mail" / "window=0-1" / "part-0.parquet"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PAR1")
    told = cli("history", "report", "--from", str(copy))
    assert told.code == 2
    assert re.fullmatch(rf"Error: {copy} cannot be read as an archive: .*{damaged.name}\b.*", told.line)


def test_tables_are_written_as_csv_and_parquet(made: Report, tmp_path: Path) -> None:
    for path in write_csv(made, tmp_path / "csv"):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(made.table(path.stem).rows)
    (jobs,) = (path for path in write_parquet(made, tmp_path / "parquet") if path.stem == "jobs")
    assert pq.read_table(jobs).to_pylist() == made.table("jobs").records()


def test_the_page_stands_alone_and_its_plots_are_well_formed(made: Report, tmp_path: Path) -> None:
    text = write_page(made, tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", text)
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) >= 6
    for plot in plots:
        root = ET.fromstring(plot)
        titles = [node.text for node in root.iter("text") if node.get("class") == "axis"]
        assert titles, "an axis has a title"
    assert "prefers-color-scheme:dark" in text
    assert "TimeoutError: host … is away" in text
