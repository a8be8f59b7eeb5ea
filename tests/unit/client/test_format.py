"""The number of the format below a prefix: written with what is written first, refused when it is newer."""

from typing import Any

import pytest
import redis

from jobrunner.broker.calls.server import FORMAT, OLDEST
from jobrunner.broker.keys import Keys
from jobrunner.errors import NewerFormat, OlderFormat
from jobrunner.inspector.doctor.environment import check_server


def test_the_format_is_written_with_what_is_written_first_and_not_by_a_look(
    way: Any, raw: redis.Redis, keys: Keys
) -> None:
    way.queue("mail").counts()
    way.queue("mail").reserve()
    assert raw.keys() == []

    way.queue("mail").push("a")

    assert raw.get(keys.format) == b"%d" % FORMAT


def test_a_newer_format_is_refused_before_anything_is_written(way: Any, raw: redis.Redis, keys: Keys) -> None:
    raw.set(keys.format, FORMAT + 1)

    with pytest.raises(NewerFormat) as caught:
        way.queue("mail").push("a")

    for told in (repr(keys.prefix), f"format {FORMAT + 1}", f"up to format {FORMAT}", "install"):
        assert told in str(caught.value)
    assert raw.keys() == [keys.format]


@pytest.mark.parametrize("found", [b"later", b"", b"-1", b"1.5", b"9" * 100, b"\xff"])
def test_a_format_that_nobody_can_read_is_refused_like_a_newer_one(
    way: Any, raw: redis.Redis, keys: Keys, found: bytes
) -> None:
    raw.set(keys.format, found)

    with pytest.raises(NewerFormat, match="format"):
        way.queue("mail").counts()


def test_a_format_that_is_too_old_is_refused_before_anything_is_written(
    way: Any, raw: redis.Redis, keys: Keys
) -> None:
    raw.set(keys.format, OLDEST - 1)

    with pytest.raises(OlderFormat) as caught:
        way.queue("mail").push("a")

    for told in (repr(keys.prefix), f"format {OLDEST - 1}", f"from {OLDEST} on", "nothing was changed"):
        assert told in str(caught.value)
    assert raw.keys() == [keys.format]
    assert raw.get(keys.format) == b"%d" % (OLDEST - 1)


def test_the_number_of_the_oldest_format_that_is_read_stays(way: Any, raw: redis.Redis, keys: Keys) -> None:
    raw.set(keys.format, OLDEST)

    way.queue("mail").push("a")

    assert raw.get(keys.format) == b"%d" % OLDEST


def test_the_format_is_asked_for_once_on_each_connection_and_not_with_each_call(
    way: Any, raw: redis.Redis, keys: Keys
) -> None:
    queue = way.queue("mail")
    queue.push("a")
    before = int(raw.info("commandstats")["cmdstat_get"]["calls"])

    for _ in range(20):
        queue.counts()

    assert int(raw.info("commandstats")["cmdstat_get"]["calls"]) == before, keys.format


def test_doctor_says_that_a_newer_version_wrote_here(client: Any, raw: redis.Redis, keys: Keys) -> None:
    raw.set(keys.format, FORMAT + 1)

    (found,) = check_server(client)

    assert (found.what, found.verdict) == ("format", "fail")
    assert "install" in found.advice


def test_doctor_says_that_an_older_version_wrote_here(client: Any, raw: redis.Redis, keys: Keys) -> None:
    raw.set(keys.format, OLDEST - 1)

    (found,) = check_server(client)

    assert (found.what, found.verdict) == ("format", "fail")
    assert "older" in found.found
