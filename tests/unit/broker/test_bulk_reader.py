"""Many small reads over one connection, with and without hiredis."""

import pytest

from jobrunner.broker import bulk_reader
from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import BulkReader, _FromRedis, pack_hash_reads
from jobrunner.broker.calls.server import ping
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.redis_errors import BusyLoadingError
from jobrunner.broker.resp import pack
from jobrunner.errors import ServerRefused, ServerUnavailable


@pytest.fixture(params=["hiredis", "without hiredis"])
def reader(server, raw, request):
    with BulkReader(Broker(Endpoint(server.url)), b"{t}:") as made:
        if request.param != "hiredis":
            made._replies = _FromRedis(made._connection)
        yield made
    raw.flushall()


@pytest.mark.parametrize("ids", [[b"aa", b"bb"], [b"a", b"long one", b""], [b"\r\n$1\r\n"]])
def test_packed_reads_are_the_commands_of_the_protocol(ids):
    expected = b"".join(pack((b"HMGET", b"p:" + one, b"f", b"payload")) for one in ids)
    assert pack_hash_reads(b"p:", ids, [b"f", b"payload"]) == expected


def test_replies_come_in_the_order_of_the_requests(reader, raw):
    ids = [b"%04d" % n for n in range(3000)]
    for one in ids:
        raw.hset(b"{t}:" + one, mapping={"n": one, "big": b"x" * 200})
    reader.send(pack_hash_reads(b"{t}:", [*ids, b"none"], [b"n", b"big"]) + pack((b"ECHO", b"end")))
    replies = reader.receive(3001)
    assert [row[0] for row in replies] == [*ids, None]
    assert reader.receive(1) == [b"end"]
    assert reader.received >= 3000 * 200


def test_a_refused_command_is_an_error_among_the_replies_and_the_others_go_on(reader, raw):
    raw.set("{t}:b", "no hash")
    raw.hset("{t}:a", "f", "1")
    reader.send(pack_hash_reads(b"{t}:", [b"a", b"b", b"a"], [b"f"]))
    first, second, third = reader.receive(3)
    assert (first, third) == ([b"1"], [b"1"])
    assert isinstance(second, Exception)
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        reader.ask(b"HGET", b"{t}:b", b"f")


def test_a_refusal_that_is_no_damage_of_one_key_is_raised(reader, raw):
    """A reply that is no list is left out as damaged: all rows of a read were, while the server refused to read."""
    raw.hset("{t}:a", "f", "1")
    reader.send(pack_hash_reads(b"{t}:", [b"a"], [b"f"]) + pack((b"HMGET", b"{t}:a")))
    with pytest.raises(ServerRefused, match="wrong number of arguments"):
        reader.receive(2)


def test_a_refusal_names_what_to_check(reader, server, raw):
    raw.execute_command("ACL", "SETUSER", "blind", "on", "nopass", "~*", "&*", "+@all", "-hmget")
    with pytest.raises(ServerRefused, match="check user, password and ACL"):
        reader.ask(b"AUTH", b"blind", b"any") and reader.ask(b"HMGET", b"{t}:a", b"f")
    raw.acl_deluser("blind")


def test_a_server_that_loads_its_data_is_waited_for(server, raw, monkeypatch):
    asked, read = [], bulk_reader.read_reply

    def loading(connection):
        asked.append(1)
        return BusyLoadingError("LOADING") if len(asked) < 3 else read(connection)

    monkeypatch.setattr(bulk_reader, "read_reply", loading)
    raw.hset("{t}:a", "f", "1")
    with BulkReader(Broker(Endpoint(server.url)), b"{t}:") as reader:
        assert reader.ask(b"HGET", b"{t}:a", b"f") == b"1"
    assert len(asked) >= 3


def test_a_connection_that_breaks_ends_the_reader(server, fault_proxy):
    with BulkReader(Broker(Endpoint(fault_proxy.url))) as reader:
        fault_proxy.drop()
        with pytest.raises(ServerUnavailable, match=r"cannot be read from"):
            reader.ask(b"PING")


def test_the_password_is_in_no_message(fault_proxy):
    with BulkReader(Broker(Endpoint(fault_proxy.url))) as reader:
        reader._at = str(Endpoint(fault_proxy.url.replace("redis://", "redis://:hidden@")))
        fault_proxy.drop()
        with pytest.raises(ServerUnavailable) as told:
            reader.ask(b"PING")
    assert "hidden" not in str(told.value)


def test_a_connection_that_rested_is_lent_and_given_back(broker, raw):
    raw.hset("{t}:a", "f", "1")
    broker.connect()
    before = raw.info("stats")["total_connections_received"]

    for _ in range(3):
        reader = BulkReader(broker)
        reader.send(pack_hash_reads(b"{t}:", [b"a"], [b"f"]))
        assert reader.receive(1) == [[b"1"]]
        reader.give_back()
        assert broker.run(ping())

    assert raw.info("stats")["total_connections_received"] == before


def test_a_cluster_lends_none_and_keeps_none():
    class Connection:
        is_open = True

        def disconnect(self):
            self.is_open = False

    connection, of_a_cluster = Connection(), Broker(Endpoint("redis+cluster://127.0.0.1:1"))

    of_a_cluster.take_back(connection)

    assert not connection.is_open, "the next reader may need a key of another node"
    assert of_a_cluster.lend() is None
    of_a_cluster.close()
