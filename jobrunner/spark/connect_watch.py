"""Watches the connection of a Spark Connect session: logs when the server goes away, and lets the process end then.

PySpark retries calls to an unreachable server for ten minutes without logging. The current batches keep their leases
meanwhile, so without a line in the log a station would stall for no visible reason.
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
    """Logs changes of the connection of a Spark Connect session from now on. Does nothing for a session that is watched
    already, and for a classic session, which has no connection."""
    if is_classic(spark):
        return
    with suppress(Exception):  # another version of PySpark: its channel is private
        channel: Any = spark.client._channel  # noqa: SLF001
        if channel not in _watched:
            _watched.add(channel)
            channel.subscribe(_ConnectServer(str(spark.client.host)).changed)


def note_own(spark: "SparkSession") -> None:
    """Records that this package created the session, so that `end_retries` may change it."""
    _own.add(spark)


def end_retries(spark: "SparkSession") -> None:
    """Makes calls that PySpark is retrying fail at their next try. A process that ends calls it, because Python waits
    for the threads in which PySpark releases results. Leaves a session that the program created alone."""
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
