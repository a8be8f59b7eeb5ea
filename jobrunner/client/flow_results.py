"""Results that a flow passes on to a step, and the proof that an encrypted or signed step gets its own flow's results.

The server collects results without a key, so a user with write access to it could replace them by any others. An
encrypted or signed result therefore names the joins that its task reports its end to, and its number there. The header
of the next step's payload names the join where its results arrive, their number, and which of them are lists collected
by a join in between (`ResultSource`). The client that sent the flow fixed both.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import flows
from jobrunner.broker.keys import QueueKeys
from jobrunner.codec import decode
from jobrunner.encryption.cipher import PayloadEncryption, is_protected_result, no_keys
from jobrunner.encryption.envelope import damaged
from jobrunner.join import AS_BROUGHT, NO_RESULTS, Join, Rule, read_onward


class ResultSource(msgspec.Struct, array_like=True, omit_defaults=True):
    """The join where `total` results arrive. `groups`: members that are joins themselves and contribute a list."""

    join: str
    total: int
    groups: "dict[int, ResultSource]" = {}


class _After(msgspec.Struct, array_like=True):
    rule: Rule
    source: ResultSource


_read = msgspec.msgpack.Decoder(_After).decode


def sources(joins: Iterable[Join]) -> dict[str, bytes]:
    """The result metadata for the header of each join's task, by id of the join; joins without a task have none."""
    joins = list(joins)
    groups: dict[str, dict[int, Join]] = {}
    for one in joins:
        for to in read_onward(one.onward) if one.onward else ():
            groups.setdefault(to.join, {})[to.member] = one

    def source(join: Join) -> ResultSource:
        brought = groups.get(join.id, {})
        if join.results == NO_RESULTS:
            return ResultSource(join.id, 0)
        if join.results == AS_BROUGHT:
            return source(brought[0])
        return ResultSource(join.id, join.total, {number: source(one) for number, one in brought.items()})

    return {
        join.id: msgspec.msgpack.encode(_After(join.rule, source(join))) for join in joins if join.task is not None
    }


def needs_proof(after: bytes | None) -> bool:
    """Whether the step may only run after all steps before it succeeded: then their results prove that they did."""
    return bool(after) and _read(after or b"").rule == "success"


def receive(broker: Broker, keys: QueueKeys, task_id: str) -> tuple[bytes, bytes] | None:
    """The results and outcomes that a flow passed to a task, JSON arrays, empty for none; None when the task is gone.
    Results of very many steps are read in parts, as one long read would block the server. Raises ServerError."""
    found = broker.run(flows.received(keys, task_id))
    if found is None or not found[2]:
        return found and found[:2]
    parts = [broker.run(flows.received_part(keys, task_id, part)) for part in range(found[2])]
    if None in parts:
        return None
    results, outcomes = zip(*(part for part in parts if part), strict=True)
    return b"".join(results), b"".join(outcomes)


def whole_results(fields: Mapping[str, bytes]) -> bytes:
    """The results in the fields of a task's hash, empty for none."""
    parts = fields.get("parts", b"0")
    numbers = range(int(parts) if parts.isdigit() else 0)
    return fields.get("results", b"") or b"".join(fields.get(f"r{number}", b"") for number in numbers)


def decrypted_results(
    encryption: PayloadEncryption | None, results: bytes, outcomes: bytes, after: bytes | None
) -> list[Any]:
    """The results that a flow passed to a task, decrypted. `after`: their metadata in the decrypted payload; None for a
    plain payload, which has no metadata. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted."""
    if after is None:
        return _unproved(encryption, msgspec.Raw(results)) if results else []
    if not after:
        if results:
            raise damaged()
        return []
    assert encryption is not None, "without keys nothing was decrypted"
    found = _read(after)
    decoded = decode(outcomes)
    ended = decoded if isinstance(decoded, list) else []
    must = found.rule == "success"
    return _proved(encryption, results, found.source, [] if must else ended)


def _proved(encryption: PayloadEncryption, raw: bytes, source: ResultSource, excused: list[Any]) -> list[Any]:
    """`excused`: the outcome of each member; a member that did not succeed has no result."""
    parts = _parts(raw)
    if len(parts) != source.total:
        raise damaged()
    values: list[Any] = []
    for number, part in enumerate(parts):
        if part == b"null" and number < len(excused) and excused[number] != "succeeded":
            values.append(None)
        elif number in source.groups:
            values.append(_proved(encryption, part, source.groups[number], []))
        else:
            value, then = encryption.decrypt_handed_on(part)
            if not any((one.join, one.member) == (source.join, number) for one in read_onward(then)):
                raise damaged()
            values.append(decode(value))
    return values


def _parts(raw: bytes) -> list[bytes]:
    try:
        return [bytes(one) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged() from error


def _unproved(encryption: PayloadEncryption | None, raw: msgspec.Raw) -> Any:
    """Decodes results without proof. A group contributes an array, so arrays are searched for encrypted results."""
    text = bytes(raw)
    if text.startswith(b"["):
        return [_unproved(encryption, one) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]
    if is_protected_result(text):
        if encryption is None:
            raise no_keys("result")
        return decode(encryption.decrypt_handed_on(text)[0])
    return msgspec.json.decode(text)
