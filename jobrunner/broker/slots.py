"""The hash slots of a cluster (https://redis.io/docs/reference/cluster-spec/)."""

from binascii import crc_hqx

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """The slot of a key, computed from its hash tag when it has one."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else 0
    return crc_hqx(key[start:end] if end > start else key, 0) % SLOTS
