"""The nodes of a cluster, without a server: who is asked for the map, and what a failure of one means to the others."""

import asyncio
import os
import threading
from typing import Any

import pytest

from jobrunner.broker import cluster_nodes
from jobrunner.broker.async_cluster_nodes import AsyncClusterNodes
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.server import FORMAT, check_format
from jobrunner.broker.cluster_batch import ClusterBatch, NodeBatch
from jobrunner.broker.cluster_nodes import ClusterNodes
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.reconnect import waiting_once
from jobrunner.broker.redis_errors import ClusterDownError, MovedError, RedisConnectionError, RedisTimeoutError
from jobrunner.broker.slots import slot_of
from jobrunner.errors import NewerFormat, OutcomeUnknown, ServerRefused, ServerUnavailable
from tests.support.cluster import KEYS, LEFT, LINES, MAP, RIGHT, Nodes, answers, get, renewable
from tests.support.waiting import wait_for


def test_a_fork_may_renew_the_map_though_a_thread_of_its_parent_was_doing_so() -> None:
    """The lock of that thread stayed locked in the child for ever, so it never learned of a failover."""
    cluster = renewable(Nodes({LEFT: MAP, RIGHT: MAP}))
    cluster.is_stale = True
    asked: list[bool] = []
    cluster.renew = lambda: asked.append(True)  # type: ignore[method-assign]
    with cluster._renewing:
        pid = os.fork()
        if pid == 0:
            cluster.refresh()
            os._exit(len(asked))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_client_whose_first_nodes_were_all_replaced_asks_those_it_was_led_to() -> None:
    """The map that it has is made of redirections, as no node failed while the slots moved."""
    slot = slot_of(LINES[0].settings)
    nodes = Nodes({LEFT: MAP, RIGHT: MAP})
    cluster = renewable(nodes)
    parts = ClusterBatch([get(LINES[0])], cluster, None)
    answers(parts, lambda *_: MovedError(f"{slot} h:3"))
    answers(parts, lambda *_: b"y")

    assert ("h", 3) in cluster.primaries()
    nodes.maps = {("h", 3): [[0, 16383, [b"h", 4, b"c"]]], ("h", 4): [[0, 16383, [b"h", 4, b"c"]]]}
    cluster.renew()

    assert cluster.node_of(slot) == ("h", 4)


def test_a_node_that_is_cut_off_from_the_others_is_the_last_to_be_asked_for_the_map() -> None:
    """It says CLUSTERDOWN, and that it serves its slots, for as long as it is cut off."""
    nodes = Nodes({LEFT: MAP, RIGHT: MAP})
    cluster = renewable(nodes)
    line = next(line for line in LINES if slot_of(line.settings) < 8192)
    nodes.maps = {LEFT: MAP, RIGHT: [[0, 8191, [b"h", 3, b"c"]], [8192, 16383, [b"h", 2, b"b"]]]}
    parts = ClusterBatch([get(line)], cluster, None)

    answers(parts, lambda *_: ClusterDownError("The cluster is down"))
    cluster.refresh()
    (sent,) = answers(parts, lambda *_: b"y")

    assert sent.address == ("h", 3)
    assert parts.replies() == [b"y"]


def test_a_node_that_did_not_tell_its_slots_has_failed() -> None:
    """A command waited for a node that hangs when it asked for the map, and again with its first call."""
    cluster = renewable(Nodes({RIGHT: MAP}))

    assert cluster.has_failed(LEFT)
    assert cluster.any_primary() == RIGHT
    assert not cluster.is_stale


def test_a_node_that_hangs_is_looked_at_beside_those_who_ask_the_others() -> None:
    nodes = Nodes({LEFT: MAP, RIGHT: MAP})
    cluster = renewable(nodes)
    goes_on = nodes.hanging[LEFT] = threading.Event()
    assert cluster.why_away(LEFT) is None, "only a node that failed is looked at"
    try:
        cluster.failed(LEFT, RedisTimeoutError("silent"))
        assert cluster.why_away(LEFT) == "silent"
        assert cluster.why_away(LEFT) == "silent"
        assert len([one for one in threading.enumerate() if one.name == "jobrunner-look"]) == 1
    finally:
        goes_on.set()
    wait_for(lambda: cluster.why_away(LEFT) is None)


