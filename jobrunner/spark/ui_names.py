"""Names jobs in Spark's web UI.

Spark lists a job by the line of Python that started it, which for every batch of every station is the same line of this
package. So each batch, and each job of the history commands, has a job group with a description. Both belong to the
thread that starts the jobs, so stations in threads of one session do not interfere.

Spark Connect has neither, as its server writes the description of a job. There a tag carries the name.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from jobrunner.logs import SafeLogger
from jobrunner.spark.running import is_classic

_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_logged: set[str] = set()
_log = SafeLogger("jobrunner.spark")


@contextmanager
def job_names(spark: SparkSession, title: str, group: str = "") -> Iterator[None]:
    """Names the Spark jobs that this thread starts within the block. `group` identifies them."""
    if not is_classic(spark):
        tag = title.replace(",", ";")  # a comma separates tags
        spark.addTag(tag)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = [(name, context.getLocalProperty(name)) for name in (_GROUP, _DESCRIPTION)]
    context.setLocalProperty(_GROUP, group or title)
    context.setLocalProperty(_DESCRIPTION, title)
    try:
        yield
    finally:
        with suppress(Exception):  # the engine is gone
            for name, value in before:
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


def log_web_ui(spark: SparkSession) -> None:
    """Logs the address of Spark's web UI, when it is on."""
    with suppress(Exception):  # Spark Connect
        url = spark.sparkContext.uiWebUrl
        if url and url not in _logged:
            _logged.add(url)
            _log.info("web UI of Spark", url=url)
