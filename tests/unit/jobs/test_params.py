"""Parameters are checked when enqueued, as the worker will read them, and an error says which, what and why."""

import enum
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.codec import encode
from jobrunner.errors import ParameterError, UsageError
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import Job
from jobrunner.jobs.params import JobParameters
from jobrunner.jobs.registry import forget


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    article: str
    count: int = 1


class Everything(Job):
    whole: int = 0
    fraction: float = 0.0
    flag: bool = False
    nothing: None = None
    text: str = ""
    raw: bytes = b""
    moment: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    price: Decimal = Decimal("0.10")
    key: uuid.UUID | None = None
    colour: Colour = Colour.RED
    lines: list[Line] = []  # noqa: RUF012  (a struct copies it)
    by_name: dict[str, Line] = {}  # noqa: RUF012
    pair: tuple[int, str] = (1, "a")
    some: set[int] = set()  # noqa: RUF012
    retry_count: int = 7
    """Named like a field of the task's hash, which it must not touch."""


@pytest.fixture
def parameters() -> JobParameters[Everything]:
    return JobParameters(Everything, "Everything")


@pytest.mark.parametrize(
    "values",
    [
        {"whole": -(2**62), "fraction": 1.5, "flag": True, "text": "ü\x00🚀", "raw": bytes(range(256))},
        {"moment": datetime(2026, 1, 1, 12, 30, 15, 123456, UTC), "day": date(2026, 1, 1), "span": timedelta(days=1)},
        {"price": Decimal("12.3400"), "key": uuid.UUID(int=5), "colour": Colour.BLUE},
        {"lines": [Line("a", 2), Line("b")], "by_name": {"x": Line("c")}, "pair": (3, "z"), "some": {1, 2}},
        {"fraction": 3},
    ],
)
def test_every_kind_of_parameter_comes_back(parameters: JobParameters[Everything], values: dict[str, Any]) -> None:
    sent = Everything(**values)
    assert parameters.read(parameters.write_and_read(sent)[0]) == sent


