"""The envelope of an encrypted or signed payload or result: a binary header, and the associated data.

The header begins with eighteen bytes of fixed meaning; the three fields whose lengths they name follow:

======== ========== ==============================================================================
bytes    name       content
======== ========== ==============================================================================
0-1      magic      `JR`
2        version    2; the words of version 1 are refused
3        algorithm  1: AES-256-GCM, the content is ciphertext; 2: HMAC-SHA256, the content is as it was
4        purpose    1: a payload, 2: a result, 3: the parameters of a periodic job
5        reserved   0
6-9      key        the beginning of the SHA-256 digest of the key
10-11    encoding   length; how the plain content reads (`json` or nothing)
12-13    queue      length; the queue that a payload was encrypted or signed for
14-17    after      length; which results a step of a flow is given (see client/encryption.py)
======== ========== ==============================================================================

An attacker who can write to the server can write any header. So the whole header is authenticated: with one byte
changed, nothing can be decrypted. The other associated data come from the reader, which knows the task that it reads,
and never from the header (`associated_data`): no stored byte selects the data to compare.

Each message has its own key, derived from a key of `payload_keys` and 12 random bytes, and a 12 byte nonce: random
nonces alone would suffice for 4 billion messages with one key (the idea of XAES-256-GCM, https://c2sp.org/XAES-256-GCM,
with HMAC-SHA256 as in NIST SP 800-108).
"""

import base64
import binascii
import hmac
import os
from collections.abc import Callable
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

from jobrunner.errors import DecryptionFailed, EncryptionMissing, InvalidOption, PayloadStoreUnavailable
from jobrunner.formatting import install_command

AES, HMAC = 1, 2
PAYLOAD, RESULT, PERIODIC = 1, 2, 3
_VERSION = 2
_MAGIC = b"JR"
_FIXED = Struct(">2sBBBB4sHHI")
_WORD = "sealed"
"""The first word of the field `encoding`, followed by a blank and the header. Version 1 had a blank there as well, so
its readers refuse an envelope that they cannot decrypt."""
STORED = b"stored/"
"""Prefix of the field `encoding` of a payload in a payload store; a version number follows."""


class EncryptionContext(NamedTuple):
    """The task that a ciphertext is bound to, as the reader knows it."""

    id: str
    type: str
    tag: str
    queue: str = ""
    """The full name of the queue that it is in; empty for results, which move on without their task."""
    headers: bytes = b""
    then: bytes = b""
    """The join that a task of a flow reports its end to."""


class Header(NamedTuple):
    """A parsed header. None of its fields can be trusted before authentication."""

    algorithm: int
    purpose: int
    key: bytes
    encoding: str
    queue: str
    after: bytes
    raw: bytes


def write_header(
    algorithm: int, purpose: int, key: bytes, *, encoding: str = "", queue: str = "", after: bytes = b""
) -> bytes:
    """A header as bytes."""
    parts = (encoding.encode(), queue.encode(), after)
    fixed = _FIXED.pack(_MAGIC, _VERSION, algorithm, purpose, 0, key, *map(len, parts))
    return fixed + b"".join(parts)


def read_header(raw: bytes) -> Header:
    """Parses a header. Raises DecryptionFailed for other data, and for another version."""
    if len(raw) < _FIXED.size or raw[:2] != _MAGIC:
        raise damaged()
    _, version, algorithm, purpose, reserved, key, *lengths = _FIXED.unpack_from(raw)
    if version != _VERSION:
        raise DecryptionFailed(
            f"written by version {version} of the format, this one reads {_VERSION}; enqueue it again"
        )
    if reserved or len(raw) != _FIXED.size + sum(lengths):
        raise damaged()
    parts, at = [], _FIXED.size
    for length in lengths:
        parts.append(raw[at : at + length])
        at += length
    try:
        return Header(algorithm, purpose, key, parts[0].decode(), parts[1].decode(), parts[2], raw)
    except UnicodeDecodeError as error:
        raise damaged() from error


def associated_data(header: bytes, context: EncryptionContext, *, prefix: str) -> bytes:
    """The associated data: the header and the task, each part with its length in front."""
    texts = (prefix, context.tag, context.id, context.type)
    parts = (header, *(text.encode() for text in texts), context.headers, context.then)
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def as_encoding(header: bytes, signature: bytes = b"") -> str:
    """The field `encoding` of an encrypted or signed payload."""
    return " ".join([_WORD, _text(header), *([_text(signature)] if signature else [])])


