"""Servers behind TLS, with certificates that are right, expired, of another host or of an unknown authority."""

import asyncio
import inspect
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from redis.asyncio.connection import SSLConnection
from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import WakeListener
from jobrunner.broker.reconnect import ReconnectPolicy
from jobrunner.broker.redis_errors import RedisTimeoutError
from jobrunner.broker.resp import pack
from jobrunner.client.async_client import AsyncClient
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, ServerUnavailable
from jobrunner.soak.fault_proxy import FaultProxy
from tests.support.server import Server
from tests.support.tls import Authority, TlsProxy

Connect = Callable[..., Any]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(server: Server) -> Iterator[Callable[..., str]]:
    """tls(certificate): where the server is behind TLS with this certificate."""
    made: list[FaultProxy] = []

    def lay(certificate: Path, **options: Any) -> str:
        made.append(TlsProxy(server.socket, certificate, **options))
        return f"rediss://127.0.0.1:{made[-1].port}/0"

    yield lay
    for one in made:
        one.close()


def test_a_server_behind_tls_is_used_as_any(connect: Connect, tls: Any, authority: Authority, keys: Keys) -> None:
    driver = connect(f"{tls(authority.issue())}?ssl_ca_certs={authority.file}")

    assert driver.run(queues.is_registered(keys, "mail")) is False


@pytest.mark.parametrize("scheme", ["rediss+sentinel", "rediss+cluster"])
def test_a_certificate_of_a_sentinel_or_a_node_that_is_not_valid_is_told_at_once(
    connect: Connect, tls: Any, authority: Authority, mail: Any, scheme: str
) -> None:
    url = tls(authority.issue(days=-1)).replace("rediss", scheme).replace("/0", "/m" if "sentinel" in scheme else "")
    told = f"no TLS with the server at {url}: certificate has expired"
    with pytest.raises(ServerUnavailable, match=f"^{re.escape(told)}"):
        connect(f"{url}?ssl_ca_certs={authority.file}", retry_timeout_s=60).run(queues.counts(mail))


@pytest.mark.parametrize("kind", ["+sentinel", "+cluster"])
def test_a_sentinel_or_a_node_that_expects_tls_is_told_as_such(
    connect: Connect, tls: Any, authority: Authority, mail: Any, kind: str
) -> None:
    url = tls(authority.issue()).replace("rediss", f"redis{kind}").replace("/0", "/m" if "sentinel" in kind else "")
    with pytest.raises(ServerUnavailable, match=rf"if it expects TLS, its URL begins with rediss\{kind}://$"):
        connect(url, retry_timeout_s=0.1).run(queues.counts(mail))


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (lambda authority: authority.issue(days=-1), "certificate has expired"),
        (lambda authority: authority.issue("127.0.0.2"), "certificate is not valid for '127.0.0.1'"),
        (lambda authority: Authority(authority.file.parent, "other").issue(), "unable to get local issuer"),
    ],
    ids=["expired", "of another host", "of an unknown authority"],
)
def test_a_certificate_that_is_not_valid_is_told_at_once(
    connect: Connect, tls: Any, authority: Authority, mail: Any, certificate: Any, said: str
) -> None:
    url = tls(certificate(authority))
    driver = connect(f"{url}?ssl_ca_certs={authority.file}", retry_timeout_s=60)
    began = monotonic()
    with pytest.raises(ServerUnavailable) as refusal:
        driver.run(queues.counts(mail))

    assert monotonic() < began + 30
    told = str(refusal.value)
    assert told.startswith(f"no TLS with the server at {url}: ")
    assert said in told
    assert told.endswith("; mend the server's certificate, or see ssl_ca_certs of the URL")


