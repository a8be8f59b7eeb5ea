"""Routes a batch over the nodes of a cluster, without a server: destinations, repetitions, and results."""

from typing import Any

import pytest
from msgspec import structs

from jobrunner.broker import cluster_batch
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import leases, queues
from jobrunner.broker.calls.server import confirmation, earliest_time, ping
from jobrunner.broker.calls.stats import bulk_counts
from jobrunner.broker.cluster import Cluster
from jobrunner.broker.cluster_batch import ClusterBatch
from jobrunner.broker.redis_errors import (
    AskError,
    BusyLoadingError,
    BusyScriptError,
    ClusterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)
from jobrunner.broker.slots import slot_of
from jobrunner.broker.topology import topology_of
from jobrunner.errors import OutcomeUnknown, ServerError, ServerRefused, ServerUnavailable
from tests.support.cluster import LEFT, LINES, MAP, RIGHT, answers, get

AWAY = ResponseError("Script attempted to access a non local key in a cluster node script: x")


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes that share the slots; no node receives a command."""
    topology = topology_of("redis+cluster://h:1,h:2")
    assert topology is not None
    made = Cluster(topology, open_at=lambda _: pytest.fail("no node may receive a command"))
    made._take(MAP, LEFT)
    return made


def test_calls_are_grouped_by_node_and_keep_their_order_within_a_slot(cluster: Cluster) -> None:
    calls = [get(line) for line in LINES] + [get(line) for line in LINES]
    parts = ClusterBatch(calls, cluster, None)

    sent = answers(parts, lambda _, call: call.words[1])

    assert {group.address for group in sent} == {LEFT, RIGHT}
    for group in sent:
        assert [calls.index(call) for call in group.calls] == sorted(calls.index(call) for call in group.calls)
        assert all((slot_of(call.words[1]) < 8192) == (group.address == LEFT) for call in group.calls)  # type: ignore[arg-type]
    assert parts.replies() == [call.words[1] for call in calls]


def test_a_moved_slot_is_asked_for_at_its_new_node_at_once_and_from_then_on(cluster: Cluster) -> None:
    slot = slot_of(LINES[0].settings)
    new = RIGHT if slot < 8192 else LEFT
    parts = ClusterBatch([get(LINES[0])], cluster, None)

    answers(parts, lambda *_: MovedError(f"{slot} h:{new[1]}"))
    assert not parts.troubles
    (sent,) = answers(parts, lambda *_: b"y")

    assert sent.address == new == cluster.node_of(slot)
    assert parts.replies() == [b"y"]


def test_redirections_without_an_end_have_to_wait(cluster: Cluster) -> None:
    slot = slot_of(LINES[0].settings)
    parts = ClusterBatch([get(LINES[0])], cluster, None)

    for hop in range(9):
        answers(parts, lambda *_, hop=hop: MovedError(f"{slot} h:{1 + hop % 2}"))

    assert parts.troubles


def test_a_single_key_is_asked_for_where_its_slot_goes_and_a_script_waits(cluster: Cluster) -> None:
    slot = slot_of(LINES[0].settings)
    parts = ClusterBatch([get(LINES[0]), queues.counts(LINES[0])], cluster, None)

    answers(parts, lambda *_: AskError(f"{slot} h:9"))
    asked = parts.groups()

    assert [(group.address, group.asking) for group in asked if group.asking] == [(("h", 9), True)]
    assert [call.words for call in asked[0].calls] == [("ASKING",), ("HGET", LINES[0].settings, "x")]
    assert len(asked) == 2


@pytest.mark.parametrize("refusal", [TryAgainError("x"), ClusterDownError("x"), AWAY])
def test_what_was_not_done_goes_again_after_a_pause(cluster: Cluster, refusal: Exception) -> None:
    parts = ClusterBatch([queues.counts(LINES[0])], cluster, None)

    answers(parts, lambda *_: refusal)

    assert parts.open
    assert parts.troubles
    assert cluster.is_stale


def test_what_may_be_done_in_part_and_may_not_be_repeated_is_unknown(cluster: Cluster) -> None:
    parts = ClusterBatch([leases.reserve(LINES[0], 1, token="a")], cluster, None)

    answers(parts, lambda *_: AWAY)

    assert isinstance(parts.replies()[0], OutcomeUnknown)


def test_a_node_that_is_away_keeps_no_other_from_its_answer(cluster: Cluster) -> None:
    parts = ClusterBatch([get(line) for line in LINES], cluster, None)
    for group in parts.groups():
        if group.address == LEFT:
            parts.take(group, [b"y" for _ in group.calls])
        else:
            parts.failed(group, ServerUnavailable("gone"))
    assert parts.troubles

    parts.give_up(ServerUnavailable("the time is up"))

    found = {slot_of(line.settings) < 8192: reply for line, reply in zip(LINES, parts.replies(), strict=True)}
    assert found[True] == b"y"
    assert isinstance(found[False], ServerUnavailable)


def test_a_slot_that_no_node_serves_keeps_no_call_from_the_others(cluster: Cluster) -> None:
    """With cluster-require-full-coverage off, one lost node failed every call about all queues."""
    cluster._take(MAP[:1], LEFT)
    parts = ClusterBatch([get(line) for line in LINES], cluster, None)

    (sent,) = answers(parts, lambda *_: b"y")

    assert sent.address == LEFT
    assert parts.open
    assert cluster.is_stale
    assert "no node of the cluster serves slot" in str(parts.troubles[None])
    parts.give_up(ServerUnavailable("the time is up"))
    for line, reply in zip(LINES, parts.replies(), strict=True):
        assert (reply == b"y") == (slot_of(line.settings) < 8192)


@pytest.mark.parametrize("host", ["", "?"])
def test_a_redirection_without_a_host_leads_to_the_host_that_was_asked(cluster: Cluster, host: str) -> None:
    """A ? stands for a node without a name where others have one. It was taken for a name."""
    line = next(line for line in LINES if slot_of(line.settings) < 8192)
    parts = ClusterBatch([get(line)], cluster, None)
    (group,) = parts.groups()
    cluster._take(MAP[1:], RIGHT)  # by another thread, which was told that nobody serves the slot

    parts.take(group, [MovedError(f"{slot_of(line.settings)} {host}:9")])

    assert cluster.node_of(slot_of(line.settings)) == ("h", 9)


def test_what_any_node_may_answer_goes_to_one_that_is_there(cluster: Cluster) -> None:
    """The clock and PING went to the first node, so that `jobrunner status` failed while that was away."""
    parts = ClusterBatch([ping()], cluster, None)
    (group,) = parts.groups()
    parts.failed(group, ServerUnavailable("gone"))

    (again,) = answers(parts, lambda *_: b"PONG")

    assert [group.address, again.address] == [LEFT, RIGHT]
    assert parts.replies() == [b"PONG"]
    cluster.failed(RIGHT, ServerUnavailable("gone"))
    assert cluster.any_primary() == LEFT, "when all are away, one is asked"


def test_when_nothing_was_answered_the_error_is_raised(cluster: Cluster) -> None:
    parts = ClusterBatch([get(line) for line in LINES], cluster, None)
    for group in parts.groups():
        parts.failed(group, ServerUnavailable("gone"))

    with pytest.raises(ServerUnavailable, match="time is up"):
        parts.give_up(ServerUnavailable("the time is up"))


def test_what_was_sent_to_one_node_is_not_called_unsent_for_that_the_others_are_away(cluster: Cluster) -> None:
    """A worker did not look for the leases of a lost reserve then, so that their tasks waited for the lease to end."""
    parts = ClusterBatch([leases.reserve(line, 1, token="a") for line in LINES], cluster, None)
    for group in parts.groups():
        parts.failed(group, OutcomeUnknown("broke") if group.address == LEFT else ServerUnavailable("gone"))

    parts.give_up(ServerUnavailable("the time is up"))

    kinds = [OutcomeUnknown if slot_of(line.waiting) < 8192 else ServerUnavailable for line in LINES]
    assert [type(one) for one in parts.replies()] == kinds


def test_a_connection_that_broke_during_what_may_not_be_repeated_ends_it(cluster: Cluster) -> None:
    parts = ClusterBatch([leases.reserve(LINES[0], 1, token="a")], cluster, None)
    (group,) = parts.groups()

    parts.failed(group, OutcomeUnknown("broke"))

    assert not parts.open
    assert isinstance(parts.replies()[0], OutcomeUnknown)


def test_what_the_nodes_forget_is_not_sent_again_after_its_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, confirm = [0.0], confirmation("replicated", 100)
    monkeypatch.setattr(cluster_batch, "since_boot", lambda: now[0])
    calls = [structs.replace(get(LINES[0]), repeat_s=9), get(LINES[0])]
    parts = ClusterBatch([*calls, confirm], cluster, confirm)

    def fail(error: ServerError, at: float) -> list[Call[Any]]:
        now[0] = at
        (group,) = parts.groups()
        parts.failed(group, error)
        return [*group.calls]

    fail(ServerUnavailable("nothing was sent"), 0)
    fail(OutcomeUnknown("lost"), 20)
    assert fail(OutcomeUnknown("lost again"), 28) == [*calls, confirm]
    assert fail(OutcomeUnknown("lost again"), 30) == [calls[1], confirm]
    assert parts.open
    answers(parts, lambda _, call: "told")
    late, told, _ = parts.replies()
    assert told == "told"
    assert isinstance(late, OutcomeUnknown)
    assert "too late to send" in str(late)


def test_of_what_was_sent_before_the_nodes_went_away_the_outcome_is_unknown(cluster: Cluster) -> None:
    noted, read = structs.replace(get(LINES[0]), repeat_s=9), get(LINES[0])
    for error, calls, expected in (
        (OutcomeUnknown("lost"), [read, noted], "since then: no server"),
        (OutcomeUnknown("lost"), [read], "^no server"),
        (ServerUnavailable("away"), [read, noted], "^no server"),
    ):
        parts = ClusterBatch(calls, cluster, None)
        (group,) = parts.groups()
        parts.failed(group, error)

        with pytest.raises(OutcomeUnknown if "then" in expected else ServerUnavailable, match=expected):
            parts.give_up(ServerUnavailable("no server"))


def test_of_calls_that_are_all_too_late_none_is_confirmed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now, confirm = [0.0], confirmation("replicated", 100)
    monkeypatch.setattr(cluster_batch, "since_boot", lambda: now[0])
    parts = ClusterBatch([structs.replace(get(LINES[0]), repeat_s=9), confirm], cluster, confirm)
    (group,) = parts.groups()
    parts.failed(group, OutcomeUnknown("lost"))
    now[0] = 10.0

    assert parts.groups() == []
    assert not parts.open
    assert isinstance(parts.replies()[0], OutcomeUnknown)


def test_a_call_about_many_queues_is_divided_and_put_together(cluster: Cluster) -> None:
    (call,) = bulk_counts(LINES)
    parts = ClusterBatch([call], cluster, None)

    answers(parts, lambda _, part: [key.decode() for key in part.keys])

    assert parts.replies() == [[line.settings.decode() for line in LINES]]


def test_what_a_node_did_not_say_of_its_queues_is_told_in_its_place(cluster: Cluster) -> None:
    (call,) = bulk_counts(LINES)
    parts = ClusterBatch([call], cluster, None)
    for group in parts.groups():
        if group.address == LEFT:
            parts.take(group, [list(part.keys) for part in group.calls])
        else:
            parts.failed(group, ServerUnavailable("gone"))
    parts.give_up(ServerUnavailable("away"))

    for line, told in zip(LINES, parts.replies()[0], strict=True):
        assert told == (line.settings if slot_of(line.settings) < 8192 else b"away")


def test_every_primary_is_asked_about_itself_and_those_that_answer_count(cluster: Cluster) -> None:
    parts = ClusterBatch([command("INFO", read=list, everywhere=True)], cluster, None)
    left, right = parts.groups()
    parts.take(left, [b"one"])
    parts.failed(right, ServerUnavailable("gone"))

    assert not parts.open
    assert parts.replies() == [[b"one"]]


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_the_earliest_clock_is_that_of_all_primaries(cluster: Cluster, loads: bool, comes_back: bool) -> None:
    """That of a primary whose connection broke was left out. What finished there, by a clock behind the others, was
    passed over by a stream of history."""
    call = earliest_time()
    parts = ClusterBatch([call], cluster, None)
    for group in parts.groups():
        if group.address == LEFT:
            parts.take(group, [[b"1015", b"0"]])
        elif loads:
            parts.take(group, [BusyLoadingError("LOADING")])
        else:
            parts.failed(group, ServerUnavailable("gone"))
    assert parts.troubles
    if comes_back:
        answers(parts, lambda address, _: [b"1015", b"0"] if address == LEFT else [b"1010", b"0"])
        assert not parts.open
        assert call.read(parts.replies()[0]) == 1_010_000
    else:
        for group in parts.groups():
            parts.failed(group, ServerUnavailable("gone"))
        assert [part.address for part in parts._open] == [None]
        parts.give_up(ServerUnavailable("away"))
        assert isinstance(parts.replies()[0], ServerUnavailable)


def test_what_is_written_is_confirmed_by_every_node_and_the_least_counts(cluster: Cluster) -> None:
    wait = confirmation("replicated", 1)
    parts = ClusterBatch([*(get(line) for line in LINES), wait], cluster, wait)  # type: ignore[list-item]

    sent = answers(parts, lambda address, call: (1 if address == LEFT else 0) if call is wait else b"y")

    assert [group.calls[-1] for group in sent] == [wait, wait]
    assert parts.replies() == [b"y"] * 6 + [0]


def test_a_node_that_did_nothing_has_nothing_to_confirm(cluster: Cluster) -> None:
    """Every durable write after a failover was called unknown: the old primary, a replica by then, refuses WAIT."""
    wait, slot = confirmation("replicated", 1), slot_of(LINES[0].settings)
    assert wait is not None
    new = RIGHT if slot < 8192 else LEFT
    parts = ClusterBatch([get(LINES[0]), wait], cluster, wait)
    moved, refused = MovedError(f"{slot} h:{new[1]}"), ResponseError("WAIT cannot be used with replica instances")

    answers(parts, lambda _, call: refused if call is wait else moved)
    (sent,) = answers(parts, lambda _, call: 1 if call is wait else b"y")

    assert sent.address == new
    assert parts.replies() == [b"y", 1]


def test_what_a_node_did_not_do_as_it_ran_a_long_script_goes_again_though_calls_before_it_were_done(
    cluster: Cluster,
) -> None:
    once = command("INCR", LINES[0].settings, read=int, repeatable=False)
    parts = ClusterBatch([get(LINES[0]), once], cluster, None)
    busy = BusyScriptError("BUSY Redis is busy running a script")

    answers(parts, lambda _, call: busy if call is once else b"y")
    assert parts.troubles == {LEFT: busy}
    (sent,) = answers(parts, lambda *_: 1)

    assert sent.calls == (once,)
    assert parts.replies() == [b"y", 1]


def test_of_what_was_sent_and_is_refused_then_the_outcome_is_unknown(cluster: Cluster) -> None:
    noted = structs.replace(get(LINES[0]), repeat_s=9)
    parts = ClusterBatch([noted, get(LINES[0])], cluster, None)
    for error in (OutcomeUnknown("lost"), ServerRefused("the user was deleted")):
        (group,) = parts.groups()
        parts.failed(group, error)

    assert not parts.open
    unknown, refused = parts.replies()
    assert isinstance(unknown, OutcomeUnknown)
    assert isinstance(refused, ServerUnavailable)
