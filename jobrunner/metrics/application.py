"""The metrics that jobs define themselves with prometheus_client, of all worker processes of this machine.

The processes write them to files, as in prometheus_client's multiprocess mode: `PROMETHEUS_MULTIPROC_DIR` names the
folder. Values of processes that ended stay, as counters must not fall; a gauge with a `live…` mode leaves with its
process.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

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
        """The metrics in Prometheus' text format, without those of damaged files, which a warning names."""
        if not self._folder:
            return b""
        try:
            self._leave_out_ended()
            return self._text_of_sound(sorted(map(str, Path(self._folder).glob("*.db"))))
        except Exception as error:  # must not hide the metrics of jobrunner
            _log.warning("the metrics of jobs cannot be read", folder=self._folder, error=_words(error))
            return b""

    def _text_of_sound(self, paths: list[str]) -> bytes:
        """The metrics in these files, except damaged ones, as of a process that was killed while it made its own."""
        try:
            return _text_of(paths)
        except Exception:
            damaged = {path: problem for path in paths if (problem := _problem_of(path))}
            if not damaged:
                raise
        path, problem = next(iter(damaged.items()))
        _log.warning(
            "metrics of jobs are incomplete; delete the damaged files", files=len(damaged), first=path, error=problem
        )
        return _text_of([path for path in paths if path not in damaged])

    def _leave_out_ended(self) -> None:
        """Removes the live gauges of processes that ended, also of those that were killed."""
        for path in Path(self._folder).glob("gauge_live*_*.db"):
            with suppress(ValueError):
                pid = int(path.stem.rpartition("_")[2])
                if not _runs(pid):
                    mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]


class _Merged(Collector):
    """The metrics in files of prometheus_client's multiprocess mode, added up."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def collect(self) -> Iterable[Metric]:
        """Reads the files. Raises errors of many kinds for a damaged one."""
        merged: Iterable[Metric] = MultiProcessCollector.merge(self._paths)  # type: ignore[no-untyped-call]
        return merged


def _text_of(paths: list[str]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(paths))
    return generate_latest(registry)


def _problem_of(path: str) -> str:
    """Why a file cannot be read; '' when it can."""
    try:
        _text_of([path])
    except Exception as error:
        return _words(error)
    return ""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
