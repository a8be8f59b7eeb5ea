"""Sealed payloads: encrypted or signed with keys that the server never sees.

A seal is bound to the id, type and hash tag of its task, so it does not open on any other; moves, retries and
requeueing change none of the three. In `encoding` of a sealed payload stands how it reads once it is open, a blank, and
``aes:<key>`` (the payload is ciphertext) or ``hmac:<key>:<signature>`` (the payload is as it was), where <key> is the
beginning of the digest of the key: who opens knows which one to take. A third word takes the place of the id in what
is bound. A sealed result is a JSON object with a name that no other has.

Each message has a key of its own, made of 12 random bytes, beside its 12 byte nonce: random nonces alone would be good
for 4 billion messages with one key (the idea of XAES-256-GCM, https://c2sp.org/XAES-256-GCM, with HMAC-SHA256 as in
NIST SP 800-108).
"""

import base64
import binascii
import hmac
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from jobrunner.errors import EncryptionMissing, InvalidOption, KeyMissing, NotSealed, SealBroken

_KEY_BYTES = 32
_HALF = 12
_LONGER = 40
"""By so many bytes is ciphertext longer: what is random, and the tag of AES-GCM."""
_MARK = b'{"jobrunner:sealed":'


class Bound(NamedTuple):
    """What a seal is bound to."""

    id: str
    type: str
    tag: str


class _Sealed(msgspec.Struct, rename={"seal": "jobrunner:sealed"}):
    """A sealed result. `of` is whose it is; `value` base64 of ciphertext, or the result itself as JSON."""

    seal: str
    of: Bound
    value: msgspec.Raw


class _Key:
    """One key, and those made of it for either purpose."""

    def __init__(self, text: str) -> None:
        secret = _secret(text)
        self.name = sha256(secret).hexdigest()[:8]
        self._encrypting = hmac.digest(secret, b"jobrunner encrypt 1", "sha256")
        self._signing = hmac.digest(secret, b"jobrunner sign 1", "sha256")

    def encrypt(self, raw: bytes, said: bytes) -> bytes:
        """Ciphertext of `raw`, bound to `said`: 40 bytes more."""
        fresh = os.urandom(2 * _HALF)
        sealed: bytes = self._cipher(fresh).encrypt(fresh[_HALF:], raw, said)
        return fresh + sealed

    def decrypt(self, sealed: bytes, said: bytes) -> bytes:
        """What was encrypted. Raises SealBroken."""
        fresh = sealed[: 2 * _HALF]
        if len(sealed) < _LONGER:
            raise _broken()
        cipher = self._cipher(fresh)
        try:
            opened: bytes = cipher.decrypt(fresh[_HALF:], sealed[2 * _HALF :], said)
        except Exception as error:  # InvalidTag of a package that may not be there to be named
            raise _broken() from error
        return opened

    def sign(self, raw: bytes, said: bytes) -> str:
        """The signature of `raw`, bound to `said`."""
        return hmac.digest(self._signing, len(said).to_bytes(4) + said + raw, "sha256").hex()

    def _cipher(self, fresh: bytes) -> Any:
        return _aes()(hmac.digest(self._encrypting, fresh[:_HALF], "sha256"))


class Seal:
    """Seals with the first of its keys and opens with any of them, so that keys can be changed one after the other.

    `kind` is what it seals with: "encrypt" or "sign"; it opens both. With `required` it opens nothing that is plain.
    """

    def __init__(self, keys: Sequence[str], *, kind: str = "encrypt", required: bool = False) -> None:
        made = [_Key(text) for text in keys]
        self._first = made[0]
        self._by_name = {key.name: key for key in made}
        self._encrypts = kind == "encrypt"
        self.required = required
        if self._encrypts:
            _aes()

    def close(self, raw: bytes, encoding: str, bound: Bound, *, instead: str = "") -> tuple[bytes, str]:
        """(payload, encoding) as they are stored. `instead` takes the place of the id in what is bound."""
        said = _said("payload", encoding, bound, instead)
        word = f" {instead}" if instead else ""
        if self._encrypts:
            return self._first.encrypt(raw, said), f"{encoding} aes:{self._first.name}{word}"
        return raw, f"{encoding} hmac:{self._first.name}:{self._first.sign(raw, said)}{word}"

    def open(self, raw: bytes, encoding: bytes, bound: Bound) -> tuple[bytes, bytes]:
        """(payload, encoding) as they were. Raises KeyMissing, SealBroken, NotSealed."""
        if b" " not in encoding:
            if self.required:
                raise _plain("payload")
            return raw, encoding
        plain, word, *instead = encoding.decode("utf-8", "replace").split(" ")
        said = _said("payload", plain, bound, *instead[:1])
        return self._opened(word, raw, said), plain.encode()

    def close_result(self, raw: bytes, bound: Bound) -> bytes:
        """A result as it is stored; none stays none."""
        if not raw:
            return raw
        said = _said("result", "", bound, "")
        if self._encrypts:
            value = b'"' + base64.b64encode(self._first.encrypt(raw, said)) + b'"'
            word = f"aes:{self._first.name}"
        else:
            value, word = raw, f"hmac:{self._first.name}:{self._first.sign(raw, said)}"
        return msgspec.json.encode(_Sealed(word, bound, msgspec.Raw(value)))

    def open_result(self, raw: bytes, bound: Bound | None) -> bytes:
        """A result as it was. Without `bound` of whichever task says so. Raises KeyMissing, SealBroken, NotSealed."""
        if not is_sealed_result(raw):
            if self.required and raw:
                raise _plain("result")
            return raw
        try:
            found = _results.decode(raw)
            value = bytes(found.value)
            if found.seal.startswith("aes:"):
                value = base64.b64decode(value.strip(b'"'), validate=True)
        except (msgspec.MsgspecError, binascii.Error) as error:
            raise _broken() from error
        if bound is not None and found.of != bound:
            raise _broken()
        return self._opened(found.seal, value, _said("result", "", found.of, ""))

    def _opened(self, word: str, raw: bytes, said: bytes) -> bytes:
        kind, _, rest = word.partition(":")
        name, _, signature = rest.partition(":")
        key = self._by_name.get(name)
        if key is None:
            raise KeyMissing(f"sealed with key {name[:8]!r}, which is not among payload_keys; add it, then try again")
        if kind == "aes":
            return key.decrypt(raw, said)
        if kind != "hmac" or not hmac.compare_digest(signature.encode(), key.sign(raw, said).encode()):
            raise _broken()
        return raw


