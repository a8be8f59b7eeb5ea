"""What the parent of Spark's Python workers prints of their ends."""

import pytest

pytest.importorskip("pyspark")

from jobrunner.spark.preloaded_daemon import print_exception


@pytest.mark.parametrize(
    ("error", "is_printed"),
    [(EOFError(), False), (BrokenPipeError(), False), (ConnectionResetError(), False), (MemoryError("full"), True)],
)
def test_a_pipe_that_spark_closed_is_no_failure(
    error: Exception, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        print_exception()
    assert ("Traceback" in capsys.readouterr().err) == is_printed
