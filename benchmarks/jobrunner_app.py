"""jobrunner's producer; its worker is work.py. In BENCHMARK_WAIT, `threads`: the waits are plain functions."""

import os
from collections.abc import Sequence

from benchmarks import noop_jobs
from benchmarks.produce import serve
from jobrunner import Job

JOBS: dict[str, type[Job]] = {
    "noop": noop_jobs.Noop,
    "wait": noop_jobs.WaitInThread if os.environ.get("BENCHMARK_WAIT") == "threads" else noop_jobs.Wait,
    "spin": noop_jobs.Spin,
    "stamp": noop_jobs.Stamp,
}


def send(task: str, number: int) -> None:
    JOBS[task](n=number).enqueue()


def send_many(task: str, numbers: Sequence[int]) -> None:
    kind = JOBS[task]
    kind.enqueue_many([kind(n=number) for number in numbers])


if __name__ == "__main__":
    serve(send, send_many)
