"""History: finished tasks of a queue that keeps them, outside the four sets."""

import pytest

from jobrunner.broker.calls import leases, queues, tasks


@pytest.fixture
def kept(mail):
    mail.configure(history_ms=10_000)
    return mail


def counts(mail):
    found = mail.run(queues.counts(mail.keys))
    return found.waiting, found.scheduled, found.pending, found.dead, found.done


def test_a_commit_leaves_an_entry_and_the_hash_with_an_end_of_life(kept, clock):
    """KEU-19, KEU-36"""
    held = kept.lease("a", payload=b"x")
    clock.advance(7)
    assert kept.commit(held, result=b'{"n":1}') == ["ok"]

    assert kept.scores("done") == {"a": clock.ms}
    found = kept.hash("a")
    assert (found["payload"], found["result"], found["finished_at"]) == (b"x", b'{"n":1}', b"%d" % clock.ms)
    assert counts(kept) == (0, 0, 0, 0, 1)
    assert 9_000 < kept.raw.pttl(kept.keys.task("a")) <= 10_000
    assert 9_000 < kept.raw.pttl(kept.keys.done) <= 10_000


def test_what_is_popped_or_deleted_is_history_too(kept, clock):
    kept.enqueue("a", "b", payload=b"x")
    kept.run(leases.pop(kept.keys, 1))
    kept.reserve()
    kept.run(tasks.delete(kept.keys, "b"))
    assert kept.ids("done") == ["a", "b"]
    for one in "ab":
        assert kept.hash(one)["finished_at"] == b"%d" % clock.ms
        assert kept.hash(one)["payload"] == b"x"
        assert kept.raw.pttl(kept.keys.task(one)) > 9_000


def test_a_queue_that_keeps_history_notes_when_a_task_was_last_handed_out(kept, clock):
    kept.enqueue("a")
    clock.advance(5)
    (held,) = kept.reserve()
    assert kept.hash("a")["started_at"] == b"%d" % clock.ms

    kept.run(leases.fail(kept.keys, [(held.id, held.token, 0, "retry", "no")]))
    clock.advance(5)
    (held,) = kept.reserve()
    started = clock.ms
    clock.advance(9)
    kept.commit(held)
    assert kept.hash("a")["started_at"] == b"%d" % started


def test_a_worker_hears_whether_a_queue_keeps_history(kept, line):
    """Which notes how long tasks ran."""
    assert kept.ask().keeps_history
    assert not line("bare").ask().keeps_history


def test_a_queue_that_keeps_history_notes_how_long_tasks_ran(kept, mail):
    kept.enqueue("a", "b", "c", "d")
    reserved = kept.ask(4)
    assert reserved.keeps_history
    a, b, c, d = reserved.attempts
    said, result = (0, "succeeded", b"", b"", ""), (0, "succeeded", b"1", b"", "")
    words = [
        ((*said, "12 -1"), [a.id, a.token, b.id, b.token]),
        ((*result, "7 9"), ["gone", "1", c.id, c.token]),
        ((*said, ""), [d.id, d.token]),
    ]

    assert kept.run(leases.commit_groups(kept.keys, words)) == ["ok", "ok", "gone", "ok", "ok"]

    assert [kept.hash(one).get("run_ms") for one in "abcd"] == [b"12", None, b"9", None]


def test_no_other_queue_is_sent_or_keeps_how_long_tasks_ran(mail):
    mail.enqueue("a")
    reserved = mail.ask()
    assert not reserved.keeps_history
    (held,) = reserved.attempts
    mail.run(leases.commit_groups(mail.keys, [((60_000, "succeeded", b"", b"", "", "12"), [held.id, held.token])]))
    assert "run_ms" not in mail.hash("a")


def test_a_task_whose_hash_is_gone_does_not_come_back_with_a_run(kept):
    held = kept.lease("a")
    kept.raw.delete(kept.keys.task("a"))
    kept.run(leases.commit_groups(kept.keys, [((0, "succeeded", b"", b"", "", "12"), [held.id, held.token])]))
    assert kept.hash("a") == {}


def test_a_job_that_keeps_its_tasks_longer_than_history_does(kept):
    kept.commit(kept.lease("a"), keep_ms=60_000)
    assert kept.raw.pttl(kept.keys.task("a")) > 50_000


def test_entries_end_by_age_index_and_hash_together(kept, clock):
    """KEU-22"""
    kept.commit(kept.lease("a"))
    clock.advance(5_000)
    kept.commit(kept.lease("b"))
    clock.advance(4_999)
    assert counts(kept)[-1] == 2
    clock.advance(1)
    assert counts(kept)[-1] == 1
    assert (kept.ids("done"), kept.hash("a")) == (["b"], {})


