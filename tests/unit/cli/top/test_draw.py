"""Frames fit the terminal and say what matters."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from rich.cells import cell_len

from jobrunner.cli.top.draw import frame
from jobrunner.cli.top.state import Screen, press
from jobrunner.inspector.error_groups import ErrorGroups
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import TaskRow
from jobrunner.redaction import Redaction
from jobrunner.task_record import read_record
from jobrunner.worker.run import runner
from tests.unit.cli.top.screens import NOW, group, queue, screen, seen, task


def drawn(screen_: Screen, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in frame(screen_, width, height)]


def one_task(**fields: bytes) -> Screen:
    known = {"id": b"t1", "type": b"send", "queue": b"mail", "enqueue_time": b"1700000000000", "error": b"no"} | fields
    return screen(queue("mail"), page="task", task="t1", record=read_record("dead", "1700000001000", known))


MANY = screen(*[queue(f"queue-number-{n:03}", waiting=n * 1000, dead=n) for n in range(60)])
PAGES = {
    "nothing yet": Screen(),
    "no queues": screen(),
    "queues": MANY,
    "help": press(MANY, "?")[0],
    "groups": screen(
        queue("mail"),
        queue="mail",
        page="tasks",
        state="dead",
        tasks=(),
        groups=ErrorGroups(groups=tuple(group(f"g{n}", release="a1b2c3d4", job="x" * 99) for n in range(99)), dead=7),
    ),
    "tasks": screen(queue("mail"), page="tasks", tasks=tuple(task(f"t{n}") for n in range(99))),
    "no tasks": screen(queue("mail"), page="tasks", tasks=()),
    "task": one_task(payload=b'{"address": "' + b"x" * 500 + b'"}'),
    "away": replace(MANY, trouble="no server at redis://localhost " * 9),
}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 60), (40, 10), (20, 5)])
@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_exactly_the_lines_of_the_terminal_and_no_line_is_wider(
    page: str, width: int, height: int
) -> None:
    lines = drawn(PAGES[page], width, height)

    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [34, 40, 46, 52, 60])
def test_a_count_that_is_seen_is_whole_and_so_are_the_keys_for_help_and_the_end(width: int) -> None:
    lines = drawn(screen(queue("mail", waiting=1204, scheduled=7, pending=16, dead=63)), width, 10)

    (titles,) = [line.split() for line in lines if line.startswith("  QUEUE")]
    (row,) = [line.split() for line in lines if line.startswith("▸ mail")]
    counts = {"WAITING": "1,204", "SCHED": "7", "PEND": "16", "DEAD": "63"}
    assert titles[1:5] == list(counts)[: len(titles) - 1]
    assert len(titles) >= (5 if width >= 40 else 4)
    assert row[2:6] == list(counts.values())[: len(titles) - 1]
    assert not any("…" in word for word in (*titles, *row[:8]))
    assert lines[-1].split("  ")[-2:] == ["? help", "q quit"]


def test_the_first_page_names_rates_states_workers_and_failures_at_80_columns() -> None:
    text = "\n".join(drawn(screen(queue("mail", waiting=1234, pending=3, dead=50_000), queue("other"))))

    for word in (
        *("redis://localhost", "in 1.5/s", "out 20/s", "failed 6/min", "waiting 1,234", "dead 50k", "1 worker"),
        *("▸ mail", "PENDING  (reserved by workers)", "lease 20s", "FAILING MOST", "7 dead", "ValueError: no"),
        "* host.1.abc",
        "12.3k finished",
    ):
        assert word in text, word


GROUPS = ErrorGroups(
    groups=(
        group("old", job="Import", count=90_000, dead=40, trend=(900,) * 46 + (0, 0), message="long ago"),
        group("new", job="Charge", count=3, dead=1, trend=(0,) * 46 + (1, 2), release="v42", message="declined"),
        group("retried", job="Import", count=5, dead=0, trend=(0,) * 47 + (2,), queue="csv", message="", last=NOW),
    ),
    dead=44,
    problems=(("broken", "WRONGTYPE of a key"),),
)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40)])
def test_failing_most_has_a_line_for_each_group_with_those_that_fail_now_first(width: int, height: int) -> None:
    lines = drawn(screen(queue("mail", dead=44), groups=GROUPS), width, height)
    first = next(at for at, text in enumerate(lines) if "FAILING MOST" in text)

    new, retried, old, ungrouped, broken = (text.split() for text in lines[first + 1 : first + 6])
    place = [",", "at", "a:f"] if width > 120 else []
    assert " ".join(new).replace(",", " ,").split() == [
        *("3", "1", "dead", "3m", "Charge", "mail", "v42", "ValueError:", "declined"), *place,
    ]  # fmt: skip
    assert retried[:7] == ["5", "0", "dead", "0ms", "Import", "csv", "ValueError,"[: 10 + bool(place)]]
    assert old[:6] == ["90k", "40", "dead", "3m", "Import", "mail"]
    assert ungrouped[:5] == ["3", "dead", "tasks", "in", "no"]
    assert broken == ["broken:", "WRONGTYPE", "of", "a", "key"]
    assert any("WORKERS" in text for text in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40)])
def test_one_line_names_what_is_most_urgent(width: int, height: int) -> None:
    def finding(*queues: QueueView, lost: tuple[TaskRow, ...] = (), height: int = height, **known: Any) -> list[str]:
        shown = drawn(screen(*queues, look=seen(*queues, lost=lost), **known), width, height)
        return [text for text in shown if text.startswith("! ")]

    full = queue("full", waiting=9000, pending=4, max_inflight=4, oldest_s=900.0)
    lonely, lonelier = queue("lonely", waiting=1, workers=0), queue("lonelier", waiting=2, workers=0)
    killer = task("t1", state="pending", lost=3, is_suspect=True)

    (limit,) = finding(full, queue("idle", workers=0))
    assert limit.startswith("! limit: full: max_inflight is used up, 4 of 4, while 9,000 wait")
    (unserved,) = finding(full, lonely, lonelier)
    assert unserved.startswith("! workers: no worker serves lonelier, with 2 to do; start one: jobrunner work")
    (suspect,) = finding(full, lonely, lost=(killer,))
    assert suspect.startswith("! suspect: t1, send of mail, was lost by its worker 3 times; it runs alone now;")
    assert finding(lonely, ends=frozenset({"lonely"})) == []
    assert finding(queue("mail", waiting=5)) == []
    assert finding(full, height=12) == []
    assert [text for text in finding(full, trouble="no server") if "limit" in text] == []
    assert finding(full, page="tasks", tasks=()) == []


def test_the_end_of_a_pipeline_needs_no_worker() -> None:
    end = queue("orders/lost", waiting=5, workers=0)

    assert any("no worker" in text for text in drawn(screen(end)))
    assert not any("! no worker" in text for text in drawn(screen(end, ends=frozenset({"orders/lost"}))))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (100, 8)])
def test_the_dead_of_a_queue_open_with_all_and_its_groups_and_the_cursor_is_seen(width: int, height: int) -> None:
    many = tuple(group(f"g{n}", job=f"Job{n}", dead=n, release="v1") for n in range(1, 60))
    groups = ErrorGroups(groups=(*many, group("other", queue="csv", job="Elsewhere")), dead=2000)
    page = screen(queue("mail", dead=1999), queue="mail", page="tasks", state="dead", tasks=(), groups=groups)

    lines = drawn(page, width, height)
    first = next(at for at, text in enumerate(lines) if text.startswith("▸"))
    assert lines[first].split()[1:] == ["1,999", "dead", "all", "dead", "tasks", "of", "the", "queue"]
    assert lines[first - 1].split() == ["FAILED", "DEAD", "LAST", "JOB", "RELEASE", "ERROR"]
    assert not any("Elsewhere" in text for text in lines)
    for group_id in ("g1", "g30", "g59"):
        (at,) = [text.split() for text in drawn(replace(page, group_at=group_id), width, height) if text[0] == "▸"]
        assert at[1:8] == ["12", group_id[1:], "dead", "3m", f"Job{group_id[1:]}", "v1", "ValueError:"]


def test_the_list_of_a_group_says_which_and_how_many_were_examined() -> None:
    known = {"queue": "mail", "page": "tasks", "state": "dead", "group": "g1", "note": "of the last"}
    page = screen(queue("mail", dead=9), tasks=(task("t1"),), **known)

    assert "dead 9" in drawn(page)[3]
    assert any("ValueError: no of the last" in text for text in drawn(page, 140))
    assert any("▸ send" in text for text in drawn(page))


def test_nothing_that_fails_takes_no_line() -> None:
    for groups in (None, ErrorGroups(groups=(), dead=0)):
        assert not any("FAILING" in text for text in drawn(screen(queue("mail"), groups=groups)))


def test_a_paused_queue_and_one_that_nobody_serves_stand_out() -> None:
    held, lonely = queue("held", paused=True, waiting=1), queue("lonely", waiting=1, workers=0)
    lines = drawn(screen(held, lonely, queue("idle", workers=0)))

    assert any("held" in line and "paused" in line for line in lines)
    assert any("lonely" in line and "no worker" in line for line in lines)
    assert not any("idle" in line and "no worker" in line for line in lines)


def test_no_queue_is_said_to_lack_a_worker_while_the_workers_cannot_be_read() -> None:
    seen = screen(queue("mail", waiting=3, workers=0))
    assert seen.look is not None
    assert "no worker" in "".join(drawn(seen, 100, 20))
    assert "no worker" not in "".join(drawn(replace(seen, look=replace(seen.look, problems=("x",))), 100, 20))


def test_a_server_that_evicts_is_nearly_full_or_takes_no_writes_is_told_about() -> None:
    server = seen().server
    assert server is not None
    bad = structs.replace(server, maxmemory=100, used_memory=90, maxmemory_policy="allkeys-lru", aof_written=False)

    text = "\n".join(drawn(screen(queue("a"), look=seen(queue("a"), server=bad))))

    assert "maxmemory-policy is allkeys-lru" in text
    assert "nearly full: 90 %" in text
    assert "takes no writes" in text


def test_the_cursor_is_on_the_screen_wherever_it_is() -> None:
    for name in ("queue-number-000", "queue-number-030", "queue-number-059"):
        assert any(line.startswith(f"▸ {name}") for line in drawn(replace(MANY, queue=name)))


def test_queues_keep_half_of_the_body_when_there_are_many_workers_and_tasks() -> None:
    running = tuple(task(f"r{n}", state="pending", when=NOW + timedelta(seconds=9)) for n in range(50))
    lines = drawn(replace(MANY, look=seen(*(MANY.look.queues if MANY.look else ()), running=running)))

    assert sum("queue-number" in line for line in lines) >= 8
    assert any("WORKERS" in line for line in lines)


def test_text_of_users_does_not_steer_the_terminal() -> None:
    evil = "boom \x1b[2J\x07 \u202e日本語"
    pages = (
        screen(queue("mail"), page="tasks", tasks=(task("t1", type="\x1b]0;title\x07", error=evil),)),
        screen(queue("mail"), groups=ErrorGroups(groups=(group(job=evil, message=evil, release=evil),), dead=1)),
        one_task(payload=evil.encode(), error=evil.encode(), type=b"\x1b[31mred"),
    )
    for page in pages:
        assert not any(char in line for line in drawn(page) for char in "\x1b\x07\u202e\r\n")


def test_the_page_of_a_task_shows_payload_error_and_times_and_scrolls() -> None:
    library = f'  File "{runner.__file__}", line 7, in run\n    work()'.encode()
    error = b"Traceback (most recent call last):\n" + library + b'\n  File "/srv/jobs.py", line 1\nValueError: no'
    failures = b"1700000000500\t1\tfailed\tw1\tTimeoutError: slow"
    page = one_task(payload=b'{"address": "a@b.c"}', error=error, headers=b'{"trace": "1"}', failures=failures)
    text = "\n".join(drawn(page))

    for word in (
        *('"address": "a@b.c"', "ValueError: no", "state       dead", "died", "headers", "trace"),
        "TimeoutError: slow",
    ):
        assert word in text, word
    assert "runner.py" not in text
    assert drawn(replace(page, scroll=10**6), 80, 12)[-2].strip() == "ValueError: no"


def test_a_password_in_a_payload_is_not_shown() -> None:
    page = one_task(payload=b'{"db_password": "hunter2", "user": "ada", "salary": 4321}')
    text = "\n".join(drawn(replace(page, redaction=Redaction(["salary"]))))

    assert "hunter2" not in text
    assert "4321" not in text
    assert "ada" in text


def test_a_task_that_went_says_so() -> None:
    assert any("no longer kept" in line for line in drawn(screen(queue("mail"), page="task", task="t1", gone=True)))


def test_the_question_stands_in_the_last_line() -> None:
    asked = press(screen(queue("mail", dead=3)), "r")[0]

    assert drawn(asked)[-1].startswith("Requeue 3 dead tasks of queue mail?  y / n")
