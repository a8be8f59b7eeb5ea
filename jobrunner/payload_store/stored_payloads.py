"""The encryption of a client that has a payload store: a payload is encrypted first, if there are keys, then stored.

All code of the client and the worker that passes payloads on takes a `PayloadEncryption` or None. This subclass also
moves large payloads into the store, so a client without a store has only the None to check.
"""

from collections.abc import Sequence

from jobrunner.encryption.cipher import (
    DecryptedPayload,
    EncryptionContext,
    PayloadEncryption,
    decrypt_payload,
    decrypt_result,
    no_keys,
)
from jobrunner.encryption.envelope import is_stored
from jobrunner.payload_store.reference import (
    StoredReference,
    content_encoding,
    new_reference,
    read_reference,
    stored_fields,
)
from jobrunner.payload_store.store import PayloadStore

PlainPayload = tuple[bytes, str, EncryptionContext]


class StoredPayloads(PayloadEncryption):
    """Encrypts with `cipher`, if there is one, and puts payloads of jobs that are larger than `above` into `store`.
    Payloads of bare items stay in the server: readers of queues in other programs (Spark) have no store."""

    def __init__(self, store: PayloadStore, cipher: PayloadEncryption | None) -> None:
        self.store = store
        self.cipher = cipher
        self.required = cipher is not None and cipher.required

    def encrypt(
        self, raw: bytes, encoding: str, context: EncryptionContext, *, after: bytes = b""
    ) -> tuple[bytes, str]:
        """(payload, encoding) in the form of the task's hash; a large payload is then in the store. Raises
        PayloadStoreUnavailable."""
        if self.cipher is not None:
            raw, encoding = self.cipher.encrypt(raw, encoding, context, after=after)
        return self.put([(raw, encoding, context)])[0]

    def encrypt_many(self, payloads: Sequence[PlainPayload]) -> list[tuple[bytes, str]]:
        """`encrypt` for many payloads, which the store may write concurrently."""
        if self.cipher is None:
            return self.put(payloads)
        return self.put([(*self.cipher.encrypt(*one), one[2]) for one in payloads])

    def put(self, payloads: Sequence[PlainPayload]) -> list[tuple[bytes, str]]:
        """Writes large payloads, encrypted already, to the store. Raises PayloadStoreUnavailable."""
        found: list[tuple[bytes, str]] = []
        written: dict[StoredReference, bytes] = {}
        for raw, encoding, context in payloads:
            if len(raw) <= self.store.above or not context.type:
                found.append((raw, encoding))
                continue
            reference = new_reference(raw, self.store.prefix, context.tag, context.id)
            written[reference] = raw
            found.append(stored_fields(reference, encoding))
        if written:
            self.store.put(written)
        return found

    def fetch(self, raw: bytes, encoding: bytes, context: EncryptionContext) -> tuple[bytes, bytes]:
        """(payload, encoding) with a reference replaced by the content of its object, not decrypted. Raises
        PayloadStoreError."""
        if not is_stored(encoding):
            return raw, encoding
        reference = read_reference(raw, encoding, context, self.store.prefix)
        return self.store.get(reference, context.id), content_encoding(encoding)

    def decrypt(
        self, raw: bytes, encoding: bytes, context: EncryptionContext, *, anywhere: bool = False
    ) -> DecryptedPayload:
        """The plain payload. Raises EncryptionError, PayloadStoreError."""
        raw, encoding = self.fetch(raw, encoding, context)
        return decrypt_payload(self.cipher, raw, encoding, context, anywhere=anywhere)

    def encrypt_result(self, raw: bytes, context: EncryptionContext) -> bytes:
        """The stored form of a result: in the server, whatever its size."""
        return raw if self.cipher is None else self.cipher.encrypt_result(raw, context)

    def decrypt_result(self, raw: bytes, context: EncryptionContext) -> bytes:
        """As PayloadEncryption."""
        return decrypt_result(self.cipher, raw, context)

    def decrypt_handed_on(self, raw: bytes) -> tuple[bytes, bytes]:
        """As PayloadEncryption."""
        if self.cipher is None:
            raise no_keys("result")
        return self.cipher.decrypt_handed_on(raw)

    def sign_parameters(self, raw: bytes, context: EncryptionContext) -> str:
        """As PayloadEncryption; empty without keys."""
        return "" if self.cipher is None else self.cipher.sign_parameters(raw, context)

    def check_parameters(self, raw: bytes, signature: str, context: EncryptionContext) -> None:
        """As PayloadEncryption; without keys nothing is checked."""
        if self.cipher is not None:
            self.cipher.check_parameters(raw, signature, context)


def without_store(encryption: PayloadEncryption | None) -> PayloadEncryption | None:
    """The encryption for payloads that stay in the server, whatever their size."""
    return encryption.cipher if isinstance(encryption, StoredPayloads) else encryption
