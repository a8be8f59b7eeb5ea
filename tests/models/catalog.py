"""The models, with the bounds of a full check and of a short one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.models.spin import FOLDER


@dataclass(frozen=True)
class Model:
    """A model and its bounds, by the names of its macros: `full` ones, each of which is a search of its own, `short`
    ones, and those within which a seeded bug is searched."""

    name: str
    title: str
    full: tuple[Mapping[str, int], ...]
    short: Mapping[str, int]
    bug_bounds: Mapping[str, int]

    @property
    def bugs(self) -> dict[str, str]:
        """The seeded bugs and what is wrong with each, as the head of the model lists them."""
        head = (FOLDER / f"{self.name}.pml").read_text("utf-8").partition("*/")[0]
        return {name: what.strip() for name, what in re.findall(r"^ +BUG_(\w+)  +(.+)$", head, re.MULTILINE)}


MODELS = {
    one.name: one
    for one in (
        Model(
            "lease", "the life of a lease",
            full=({"WORKERS": 3, "TASKS": 3, "CRASHES": 2},),
            short={"WORKERS": 2, "TASKS": 2, "CRASHES": 1},
            # With a limit of one lease: two tasks do not exceed that of two.
            bug_bounds={"WORKERS": 2, "TASKS": 2, "CRASHES": 1, "MAX_INFLIGHT": 1},
        ),
        Model(
            "flow", "outbox and join",
            full=({"WORKERS": 3, "TASKS": 3, "CRASHES": 2, "RELAYS": 2},),
            short={"WORKERS": 1, "TASKS": 3, "CRASHES": 1, "RELAYS": 2, "LOST": 0},
            bug_bounds={"WORKERS": 1, "TASKS": 3, "CRASHES": 1, "RELAYS": 2, "LOST": 0},
        ),
        Model(
            "batch", "a batch on Spark",
            full=(
                {"DRIVERS": 3, "TASKS": 3, "CRASHES": 2, "RETURNS": 0},
                {"DRIVERS": 2, "TASKS": 3, "CRASHES": 2, "FAILURES": 1, "LOST": 0, "RETURNS": 1},
            ),
            short={"DRIVERS": 2, "TASKS": 3, "CRASHES": 1, "FAILURES": 1, "RETURNS": 0},
            bug_bounds={"DRIVERS": 2, "TASKS": 3, "CRASHES": 1, "FAILURES": 1},
        ),
    )
}  # fmt: skip
