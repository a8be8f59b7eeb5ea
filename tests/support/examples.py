"""How many examples Hypothesis draws: a third in the everyday run, all of them in CI."""

import os

_VARIABLE = "JOBRUNNER_TEST_EXAMPLES"
_EVERYDAY_SHARE = 3


def examples(count: int) -> int:
    """`count` when JOBRUNNER_TEST_EXAMPLES is `all`, as `.ci/run` sets it; else a third, drawn anew in each run."""
    return count if os.environ.get(_VARIABLE) == "all" else max(1, count // _EVERYDAY_SHARE)
