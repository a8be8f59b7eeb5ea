"""The effect of each key on the state of the view."""

from dataclasses import replace

import pytest

from jobrunner.cli.top.state import (
    Screen,
    ServerRequest,
    lists_groups,
    press,
    settled,
    shown_groups,
    shown_queues,
    shown_tasks,
)
from jobrunner.inspector.error_groups import ErrorGroups
from tests.unit.cli.top.screens import group, queue, screen, task


def pressed(screen_: Screen, *keys: str) -> tuple[Screen, ServerRequest | None]:
    wish = None
    for key in keys:
        screen_, wish = press(screen_, key)
    return screen_, wish


THREE = [queue("a", waiting=5), queue("b", dead=2), queue("c", paused=True, dead=1)]


def test_the_cursor_moves_and_stays_within_the_rows() -> None:
    at = screen(*THREE)

    assert pressed(at, "j")[0].queue == "b"
    assert pressed(at, "down", "down", "down", "down")[0].queue == "c"
    assert pressed(at, "G", "k")[0].queue == "b"
    assert pressed(at, "end", "home", "up")[0].queue == "a"


def test_the_cursor_stays_on_its_queue_when_rows_move_and_finds_another_when_it_goes() -> None:
    at = pressed(screen(*THREE), "j")[0]

    by_dead = replace(at, sort="dead")
    assert [one.name for one in shown_queues(by_dead)] == ["b", "c", "a"]
    assert settled(by_dead).queue == "b"
    assert settled(replace(at, look=screen(queue("z")).look)).queue == "z"


def test_p_pauses_an_open_queue_and_resumes_a_paused_one() -> None:
    assert pressed(screen(*THREE), "p")[1] == ServerRequest(act="pause", queue="a")
    assert pressed(screen(*THREE), "G", "p")[1] == ServerRequest(act="resume", queue="c")


def test_requeueing_the_dead_is_asked_and_only_y_means_yes() -> None:
    asked, wish = pressed(screen(*THREE), "j", "r")

    assert wish is None
    assert asked.question is not None
    assert asked.question.text == "Requeue 2 dead tasks of queue b?"
    assert pressed(asked, "y")[1] == ServerRequest(act="requeue all", queue="b")
    for key in ("n", "escape", "enter", "q"):
        after, wish = pressed(asked, key)
        assert (after.question, wish) == (None, None)


def test_a_queue_without_dead_tasks_says_so() -> None:
    after, wish = pressed(screen(*THREE), "r")

    assert (after.question, wish) == (None, None)
    assert after.message == "queue a has no dead tasks"


def test_the_filter_is_typed_kept_with_enter_and_dropped_with_escape() -> None:
    typed = pressed(screen(queue("mail"), queue("maths"), queue("queue-q")), "/", "m", "A", "q", "backspace")[0]

    assert [one.name for one in shown_queues(typed)] == ["mail", "maths"]
    assert pressed(typed, "enter")[0].typing is False
    assert pressed(typed, "enter", "escape")[0].queue_filter == ""
    assert pressed(typed, "escape")[0].queue_filter == ""


def test_enter_opens_the_fullest_state_of_the_queue_then_a_task_and_escape_goes_back() -> None:
    tasks, wish = pressed(screen(*THREE), "j", "enter")
    assert (tasks.page, tasks.queue, tasks.state, wish) == ("tasks", "b", "dead", ServerRequest(act="read"))

    read = settled(replace(tasks, tasks=(task("t1"), task("t2"))))
    one, wish = pressed(read, "j", "enter")
    assert (one.page, one.task, wish) == ("task", "t2", ServerRequest(act="read"))
    assert pressed(one, "escape")[0].page == "tasks"
    assert pressed(one, "escape", "escape")[0].page == "queues"


def test_tab_goes_through_the_states_and_reads_anew() -> None:
    tasks = pressed(screen(*THREE), "enter")[0]

    seen = [pressed(tasks, *["tab"] * times) for times in range(1, 5)]

    assert [one.state for one, _ in seen] == ["scheduled", "dead", "pending", "waiting"]
    assert all(wish == ServerRequest(act="read") for _, wish in seen)
    assert pressed(tasks, "backtab")[0].state == "pending"


def test_tasks_are_filtered_by_job_id_and_error() -> None:
    found = (task("t1", type="send"), task("t2", type="add", error="ZeroDivisionError: x"))
    tasks = replace(pressed(screen(*THREE), "enter")[0], tasks=found)

    assert [one.id for one in shown_tasks(replace(tasks, task_filter="zero"))] == ["t2"]
    assert [one.id for one in shown_tasks(replace(tasks, task_filter="T1"))] == ["t1"]
    assert [one.id for one in shown_tasks(replace(tasks, task_filter="SEND"))] == ["t1"]


