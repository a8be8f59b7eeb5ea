"""URLs that name more than one server."""

from typing import Any

import pytest

from jobrunner.broker.calls import queues
from jobrunner.broker.connection import ConnectionOptions
from jobrunner.broker.open_connection import open_connection
from jobrunner.broker.topology import Sentinels, topology_of
from jobrunner.errors import ServerRefused


def test_sentinels_their_master_and_who_asks_them_are_told_apart() -> None:
    found = topology_of("redis+sentinel://me:p%40ss@a,b:1,[::1]:2/my%20m/3?sentinel_username=u&sentinel_password=p:w&protocol=3")

    assert found is not None
    assert (found.kind, found.master, found.database) == ("sentinel", "my m", 3)
    assert found.hosts == (("a", 26379), ("b", 1), ("::1", 2))
    assert found.url_of(("h", 5)) == "redis://me:p%40ss@h:5/3?protocol=3"
    assert found.url_of_sentinel(("::1", 2)) == "redis://u:p%3Aw@[::1]:2?protocol=3"


def test_sentinels_are_asked_without_a_password_unless_they_have_one() -> None:
    found = topology_of("rediss+sentinel://:secret@a/m")

    assert found is not None
    assert found.url_of_sentinel(found.hosts[0]) == "rediss://a:26379"
    assert found.url_of(("b", 6379)) == "rediss://:secret@b:6379"


def test_a_name_with_capitals_of_the_primary_is_that_of_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """As sentinels name it with `announce-hostnames`; an idle connection would be closed instead of used."""
    found = topology_of("redis+sentinel://a/m")
    options = ConnectionOptions(client_name="t", timeout_s=1.0, connect_timeout_s=1.0)
    assert found is not None
    said = {"name": "m", "config-epoch": "1", "flags": "master", "ip": "Redis-1.Example", "port": "6379"}
    monkeypatch.setattr(Sentinels, "_ask_all", lambda _self, _hosts: ([said], None))
    sentinels = Sentinels(found, options)

    connection = open_connection(found.url_of(sentinels.primary()), options)
    assert not sentinels.name_another(connection)
    said["ip"] = "redis-2.example"
    sentinels.primary()
    assert sentinels.name_another(connection)


def test_a_server_in_the_place_of_a_sentinel_is_told(connect: Any, fault_proxy: Any, mail: Any) -> None:
    driver = connect(f"redis+sentinel://127.0.0.1:{fault_proxy.port}/m", retry_timeout_s=60)
    told = rf"127.0.0.1:{fault_proxy.port} is no sentinel \(port 26379 by default\): unknown command 'SENTINEL'"
    with pytest.raises(ServerRefused, match=told):
        driver.run(queues.counts(mail))


def test_every_node_of_a_cluster_is_reached_the_same_way() -> None:
    found = topology_of("rediss+cluster://me:secret@a:7000,b/?ssl_ca_certs=/ca.pem")

    assert found is not None
    assert found.hosts == (("a", 7000), ("b", 6379))
    assert found.url_of(("::1", 7001)) == "rediss://me:secret@[::1]:7001?ssl_ca_certs=%2Fca.pem"


@pytest.mark.parametrize("url", ["redis://h", "embedded://", "unix:///a", "redis+other://h", "http+cluster://h", ""])
def test_any_other_url_is_of_one_server(url: str) -> None:
    assert topology_of(url) is None