@given(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"])), st.binary())
def test_numbers_text_and_bytes_survive_unchanged(whole: int, text: str, raw: bytes) -> None:
    parameters = JobParameters(Everything, "Everything")
    read = parameters.read(parameters.write_and_read(Everything(whole=whole, text=text, raw=raw))[0])
    assert (read.whole, read.text, read.raw) == (whole, text, raw)


def test_a_list_where_a_tuple_or_set_is_meant_is_taken(parameters: JobParameters[Everything]) -> None:
    read = parameters.read(parameters.write_and_read(Everything(pair=[1, "b"], some=[3, 3]))[0])  # type: ignore[arg-type]
    assert (read.pair, read.some) == ((1, "b"), {3})


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("whole", "5", "whole", "int"),
        ("whole", 1.5, "whole", "int"),
        ("whole", True, "whole", "int"),
        ("flag", 1, "flag", "bool"),
        ("text", b"x", "text", "str"),
        ("raw", "abcd", "raw", "bytes"),
        ("moment", "2026-01-01T00:00:00Z", "moment", "datetime"),
        ("price", "1.0", "price", "Decimal"),
        ("colour", "red", "colour", "Colour"),
        ("colour", "green", "colour", "Colour"),
        ("lines", [Line("a"), Line("b", "many")], "lines[1].count", "int"),  # type: ignore[arg-type]
        ("by_name", {"x": 3}, "by_name[...]", "object"),
        ("pair", (1, 2), "pair[1]", "str"),
        ("some", {"a"}, "some[0]", "int"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_path_value_and_type(
    parameters: JobParameters[Everything], name: str, value: Any, path: str, expected: str
) -> None:
    with pytest.raises(ParameterError) as raised:
        parameters.write_and_read(Everything(**{name: value}))
    message = str(raised.value)
    assert f"parameter {path} of job 'Everything'" in message
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("value", "path", "wanted"), [(Decimal("1.5"), "share", "float"), ([1.0, Decimal(2)], "shares[1]", "list[float]")]
)
def test_a_value_whose_json_reads_as_another_type_is_named_as_any_wrong_one(
    value: Any, path: str, wanted: str
) -> None:
    """msgspec takes a Decimal for a float, and JSON has it as a text: the error had neither value nor parameter."""

    class Shared(Job):
        share: float = 0.0
        shares: list[float] = []  # noqa: RUF012 - an empty one is a new one each time

    told = f"parameter {path} of job 'Shared' is {value!r}; it must be {wanted}: in JSON it is another value: Expected"
    with pytest.raises(ParameterError, match=re.escape(told)):
        JobParameters(Shared, "Shared").write_and_read(Shared(**{path.partition("[")[0]: value}))


class Int64:
    """As that of numpy."""

    def tolist(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "3"


class Float64(float):
    """As that of numpy, which is a float."""

    def tolist(self) -> float:
        return float(self)


class Table:
    """As that of pandas."""

    shape = (3, 2)

    def to_dict(self) -> dict[str, int]:
        return {}

    def __repr__(self) -> str:
        return "ada@example.org"


class Closed:
    """Has no shape that can be read, as of a file that is closed."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise ValueError("closed")

    def __repr__(self) -> str:
        return "Closed()"


class Stamp(datetime):
    """As that of pandas."""

    def to_pydatetime(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp(), UTC)


class Model:
    """As that of pydantic."""

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"x": 1}

    def __repr__(self) -> str:
        return "Model(x=1)"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Int64(), r"3 of type Int64 has no JSON form; convert it with \.tolist\(\)"),
        ([1.5, Float64(3)], r"3\.0 of type Float64 has no JSON form; convert it with \.tolist\(\)"),
        (Stamp(2030, 1, 1), r"Stamp\(.*\) of type Stamp has no JSON form; convert it with \.to_pydatetime\(\)"),
        (Model(), r"Model\(x=1\) of type Model has no JSON form; convert it with \.model_dump\(mode=\"json\"\)"),
        (Table(), r"a value of shape \(3, 2\) of type Table has no JSON form; convert it with \.to_dict\(\).*"),
        (Closed(), r"Closed\(\) of type Closed has no JSON form; return or pass plain data"),
        (Path("a"), r"PosixPath\('a'\) of type PosixPath has no JSON form; convert it with str\(\)"),
        (object(), r"<object object at .*> of type object has no JSON form; return or pass plain data"),
        (range(3), r"range\(0, 3\) of type range has no JSON form; convert it with list\(\)"),
        ({"a": 1}.keys(), r"dict_keys\(\['a'\]\) of type dict_keys has no JSON form; convert it with list\(\)"),
        ((one for one in "ab"), r"<generator object .*> of type generator has no JSON form; convert it with list\(\)"),
    ],
)
@pytest.mark.parametrize("field", ["text", "anything"])
def test_a_value_without_a_json_form_comes_with_a_way_to_convert_it(field: str, value: object, message: str) -> None:
    """It said that a Model "must be Model: Encoding objects of type Model is unsupported"."""

    class Holds(Job):
        text: str = ""
        anything: Any = None

    with pytest.raises(ParameterError, match=f"^parameter {field} of job 'Holds' cannot be stored as JSON: {message}$"):
        JobParameters(Holds, "Holds").write_and_read(Holds(**{field: value}))
    with pytest.raises(UsageError, match=f"^the result cannot be stored as JSON: {message}$"):
        encode(value, what="the result")


def test_a_number_that_json_has_not_is_refused(parameters: JobParameters[Everything]) -> None:
    with pytest.raises(ParameterError, match="fraction"):
        parameters.write_and_read(Everything(fraction=float("nan")))


@dataclass
class Measured:
    value: float | None = None


class Loose(Job):
    anything: Any = None
    maybe: float | None = None
    inner: Measured | None = None
    by_name: dict[str, Any] | None = None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "path", "given_as"),
    [
        ("anything", "anything", lambda number: number),
        ("anything", "anything[1].a", lambda number: [0, {"a": number}]),
        ("maybe", "maybe", lambda number: number),
        ("inner", "inner.value", Measured),
        ("by_name", "by_name.a is b[0]", lambda number: {"a is b": (number,)}),
    ],
)
def test_a_number_that_json_has_not_is_refused_where_null_would_be_read_for_it(
    name: str, path: str, given_as: Any, number: float
) -> None:
    """Without the check the job would run with None, in silence."""
    with pytest.raises(ParameterError) as raised:
        JobParameters(Loose, "Loose").write_and_read(Loose(**{name: given_as(number)}))
    assert str(raised.value).startswith(f"parameter {path} of job 'Loose' is ")
    assert f"JSON has no {number}; give None or a text" in str(raised.value)


def test_null_beside_numbers_is_no_reason_to_refuse() -> None:
    values = Loose(anything=(1, None, {2.5}), by_name={"a": None, "b": 1.5})  # read as lists, so looked at one by one
    assert JobParameters(Loose, "Loose").write_and_read(values)[0]


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b"[]", b'{"whole": "x"}', b"null", b"[" * 100_000])
def test_a_payload_that_does_not_fit_is_an_error(parameters: JobParameters[Everything], payload: bytes) -> None:
    with pytest.raises(ParameterError, match="cannot read its payload"):
        parameters.read(payload)


def test_fields_of_another_version_of_the_job_are_ignored(parameters: JobParameters[Everything]) -> None:
    assert parameters.read(b'{"whole": 3, "gone_since": [1]}').whole == 3


@pytest.fixture
def greet() -> Iterator[Any]:
    @job(name="greet-in-params")
    class Greet(Job):
        address: str
        locale: str = "en"

        def run(self) -> None: ...

    yield Greet
    forget("greet-in-params")


def test_a_missing_or_unknown_parameter_is_told_with_the_parameters_there_are(greet: Any) -> None:
    with pytest.raises(ParameterError, match=r"'address'; its parameters are address: str, locale: str"):
        greet()
    with pytest.raises(ParameterError, match="'adress'"):
        greet(adress="x")


def test_an_error_names_parameters_of_a_base_class_with_their_types() -> None:
    class Of(Job):
        tenant: str

    @job(name="params.derived")
    class Derived(Of):
        names: tuple[str, ...] = ()

        def run(self) -> None: ...

    forget("params.derived")
    with pytest.raises(ParameterError, match=r"its parameters are tenant: str, names: tuple\[str, \.\.\.\]$"):
        Derived()  # type: ignore[call-arg]


@dataclass
class Price(Line):
    """A type checker takes one where a Line is declared."""

    cents: int = 0


class Point(msgspec.Struct):
    x: int


class Spot(Point):
    y: int = 0


@dataclass
class Grossed:
    amount: int

    def __post_init__(self) -> None:
        self.amount = self.amount * 2


@dataclass(eq=False)
class Memo:
    day: date
    seen: dict[str, int] = field(default_factory=dict, init=False, compare=False)


class Options(TypedDict):
    depth: int


class Kept(Job):
    line: Line | None = None
    lines: list[Line] = []  # noqa: RUF012  (a struct copies it)
    by_name: dict[str, Line] = {}  # noqa: RUF012
    point: Point | None = None
    grossed: Grossed | None = None
    options: Options | None = None
    fraction: float = 0.0
    moment: datetime | None = None
    memo: Memo | None = None
    price: Decimal | None = None
    anything: Any = None
    bare: dict = {}  # type: ignore[type-arg]  # noqa: RUF012


@pytest.mark.parametrize(
    ("name", "value", "path", "read"),
    [
        ("line", Price("a", cents=3), "line", "Line(article='a', count=1)"),
        ("lines", [Line("a"), Price("a", cents=3)], "lines[1]", "Line(article='a', count=1)"),
        ("by_name", {"x": Price("a", cents=3)}, "by_name['x']", "Line(article='a', count=1)"),
        ("point", Spot(1, 2), "point", "Point(x=1)"),
        ("grossed", Grossed(5), "grossed.amount", "20"),
        ("options", {"depth": 1, "width": 2}, "options", "{'depth': 1}"),
        ("fraction", 2**60 + 1, "fraction", "1.15"),
        ("moment", datetime(1800, 1, 1, tzinfo=ZoneInfo("Europe/Madrid")), "moment", "datetime.datetime(1800"),
        ("bare", {1: "a", "1": "b"}, "bare", "{'1': 'b'}"),
    ],
)
def test_what_a_job_would_read_as_another_value_is_refused(name: str, value: Any, path: str, read: str) -> None:
    """Each was stored before, and the job ran with less, or with something else, in silence."""
    with pytest.raises(ParameterError) as raised:
        JobParameters(Kept, "Kept").write_and_read(Kept(**{name: value}))
    message = str(raised.value)
    assert message.startswith(f"parameter {path} of job 'Kept' is ")
    assert f"and the job would read {read}" in message


@pytest.mark.parametrize(
    "values",
    [
        {"moment": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Madrid"))},  # never equal in UTC
        {"memo": Memo(date(2026, 1, 1))},
        {"price": Decimal("NaN")},
        {"anything": (1, {2.5}, Line("a"), date(2026, 1, 1), Colour.RED, b"x"), "bare": {1: "a"}},
    ],
)
def test_what_is_never_equal_or_has_no_declared_type_is_stored(values: dict[str, Any]) -> None:
    sent = Kept(**values)
    if sent.memo is not None:
        sent.memo.seen["a"] = 1  # a cache
    parameters = JobParameters(Kept, "Kept")
    read = parameters.read(parameters.write_and_read(sent)[0])
    if sent.moment is not None and read.moment is not None:
        assert read.moment.timestamp() == sent.moment.timestamp()
    if sent.anything is not None:
        assert read.anything == [1, [2.5], {"article": "a", "count": 1}, "2026-01-01", "red", "eA=="]
        assert read.bare == {"1": "a"}


def test_a_type_that_cannot_be_read_is_told_with_its_parameter() -> None:
    class Ambiguous(Job):
        fine: int = 0
        either: Line | Grossed | None = None

    with pytest.raises(ParameterError, match=r"job 'Ambiguous' has a parameter whose type .*, either: Type unions"):
        JobParameters(Ambiguous, "Ambiguous").write_and_read(Ambiguous())


def test_a_default_may_be_written_as_in_a_dataclass() -> None:
    class Made(Job):
        needed: int = field()
        lines: list[Line] = field(default_factory=lambda: [Line("a")])
        count: int = field(default=3, metadata={"unit": "pieces"})

    first, second = Made(1), Made(needed=2, count=5)
    assert (first.lines, first.count, second.count) == ([Line("a")], 3, 5)
    assert first.lines is not second.lines
    parameters = JobParameters(Made, "Made")
    assert parameters.read(parameters.write_and_read(first)[0]) == first
    with pytest.raises(ParameterError, match="needed"):
        Made()  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"job class Computed: parameter total has field\(init=False\)"):

        class Computed(Job):
            total: int = field(init=False, default=0)
