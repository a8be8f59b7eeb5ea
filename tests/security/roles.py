"""The users of a server that docs/security.md gives a line each."""

import re
from pathlib import Path

import redis

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PASSWORD = "password"
"""Of all of them, as the page has it."""


def grant(raw: redis.Redis, prefix: str) -> list[str]:
    """Makes the users of the page for this prefix; returns their names."""
    lines = re.findall(r"^ACL SETUSER (\w+) (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    for name, rules in lines:
        own = re.sub(r"jobrunner([:/])", rf"{prefix}\1", rules)
        raw.execute_command("ACL", "SETUSER", name, "reset", *own.split())
    return [name for name, _ in lines]
