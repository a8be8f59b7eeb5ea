"""The result of a `jobrunner` command, run in a process of its own or in this one."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CommandResult:
    """Exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The line on stderr; fails unless it is the only one."""
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()
