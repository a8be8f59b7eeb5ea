"""Encrypts or signs payloads and results with keys that the server never sees.

Ciphertext or signature ("protected" means either) is bound to one task, by the prefix, its id, type, queue, headers,
and the joins that it reports its end to, and to a purpose, payload or result (see envelope.py). The envelope of a
payload is in the task's field `encoding`; a protected result is a JSON object with a member name that no other result
has.
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
    as_result_envelope,
    associated_data,
    damaged,
    is_protected,
    is_stored,
    no_store,
    of_encoding,
    of_result_envelope,
    write_header,
)
from jobrunner.errors import DecryptionFailed, EncryptionKeyMissing, NotEncrypted

__all__ = ["DecryptedPayload", "EncryptionContext", "PayloadEncryption", "allow_forward"]

_MARK = b'{"jobrunner:sealed":'
_forwards: dict[str, set[str]] = {}
"""Dead letter queues by the queues whose dead tasks the server may move there, as declared by this program and never as
read from the server."""


def allow_forward(queue: str, to: str) -> None:
    """Lets payloads that were encrypted or signed for `queue` be decrypted in `to`, its `dead_letter_queue`."""
    _forwards.setdefault(queue, set()).add(to)


class DecryptedPayload(NamedTuple):
    """A plain payload. `after` names the results that its task receives; None when the payload was not protected."""

    raw: bytes
    encoding: bytes
    after: bytes | None


class _ResultOwner(NamedTuple):
    """The task that an encrypted result belongs to."""

    id: str
    type: str
    tag: str
    then: str

    def context(self) -> EncryptionContext:
        return EncryptionContext(self.id, self.type, self.tag, then=self.then.encode())


class _ProtectedResult(msgspec.Struct, rename={"envelope": "jobrunner:sealed"}):
    """The stored form of a protected result. `of` is the task that it belongs to; `value` is base64 of ciphertext, or
    the result itself as JSON."""

    envelope: str
    of: _ResultOwner
    value: msgspec.Raw


class PayloadEncryption:
    """Encrypts or signs with the first of its keys and accepts any of them, so that keys can be rotated one by one.

    `kind` is "encrypt" or "sign"; both are read. With `required` plain payloads and results are refused.
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

    def encrypt(
        self, raw: bytes, encoding: str, context: EncryptionContext, *, after: bytes = b""
    ) -> tuple[bytes, str]:
        """(payload, encoding) in their stored form. `after`: the results that the task receives, for a step of a
        flow."""
        header = self._header(PAYLOAD, encoding=encoding, queue=context.queue, after=after)
        stored, signature = self._protect(raw, header, context)
        return stored, as_encoding(header, signature)

    def decrypt(
        self, raw: bytes, encoding: bytes, context: EncryptionContext, *, anywhere: bool = False
    ) -> DecryptedPayload:
        """The plain payload. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted; PayloadStoreUnavailable for a
        reference to a payload store, which this process does not have.

        A payload that was encrypted or signed for another queue is refused unless this program allows it
        (`allow_forward`). `anywhere` accepts a payload in any queue of its pipeline: for display, not for running it.
        """
        if is_stored(encoding):
            raise no_store(context.id)
        if b" " not in encoding:
            if self.required:
                raise _plain("payload")
            return DecryptedPayload(raw, encoding, None)
        header, signature = of_encoding(encoding)
        plain = self._unprotect(header, signature, raw, PAYLOAD, context)
        if header.queue != context.queue and not anywhere and not _is_forwarded(header.queue, context.queue):
            raise DecryptionFailed(
                f"the payload was encrypted or signed for queue {header.queue!r} and is in {context.queue!r}: "
                "it was moved without the key; if this is that queue's dead_letter_queue, declare that in this program"
            )
        return DecryptedPayload(plain, header.encoding.encode(), header.after)

    def encrypt_result(self, raw: bytes, context: EncryptionContext) -> bytes:
        """The stored form of a result. None stays None, except in a flow, where the next step requires a proof of
        it."""
        if not raw and not context.then:
            return raw
        header = self._header(RESULT)
        of = _owner(context)
        value, signature = self._protect(raw or b"null", header, of.context())
        if self._encrypts:
            value = b'"' + base64.b64encode(value) + b'"'
        return msgspec.json.encode(_ProtectedResult(as_result_envelope(header, signature), of, msgspec.Raw(value)))

    def decrypt_result(self, raw: bytes, context: EncryptionContext) -> bytes:
        """The plain result. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted."""
        if not is_protected_result(raw):
            if self.required and (raw or context.then):
                raise _plain("result")
            return raw
        found = _read_result(raw)
        if found.of != _owner(context):
            raise damaged()
        return self._unprotect_result(found)

    def decrypt_handed_on(self, raw: bytes) -> tuple[bytes, bytes]:
        """The plain content of a protected result of any task, and the joins that its task reports to. Raises
        EncryptionKeyMissing, DecryptionFailed."""
        found = _read_result(raw)
        return self._unprotect_result(found), found.of.then.encode()

    def sign_parameters(self, raw: bytes, context: EncryptionContext) -> str:
        """The signature of the parameters that a periodic job is published with, also with `kind` "encrypt". They stay
        readable. Equal parameters have equal signatures, so workers that publish the same parameters see no change."""
        header = write_header(HMAC, PERIODIC, self._first.name, queue=context.queue)
        return as_encoding(header, self._first.sign(raw, associated_data(header, context, prefix=self._prefix)))

    def check_parameters(self, raw: bytes, signature: str, context: EncryptionContext) -> None:
        """Raises EncryptionKeyMissing, DecryptionFailed or NotEncrypted unless a holder of the keys published them."""
        if not signature:
            if self.required:
                raise _plain("definition of a periodic job")
            return
        header, digest = of_encoding(signature.encode("utf-8", "replace"))
        if header.queue != context.queue:
            raise damaged()
        self._unprotect(header, digest, raw, PERIODIC, context)

    def _header(self, purpose: int, *, encoding: str = "", queue: str = "", after: bytes = b"") -> bytes:
        algorithm = AES if self._encrypts else HMAC
        return write_header(algorithm, purpose, self._first.name, encoding=encoding, queue=queue, after=after)

    def _protect(self, raw: bytes, header: bytes, context: EncryptionContext) -> tuple[bytes, bytes]:
        associated = associated_data(header, context, prefix=self._prefix)
        return (
            (self._first.encrypt(raw, associated), b"") if self._encrypts else (raw, self._first.sign(raw, associated))
        )

    def _unprotect(
        self, header: Header, signature: bytes, raw: bytes, purpose: int, context: EncryptionContext
    ) -> bytes:
        key = self._by_name.get(header.key)
        if key is None:
            raise EncryptionKeyMissing(
                f"encrypted or signed with key {header.key.hex()!r}, which is not among payload_keys; add it, "
                "then try again"
            )
        if header.purpose != purpose:
            raise damaged()
        associated = associated_data(header.raw, context, prefix=self._prefix)
        if header.algorithm == AES and not signature:
            return key.decrypt(raw, associated)
        if header.algorithm != HMAC or not hmac.compare_digest(signature, key.sign(raw, associated)):
            raise damaged()
        return raw

    def _unprotect_result(self, found: _ProtectedResult) -> bytes:
        header, signature = of_result_envelope(found.envelope)
        value = bytes(found.value)
        if header.algorithm == AES:
            try:
                value = base64.b64decode(value.strip(b'"'), validate=True)
            except binascii.Error as error:
                raise damaged() from error
        return self._unprotect(header, signature, value, RESULT, found.of.context())


