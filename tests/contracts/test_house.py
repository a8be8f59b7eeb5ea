"""What `python -m tests.contracts.house` counts and no class may have."""

import pytest

from tests.contracts.house import figures
from tests.contracts.sources import ONE_PROCESS

pytestmark = ONE_PROCESS


@pytest.mark.parametrize(
    "measure",
    [
        "constructors above 6 arguments",
        "classes with attributes first assigned outside __init__",
        "class names with several meanings",
    ],
)
def test_no_class_has_what_makes_it_hard_to_read(measure: str) -> None:
    assert not figures()[measure]
