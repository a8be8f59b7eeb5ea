"""Five stations with a fork and a loop, workers killed all the time, and every item counted at every instant.

The full figures (20 000 items, a kill -9 every 100 ms): pytest -m slow -n0 tests/acceptance/test_pipeline_chaos.py
"""

import threading
import time
from collections import Counter

import pytest

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.client.item_record import ItemRecord
from tests.acceptance import row_pipelines
from tests.acceptance.row_queues import Start, states
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

_SERVED = ("enter", "work", "again", "route", "left", "right")
_ENDS = ("succeeded", "dropped")
_WORKER_EVERY = 20
"""One kill in this many is that of a worker: it must live long enough to do something."""


class Census:
    """Counts all items of the pipeline in one transaction, again and again: those in queues, those that ended."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self.sums = Counter[int]()
        self._server = server
        own = [keys.queue(f"maze/{queue}") for queue in (*_SERVED, "out")]
        self._sets = [getattr(queue, state) for queue in own for state in states() if state != "done"]
        self._counters = [queue.counters for queue in own]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count)
        self._thread.start()

    def close(self) -> None:
        """The last count."""
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        with self._server.connect() as connection:
            while not self._over.wait(0.005):
                pipeline = connection.pipeline(transaction=True)
                for key in self._sets:
                    pipeline.zcard(key)
                for key in self._counters:
                    pipeline.hmget(key, _ENDS)
                found = pipeline.execute()
                there = sum(found[: len(self._sets)])
                ended = sum(int(total or 0) for totals in found[len(self._sets) :] for total in totals)
                self.sums[there + ended] += 1


@pytest.mark.parametrize(
    ("items", "most_kills", "pause_s"),
    [
        (1500, 20, 0.05),
        pytest.param(20_000, 10**6, 0.1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_every_item_reaches_its_one_right_end_whatever_is_killed(
    current: Client, start: Start, server: Server, keys: Keys, items: int, most_kills: int, pause_s: float
) -> None:
    """KEU-25, KEU-26, KEU-29: at every instant the items in the queues and those that ended are all there are.

    Killed are workers, and in between what does the same without the second that a worker takes to start.
    """
    maze = row_pipelines.maze
    maze.apply(current)
    for first in range(0, items, 1000):
        maze.push_many("enter", range(first, min(first + 1000, items)))
    queues = [f"maze/{queue}" for queue in _SERVED]
    census = Census(server, keys)
    crews = {
        row_pipelines.serve: [start(row_pipelines.serve, queues) for _ in range(2)],
        row_pipelines.take_turns: [start(row_pipelines.take_turns, queues) for _ in range(4)],
    }
    kills = 0
    try:
        while _open(current) and kills < most_kills:
            time.sleep(pause_s)  # the fault itself
            kills += 1
            act = row_pipelines.take_turns if kills % _WORKER_EVERY else row_pipelines.serve
            crews[act].pop(0).kill()
            crews[act].append(start(act, queues))
        wait_for(lambda: not _open(current), timeout_s=90)
    finally:
        census.close()

    assert set(census.sums) == {items}
    assert kills >= 3
    print(f"{kills} kills, {census.sums.total()} counts of {items} items each")
    out = maze.queue("out")
    odd = [item.payload for batch in iter(lambda: out.pop(1000), []) for item in batch]
    assert {item["n"]: item["trail"] for item in odd} == {
        n: row_pipelines.right_trail(n) for n in range(1, items, 2) if n % 10 != 9
    }
    assert len(odd) == len({item["n"] for item in odd})
    assert [current.queue(queue).counts() | {"done": 0} for queue in queues] == [states()] * len(queues)
    assert maze.queue("right").totals()["succeeded"] == items // 2 == maze.queue("right").counts()["done"]
    even = dict(map(_reported, maze.queue("right").history(min(items, 10_000))))
    assert even == {n: row_pipelines.right_trail(n) for n in range(0, items, 2)}
    assert maze.queue("route").totals()["dropped"] == items // 10


def _open(client: Client) -> int:
    found = client.stats()
    return sum(
        found[f"maze/{queue}"].waiting + found[f"maze/{queue}"].pending + found[f"maze/{queue}"].scheduled
        for queue in _SERVED
    )


def _reported(record: ItemRecord) -> tuple[int, list[str]]:
    return record.result["n"], record.result["trail"]
