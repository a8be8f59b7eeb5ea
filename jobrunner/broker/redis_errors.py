"""The errors of a connection, the error replies of a server that a driver tells apart, and what a caller gets for them.

They have the names of redis-py's classes, which they are no subclasses of: to import one of those imports all of
redis-py with asyncio, some 30 MB and 100 ms that a program needs only for TLS and for coroutines (`redis_py.py`).
"""

from collections.abc import Callable, Sequence

from jobrunner.broker.scripts import Script, readable_error
from jobrunner.errors import JobrunnerError, ServerFull, ServerRefused, ServerUnavailable


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


class SlotNotServed(RedisConnectionError):
    """A slot of a cluster has no node, or is on its way to another."""


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
    """The server is a replica. One whose primary does not answer may refuse reads, too (MASTERDOWN)."""


class WritesRefused(ResponseError):
    """The server takes no writes at present: it cannot write its file, when it refuses PING, too, or lacks replicas."""


class TryAgainError(ResponseError):
    """Keys of one command are on two nodes while a slot is being moved."""


class ClusterDownError(ResponseError):
    """A cluster serves nothing, or not this slot."""


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
    "MASTERDOWN": ReadOnlyError,
    "MISCONF": WritesRefused,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOREPLICAS": WritesRefused,
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
_FULL = "OOM command not allowed"
"""Within a script other words come before it, and Redis 6.2 puts more of its own there. OOM alone may be a part of the
name of a user or of a key."""
_DENIED_IN_A_SCRIPT = ("ACL failure in script", "user executing the script can't")
"""The second is of Redis 6.2."""
_WRITES_REFUSED = ("-MISCONF", "-NOREPLICAS")
_OF_A_CLUSTER = ("CROSSSLOT", "Hash slot not served")
_NO_CLUSTER = "cluster support disabled"


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


def is_demoted(reply: object) -> bool:
    """Whether a server refused a write because it is a replica. Before Redis 7 a script puts it in other words."""
    return isinstance(reply, ResponseError) and (isinstance(reply, ReadOnlyError) or "-READONLY" in str(reply))


def refuses_writes(reply: object) -> bool:
    """Whether a server refused a write, or a PING, for the time being: its disk is full, or its replicas are away.
    Before Redis 7 a script puts it in other words."""
    if not isinstance(reply, ResponseError):
        return False
    return isinstance(reply, WritesRefused) or any(code in str(reply) for code in _WRITES_REFUSED)


def raise_if_loading(replies: Sequence[object]) -> None:
    """Raises BusyLoadingError when the server did nothing at all because it is loading its data, or runs a script."""
    if not replies or not isinstance(replies[0], BusyLoadingError):
        return
    if all(isinstance(reply, BusyLoadingError) for reply in replies):
        does = "has run a script for long" if isinstance(replies[0], BusyScriptError) else "is loading its data"
        raise BusyLoadingError(f"it {does} ({replies[0]})")


def server_error(
    error: Exception, script: Script | None = None, *, asked: Callable[[], str] | None = None, server: object = None
) -> JobrunnerError:
    """The error of this package for an error reply of the server, to a script or to a plain command. `asked` describes
    the call, where it is denied. `server` is named where the connection was refused: then the URL is wrong, and may
    come from several places."""
    reply = str(error).split("\n")[0]
    text = (reply if script is None else readable_error(script, reply)).removesuffix(".")
    who = "the server" if server is None else f"the server at {server}"
    if isinstance(error, OutOfMemoryError) or _FULL in reply:
        return ServerFull(f"the server is at its maxmemory and took nothing: {text}; free memory or raise maxmemory")
    if isinstance(error, BusyLoadingError):
        return ServerUnavailable(f"{who} does not answer yet: {text}; wait until it has ended that")
    if isinstance(error, (AuthenticationError, NoPermissionError)) or any(it in reply for it in _DENIED_IN_A_SCRIPT):
        what = f" ({asked()})" if asked is not None and isinstance(error, NoPermissionError) else ""
        return ServerRefused(f"{who} refused this user: {text}{what}; check user, password and ACL of the URL")
    if is_demoted(error):
        return ServerRefused(f"the server is a replica and takes no writes: {text}; the URL must lead to its primary")
    if refuses_writes(error):
        advice = "attach replicas, or lower min-replicas-to-write" if "replicas" in text else "see its disk and its log"
        return ServerRefused(f"{who} takes no writes at present: {text}; {advice}")
    if isinstance(error, AskError) or any(it in reply for it in _OF_A_CLUSTER):
        described = f"slot {text.replace(' ', ' is at ', 1)}" if isinstance(error, AskError) else text
        scheme = "redis+cluster:// or rediss+cluster://"
        return ServerRefused(f"{who} is one node of a cluster: {described}; its URL must begin with {scheme}")
    if _NO_CLUSTER in reply:
        return ServerRefused(f"{who} is no cluster: {text}; its URL must begin with redis:// or rediss://")
    if isinstance(error, ResponseError) or not isinstance(error, JobrunnerError):
        return ServerRefused(f"{who} answered with an error: {text}")
    return error
