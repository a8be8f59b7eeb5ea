"""Comparison with bare scripts: they leave the right number of tasks on the server, and the table has the ratios."""

from collections.abc import Iterator
from functools import partial

import pytest

from benchmarks.bare_scripts import BareScripts
from benchmarks.contenders import jobrunner_left
from benchmarks.drain import NotDelivered
from benchmarks.limits import Row, measure, rows
from benchmarks.results import limits_table
from benchmarks.server import PrivateServer


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer() as server:
        yield server


def test_tasks_filled_in_are_all_committed_by_either_loop_also_with_a_batch_left_over(server: PrivateServer) -> None:
    bare = BareScripts(server)
    for loop in (bare.drain_in_python, bare.drain_packed):
        for batch in (1, 7):
            assert loop(20, batch) > 0
            assert jobrunner_left(server.url) == 0
            assert server.redis.hget("jobrunner:{bench}:bench:counters", "succeeded") == b"20"


def test_both_ways_of_enqueueing_leave_every_task_on_the_server(server: PrivateServer) -> None:
    bare = BareScripts(server)
    for enqueue in (bare.enqueue_in_python, bare.enqueue_packed):
        for batch in (1, 7):
            assert enqueue(20, batch) > 0
            assert jobrunner_left(server.url) == 20


def test_a_row_that_does_not_leave_what_it_should_ends_the_run(server: PrivateServer) -> None:
    bare = BareScripts(server)
    row = Row("drain", "scripts", partial(bare.enqueue_packed, batch=5), leaves=0)

    with pytest.raises(SystemExit, match="drain, scripts: 20 tasks are on the server, not 0") as ended:
        measure(server, [row], 20, 1, lambda _line: None)

    assert isinstance(ended.value.__cause__, NotDelivered)


def test_without_the_servers_tool_the_other_rows_are_there(server: PrivateServer) -> None:
    names = {row.name for row in rows(server, None)}
    with_tool = {row.name for row in rows(server, "redis-benchmark")}

    assert names < with_tool
    assert not any("benchmark" in name for name in names)


def test_the_table_says_what_jobrunner_is_of_each_limit() -> None:
    rates = {"drain": {"jobrunner": [40.0, 50.0, 60.0], "scripts": [100.0, 90.0, 110.0]}}

    lines = limits_table(rates).text().splitlines()


    assert lines[1].split() == ["drain", "jobrunner", "50", "40–60"]
    assert lines[2].split() == ["drain", "scripts", "100", "90–110", "0.5"]


def test_a_renewed_server_is_another_one_at_the_same_address(server: PrivateServer) -> None:
    server.redis.set("left", "over")
    first = server.redis.info("server")["run_id"]
    server.renew()
    assert server.redis.get("left") is None
    assert server.redis.info("server")["run_id"] != first
