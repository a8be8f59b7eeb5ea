"""The result of a `jobrunner` command, run in a process of its own or in this one."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """Exit code, stdout, stderr."""

    code: int
    out: str
    talk: str

    @property
    def value(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The line on stderr; fails unless it is the only one."""
        assert self.talk.count("\n") == 1, self.talk
        return self.talk.strip()
