"""The description of any value in an error text."""

import pytest

from jobrunner.formatting import describe


class Hidden:
    """Something without a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a", "'a'"),
        (Hidden(), "a Hidden that cannot be shown"),
        (10**5000, "a int that cannot be shown"),
        ("x" * 200, "'" + "x" * 159 + "…"),
    ],
    ids=["text", "no repr", "too many digits", "long"],
)
def test_a_value_is_shown_on_one_short_line(value: object, told: str) -> None:
    assert describe(value) == told


def test_line_breaks_of_a_repr_become_blanks() -> None:
    class Wide:
        def __repr__(self) -> str:
            return "one\n  two"

    assert describe(Wide()) == "one two"
