"""Merges the files that sinks wrote into fewer, larger files: `compact(target)`."""

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
    """Merges the files of batches that are older than `older_than_s` seconds into files of about `size` bytes.

    `target`: the path that `write_batch` writes to; for tables see `lake.services`. `watch` returns a context that is
    entered while files are merged. Raises InvalidOption for a target that cannot be compacted, UsageError while another
    process compacts it.
    """
    path = local_path(target)
    if path is None:
        raise InvalidOption(
            f"{target} is not on this machine: only folders here (or mounted here) are compacted; at a URL, write to a "
            "table of a lakehouse, whose own service compacts it"
        )
    return compact_folders(path, older_than_s=older_than_s, size=size, dry_run=dry_run, watch=watch)
