"""The data source `jobrunner` of Spark: queues and history as tables, history as a stream, rows as tasks.

Instances, readers and slices are pickled for other Python processes. So their classes belong to modules, their options
are plain values, and connections are opened where they are used.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from jobrunner.spark.sink.writer import BatchWriter, StreamWriter
from jobrunner.spark.source.batch import BatchReader
from jobrunner.spark.source.options import batch_options, default_schema, shape_of, stream_options
from jobrunner.spark.source.stream import HistoryStream


class JobrunnerSource(DataSource):
    """The format `jobrunner`. Spark makes an instance for each read."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "jobrunner"

    def schema(self) -> str:
        """The columns when the user gives no schema."""
        streams = any(name.lower().replace("_", "") in ("maxrowspertrigger", "startingoffset") for name in self.options)
        return default_schema(stream_options(self.options) if streams else batch_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return BatchReader(batch_options(self.options), shape_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  its name in Spark
        """A streaming read of history."""
        return HistoryStream(stream_options(self.options), shape_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A write of tasks, one for each row."""
        return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """The same for one micro-batch of a stream."""
        return StreamWriter(schema, self.options, overwrite)
