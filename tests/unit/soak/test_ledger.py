"""The summary of the ledger: lost tasks, and repeated starts without a reason."""

from collections.abc import Iterator

from jobrunner.soak.ledger import KEEP_S, Excuses, LedgerEntry, LedgerSummary


def entries(*lines: str) -> Iterator[LedgerEntry]:
    """`at event task pid note`; `event#2` is of the second attempt."""
    for line in lines:
        at, event, task, pid, *note = line.split(" ", 4)
        event, _, attempt = event.partition("#")
        yield LedgerEntry(event, task, int(attempt or 1), int(pid), float(at), note[0] if note else "-")


ENQUEUED = ("1 offer a 1 Short 0", "2 ack a 1")


def tally_of(*lines: str, excuses: Excuses | None = None) -> LedgerSummary:
    tally = LedgerSummary(excuses or Excuses())
    tally.take(entries(*lines))
    return tally


def test_a_task_that_is_finished_is_not_open() -> None:
    tally = tally_of(*ENQUEUED, "3 start a 5", "4 end a 5")

    assert not tally.open
    assert (tally.totals.acked, tally.totals.finished, tally.totals.extra) == (1, 1, 0)


def test_a_task_may_be_finished_before_it_is_acknowledged() -> None:
    tally = tally_of("1 offer a 1 Short 0", "2 start a 5", "3 end a 5", "4 ack a 1")

    assert not tally.open
    assert tally.totals.acked == 1


def test_an_acknowledged_task_that_did_not_finish_is_open() -> None:
    assert list(tally_of(*ENQUEUED, "3 start a 5").open) == ["a"]
    assert not tally_of("1 offer a 1 Short 0").open, "it was not acknowledged"


def test_a_task_that_fails_on_purpose_begins_again_as_it_must() -> None:
    tally = tally_of(*ENQUEUED, "3 start a 5", "4 fail a 5", "5 start a 6", "6 end a 6")

    assert (tally.totals.retries, tally.totals.extra) == (1, 0)


def test_a_start_too_many_is_excused_by_a_fault_in_between_alone() -> None:
    lines = (*ENQUEUED, "3 start a 5", "9 start a 6", "10 end a 6")
    struck, struck_before, another = Excuses(), Excuses(), Excuses()
    struck.add([5], 4, 4)
    struck_before.add([5], 1, 2)
    another.add([7], 4, 4)

    assert tally_of(*lines, excuses=struck).totals.extra_unexcused == 0
    assert tally_of(*lines, excuses=struck).totals.extra == 1
    for excuses in (Excuses(), struck_before, another):
        found = tally_of(*lines, excuses=excuses).totals
        assert found.extra_unexcused == 1
        assert "a began again" in found.wrong[0]


def test_after_a_start_too_many_an_attempt_that_fails_on_purpose_is_tried_again_as_it_must() -> None:
    struck = Excuses()
    struck.add([5], 4, 4)
    lines = (*ENQUEUED, "3 start#1 a 5", "9 start#2 a 6", "10 fail#2 a 6", "11 start#3 a 7", "12 end#3 a 7")

    found = tally_of(*lines, excuses=struck).totals

    assert (found.extra, found.extra_unexcused, found.retries, found.wrong) == (1, 0, 1, [])


def test_a_call_made_again_when_the_task_was_done_and_forgotten_makes_a_new_one() -> None:
    done = (*ENQUEUED[:1], "3 start a 5", "4 end a 5")
    acked_soon, acked_late = f"{3.9 + KEEP_S} ack a 1", f"{4 + KEEP_S} ack a 1"
    again = (f"{5 + KEEP_S} start a 6", f"{6 + KEEP_S} end a 6")

    for lines in ((*done, acked_late, *again), (*done, *again, acked_late)):
        found = tally_of(*lines).totals
        assert (found.extra, found.extra_unexcused, found.ended_again_unexcused) == (1, 0, 0)
    found = tally_of(*done, acked_soon, *again).totals
    assert (found.extra, found.extra_unexcused, found.ended_again_unexcused) == (1, 1, 1)


def test_a_failure_that_is_told_too_late_is_none_of_the_attempt_that_runs() -> None:
    lines = (*ENQUEUED, "3 start#1 a 5", "9 start#2 a 6", "10 fail#1 a 5", "11 start#3 a 7", "12 end#3 a 7")

    assert tally_of(*lines).totals.extra == 2


def test_a_fault_that_struck_all_excuses_every_process() -> None:
    excuses = Excuses()
    excuses.add(None, 4, 8)

    assert tally_of(*ENQUEUED, "3 start a 5", "9 start a 6", excuses=excuses).totals.extra_unexcused == 0


def test_a_task_that_finishes_twice_is_told() -> None:
    tally = tally_of(*ENQUEUED, "3 start a 5", "4 end a 5", "5 end a 5")

    assert (tally.totals.finished, tally.totals.ended_again_unexcused) == (1, 1)


def test_a_task_that_nobody_enqueued_is_told_and_so_is_one_that_was_over_for_long() -> None:
    assert tally_of("3 start a 5").totals.unknown == 1
    tally = tally_of(*ENQUEUED, "3 start a 5", "4 end a 5", "900 offer b 1 Short 0")
    tally.take(entries("901 start a 5"))
    assert tally.totals.unknown == 1


def test_waits_count_from_when_a_task_was_due() -> None:
    tally = tally_of("1 offer a 1 Short 2.5", "1 ack a 1", "4 start a 5")

    assert list(tally.waits) == [(4, 0.5)]
    assert tally_of("1 offer a 1 Short 0", "1 ack a 1").oldest_s(8) == 7


def test_a_task_that_finished_under_a_fault_may_finish_once_more() -> None:
    excuses = Excuses()
    excuses.add([5], 4, 4)
    lines = (*ENQUEUED, "3 start a 5", "3.5 end a 5", "9 start a 6", "10 end a 6")

    assert tally_of(*lines, excuses=excuses).totals.ended_again_unexcused == 0
    assert tally_of(*lines, "11 end a 6", excuses=excuses).totals.ended_again_unexcused == 1
