"""The texts and the page of a report, from figures that no Spark computed."""

import re
from dataclasses import replace

import pytest

from jobrunner.spark.history.report import ReportColumn, Table
from jobrunner.spark.history.report_html import page
from jobrunner.spark.history.report_output import presented, shown
from tests.support.history_report import report


def test_jobs_with_a_queue_each_are_one_table_with_both_names():
    made = report(queue_of_job={"Welcome": "mail", "Fetch<": "web"})

    names = [one.name for one in presented(made)]
    (jobs,) = (one for one in presented(made) if one.name == "jobs")

    assert names == ["summary", "throughput", "jobs"]
    assert [row[:3] for row in jobs.rows] == [("Welcome", "mail", 1_234_567), ("Fetch<", "web", 1_234_567)]
    assert "each job has a queue of its own" in jobs.note
    assert page(made).count("<h2>By") == 1
    assert jobs.note in page(made)


def test_hours_of_the_day_are_a_table_of_their_own_from_a_day_on():
    assert [one.name for one in presented(report())][-1] == "jobs"
    assert [one.name for one in presented(report(hours=24))][2:] == ["queues", "jobs", "hours"]


def test_counts_have_separators_and_only_zero_reads_as_zero():
    headings, (cells, _) = shown(report().table("queues"))

    assert cells[:6] == ["mail", "1,234,567", "2,469", "0", "<0.01", "0"]
    assert headings[5:9] == ["wait p50, ms", "wait p95, ms", "wait p99, ms", "run p50, s"]


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (12.3456, "+1,234.56"), (-1e-6, ">-0.01"), (1e-6, "<0.01")])
def test_changes_have_a_sign(value, text):
    column = ReportColumn(name="change", title="change", kind="change")
    assert shown(Table(name="change", title="", columns=(column,), rows=((value,),)))[1] == [[text]]


def test_cards_fill_their_rows_and_zero_is_drawn_at_the_floor():
    text = page(report())

    assert text.count('<div class="facts"><div>') == 1
    assert len(re.findall(r"<div><b>", text)) == 6
    assert "p95 500 · p99 1,000" in text
    failures = next(part for part in text.split("<section>") if "Failures and retries" in part)
    assert "10,000" not in failures
    floor = max(float(y) for y in re.findall(r'class="grid"[^>]*y1="([\d.]+)"', failures))
    (zero,) = re.findall(r'class="bad" cx="[\d.]+" cy="([\d.]+)"[^>]*><title>[^<]* 08:00:00 ', failures)
    assert float(zero) == floor


def test_a_change_shows_what_is_clear_and_folds_the_rest():
    columns = tuple(ReportColumn(name=name, title=name) for name in ("job", "figure", "verdict"))
    rows = (("all jobs", "tasks", ""), ("Fetch", "dead", "clearly more"), ("Fetch", "retried", "no clear change"))
    made = report()
    made = replace(made, tables=(*made.tables, Table(name="change", title="Change", columns=columns, rows=rows)))

    shown_first, folded = page(made).split("<h2>Change</h2>")[1].split("<details>")

    assert "clearly more" in shown_first
    assert "no clear change" not in shown_first
    assert "no clear change" in folded


def test_names_cannot_break_out_of_the_page():
    assert "Fetch<" not in page(replace(report(), source="Fetch<"))
