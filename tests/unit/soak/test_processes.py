"""Processes of a soak that end by themselves: which of them a fault explains."""

from pathlib import Path

import pytest

from jobrunner.clock import monotonic
from jobrunner.soak.processes import SoakProcesses
from tests.support.waiting import wait_for

NO_SERVER = "redis://127.0.0.1:1"


@pytest.mark.parametrize(
    ("whose", "since_s", "lost"),
    [(None, 0, 1), ("all", 5, 0), ("proxied", 5, 0), ("all", -5, 1)],
    ids=["no fault", "the server is away", "its way is silent", "it was back before"],
)
def test_a_worker_that_finds_no_server_as_it_starts_is_excused_by_an_outage(
    tmp_path: Path, whose: str | None, since_s: float, lost: int
) -> None:
    processes = SoakProcesses([NO_SERVER, NO_SERVER], {}, tmp_path, concurrency=1, grace_s=1)
    worker = processes.start("worker", proxied=True)
    worker.process.terminate()
    worker.process.wait()
    worker.process.returncode = 1
    if whose is not None:
        processes.note_outage(whose, monotonic() + since_s)
    try:
        processes.look()

        assert len(processes.lost) == lost
        assert [one.name for one in processes.members] == ["worker-2"]
    finally:
        processes.members[-1].process.kill()
        wait_for(lambda: not processes.members[-1].alive)
