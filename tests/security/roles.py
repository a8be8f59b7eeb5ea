"""The users of a server that docs/security.md gives a line each."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from jobrunner import Client
from jobrunner.client.current import forget
from tests.support.server import Server, version_of

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


@contextmanager
def roles_of(server: Server, raw: redis.Redis, prefix: str) -> Iterator[Callable[..., Client]]:
    """Gives the page's users to a server; yields a function that connects as one of them, with additional rules, and
    what else a client takes. Closes the clients and deletes the users."""
    if version_of(raw) < (7,):
        pytest.skip("Redis 6.2 knows no selectors, see docs/security.md")
    names = grant(raw, prefix)
    assert names == ["producer", "worker", "operator", "viewer"]
    made: list[Client] = []

    def connect_as(role: str, *rules: str, password: str = PASSWORD, rest: str = "", **options: Any) -> Client:
        if rules:
            raw.execute_command("ACL", "SETUSER", role, *rules)
        url = server.url.replace("unix://", f"unix://{role}:{quote(password, safe='')}@") + rest
        made.append(Client(url, prefix, **options))
        return made[-1]

    yield connect_as
    forget()
    for client in made:
        client.close()
    for name in names:
        raw.acl_deluser(name)
