"""One folder is one archive, in every spelling, and two folders are two; how its process ends."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

from jobrunner.errors import InvalidOption
from jobrunner.spark.history.archive import archive
from jobrunner.spark.history.archive_claim import cancellable
from jobrunner.spark.history.archive_files import FolderArchive
from jobrunner.spark.history.archive_tables import place_of


def identity(path: object) -> str:
    session: Any = None
    place = place_of(str(path))
    assert isinstance(place, str)
    return FolderArchive(session, place).identity


@pytest.mark.parametrize("lag_s", [-5, -0.001, float("nan")])
def test_a_window_that_would_end_in_the_future_is_refused(lag_s: float) -> None:
    """Tasks that end until then would be in no window."""
    nothing: Any = None
    with pytest.raises(InvalidOption, match=r"lag_s is .*; give a timedelta or seconds, from 0"):
        archive(nothing, nothing, "history", lag_s=lag_s)


def test_spellings_of_one_folder_are_one_archive(tmp_path: Any, monkeypatch: Any) -> None:
    folder = tmp_path / "archive of 2026"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    spellings = [
        folder, f"{folder}/", f"file:{folder}", f"file://{folder}", f"file://{folder}/", f"/{folder}",
        "archive of 2026", "./archive of 2026/../archive of 2026", tmp_path / "link", f"file://{tmp_path}/link",
    ]  # fmt: skip
    assert {identity(one) for one in spellings} == {str(folder)}


def test_different_places_are_different_archives() -> None:
    places = [
        "/data/a b", "file:///data/a%20b", "/data/a", "file:///data/a#b", "file://host/data/a", "s3a://data/a",
        "hdfs:///data/a", "hdfs://host/data/a",
    ]  # fmt: skip
    assert len({identity(one) for one in places}) == len(places)
    assert identity("s3a://data/a/") == identity("s3a://data/a") == "s3a://data/a"


def test_a_process_that_is_ended_with_its_jvm_says_so_and_not_that_the_jvm_is_gone() -> None:
    """A supervisor signals both at once, and the tag of the jobs cannot be taken back then."""

    def gone(_: str) -> None:
        raise Py4JError("py4j does not exist in the JVM")

    jobs = SimpleNamespace(addJobTag=lambda _: None, removeJobTag=gone)
    spark: Any = SimpleNamespace(
        _jsparkSession=None, sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: jobs))
    )
    with pytest.raises(SystemExit, match="143"), cancellable(spark, "archive", lambda: None):
        raise SystemExit(143)
