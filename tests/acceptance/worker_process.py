"""A worker with any option, as a process: ``python -m tests.acceptance.worker_process '{"url": …, …}'``.

Prints `ready` when it works. Stops as `jobrunner work` does: SIGTERM once gracefully, twice at once.
"""

import json
import sys

from jobrunner import Worker, configure
from jobrunner.cli.stopping import ask_at_signals
from jobrunner.log_setup import log_to_stderr


class Announcing(Worker):
    """A worker that says when it works."""

    def start(self) -> None:
        super().start()
        print("ready", flush=True)


def main(url: str, prefix: str, modules: list[str], burst: bool = False, **options: object) -> None:
    """Works until it is stopped."""
    log_to_stderr("console")
    worker = Announcing(modules, client=configure(url, prefix), **options)  # type: ignore[arg-type]
    ask_at_signals(worker.ask_to_stop, renew=worker.ask_to_stop)
    summary = worker.run(burst=burst)
    print(json.dumps({"finished": summary.finished, "released": summary.released}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
