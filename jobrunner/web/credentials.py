"""Configured secrets that prove an identity: tokens, and users with passwords.

`Token`: for a person through the login page, or for a program as a bearer. `Basic`: users with passwords, for which the
browser prompts. Secrets are compared in constant time, and are configured in clear or as a scrypt hash that `jobrunner
dashboard --hash` prints: `scrypt$N$r$p$salt$digest` (RFC 7914; salt and digest in URL-safe base64). Hashes from other
tools may cost more; the dashboard refuses to start with a hash that needs over 64 MiB, or with a text of another form.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.web.auth import LONGEST_NAME, Identity, Role, check_role

_N, _R, _P = 2**14, 8, 1
_MOST_BYTES = 64 * 2**20
_REMEMBERED = 256
_SCHEME = "scrypt$"


class LoginAuth:
    """Methods that use the login page: a secret is entered there once, and exchanged for a session
    (sessions_and_login_throttle.py)."""

    challenge = ""
    by_link = False
    """Whether a link may carry the secret. A lasting secret must not be in a URL: histories and logs keep URLs."""

    def accept(self, given: str) -> Identity | None:
        """The identity with that secret, or None."""
        raise NotImplementedError

    def session_of(self, name: str) -> Identity | None:
        """The present identity of a user who logged in as `name`; None if there is no such user any more."""
        raise NotImplementedError

    def offered(self, _: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        return None

    def knows(self, _: str) -> bool:
        """Whether a user with that name exists."""
        return False

    def identify(self, _: HTTPConnection) -> Identity | None:
        """Always None: the dashboard checks sessions before."""
        return None

    def signing_key(self) -> bytes:
        """A secret that processes with the same configuration share."""
        raise NotImplementedError


class Token(LoginAuth):
    """Access tokens: sent as `Authorization: Bearer …`, or typed once into the login page.

    `Token("one for all")`, or a name and role for each token, which the audit log then shows: `Token(named={"ann": ("a
    long secret", Role.OPERATOR)})`.
    """

    challenge = 'Bearer realm="jobrunner"'

    def __init__(
        self,
        token: str = "",
        *,
        role: Role = Role.ADMIN,
        name: str = "token",
        named: Mapping[str, tuple[str, Role]] | None = None,
    ) -> None:
        tokens = {**({name: (token, role)} if token or not named else {}), **_checked(named or {})}
        for one, (given, _) in _checked(tokens).items():
            if len(given) < 8:
                whose = "the token" if one == "token" else f"the token of {one}"
                raise InvalidOption(f"{whose} is shorter than 8 characters; make one: openssl rand -hex 16")
        self._secrets = {one: Secret(given) for one, (given, _) in tokens.items()}
        self._who = {one: Identity(name=one, role=role) for one, (_, role) in tokens.items()}
        self._key = _derived("\0".join(given for given, _ in tokens.values()))

    def __repr__(self) -> str:
        return f"Token({', '.join(f'{one.name}: {one.role.name.lower()}' for one in self._who.values())})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The identity of the token in the header, or None."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        who = self.accept(given.strip()) if scheme.lower() == "bearer" else None
        return replace(who, by_browser=False) if who else None

    def offered(self, request: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        return "bearer" if request.headers.get("authorization", "").lower().startswith("bearer ") else None

    def knows(self, name: str) -> bool:
        """Whether a user with that name exists."""
        return name == "bearer"

    def accept(self, given: str) -> Identity | None:
        """The identity of that token, or None."""
        fitting = [name for name, secret in self._secrets.items() if secret.fits(given)]
        return self._who[fitting[0]] if fitting else None

    def session_of(self, name: str) -> Identity | None:
        """The present identity of a user who logged in as `name`; None if there is no such user any more."""
        return self._who.get(name)

    def signing_key(self) -> bytes:
        """A key derived from the tokens: other tokens end all sessions."""
        return self._key


class Basic:
    """Users with passwords, for which the browser itself prompts: {"ann": ("her password", Role.OPERATOR)}."""

    challenge = 'Basic realm="jobrunner", charset="UTF-8"'

    def __init__(self, users: Mapping[str, tuple[str, Role]]) -> None:
        for name, (password, _) in _checked(users).items():
            if not password:
                raise InvalidOption(f"user {name!r}: give a password that is not empty")
        if not users:
            raise InvalidOption("no user is given: give at least one, as name and password")
        self._users = {name: (Secret(password), role) for name, (password, role) in users.items()}
        # For unknown names: checking it takes as long as a wrong password, so the time does not reveal which names
        # exist.
        is_hashed = any(secret.is_hashed for secret, _ in self._users.values())
        nobody = secrets.token_urlsafe()
        self._nobody = Secret(hashed(nobody) if is_hashed else nobody), Role.VIEWER
        self._key = _derived("\0".join(f"{name}\0{password}" for name, (password, _) in sorted(users.items())))

    def __repr__(self) -> str:
        return f"Basic({', '.join(sorted(self._users))})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The identity of name and password in the header, or None."""
        name, given = _credentials(request) or ("", "")
        secret, role = self._users.get(name, self._nobody)
        return Identity(name=name, role=role) if secret.fits(given) else None

    def offered(self, request: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        found = _credentials(request)
        return None if found is None else found[0]

    def knows(self, name: str) -> bool:
        """Whether a user with that name exists."""
        return name in self._users

    def signing_key(self) -> bytes:
        """A key derived from all names and passwords."""
        return self._key


def _credentials(request: HTTPConnection) -> tuple[str, str] | None:
    """Name and password of a Basic header (RFC 7617); None without a readable one."""
    scheme, _, packed = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(packed, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _checked(users: Mapping[str, tuple[str, Role]]) -> Mapping[str, tuple[str, Role]]:
    """The same users. Raises InvalidOption, whose text never contains a secret."""
    if not isinstance(users, Mapping):
        raise InvalidOption(f"users are of type {type(users).__name__}: give a dict, {_USERS}")
    for name, given in users.items():
        if not isinstance(name, str) or not name or ":" in name or not name.isprintable() or len(name) > LONGEST_NAME:
            raise InvalidOption(f"user {describe(name, 60)}: give a name without a colon or control characters")
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise InvalidOption(f"user {name!r}: give a pair of secret and role, {_USERS}")
        secret, role = given
        check_secret(secret, f"the secret of user {name!r}")
        check_role(role, name)
    return users


def check_secret(secret: object, what: str) -> None:
    """Raises InvalidOption for a secret that is no text, or was no UTF-8 in the environment."""
    if not isinstance(secret, str):
        raise InvalidOption(f"{what} is of type {type(secret).__name__}: give a str")
    try:
        secret.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{what} is not valid UTF-8: make one with openssl rand -hex 32") from None


def _derived(secret: str) -> bytes:
    # Slow on purpose: a cookie signed with the key must not be a quick way to test passwords.
    return hashlib.scrypt(secret.encode(), salt=b"jobrunner dashboard", n=2**14, r=8, p=1, dklen=32)


def hashed(secret: str) -> str:
    """The hash of a password or token, with a random salt."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(secret.encode(), salt=salt, n=_N, r=_R, p=_P, dklen=32)
    return f"{_SCHEME}{_N}${_R}${_P}${_text(salt)}${_text(digest)}"


class Secret:
    """One configured password or token. `fits` compares in constant time, for either form of configuration."""

    _one_at_a_time = threading.BoundedSemaphore(2)
    """Limits concurrent hashing, as a hash takes some 50 ms and 16 MiB: guesses from many addresses must not use up
    threads and memory."""

    def __init__(self, configured: str) -> None:
        self._clear = None if configured.startswith(_SCHEME) else configured.encode()
        self._n, self._r, self._p, self._salt, self._digest = _parsed(configured) if self._clear is None else _NONE
        # Keyed digests of secrets found right before, as browsers send a password with every request.
        self._key = secrets.token_bytes(32)
        self._fitted: set[bytes] = set()

    @property
    def is_hashed(self) -> bool:
        """Whether only the hash of the secret is known."""
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
_USERS = 'such as {"ann": ("a long secret", Role.OPERATOR)}'
# Never with the value: a hash is a secret, too, and a text that is no hash may be a password.
_WRONG = (
    "a password or token begins with scrypt$ and is no hash that can be checked (scrypt$N$r$p$salt$digest, at most "
    "64 MiB): make one with `jobrunner dashboard --hash`"
)
