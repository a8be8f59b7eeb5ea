"""The nodes of a cluster, without a server: who is asked for the map, and what a failure of one means to the others."""

import asyncio
import os
import threading
from typing import Any

import pytest

from jobrunner.broker.async_cluster_nodes import AsyncClusterNodes
from jobrunner.broker.calls import leases
from jobrunner.broker.cluster_batch import ClusterBatch, NodeBatch
from jobrunner.broker.cluster_nodes import ClusterNodes
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.redis_errors import ClusterDownError, MovedError, RedisTimeoutError
from jobrunner.broker.slots import slot_of
from jobrunner.errors import ServerRefused, ServerUnavailable
from tests.support.cluster import LEFT, LINES, MAP, RIGHT, Nodes, answers, get, renewable
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
    opened = ClusterNodes(endpoint, cluster, 0, None, lambda _: Node())
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
            return await AsyncClusterNodes(endpoint, cluster, 5, None, AsyncNode).replies(calls)
        opened = ClusterNodes(endpoint, cluster, 5, None, Node)
        found = opened.replies(calls)
        opened.close()
        return found

    found = asyncio.run(ask())

    of_left = [slot_of(line.waiting) < 8192 for line in LINES]
    assert [isinstance(one, ServerUnavailable) for one in found] == of_left, "as of a node that is away"
    assert [str(one) == "the server refused this user" for one in found] == of_left
    assert [one == b"y" for one in found] == [not one for one in of_left]
    assert cluster.has_failed(LEFT), "the map may have changed"


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
