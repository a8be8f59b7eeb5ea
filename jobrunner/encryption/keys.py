"""One key of `payload_keys`: AES-256-GCM and HMAC-SHA256 with keys derived from it.

Each message has a key of its own, made of 12 random bytes, beside its 12 byte nonce: random nonces alone would be good
for 4 billion messages with one key (the idea of XAES-256-GCM, https://c2sp.org/XAES-256-GCM, with HMAC-SHA256 as in
NIST SP 800-108).
"""

import base64
import hmac
import os
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from jobrunner.encryption.envelope import damaged
from jobrunner.errors import EncryptionMissing, InvalidOption

_KEY_BYTES = 32
_HALF = 12
_LONGER = 40
"""Bytes that ciphertext is longer than the content: the random part, and the tag of AES-GCM."""


class EncryptionKey:
    """One key, and those made of it for either purpose."""

    def __init__(self, text: str) -> None:
        secret = _secret(text)
        self.name = sha256(secret).digest()[:4]
        self._encrypting = hmac.digest(secret, b"jobrunner encrypt 2", "sha256")
        self._signing = hmac.digest(secret, b"jobrunner sign 2", "sha256")

    def encrypt(self, raw: bytes, said: bytes) -> bytes:
        """Ciphertext of `raw`, bound to `said`: 40 bytes more."""
        fresh = os.urandom(2 * _HALF)
        sealed: bytes = self._cipher(fresh).encrypt(fresh[_HALF:], raw, said)
        return fresh + sealed

    def decrypt(self, sealed: bytes, said: bytes) -> bytes:
        """The plain content. Raises DecryptionFailed."""
        fresh = sealed[: 2 * _HALF]
        if len(sealed) < _LONGER:
            raise damaged()
        cipher = self._cipher(fresh)
        try:
            opened: bytes = cipher.decrypt(fresh[_HALF:], sealed[2 * _HALF :], said)
        except Exception as error:  # InvalidTag of a package that may not be there to be named
            raise damaged() from error
        return opened

    def sign(self, raw: bytes, said: bytes) -> bytes:
        """The signature of `raw`, bound to `said`."""
        return hmac.digest(self._signing, len(said).to_bytes(4) + said + raw, "sha256")

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
            "encrypted payloads need the package cryptography: pip install 'jobrunner[encryption]', "
            'or sign only, with payload_encryption="sign"'
        ) from error
    return AESGCM