def test_a_node_that_failed_and_answers_is_asked_at_once_and_one_that_is_down_is_not() -> None:
    nodes = Nodes({LEFT: MAP, RIGHT: MAP})
    cluster = renewable(nodes)
    asked: list[NodeBatch] = []

    class Node:
        def replies(self, calls: Any) -> list[Any]:
            asked.append(calls)
            return [b"y"] * len(calls)

        def close(self) -> None: ...

    endpoint = Endpoint("redis+cluster://h:1,h:2")
    endpoint.cluster = cluster
    opened = ClusterNodes(endpoint, cluster, 0, lambda _: Node())
    cluster.failed(LEFT, RedisTimeoutError("silent"))
    assert opened.replies([get(line) for line in LINES]) == [b"y"] * len(LINES)
    assert len(asked) == 2

    nodes.maps = {RIGHT: MAP}
    cluster.failed(LEFT, RedisTimeoutError("silent"))
    found = opened.replies([get(line) for line in LINES])
    opened.close()

    away = [slot_of(line.settings) < 8192 for line in LINES]
    assert [isinstance(one, ServerUnavailable) for one in found] == away
    assert len(asked) == 3


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_a_node_that_refuses_the_user_keeps_nobody_from_the_others(is_async: bool) -> None:
    """Users are known to each node by itself. The replies of all others were lost: reserves became leases that nobody
    knew, and what was enqueued was called refused."""
    cluster = renewable(Nodes({LEFT: MAP, RIGHT: MAP}))

    class Node:
        def __init__(self, endpoint: Endpoint) -> None:
            self.refuses = endpoint.url.endswith(":1")

        def replies(self, calls: Any) -> list[Any]:
            if self.refuses:
                raise ServerRefused("the server refused this user")
            return [b"y"] * len(calls)

        def close(self) -> None: ...

    class AsyncNode(Node):
        async def replies(self, calls: Any) -> list[Any]:  # type: ignore[override]
            return super().replies(calls)

        async def close(self) -> None: ...  # type: ignore[override]

    endpoint = Endpoint("redis+cluster://h:1,h:2")
    endpoint.cluster = cluster
    calls = [leases.reserve(line, 1, token="a") for line in LINES]

    async def ask() -> list[Any]:
        if is_async:
            return await AsyncClusterNodes(endpoint, cluster, 5, AsyncNode).replies(calls)
        opened = ClusterNodes(endpoint, cluster, 5, Node)
        found = opened.replies(calls)
        opened.close()
        return found

    found = asyncio.run(ask())

    of_left = [slot_of(line.waiting) < 8192 for line in LINES]
    assert [isinstance(one, ServerUnavailable) for one in found] == of_left, "as of a node that is away"
    assert [str(one) == "the server refused this user" for one in found] == of_left
    assert [one == b"y" for one in found] == [not one for one in of_left]
    assert cluster.has_failed(LEFT), "the map may have changed"


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_the_error_of_a_call_names_the_node_that_did_not_answer_it(is_async: bool) -> None:
    """It named all nodes of the URL and the error of one of them: `no server at redis+cluster://h:1,h:2: Connection
    closed by server`, with the advice to name another server."""
    cluster = renewable(Nodes({LEFT: MAP, RIGHT: MAP}))

    class Node:
        def __init__(self, endpoint: Endpoint) -> None:
            self.port = endpoint.url[-1]

        def replies(self, _: Any) -> list[Any]:
            raise ServerUnavailable("no server") from RedisConnectionError(f"error {self.port}.")

        def close(self) -> None: ...

    class AsyncNode(Node):
        async def replies(self, calls: Any) -> list[Any]:  # type: ignore[override]
            return super().replies(calls)

    endpoint = Endpoint("redis+cluster://h:1,h:2")
    endpoint.cluster = cluster

    async def ask(*calls: Call[Any]) -> str:
        made: Any = (AsyncClusterNodes if is_async else ClusterNodes)(
            endpoint, cluster, 0, AsyncNode if is_async else Node
        )
        with pytest.raises(ServerUnavailable) as away:
            await made.replies(calls) if is_async else made.replies(calls)
        assert isinstance(away.value.__cause__, RedisConnectionError)
        return str(away.value)

    assert asyncio.run(ask(AT_RIGHT)) == "node h:2 of the cluster does not answer: error 2; see whether it runs"
    assert asyncio.run(ask(AT_LEFT, AT_RIGHT)).startswith("node h:1 of the cluster does not answer: error 1;")


