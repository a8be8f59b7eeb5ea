"""The roles of docs/security.md where there are several servers."""

import pytest

from jobrunner import Client, Worker, job
from jobrunner.client.current import forget, use
from tests.security.roles import PASSWORD, grant
from tests.support.server import version_of
from tests.topologies.servers import Behind, Node, Spread

pytestmark = pytest.mark.topology
NAMES = [f"q{n}" for n in range(6)]
PREFIX = "r"


def _grant_on(nodes: list[Node]) -> None:
    for node in nodes:
        with node.connect() as raw:
            if version_of(raw) < (7,):
                pytest.skip("Redis 6.2 knows no selectors, see docs/security.md")
            grant(raw, PREFIX)


def _as(role: str, url: str) -> Client:
    return Client(url.replace("://", f"://{role}:{PASSWORD}@"), PREFIX, retry_timeout=10)


def _refusals(nodes: list[Node]) -> list[str]:
    told = []
    for node in nodes:
        with node.connect() as raw:
            # Before 7.2 a server knows no CLIENT SETINFO; redis-py asks for it and does without.
            known = [one for one in raw.acl_log() if one["object"] != "client" or version_of(raw) >= (7, 2)]
        told += [f"{one['username']} {one['object']} ({one['reason']})" for one in known]
    return told


def test_the_roles_do_their_work_on_a_cluster_and_nothing_is_refused() -> None:
    spread = Spread()

    @job(queue="q1", name="roles.on_a_cluster")
    def double(n: int) -> int:
        return 2 * n

    try:
        _grant_on(spread.nodes)
        with _as("producer", spread.url) as producer, _as("worker", spread.url) as working:
            use(producer)
            working.queue("q0").configure(partitions=4, max_inflight=2)
            for name in NAMES:
                producer.queue(name).push("x")
            for name in NAMES:
                assert [lease.commit() for lease in producer.queue(name).reserve(5)] == [True]
            worker = Worker(queues=NAMES, client=working, heartbeat=0.1, sweep=0.1)
            worker.start()
            try:
                assert [double.enqueue(n).result(timeout=30) for n in range(3)] == [0, 2, 4]
            finally:
                worker.stop()
            with _as("operator", spread.url) as operator, _as("viewer", spread.url) as viewer:
                operator.queue("q2").pause()
                assert set(NAMES) <= set(viewer.stats())
        assert _refusals(spread.nodes) == []
    finally:
        forget()
        spread.remove()


def test_a_producer_behind_sentinel_needs_no_right_to_ask_for_the_role() -> None:
    behind = Behind()
    try:
        _grant_on(behind.servers)
        with _as("producer", behind.url) as producer:
            assert producer.queue("q0").push("x")
            with behind.primary().connect() as raw:
                raw.execute_command("ACL", "SETUSER", "producer", "+role")
        for node in behind.servers:
            node.ask("ACL", "LOG", "RESET")
        with _as("producer", behind.url) as producer:
            assert producer.queue("q0").push("x")
        assert _refusals(behind.servers) == []
    finally:
        behind.remove()