def test_entries_end_by_number_the_oldest_first(kept, clock):
    """KEU-23"""
    kept.configure(history_max=100)
    for n in range(150):
        clock.advance(1)
        kept.commit(kept.lease(f"t{n:03}"))
    assert counts(kept)[-1] == 100
    assert kept.ids("done") == [f"t{n:03}" for n in range(50, 150)]
    assert kept.hash("t049") == {}
    assert kept.hash("t050")


def test_a_number_alone_is_an_age_too(mail):
    """I-11"""
    mail.configure(history_max=5)
    mail.commit(mail.lease("a"))
    assert mail.ids("done") == ["a"]
    assert 0 < mail.raw.pttl(mail.keys.done) <= 7 * 86_400_000


def test_a_number_alone_keeps_what_is_popped_or_deleted_too(mail):
    mail.configure(history_max=3)
    mail.enqueue("popped")
    mail.run(leases.pop(mail.keys, 1))
    mail.lease("deleted")
    mail.run(tasks.delete(mail.keys, "deleted"))
    assert sorted(mail.ids("done")) == ["deleted", "popped"]


def test_a_pop_that_finds_nothing_fit_notes_nothing(kept, clock):
    kept.enqueue("a", expires_in_ms=10)
    clock.advance(10)
    assert kept.run(leases.pop(kept.keys, 1)) == []
    assert "history_noted" not in {name.decode() for name in kept.raw.hkeys(kept.keys.settings)}


def test_maintenance_counts_what_it_trims(kept, clock):
    kept.commit(kept.lease("a"), kept.lease("b"))
    clock.advance(10_000)
    assert kept.run(queues.upkeep(kept.keys)).moved == 2
    kept.configure(history_ms="damaged")
    assert kept.run(queues.upkeep(kept.keys)).moved == 0


def test_history_is_never_handed_out_nor_reported_on(kept):
    """KEU-21"""
    held = kept.lease("a")
    kept.commit(held)
    before = kept.snapshot()
    assert kept.reserve(9) == []
    assert kept.run(leases.pop(kept.keys, 9)) == []
    assert kept.fail(held) == kept.commit(held) == kept.release(held) == ["gone"]
    assert kept.snapshot() == before


def test_a_queue_without_history_keeps_none(mail):
    mail.commit(mail.lease("a"))
    assert mail.ids("done") == []


def test_a_queue_without_history_notes_no_start(mail):
    mail.enqueue("a")
    mail.reserve()
    assert "started_at" not in mail.hash("a")


def test_history_that_is_switched_off_ends_by_itself(kept):
    kept.commit(kept.lease("a"))
    kept.run(queues.configure(kept.keys, {"history_ms": ""}))
    kept.commit(kept.lease("b"))
    assert kept.ids("done") == ["a"]
    assert kept.raw.pttl(kept.keys.done) > 0


def test_history_can_be_purged(kept):
    kept.commit(kept.lease("a"))
    assert kept.run(queues.purge(kept.keys, "done")) == 1
    assert (kept.ids("done"), kept.hash("a")) == ([], {})
    assert "purged" not in kept.totals()


def passed(mail):
    noted, trimmed = mail.raw.hmget(mail.keys.settings, "history_noted", "history_trimmed")
    return (noted and float(noted)), (trimmed and float(trimmed))


def test_the_queue_remembers_up_to_where_its_history_was_noted_and_trimmed(kept, clock):
    first = clock.ms
    kept.commit(kept.lease("a"))
    assert passed(kept) == (first, None)
    kept.commit(kept.lease("b"))
    clock.advance(10_000)
    kept.commit(kept.lease("c"))
    assert passed(kept) == (clock.ms, first)


def test_maintenance_that_trims_a_single_task_notes_it(kept, clock):
    first = clock.ms
    kept.commit(kept.lease("a"))
    clock.advance(9000)
    kept.commit(kept.lease("b"))
    clock.advance(1000)
    kept.run(queues.upkeep(kept.keys))
    assert kept.ids("done") == ["b"]
    assert passed(kept)[1] == first


def test_an_index_that_expired_counts_as_trimmed_when_the_next_task_finishes(kept, clock):
    first = clock.ms
    kept.commit(kept.lease("a"))
    kept.raw.delete(kept.keys.done)
    assert passed(kept) == (first, None)
    clock.advance(1)
    kept.commit(kept.lease("b"))
    assert passed(kept) == (clock.ms, first)


