"""Passwords that change, as a file and a provider of the URL have them."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner import AsyncClient, Client
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.connection import Connection, ConnectionOptions
from jobrunner.broker.credentials import provider_at
from jobrunner.broker.keys import Keys
from jobrunner.broker.open_connection import open_connection
from jobrunner.broker.redis_errors import AuthenticationError, RedisConnectionError
from jobrunner.broker.redis_py import RedisPyConnection
from jobrunner.broker.topology import topology_of
from jobrunner.errors import InvalidOption, ServerUnavailable
from tests.support.server import Server
from tests.support.waiting import wait_for

OPTIONS = ConnectionOptions(client_name="me", timeout_s=5.0, connect_timeout_s=5.0)
PROVIDER = """
made = 0
said = ("ann", "first")

class Tokens:
    def __init__(self):
        global made
        made += 1

    def get_credentials(self):
        if isinstance(said, Exception):
            raise said
        return said

class Without:
    pass

def pair():
    return "ann", "known"

def broken():
    raise LookupError("no region is set")
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "a secret&more"
    path.write_text("first\n")
    return path


@pytest.fixture
def ann(raw: Any) -> Iterator[Callable[[str], None]]:
    """Gives her another password."""

    def use(password: str) -> None:
        rights = ("allkeys", "allchannels", "+@all")
        raw.execute_command("ACL", "SETUSER", "ann", "on", "resetpass", f">{password}", *rights)

    use("first")
    yield use
    raw.acl_deluser("ann")


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "secret_tokens.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(tmp_path)
    import secret_tokens  # type: ignore[import-not-found]  # written above

    provider_at.cache_clear()
    yield secret_tokens
    provider_at.cache_clear()
    del sys.modules["secret_tokens"]


def url_of(server: Server, option: str, user: str = "ann", *, in_redis_py: bool = False) -> str:
    more = "&health_check_interval=0" if in_redis_py else ""
    return f"unix://{f'{user}@' if user else ''}{server.socket}?{option}{more}"


def file_option(path: Path) -> str:
    return f"password_file={str(path).replace(' ', '%20').replace('&', '%26')}"


@pytest.mark.parametrize("in_redis_py", [False, True])
def test_each_connect_reads_the_file(server: Server, ann: Any, secret: Path, in_redis_py: bool) -> None:
    connection = open_connection(url_of(server, file_option(secret), in_redis_py=in_redis_py), OPTIONS)
    assert isinstance(connection, RedisPyConnection if in_redis_py else Connection)
    connection.connect()
    ann("second")
    assert connection.ask("ACL", "WHOAMI") == b"ann", "an open connection stays as it is"
    connection.disconnect()
    with pytest.raises(AuthenticationError):
        connection.connect()

    secret.write_text("second")
    connection.connect()

    assert connection.ask("ACL", "WHOAMI") == b"ann"
    connection.disconnect()


@pytest.mark.parametrize("in_redis_py", [False, True])
def test_a_file_that_is_away_for_a_moment_is_an_outage(
    server: Server, ann: Any, secret: Path, in_redis_py: bool, raw: Any
) -> None:
    connection = open_connection(url_of(server, file_option(secret), in_redis_py=in_redis_py), OPTIONS)
    before = len(raw.client_list())
    secret.unlink()
    for content, words in (
        (b"", "cannot be read: No such file"), (b"\n", "is empty"), (b"\xff", "cannot be read: .*utf-8"),
    ):  # fmt: skip
        if content:
            secret.write_bytes(content)
        with pytest.raises(RedisConnectionError, match=f"password_file '.*a secret&more' {words}"):
            connection.connect()
    wait_for(lambda: len(raw.client_list()) == before)  # no socket stays open

    secret.write_text("first")
    connection.connect()
    assert connection.ask("PING") == b"PONG"
    connection.disconnect()


def test_clients_of_threads_and_of_coroutines_go_on_with_the_new_password(
    server: Server, ann: Any, secret: Path, raw: Any, keys: Keys
) -> None:
    url = url_of(server, file_option(secret))

    def rotate(password: str) -> None:
        ann(password)
        secret.write_text(password)
        for one in raw.client_list():
            if one["user"] == "ann":
                raw.client_kill_filter(_id=one["id"])

    async def coroutine() -> None:
        async with AsyncClient(url, keys.prefix) as client:
            await client.queue("mail").push(3)
            rotate("third")
            await client.queue("mail").push(4)

    with Client(url, keys.prefix) as client:
        client.queue("mail").push(1)
        rotate("second")
        client.queue("mail").push(2)
        asyncio.run(coroutine())
        assert [item.payload for item in client.queue("mail").pop(9)] == [1, 2, 3, 4]


