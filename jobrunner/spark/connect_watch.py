"""The server of a Spark Connect session that goes away: it is logged, and does not hold up the end of a process.

PySpark repeats its calls to a server that is away for ten minutes, and says nothing meanwhile. The batches in hand keep
their leases for that time, so without a line in the log a station would stand still for no visible reason.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from jobrunner.logs import SafeLogger
from jobrunner.spark.running import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_watched: WeakSet[Any] = WeakSet()
_own: WeakSet[Any] = WeakSet()
"""Sessions that this package made."""
_log = SafeLogger("jobrunner.spark")


def watch_connection(spark: "SparkSession") -> None:
    """Logs from now on what becomes of the connection of a session of Spark Connect. Once for each session; a classic
    session has none."""
    if is_classic(spark):
        return
    with suppress(Exception):  # another version of PySpark: its channel is private
        channel: Any = spark.client._channel  # noqa: SLF001
        if channel not in _watched:
            _watched.add(channel)
            channel.subscribe(_ConnectServer(str(spark.client.host)).changed)


def note_own(spark: "SparkSession") -> None:
    """This package made the session, so `end_retries` may change it."""
    _own.add(spark)


def end_retries(spark: "SparkSession") -> None:
    """Lets the calls of a session fail that PySpark repeats now, at their next try. For a process that is to end: it
    waits for the threads in which PySpark releases results. Leaves a session of the program alone."""
    if spark in _own:
        with suppress(Exception):  # another version of PySpark
            for policy in spark.client.get_retry_policies():
                policy.max_retries = 0


class _ConnectServer:
    def __init__(self, server: str) -> None:
        self._server = server
        self._is_away = False

    def changed(self, state: Any) -> None:
        """Called by gRPC, from a thread of its own, with each new `grpc.ChannelConnectivity`."""
        if state.name == "TRANSIENT_FAILURE" and not self._is_away:
            self._is_away = True
            _log.warning("the Spark Connect server does not answer; batches wait for it", server=self._server,
                         gives_up="ten minutes after a call, unless the session sets other retries")  # fmt: skip
        elif state.name == "READY" and self._is_away:
            self._is_away = False
            _log.info("the Spark Connect server answers again", server=self._server)