_results = msgspec.json.Decoder(_ProtectedResult)


def _read_result(raw: bytes) -> _ProtectedResult:
    try:
        return _results.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged() from error


def _owner(context: EncryptionContext) -> _ResultOwner:
    return _ResultOwner(context.id, context.type, context.tag, context.then.decode("utf-8", "replace"))


def _is_forwarded(origin: str, queue: str) -> bool:
    """Whether this program declares that dead tasks of `origin` may get to `queue`, also through other queues.
    Declarations are for whole queues, `orders/raw`; an item stays in its shard, `orders@3/raw`."""
    (partition, _, origin), (other, _, queue) = origin.partition("/"), queue.partition("/")
    if partition != other:
        return False
    pipeline = partition.partition("@")[0]
    origin, queue = f"{pipeline}/{origin}", f"{pipeline}/{queue}"
    reached, left = {origin}, [origin]
    while left:
        for to in tuple(_forwards.get(left.pop(), ())):  # a thread may declare another queue meanwhile
            if to not in reached:
                reached.add(to)
                left.append(to)
    return queue in reached


def is_encrypted(encoding: bytes | None) -> bool:
    """Whether the payload cannot be read without its key. A reference to a payload store needs none."""
    return is_protected(encoding) and not is_stored(encoding) and _algorithm(of_encoding, encoding or b"") != HMAC


def is_protected_result(raw: bytes) -> bool:
    """Whether a result is encrypted or signed."""
    return raw.startswith(_MARK)


def is_encrypted_result(raw: bytes) -> bool:
    """Whether a result cannot be read without its key."""
    return raw.startswith(_MARK) and _algorithm(_result_header, raw) != HMAC


def _result_header(raw: bytes) -> tuple[Header, bytes]:
    return of_result_envelope(_read_result(raw).envelope)


def _algorithm(read: Callable[[bytes], tuple[Header, bytes]], raw: bytes) -> int:
    try:
        return read(raw)[0].algorithm
    except DecryptionFailed:
        return 0


def decrypt_payload(
    encryption: PayloadEncryption | None,
    raw: bytes,
    encoding: bytes | None,
    context: EncryptionContext,
    *,
    anywhere: bool = False,
) -> DecryptedPayload:
    """The plain payload, also when no keys are configured. Raises EncryptionKeyMissing, DecryptionFailed, NotEncrypted,
    PayloadStoreError."""
    if encryption is not None:
        return encryption.decrypt(raw, encoding or b"", context, anywhere=anywhere)
    if is_stored(encoding):
        raise no_store(context.id)
    if is_protected(encoding):
        raise no_keys("payload")
    return DecryptedPayload(raw, encoding or b"", None)


def decrypt_result(encryption: PayloadEncryption | None, raw: bytes, context: EncryptionContext) -> bytes:
    """The plain result, also when no keys are configured. Raises EncryptionKeyMissing, DecryptionFailed,
    NotEncrypted."""
    if encryption is not None:
        return encryption.decrypt_result(raw, context)
    if is_protected_result(raw):
        raise no_keys("result")
    return raw


def no_keys(what: str) -> EncryptionKeyMissing:
    """The error for protected content when no keys are configured."""
    return EncryptionKeyMissing(
        f"the {what} is encrypted or signed and no payload_keys are configured; set JOBRUNNER_PAYLOAD_KEYS, try again"
    )


def _plain(what: str) -> NotEncrypted:
    return NotEncrypted(
        f"the {what} is neither encrypted nor signed, and require_encryption is set; find out who wrote it"
    )
