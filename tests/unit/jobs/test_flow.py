"""chain and group: the commands that they send, and the errors before they send any."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import redis

from jobrunner import Client, Job, Worker, chain, group, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import interpret, told_again
from jobrunner.broker.calls import flows
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.flow import Flow, send
from jobrunner.client.operations.flow_relay import relay
from jobrunner.client.operations.operation import run_operation
from jobrunner.errors import (
    InvalidOption,
    OutcomeUnknown,
    ParameterError,
    PayloadTooLarge,
    QueueFull,
    ServerUnavailable,
    UsageError,
)
from jobrunner.jobs.flow import Step, node_of
from jobrunner.jobs.flow_layout import lay_out
from jobrunner.join import read_onward
from jobrunner.task import new_id

DAY_MS = 86_400_000


@job(name="flow.add", queue="maths")
def add(x: int, y: int = 1) -> int:
    return x + y


@job(name="flow.other", queue="line/other")
def other(n: int = 0) -> None: ...


@job(name="flow.early", queue="maths", ack="early")
def early() -> None: ...


@job(name="flow.unique", queue="maths", unique=True)
def unique() -> None: ...


@job(name="flow.thing", queue="maths", priority=2)
class Thing(Job):
    n: int = 0

    def run(self) -> int:
        return self.n


def laid(step: Step) -> Flow:
    return lay_out(node_of(step), DAY_MS)


def rules(flow: Flow) -> list[tuple[str, int]]:
    """Rule and total of the joins but the tally, sorted."""
    return sorted((join.rule, join.total) for join in flow.joins[1:])


def test_a_chain_begins_with_its_first_step_and_the_others_wait() -> None:
    flow = laid(chain(add.bind(1), Thing(n=2), other.bind(3)))
    assert [task.type for task in flow.heads] == ["flow.add"]
    assert [task.type for task in flow.steps] == ["flow.add", "flow.thing", "flow.other"]
    assert rules(flow) == [("success", 1), ("success", 1)]
    assert [join.queue for join in flow.joins[1:]] == ["line/other", "maths"]
    assert flow.shape == 2


def test_each_task_tells_the_join_behind_it_and_the_tally() -> None:
    flow = laid(chain(add.bind(1), add.bind(2)))
    (tally, second) = flow.joins
    assert read_onward(flow.heads[0].then or b"") == [(*second.place, 0), (*tally.place, 0)]
    assert second.task is not None
    assert read_onward(second.task.then or b"") == [(*tally.place, 1)]


def test_a_task_of_a_join_is_made_by_its_id_alone() -> None:
    """The id is in the join: whichever process fires it and however often, it is that one task."""
    flow = laid(chain(add.bind(1), add.bind(2)))
    assert len({task.id for join in flow.joins if (task := join.task)} | {task.id for task in flow.heads}) == 2
    assert len({join.id for join in flow.joins}) == 2


def test_members_of_a_group_begin_at_once_and_callbacks_wait_for_all() -> None:
    flow = laid(
        group(*(add.bind(n) for n in range(3)), on_success=Thing(), on_complete=other.bind(), on_dead=add.bind(0))
    )
    assert len(flow.heads) == len(flow.steps) == 3
    assert rules(flow) == [("complete", 3), ("dead", 3), ("success", 3)]
    assert flow.later == []
    assert flow.shape == [0, 1, 2]
    told = [sorted(one.member for one in read_onward(task.then or b"")) for task in flow.heads]
    assert told == [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]


def test_a_callback_tells_nobody() -> None:
    flow = laid(group(add.bind(1), on_success=Thing()))
    assert [join.task.then for join in flow.joins if join.task] == [None]


def test_a_group_of_one_is_a_group() -> None:
    flow = laid(chain(group(add.bind(1)), add.bind(2)))
    assert rules(flow) == [("success", 1)]
    assert laid(group(add.bind(1))).shape == [0]


def test_behind_a_group_a_step_waits_for_every_member() -> None:
    flow = laid(chain(group(add.bind(1), add.bind(2)), add.bind(3)))
    assert rules(flow) == [("success", 2)]
    assert flow.shape == 2


def test_each_member_of_a_group_in_a_chain_waits_for_the_step_before() -> None:
    flow = laid(chain(add.bind(1), group(add.bind(2), add.bind(3)), add.bind(4)))
    assert len(flow.heads) == 1
    assert rules(flow) == [("success", 1), ("success", 1), ("success", 2)]
    assert len(read_onward(flow.heads[0].then or b"")) == 3


def test_between_two_groups_stands_one_join() -> None:
    wide = group(*(add.bind(n) for n in range(50)))
    flow = laid(chain(wide, wide, wide))
    assert rules(flow) == [("pass", 50)] * 2 + [("success", 1)] * 100
    assert {len(read_onward(task.then or b"")) for task in flow.heads} == {2}
    assert {join.results for join in flow.joins if join.rule == "success"} == {b"*"}


def test_a_group_in_a_group_is_one_member() -> None:
    flow = laid(group(group(add.bind(1), add.bind(2)), add.bind(3), on_success=Thing()))
    assert rules(flow) == [("pass", 2), ("success", 2)]
    assert flow.shape == [[0, 1], 2]


def test_a_chain_in_a_group_is_one_member_and_its_last_step_the_result() -> None:
    flow = laid(group(chain(add.bind(1), add.bind(2)), add.bind(3), on_success=Thing()))
    assert rules(flow) == [("success", 1), ("success", 2)]
    assert flow.shape == [1, 2]


def test_a_chain_in_a_chain_is_its_steps() -> None:
    assert rules(laid(chain(chain(add.bind(1), add.bind(2)), add.bind(3)))) == [("success", 1)] * 2


def test_an_empty_group_lets_its_callbacks_begin_at_once() -> None:
    flow = laid(group(on_success=Thing(), on_complete=add.bind(1), on_dead=add.bind(2)))
    assert (flow.heads, flow.steps, flow.shape) == ([], [], [])
    assert rules(flow) == [("complete", 1), ("success", 1)]
    assert len(flow.signals) == 2
    assert laid(group()).signals == []


def test_an_empty_group_in_a_chain_brings_no_results() -> None:
    (first, last) = laid(chain(group(), add.bind(1))), laid(chain(add.bind(1), group(), add.bind(2)))
    assert [join.results for join in first.joins[1:]] == [b"[]"]
    assert len(first.signals) == 1
    assert [join.results for join in last.joins[1:]] == [b"[]"]
    assert last.signals == []


def test_the_result_of_a_chain_that_ends_with_an_empty_group_waits_for_what_is_before_it() -> None:
    flow = laid(chain(add.bind(1), group(add.bind(2), add.bind(3)), group(group())))
    assert flow.shape == [[]]
    assert flow.awaited == [1, 2]
    assert laid(group(chain(add.bind(1), group()), add.bind(2))).awaited == [0, 1]


def test_an_empty_group_in_a_group_is_a_member() -> None:
    flow = laid(group(group(), add.bind(1), on_success=Thing()))
    assert rules(flow) == [("pass", 1), ("success", 2)]
    assert len(flow.signals) == 1
    assert flow.shape == [[], 0]


def test_a_join_lives_as_long_as_what_runs_before_it_may_take() -> None:
    flow = laid(chain(add.bind(1), add.using(in_=3600).bind(2), group(add.bind(3), add.bind(4)), add.bind(5)))
    ttl_ms = {join.task.payload: join.ttl_ms for join in flow.joins if join.task}
    hour_ms = 3_600_000
    assert [ttl_ms[b'{"x":%d,"y":1}' % n] for n in (2, 3, 4, 5)] == [
        2 * DAY_MS, 3 * DAY_MS + hour_ms, 3 * DAY_MS + hour_ms, 4 * DAY_MS + hour_ms
    ]  # fmt: skip
    assert flow.joins[0].ttl_ms == 5 * DAY_MS + hour_ms


def test_options_of_using_and_of_the_job_go_with_the_step() -> None:
    flow = laid(chain(add.using(priority=0, queue="slow").bind(1), Thing(n=1), add.using(in_=5).bind(1)))
    assert (flow.heads[0].priority, flow.heads[0].queue) == (0, "slow")
    second, third = [join.task for join in reversed(flow.joins) if join.task]
    assert second is not None
    assert second.priority == 2
    assert third is not None
    assert third.delay_ms == 5000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (add, "add.bind"),
        (3, "no step"),
        (Thing, "no step"),
        ([add.bind(1), add.bind(2)], r"each step is an argument of its own: write group\(\*steps\)"),
        ((add.bind(n) for n in range(2)), r"write group\(\*steps\)"),
        (add.using(id="mine").bind(1), "id='mine'"),
        (early.bind(), "ack='early'"),
        (unique.bind(), "is unique"),
        (add.using(wait=2).bind(1), "wait=2"),
        (chain(), "no steps"),
        (chain(group(), chain()), "no steps"),
        (group(add.bind(1), on_success=group()), "empty group"),
    ],
)
def test_what_cannot_be_a_step_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        laid(group(wrong))


def test_a_wrong_parameter_anywhere_lets_nothing_be_sent(current: Client, raw: redis.Redis) -> None:
    wrong: Any = "two"
    with pytest.raises(ParameterError):
        chain(add.bind(1), group(add.bind(2), chain(add.bind(3), add.bind(wrong)))).enqueue()
    with pytest.raises(InvalidOption):
        chain(add.bind(1)).enqueue(ttl=0)
    assert not raw.keys(f"{keys_of(current).prefix}:*")


def test_what_is_too_large_anywhere_lets_nothing_be_sent(current: Client, raw: redis.Redis) -> None:
    @job(name="flow.long", queue="maths")
    def long(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge):
        chain(add.bind(1), long.bind("x" * 2_000_000)).enqueue()
    with pytest.raises(PayloadTooLarge, match="too many tasks wait for one"):
        chain(add.bind(1), group(*(add.bind(n) for n in range(30_000)))).enqueue()
    assert not raw.keys(f"{keys_of(current).prefix}:*")


def test_a_queue_that_is_full_takes_no_part_of_a_flow_on(current: Client, raw: redis.Redis) -> None:
    current.queue("line/other").configure(max_size=1)
    current.queue("line/other").push("x")
    with pytest.raises(QueueFull):
        group(add.bind(1), other.bind(), on_success=Thing(), on_complete=Thing()).enqueue()
    assert current.queue("maths").counts()["waiting"] == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_callback_of_a_flow_that_was_refused_is_ever_enqueued(current: Client, place: int) -> None:
    """Not of a group within another either, whichever of its parts the full queue is met at."""
    current.queue("line/other").configure(max_size=1)
    current.queue("line/other").push("x")
    inner = group(add.bind(1), add.bind(2), on_complete=Thing(), on_dead=Thing())
    steps: list[Any] = [inner, chain(group(add.bind(3), on_complete=Thing()), add.bind(4))]
    steps.insert(place, other.bind())
    with pytest.raises(QueueFull):
        group(*steps, on_complete=Thing(), on_dead=Thing()).enqueue()

    Worker(queues=["maths"], client=current).run(burst=True)
    assert sum(current.queue("maths").counts().values()) == 0
    assert current.queue("maths").totals().get("succeeded", 0) == 0


def test_a_step_that_died_before_the_rest_was_refused_keeps_its_error(current: Client) -> None:
    """It was cancelled, and gone a minute later."""
    maths, broker = current.queue("maths"), broker_of(current)
    maths.configure(max_attempts=1)
    steps: Any = send(laid(group(add.bind(1), add.bind(2))), keys_of(current), None, 1000)
    step, held = steps.send(None), list[Any]()
    while not held:
        replies = broker.run_many(getattr(step, "calls", step))
        if not (held := maths.reserve()):
            step = steps.send(replies)
    held[0].rollback(error="no such number")
    back = steps.throw(QueueFull("full"))
    with suppress(QueueFull):  # it is raised again when the steps are taken back
        while True:
            back = steps.send(broker.run_many(getattr(back, "calls", back)))

    assert [record.error for record in maths.tasks("dead")] == ["no such number"]
    assert maths.counts()["waiting"] == 0


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """writes("enqueue", 2, before=…, after=…): what is done around the second write with that script."""
    write, seen = Broker.write, Counter[str]()

    def around(script: str, number: int, *, before: Any = None, after: Any = None) -> None:
        def write_so(self: Broker, calls: Any) -> list[Any]:
            names = {call.script.name for call in calls if call.script}
            seen.update(names)
            is_it = script in names and seen[script] == number
            if is_it and before is not None:
                before()
            replies = write(self, calls)
            if is_it and after is not None:
                after()
            return replies

        monkeypatch.setattr(Broker, "write", write_so)

    return around


def raising(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


MAY_RUN = "may run, and enqueued again they run twice: look at the flow first"


def test_a_server_that_goes_away_behind_the_first_steps_leaves_steps_that_may_run(current: Client, writes: Any) -> None:
    """It was ServerUnavailable, which says that nothing was sent, with a thousand steps in line."""
    writes("enqueue", 2, before=raising(ServerUnavailable("no server")))
    with pytest.raises(OutcomeUnknown, match=rf"no server; steps of flow .* {MAY_RUN}"):
        group(*(add.bind(n) for n in range(1500)), on_success=Thing()).enqueue()
    assert current.queue("maths").counts()["waiting"] == 1000


def test_a_server_that_is_away_at_the_first_steps_took_none(current: Client, writes: Any) -> None:
    writes("enqueue", 1, before=raising(ServerUnavailable("no server")))
    with pytest.raises(ServerUnavailable, match=r"^no server$"):
        group(*(add.bind(n) for n in range(1500))).enqueue()


@pytest.mark.parametrize("error", [OutcomeUnknown("reply lost"), ServerUnavailable("reply lost")])
def test_steps_behind_an_empty_group_may_run_when_the_reply_is_lost(
    current: Client, writes: Any, error: Exception
) -> None:
    """The end of the empty group starts them. The error said that none will run, or that nothing was sent."""
    writes("join_arrive", 1, after=raising(error))
    with pytest.raises(OutcomeUnknown, match=MAY_RUN):
        chain(group(), add.bind(1)).enqueue()
    assert current.queue("maths").counts()["waiting"] == 1


def test_second_steps_of_a_flow_that_is_refused_do_not_run(current: Client, writes: Any) -> None:
    """A quick worker ends the first step of one chain before the second thousand of them is refused."""
    maths, line = current.queue("maths"), current.queue("line/other")
    maths.configure(max_size=1000)

    def end_one() -> None:
        (held,) = maths.reserve()
        held.commit()
        relay(broker_of(current), keys_of(current), tags=["maths"])
        assert line.counts()["waiting"] == 1

    writes("enqueue", 2, before=end_one)
    with pytest.raises(QueueFull) as full:
        group(*(chain(add.bind(n), other.bind(n)) for n in range(1500))).enqueue()
    assert (maths.counts()["waiting"], line.counts()["waiting"]) == (0, 0)
    assert "wait=" not in str(full.value), "a flow waits for no room"


def test_a_flow_that_is_cancelled_by_calls_whose_replies_were_lost_was_stopped(
    current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = group(add.bind(1), add.bind(2)).enqueue()
    broker = broker_of(current)

    def run_twice(calls: Any) -> list[Any]:  # as the driver sends them again
        broker.replies(calls)
        replies = broker.replies(calls)
        return [interpret(call, told_again(call, reply)) for call, reply in zip(calls, replies, strict=True)]

    monkeypatch.setattr(broker, "run_many", run_twice)
    assert flow.cancel()


def test_every_join_expires(current: Client, raw: redis.Redis) -> None:
    chain(add.bind(1), group(group(add.bind(2)), add.bind(3), on_dead=Thing()), add.bind(4)).enqueue(ttl=60)
    joins = list(raw.scan_iter(match="*:join:*"))
    assert len(joins) == 6
    assert all(0 < raw.pttl(key) <= 6 * 60_000 for key in joins)


@pytest.mark.parametrize("stop", range(8))
def test_a_flow_enqueued_half_way_fires_nothing(stop: int, client: Client) -> None:
    """The process dies after N round trips; then the part of two tasks in two queues that was sent is purged."""
    flow = laid(group(add.bind(1), other.bind(), on_success=Thing(), on_complete=Thing()))
    steps: Any = send(flow, keys_of(client), None, 1000)
    replies: list[Any] | None = None
    with suppress(StopIteration):
        for _ in range(stop):
            step = steps.send(replies)
            replies = [broker_of(client).run(call) for call in getattr(step, "calls", step)]
    sent = [client.queue(name).purge("waiting") for name in ("maths", "line/other")]
    assert client.queue("maths").counts()["waiting"] == (1 if sent == [1, 1] else 0)
    assert sent in ([0, 0], [1, 1])


def test_the_list_of_recent_flows_is_cut_now_and_then_and_never_too_short(client: Client, raw: Any) -> None:
    keys = keys_of(client)
    lengths = []
    for at in range(0, 4000, 20):
        calls = [flows.note_flow(keys, new_id("maths"), n) for n in range(at, at + 20)]
        broker_of(client).run_many([call for one in calls for call in one])
        lengths.append(raw.zcard(keys.flows))

    assert max(lengths) < 1500
    assert all(found >= min(1000, sent) for sent, found in zip(range(20, 4001, 20), lengths, strict=True))
    assert raw.zrange(keys.flows, 0, 0, desc=True, withscores=True)[0][1] == 3999


def test_a_flow_sent_twice_is_there_once(client: Client) -> None:
    flow = laid(chain(add.bind(1), add.bind(2)))
    for _ in range(2):
        run_operation(broker_of(client), send(flow, keys_of(client), None, 1000))
    assert client.queue("maths").counts()["waiting"] == 1


def test_a_flow_is_shown_as_it_was_written() -> None:
    assert repr(chain(Thing(n=1), group(Thing(n=2), on_dead=Thing(n=3)))) == (
        "chain(Thing(n=1), group(Thing(n=2), on_dead=Thing(n=3)))"
    )