def test_of_two_nodes_that_are_away_each_call_has_the_error_of_its_own() -> None:
    third = ("h", 3)
    spread_map = [*MAP[:1], [8192, 12000, [b"h", 2, b"b"]], [12001, 16383, [b"h", 3, b"c"]]]
    cluster = renewable(Nodes({LEFT: spread_map, RIGHT: spread_map, third: spread_map}))

    class Node:
        def __init__(self, endpoint: Endpoint) -> None:
            self.port = endpoint.url[-1]

        def replies(self, calls: Any) -> list[Any]:
            if self.port == "3":
                return [b"y"] * len(calls)
            raise ServerUnavailable("no server") from RedisConnectionError(f"error {self.port}")

        def close(self) -> None: ...

    endpoint = Endpoint("redis+cluster://h:1,h:2")
    endpoint.cluster = cluster
    opened = ClusterNodes(endpoint, cluster, 0, Node)
    lines = [KEYS.queue(f"q{n}") for n in range(30)]
    found = opened.replies([get(line) for line in lines])
    opened.close()
    owners = [cluster.node_of(slot_of(line.settings))[1] for line in lines]
    assert set(owners) == {1, 2, 3}
    assert [one if isinstance(one, bytes) else str(one).partition(" of ")[0] for one in found] == [
        b"y" if port == 3 else f"node h:{port}" for port in owners
    ]


