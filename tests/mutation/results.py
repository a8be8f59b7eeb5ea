"""What became of each mutant, kept in a folder, so that an interrupted run goes on; the record of all mutants that some
run killed; and the judgement of survivors."""

import json
import math
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.mutation.mutants import Mutant

JUDGED = Path(__file__).with_name("judged.toml")
RECORD = Path(__file__).with_name("killed.txt")
_LONGEST_LINE = 120
PLAN = "JOBRUNNER_MUTATION_PLAN"
"""The environment variable that names the file of a plan: folder, keys of mutants in order, seconds of tests each."""
VERDICTS = ("equivalent", "accepted")


@dataclass(frozen=True, slots=True)
class Result:
    """One mutant: killed, survived, or invalid when no server compiles it.

    `test` and `reason`: the first test that failed, and how. `by`: what killed it: test, time (a test ran into its
    limit) or process (that of the tests ended). `tests` of `of`: how many of the tests that run the line a survivor was
    tried against.
    """

    key: str
    file: str
    line: int
    before: str
    after: str
    status: str
    test: str = ""
    reason: str = ""
    tests: int = 0
    of: int = 0
    took_s: float = 0.0
    by: str = ""

    @property
    def is_late(self) -> bool:
        """Whether it was killed by the limit of time, or with the process of the tests, and by no failed assertion."""
        return self.status == "killed" and self.by != "test"

    @classmethod
    def of_mutant(
        cls, mutant: Mutant, status: str, *, test: str = "", by: str = "", reason: str = "", tests: int = 0,
        of: int = 0, took_s: float = 0.0,
    ) -> Self:  # fmt: skip
        """The result of a mutant."""
        return cls(
            mutant.key, mutant.file, mutant.line, mutant.before, mutant.after, status, test, reason, tests, of,
            round(took_s, 2), by,
        )  # fmt: skip


class Results:
    """The files of a folder. Each line is written at once, and the last line about a mutant counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._results, self._coverage = folder / "results.jsonl", folder / "coverage.jsonl"
        self._begun = folder / "begun"
        self._size = 0

    def read(self) -> dict[str, Result]:
        """The results so far, by the key of the mutant."""
        return {one["key"]: Result(**one) for one in _lines(self._results)}

    def lines(self) -> list[str]:
        """The keys of all results in the order in which they were written."""
        return [one["key"] for one in _lines(self._results)]

    def add(self, result: Result) -> None:
        """Keeps a result."""
        _append(self._results, asdict(result))

    def begin(self, mutant: Mutant) -> None:
        """Notes which mutant runs, for the case that the process ends with it."""
        self._begun.write_text(mutant.key)

    def begun(self) -> str:
        """The key of the mutant that ran last."""
        return self._begun.read_text() if self._begun.exists() else ""

    def read_coverage(self) -> dict[str, tuple[float, list[int]]]:
        """For each test its seconds and the numbers of the statements that it runs."""
        return {one["test"]: (one["took_s"], one["numbers"]) for one in _lines(self._coverage)}

    def add_coverage(self, test: str, took_s: float, numbers: list[int]) -> None:
        """Keeps what a test runs."""
        _append(self._coverage, {"test": test, "took_s": round(took_s, 3), "numbers": numbers})

    def has_grown(self) -> bool:
        """Whether tests were traced since this was called last."""
        before, self._size = self._size, self._coverage.stat().st_size if self._coverage.exists() else 0
        return self._size > before

    def forget_coverage(self) -> None:
        """For files that changed: the numbers stand for other statements now."""
        self._coverage.unlink(missing_ok=True)


def read_record(path: Path = RECORD) -> set[str]:
    """The keys of all mutants that a recorded run killed."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {key for line in lines if line.startswith(" ") for key in line.split()}


def add_to_record(killed: Collection[str], mutants: Iterable[Mutant], path: Path = RECORD) -> None:
    """Records kills. Keys of lines that are no more are dropped: `mutants` are all of today."""
    keys, by_file = read_record(path) | set(killed), defaultdict[str, list[str]](list)
    for one in mutants:
        by_file[one.file] += [one.key] if one.key in keys else []
    parts = ["# The keys of mutants that the tests killed, by file. `python -m tests.mutation --record` writes them.\n"]
    for file, found in sorted(by_file.items()):
        parts += [f"{file}\n", textwrap.indent(textwrap.fill(" ".join(sorted(found)), _LONGEST_LINE - 1), " "), "\n"]
    path.write_text("".join(parts), "utf-8")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why a survivor stays: `equivalent` (no caller can notice it) or `accepted`, which counts against the score."""

    verdict: str
    reason: str


def read_judgements(path: Path = JUDGED) -> dict[tuple[str, str, str], Judgement]:
    """By file, line before and line after. Raises ValueError for an entry that is not complete."""
    found = {}
    for entry in tomllib.loads(path.read_text("utf-8")).get("survivor", []) if path.exists() else []:
        if missing := {"file", "before", "after", "verdict", "reason"} - entry.keys():
            raise ValueError(f"{path.name}: {entry} has no {', '.join(sorted(missing))}; add it")
        if entry["verdict"] not in VERDICTS:
            raise ValueError(f"{path.name}: verdict {entry['verdict']!r} of {entry['before']!r} is none of {VERDICTS}")
        found[entry["file"], entry["before"], entry["after"]] = Judgement(entry["verdict"], entry["reason"])
    return found


def judgement_of(result: Result, judgements: dict[tuple[str, str, str], Judgement]) -> Judgement | None:
    """The judgement of a survivor."""
    return judgements.get((result.file, result.before, result.after))


@dataclass(frozen=True, slots=True)
class Score:
    """Of a group of mutants. Invalid ones count nowhere. `late` of the killed ones were so by no failed assertion: a
    test ran into its limit of time, or the process of the tests ended."""

    killed: int
    survived: int
    equivalent: int
    late: int = 0

    @classmethod
    def of(cls, results: Iterable[Result], judgements: dict[tuple[str, str, str], Judgement]) -> Self:
        """Counts results."""
        killed = survived = equivalent = late = 0
        for one in results:
            judged = judgement_of(one, judgements)
            killed += one.status == "killed"
            late += one.is_late
            is_equivalent = judged is not None and judged.verdict == "equivalent"
            survived += one.status == "survived" and not is_equivalent
            equivalent += one.status == "survived" and is_equivalent
        return cls(killed, survived, equivalent, late)

    @property
    def share(self) -> float:
        """Killed of those that are not equivalent; 1 of none."""
        counted = self.killed + self.survived
        return self.killed / counted if counted else 1.0

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Of 95 % confidence (Wilson), for a random sample."""
        count = self.killed + self.survived
        if not count:
            return 0.0, 1.0
        share, extra = self.share, z * z / count
        middle = (share + extra / 2) / (1 + extra)
        half = z / (1 + extra) * math.sqrt(share * (1 - share) / count + extra / 4 / count)
        return middle - half, middle + half


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]


def _append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")
