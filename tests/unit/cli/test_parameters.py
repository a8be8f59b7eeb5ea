"""`key=value` words become parameters of the job's types."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from jobrunner.cli.enqueue import read_parameters
from jobrunner.errors import ParameterError, UnknownOption
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import Job
from jobrunner.jobs.registry import JobDefinition, forget


@pytest.fixture
def definition() -> Iterator[JobDefinition]:
    @job()
    class Typed(Job):
        text: str = ""
        number: int = 0
        share: float = 0.0
        sure: bool = False
        price: Decimal = Decimal(0)
        key: UUID = UUID(int=0)
        since: datetime = datetime(2000, 1, 1, tzinfo=UTC)
        days: list[int] = []  # noqa: RUF012
        either: int | str = 0
        anything: Any = None
        pin_token: int = 0

        def run(self) -> None: ...

    assert Typed.definition is not None
    yield Typed.definition
    forget("Typed")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=ada", "ada"),
        ("text=12345", "12345"),
        ("text=true", "true"),
        ('text="quoted"', "quoted"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("number=-3", -3),
        ("share=2", 2.0),
        ("sure=true", True),
        ("price=1.10", Decimal("1.10")),
        ("price=0.12345678901234567890", Decimal("0.12345678901234567890")),
        ("key=12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        ("since=2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC)),
        ("days=[1, 2]", [1, 2]),
        ("either=5", 5),
        ("either=five", "five"),
        ('anything={"a": [1]}', {"a": [1]}),
        ("anything=word", "word"),
    ],
)
def test_a_word_is_read_by_the_type_of_its_parameter(definition: JobDefinition, word: str, value: object) -> None:
    read = getattr(read_parameters(definition, [word]), word.partition("=")[0])

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("word", ["number=1.5", "number=", "sure=yes", "days=1", "since=soon", "number"])
def test_a_word_that_does_not_fit_is_refused(definition: JobDefinition, word: str) -> None:
    with pytest.raises(ParameterError, match=word.partition("=")[0]):
        read_parameters(definition, [word])


def test_a_secret_that_does_not_fit_is_not_repeated(definition: JobDefinition) -> None:
    with pytest.raises(ParameterError, match=r"pin_token of job 'Typed' is not int$"):
        read_parameters(definition, ["pin_token=hunter2"])


def test_a_parameter_that_is_unknown_or_given_twice_is_refused(definition: JobDefinition) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'number'"):
        read_parameters(definition, ["numbr=1"])
    with pytest.raises(ParameterError, match="twice"):
        read_parameters(definition, ["number=1", "number=2"])