def test_a_reader_waits_once_for_a_node_that_is_away_however_many_calls_it_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scrape waited for the retry timeout with each call: 13 s, and Prometheus gives up after ten."""
    cluster, asked = renewable(Nodes({LEFT: MAP, RIGHT: MAP})), list[object]()

    class Node:
        def __init__(self, endpoint: Endpoint) -> None:
            self.port = endpoint.url[-1]

        def replies(self, calls: Any) -> list[Any]:
            if self.port == "2":
                asked.append(calls)
                raise ServerUnavailable("no server") from RedisConnectionError("error 2")
            return [b"y"] * len(calls)

        def close(self) -> None: ...

    endpoint = Endpoint("redis+cluster://h:1,h:2")
    endpoint.cluster = cluster
    opened = ClusterNodes(endpoint, cluster, 0.05, Node)
    monkeypatch.setattr(cluster, "why_away", lambda _: None)

    def times_asked() -> int:
        asked.clear()
        answer, away = opened.replies([AT_LEFT, AT_RIGHT])
        assert (answer, str(away).partition(":")[0]) == (b"y", "node h")
        return len(asked)

    with waiting_once():
        assert times_asked() > 1
        assert [times_asked() for _ in range(5)] == [1] * 5
    assert times_asked() > 1, "calls that act keep their patience"
    opened.close()


def test_a_fork_looks_for_itself_at_a_node_that_a_thread_of_its_parent_was_looking_at() -> None:
    nodes = Nodes({LEFT: MAP, RIGHT: MAP})
    cluster = renewable(nodes)
    goes_on = nodes.hanging[LEFT] = threading.Event()
    cluster.failed(LEFT, RedisTimeoutError("silent"))
    assert cluster.why_away(LEFT)
    pid = os.fork()
    if pid == 0:
        nodes.hanging.clear()
        wait_for(lambda: cluster.why_away(LEFT) is None)
        os._exit(0)
    goes_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


GREETING = check_format(KEYS)
AT_LEFT = next(get(line) for line in LINES if slot_of(line.settings) < 8192)
AT_RIGHT = next(get(line) for line in LINES if slot_of(line.settings) >= 8192)


class Greeted:
    """A driver of two nodes whose greeting has the format `found`; `sent` are the calls in the order of their sending.
    `breaks` are the nodes that lose the connection when they are sent something."""

    def __init__(self, *, is_async: bool) -> None:
        self.sent: list[Call[Any]] = []
        self.found, self.breaks = b"%d" % FORMAT, set[str]()
        self.cluster = renewable(Nodes({LEFT: MAP, RIGHT: MAP}))
        endpoint = Endpoint("redis+cluster://h:1,h:2")
        endpoint.cluster = self.cluster
        made: Any = AsyncClusterNodes if is_async else ClusterNodes
        self._driver = made(endpoint, self.cluster, 5, lambda node: self._node(node.url[-1]), greeting=GREETING)
        self._node_kind = _AsyncNode if is_async else _Node

    def _node(self, port: str) -> Any:
        return self._node_kind(self, port)

    def ask(self, *calls: Call[Any]) -> tuple[list[Any], list[Call[Any]]]:
        """The replies, and what was sent."""
        self.sent = []
        found = self._driver.replies(calls)
        return (found if isinstance(found, list) else asyncio.run(found)), self.sent


class _Node:
    def __init__(self, owner: Greeted, port: str) -> None:
        self._owner, self._port = owner, port

    def replies(self, calls: Any) -> Any:
        self._owner.sent.extend(calls)
        if self._port in self._owner.breaks:
            self._owner.breaks.remove(self._port)
            raise OutcomeUnknown("the connection broke")
        return [self._owner.found if call is GREETING else b"y" for call in calls]

    def close(self) -> None: ...


class _AsyncNode(_Node):
    async def replies(self, calls: Any) -> Any:
        return super().replies(calls)


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def greeted(request: pytest.FixtureRequest) -> Greeted:
    return Greeted(is_async=request.param)


def test_the_format_is_compared_before_the_first_call_to_any_node_and_then_no_more(greeted: Greeted) -> None:
    assert slot_of(KEYS.format) < 8192, "the other node has it"
    assert greeted.ask(AT_RIGHT) == ([b"y"], [GREETING, AT_RIGHT])
    assert greeted.ask(AT_RIGHT) == ([b"y"], [AT_RIGHT])
    assert greeted.ask(AT_LEFT) == ([b"y"], [AT_LEFT])


def test_nothing_is_sent_to_a_cluster_of_another_format(greeted: Greeted) -> None:
    greeted.found = b"%d" % (FORMAT + 1)
    for _ in range(2):
        with pytest.raises(NewerFormat):
            greeted.ask(AT_RIGHT, AT_LEFT)
        assert greeted.sent == [GREETING]


def test_the_format_is_compared_again_after_a_connection_to_some_node_broke(greeted: Greeted) -> None:
    greeted.ask(AT_RIGHT)
    greeted.breaks = {"2"}
    assert greeted.ask(AT_RIGHT) == ([b"y"], [AT_RIGHT, GREETING, AT_RIGHT])
    assert greeted.ask(AT_RIGHT) == ([b"y"], [AT_RIGHT])


def test_a_format_that_changed_while_a_connection_was_broken_refuses_what_was_not_answered(greeted: Greeted) -> None:
    greeted.ask(AT_RIGHT)
    greeted.found, greeted.breaks = b"%d" % (FORMAT + 1), {"2"}

    found, sent = greeted.ask(AT_RIGHT, AT_LEFT)

    assert [type(one) for one in found] == [NewerFormat, bytes]
    assert sent[-1] is GREETING


def test_calls_that_wait_for_their_node_wait_for_the_format_as_well(greeted: Greeted) -> None:
    greeted.found, greeted.breaks = b"%d" % (FORMAT + 1), {"1", "2"}
    with pytest.raises(NewerFormat):
        greeted.ask(AT_RIGHT)
    assert greeted.sent == [GREETING, AT_RIGHT, GREETING]


def test_while_the_node_of_the_format_is_away_the_others_are_used_and_it_is_asked_for_later(
    greeted: Greeted, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted.found, greeted.breaks = b"%d" % (FORMAT + 1), {"1"}
    assert greeted.ask(AT_RIGHT) == ([b"y"], [GREETING, AT_RIGHT])
    assert greeted.ask(AT_RIGHT) == ([b"y"], [AT_RIGHT])

    later = cluster_nodes.monotonic() + 2
    monkeypatch.setattr(cluster_nodes, "monotonic", lambda: later)
    with pytest.raises(NewerFormat):
        wait_for(lambda: greeted.ask(AT_RIGHT)[1][0] is GREETING)  # once the look at it is over
    assert greeted.sent == [GREETING]
