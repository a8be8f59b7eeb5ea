"""One word for one thing: no class name means two things, and retired words are in no name (docs/start/words.md)."""

import re
from collections import defaultdict
from dataclasses import fields

import pytest

from jobrunner import events
from jobrunner.broker import keys
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.jobs.options import JobOptions, PeriodicOptions
from jobrunner.queue_settings import QueueSettings
from jobrunner.settings import ClientSettings
from jobrunner.worker.settings import WorkerSettings
from tests.contracts.sources import ONE_PROCESS, PACKAGE, package

pytestmark = ONE_PROCESS
MODULES = """
aftermath ahead answer away backoffs bar begin books boundary breaker bulk by_kind cable causes closing compose
coordination crew curves dead_steps death decided declare declared definitions drivers embedded embedded_files
embedded_locks embedded_process endings enqueueing exporting figures fire fits folders forget glance guarded_steps
guesses handed_on handle handover hands hashed history_steps holder holders instants judge keeper keeping layout
lease_steps leaving limits line lines link look marks measures model names neighbours nodes notes noting offspring
origins outboxes own_descriptors own_kills own_signals ownerfile pace packing parts patience periodic_steps picture
place plain plan plot plots presence pressure produce published pulse queue_steps read_batch read_items read_options
read_shape reclaim refusals relay renewal replacing report_charts report_files report_page report_queries
report_tables room salvage sample seal sealing served server_checks server_side settle setup_checks side sift stations
steps stock stopping strike survey sweep tally task_steps thrift token tracepoint trim turns unknown wakeup walk watch
wear window words work_checks write_options write_rows writing
"""
"""Names of modules that readers confused, or could not understand."""
CLASSES = """
Aftermath Ahead Away ByKind Cable Closing Crew Decided Desk Endings Figures Fire Forget Glance Guesses Hospitable
Keeping KeyMissing Line Look Marks Neighbour NotSealed Outboxes Overview Pace Parts Patience Place Presence Pressure
Pulse Room Salvage Seal SealBroken SealError Settlement Shown Sifted Spread Stock Striker Struck Sweep Tally Thrift
Turns Unbroken Verb Wakeup Walk Watch Wear Will Wish Word
"""
WORDS = """
enlist hasten neighbours setback shed sift strike survey
"""
"""Words that are in no name of a public function."""
OPTIONS = """
dead_to keep limit_by max_expiries max_inflight_per_key patience payload_seal prefetch rate_per_key require_sealed
"""
KEYS = """
awaited closing died figures guesses keyed orders ring room told turn
"""

LABELS = ("come in", "Died last", "its task<", "Since it exists", "since it exists", "Not here", "Left it", ">Kept<")
"""What pages of the dashboard do not say: standard terms are in docs/start/words.md."""


def _words(text: str) -> set[str]:
    return set(text.split())


def test_no_class_name_means_two_things() -> None:
    found = defaultdict(list)
    for path, module in package().items():
        for name in module.classes:
            found[name.lstrip("_")].append(path.as_posix())

    assert {name: places for name, places in found.items() if len(places) > 1} == {}
    assert len(found) > 400


def test_no_module_has_a_retired_name() -> None:
    assert [path.as_posix() for path in package() if path.stem in _words(MODULES)] == []


def test_no_class_has_a_retired_name() -> None:
    found = [
        f"{path}: {name}"
        for path, module in package().items()
        for name in module.classes
        if name.lstrip("_") in _words(CLASSES)
    ]
    assert found == []


def test_no_public_function_has_a_retired_word_in_its_name() -> None:
    found = [
        f"{path}: {name}"
        for path, module in package().items()
        for name, _ in module.functions
        if not name.startswith("_") and set(name.split("_")) & _words(WORDS)
    ]
    assert found == []


@pytest.mark.parametrize("kind", [ClientSettings, QueueSettings, WorkerSettings, JobOptions, PeriodicOptions])
def test_no_option_has_a_retired_name(kind: type) -> None:
    names = getattr(kind, "__struct_fields__", None) or [field.name for field in fields(kind)]
    assert [name for name in names if name in _words(OPTIONS)] == []


def test_no_key_has_a_retired_name() -> None:
    listed = re.findall(r"^``(P[:/]\S+)``", keys.__doc__ or "", re.MULTILINE)
    found = [name for name in listed if set(re.split(r"[:/{}<>]+", name)) & _words(KEYS)]
    assert found == []
    assert len(listed) > 50
    own = [*QueueKeys.__struct_fields__, *vars(Keys("p"))]
    assert [name for name in own if set(name.split("_")) & _words(KEYS)] == []


def test_no_script_and_no_event_has_a_retired_name() -> None:
    scripts = [path.stem for path in (PACKAGE / "broker" / "lua").glob("*.lua")]
    retired = _words(WORDS) | {"arrive", "crew", "figures", "glance", "lead", "want"}
    assert [name for name in scripts if name in retired] == []
    assert [kind for kind in events.KINDS if set(kind.split("_")) & _words(WORDS)] == []


def test_no_page_of_the_dashboard_has_a_retired_label() -> None:
    pages = {path.name: path.read_text("utf-8") for path in (PACKAGE / "web" / "templates").glob("*.html")}
    assert len(pages) > 15
    assert [f"{name}: {label}" for name, text in pages.items() for label in LABELS if label in text] == []
