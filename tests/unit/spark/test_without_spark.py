"""Where Spark is not installed: the package can be imported, and the first use of a session names the remedy."""

import subprocess
import sys

PROGRAM = """
import sys

sys.modules["pyspark"] = None
from jobrunner.errors import SparkMissing
from jobrunner.spark import spark_session

try:
    spark_session()
except SparkMissing as error:
    print(error)
"""


def test_without_pyspark_the_first_session_names_the_command_that_installs_it():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout == 'PySpark is not installed; pip install "jobrunner-queue[spark]"\n', ran.stderr


def test_a_pyspark_that_is_too_old_is_named_with_the_command_that_installs_a_newer_one():
    program = PROGRAM.replace('sys.modules["pyspark"] = None', 'sys.modules["pyspark.sql.streaming.datasource"] = None')
    asks = ("spark_session()", "from jobrunner.spark import register")
    for ask in asks:
        ran = subprocess.run(
            [sys.executable, "-c", program.replace("    spark_session()", f"    {ask}")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "is older than 4.2, or damaged: " in ran.stdout, ran.stderr
        assert ran.stdout.endswith('; pip install "jobrunner-queue[spark]"\n')
