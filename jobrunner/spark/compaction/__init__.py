"""Fewer, larger files for what sinks have written: `compact(target)`."""

from contextlib import nullcontext

from jobrunner.errors import InvalidOption
from jobrunner.spark.compaction.batch_folders import Compacted, Watch, compact_folders
from jobrunner.spark.station.sink_folders import local_path

__all__ = ["Compacted", "compact"]


def compact(
    target: str,
    *,
    older_than_s: float,
    size: int,
    dry_run: bool = False,
    watch: Watch = lambda _: nullcontext(),
) -> Compacted:
    """Gathers the files of batches that are older than that into files of about `size` bytes.

    `target`: the path that `write_batch` writes to; tables have `lake.services`. `watch` is entered while files are
    merged. Raises InvalidOption for what cannot be compacted, UsageError while another process does.
    """
    path = local_path(target)
    if path is None:
        raise InvalidOption(
            f"{target} is not on this machine: only folders here (or mounted here) are compacted; at a URL, write to a "
            "table of a lakehouse, whose own service compacts it"
        )
    return compact_folders(path, older_than_s=older_than_s, size=size, dry_run=dry_run, watch=watch)
