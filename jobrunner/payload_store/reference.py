"""The reference to an object of a payload store, as the hash of a task stores it.

The field `encoding` is `stored/1`, a blank and the encoding that the content of the object has: nothing, `json`, or the
envelope of an encrypted payload. Because of the blank, releases without payload stores refuse the payload as one that
they cannot decrypt, and leave it unchanged. The field `payload` has three words: the token of the object, its size in
bytes, and the first 192 bits of the SHA-256 of its content in base64. The field is short, as the server stores a hash
with a field of more than 64 bytes as a table.

The key of the object below the URL of the store is `prefix=<prefix>/tag=<hash tag>/<task id>~<token>`. A token is
base64 of the time (6 bytes, Unix ms) and 6 random bytes. Invariant: each write of a payload creates a new object, which
is never changed, and to which only the named task refers. So an object is garbage when the hash of that task is gone or
has another reference, and its age is known without asking the store.
"""

import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from jobrunner.clock import unix_ms
from jobrunner.encryption.envelope import STORED, EncryptionContext, is_stored
from jobrunner.errors import PayloadObjectChanged, PayloadStoreUnavailable

_WORD = STORED + b"1"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16}")
_STORED = re.compile(rb"([A-Za-z0-9_-]{16}) (\d{1,15}) ([A-Za-z0-9_-]{32})")
_DIGEST_BYTES = 24


class StoredReference(msgspec.Struct, frozen=True):
    """An object: its key, its size in bytes, and the digest of its content."""

    key: str
    size: int
    digest: bytes


class ObjectOwner(msgspec.Struct, frozen=True):
    """The task that an object belongs to, and when the object was written, Unix ms, both read from its key."""

    tag: str
    task_id: str
    written_ms: int


def digest_of(raw: bytes) -> bytes:
    """The digest of an object's content."""
    return urlsafe_b64encode(sha256(raw).digest()[:_DIGEST_BYTES])


def new_reference(raw: bytes, prefix: str, tag: str, task_id: str) -> StoredReference:
    """The reference to a new object with this content."""
    token = urlsafe_b64encode(int(unix_ms()).to_bytes(6) + os.urandom(6)).decode()
    return StoredReference(_key(prefix, tag, task_id, token), len(raw), digest_of(raw))


def folder_of_prefix(prefix: str) -> str:
    """The folder with the objects of all tasks below a prefix. Its name cannot be `..`, as a prefix may."""
    return f"prefix={prefix}"


def _key(prefix: str, tag: str, task_id: str, token: str) -> str:
    return f"{folder_of_prefix(prefix)}/tag={tag}/{task_id}~{token}"


def owner_of(key: str) -> ObjectOwner | None:
    """The task that the object with this key belongs to; None for any other file."""
    folder, _, name = key.rpartition("/")
    task_id, _, token = name.rpartition("~")
    _, mark, tag = folder.rpartition("/tag=")
    if not (task_id and mark and _TOKEN.fullmatch(token)):
        return None
    return ObjectOwner(tag, task_id, int.from_bytes(urlsafe_b64decode(token)[:6]))


def stored_fields(reference: StoredReference, encoding: str) -> tuple[bytes, str]:
    """(payload, encoding) in the form of the task's hash."""
    token = reference.key.rpartition("~")[2].encode()
    return b"%b %d %b" % (token, reference.size, reference.digest), f"{_WORD.decode()} {encoding}"


def read_reference(raw: bytes, encoding: bytes, context: EncryptionContext, prefix: str) -> StoredReference:
    """The reference in a task's hash. Raises PayloadStoreUnavailable for a reference of a later version,
    PayloadObjectChanged for a damaged one. The key is made for the task that is read: no stored byte can select a file
    of another task."""
    word = encoding.partition(b" ")[0]
    if word != _WORD:
        raise PayloadStoreUnavailable(
            f"the payload of task {context.id} is in a payload store in format {word.decode('utf-8', 'replace')!r}, "
            f"this release reads {_WORD.decode()!r}: run it with the release that wrote it"
        )
    found = _STORED.fullmatch(raw)
    if found is None:
        raise PayloadObjectChanged(
            f"the reference of task {context.id} to its payload in the payload store is damaged: {raw[:80]!r}; "
            "requeue it with its parameters, or enqueue it again"
        )
    return StoredReference(_key(prefix, context.tag, context.id, found[1].decode()), int(found[2]), found[3])


def content_encoding(encoding: bytes) -> bytes:
    """The encoding of an object's content, from the field `encoding` of its reference."""
    return encoding.partition(b" ")[2]


def refers_to(raw: bytes | None, encoding: bytes | None, key: str) -> bool:
    """Whether a hash with these fields refers to the object with this key, which belongs to the same task."""
    return is_stored(encoding) and bool(raw) and key.endswith("~" + (raw or b"")[:16].decode("utf-8", "replace"))


def key_of(raw: bytes | None, prefix: str, tag: str, task_id: str) -> str | None:
    """The key of the object in a reference; None for a damaged one."""
    found = _STORED.fullmatch(raw or b"")
    return None if found is None else _key(prefix, tag, task_id, found[1].decode())


def stored_note(raw: bytes, encoding: bytes | None) -> str:
    """The placeholder that pages and commands show for a payload in a store; empty for any other."""
    if not is_stored(encoding):
        return ""
    found = _STORED.fullmatch(raw)
    return f"(in the payload store: {int(found[2]):,} bytes)" if found is not None else "(in the payload store)"
