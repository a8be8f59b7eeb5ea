"""The metrics that jobs define themselves with prometheus_client, of all worker processes of this machine.

The processes write them to files, as in prometheus_client's multiprocess mode: `PROMETHEUS_MULTIPROC_DIR` names the
folder. Values of processes that ended stay, as counters must not fall; a gauge with a `live…` mode leaves with its
process.
"""

import os
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from jobrunner.errors import InvalidOption
from jobrunner.logs import SafeLogger

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_log = SafeLogger("jobrunner.metrics")


def made_folder() -> str:
    """The folder that `PROMETHEUS_MULTIPROC_DIR` names, which is made when it is missing, as a module that defines a
    metric could not be imported without it; '' when none is named. Raises InvalidOption."""
    folder = os.environ.get(VARIABLE, "")
    if folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption(f"{VARIABLE}={folder!r}: {error.strerror}; name a folder") from error
    return folder


class ApplicationMetrics:
    """Reads the files of the processes; nothing when no folder is named. Raises InvalidOption."""

    def __init__(self) -> None:
        self._folder = made_folder()

    def text(self) -> bytes:
        """The metrics in Prometheus' text format; empty, with a warning, when the files cannot be read."""
        if not self._folder:
            return b""
        registry = CollectorRegistry(auto_describe=False)
        try:
            self._leave_out_ended()
            MultiProcessCollector(registry, self._folder)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        except Exception as error:  # a damaged file of one process must not hide the metrics of jobrunner
            problem = f"{type(error).__name__}: {error}"
            _log.warning("the metrics of jobs cannot be read", folder=self._folder, error=problem)
            return b""

    def _leave_out_ended(self) -> None:
        """Removes the live gauges of processes that ended, also of those that were killed."""
        for path in Path(self._folder).glob("gauge_live*_*.db"):
            with suppress(ValueError):
                pid = int(path.stem.rpartition("_")[2])
                if not _runs(pid):
                    mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
