"""Values that several commands take."""

import io

import click
import pytest

from jobrunner.cli.options import bytes_of, confirm, seconds_of
from jobrunner.cli.output import Refusal


@pytest.mark.parametrize(
    ("text", "length_s"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("5m", 300), ("2H", 7200), (" 1d ", 86400)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, length_s: float) -> None:
    assert seconds_of(text) == length_s


@pytest.mark.parametrize("text", ["", "s", "soon", "nan", "5 weeks"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no length of time"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "length"), [("800", 800), ("64KB", 65536), ("512 MB", 2**29), ("1.5GiB", 3 * 2**29), ("2g", 2**31)]
)
def test_a_size_has_a_unit_or_is_in_bytes(text: str, length: int) -> None:
    assert bytes_of(text) == length


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e9", "five MB", "1TB", "512 MB each"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size; write 800, 64KB, 512MB"):
        bytes_of(text)


@pytest.mark.parametrize("text", ["36526d", "9999999999999d", "1e999", "inf", "-1", "9" * 5000])
def test_a_time_out_of_range_is_refused_with_its_bound_on_one_line(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range: give a length of time from 0 to 36525d") as refused:
        seconds_of(text)
    assert text[:50] in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_century_is_the_longest_time() -> None:
    assert seconds_of("36525d") == 36_525 * 86_400


@pytest.mark.parametrize("text", ["9" * 5000, "9999999999GB"])
def test_a_size_out_of_range_is_refused_with_its_bound_on_one_line(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range: give a size of up to 1048576GB") as refused:
        bytes_of(text)
    assert len(str(refused.value)) < 300


def test_without_a_person_nothing_is_deleted_unless_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    confirm("Delete all?", yes=True)
    with pytest.raises(click.UsageError, match="Delete all: stdin is no terminal to confirm on; add --yes"):
        confirm("Delete all?", yes=False)


@pytest.mark.parametrize("answer", ["n", ""])
def test_a_no_deletes_nothing(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    person = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(person, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", person)

    with pytest.raises(Refusal, match="nothing was changed"):
        confirm("Delete all?", yes=False)
