"""Passwords and tokens as they are configured: in clear, or as a scrypt hash that `jobrunner dashboard --hash` prints.

A hash is `scrypt$N$r$p$salt$digest` (RFC 7914; salt and digest in URL-safe base64). Hashes made elsewhere may cost
more; the dashboard refuses to start with one that needs over 64 MiB, or with a text of another form.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import threading

from jobrunner.errors import InvalidOption

_N, _R, _P = 2**14, 8, 1
_MOST_BYTES = 64 * 2**20
_REMEMBERED = 256
_SCHEME = "scrypt$"


def hashed(secret: str) -> str:
    """The hash of a password or token, with a random salt."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(secret.encode(), salt=salt, n=_N, r=_R, p=_P, dklen=32)
    return f"{_SCHEME}{_N}${_R}${_P}${_text(salt)}${_text(digest)}"


class Secret:
    """One configured password or token. `fits` compares in constant time, whichever form it was configured in."""

    _one_at_a_time = threading.BoundedSemaphore(2)
    """A hash takes some 50 ms and 16 MiB: guesses from many addresses must not take all threads and the memory."""

    def __init__(self, configured: str) -> None:
        self._clear = None if configured.startswith(_SCHEME) else configured.encode()
        self._n, self._r, self._p, self._salt, self._digest = _parsed(configured) if self._clear is None else _NONE
        # Secrets that were right before, as keyed digests: browsers send a password with every request.
        self._key = secrets.token_bytes(32)
        self._fitted: set[bytes] = set()

    @property
    def is_hashed(self) -> bool:
        """Whether it is known by its hash only."""
        return self._clear is None

    def fits(self, given: str) -> bool:
        """Whether `given` is this secret."""
        words = given.encode("utf-8", "surrogatepass")
        if self._clear is not None:
            return hmac.compare_digest(words, self._clear)
        seen = hmac.digest(self._key, words, "sha256")
        if seen in self._fitted:
            return True
        with self._one_at_a_time:
            digest = hashlib.scrypt(
                words, salt=self._salt, n=self._n, r=self._r, p=self._p, dklen=len(self._digest), maxmem=2 * _MOST_BYTES
            )
        if not hmac.compare_digest(digest, self._digest):
            return False
        if len(self._fitted) < _REMEMBERED:
            self._fitted.add(seen)
        return True


def _parsed(configured: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        n, r, p, salt, digest = configured.removeprefix(_SCHEME).split("$")
        cost, block, lanes = int(n), int(r), int(p)
        found = cost, block, lanes, _bytes(salt), _bytes(digest)
    except (ValueError, binascii.Error) as error:
        raise InvalidOption(_WRONG) from error
    is_power = cost > 1 and cost & (cost - 1) == 0
    if not is_power or not 0 < 128 * cost * block * max(lanes, 1) <= _MOST_BYTES or lanes < 1 or len(found[4]) < 16:
        raise InvalidOption(_WRONG)
    return found


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


_NONE = (0, 0, 0, b"", b"")
# Never with the value: a hash is a secret, too, and what is no hash may be a password.
_WRONG = (
    "a password or token begins with scrypt$ and is no hash that can be checked (scrypt$N$r$p$salt$digest, at most "
    "64 MiB): make one with `jobrunner dashboard --hash`"
)
