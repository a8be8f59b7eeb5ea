"""Seeds that found a bug, in the product or in what judges it: every run of CI and of the command plays each of them.

A change of the scenario or the scheduler changes what a seed means. So a bug that a seed found also gets a test of its
own, and is seeded again in bugs.py: a test plays the seed with its bug, and fails when the seed does not find it any
more. Write a line for each: the seed, the seeded bug, and what it was.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """Why a seed is kept. `bug` is a name in bugs.py."""

    bug: str
    what: str


KEPT: dict[int, Kept] = {
    33546: Kept(
        "LATE_FILL_ADDS_MEMBERS",
        "a fill that came late, for the second time, gave a batch a member that its driver did not know",
    ),
    46033: Kept("LATE_FILL_ADDS_MEMBERS", "the same"),
    1301: Kept(
        "CANCELLED_AND_STILL_THERE",
        "a full queue refused a flow, which was taken back, and the judge knew no end of a task but success and death",
    ),
    4853: Kept("CANCELLED_AND_STILL_THERE", "the same"),
    5625: Kept("DELETED_AND_NOT_COUNTED", "what a deletion of a queue took that was broken off was in no total"),
    578: Kept(
        "THROTTLE_ENDS_WITH_ITS_TASK", "a task that went to the dead letter queue took the lock of its throttle along"
    ),
    9397: Kept("ABANDONED_JOIN_FIRES", "the same, where a join would fire that was taken back"),
}


def kept_seeds(bug: str = "") -> list[int]:
    """All of them, or those that found a bug."""
    return [seed for seed, kept in KEPT.items() if bug in ("", kept.bug)]
