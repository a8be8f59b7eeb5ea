"""Sealed payloads: encrypted or signed with keys that the server never sees.

A seal is bound to one task: the prefix, its id, type, queue, headers, and whom it tells of its end, and to what is
sealed, a payload or a result (see envelope.py). The seal of a payload stands in its field `encoding`; a sealed
result is a JSON object with a name that no other has.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from jobrunner.encryption.envelope import (
    AES,
    HMAC,
    PAYLOAD,
    PERIODIC,
    RESULT,
    EncryptionContext,
    EncryptionKey,
    Header,
    aes_gcm,
    as_encoding,
    as_word,
    covered,
    damaged,
    of_encoding,
    of_word,
    write_header,
)
from jobrunner.errors import DecryptionFailed, EncryptionKeyMissing, NotEncrypted

__all__ = ["DecryptedPayload", "EncryptionContext", "PayloadEncryption", "allow_forward"]

_MARK = b'{"jobrunner:sealed":'
_forwards: dict[str, set[str]] = {}
"""Queues whose dead the server may move, and where to: as this program declares it, never as the server says."""


def allow_forward(queue: str, to: str) -> None:
    """Lets payloads that were sealed for `queue` open in `to`, its `dead_letter_queue`."""
    _forwards.setdefault(queue, set()).add(to)


class DecryptedPayload(NamedTuple):
    """A payload as it was. `after` says which results its task is given; None when the payload was not sealed."""

    raw: bytes
    encoding: bytes
    after: bytes | None


class _ResultOwner(NamedTuple):
    """The task that an encrypted result belongs to."""

    id: str
    type: str
    tag: str
    then: str

    def bound(self) -> EncryptionContext:
        return EncryptionContext(self.id, self.type, self.tag, then=self.then.encode())


class _EncryptedResult(msgspec.Struct, rename={"seal": "jobrunner:sealed"}):
    """A sealed result. `of` is whose it is; `value` base64 of ciphertext, or the result itself as JSON."""

    seal: str
    of: _ResultOwner
    value: msgspec.Raw


class PayloadEncryption:
    """Seals with the first of its keys and opens with any of them, so that keys can be changed one after the other.

    `kind` is what it seals with: "encrypt" or "sign"; it opens both. With `required` it opens nothing that is plain.
    """

    def __init__(
        self, keys: Sequence[str], *, kind: str = "encrypt", required: bool = False, prefix: str = "jobrunner"
    ) -> None:
        made = [EncryptionKey(text) for text in keys]
        self._first = made[0]
        self._by_name = {key.name: key for key in made}
        self._encrypts = kind == "encrypt"
        self._prefix = prefix
        self.required = required
        if self._encrypts:
            aes_gcm()

    def close(self, raw: bytes, encoding: str, bound: EncryptionContext, *, after: bytes = b"") -> tuple[bytes, str]:
        """(payload, encoding) as they are stored. `after`: which results the task is given, for a step of a flow."""
        header = self._header(PAYLOAD, encoding=encoding, place=bound.queue, after=after)
        stored, signature = self._closed(raw, header, bound)
        return stored, as_encoding(header, signature)

    def open(
        self, raw: bytes, encoding: bytes, bound: EncryptionContext, *, anywhere: bool = False
    ) -> DecryptedPayload:
        """The payload as it was. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted.

        What was sealed for another queue is refused, but where this program allows it (`allow_forward`); to look at it,
        and not to run it, `anywhere` opens it in every queue of its pipeline.
        """
        if b" " not in encoding:
            if self.required:
                raise _plain("payload")
            return DecryptedPayload(raw, encoding, None)
        header, signature = of_encoding(encoding)
        opened = self._opened(header, signature, raw, PAYLOAD, bound)
        if header.place != bound.queue and not anywhere and not _is_forwarded(header.place, bound.queue):
            raise DecryptionFailed(
                f"the payload was sealed for queue {header.place!r} and is in {bound.queue!r}: it was moved "
                "without the key; if this is that queue's dead_letter_queue, declare it in this program, too"
            )
        return DecryptedPayload(opened, header.encoding.encode(), header.after)

    def close_result(self, raw: bytes, bound: EncryptionContext) -> bytes:
        """A result as it is stored. None stays none, but in a flow, where the next step asks for a proof of it."""
        if not raw and not bound.then:
            return raw
        header = self._header(RESULT)
        of = _of(bound)
        value, signature = self._closed(raw or b"null", header, of.bound())
        if self._encrypts:
            value = b'"' + base64.b64encode(value) + b'"'
        return msgspec.json.encode(_EncryptedResult(as_word(header, signature), of, msgspec.Raw(value)))

    def open_result(self, raw: bytes, bound: EncryptionContext) -> bytes:
        """A result as it was. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted."""
        if not is_sealed_result(raw):
            if self.required and (raw or bound.then):
                raise _plain("result")
            return raw
        found = _read_result(raw)
        if found.of != _of(bound):
            raise damaged()
        return self._opened_result(found)

    def open_handed_on(self, raw: bytes) -> tuple[bytes, bytes]:
        """A sealed result of any task, and the join that its task reports to. Raises EncryptionKeyMissing,
        DecryptionFailed."""
        found = _read_result(raw)
        return self._opened_result(found), found.of.then.encode()

    def sign_parameters(self, raw: bytes, bound: EncryptionContext) -> str:
        """The seal of the parameters that a periodic job is published with. They stay readable, and the same parameters
        have the same seal, so that workers which publish the same do not take it for a change."""
        header = write_header(HMAC, PERIODIC, self._first.name, place=bound.queue)
        return as_encoding(header, self._first.sign(raw, covered(header, bound, prefix=self._prefix)))

    def check_parameters(self, raw: bytes, seal: str, bound: EncryptionContext) -> None:
        """Raises EncryptionKeyMissing, DecryptionFailed or NotEncrypted unless a holder of the keys published them."""
        if not seal:
            if self.required:
                raise _plain("definition of a periodic job")
            return
        header, signature = of_encoding(seal.encode("utf-8", "replace"))
        if header.place != bound.queue:
            raise damaged()
        self._opened(header, signature, raw, PERIODIC, bound)

    def _header(self, purpose: int, *, encoding: str = "", place: str = "", after: bytes = b"") -> bytes:
        algorithm = AES if self._encrypts else HMAC
        return write_header(algorithm, purpose, self._first.name, encoding=encoding, place=place, after=after)

    def _closed(self, raw: bytes, header: bytes, bound: EncryptionContext) -> tuple[bytes, bytes]:
        said = covered(header, bound, prefix=self._prefix)
        return (self._first.encrypt(raw, said), b"") if self._encrypts else (raw, self._first.sign(raw, said))

    def _opened(self, header: Header, signature: bytes, raw: bytes, purpose: int, bound: EncryptionContext) -> bytes:
        key = self._by_name.get(header.key)
        if key is None:
            raise EncryptionKeyMissing(
                f"sealed with key {header.key.hex()!r}, which is not among payload_keys; add it, then try again"
            )
        if header.purpose != purpose:
            raise damaged()
        said = covered(header.raw, bound, prefix=self._prefix)
        if header.algorithm == AES and not signature:
            return key.decrypt(raw, said)
        if header.algorithm != HMAC or not hmac.compare_digest(signature, key.sign(raw, said)):
            raise damaged()
        return raw

    def _opened_result(self, found: _EncryptedResult) -> bytes:
        header, signature = of_word(found.seal)
        value = bytes(found.value)
        if header.algorithm == AES:
            try:
                value = base64.b64decode(value.strip(b'"'), validate=True)
            except binascii.Error as error:
                raise damaged() from error
        return self._opened(header, signature, value, RESULT, found.of.bound())


_results = msgspec.json.Decoder(_EncryptedResult)


def _read_result(raw: bytes) -> _EncryptedResult:
    try:
        return _results.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged() from error


def _of(bound: EncryptionContext) -> _ResultOwner:
    return _ResultOwner(bound.id, bound.type, bound.tag, bound.then.decode("utf-8", "replace"))


def _is_forwarded(place: str, queue: str) -> bool:
    """Whether this program says that what dies in `place` may come to `queue`, over others too."""
    reached, left = {place}, [place]
    while left:
        for to in _forwards.get(left.pop(), ()):
            if to not in reached:
                reached.add(to)
                left.append(to)
    return queue in reached


def is_sealed(encoding: bytes | None) -> bool:
    """Whether that is the encoding of a sealed payload."""
    return encoding is not None and b" " in encoding


def is_encrypted(encoding: bytes | None) -> bool:
    """Whether the payload cannot be read without its key."""
    return encoding is not None and b" " in encoding and _algorithm(of_encoding, encoding) != HMAC


def is_sealed_result(raw: bytes) -> bool:
    """Whether a result is sealed."""
    return raw.startswith(_MARK)


def is_encrypted_result(raw: bytes) -> bool:
    """Whether a result cannot be read without its key."""
    return raw.startswith(_MARK) and _algorithm(lambda found: of_word(_read_result(found).seal), raw) != HMAC


def encoding_when_open(encoding: bytes | None) -> bytes:
    """How a payload reads that was not opened, as its header says: to show it, not to trust it."""
    if encoding is None or b" " not in encoding:
        return encoding or b""
    try:
        return of_encoding(encoding)[0].encoding.encode()
    except DecryptionFailed:
        return b""


def _algorithm(read: Callable[[bytes], tuple[Header, bytes]], raw: bytes) -> int:
    try:
        return read(raw)[0].algorithm
    except DecryptionFailed:
        return 0


def open_payload(
    seal: PayloadEncryption | None,
    raw: bytes,
    encoding: bytes | None,
    bound: EncryptionContext,
    *,
    anywhere: bool = False,
) -> DecryptedPayload:
    """The plain payload, also where no keys are configured. Raises EncryptionKeyMissing, DecryptionFailed,
    NotEncrypted."""
    if seal is not None:
        return seal.open(raw, encoding or b"", bound, anywhere=anywhere)
    if is_sealed(encoding):
        raise no_keys("payload")
    return DecryptedPayload(raw, encoding or b"", None)


def open_result(seal: PayloadEncryption | None, raw: bytes, bound: EncryptionContext) -> bytes:
    """The plain result, also where no keys are configured. Raises EncryptionKeyMissing, DecryptionFailed,
    NotEncrypted."""
    if seal is not None:
        return seal.open_result(raw, bound)
    if is_sealed_result(raw):
        raise no_keys("result")
    return raw


def no_keys(what: str) -> EncryptionKeyMissing:
    """The error for something sealed where no keys are configured."""
    return EncryptionKeyMissing(
        f"the {what} is sealed and no payload_keys are configured; set JOBRUNNER_PAYLOAD_KEYS, try again"
    )


def _plain(what: str) -> NotEncrypted:
    return NotEncrypted(
        f"the {what} is neither encrypted nor signed, and require_encryption is set; find out who wrote it"
    )
