"""Passwords that change: each new connection asks for the current password.

    redis://user@host:6379/0?password_file=/run/secrets/redis
    rediss://host:6379/0?credential_provider=myapp.servers.Tokens

The file, such as a mounted secret, may be replaced at any time. A provider is a credential provider of redis-py, an
object with `get_credentials()`; the URL names its class, or a function that makes it, like the URLs of Celery. An
option of the URL, unlike a value in a program, reaches every process that works for a client: lease keeper, children,
executors of Spark. A connection stays open when its password changes.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from jobrunner.broker.connection import CREDENTIAL_OPTIONS, CREDENTIAL_PROVIDER, PASSWORD_FILE, Credentials
from jobrunner.broker.redis_errors import RedisConnectionError
from jobrunner.errors import InvalidOption
from jobrunner.settings import see_project


def split_credentials(url: str) -> tuple[str, Credentials | None]:
    """The URL without user and credential options, and the credentials from these. A URL without credential options is
    returned unchanged, with None.

    Raises InvalidOption for two sources of one password, and for a provider that cannot be made."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = {name: options.pop(name) for name in CREDENTIAL_OPTIONS if name in options}
    if not given:
        return url, None
    if len(given) > 1 or parts.password:
        names = [*(["a password"] if parts.password else []), *given]
        raise InvalidOption(f"the URL of the server has {' and '.join(names)}: give one of them")
    query = f"?{urlencode(options)}" if options else ""
    plain = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"
    user = unquote(parts.username or "")
    if PASSWORD_FILE in given:
        return plain, _PasswordFile(user, given[PASSWORD_FILE])
    return plain, _Provider(user, given[CREDENTIAL_PROVIDER])


class _PasswordFile:
    may_block = False

    def __init__(self, user: str, path: str) -> None:
        self._user = user
        self._path = path

    def get_credentials(self) -> tuple[str, ...]:
        try:
            password = Path(self._path).read_text().rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RedisConnectionError(f"password_file {self._path!r} cannot be read: {reason}") from error
        if not password:
            raise RedisConnectionError(f"password_file {self._path!r} is empty")
        return (self._user, password) if self._user else (password,)


class _Provider:
    may_block = True

    def __init__(self, user: str, path: str) -> None:
        self._user = user
        self._named = f"credential_provider {path!r}"
        self._provider = provider_at(path)

    def get_credentials(self) -> tuple[str, ...]:
        try:
            found = self._provider.get_credentials()
        except Exception as error:
            raise RedisConnectionError(f"{self._named} failed: {type(error).__name__}: {error}") from error
        is_list = isinstance(found, (tuple, list)) and len(found) in (1, 2)
        if not is_list or not all(isinstance(one, str) for one in found):
            # The message never has the value itself, which may be the password.
            raise RedisConnectionError(f"{self._named} returned {type(found).__name__}: return (user, password)")
        return (self._user, *found) if self._user and len(found) == 1 else tuple(found)


@cache
def provider_at(path: str) -> Any:
    """The provider at a dotted path. All connections of the process share it, as a provider may cache a valid token.
    Raises InvalidOption."""
    module, _, name = path.replace(":", ".").rpartition(".")
    what = f"credential_provider={path!r} of the server's URL"
    if not module or not name:
        raise InvalidOption(f"{what}: name a class with its module, such as myapp.servers.Tokens")
    see_project()
    try:
        made = getattr(import_module(module), name)()
    except Exception as error:
        raise InvalidOption(f"{what} cannot be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "get_credentials", None)):
        # Not the object itself: a function that returns user and password takes itself for a provider.
        raise InvalidOption(f"{what} makes an object of {type(made).__name__}, which has no method get_credentials()")
    return made
