"""The claim on an archive, so that one process at a time writes it. A process that lost its claim cancels its Spark
jobs."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import archives
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError, UsageError
from jobrunner.spark.running import is_classic

_HOLD_MS = 60_000


class ArchiveClaim:
    """A claim held on the server, by the digest of the archive. `where`: the name of the archive in messages."""

    def __init__(self, spark: SparkSession, broker: Broker, keys: Keys, digest: str, where: str) -> None:
        self._spark = spark
        self._broker = broker
        self._keys = keys
        self._digest = digest
        self._where = where
        self._name = secrets.token_hex(8)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Claims the archive for this process, and renews the claim until the block ends. Raises UsageError when
        another process holds the claim."""
        if not self._broker.run(archives.hold(self._keys, self._digest, self._name, ttl_ms=_HOLD_MS)):
            raise UsageError(
                f"another process writes the archive {self._where}; wait until it ends, or a minute if it has died"
            )
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            with suppress(JobrunnerError):
                self.check()
                self._broker.run(archives.let_go(self._keys, self._digest))

    def check(self) -> None:
        """Raises UsageError when this process no longer holds the claim."""
        if self._broker.run(archives.holder(self._keys, self._digest)) != self._name:
            raise UsageError(
                f"this process lost its claim on the archive {self._where} to another one, as it did not renew it for "
                f"{_HOLD_MS // 1000} s; run the archive again"
            )

    def cancellable(self) -> AbstractContextManager[None]:
        """Cancels Spark's jobs in the block when the claim is lost; the block then raises the error of `check`."""
        return cancellable(self._spark, self._name, self.check)

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(_HOLD_MS / 6000):
            with suppress(JobrunnerError):  # tried again soon; the claim outlives several failures
                if self._broker.run(archives.holder(self._keys, self._digest)) == self._name:
                    self._broker.run(archives.keep(self._keys, self._digest, ttl_ms=_HOLD_MS))
                else:
                    _cancel(self._spark, self._name)


@contextmanager
def cancellable(spark: SparkSession, tag: str, check: Callable[[], None]) -> Iterator[None]:
    """Tags Spark's jobs in the block, so that `_cancel` with this tag ends them; `check` then raises the reason.

    Prevents a process that was suspended in a write from overwriting the files of its successor, which may have deleted
    tasks since.
    """
    jobs = _jobs_of(spark)
    jobs.addJobTag(tag) if is_classic(spark) else spark.addTag(tag)
    try:
        yield
    except JobrunnerError:
        raise
    except Exception:
        check()
        raise
    finally:
        with suppress(Exception):  # the signal that ends this process may have ended its JVM
            jobs.removeJobTag(tag) if is_classic(spark) else spark.removeTag(tag)


def _cancel(spark: SparkSession, tag: str) -> None:
    """Cancels Spark's running jobs with this tag. Spark ignores a cancellation that precedes its job, so repeat it."""
    _jobs_of(spark).cancelJobsWithTag(tag) if is_classic(spark) else spark.interruptTag(tag)


def _jobs_of(spark: Any) -> Any:
    """The SparkContext in the JVM, as tags of a classic session do not reach its jobs; None under Spark Connect."""
    return spark.sparkContext._jsc.sc() if is_classic(spark) else None  # noqa: SLF001 - there is no public way
