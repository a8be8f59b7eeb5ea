"""Findings that name a culprit: limits that hold up a backlog, tasks that end workers, jobs that fail."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobrunner import Client, RateLimit
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.records import RunningAttempt, WorkerRecord
from jobrunner.inspector.doctor import Check
from jobrunner.inspector.doctor.attention import (
    failing_checks,
    limit_checks,
    lines_of_lost,
    lost_checks,
    lost_rows,
    stall_checks,
    unserved_checks,
    urgent_checks,
)
from jobrunner.inspector.limit_use import tokens_left
from jobrunner.inspector.snapshot import QueueView, views_and_shards
from jobrunner.inspector.stats import StatsWindow, read_window
from jobrunner.inspector.task_rows import TaskRow
from jobrunner.task import Task

NOW = datetime(2026, 11, 25, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def view(**fields: Any) -> QueueView:
    return QueueView(**{"name": "mail", "waiting": 900, "totals": {}, "workers": 1, "oldest_s": 90.0, **fields})


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"max_inflight": 4, "pending": 4}, "max_inflight is used up, 4 of 4, while 900 wait"),
        ({"max_inflight": 4, "pending": 3}, ""),
        ({"max_inflight": 4, "pending": 4, "oldest_s": 59.0}, ""),
        ({"rate": RateLimit(10, per=60)}, "at its rate of 10/1m, the backlog takes 1 h 30 min: 900 wait, the oldest"),
        ({"rate": RateLimit(180, per=60)}, ""),  # 5 minutes
        ({"rate": RateLimit(10, per=60), "paused": True}, ""),
        ({"rate": RateLimit(10, per=60), "workers": 0}, ""),
        ({"rate": RateLimit(10, per=60), "waiting": 0}, ""),
    ],
)
def test_a_limit_is_named_where_it_holds_up_a_backlog(fields: dict[str, Any], found: str) -> None:
    checks = list(limit_checks(view(**fields)))

    assert [one.found[: len("mail: ") + len(found)] for one in checks] == ([f"mail: {found}"] if found else [])
    assert all(one.queue == "mail" and one.advice for one in checks)


def serving(number: int = 1, **fields: Any) -> WorkerRecord:
    return WorkerRecord(**{
        "id": f"vm.{number}", "host": "vm", "pid": number, "started": NOW, "queues": ("mail",), "concurrency": 2,
        "executor": "threads", "in_hand": 0, "finished": 0, "leads": False, "at": NOW, **fields,
    })  # fmt: skip


def run_of(job: str, since: timedelta) -> RunningAttempt:
    return RunningAttempt("mail", "1", job, 1, round((NOW - since).timestamp() * 1000))


@pytest.mark.parametrize(
    ("workers", "oldest_s", "found", "advice"),
    [
        ([serving(quiet=True)], 61, "no worker takes them: vm.1 is quiet", "jobrunner workers resume vm.1"),
        (
            [serving(1, gate="memory: 92 %"), serving(2, stopping=True)], 61,
            "no worker takes them: vm.1 has a closed gate (memory: 92 %), vm.2 stops", "a gate opens by itself",
        ),
        ([serving(stopping=True)], 61, "no worker takes them: vm.1 stops", "start a worker"),
        (
            [serving(in_hand=2, running=(run_of("Scan", 9 * MINUTE), run_of("Scan", MINUTE)))], 301,
            "no slot of its 1 worker is free: they run Scan (2), the longest for 9 min", "jobrunner workers list",
        ),
        ([serving(in_hand=1)], 301, "although 1 slot of its workers is free", "a limit of its partitions"),
        ([serving(in_hand=1)], 299, "", ""),
        ([serving(quiet=True), serving(2)], 61, "", ""),
        ([serving(quiet=True)], 59, "", ""),
        ([serving(quiet=True, queues=("other",))], 301, "", ""),
    ],
)  # fmt: skip
def test_a_backlog_names_what_keeps_its_workers_from_it(
    workers: list[WorkerRecord], oldest_s: float, found: str, advice: str
) -> None:
    checks = list(stall_checks([view(oldest_s=oldest_s)], workers))

    assert [one.queue for one in checks] == (["mail"] if found else [])
    for check in checks:
        assert check.found.startswith("mail: 900 wait, the oldest for ")
        assert found in check.found
        assert check.advice.startswith(advice)


@pytest.mark.parametrize("fields", [{"paused": True}, {"name": "shop/mail"}, {"max_inflight": 4, "pending": 4}])
def test_a_backlog_with_another_cause_does_not_blame_its_workers(fields: dict[str, Any]) -> None:
    queues = ("mail", "shop/mail")

    assert list(stall_checks([view(oldest_s=900.0, **fields)], [serving(quiet=True, queues=queues)])) == []


def lost(client: Client) -> list[Check]:
    calls = lines_of_lost(client, *views_and_shards(client, []))
    rows = [row for some in broker_of(client).run_many(calls) for row in some] if calls else []
    return list(lost_checks(lost_rows(rows), []))


def test_a_task_that_its_workers_lost_twice_is_found_where_it_waits(client: Client, clock: Any) -> None:
    clock.set()
    queue = client.queue("images")
    client.enqueue(Task(id="poison", queue="images", payload=b"{}", type="Resize", keepalive_ms=1000, max_attempts=9))
    queue.push_many([{"n": n} for n in range(300)])

    assert lost(client) == []
    for ended in range(4):
        assert queue.reserve(1)[0].id == "poison"  # it has kept its place
        if ended == 2:
            (second,) = lost(client)
            assert "was lost by its worker 2 times" in second.found
            assert second.advice.startswith("it is tried again;"), "a suspect is one from the third time on"
        clock.advance(1500)
    (expired,) = lost(client)  # nothing has moved it since its lease ended
    assert "was lost by its worker 3 times" in expired.found
    queue.reserve(2)  # the fourth lease ends
    (check,) = lost(client)

    assert (check.task, check.queue, check.job) == ("poison", "images", "Resize")
    assert "was lost by its worker 4 times" in check.found
    assert check.advice.startswith("it runs alone now;")


def window(*courses: list[tuple[int, int]]) -> StatsWindow:
    """Minutes up to NOW, for each job its (ended, failed)."""
    count = len(courses[0])
    figures = [
        [
            (("payments", f"job{number}", what), by)
            for number, course in enumerate(courses)
            for what, by in (("succeeded", course[step][0] - course[step][1]), ("failed", course[step][1]))
        ]
        for step in range(count)
    ]
    starts = [(NOW - (count - 1 - step) * MINUTE).timestamp() * 1000 for step in range(count)]
    return StatsWindow(starts=starts, step_ms=60_000, hashes=[{}] * count, figures=figures)


def test_the_tokens_that_a_rate_has_left_are_those_of_the_server(client: Client, clock: Any) -> None:
    clock.set()
    queue, rate = client.queue("mail"), RateLimit(10, per=60)
    queue.configure(rate=rate)
    queue.push_many(range(30))

    assert tokens_left(client, "mail", rate) == 10
    assert (len(queue.reserve(30)), tokens_left(client, "mail", rate)) == (10, 0)
    clock.advance(13_000)
    assert (tokens_left(client, "mail", rate), len(queue.reserve(30))) == (2, 2)


def test_those_of_a_queue_with_partitions_are_those_of_all_its_shards(client: Client, clock: Any) -> None:
    clock.set()
    queue, rate = client.queue("mail"), RateLimit(100, per=3600)
    queue.configure(partitions=4, rate=rate)
    queue.push_many(range(300))
    assert tokens_left(client, "mail", rate) == 100

    for count in (1, 3, 36):
        before = tokens_left(client, "mail", rate)
        assert before - tokens_left(client, "mail", rate) == 0
        taken = len(queue.reserve(count))
        assert taken
        assert tokens_left(client, "mail", rate) == before - taken


GOOD, BAD = (100, 2), (100, 90)
RELEASES = {"1.4.1": NOW - 50 * MINUTE, "1.4.2": NOW - 4.5 * MINUTE, "1.5.0": NOW}


def test_a_job_that_fails_is_named_with_the_release_that_was_new() -> None:
    (check,) = failing_checks(window([GOOD] * 55 + [BAD] * 5, [GOOD] * 60), RELEASES, share=0.2,
                              errors={("job0", "payments"): "KeyError: 'currency'"})  # fmt: skip

    assert check.found == (
        "job0 of payments: 470 of 1,500 attempts failed lately, for 5 min, since release 1.4.2; "
        "latest error: KeyError: 'currency'"
    )
    assert (check.queue, check.job) == ("payments", "job0")


def test_no_release_is_blamed_for_failures_that_are_older_or_came_much_later() -> None:
    (always,) = failing_checks(window([BAD] * 60), RELEASES, share=0.2)
    (later,) = failing_checks(window([GOOD] * 40 + [BAD] * 20), RELEASES, share=0.2)

    assert "release" not in always.found
    assert "release" not in later.found
    assert "for 20 min" in later.found


def test_failures_that_ended_minutes_ago_are_named_without_a_beginning() -> None:
    for after in ([GOOD], [GOOD, (0, 0)], [(0, 0), GOOD, (0, 0)]):
        course = [GOOD] * 50 + [BAD] * 6 + after
        (check,) = failing_checks(window(course), {"1.4.2": NOW - 7 * MINUTE}, share=0.2)

        assert check.found.endswith("attempts failed lately")


def test_few_failures_and_those_that_ended_a_while_ago_are_none() -> None:
    assert list(failing_checks(window([(9, 4)] * 1), {}, share=0.2)) == []
    assert list(failing_checks(window([BAD] * 30 + [GOOD] * 30), {}, share=0.2)) == []
    assert list(failing_checks(window([(0, 0)] * 60), {}, share=0.2)) == []


def test_a_window_that_was_read_is_judged(client: Client) -> None:
    now_ms = datetime.now(UTC).timestamp() * 1000
    changes = {"mail send succeeded": 3, "mail send failed": 7, "mail send run:3": 10}
    broker_of(client).run_many(stats_calls.observe(keys_of(client), now_ms, "w", 1, changes))

    (check,) = failing_checks(read_window(client, timedelta(hours=1), "minute"), {}, share=0.2)

    assert check.found == "send of mail: 7 of 10 attempts failed lately"


def test_queues_without_a_worker_are_named_with_most_to_do_first_and_the_rest_in_sum() -> None:
    queues = [view(name=f"q{number}", waiting=number, workers=0) for number in range(1, 6)]

    found = list(unserved_checks(queues))

    assert [one.queue for one in found] == ["q5", "q4", "q3", ""]
    assert found[0].found == "no worker serves q5, with 5 to do"
    assert found[3].found == "no worker serves 2 more queues, with 3 to do"


@pytest.mark.parametrize(
    ("executors", "fate"),
    [
        (["processes"], "it is tried again"),
        (["processes", "threads"], "it runs alone now"),
        (["threads"], "it runs alone now"),
        ([], "it runs alone now"),
    ],
)
def test_a_suspect_runs_alone_unless_all_workers_of_its_queue_have_processes(executors: list[str], fate: str) -> None:
    row = TaskRow(id="t1", type="Send", queue="mail", state="pending", when=None, attempt=1, started=None, enqueued=NOW,
                  error="", lost=3, is_suspect=True)  # fmt: skip
    workers = [
        WorkerRecord(id=f"w{number}", host="h", pid=1, started=None, queues=("mail",), concurrency=1,
                     executor=executor, in_hand=0, finished=0, leads=False)
        for number, executor in enumerate(executors)
    ]  # fmt: skip

    (check,) = lost_checks([row], workers)

    assert check.advice.startswith(f"{fate};")


def test_tasks_that_end_workers_are_more_urgent_than_queues_without_one_and_those_than_limits() -> None:
    row = TaskRow(id="t1", type="Send", queue="mail", state="pending", when=None, attempt=1, started=None, enqueued=NOW,
                  error="", lost=2)  # fmt: skip
    full = [view(name=f"full{number}", max_inflight=4, pending=4) for number in range(9)]

    stalled = view(name="stalled", oldest_s=900.0)
    busy = serving(queues=("stalled",), in_hand=9)

    found = list(urgent_checks([row], [view(name="lonely", workers=0)], [*full, stalled], [busy]))

    assert [one.what for one in found] == ["suspect", "workers", *["limit"] * 5, "slots"]
