"""The errors of a connection, and the error replies of a server that a driver tells apart.

They have the names of redis-py's classes, which they are no subclasses of: to import one of those imports all of
redis-py with asyncio, some 30 MB and 100 ms that a program needs only for TLS and for coroutines (`redis_py.py`).
"""


class RedisError(Exception):
    """Any of them."""


class RedisConnectionError(RedisError):
    """No connection could be made, or it broke."""


class RedisTimeoutError(RedisError):
    """A server did not answer in time."""


class InvalidResponse(RedisError):
    """The bytes of a reply are not in the server's protocol."""


class TlsError(RedisConnectionError):
    """A certificate is not valid, or a file of the URL's options cannot be read: to try again is of no use."""


class AuthenticationError(RedisConnectionError):
    """A wrong user or password, or none."""


class BusyLoadingError(RedisConnectionError):
    """The server loads its data and does nothing else."""


class BusyScriptError(BusyLoadingError):
    """The server runs a script that takes long, and does nothing else."""


class ResponseError(RedisError):
    """A server's error reply."""


class NoPermissionError(ResponseError):
    """The user may not do this."""


class NoScriptError(ResponseError):
    """The server does not know a script."""


class OutOfMemoryError(ResponseError):
    """The server is at its maxmemory."""


class ReadOnlyError(ResponseError):
    """The server is a replica."""


class TryAgainError(ResponseError):
    """Keys of one command are on two nodes while a slot is being moved."""


class ClusterDownError(ResponseError):
    """A cluster serves nothing, or not this slot; or a replica has lost its primary."""


class AskError(ResponseError):
    """A key is at another node, for this command only. The text is `slot host:port`; the host is empty, or ? where the
    node should have a name and has none, when it is the host of the node that replied."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        host, _, port = text.rpartition(" ")[2].rpartition(":")
        self.host, self.port = "" if host == "?" else host, int(port)


class MovedError(AskError):
    """A slot is at another node."""


_BY_CODE: dict[str, type[RedisError]] = {
    "ASK": AskError,
    "BUSY": BusyScriptError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": ClusterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
_BY_TEXT: dict[str, type[RedisError]] = {
    "max number of clients reached": RedisConnectionError,
    "invalid password": AuthenticationError,
    "AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?": AuthenticationError,
}
"""Those with the code ERR."""
_ARGUMENTS = ", with args beginning with:"


def without_arguments(reply: str) -> str:
    """An error reply without the arguments of a command that the server does not know: those of AUTH are secret."""
    return reply.partition(_ARGUMENTS)[0]


def error_of_reply(reply: str) -> RedisError:
    """The error of an error reply. Its text lacks the code when that is ERR or its class stands for it."""
    reply = without_arguments(reply)
    code, _, text = reply.partition(" ")
    if code == "ERR":
        return _BY_TEXT.get(text, ResponseError)(text)
    known = _BY_CODE.get(code)
    return ResponseError(reply) if known is None else known(text)
