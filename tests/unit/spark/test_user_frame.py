"""The place in the user's code that an error came from."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from jobrunner.spark.user_frame import user_frame

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 3, in outermost
    begin()
  File "/app/orders.py", line 12, in parse
    return int(text)
  File "/app/money.py", line 7, in cents
    return Decimal(text)
  File "{library}", line 90, in worker_helper
ValueError: no number
"""


class FromAWorker(Exception):
    """As PySpark raises it: all that is known of the worker is text."""


@pytest.mark.parametrize(
    "library",
    [
        "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py",
        "/usr/lib/python3/site-packages/pandas/core/frame.py",
        "/tmp/spark-7/userFiles-1/jobrunner.zip/jobrunner/spark/payloads.py",
        str(Path(sys.modules["json"].__file__ or "")),
        str(Path(sys.modules["jobrunner"].__file__ or "").with_name("codec.py")),
        "<frozen runpy>",
    ],
)
def test_the_innermost_frame_of_the_user_is_named(library: str) -> None:
    assert user_frame(FromAWorker(WORKER.format(library=library))) == "money.py:7 cents"


def test_an_application_that_is_installed_is_the_users_code() -> None:
    text = WORKER.replace("/app/", "/srv/venv/lib/python3.11/site-packages/shop/")
    assert user_frame(FromAWorker(text.format(library="/x/pyspark/worker.py"))) == "money.py:7 cents"


def test_the_last_traceback_of_several_counts() -> None:
    first = WORKER.format(library="<frozen runpy>")
    text = f"{first}\nDuring handling of the above exception, another exception occurred:\n{first.replace('7', '8')}"
    assert user_frame(FromAWorker(text)) == "money.py:8 cents"


def test_an_error_of_the_driver_has_the_frame_of_its_own_traceback() -> None:
    def transform() -> None:
        raise KeyError("delay")

    with pytest.raises(KeyError) as raised:
        transform()
    line = transform.__code__.co_firstlineno + 1
    assert user_frame(raised.value) == f"test_user_frame.py:{line} transform"


def test_an_error_without_text_has_the_frame_of_its_own_traceback() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(Mute) as raised:
        raise Mute
    assert user_frame(raised.value).startswith("test_user_frame.py:")


def test_an_error_that_no_code_of_the_user_raised_has_no_frame() -> None:
    assert not user_frame(RuntimeError("executor lost"))
