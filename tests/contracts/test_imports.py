"""Programs beside the package import names that it has: mypy reads `jobrunner` and `jobs_example` only."""

import importlib
import importlib.util

import pytest

from tests.contracts.sources import ONE_PROCESS, ROOT, Source, parsed, source

pytestmark = ONE_PROCESS
FOLDERS = ("benchmarks", ".mkdocs", "tests")
PROGRAMS = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def missing(program: Source) -> list[str]:
    """`module.name` of each name that the program imports from jobrunner and that is not there."""
    found = []
    for origin, names in program.froms:
        if origin.partition(".")[0] == "jobrunner":
            try:
                module = importlib.import_module(origin)
            except ModuleNotFoundError:
                found.append(origin)
                continue
            for one in names:
                name = f"{origin}.{one}"
                if not hasattr(module, one) and not (hasattr(module, "__path__") and importlib.util.find_spec(name)):
                    found.append(name)
    return found


def test_every_name_that_is_imported_from_the_package_is_there() -> None:
    wrong = {path: names for path in PROGRAMS if (names := missing(source(ROOT / path)))}
    assert not wrong, "renamed or moved in jobrunner/, not here"


@pytest.mark.parametrize("name", ["jobrunner.nowhere import x", "jobrunner.settings import NoSuchSettings"])
def test_a_name_that_is_gone_is_found(name: str) -> None:
    assert missing(parsed(f"from {name}")) == [
        "jobrunner.nowhere" if "nowhere" in name else "jobrunner.settings.NoSuchSettings"
    ]
