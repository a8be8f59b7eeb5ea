"""Follows the log of the workers, one JSON object a line, for the events of Spark's batches."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch that Spark has completed. `epoch` counts how often it was taken."""

    station: str
    items: int
    seconds: float
    epoch: int


class Log:
    """Reads the lines added since the last call; an incomplete line is read the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self.batches: list[BatchDone] = []
        """All batches found so far."""
        self.last_error = ""
        """The last warning or error of a worker or the supervisor."""

    def look(self) -> None:
        """Reads the lines that were written since the last call."""
        with self._path.open("rb") as log:
            log.seek(self._read_to)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return  # Java writes plain lines
        if not isinstance(said, dict):
            return
        if said.get("event") == "batch done":
            seconds = sum(said.get(name, 0.0) for name in ("take_s", "run_s", "advance_s"))
            station = said["queue"].rpartition("/")[2]
            self.batches.append(
                BatchDone(station=station, items=said["items"], seconds=max(seconds, 0.001), epoch=said["epoch"])
            )
        elif said.get("level") == "error" and "error" in said:
            self.last_error = str(said["error"])
