"""R21: workers and producers go on by themselves when Sentinel fails over; nothing that was acknowledged is lost.

    JOBRUNNER_FAILOVERS=10 pytest -n 0 -m topology tests/topologies/test_failover.py -s
"""

import os
import time
from pathlib import Path

import pytest

from tests.topologies.load import Load
from tests.topologies.servers import Behind

pytestmark = [pytest.mark.topology, pytest.mark.timeout(900)]
FAILOVERS = int(os.environ.get("JOBRUNNER_FAILOVERS", "1"))
AT_MOST_S = 5.0


def test_work_goes_on_after_each_failover_and_nothing_is_lost(tmp_path: Path) -> None:
    """R21: the primary is killed under load; its place is taken; it comes back as a replica; and again."""
    behind = Behind(replicas=2)
    load = Load(behind.url, tmp_path, ["t"], durability="replicated")
    resumed = []
    try:
        for _ in range(FAILOVERS):
            load.wait_more(100)
            behind.wait_replicated()
            old = behind.primary()
            old.kill()
            behind.fail_over(old)
            there_at = time.monotonic()
            resumed.append(
                tuple(load.first_after(event, there_at, timeout_s=30) - there_at for event in ("sent", "end"))
            )
            old.start()
            behind.wait_replicated()
        load.wait_more(100)
        load.finish()
        found = load.verdict()
        print(f"\n{FAILOVERS} failovers: {found}, after the failover (sent, run) s: "
              f"{[tuple(round(one, 2) for one in pair) for pair in resumed]}")  # fmt: skip
        assert found["lost"] == 0
        assert found["dead"] == 0
        assert max(map(max, resumed)) <= AT_MOST_S
    finally:
        load.close()
        behind.remove()