@pytest.mark.parametrize(
    ("state", "key", "act"), [("dead", "r", "requeue"), ("waiting", "x", "cancel"), ("pending", "x", "cancel")]
)
def test_one_task_is_requeued_or_cancelled_after_a_question(state: str, key: str, act: str) -> None:
    tasks = replace(pressed(screen(*THREE), "enter")[0], state=state, tasks=(task("t1", state=state),))

    asked, wish = pressed(settled(tasks), key)

    assert wish is None
    assert pressed(asked, "y")[1] == ServerRequest(act=act, queue="a", id="t1")  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "key"), [("waiting", "r"), ("dead", "x")])
def test_what_cannot_be_done_with_a_task_is_said(state: str, key: str) -> None:
    tasks = replace(pressed(screen(*THREE), "enter")[0], state=state, tasks=(task("t1", state=state),))

    after, wish = pressed(settled(tasks), key)

    assert (after.question, wish) == (None, None)
    assert after.message


GROUPS = ErrorGroups(
    groups=(
        group("g1", queue="b", dead=4, message="no"), group("g2", queue="b", job="add", dead=1, message="late"),
        group("g3", queue="b", dead=0), group("g4", queue="c"),
    ),
    dead=12,
)  # fmt: skip
DEAD_OF_B = pressed(screen(*THREE, groups=GROUPS), "j", "enter")[0]


def test_the_dead_of_a_queue_open_with_their_groups_then_those_of_one_and_escape_goes_back() -> None:
    assert (DEAD_OF_B.state, lists_groups(DEAD_OF_B)) == ("dead", True)
    assert [one.id for one in shown_groups(DEAD_OF_B)] == ["g1", "g2"], "of this queue, with dead tasks"

    one, wish = pressed(DEAD_OF_B, "j", "j", "k", "enter")
    assert (one.group, one.tasks, lists_groups(one), wish) == ("g1", None, False, ServerRequest(act="read"))
    shown, _ = pressed(settled(replace(one, tasks=(task("t1"),))), "enter")
    assert (shown.page, shown.task) == ("task", "t1")
    assert pressed(shown, "escape")[0].group == "g1"
    back, wish = pressed(shown, "escape", "escape")
    assert (back.page, lists_groups(back), back.group_at, wish) == ("tasks", True, "g1", ServerRequest(act="read"))
    assert pressed(back, "escape")[0].page == "queues"
    assert pressed(DEAD_OF_B, "enter")[0].group == "", "the first line is all of them"
    assert lists_groups(pressed(one, "tab", "backtab")[0]), "another state forgets the group"


def test_groups_are_filtered_by_job_and_error_and_the_cursor_stays_on_one() -> None:
    assert [one.id for one in shown_groups(pressed(DEAD_OF_B, "/", *"LATE")[0])] == ["g2"]
    assert [one.id for one in shown_groups(pressed(DEAD_OF_B, "/", *"send")[0])] == ["g1"]
    assert pressed(DEAD_OF_B, "j", "/", *"late")[0].group_at == ""
    assert pressed(DEAD_OF_B, "j", "/", *"late", "escape", "escape")[0].page == "queues"


def test_a_group_is_requeued_after_a_question_with_its_number_and_all_of_them_on_the_first_line() -> None:
    asked = pressed(DEAD_OF_B, "j", "r")[0]
    assert asked.question is not None
    assert asked.question.text == "Requeue 4 dead tasks of queue b with 'ValueError: no'?"
    assert pressed(asked, "y")[1] == ServerRequest(act="requeue group", queue="b", id="g1")
    assert pressed(asked, "n")[1] is None
    assert pressed(DEAD_OF_B, "r", "y")[1] == ServerRequest(act="requeue all", queue="b")
    assert pressed(DEAD_OF_B, "j", "x")[1] is None


def test_dead_tasks_in_no_group_are_listed_at_once() -> None:
    for groups in (None, ErrorGroups(groups=(group("g4", queue="c"),), dead=3)):
        at = pressed(screen(*THREE, groups=groups), "j", "enter")[0]
        read = settled(replace(at, tasks=(task("t1"),)))

        assert not lists_groups(read)
        assert pressed(read, "enter")[0].task == "t1"
        assert pressed(read, "escape")[0].page == "queues"


def test_q_quits_from_every_page_but_is_a_letter_while_typing() -> None:
    assert pressed(screen(*THREE), "q")[1] == ServerRequest(act="quit")
    assert pressed(screen(*THREE), "enter", "q")[1] == ServerRequest(act="quit")
    assert pressed(screen(*THREE), "?", "q")[1] == ServerRequest(act="quit")
    assert pressed(screen(*THREE), "/", "q")[0].queue_filter == "q"


@pytest.mark.parametrize("key", ["j", "enter", "p", "r", "x", "s", "/", "escape", "tab", "G", "z", "up"])
def test_no_key_breaks_an_empty_screen(key: str) -> None:
    for page in ("queues", "tasks", "task"):
        press(Screen(page=page), key)  # type: ignore[arg-type]
        press(screen(page=page), key)
