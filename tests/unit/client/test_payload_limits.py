"""Payloads from nothing to 64 MB, and the limit, which is refused before anything is sent."""

from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.errors import PayloadTooLarge
from tests.conftest import Server

MIB = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 4096, MIB])
def test_a_payload_up_to_the_limit_travels_as_it_is(way: Any, size: int) -> None:
    way.queue("mail").push(b"x" * size)

    (lease,) = way.queue("mail").reserve()
    assert lease.payload == b"x" * size


def test_one_byte_more_is_refused_with_both_sizes_and_nothing_is_sent(way: Any, trips: list[int]) -> None:
    with pytest.raises(PayloadTooLarge, match=rf"{MIB + 1} bytes, the limit is {MIB}.*payload_limit"):
        way.queue("mail").push(b"x" * (MIB + 1))
    assert trips == []


@pytest.mark.slow
def test_a_limit_of_64_mib_carries_64_mib_and_not_one_byte_more(server: Server, client: Client) -> None:
    with Client(server.url, client.keys.prefix, payload_limit=64 * MIB) as large:
        large.queue("mail").push(b"x" * (64 * MIB))
        (lease,) = large.queue("mail").reserve()
        assert len(lease.payload) == 64 * MIB
        lease.commit()
        with pytest.raises(PayloadTooLarge):
            large.queue("mail").push(b"x" * (64 * MIB + 1))