def of_encoding(encoding: bytes) -> tuple[Header, bytes]:
    """Header and signature in a field `encoding`. Raises DecryptionFailed."""
    word, *parts = encoding.split(b" ")
    if b":" in encoding and word != _WORD.encode():
        raise DecryptionFailed(
            "encrypted or signed in the first format, which did not bind a payload to its task; enqueue it again, or "
            "decrypt it with the version that wrote it"
        )
    if word != _WORD.encode() or not 1 <= len(parts) <= 2:
        raise damaged()
    header, *signature = map(_bytes, parts)
    return read_header(header), signature[0] if signature else b""


def is_stored(encoding: bytes | None) -> bool:
    """Whether this is the encoding of a payload in a payload store (see payload_store/reference.py)."""
    return encoding is not None and encoding.startswith(STORED)


def is_protected(encoding: bytes | None) -> bool:
    """Whether this is the encoding of an encrypted or signed payload, or of a payload in a payload store."""
    return encoding is not None and b" " in encoding


def claimed_encoding(encoding: bytes | None) -> bytes:
    """The encoding that the header of a payload claims, without decryption: for display only."""
    if encoding is None or b" " not in encoding:
        return encoding or b""
    try:
        return of_encoding(encoding)[0].encoding.encode()
    except DecryptionFailed:
        return b""


def as_result_envelope(header: bytes, signature: bytes = b"") -> str:
    """The envelope in an encrypted or signed result."""
    return ".".join([_text(header), *([_text(signature)] if signature else [])])


def of_result_envelope(envelope: str) -> tuple[Header, bytes]:
    """Header and signature in the envelope of a result. Raises DecryptionFailed."""
    header, *signature = map(_bytes, envelope.encode("utf-8", "replace").split(b".", 1))
    return read_header(header), signature[0] if signature else b""


def damaged() -> DecryptionFailed:
    """The error for changed, copied or damaged content."""
    return DecryptionFailed(
        "authentication failed: encrypted or signed content was changed, or is that of another task; do not trust it"
    )


def no_store(task_id: str) -> PayloadStoreUnavailable:
    """The error for a payload in a payload store where none is configured."""
    return PayloadStoreUnavailable(
        f"the payload of task {task_id} is in a payload store and none is configured here; set "
        "JOBRUNNER_PAYLOAD_STORE, try again"
    )


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


def _bytes(text: bytes) -> bytes:
    try:
        raw = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise damaged() from error
    if base64.urlsafe_b64encode(raw) != text:  # unused bits, which no signature covers
        raise damaged()
    return raw


_KEY_BYTES = 32
_HALF = 12
_LONGER = 40
"""Bytes by which ciphertext is longer than the content: the random part, and the tag of AES-GCM."""


class EncryptionKey:
    """One configured key, and the keys derived from it for encryption and for signing."""

    def __init__(self, text: str) -> None:
        secret = _secret(text)
        self.name = sha256(secret).digest()[:4]
        self._encrypting = hmac.digest(secret, b"jobrunner encrypt 2", "sha256")
        self._signing = hmac.digest(secret, b"jobrunner sign 2", "sha256")

    def encrypt(self, raw: bytes, associated: bytes) -> bytes:
        """Ciphertext of `raw`, bound to `associated`: 40 bytes more."""
        fresh = os.urandom(2 * _HALF)
        ciphertext: bytes = self._cipher(fresh).encrypt(fresh[_HALF:], raw, associated)
        return fresh + ciphertext

    def decrypt(self, ciphertext: bytes, associated: bytes) -> bytes:
        """The plain content. Raises DecryptionFailed."""
        fresh = ciphertext[: 2 * _HALF]
        if len(ciphertext) < _LONGER:
            raise damaged()
        cipher = self._cipher(fresh)
        try:
            plain: bytes = cipher.decrypt(fresh[_HALF:], ciphertext[2 * _HALF :], associated)
        except Exception as error:  # InvalidTag of a package that may not be installed
            raise damaged() from error
        return plain

    def sign(self, raw: bytes, associated: bytes) -> bytes:
        """The signature of `raw`, bound to `associated`."""
        return hmac.digest(self._signing, len(associated).to_bytes(4) + associated + raw, "sha256")

    def _cipher(self, fresh: bytes) -> Any:
        return aes_gcm()(hmac.digest(self._encrypting, fresh[:_HALF], "sha256"))


def _secret(text: object) -> bytes:
    try:
        secret = base64.b64decode(str(text).strip().replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        secret = b""
    if not isinstance(text, str) or len(secret) != _KEY_BYTES:
        raise InvalidOption("a key of payload_keys is not 32 bytes as base64; make one with: openssl rand -base64 32")
    return secret


def aes_gcm() -> Callable[[bytes], Any]:
    """The class AESGCM of the package cryptography. Raises EncryptionMissing without it."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise EncryptionMissing(
            f"encrypted payloads need the package cryptography: {install_command('encryption')}, "
            'or sign only, with payload_encryption="sign"'
        ) from error
    return AESGCM
