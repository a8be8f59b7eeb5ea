"""R22: twelve queues on a cluster of three; slots move under load, a primary dies and its replica takes over.

    JOBRUNNER_RESHARDS=5 pytest -n 0 -m topology tests/topologies/test_reshard.py -s
"""

import os
import time
from pathlib import Path

import pytest

from jobrunner.broker.cluster import slot_of
from jobrunner.broker.keys import Keys
from tests.conftest import wait_for
from tests.topologies.load import Load
from tests.topologies.servers import Spread

pytestmark = [pytest.mark.topology, pytest.mark.timeout(900)]
ROUNDS = int(os.environ.get("JOBRUNNER_RESHARDS", "1"))
QUEUES = [f"q{n}" for n in range(12)]
SLOTS = [slot_of(Keys("load").queue(name).waiting) for name in QUEUES]
SHARED = [slot_of(key) for key in (Keys("load").leader, Keys("load").figures_total, Keys("load").queues)]


def test_slots_that_move_under_load_lose_nothing(tmp_path: Path) -> None:
    """R22: the slot of every queue, and of what they share, moves to the next node while it is in use."""
    spread = Spread()
    load = Load(spread.url, tmp_path, QUEUES)
    try:
        for _ in range(ROUNDS):
            load.wait_more(200)
            for slot in (*SLOTS, *SHARED):
                owner = spread.nodes.index(spread.owner(slot))
                spread.move(slot, spread.nodes[(owner + 1) % 3])
        load.wait_more(200)
        load.finish()
        found = load.verdict()
        print(f"\n{ROUNDS * len(SLOTS + SHARED)} slots moved: {found}")
        assert found["lost"] == 0
        assert found["dead"] == 0
    finally:
        load.close()
        spread.remove()


def test_a_replica_takes_over_from_a_primary_that_was_killed(tmp_path: Path) -> None:
    """R22: with durability="replicated" nothing that was acknowledged is lost."""
    spread = Spread(replicas=True)
    load = Load(spread.url, tmp_path, QUEUES, durability="replicated")
    try:
        load.wait_more(200)
        old = spread.owner(SLOTS[0])
        others = [one for one in spread.nodes if one is not old]
        killed_at = time.monotonic()
        old.kill()
        wait_for(lambda: spread.owner(SLOTS[0]) is not old, timeout_s=60)
        spread.wait_well(others)
        there_at = time.monotonic()
        ran_s = load.first_after("end", there_at) - there_at
        old.start()  # the new primary has no replica until then, and confirms nothing
        spread.wait_well()
        back_at = time.monotonic()
        sent_s = load.first_after("sent", back_at, note=QUEUES[0]) - back_at
        load.wait_more(200)
        load.finish()
        found = load.verdict()
        print(f"\na primary killed, {there_at - killed_at:.1f} s until its replica took over, {ran_s:.2f} s until work "
              f"went on, confirmed {sent_s:.2f} s after the old one was back: {found}")  # fmt: skip
        assert found["lost"] == 0
        assert found["dead"] == 0
        assert max(ran_s, sent_s) <= 5
    finally:
        load.close()
        spread.remove()
