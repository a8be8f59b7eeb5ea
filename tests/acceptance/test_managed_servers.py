"""The page on managed servers: its example, and a server that withholds what such a service does."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from jobrunner.broker.connect import Endpoint
from jobrunner.broker.credentials import provider_at, split_credentials
from tests.acceptance.conftest import Shell
from tests.acceptance.test_recipes import copy_out
from tests.support.server import Server

pytestmark = pytest.mark.processes

WITHHELD = ("ACL", "BGREWRITEAOF", "BGSAVE", "CONFIG", "DEBUG", "MIGRATE", "MONITOR", "REPLICAOF", "SAVE", "SYNC")


def test_the_tokens_of_the_page_are_signed_for_the_user_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copy_out("recipes/managed-servers.md", tmp_path) == ["cache_tokens.py"]
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        "CACHE_USER": "ann", "CACHE": "my-cache", "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "known to nobody",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    url = "rediss+cluster://host:6379?credential_provider=cache_tokens.CacheTokens"
    assert Endpoint(url).cluster is not None
    _, credentials = split_credentials("rediss://host?credential_provider=cache_tokens.CacheTokens")
    assert credentials is not None

    user, token = credentials.get_credentials()

    assert user == "ann"
    assert token.startswith("my-cache/?Action=connect&User=ann&")
    signed = {name: value for name, [value] in parse_qs(urlsplit(f"//{token}").query).items()}
    assert signed["X-Amz-Expires"] == "900"
    assert signed["X-Amz-Credential"].endswith("/eu-west-1/elasticache/aws4_request")
    assert len(signed["X-Amz-Signature"]) == 64
    assert "known" not in token
    provider_at.cache_clear()


def test_a_server_without_the_commands_that_services_withhold_is_enough(
    shell: Shell, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    server.kill()
    own = Server.command(server)
    withheld = [word for name in WITHHELD for word in ("--rename-command", name, "")]
    monkeypatch.setattr(server, "command", lambda: [*own, "--maxmemory", "100mb", *withheld])
    server.start()
    shell.environment["JOBRUNNER_URL"] = server.url
    shell.write("add.py", "from jobrunner import job\n\n@job\ndef add(x: int, y: int) -> int:\n    return x + y\n")

    enqueued = shell.run("enqueue", "-m", "add", "add", "x=1", "y=2")
    worked = shell.run("work", "add", "--burst")
    seen = shell.run("tasks", "show", enqueued.out.strip())
    checked = shell.run("doctor", "add")

    assert (worked.code, checked.code) == (0, 0), worked.err + checked.out
    assert "succeeded" in seen.out
    assert "unknown command" not in worked.err + checked.out + checked.err
