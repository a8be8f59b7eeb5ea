"""Finds the four troubles of the incident: by links of the dashboard in a browser, and by commands.

Every walk begins on the overview, follows links only, and names what the page at its end must say.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.incident.scene import BROKEN_RELEASE, PREFIX, Incident
from tests.browser.accessible import problems

MOST_CLICKS, MOST_COMMANDS = 3, 2
SIZES = {"390": (390, 844), "1440": (1440, 900)}
THEMES = ("light", "dark")


@dataclass(frozen=True)
class Trouble:
    """One thing that went wrong, the links that lead to it, the commands, and what both must say."""

    name: str
    clicks: tuple[str, ...]
    """Texts of links, in order; a regular expression each."""
    commands: tuple[str, ...]
    says: tuple[str, ...]
    """Texts that the pages or the output must have, all together."""


@dataclass
class Found:
    """What a walk came to."""

    trouble: str
    way: str
    steps: list[str]
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong with pages for people who cannot see, or see little."""


def troubles(incident: Incident) -> list[Trouble]:
    """The four, as they are on this server."""
    return [
        Trouble(
            name="a job that fails since a release",
            clicks=("Errors of ChargeCard", "KeyError", r"…\w+-payments"),
            commands=("doctor", "dead groups payments"),
            says=("ChargeCard", "KeyError", "charge_card", f"release {BROKEN_RELEASE}"),
        ),
        Trouble(
            name="a task that ends its workers",
            clicks=("Open the task",),
            commands=("doctor", f"tasks show {incident.poison}"),
            says=(incident.poison, "Resize", "signal 11", "poison.tiff"),
        ),
        Trouble(
            name="a queue that nobody serves",
            clicks=("Open reports",),
            commands=("status", "doctor"),
            says=("reports", f"{incident.client.queue('reports').counts()['waiting']:,}", "no worker"),
        ),
        Trouble(
            name="a limit that is too low",
            clicks=("Open search",),
            commands=("doctor", "queues settings search"),
            says=("search", "10/1m", "the backlog takes"),
        ),
    ]


def by_clicks(tab: Any, url: str, trouble: Trouble, looked: Callable[[str], list[str]]) -> Found:
    """Follows the links; `looked(name)` is called at every page, and returns what is wrong with it."""
    found = Found(trouble.name, "clicks", [])
    tab.goto(f"{url}/")
    texts = [_text(tab)]
    found.problems += looked("0-overview")
    for number, link in enumerate(trouble.clicks, start=1):
        tab.locator("main a", has_text=re.compile(link)).first.click()
        tab.wait_for_load_state()
        found.steps.append(f"{link} → {tab.url.removeprefix(url)}")
        found.problems += looked(f"{number}-{_slug(trouble.name)}")
        texts.append(_text(tab))
    said = " ".join(texts)
    found.missing = [text for text in trouble.says if text.casefold() not in said.casefold()]
    return found


def by_commands(incident: Incident, trouble: Trouble) -> Found:
    """Runs the commands as a person does."""
    found, said = Found(trouble.name, "commands", []), ""
    for words in trouble.commands:
        command = [sys.executable, "-m", "jobrunner", *words.split(), "--url", incident.server.url, "--prefix", PREFIX]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "200"}
        )
        found.steps.append(f"jobrunner {words}")
        said += done.stdout + done.stderr
    plain = said.replace(",", "")
    found.missing = [text for text in trouble.says if text.replace(",", "").casefold() not in plain.casefold()]
    return found


def rehearse(incident: Incident, browser: Any, url: str, pictures: Path | None = None) -> Iterator[Found]:
    """All troubles by both ways; in the browser in both sizes and themes, a picture of each page where asked for."""
    found = troubles(incident)
    for trouble in found:
        yield by_commands(incident, trouble)
    for size, (width, height) in SIZES.items():
        for theme in THEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            with closing(context):
                context.set_default_timeout(15_000)
                tab = context.new_page()
                for order, trouble in enumerate(found, start=1):
                    yield by_clicks(tab, url, trouble, _looker(tab, pictures, f"{order}", f"{size}-{theme}"))


def picture(browser: Any, url: str, folder: Path) -> None:
    """The pictures of docs/incidents.md."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    with closing(context):
        tab = context.new_page()
        for name, link in (("overview", ""), ("suspect", "Open the task"), ("limit", "Open search")):
            tab.goto(f"{url}/")
            if link:
                tab.locator("main a", has_text=link).first.click()
            tab.wait_for_selector("#live-sign[data-state=live]", state="attached")
            tab.evaluate(f"document.querySelector('.where').textContent = 'redis://redis:6379/0 · {PREFIX}'")
            tab.screenshot(path=folder / f"incident-{name}.png")


def failures(found: Found) -> list[str]:
    """What is wrong with a walk; nothing when it led there in time."""
    most = MOST_CLICKS if found.way == "clicks" else MOST_COMMANDS
    wrong = [f"{len(found.steps)} {found.way}, at most {most}"] if len(found.steps) > most else []
    wrong += [f"{text!r} is said nowhere" for text in found.missing]
    return [f"{found.trouble}: {one}" for one in (*wrong, *found.problems)]


def _looker(tab: Any, pictures: Path | None, order: str, kind: str) -> Callable[[str], list[str]]:
    def looked(name: str) -> list[str]:
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=pictures / f"{order}-{name}-{kind}.png", full_page=True)
        return [f"{name} {kind}: {one}" for one in problems(tab)]

    return looked


def _text(tab: Any) -> str:
    return " ".join(tab.locator("main").inner_text().split())


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)
