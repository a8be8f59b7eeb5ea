"""The calls that enqueue one task: made of one before, of its kind, and the same as one that is made from nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jobrunner.broker.call import pack_calls, resp_args
from jobrunner.broker.calls import new_tasks
from jobrunner.broker.calls.new_tasks import enqueue_plain, is_plain
from jobrunner.broker.cluster_batch import _parts_of
from jobrunner.broker.keys import Keys
from jobrunner.broker.resp import pack
from jobrunner.task import Task

NAMES = st.sampled_from(["mail", "bills", "a/b", "a/c"])
MAYBE = {
    "keepalive_ms": st.integers(1, 9),
    "max_attempts": st.integers(0, 2),
    "max_stalled": st.integers(0, 2),
    "expires_in_ms": st.integers(1, 9),
    "encoding": st.sampled_from(["json", "text"]),
    "type": st.sampled_from(["", "Send", "Größe"]),
}
TASKS = st.builds(
    lambda given, **fixed: Task(**(given | fixed)),
    given=st.fixed_dictionaries({}, optional=MAYBE),
    id=st.text(min_size=1, max_size=40),
    queue=NAMES,
    payload=st.binary(max_size=40),
    kept_s=st.sampled_from([10.0, 60.0]),
)


@pytest.mark.parametrize("own", ["delay_ms", "at_ms", "priority", "key", "headers", "then", "kept_s"])
def test_what_few_tasks_have_in_common_is_not_plain(own):
    plain = Task(id="t", queue="mail", payload=b"1", kept_s=60, max_attempts=3)
    values = {"key": "k", "headers": b"{}", "then": b"x", "kept_s": 0.0}

    assert is_plain(plain)
    assert not is_plain(replace(plain, **{own: values.get(own, 1)}))


@given(st.lists(TASKS, min_size=1, max_size=20), st.sampled_from([Keys("p"), Keys("other")]))
def test_a_call_made_of_another_is_the_same(sent, keys):
    for task in sent:
        queue = keys.queue(task.queue)
        call, made = enqueue_plain(queue, task), new_tasks.enqueue(queue, [task])
        assert (call.words, call.keys, call.script) == (made.words, made.keys, made.script)
        assert call.repeat_s == made.repeat_s
        assert call.read([]) == made.read([])
        assert pack_calls([call, made], b"") == pack(resp_args(made, b"")) * 2


@given(TASKS)
def test_by_a_clock_that_is_set_and_on_a_cluster_it_is_packed_anew(task):
    call = enqueue_plain(Keys("p").queue(task.queue), task)

    assert pack_calls([call], b"42") == pack(resp_args(call, b"42"))
    (part,) = _parts_of(0, call)
    assert pack_calls([part.call], b"") == pack(resp_args(part.call, b""))


def test_of_many_kinds_some_are_forgotten_and_none_is_confused(monkeypatch):
    monkeypatch.setattr(new_tasks, "_MOST_KINDS", 3)
    monkeypatch.setattr(new_tasks, "_last_calls", {})
    keys = Keys("p").queue("mail")
    for number in [*range(9), *range(9)]:
        task = Task(id=f"t{number}", queue="mail", payload=b"1", type=f"T{number}", kept_s=60)
        assert enqueue_plain(keys, task).words == new_tasks.enqueue(keys, [task]).words
        assert 1 <= len(new_tasks._last_calls) <= 3


@pytest.mark.parametrize(
    "payload", [b"", b"\r\n$3\r\n", b"x" * 70_000, b"\xff\x00"], ids=["none", "crlf", "long", "raw"]
)
def test_any_payload_is_packed_behind_the_head(payload):
    task = Task(id="t", queue="mail", payload=payload, kept_s=60)
    call = enqueue_plain(Keys("p").queue("mail"), task)

    assert call.head is not None
    assert pack_calls([call], b"") == pack(resp_args(call, b""))
