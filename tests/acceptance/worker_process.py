"""A worker with any option, as a process: ``python -m tests.acceptance.worker_process '{"url": …, …}'``.

Prints `ready` when it works. Stops as `jobrunner work` does: SIGTERM once gracefully, twice at once.
"""

import json
import sys
from typing import Any

from jobrunner import Worker, configure
from jobrunner.cli.signals import ask_at_signals
from jobrunner.log_output import log_to_stderr


class Announcing(Worker):
    """A worker that says when it works."""

    def start(self) -> None:
        super().start()
        print("ready", flush=True)


def main(
    url: str, prefix: str, modules: list[str], burst: bool = False, settings: dict[str, Any] | None = None,
    **options: object,
) -> None:  # fmt: skip
    """Works until it is stopped. `settings` are those of its client."""
    log_to_stderr("console")
    client = configure(url, prefix, **(settings or {}))
    worker = Announcing(modules, client=client, **options)  # type: ignore[arg-type]
    ask_at_signals(worker.ask_to_stop, renew=worker.ask_to_stop)
    summary = worker.run(burst=burst)
    print(json.dumps({"finished": summary.finished, "released": summary.released}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
