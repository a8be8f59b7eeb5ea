"""Names of data files: `<table>/…/jobrunner/<root>/<batch>@<attempt>-<random>.parquet`."""

from jobrunner.spark.lake.identity import WriteAttempt

FOLDER = "jobrunner"
"""The folder of a table with all files that sinks wrote."""


def prefix_of(folder: str, attempt: WriteAttempt) -> str:
    """The prefix of the names of an attempt's files. `folder`: the folder of data files with a trailing slash, or
    empty."""
    return f"{folder_of(folder, attempt.root)}/{_as_name(attempt.batch_id)}@{attempt.number}"


def folder_of(folder: str, root: str) -> str:
    """The folder with the files of all parts of one batch."""
    return f"{folder}{FOLDER}/{_as_name(root)}"


def owner_of(name: str) -> tuple[str, int] | None:
    """(batch, number of the attempt) of a data file, by its name; None for files of others."""
    parts = name.split("/")
    if len(parts) < 3 or parts[-3] != FOLDER:
        return None
    batch, _, rest = parts[-1].rpartition("@")
    number = rest.partition("-")[0]
    return (_as_id(batch), int(number)) if batch and number.isdigit() else None


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def _as_name(batch_id: str) -> str:
    """A batch id in a path. Characters that a URL would change become `!` and their code. The escape is not `~`,
    because the compaction of deltalake looks for such a file under the code `%7E`, and finds none."""
    return "".join(one if one in _PLAIN else f"!{ord(one):x}!" for one in batch_id)


def _as_id(name: str) -> str:
    parts = name.split("!")
    return "".join(chr(int(part, 16)) if place % 2 else part for place, part in enumerate(parts))
