"""The checker of histories: it finds each seeded violation, accepts what a correct queue does, and refuses gaps."""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.soak.history.__main__ import main, violations
from jobrunner.soak.history.reader import NotJudged, read
from tests.support.made_histories import LEASE_MS, MadeHistory, SimulatedQueues, now_ms, seal

PACKAGE = Path(read.__code__.co_filename).parent
PROGRAM = [PACKAGE / name for name in ("__main__.py", "reader.py")]


def kinds(made: MadeHistory, folder: Path) -> set[str]:
    return {kind for kind, _, _ in violations(read(made.write(folder)))}


def test_a_task_that_was_acknowledged_and_is_nowhere_is_lost(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "y")
    assert kinds(made.left(waiting=["x"]), tmp_path) == {"lost"}


def test_a_task_that_a_dead_worker_held_may_not_vanish(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    assert kinds(made.left(), tmp_path) == {"lost"}


def test_a_task_that_nobody_enqueued_is_from_nowhere(tmp_path: Path) -> None:
    made = MadeHistory()
    made.reserve({"x": 1})
    made.report("commit", "x", 1)
    assert kinds(made.left(), tmp_path) == {"from nowhere"}


def test_a_task_that_is_there_at_the_end_and_nobody_enqueued_is_from_nowhere(tmp_path: Path) -> None:
    assert kinds(MadeHistory().left(waiting=["x"]), tmp_path / "one") == {"from nowhere"}


def test_a_lease_that_has_not_run_out_excludes_another(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.reserve({"x": 2}, at=12, attempt=2)
    made.report("commit", "x", 2)
    assert kinds(made.left(), tmp_path) == {"two leases"}


def test_a_lease_that_was_extended_excludes_another_for_longer(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("extend", "x", 1, str(now_ms(14) + LEASE_MS), at=14)
    made.reserve({"x": 2}, at=16, attempt=2)
    made.report("commit", "x", 2)
    assert kinds(made.left(), tmp_path) == {"two leases"}


def test_of_two_holders_only_one_may_report_success(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.reserve({"x": 2}, at=20, attempt=2)  # the first lease had run out
    made.report("commit", "x", 2)
    made.report("commit", "x", 1)
    assert kinds(made.left(), tmp_path) == {"two holders report success"}


@pytest.mark.parametrize(("at", "found"), [(14.0, set()), (17.0, {"reported late"})], ids=["before", "after"])
@pytest.mark.parametrize("do", ["commit", "fail", "release"])
def test_a_report_is_taken_only_before_its_lease_ended(do: str, at: float, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "y")
    made.reserve({"x": 1}, at=10)  # until 15.05 by the server's clock
    made.reserve({"y": 2}, at=at - 0.5)  # from which the time of the report is known
    made.report(do, "x", 1, "ok" if do == "commit" else "waiting", at=at)
    left = made.left(pending=["y"], waiting=[] if do == "commit" else ["x"])
    assert kinds(left, tmp_path) == found


def test_a_lease_that_a_lost_extend_may_have_made_longer_has_no_known_end(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "y")
    made.reserve({"x": 1}, at=10)
    made.report("extend", "x", 1, at=12, is_lost=True)
    made.reserve({"y": 2}, at=16)
    made.report("commit", "x", 1, at=17)
    assert not kinds(made.left(pending=["y"]), tmp_path)


def test_a_report_in_another_queue_is_none(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("commit", "x", 1, queue="r")
    assert kinds(made.left().left("r"), tmp_path) == {"two holders report success"}


def test_a_task_that_may_be_tried_again_is_not_dead(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("fail", "x", 1, "waiting")
    assert kinds(made.left(dead=["x"]), tmp_path / "tried again") == {"not where it was put"}
    made.reserve({}, first=20, is_lost=True)  # whose lease may have run out
    assert not kinds(made.left(dead=["x"]), tmp_path / "handed out")


def flow_of_two(rule: str = "success", **more: Any) -> MadeHistory:
    """A join of x and y, whose task is z; both members are held from 10 on."""
    made = MadeHistory()
    shape = {"join": "j", "rule": rule, "total": 2} | more
    made.call("join_prepare", tasks=[["z", 1, True]], is_lost=True, at=1, **shape)
    made.call("enqueue", reply={"ok": ["new"] * 2}, tasks=[[one, 1, "", {"then": ["j"]}] for one in "xy"], at=2)
    made.reserve({"x": 1, "y": 2}, at=10)
    return made


@pytest.mark.parametrize(("at", "found"), [(12.0, {"fired early"}), (14.0, set())], ids=["before", "after"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["told", "unknown"])
def test_a_join_fires_after_its_last_member_may_have_ended(
    at: float, found: set[str], is_lost: bool, tmp_path: Path
) -> None:
    made = flow_of_two()
    made.report("commit", "x", 1, at=11)
    made.report("commit", "y", 2, at=13, is_lost=is_lost)
    made.reserve({"z": 3}, at=at)
    made.report("commit", "z", 3, at=14.5)
    assert kinds(made.left(), tmp_path / "handed out") == found
    made = flow_of_two()
    made.report("commit", "x", 1, at=11)
    assert kinds(made.left(pending="y", waiting="z"), tmp_path / "waiting") == {"fired early"}


def test_a_join_of_the_rule_dead_does_not_fire_when_all_members_succeeded(tmp_path: Path) -> None:
    made = flow_of_two("dead")
    made.report("commit", "x", 1, at=11)
    assert not kinds(made.left(pending="y", waiting="z"), tmp_path / "one may be dead")
    made.report("commit", "y", 2, at=12)
    assert kinds(made.left(waiting="z"), tmp_path / "none") == {"fired early"}


def test_a_join_is_not_judged_when_a_member_has_died_or_is_not_known(tmp_path: Path) -> None:
    made = flow_of_two("complete")
    made.report("fail", "x", 1, "dead", at=11)
    made.report("commit", "y", 2, at=12)
    made.reserve({"z": 3}, at=13)
    assert not kinds(made.left(pending="z", dead="x"), tmp_path / "died")
    made = flow_of_two(total=3)
    assert not kinds(made.left(pending="xy", waiting="z"), tmp_path / "not known")


def test_histories_of_versions_that_did_not_record_joins_are_judged(tmp_path: Path) -> None:
    made = MadeHistory()
    made.call("join_prepare", tasks=[["z", 1, True]], is_lost=True)
    made.reserve({"z": 1})
    made.report("commit", "z", 1)
    assert not kinds(made.left(), tmp_path)


@pytest.mark.parametrize("left", ["dead", "pending"])
def test_tasks_of_a_queue_with_many_lost_reserves_are_judged(left: str, tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("fail", "x", 1, "waiting")
    for first in range(100, 400, 10):
        made.reserve({}, first=first, is_lost=True)
    assert not kinds(made.left(**{left: ["x"]}), tmp_path)


def test_a_lost_reserve_does_not_end_the_lease_of_another_holder(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({}, first=20, is_lost=True)
    made.reserve({"x": 1}, at=10)
    made.reserve({"x": 2}, at=11)
    made.report("fail", "x", 2, "dead")
    assert kinds(made.left(dead=["x"]), tmp_path) == {"two leases"}


@pytest.mark.parametrize(("again_s", "found"), [(3.0, {"back after its end"}), (13.0, set())], ids=["known", "forgot"])
def test_a_call_that_is_sent_again_adds_its_task_once(again_s: float, found: set[str], tmp_path: Path) -> None:
    """While the server knows the call, which it does for ten seconds: its task may be done and deleted by then."""
    made = MadeHistory()
    made.enqueue("x", at=1, is_lost=True, sent="call")
    made.reserve({"x": 1}, at=2)
    made.report("commit", "x", 1)
    made.enqueue("x", at=1 + again_s, sent="call")
    made.reserve({"x": 2})
    made.report("commit", "x", 2)
    assert kinds(made.left(), tmp_path) == found


def test_a_call_that_is_sent_again_may_answer_that_its_tasks_are_there(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", at=1, is_lost=True, sent="")  # its id stays known: the server notes no call
    made.reserve({"x": 1}, at=2)
    made.enqueue("x", said="old", at=3, sent="")
    made.report("commit", "x", 1)
    assert not kinds(made.left(), tmp_path)


def test_a_join_that_was_prepared_twice_enqueues_its_task_once(tmp_path: Path) -> None:
    made = MadeHistory()
    for _ in range(2):
        made.call("join_prepare", reply={"unknown": "when it fires"}, tasks=[["x", 1, True]], sent="join")
    for lease in (1, 2):
        made.reserve({"x": lease})
        made.report("commit", "x", lease)
    assert kinds(made.left(), tmp_path) == {"back after its end"}


@pytest.mark.parametrize(("do", "said"), [("periodic_fire", "fired"), ("join_prepare", None)])
def test_a_tick_and_a_join_have_one_task_for_ever(do: str, said: str | None, tmp_path: Path) -> None:
    """Other ids may be enqueued anew when their task is done and forgotten."""
    made = MadeHistory()
    for lease in (1, 2):
        made.call(do, reply={"ok": [said]} if said else {"unknown": "when it fires"}, tasks=[["x", 1, True]])
        made.reserve({"x": lease})
        made.report("commit", "x", lease, at=lease * 20)  # longer than calls are known
    assert kinds(made.left(), tmp_path) == {"enqueued twice" if said else "back after its end"}


def unique(made: MadeHistory, task: str, said: str = "new", **more: Any) -> None:
    """Enqueues a unique task with a lock of a minute; `due` and the words of the lock may be given."""
    own = {name: more.pop(name) for name in ("lock", "lasts", "ttl_ms", "expires_s") if name in more}
    options = {"lock": "sync", "lasts": "finished", "ttl_ms": 60_000.0, **own}
    tasks = [[task, 1, more.pop("due", ""), options]]
    made.call("enqueue_unique", reply={"ok": [said]}, tasks=tasks, sent=task, **more)


@pytest.mark.parametrize("end", ["", "fail", "release"])
def test_a_unique_task_excludes_another_as_long_as_it_lives(end: str, tmp_path: Path) -> None:
    made = MadeHistory()
    unique(made, "x", at=1)
    made.reserve({"x": 1}, at=2)
    if end:
        made.report(end, "x", 1, "scheduled", at=3)
    unique(made, "y", at=8)
    made.reserve({"x": 2}, at=9, attempt=1 if end == "release" else 2)
    assert kinds(made.left(pending=["x"], waiting=["y"]), tmp_path) == {"lock held twice"}


OVER = [{}, {"ttl_ms": 2_000.0}, {"lasts": "started"}, {"lasts": "expired", "ttl_ms": 2_000.0}, {"lock": "own"}]


@pytest.mark.parametrize("lock", OVER)
def test_a_lock_that_may_be_over_excludes_none(lock: dict[str, Any], tmp_path: Path) -> None:
    made = MadeHistory()
    unique(made, "x", at=1, **lock)
    made.reserve({"x": 1}, at=2)
    made.report("commit", "x", 1, at=3 if not lock else 9)
    unique(made, "y", at=5)
    unique(made, "z", "clash", at=6)
    assert not kinds(made.left(waiting=["y"]), tmp_path)


@pytest.mark.parametrize(
    ("lasts", "second_at", "found"),
    [("started", 2, True), ("started", 5, False), ("finished", 5, True), ("finished", 8, False), ("expired", 8, True)],
)
def test_a_lock_lasts_until_its_task_begins_or_ends_or_for_its_time(
    lasts: str, second_at: float, found: bool, tmp_path: Path
) -> None:
    made = MadeHistory()
    unique(made, "x", at=1, lasts=lasts)
    made.reserve({"x": 1}, at=4)
    made.report("commit", "x", 1, at=7)
    unique(made, "y", at=second_at, lasts=lasts)
    assert kinds(made.left(waiting=["y"]), tmp_path) == ({"lock held twice"} if found else set())


def test_a_lost_reserve_may_have_begun_a_unique_task(tmp_path: Path) -> None:
    made = MadeHistory()
    unique(made, "x", at=1, lasts="started")
    made.reserve({}, first=20, at=2, is_lost=True)
    unique(made, "y", at=4, lasts="started")
    made.reserve({"x": 1}, at=14, attempt=2)
    assert not kinds(made.left(pending=["x"], waiting=["y"]), tmp_path)


def test_a_unique_task_that_has_expired_has_no_lock(tmp_path: Path) -> None:
    made = MadeHistory()
    unique(made, "x", at=1, expires_s=2.0)
    unique(made, "y", at=5)
    assert not kinds(made.left(waiting=["x", "y"]), tmp_path)


def expiring(made: MadeHistory) -> None:
    """Enqueues a task that may begin within three seconds."""
    made.call("enqueue", reply={"ok": ["new"]}, tasks=[["x", 1, "", {"expires_s": 3.0}]], sent="call", at=1)


@pytest.mark.parametrize(("at", "found"), [(3.9, set()), (4.0, set()), (4.2, {"handed out late"})])
def test_a_task_that_has_expired_is_not_handed_out(at: float, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    expiring(made)
    made.reserve({"x": 1}, at=at)
    made.report("release", "x", 1, "waiting")
    made.reserve({"x": 2}, at=20)  # it has begun
    assert kinds(made.left(pending=["x"]), tmp_path) == found


@pytest.mark.parametrize(("end", "found"), [(2.5, {"not where it was put"}), (5.0, set())], ids=["before", "after"])
def test_a_task_that_has_not_begun_is_dead_only_once_it_has_expired(
    end: float, found: set[str], tmp_path: Path
) -> None:
    made = MadeHistory(end=end)
    expiring(made)
    assert kinds(made.left(dead=["x"]), tmp_path) == found


def test_a_task_that_has_begun_does_not_expire(tmp_path: Path) -> None:
    made = MadeHistory()
    expiring(made)
    made.reserve({"x": 1}, at=2)
    made.report("fail", "x", 1, "waiting", at=3)
    assert kinds(made.left(dead=["x"]), tmp_path) == {"not where it was put"}


def test_a_task_that_is_cancelled_while_it_is_held_has_no_lock_once_it_is_handed_back(tmp_path: Path) -> None:
    made = MadeHistory()
    unique(made, "x", at=1)
    made.reserve({"x": 1}, at=2)
    made.call("cancel", reply={"ok": ["reserved"]}, tasks=[["x"]], at=3)
    made.report("release", "x", 1, "waiting", at=4)
    unique(made, "y", at=5)
    assert not kinds(made.left(waiting=["x", "y"]), tmp_path)


def test_a_delayed_unique_task_is_handed_out_when_it_is_due(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("first")
    made.reserve({"first": 1}, at=10.0)  # from which the server's clock is known
    unique(made, "x", due="+3000")
    made.reserve({"x": 2}, at=12)
    assert kinds(made.left(pending=["first", "x"]), tmp_path) == {"handed out early"}


@pytest.mark.parametrize("tasks", [("x", "x"), ("x", "y")], ids=["one task", "two tasks"])
def test_the_number_of_a_lease_is_handed_out_once(tasks: tuple[str, str], tmp_path: Path) -> None:
    """Else the holder before may report under it."""
    made = MadeHistory()
    made.enqueue(*dict.fromkeys(tasks))
    for task in tasks:
        made.reserve({task: 1})
        made.report("release", task, 1, "waiting")
    assert kinds(made.left(waiting=set(tasks)), tmp_path) == {"lease number used twice"}


@pytest.mark.parametrize(("at", "found"), [(14.7, {"holder refused"}), (15.0, set())], ids=["it holds", "may be over"])
@pytest.mark.parametrize(("do", "said"), [("commit", "lost"), ("extend", "not_reserved"), ("move", "gone")])
def test_no_holder_is_refused(do: str, said: str, at: float, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report(do, "x", 1, said, at=at, to="r")
    assert kinds(made.left(pending=["x"]), tmp_path) == found


def test_a_report_is_refused_whose_first_sending_may_have_been_taken(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("commit", "x", 1, at=11, is_lost=True)
    made.report("commit", "x", 1, "gone", at=12)
    assert not kinds(made.left(), tmp_path)


@pytest.mark.parametrize(
    ("do", "said", "attempt"),
    [("fail", "scheduled", 2), ("crash", "waiting", 2), ("release", "waiting", 1), ("", "", 2)],
)
@pytest.mark.parametrize("wrong", [0, 1])
def test_attempts_are_counted(do: str, said: str, attempt: int, wrong: int, tmp_path: Path) -> None:
    """A failure, a crash and a lease that ran out spend one, a release none."""
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    if do:
        made.report(do, "x", 1, said, at=11)
    made.reserve({"x": 2}, at=20, attempt=attempt + wrong)
    assert kinds(made.left(pending=["x"]), tmp_path / "x") == ({"attempts miscounted"} if wrong else set())
    made.reserve({}, first=20, at=15, is_lost=True)  # which may have begun an attempt that nobody heard of
    assert not kinds(made.left(pending=["x"]), tmp_path / "y")


def test_a_moved_task_begins_its_attempts_anew(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("fail", "x", 1, "scheduled", at=11)
    made.reserve({"x": 2}, at=12, attempt=2)
    made.report("move", "x", 2, at=13, to="r")
    made.reserve({"x": 3}, queue="r", at=14, attempt=3)
    assert kinds(made.left().left("r", pending=["x"]), tmp_path) == {"attempts miscounted"}


@pytest.mark.parametrize(("most", "found"), [(2, set()), (1, {"attempts miscounted"}), (0, set())])
def test_no_attempt_goes_beyond_max_attempts(most: int, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("fail", "x", 1, "scheduled", at=11)
    made.reserve({"x": 2}, at=12, attempt=2).reply["ok"][0].append(most)
    assert kinds(made.left(pending=["x"]), tmp_path) == found


@pytest.mark.parametrize(
    ("said", "most", "may_die", "found"),
    [
        ("dead", 2, False, set()),
        ("dead", 3, False, {"attempts miscounted"}),
        ("dead", 0, False, {"attempts miscounted"}),  # no limit
        ("dead", 3, True, set()),
        ("scheduled", 3, False, set()),
        ("scheduled", 2, False, {"attempts miscounted"}),
    ],
)
def test_a_failure_is_the_death_of_a_task_in_its_last_attempt(
    said: str, most: int, may_die: bool, found: set[str], tmp_path: Path
) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("fail", "x", 1, "scheduled", at=11)
    made.reserve({"x": 2}, at=12, attempt=2).reply["ok"][0].append(most)
    made.call("fail", reply={"ok": [said]}, tasks=[["x", 2, "", may_die]])
    left = made.left(**{said: ["x"]})
    assert kinds(left, tmp_path / "same") == found
    made.call("configure", reply={"ok": ["1"]}, at=12.5, fields=["max_attempts"])
    assert not kinds(left, tmp_path / "set meanwhile")


@pytest.mark.parametrize(("early_ms", "found"), [(0, set()), (5, {"handed out early"})])
@pytest.mark.parametrize(("do", "said"), [("fail", "scheduled"), ("release", "scheduled"), ("move", "ok")])
def test_a_task_that_is_put_off_is_handed_out_when_it_is_due(
    do: str, said: str, early_ms: int, found: set[str], tmp_path: Path
) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)  # the server's clock is 10.05 then
    to = {"to": "r"} if do == "move" else {}
    made.call(do, reply={"ok": [said]}, at=11, tasks=[["x", 1, "+3000", False]], **to)
    queue, attempt = "r" if to else "q", 2 if do == "fail" else 1
    made.reserve({"x": 2}, queue=queue, at=13 - early_ms / 1000, attempt=attempt)
    left = made.left(pending=[] if to else ["x"]).left("r", pending=["x"] if to else [])
    assert kinds(left, tmp_path) == found


def test_a_task_is_moved_once(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("move", "x", 1, to="r")
    made.report("move", "x", 1, to="s")
    assert kinds(made.left().left("r", waiting=["x"]).left("s"), tmp_path) == {"moved twice"}


def test_a_task_that_was_moved_is_in_one_queue(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("move", "x", 1, to="r")
    assert kinds(made.left(waiting=["x"]).left("r", waiting=["x"]), tmp_path) == {"in two places"}


def test_a_task_that_ended_does_not_come_back(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1})
    made.report("commit", "x", 1)
    made.reserve({"x": 2})
    assert kinds(made.left(pending=["x"]), tmp_path) == {"back after its end"}


def test_tasks_of_one_priority_are_handed_out_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.enqueue("y")
    made.reserve({"y": 1})
    made.reserve({"x": 2})
    assert kinds(made.left(pending=["x", "y"]), tmp_path) == {"wrong order"}


@pytest.mark.parametrize(("early_ms", "found"), [(-5, set()), (0, set()), (5, {"handed out early"})])
@pytest.mark.parametrize("is_delay", [True, False], ids=["delay", "instant"])
def test_a_task_is_handed_out_when_it_is_due(is_delay: bool, early_ms: int, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("first")
    made.reserve({"first": 1}, at=10.0)  # the server's clock is 10.05 then
    due = "+3000" if is_delay else f"{now_ms(13.05):.0f}"
    made.call("enqueue", reply={"ok": ["new"]}, at=10.2, tasks=[["x", 1, due]])
    made.reserve({"x": 2}, at=13.0 - early_ms / 1000)
    assert kinds(made.left(pending=["first", "x"]), tmp_path) == found


def test_a_delay_that_began_at_a_time_that_is_not_known_is_not_judged(tmp_path: Path) -> None:
    made = MadeHistory()
    made.call("enqueue", reply={"ok": ["new"]}, tasks=[["x", 1, "+60000"]])
    made.reserve({"x": 1})
    assert kinds(made.left(pending=["x"]), tmp_path) == set()


def test_a_task_of_a_lost_reply_that_was_put_back_is_not_handed_out_for_the_first_time(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.enqueue("y")
    made.reserve({}, first=20, is_lost=True)
    made.reserve({"y": 1}, at=10)
    made.reserve({"x": 2}, at=11, took=0.5)
    made.report("release", "x", 20, "waiting", at=11.1)  # before that reserve, which began before
    assert kinds(made.left(pending=["x", "y"]), tmp_path) == set()


def test_one_call_hands_out_in_that_order_as_well(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.enqueue("y")
    made.reserve({"y": 1, "x": 2})
    assert kinds(made.left(pending=["x", "y"]), tmp_path) == {"wrong order"}


def test_the_higher_priority_goes_first_also_when_it_still_waits_at_the_end(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", priority=1)
    made.enqueue("y", priority=2)
    made.reserve({"x": 1})
    assert kinds(made.left(pending=["x"], waiting=["y"]), tmp_path) == {"wrong order"}


def test_the_order_of_concurrent_calls_is_not_judged(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", at=1, took=2)
    made.enqueue("y", at=2, took=2)
    made.reserve({"y": 1, "x": 2})
    assert not kinds(made.left(pending=["x", "y"]), tmp_path)


def test_no_more_tasks_are_held_than_the_limit_allows(tmp_path: Path) -> None:
    made = MadeHistory()
    made.call("configure", reply={"ok": ["1"]}, fields=["max_inflight"])
    made.enqueue("x", "y")
    made.reserve({"x": 1}, at=10)
    made.reserve({"y": 2}, at=11)
    left = made.left(settings={"max_inflight": "1"}, pending=["x", "y"])
    assert kinds(left, tmp_path) == {"over the limit"}


@pytest.mark.parametrize(("keys", "found"), [("aa", {"over the limit"}), ("ab", set()), ("", set())])
def test_no_more_tasks_of_a_partition_are_held_than_its_limit_allows(
    keys: str, found: set[str], tmp_path: Path
) -> None:
    made = MadeHistory()
    tasks = [[task, 1, "", *([{"key": key}] if key else [])] for task, key in zip("xy", keys or ("", ""), strict=True)]
    made.call("enqueue", reply={"ok": ["new", "new"]}, tasks=tasks)
    made.reserve({"x": 1}, at=10)
    made.reserve({"y": 2}, at=11)
    left = made.left(settings={"key_inflight": "1"}, pending=["x", "y"])
    assert kinds(left, tmp_path / "at once") == found
    left = made.left(settings={"key_tokens": "1", "key_interval_us": "6000000"}, pending=["x", "y"])
    assert kinds(left, tmp_path / "a minute") == found


def test_a_task_whose_partition_changed_on_its_way_counts_for_none(tmp_path: Path) -> None:
    made = MadeHistory()
    made.call("enqueue", reply={"ok": ["new", "new"]}, tasks=[[task, 1, "", {"key": "a"}] for task in "xy"])
    made.reserve({"x": 1}, at=10)
    made.call("move", reply={"ok": ["ok"]}, to="q", tasks=[["x", 1, "", True, {"key": "b"}]])
    made.reserve({"x": 2, "y": 3}, at=12)
    assert not kinds(made.left(settings={"key_inflight": "1"}, pending=["x", "y"]), tmp_path)


def test_all_shards_of_a_queue_have_one_limit(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "v", queue="q")
    made.enqueue("y", queue="q@1")
    made.reserve({"x": 1, "v": 2}, "q", at=10)
    made.reserve({"y": 3}, "q@1", at=11)
    for most, found in (("3", set()), ("2", {"over the limit"})):
        made.left("q", {"max_inflight": most}, pending=["x", "v"]).left("q@1", {"max_inflight": most}, pending=["y"])
        assert kinds(made, tmp_path / most) == found


@pytest.mark.parametrize(("changed", "found"), [([], {"over the limit"}), (["max_inflight"], set())])
def test_a_declaration_that_changes_nothing_sets_no_limit(changed: list[str], found: set[str], tmp_path: Path) -> None:
    """Workers declare at every start, also long after tasks began to be held."""
    made = MadeHistory()
    made.enqueue("x", "y")
    made.reserve({"x": 1, "y": 2}, at=10)
    made.call("queue_declare", reply={"ok": changed}, at=12, fields=["max_inflight"])
    assert kinds(made.left(settings={"max_inflight": "1"}, pending=["x", "y"]), tmp_path) == found


def test_the_last_change_of_a_limit_counts_whichever_process_made_it(tmp_path: Path) -> None:
    made = MadeHistory()
    for at in (13, 2, 1):  # in the files of three processes
        made.call("configure", reply={"ok": ["1"]}, at=at, fields=["max_inflight"])
    made.enqueue("x", "y", at=9)
    made.reserve({"x": 1, "y": 2}, at=10)
    assert not kinds(made.left(settings={"max_inflight": "1"}, pending=["x", "y"]), tmp_path)


def test_a_task_that_is_cancelled_while_it_is_held_may_end_when_it_is_handed_back(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "y")
    made.reserve({"x": 1, "y": 2}, at=10)
    for task in "xy":
        made.call("cancel", reply={"ok": ["reserved"]}, tasks=[[task]], at=11)
        made.report("release", task, 1 if task == "x" else 2, "waiting", at=12)
    assert not kinds(made.left(waiting=["y"]), tmp_path)


def test_a_place_is_free_when_the_lease_ran_out_or_the_report_was_sent(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", "y", "z")
    made.reserve({"x": 1}, at=10)
    made.reserve({"y": 2}, at=16)
    made.report("commit", "y", 2, at=17, is_lost=True)
    made.reserve({"z": 3}, at=18)
    left = made.left(settings={"max_inflight": "1"}, waiting=["x"], pending=["z"])
    assert not kinds(left, tmp_path)


@pytest.mark.parametrize(("apart_s", "found"), [(1.0, {"over the limit"}), (3.0, set())])
def test_a_bucket_gives_no_more_than_flowed_into_it(apart_s: float, found: set[str], tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue(*"vwxyz")
    for n, task in enumerate("vwxyz"):
        made.reserve({task: n}, at=10 + n * apart_s)
    limits = {"max_tokens": "2", "interval_us": "6000000"}
    assert kinds(made.left(settings=limits, pending="vwxyz"), tmp_path) == found


def test_a_task_that_is_handed_back_returns_its_token(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue(*"vwxyz")
    for n, task in enumerate("vwxyz"):
        made.reserve({task: n}, at=10 + n)
        if task in "wxy":
            made.report("release", task, n, "waiting", at=10.5 + n)
    limits = {"max_tokens": "2", "interval_us": "6000000"}
    assert not kinds(made.left(settings=limits, waiting="wxy", pending="vz"), tmp_path)


def test_a_task_that_had_begun_keeps_its_token_when_it_is_handed_back(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue(*"vwxyz")
    for n, task in enumerate("vwxyz"):
        made.reserve({task: n}, at=10 + n)
        if task in "wxy":
            made.call("release", reply={"ok": ["waiting"]}, tasks=[[task, n, "", False]], at=10.5 + n)
    limits = {"max_tokens": "2", "interval_us": "6000000"}
    assert kinds(made.left(settings=limits, waiting="wxy", pending="vz"), tmp_path) == {"over the limit"}


def test_attempts_of_workers_need_a_lease_each(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.runs = [("x", 1, 11, 12), ("x", 1, 13, 14), ("x", 7, 15, 16)]
    made.report("commit", "x", 1, at=14.5)
    assert kinds(made.left(), tmp_path) == {"run twice", "run without a lease"}


def test_runs_overlap_only_after_a_lease_ran_out(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    made.reserve({"x": 1}, at=10)
    made.report("release", "x", 1, "waiting", at=11)
    made.reserve({"x": 2}, at=12)
    made.runs = [("x", 1, 10.5, 13.0), ("x", 2, 12.5, 14.0)]
    assert kinds(made.left(pending=["x"]), tmp_path / "given up") == {"runs overlap"}
    made.runs = [("x", 1, 10.5, None), ("x", 2, 12.5, 14.0)]
    assert not kinds(made.left(pending=["x"]), tmp_path / "died")


def test_a_concurrent_history_with_unknown_outcomes_is_right(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x", at=1, is_lost=True)
    made.enqueue("x", at=1.2)  # sent again, with the reply of the first time
    made.reserve({"x": 1}, at=1.25)
    made.report("commit", "x", 1, at=2, is_lost=True)
    made.report("commit", "x", 1, "gone", at=2.5)
    made.enqueue("y", at=3, is_lost=True)
    made.reserve({"y": 2}, at=2.9, took=1)
    made.enqueue("z", at=4, is_lost=True)  # it was never applied
    made.enqueue("v", at=5)
    made.reserve({}, first=20, at=6, is_lost=True)  # the reply that had v, which its keeper gives back
    made.report("release", "v", 23, "waiting", at=7)
    made.reserve({"v": 9}, at=8)
    made.report("move", "v", 9, at=9, is_lost=True, to="r")
    made.reserve({"v": 10}, queue="r", at=11)
    assert not kinds(made.left(pending=["y"]).left("r", pending=["v"]), tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_simulated_queue_does_is_right(seed: int, tmp_path: Path) -> None:
    assert not kinds(SimulatedQueues(seed, max_inflight=seed % 3 * 2).history, tmp_path)


def _without_one(made: MadeHistory, draw: Any) -> bool:
    """A task vanishes: one of whose calls every outcome is known."""
    unsure = {one[0] for call in made.calls if call.ended is None for one in call.call.get("tasks", ())}
    sure = [task for task, places in made.places.items() if places[0][1] == "waiting" and task not in unsure]
    if sure:
        del made.places[draw(st.sampled_from(sure))]
    return bool(sure)


def _renamed(made: MadeHistory, draw: Any) -> bool:
    """A reserve hands out another task than there was."""
    reserves = [call for call in made.calls if call.call["do"] == "reserve" and call.ended]
    handed = [one for call in reserves for one in call.reply["ok"]]
    if handed:
        draw(st.sampled_from(handed))[0] = "unknown"
    return bool(handed)


def _reserved_twice(made: MadeHistory, draw: Any) -> bool:
    """A task is handed out to another right after it was handed out."""
    held = [call for call in made.calls if call.call["do"] == "reserve" and call.ended and call.reply["ok"]]
    if held:
        call = draw(st.sampled_from(held))
        task, *_ = call.reply["ok"][0]
        about = [one for one in made.calls if task in {word[0] for word in one.call.get("tasks", ())}]
        others = [one for one in about if one.began < call.ended + 0.01 and one.call["do"] != "enqueue"]
        if others:
            return False
        again = made.reserve({task: 10**6}, call.call["queue"], at=call.ended + 0.001, took=0.001)
        again.reply["now"] = call.reply["now"] + 1
    return bool(held)


def _done_twice(made: MadeHistory, draw: Any) -> bool:
    """A report succeeds again, later."""
    done = [call for call in made.calls if call.call["do"] in ("commit", "move") and call.ended]
    if done:
        call = draw(st.sampled_from(done))
        made.call(call.call["do"], call.call["queue"], call.reply, at=made.end - 1,
                  **{word: call.call[word] for word in ("tasks", "to") if word in call.call})  # fmt: skip
    return bool(done)


def _in_both(made: MadeHistory, draw: Any) -> bool:
    """A task is in two queues at the end."""
    ids = [task for task, places in made.places.items() if places == [("a", "waiting")]]
    if ids:
        made.places[draw(st.sampled_from(ids))].append(("b", "waiting"))
    return bool(ids)


@pytest.mark.parametrize("mutate", [_without_one, _renamed, _reserved_twice, _done_twice, _in_both])
@settings(max_examples=25)
@given(data=st.data())
def test_a_mutated_history_is_found(
    mutate: Callable[[MadeHistory, Any], bool], data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = SimulatedQueues(data.draw(st.integers(0, 10**6))).history
    if mutate(made, data.draw):
        assert kinds(made, tmp_path_factory.mktemp("history"))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    made = MadeHistory()
    made.enqueue("x", "y")
    made.enqueue("z")
    return made.left(waiting="xyz").write(tmp_path / "history")


def cut(path: Path, *, line: int | None = None, size: int | None = None) -> int:
    lines = path.read_text().splitlines(keepends=True)
    text = "".join(lines[:line] + lines[line + 1 :]) if line is not None else path.read_text()[:size]
    return path.write_text(text)


@pytest.mark.parametrize(
    ("break_it", "wanted"),
    [
        (lambda folder: (folder / "seal.json").unlink(), "seal.json cannot be read"),
        (lambda folder: (folder / "0-0.jsonl").unlink(), "change none"),
        (lambda folder: cut(folder / "0-0.jsonl", line=2), "has files of other sizes"),
        (lambda folder: (cut(folder / "0-0.jsonl", line=1), seal(folder)), "has the number 2 instead of 1: a gap"),
        (lambda folder: (cut(folder / "0-0.jsonl", size=-4), seal(folder)), "line 3 is cut off or damaged"),
        (lambda folder: (cut(folder / "0-0.jsonl", line=0), seal(folder)), "has the number 1 instead of 0"),
        (lambda folder: (cut(folder / "3-0.jsonl", line=1), seal(folder)), "0 final snapshots"),
    ],
)
def test_a_history_with_a_gap_is_refused(
    break_it: Callable[[Path], object], wanted: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(written)]) == 0
    break_it(written)
    with pytest.raises(NotJudged, match=wanted):
        read(written)
    assert main([str(written)]) == 2
    assert wanted in capsys.readouterr().err


def changed(line: int, **words: Any) -> Callable[[Path], Path]:
    """Sets words of one line of the first file; None removes one."""

    def change(folder: Path) -> Path:
        path = folder / "0-0.jsonl"
        lines = [json.loads(one) for one in path.read_text().splitlines()]
        lines[line] = {name: word for name, word in (lines[line] | words).items() if word is not None}
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        return seal(folder)

    return change


def doubled(line: int, *, to: int) -> Callable[[Path], Path]:
    """Repeats a line of the first file, with numbers as if it belonged there."""

    def double(folder: Path) -> Path:
        path = folder / "0-0.jsonl"
        lines = [json.loads(one) for one in path.read_text().splitlines()]
        lines.insert(to, dict(lines[line]))
        path.write_text("".join(json.dumps(one | {"n": n}) + "\n" for n, one in enumerate(lines)))
        return seal(folder)

    return double


@pytest.mark.parametrize(
    ("break_it", "wanted"),
    [
        (changed(2, replies=None, replied=[]), "line 3 does not fit those before it"),
        (changed(2, replies=[]), "line 3 does not fit those before it"),
        (changed(2, replies=[{"ok": ["new"]}]), "line 3 does not fit those before it"),
        (changed(2, op=7), "line 3 does not fit those before it"),
        (changed(1, calls=[{"do": "enqueue", "tasks": []}]), "line 3 does not fit those before it"),
        (changed(1, calls=None, later=1), "line 2 does not fit those before it"),
        (doubled(1, to=2), "line 3 does not fit those before it"),
        (doubled(2, to=1), "line 2 does not fit those before it"),
        (changed(1, n=None), "line 2 is cut off or damaged"),
        (changed(0, start={"format": 1, "boot": "one"}), "its start in the first line, in format 2"),
        (lambda folder: (folder / "0-0.jsonl").write_text("1\n") and seal(folder), "line 1 is cut off or damaged"),
        (lambda folder: (folder / "seal.json").write_text("[]"), "seal.json cannot be read"),
    ],
)
def test_lines_that_do_not_fit_are_refused_and_not_passed_over(
    break_it: Callable[[Path], object], wanted: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(written)
    assert main([str(written)]) == 2
    assert wanted in capsys.readouterr().err


def test_a_process_that_was_killed_before_its_first_line_and_one_without_a_reply_are_judged(written: Path) -> None:
    (written / "9-0.jsonl").touch()
    cut(written / "0-0.jsonl", line=2)
    assert main([str(seal(written))]) == 0


def test_a_process_without_its_start_is_refused(written: Path) -> None:
    path = written / "0-0.jsonl"
    path.write_text(path.read_text().replace('"start"', '"begin"'))
    with pytest.raises(NotJudged, match="has its start in the first line"):
        read(seal(written))


def test_calls_without_a_rule_and_queues_without_a_snapshot_are_refused(tmp_path: Path) -> None:
    made = MadeHistory()
    made.enqueue("x")
    with pytest.raises(NotJudged, match="queues without a final snapshot, with dead letters or expires_in: q"):
        read(made.write(tmp_path / "one"))
    made.call("purge", reply={"ok": ["1"]})
    with pytest.raises(NotJudged, match="a call of purge on q"):
        read(made.left().write(tmp_path / "two"))


def test_the_verdict_names_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeHistory()
    made.enqueue("x")
    assert main([str(made.left().write(tmp_path))]) == 1
    said = capsys.readouterr().out
    assert "lost: 1" in said
    assert "x: snapshot" in said
    assert "the task could only be: waiting q" in said


def test_the_checker_is_a_small_program_of_its_own() -> None:
    assert sum(len(path.read_text().splitlines()) for path in PROGRAM) <= 400
    for path in PROGRAM:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("jobrunner.soak.history."), name
