"""From a URL to connections."""

import asyncio
from pathlib import Path

import pytest

from jobrunner.broker.broker import Idle
from jobrunner.broker.connect import Endpoint
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, ServerRefused


@pytest.mark.parametrize("url", ["redis://h:1/2", "rediss://h", "unix:///a/b", "redis://u:p@h:1/2?protocol=3", "redis://h/",
                                 "redis://h/1/",
                                 "redis+sentinel://a,b:3/m/2", "rediss+cluster://u:p@[::1]:1,b"])
def test_a_usable_url_is_taken_and_nothing_is_opened(url):
    assert str(Endpoint(url)).startswith(url.split(":")[0])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not one of"),
        (["redis://h"], r"is \['redis://h'\]: give text"),
        ("localhost:6379", "^a URL without a scheme is not one of"),
        ("http://h", "is not one of"),
        ("x" * 500, "is not one of"),
        ("redis+sentinel://a,b", "names no master"),
        ("redis+sentinel://a,b/m/x", "no number of a database"),
        ("redis+sentinel://a,,b/m", "names a host that cannot be understood"),
        ("redis+sentinel://a:70000/m", "names a host that cannot be understood"),
        ("redis+cluster://a,b/3", "only database 0"),
        ("redis+cluster://", "names a host that cannot be understood"),
        ("redis+other://a", "is not one of"),
        ("redis://h:port", "cannot be used: .*; its port is no number up to 65535"),
        ("redis://h:99999/0", "cannot be used: 'redis://h:99999/0'; its port is no number up to 65535"),
        ("redis://:se/cret@h:1/0", r"cannot be used: 'redis://…'; a / \? or # of its user or password must be escaped"),
        ("redis://:se#cret@h:1/0", "its user or password must be escaped"),
        ("redis://me:se?cret@h/0", "its user or password must be escaped"),
        ("redis://me:pw@::1:6379/0", r"in brackets: redis://\[::1\]:6379/0"),
        ("REDIS://h:1/0", "^URL 'redis://h:1/0' has capitals in its scheme, or a blank or quotation mark before it"),
        (" redis://h:1/0", "or a blank or quotation mark before it"),
        ("'redis://:pw@h:1/0'", "or a blank or quotation mark before it"),
        ("redis://h/shop", "'redis://h/shop': the database behind the host is no number; write redis://host:port/0"),
        ("redis://h/1/2", "'redis://h/1/2': the database .* is no number"),
        ("rediss://h/-1", "the database behind the host is no number"),
        ("redis://h:1/cr@t", "^URL 'redis://…': the database behind the host is no number"),
        ("rediss://h?ssl_nonsense=1", "cannot be used: .*; its option ssl_nonsense is unknown, or has a wrong value"),
        ("redis://h?db=1&no_option=1", "cannot be used: .*; its option no_option is unknown, or has a wrong value"),
        ("rediss://h?ssl_cert_reqs=maybe", "cannot be used: .*; its option ssl_cert_reqs is unknown"),
        ("redis://h?S3CRET=1", "cannot be used: .*; check its port and options"),
        ("rediss://h?ssl_ca_certs=/none.pem", "ssl_ca_certs of the server's URL names no file .*: '/none.pem'"),
        ("embedded:/folder", "embedded:///absolute/folder"),
        ("embedded://folder", "embedded:///absolute/folder"),
    ],
)
def test_any_other_url_is_refused_with_what_to_write(url, message):
    with pytest.raises(InvalidOption, match=message) as refusal:
        Endpoint(url)

    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@h:1/2", "redis://h:1/2"),
        ("redis://:secret@h", "redis://h"),
        ("unix://user:secret@/a/b", "unix:///a/b"),
        ("redis://h", "redis://h"),
        ("redis+cluster://me:secret@a:1,b:2", "redis+cluster://a:1,b:2"),
        (
            "redis+sentinel://me:secret@a,b/m?sentinel_password=secret&socket_keepalive=1",
            "redis+sentinel://a,b/m",
        ),
    ],
)
def test_a_password_is_never_shown(url, shown):
    assert str(Endpoint(url)) == shown


def test_connections_are_named(server, raw):
    connection = Endpoint(server.url, client_name="me").open()
    connection.connect()

    assert "me" in {one["name"] for one in raw.client_list()}
    connection.disconnect()


def test_the_connection_that_rested_least_is_taken_first():
    idle = Idle()
    for one in "abc":
        idle.rest(one)

    assert idle.take() == "c"
    assert idle.take_all() == ["b", "a"]
    assert idle.take() is None


def test_another_process_finds_no_connections(monkeypatch):
    idle = Idle()
    idle.rest("parent's")
    monkeypatch.setattr("jobrunner.broker.broker.os.getpid", lambda: -1)

    assert idle.take() is None
    idle.rest("child's")
    assert idle.take() == "child's"


def test_a_wrong_url_is_shown_without_its_password():
    with pytest.raises(InvalidOption) as told:
        Endpoint("reds://me:hidden@host/0")
    assert "reds://host/0" in str(told.value)
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("user", "database", "words"),
    [(":wrong", 0, "refused this user: .*; check user, password"), ("", 99_999, "answered with an error: .*DB index")],
)
def test_a_refused_connection_names_the_server_and_no_password(server, user, database, words):
    url = f"unix://{user}@{server.socket}?db={database}"
    with pytest.raises(ServerRefused, match=words) as refusal, Client(url) as client:
        client.queue("mail").counts()

    assert f"the server at unix://{server.socket}" in str(refusal.value)
    assert "wrong" not in str(refusal.value).partition(" refused ")[0]


@pytest.mark.parametrize("name", ["C#", "what?", "a%41", "100%", "a b", "tab\tline\n", "\udcff", "ü"])
def test_the_embedded_server_works_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What followed a # or a ? was cut off: clients found no socket, and children of a process used another folder."""
    folder = tmp_path / name / ".jobrunner"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / name)
    shared = Endpoint("embedded://").shared_url()

    async def counts() -> int:
        async with AsyncClient(shared) as client:
            return (await client.queue("mail").counts())["waiting"]

    with Client("embedded://") as client:
        client.queue("mail").push(1)
        assert asyncio.run(counts()) == 1
    assert Endpoint(shared).folder == folder
    assert [one.name for one in tmp_path.iterdir()] == [name]
