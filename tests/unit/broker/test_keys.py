"""Every key in one place: names that are allowed, tags that keep a script in one slot."""


import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.broker.keys import Keys, QueueKeys, check_id, check_name, check_own_id, split_queue, tag_of_id
from jobrunner.errors import InvalidName
from jobrunner.task import new_id

_NO_KEYS = ("name", "tag")
HOSTILE = ["", "a b", "a/b", "a{b}", "a\n", "a\0", "é", "a" * 129, "*", "a?", "[a]", None, 7, b"a", "x" * 10_000]


@pytest.mark.parametrize("name", ["a", "A-Z.0_9:x", "a" * 128])
def test_an_allowed_name_is_returned(name):
    assert check_name(name, "queue name") == name
    assert check_id(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_any_other_name_is_refused_with_what_it_is_and_is_shown_short(name):
    with pytest.raises(InvalidName, match="queue name") as refusal:
        check_name(name, "queue name")

    assert len(str(refusal.value)) < 250
    assert "\n" not in str(refusal.value)


@given(st.text())
def test_no_text_but_an_allowed_name_gets_into_a_key(text):
    try:
        keys = Keys("p").queue(text)
    except InvalidName:
        return
    assert keys.waiting.count(b"{") == keys.waiting.count(b"}") == 1
    assert keys.waiting.isascii()
    assert not set(keys.waiting) & set(b" \r\n\0*?[]")


def test_all_keys_are_below_the_prefix_and_different():
    keys = Keys("p")
    queue = keys.queue("mail")
    every = [getattr(queue, name) for name in QueueKeys.__struct_fields__ if name not in (*_NO_KEYS, "shard_counts")]
    every += [keys.queues, keys.periodics, keys.periodics_seen, keys.periodics_version, keys.workers, keys.leader]
    every += [keys.periodics_queues]
    every += [keys.queue("mail/raw").shard_counts, keys.epoch, keys.job("j"), keys.worker("w")]
    every += [queue.task("t"), queue.periodic("n")]

    assert all(key.startswith(b"p:") for key in every)
    assert len(set(every)) == len(every)
    assert queue.shard_counts == queue.settings, "a pipeline has one hash for all its queues"


def test_everything_of_a_queue_is_in_one_slot():
    queue = Keys("p").queue("orders/raw")

    for name in QueueKeys.__struct_fields__:
        if name not in _NO_KEYS:
            assert b":{orders}:" in getattr(queue, name)
    assert b":{orders}:" in queue.task("t")
    assert b":{orders}:" in queue.periodic("n")


def test_the_layout_is_the_documented_one():
    plain, station = Keys("jobrunner").queue("mail"), Keys("p").queue("orders/raw")

    assert plain.waiting == b"jobrunner:{mail}:mail:waiting"
    assert plain.task("7") == b"jobrunner:{mail}:task:7"
    assert plain.waiters == b"jobrunner:{mail}:waiters"
    assert plain.periodic("tick") == b"jobrunner:{mail}:mail:periodic:tick"
    assert station.pending == b"p:{orders}:raw:pending"
    assert station.leases == b"p:{orders}:raw:leases"
    assert station.periodic("tick") == b"p:{orders}:raw:periodic:tick"
    assert (station.batches, station.batch) == (b"p:{orders}:raw:batches", b"p:{orders}:batch:")
    assert station.queues == Keys("p").queues == b"p:queues"
    assert Keys("p").job("Send") == b"p:job:Send"


def test_queues_of_a_pipeline_share_tasks_and_nothing_else():
    keys = Keys("p")
    raw, clean = keys.queue("orders/raw"), keys.queue("orders/clean")
    shared = {name for name in QueueKeys.__struct_fields__ if getattr(raw, name) == getattr(clean, name)}

    assert shared == {"tag", "base", "tasks", "finished", "waiters", "outbox", "batch", "shard_counts"}


@pytest.mark.parametrize(
    "name", ["a/b/c", "/a", "a/", "/", "a//b", "a b/c", "x/{y}", "task", "orders/task", "task:7", "a/a", None, 7]
)
def test_a_queue_name_that_could_be_taken_for_another_key_is_refused(name):
    with pytest.raises(InvalidName):
        split_queue(name)


def test_a_full_name_is_split_at_its_slash():
    assert split_queue("mail") == ("mail", "mail")
    assert split_queue("orders/raw") == ("orders", "raw")


def test_the_tag_of_an_id_is_found_in_ids_that_jobrunner_made():
    assert tag_of_id(new_id("orders")) == "orders"
    assert tag_of_id(new_id("a" * 128)) == "a" * 128
    assert tag_of_id("mine") is None
    assert tag_of_id("0" * 28) is None
    assert check_id(new_id("a" * 128)).endswith("a" * 128)


def test_a_prefix_has_the_same_rules():
    with pytest.raises(InvalidName, match="prefix"):
        Keys("a{b}")


@pytest.mark.parametrize("made_for", ["mail", "mail@3"])
def test_an_id_that_was_made_for_another_queue_is_refused_for_a_new_task(made_for: str) -> None:
    made = new_id(made_for)
    assert check_own_id(made, "mail") == check_own_id(made, "mail@2") == made
    with pytest.raises(InvalidName, match=rf"'{made}' is that of a task of 'mail', .* f'next-\{{id\[:28\]\}}'$"):
        check_own_id(made, "next")
    assert tag_of_id(check_own_id(f"next-{made[:28]}", "next")) is None
