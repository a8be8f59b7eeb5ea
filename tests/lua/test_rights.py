"""rights: which commands a user may not run."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.call import ScriptCommand
from jobrunner.broker.calls.rights import Denied, denied, may_use
from jobrunner.errors import ServerRefused
from tests.support.server import version_of

COMMAND = ScriptCommand("rights", read=list)


@pytest.fixture(autouse=True)
def _can_be_asked(raw: Any) -> None:
    if version_of(raw) < (7,):
        pytest.skip("before Redis 7 a server cannot be asked")


def asked(broker: Any, mail: Any, *commands: tuple[Any, ...]) -> list[int]:
    return broker.run(COMMAND.on(mail.keys, rest=[word for words in commands for word in (len(words), *words)]))  # type: ignore[no-any-return]


def test_commands_that_a_user_may_not_run_are_told_by_their_position_and_none_is_run(
    mail: Any, weak_broker: Callable[..., Any]
) -> None:
    weak = weak_broker("-hset", "-zadd", "resetkeys", f"~{mail.keys.base.decode()}*")
    key = mail.keys.settings
    commands = [("HSET", key, "a", "1"), ("HGET", key, "a"), ("ZADD", mail.keys.dead, 1, "x"), ("GET", "elsewhere"),
                ("TIME",), ("RENAME", key, "elsewhere"), ("NOSUCH", key), ("HDEL", key, "a")]  # fmt: skip

    assert asked(weak, mail, *commands) == [1, 3, 4, 6, 7]
    assert asked(weak, mail) == []
    assert mail.snapshot() == {}


def test_a_user_with_all_rights_lacks_none(mail: Any, keys: Any) -> None:
    assert not mail.run(denied(keys, mail.keys))
    assert mail.run(may_use(mail.keys)) is None


def test_commands_are_named_and_so_are_keys_that_workers_share(
    mail: Any, keys: Any, weak_broker: Callable[..., Any]
) -> None:
    weak = weak_broker("-hincrby", "resetkeys", f"~{keys.prefix}:{{[^/]*}}:*", f"~{keys.prefix}:queues",
                       f"%R~{keys.prefix}:format")  # fmt: skip

    found = weak.run(denied(keys, mail.keys))

    assert found.commands == ("HINCRBY",)
    assert f"SETNX on {keys.prefix}:format" in found.keys
    assert f"ZADD on {keys.prefix}:{{/}}:workers" in found.keys
    assert not any(one.startswith(("GET", "SADD", "HINCRBY")) for one in found.keys)
    assert str(found).startswith(f"HINCRBY, HSET on {keys.prefix}:{{/}}:leader, ")
    assert str(found).endswith(" more")
    assert not found.only_reads


def test_a_user_without_the_keys_of_a_queue_is_refused_with_the_name_of_one(
    mail: Any, keys: Any, weak_broker: Callable[..., Any]
) -> None:
    weak = weak_broker("resetkeys", f"~{keys.prefix}:{{other}}:*")
    for call in (denied(keys, mail.keys), may_use(mail.keys)):
        with pytest.raises(ServerRefused, match=r"rights.lua on .*\{mail\}:mail:waiting"):
            weak.run(call)


def test_a_user_who_may_only_read_is_known(mail: Any, keys: Any, weak_broker: Callable[..., Any]) -> None:
    assert weak_broker("-@write").run(denied(keys, mail.keys)).only_reads


def test_a_server_that_cannot_be_asked_denies_nothing(mail: Any, keys: Any) -> None:
    assert denied(keys, mail.keys).read([]) == Denied()