@pytest.mark.parametrize("said", [("ann", "first"), ["ann", "first"], ("first",)])
@pytest.mark.parametrize("in_redis_py", [False, True])
def test_a_provider_says_user_and_password(
    server: Server, ann: Any, provider: Any, said: Any, in_redis_py: bool
) -> None:
    provider.said = said
    option = f"credential_provider=secret_tokens{'.' if in_redis_py else ':'}Tokens"
    for _ in range(2):
        url = url_of(server, option, "ann" if len(said) == 1 else "", in_redis_py=in_redis_py)
        connection = open_connection(url, OPTIONS)
        connection.connect()
        assert connection.ask("ACL", "WHOAMI") == b"ann"
        connection.disconnect()
    assert provider.made == 1, "it may keep a token for all connections"


def test_a_client_of_coroutines_asks_a_provider_in_a_thread(
    server: Server, ann: Any, provider: Any, keys: Keys
) -> None:
    asked_in = []

    class Tokens:
        def get_credentials(self) -> tuple[str, str]:
            asked_in.append(threading.current_thread())
            return "ann", "first"

    provider.Elsewhere = Tokens

    async def coroutine() -> dict[str, int]:
        url = url_of(server, "credential_provider=secret_tokens.Elsewhere", "")
        async with AsyncClient(url, keys.prefix) as client:
            return await client.queue("mail").counts()

    assert asyncio.run(coroutine())["waiting"] == 0
    assert asked_in
    assert threading.main_thread() not in asked_in


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (LookupError("no token today"), "failed: LookupError: no token today"),
        ("secret", r"returned str: return \(user, password\)"),
        ((), "returned tuple"),
        (("ann", b"first"), "returned tuple"),
    ],
)
def test_what_a_provider_cannot_say_is_an_outage_and_told(
    server: Server, ann: Any, provider: Any, keys: Keys, said: Any, words: str
) -> None:
    provider.said = said
    url = url_of(server, "credential_provider=secret_tokens.Tokens", "")
    with Client(url, keys.prefix, retry_timeout=0.1) as client:
        with pytest.raises(ServerUnavailable, match=f"credential_provider 'secret_tokens.Tokens' {words}") as told:
            client.queue("mail").counts()
        assert "secret'" not in str(told.value).replace("'secret_tokens", "")
        provider.said = ("ann", "first")
        assert client.queue("mail").counts()["waiting"] == 0


@pytest.mark.parametrize(
    ("user", "option", "words"),
    [
        ("ann:known", "password_file=/dev/null", "has a password and password_file: give one of them"),
        ("", "password_file=/dev/null&credential_provider=a.b", "password_file and credential_provider: give one"),
        ("", "password_file=/none/such", "password_file of the server's URL names no file that can be read"),
        ("", "credential_provider=Tokens", "name a class with its module"),
        ("", "credential_provider=secret_tokens.Other", "cannot be made: AttributeError"),
        ("", "credential_provider=no_such_module.Tokens", "cannot be made: ModuleNotFoundError"),
        ("", "credential_provider=secret_tokens.broken", "cannot be made: LookupError: no region is set"),
        ("", "credential_provider=secret_tokens.Without", "object of Without, which has no method get_credentials"),
        ("", "credential_provider=secret_tokens.pair", "object of tuple, which has no method get_credentials"),
    ],
)
def test_what_cannot_work_is_refused_at_once(provider: Any, user: str, option: str, words: str) -> None:
    for scheme in ("redis", "rediss", "redis+cluster"):
        with pytest.raises(InvalidOption, match=words) as told:
            Endpoint(f"{scheme}://{user}@host:1?{option}")
        assert "known" not in str(told.value)


def test_a_provider_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens_of_here.py").write_text(PROVIDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    Endpoint("redis://host?credential_provider=tokens_of_here.Tokens")

    del sys.modules["tokens_of_here"]


def test_sentinels_have_a_file_of_their_own() -> None:
    given = "password_file=/of/servers&sentinel_username=s&sentinel_password_file=/of/sentinels&protocol=3"
    found = topology_of(f"redis+sentinel://app@a/m?{given}")

    assert found is not None
    assert found.url_of(("h", 5)) == "redis://app@h:5?password_file=%2Fof%2Fservers&protocol=3"
    assert found.url_of_sentinel(("a", 1)) == "redis://s:@a:1?protocol=3&password_file=%2Fof%2Fsentinels"
    plain = topology_of("redis+sentinel://a/m?credential_provider=some.Tokens")
    assert plain is not None
    assert plain.url_of_sentinel(("a", 1)) == "redis://a:1"