def test_a_file_of_certificates_that_has_none_is_told_at_once(
    connect: Connect, tls: Any, authority: Authority, mail: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    driver = connect(f"{tls(authority.issue())}?ssl_ca_certs={tmp_path}/empty.pem", retry_timeout_s=60)

    with pytest.raises(ServerUnavailable, match=r"no TLS with .*ssl_ca_certs '.*empty.pem': .*NO_CERTIFICATE"):
        driver.run(queues.counts(mail))


def test_a_server_that_asks_for_a_certificate_of_the_client_is_used_with_one(
    connect: Connect, tls: Any, authority: Authority, keys: Keys
) -> None:
    url = f"{tls(authority.issue(), clients=authority.file)}?ssl_ca_certs={authority.file}"
    own = authority.issue("127.0.0.3")  # earlier versions of redis-py send none without its key
    driver = connect(f"{url}&ssl_certfile={own}&ssl_keyfile={own}")

    assert driver.run(queues.is_registered(keys, "mail")) is False


def test_a_certificate_of_the_client_that_the_server_does_not_take_is_told_at_once(
    connect: Connect, tls: Any, authority: Authority, mail: Any
) -> None:
    url = f"{tls(authority.issue(), clients=authority.file)}?ssl_ca_certs={authority.file}"
    other = Authority(authority.file.parent, "other").issue("127.0.0.4")

    with pytest.raises(ServerUnavailable, match=r"no TLS .*takes no certificate of this client: .*see ssl_certfile"):
        connect(f"{url}&ssl_certfile={other}", retry_timeout_s=60).run(queues.counts(mail))


def test_a_server_that_asks_for_a_certificate_of_a_client_without_one_is_told(
    connect: Connect, tls: Any, authority: Authority, mail: Any
) -> None:
    url = f"{tls(authority.issue(), clients=authority.file)}?ssl_ca_certs={authority.file}"

    with pytest.raises(ServerUnavailable, match=r"certificate of (this|the) client.*ssl_certfile"):
        connect(url, retry_timeout_s=0.1).run(queues.counts(mail))


def test_files_that_cannot_be_the_certificate_of_a_client_are_refused(authority: Authority, tmp_path: Path) -> None:
    both, encrypted = authority.issue(), tmp_path / "encrypted.pem"
    key = serialization.load_pem_private_key(both.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    url = "rediss://127.0.0.1:6380/0?"
    for options, told in (
        (f"ssl_certfile={authority.file}", "ssl_certfile .* without a private key: '.*ca.pem'; see ssl_keyfile"),
        (f"ssl_certfile={both}&ssl_keyfile={authority.file}", "ssl_keyfile .* without a private key"),
        (f"ssl_keyfile={both}", "ssl_keyfile of the server's URL needs ssl_certfile"),
        (f"ssl_certfile={both}&ssl_keyfile={encrypted}", f"an encrypted key: '{encrypted}'; add its ssl_password"),
        (f"ssl_certfile={tmp_path}/none.pem", "ssl_certfile of the server's URL names no file that can be read"),
    ):
        with pytest.raises(InvalidOption, match=told):
            Endpoint(url + options)

    Endpoint(f"{url}ssl_certfile={both}&ssl_keyfile={encrypted}&ssl_password=secret")


def test_a_file_that_openssl_does_not_take_is_named_with_its_option(
    tls: Any, authority: Authority, keys: Keys, tmp_path: Path
) -> None:
    """OpenSSL says `PEM lib`, or `Error 2`: the error asked to start the server."""
    url = f"{tls(authority.issue(), clients=authority.file)}?ssl_ca_certs={authority.file}"
    both, other, locked, gone = authority.issue(), authority.issue("127.0.0.5"), tmp_path / "locked", tmp_path / "gone"
    key = serialization.load_pem_private_key(both.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    gone.write_bytes(both.read_bytes())
    for options, told in (
        (f"ssl_certfile={both}&ssl_keyfile={locked}&ssl_password=wrong", f"ssl_keyfile '{locked}' with its ssl_passw"),
        (f"ssl_certfile={both}&ssl_keyfile={other}", f"the key in ssl_keyfile '{other}' is not that of the cert"),
        (f"ssl_certfile={gone}&ssl_keyfile={both}", f"ssl_certfile '{gone}': No such file or directory"),
    ):
        endpoint = Endpoint(f"{url}&{options}")
        if str(gone) in options:
            gone.unlink()
        with closing(Broker(endpoint)) as broker, pytest.raises(ServerUnavailable, match=f"no TLS with .*{told}"):
            broker.run(queues.is_registered(keys, "mail"))

        async def ask(endpoint: Endpoint = endpoint) -> bool:
            broker = AsyncBroker(endpoint)
            try:
                return await broker.run(queues.is_registered(keys, "mail"))
            finally:
                await broker.close()

        is_known = "ssl_password" not in options or "ssl_password" in inspect.signature(SSLConnection).parameters
        expected = (ServerUnavailable, f"no TLS with .*{told}") if is_known else (InvalidOption, "ssl_password")
        with pytest.raises(expected[0], match=expected[1]):
            asyncio.run(ask())


def test_options_that_no_connection_could_have_are_refused(authority: Authority, tmp_path: Path) -> None:
    """They were errors of the first connect: `ValueError`, and `AttributeError`."""
    for option in ("ssl_min_version=9", "ssl_ciphers=NONE"):
        with pytest.raises(InvalidOption, match=f"its option {option.partition('=')[0]} is unknown, or has a wrong"):
            Endpoint(f"rediss://127.0.0.1:6380/0?{option}")
    with pytest.raises(InvalidOption, match=f"ssl_certfile of the server's URL names no file.*: '{tmp_path}'"):
        Endpoint(f"rediss://127.0.0.1:6380/0?ssl_certfile={tmp_path}")
    if "ssl_min_version" in URL_QUERY_ARGUMENT_PARSERS:  # before, redis-py took it for text
        Endpoint("rediss://127.0.0.1:6380/0?ssl_min_version=771")


def test_a_server_that_is_silent_over_tls_may_expect_none() -> None:
    silent = ReconnectPolicy(0, "rediss://h:6380/0")
    with pytest.raises(ServerUnavailable, match=r"if it does not expect TLS, its URL begins with redis://$"):
        silent.pause_to_connect(RedisTimeoutError("Timeout connecting to server"))


def test_a_server_that_expects_tls_is_told_as_such(connect: Connect, tls: Any, authority: Authority, mail: Any) -> None:
    url = tls(authority.issue()).replace("rediss://", "redis://")

    with pytest.raises(ServerUnavailable, match="if it expects TLS, its URL begins with rediss://"):
        connect(url, retry_timeout_s=0).run(queues.counts(mail))


def test_a_time_limit_in_the_url_does_not_end_the_wait_of_a_coroutine(server: Server, keys: Keys) -> None:
    async def wait() -> list[Any]:
        async with AsyncClient(f"{server.url}?socket_timeout=0.1", keys.prefix) as client:
            return await client.queue("mail").reserve(wait=0.4)

    assert asyncio.run(wait()) == []


def test_no_option_of_a_url_changes_how_replies_are_read(connect: Connect, server: Server, keys: Keys) -> None:
    driver = connect(f"{server.url}?protocol=3&decode_responses=true&health_check_interval=1&retry_on_timeout=true")

    assert driver.run(queues.is_registered(keys, "mail")) is False
    driver.run(queues.configure(keys.queue("mail"), {"paused": "1"}))
    assert driver.run(queues.settings(keys.queue("mail")))["paused"] == b"1"


def test_a_reply_that_comes_while_a_listener_leaves_is_read(authority: Authority, keys: Keys) -> None:
    mail = keys.queue("mail")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue())
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # it goes on sending, as if its reply were under way
    hint = pack([mail.wake, "1", "0"])
    asked, heard_all = threading.Event(), threading.Event()

    def answer(listening: socket.socket) -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as near:
            while b"BZPOPMIN" not in (said := near.recv(65536)):
                near.sendall(b"+OK\r\n" * said.count(b"*"))
            asked.set()
            while near.recv(65536):
                pass
            near.sendall(hint)
            heard_all.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        url = f"rediss://127.0.0.1:{listening.getsockname()[1]}/0?ssl_ca_certs={authority.file}"
        listener = WakeListener(Broker(Endpoint(url)), [mail])
        heard: list[object] = []
        waiting = threading.Thread(target=lambda: heard.append(listener.wait(20)))
        waiting.start()
        assert asked.wait(20)
        listener.leave()
        waiting.join(20)
        heard_all.set()
        listener.close()

    assert heard == ["mail"]
