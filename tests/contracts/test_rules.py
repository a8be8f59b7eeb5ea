"""Rules of the code base that no linter knows. Each failure says how to obey it."""

import ast
import re

import jobrunner
from jobrunner.events import KINDS
from tests.contracts.sources import ONE_PROCESS, PACKAGE, ROOT, package, source

pytestmark = ONE_PROCESS


def test_only_the_clock_reads_the_time_or_sleeps() -> None:
    offenders = [
        str(path)
        for path, module in package().items()
        if path.name != "clock.py" and module.imported & {"time", "time.sleep"}
    ]
    assert not offenders, f"{offenders}: import from jobrunner.clock, so that tests can replace it"


def test_only_logs_that_jobs_write_to_come_from_structlog() -> None:
    offenders = [
        str(path)
        for path, module in package().items()
        if path.stem not in ("logs", "log_output") and "structlog" in module.imported
    ]
    assert not offenders, f"{offenders}: use jobrunner.logs.SafeLogger, as trouble of a log must not end work"


def test_nothing_asks_datetime_for_the_present() -> None:
    offenders = [
        f"{path}:{node.lineno}"
        for path in package()
        if re.search(r"\.(now|utcnow|today)\b", text := (ROOT / path).read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today") and path.name != "clock.py"
        if isinstance(node.value, ast.Name) and node.value.id in ("datetime", "date")
    ]
    assert not offenders, f"{offenders}: use jobrunner.clock.utc_now, or the server's clock"


def test_the_package_imports_itself_nowhere_through_its_root() -> None:
    offenders = [
        f"{path}: {names[0]}"
        for path, module in package().items()
        for origin, names in module.froms
        if origin == "jobrunner"
    ]
    assert not offenders, f"{offenders}: import from the module that defines it; the root is for users"


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path, module in package().items() if not module.docstring]
    assert not silent, f"{silent}: begin with a docstring"


def test_exported_names_are_sorted_and_exist() -> None:
    assert jobrunner.__all__ == sorted(jobrunner.__all__)
    missing = [name for name in jobrunner.__all__ if not hasattr(jobrunner, name)]
    assert not missing, missing


def test_every_event_that_is_written_is_of_a_kind_that_is_told() -> None:
    written = set()
    for path in PACKAGE.rglob("*.py"):
        written |= set(re.findall(r'events\.note\(\s*[\w.]+,\s*"(\w+)"', path.read_text()))
    assert len(written) > 8
    assert not written - set(KINDS), f"{written - set(KINDS)}: describe them in jobrunner.events.KINDS"
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert not [kind for kind in KINDS if f"`{kind}`" not in page], "docs/monitoring.md has a table of them"


def test_every_error_stands_in_the_tree_of_the_docstring() -> None:
    from jobrunner import errors

    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) | {"JobrunnerError"}
    assert defined == drawn, f"draw or define {defined ^ drawn}"


ROWS = [
    *(f"MOSQ-{n:02}" for n in range(1, 34)),
    *(f"MOAB-{n:02}" for n in range(1, 35)),
    *(f"MDQ-{n:02}" for n in range(1, 30)),
    *(f"MOABX-{n:02}" for n in (*range(1, 6), 7)),
    *(f"KEU-{n:02}" for n in range(1, 39)),
    *(f"TITAN-{n:02}" for n in range(1, 24)),
    *(f"D-{n:02}" for n in range(1, 28)),
    *(f"I-{n}" for n in range(1, 13)),
]
NOT_AS_WRITTEN = ["MOABX-06", "MOABX-08", "MOABX-09"]


def test_every_row_that_is_not_met_as_written_has_its_reason() -> None:
    told = (ROOT / "docs" / "decisions" / "0005-not-yet.md").read_text()
    assert not set(ROWS) & set(NOT_AS_WRITTEN)
    silent = [row for row in NOT_AS_WRITTEN if row not in told]
    assert not silent, f"{silent}: say in decision 5 what is done instead, and why"


TABLE = (ROOT / "tests" / "requirements.md").read_text("utf-8")


def _ids(text: str) -> list[str]:
    """The ids of "KEU-01 to KEU-03, KEU-07"."""
    found: list[str] = []
    for first, last in re.findall(r"([A-Z]+-\d+)(?: to ([A-Z]+-\d+))?", text):
        (kind, low), high = first.split("-"), (last or first).split("-")[1]
        found += [f"{kind}-{n:0{len(low)}}" for n in range(int(low), int(high) + 1)]
    return found


def test_the_table_of_requirements_has_each_row_once_beside_the_file_that_proves_it() -> None:
    told: list[str] = []
    for words, _, file in re.findall(r"^\| ([A-Z]+-\d.*?) \| (.*) \| (?:`(.+)`)? ?\|$", TABLE, flags=re.MULTILINE):
        told += _ids(words)
        named = {one for name, doc in (source(ROOT / file).functions if file else ()) if name.startswith("test_")
                 for one in re.findall(r"[A-Z]+-\d+", doc)}  # fmt: skip
        unproved = [row for row in _ids(words) if file and row not in named]
        assert not unproved, f"{unproved}: name the row in the docstring of the test in {file} that proves it"
        assert file or set(_ids(words)) == set(NOT_AS_WRITTEN)
    assert sorted(told) == sorted([*ROWS, *NOT_AS_WRITTEN]), "tests/requirements.md has other rows"


def test_each_test_that_the_table_of_requirements_names_exists() -> None:
    named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", TABLE)
    assert len(named) == 16
    missing = [f"{file}::{test}" for file, test in named if test not in dict(source(ROOT / file).functions)]
    assert not missing, f"{missing}: write in tests/requirements.md which test proves it now"