_results = msgspec.json.Decoder(_Sealed)


def is_sealed(encoding: bytes | None) -> bool:
    """Whether that is the encoding of a sealed payload."""
    return encoding is not None and b" " in encoding


def is_encrypted(encoding: bytes | None) -> bool:
    """Whether the payload cannot be read without its key."""
    return encoding is not None and b" aes:" in encoding


def is_sealed_result(raw: bytes) -> bool:
    """Whether a result is sealed."""
    return raw.startswith(_MARK)


def is_encrypted_result(raw: bytes) -> bool:
    """Whether a result cannot be read without its key."""
    return raw.startswith(_MARK + b'"aes:')


def open_payload(seal: Seal | None, raw: bytes, encoding: bytes | None, bound: Bound) -> tuple[bytes, bytes]:
    """(payload, encoding) as they were, also where no keys are configured. Raises KeyMissing, SealBroken, NotSealed."""
    if seal is not None:
        return seal.open(raw, encoding or b"", bound)
    if is_sealed(encoding):
        raise no_keys("payload")
    return raw, encoding or b""


def open_result(seal: Seal | None, raw: bytes, bound: Bound | None) -> bytes:
    """A result as it was, also where no keys are configured. Raises KeyMissing, SealBroken, NotSealed."""
    if seal is not None:
        return seal.open_result(raw, bound)
    if is_sealed_result(raw):
        raise no_keys("result")
    return raw


def open_values(seal: Seal | None, raw: bytes) -> Any:
    """The results that a flow gave a task: a JSON array in which some are sealed; None for no bytes.

    They say themselves whose they are. Raises KeyMissing, SealBroken, NotSealed.
    """
    if seal is None and _MARK not in raw:
        return msgspec.json.decode(raw) if raw else None
    return _opened_value(seal, msgspec.Raw(raw)) if raw else None


def _opened_value(seal: Seal | None, raw: msgspec.Raw) -> Any:
    """A group brings an array of results, so arrays are looked into; what a seal closes over is not."""
    text = bytes(raw)
    if text.startswith(b"["):
        return [_opened_value(seal, one) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]
    return msgspec.json.decode(open_result(seal, b"" if text == b"null" else text, None) or b"null")


def no_keys(what: str) -> KeyMissing:
    """The error for something sealed where no keys are configured."""
    return KeyMissing(f"the {what} is sealed and no payload_keys are configured; set JOBRUNNER_PAYLOAD_KEYS, try again")


def _broken() -> SealBroken:
    return SealBroken("the seal does not fit: what is sealed was changed, or is that of another task; do not trust it")


def _plain(what: str) -> NotSealed:
    return NotSealed(f"the {what} is neither encrypted nor signed, and require_sealed is set; find out who wrote it")


def _said(what: str, encoding: str, bound: Bound, instead: str = "") -> bytes:
    return msgspec.msgpack.encode(("jobrunner 1", what, encoding, instead or bound.id, bound.type, bound.tag))


def _secret(text: object) -> bytes:
    try:
        secret = base64.b64decode(str(text).strip().replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        secret = b""
    if not isinstance(text, str) or len(secret) != _KEY_BYTES:
        raise InvalidOption("a key of payload_keys is not 32 bytes as base64; make one with: openssl rand -base64 32")
    return secret


def _aes() -> Callable[[bytes], Any]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise EncryptionMissing(
            "encrypted payloads need the package cryptography: pip install 'jobrunner[encryption]', "
            'or sign only, with payload_seal="sign"'
        ) from error
    return AESGCM
