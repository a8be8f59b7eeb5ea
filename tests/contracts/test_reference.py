"""The reference is made from the code: the committed pages are those of the code, and the code has something to say."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_overloads

import click
import pytest

import jobrunner
from jobrunner import errors
from jobrunner.broker import keys as all_keys
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.settings import ClientSettings, FileSettings
from jobrunner.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".mkdocs"


def load(name: str) -> ModuleType:
    """A module of the folder of the site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reference = load("reference")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The reference as it is published."""
    found = {}
    for path, (_, write) in reference.PAGES.items():
        try:
            found[path] = write()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("jobrunner."):
                raise
    return found


def test_every_public_name_is_described(pages: dict[str, str]) -> None:
    silent = [name for name in jobrunner.__all__ if not (getattr(jobrunner, name).__doc__ or "").strip()]
    assert not silent, f"{silent}: write a docstring; the reference is made of it"
    assert not [name for name in jobrunner.__all__ if f"\n### {name}" not in pages["reference/python.md"]]


def test_the_committed_pages_are_those_of_the_code(pages: dict[str, str]) -> None:
    """Compared without white space: click breaks the lines of help in its own way from version to version."""
    folder = ROOT / "docs"
    stale = [path for path, text in pages.items() if not (folder / path).is_file()
             or (folder / path).read_text("utf-8").split() != text.split()]  # fmt: skip
    assert not stale, f"{stale}: run python .mkdocs/reference.py, and commit docs/reference/"
    assert {path.name for path in (folder / "reference").iterdir()} == {Path(path).name for path in pages}


def test_the_groups_of_the_api_are_complete(pages: dict[str, str]) -> None:
    grouped = [name for names in reference.python_api.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(jobrunner.__all__), "add the name to GROUPS of .mkdocs/python_api.py"
    text = pages["reference/python.md"]
    assert not re.findall(r"now_ms:|wrongly|\b(?:Async)?Broker\b|QueueRef|object at 0x|<class", text)
    blocks = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 120


@pytest.mark.parametrize("owner", [jobrunner.Job, jobrunner.Client, jobrunner.Queue, jobrunner.Lease, jobrunner.Worker])
def test_every_method_is_told(pages: dict[str, str], owner: type) -> None:
    """`Job.using` was missing, which is a descriptor: a class and its instances have it alike."""
    public = [name for name in vars(owner) if not name.startswith("_") and callable(getattr(owner, name, None))]
    told = set(re.findall(r"^#### (\w+\.\w+)$", pages["reference/python.md"], re.MULTILINE))
    assert {f"{owner.__name__}.{name}" for name in public} - reference.python_api._HIDDEN_MEMBERS <= told


def test_each_option_of_a_job_has_a_row_and_a_group() -> None:
    grouped = {name for names in reference.OPTION_GROUPS.values() for name in names}
    assert grouped == set(inspect.signature(get_overloads(reference.job)[-1]).parameters) - {"unknown"}
    page = reference.job_options()
    assert not [name for name in grouped if not re.search(rf"^\| `{name}` \| \S.* \| \S", page, re.MULTILINE)]


def test_every_command_and_option_says_what_it_does_with_an_example() -> None:
    for words, command in reference.walk(reference.command_line, ("jobrunner",)):
        name = " ".join(words)
        assert command.help or command.short_help, f"{name}: write a docstring"
        if isinstance(command, click.Group):
            continue
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.help, f"{name} {option.opts[0]}: write help="
        examples = f"{command.epilog or ''}{command.help or ''}"
        parent = reference.command_line if len(words) == 2 else None
        assert "jobrunner" in examples or parent is None, f"{name}: show an example in epilog="


def test_every_command_is_on_the_page(pages: dict[str, str]) -> None:
    for words, command in reference.walk(reference.command_line, ("jobrunner",)):
        assert f"## {' '.join(words)}\n" in pages["reference/commands.md"]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in pages["reference/commands.md"], option


@pytest.mark.parametrize("owner", [ClientSettings, QueueSettings, WorkerSettings, RateLimit, FileSettings])
def test_every_setting_says_what_it_is_for(owner: type) -> None:
    silent = [name for name, _, said in reference.fields_of(owner) if not said]
    assert not silent, f"{owner.__name__}: write a docstring below {silent}"


def test_every_option_of_a_job_is_told() -> None:
    declared = get_overloads(reference.job)[-1]  # that with options; the others take a class or a function
    options = [name for name in inspect.signature(declared).parameters if name != "unknown"]
    told = inspect.getdoc(reference.job) or ""
    assert len(options) > 15
    assert not [name for name in options if not re.search(rf"\b{name}\b", told.partition("\n\n")[2])]


def test_every_variable_of_the_environment_is_told(pages: dict[str, str]) -> None:
    text = "".join(path.read_text("utf-8") for path in (ROOT / "jobrunner").rglob("*.py"))
    read = set(re.findall(r"[\"'](JOBRUNNER_[A-Z_]+[A-Z]|REDIS_URL|OTEL_[A-Z_]+)[\"']", text))
    untold = read - set(reference.VARIABLES)
    assert not untold, f"{untold}: say in VARIABLES of .mkdocs/reference.py what they do"
    assert all(f"`{name}`" in pages["reference/settings.md"] for name in reference.VARIABLES)


def test_every_error_says_when_it_is_raised(pages: dict[str, str]) -> None:
    for name, found in vars(errors).items():
        if isinstance(found, type):
            assert (found.__doc__ or "").strip(), f"{name}: write a docstring"
            assert f"| `{name}` |" in pages["reference/errors.md"]


def test_every_key_is_in_the_table(pages: dict[str, str]) -> None:
    keys = Keys("P")
    queue = keys.queue("tag/Q")
    names = [getattr(queue, name) for name in QueueKeys.__struct_fields__ if name not in ("name", "tag", "base")]
    names += [value for value in vars(keys).values() if isinstance(value, bytes) and value not in (b"P:", b"P/")]
    listed = {re.sub(r"<.*", "", key) for key in re.findall(r"``(P[:/][^`]+)``", all_keys.__doc__ or "")}
    shown = pages["reference/keys.md"]
    for key in map(bytes.decode, names):
        assert key in listed, f"{key}: add it to the table in broker/keys.py"
        assert f"`{key}" in shown


def test_every_script_is_told_by_its_header(pages: dict[str, str]) -> None:
    for path in (ROOT / "jobrunner" / "broker" / "lua").glob("*.lua"):
        assert f"## {path.stem}\n\n```text\n{path.stem}: " in pages["reference/scripts.md"]


def test_every_kind_of_event_is_told(pages: dict[str, str]) -> None:
    events = pytest.importorskip("jobrunner.events", reason="there are no events yet")
    assert all(events.KINDS.values())
    assert not [kind for kind in events.KINDS if f"| `{kind}` |" not in pages["reference/events.md"]]


def test_every_metric_is_there_by_its_name_in_queries_with_its_labels(pages: dict[str, str]) -> None:
    page = pages["reference/metrics.md"]
    assert "| `jobrunner_recovered_total` | counter | queue | Leases that ended" in page
    assert "| `jobrunner_station_spilled_bytes_total` | counter | queue | Bytes" in page
    assert "| `jobrunner_redis_append_only` | gauge |  | 1: the server" in page
    silent = [name for name, family in reference.metric_families().items() if not family.documentation]
    assert not silent, f"{silent}: give each metric its help where it is named"


def test_every_page_that_the_navigation_names_is_there() -> None:
    named = re.findall(r"^ +- ([\w/.-]+\.md)$", (SITE / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert len(named) > 25
    assert not [page for page in named if not (ROOT / "docs" / page).is_file()]


def test_every_link_between_pages_and_files_leads_somewhere(pages: dict[str, str]) -> None:
    texts = {path.relative_to(ROOT / "docs"): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    texts |= {Path("../README.md"): (ROOT / "README.md").read_text("utf-8")}
    broken = []
    for page, text in texts.items():
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            target = (ROOT / "docs" / page).parent / link
            is_made = str(page.parent / link) in reference.PAGES or f"reference/{Path(link).name}" in reference.PAGES
            if not target.exists() and not is_made:
                broken.append(f"{page}: {link}")
    assert not broken, broken


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "mkdocs", "build", "--strict", "-q", "-f", str(SITE / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)

    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "site" / "reference" / "commands.html").read_text("utf-8")
    assert "jobrunner work" in page