def test_history_that_is_purged_counts_as_trimmed_and_the_instant_never_goes_back(kept, clock):
    clock.advance(100)
    newest = clock.ms
    kept.commit(kept.lease("a"))
    kept.run(queues.purge(kept.keys, "done"))
    assert passed(kept) == (newest, newest)
    clock.advance(-50)
    kept.commit(kept.lease("b"))
    kept.run(queues.purge(kept.keys, "done"))
    assert passed(kept)[1] == newest


def test_a_queue_without_history_notes_nothing(mail):
    mail.commit(mail.lease("a"))
    mail.enqueue("b")
    mail.run(queues.purge(mail.keys, "waiting"))
    assert passed(mail) == (None, None)
    assert mail.raw.exists(mail.keys.settings) == 0


def trims(here, clock):
    clock.advance(10_000)
    here.run(queues.upkeep(here.keys))


def purges(here, clock):
    here.run(queues.purge(here.keys, "done"))


def archives(here, clock):
    here.run(queues.delete_archived(here.keys, "done", before_ms=clock.ms + 1))


def removes(here, clock):
    here.run(tasks.remove(here.keys, ["daily", "a"]))


def is_deleted(here, clock):
    while here.run(queues.delete(here.keys, force=True, states=[])) != ["deleted"]:
        pass


@pytest.mark.parametrize("ends", [trims, purges, archives, removes, is_deleted])
@pytest.mark.parametrize("state", ["waiting", "scheduled", "pending", "dead"])
def test_the_end_of_an_entry_leaves_a_live_task_of_its_id(line, clock, ends, state):
    """The record of an entry may expire before the entry: then its id is free for another task of the tag."""
    here, other = line("shop/orders"), line("shop/mail")
    here.configure(history_ms=10_000)
    here.commit(here.lease("daily"), here.lease("a"))
    here.raw.delete(here.keys.task("daily"))
    other.enqueue("daily", payload=b"new", delay_ms=5 if state == "scheduled" else None)
    if state in ("pending", "dead"):
        held = other.reserve()
        if state == "dead":
            other.fail(*held, fate="dead")

    ends(here, clock)

    assert (here.ids("done"), here.hash("a")) == ([], {})
    assert other.hash("daily")["payload"] == b"new"
    assert other.ids(state) == ["daily"]


def test_a_task_that_waits_under_the_id_of_an_expired_entry_is_handed_out(kept, clock):
    kept.commit(kept.lease("daily"))
    kept.raw.delete(kept.keys.task("daily"))
    kept.enqueue("daily", payload=b"new")
    clock.advance(10_000)

    assert [held.payload for held in kept.reserve(2)] == [b"new"]
    assert kept.ids("done") == []
    assert "orphaned" not in kept.totals()


def test_a_finished_task_of_another_queue_keeps_its_result(line, clock):
    here, other = line("shop/orders"), line("shop/mail")
    here.configure(history_ms=10_000)
    here.commit(here.lease("daily"))
    here.raw.delete(here.keys.task("daily"))
    other.commit(other.lease("daily"), keep_ms=60_000, result=b"2")

    trims(here, clock)

    assert other.hash("daily")["result"] == b"2"


def trim_first(mail, clock, type_, keep_ms, result):
    """A task of this type ends with this result, and its entry is trimmed behind the next one."""
    first = mail.lease("first", type=type_)
    said = (keep_ms, "succeeded", result, b"", type_, "")
    mail.run(leases.commit_groups(mail.keys, [(said, [first.id, first.token])]))
    clock.advance(5)
    mail.commit(mail.lease("second"))
    mail.run(queues.upkeep(mail.keys))


@pytest.mark.parametrize(("type_", "keep_ms"), [("", 3_600_000), ("Report", 3_600_000), ("Report", 60_000)])
@pytest.mark.parametrize("limits", [{"history_max": 1}, {"history_ms": 1}, {"history_ms": 10_000, "history_max": 1}])
def test_a_result_outlives_its_entry_as_long_as_its_job_says(mail, clock, limits, type_, keep_ms):
    mail.configure(**limits)
    trim_first(mail, clock, type_, keep_ms, b"42")

    assert "first" not in mail.ids("done")
    assert mail.hash("first")["result"] == b"42"
    assert keep_ms - 30_000 < mail.raw.pttl(mail.keys.task("first")) <= keep_ms


@pytest.mark.parametrize(("type_", "keep_ms"), [("", 0), ("Report", 0), ("Report", 4)])
def test_a_record_that_no_result_ttl_keeps_ends_with_its_entry(mail, clock, type_, keep_ms):
    """`history_max` bounds the memory that history takes."""
    mail.configure(history_max=1)
    trim_first(mail, clock, type_, keep_ms, b"")

    assert (mail.ids("done"), mail.hash("first")) == (["second"], {})
