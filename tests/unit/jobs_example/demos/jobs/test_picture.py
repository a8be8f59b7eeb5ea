"""The display of the demo of jobs."""

import io

from rich.console import Console

from jobs_example.demos.jobs.state import DemoState, QueueLine, RunningTask, WorkerLine

STATE = DemoState(
    elapsed_s=4.25,
    accepted=265,
    ended=96,
    queues=(
        QueueLine(name="imports", waiting=3, scheduled=0, pending=4, dead=0, done=5),
        QueueLine(name="partner", waiting=100, scheduled=2, pending=8, dead=7, done=91),
    ),
    workers=(
        WorkerLine(name="A", executor="threads", pid=11, state="killed", running=0),
        WorkerLine(name="B", executor="processes", pid=12, state="alive", running=12),
    ),
    running=(
        RunningTask(id="1", what="import March", worker="B", attempt=2, done=15, total=31),
        RunningTask(id="2", what="quote EWR-IAH", worker="B", attempt=1, done=0, total=0),
    ),
)


def test_a_summary_adds_up_the_queues() -> None:
    assert STATE.summary() == ("  4.2 s  96 of 265 tasks have ended; 103 waiting, 2 scheduled, 12 running, 7 dead")


def test_a_person_sees_queues_workers_progress_and_attempts() -> None:
    stream = io.StringIO()
    Console(file=stream, width=130).print(STATE.picture())
    seen = stream.getvalue()

    for word in ("imports", "partner", "threads", "processes", "killed", "alive", "import March", "attempt 2"):
        assert word in seen
    assert "quote EWR-IAH" not in seen  # it says nothing of its progress
