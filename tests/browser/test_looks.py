"""Every page, on a phone and on a desk, light and dark: nothing is cut off, all can be read, and all has a name."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.accessible import problems
from tests.browser.conftest import SIZES, THEMES

PAGES = {
    "overview": "/",
    "queues": "/queues",
    "queue": "/queues/mail",
    "station": "/queues/orders/checked",
    "tasks": "/tasks",
    "dead": "/dead",
    "nothing-found": "/tasks?error=no-such-error-anywhere",
    "workers": "/workers",
    "periodic": "/periodic",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/orders",
    "history": "/history",
    "redis": "/redis",
    "audit": "/audit",
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_page_can_be_read_by_everybody(shop: Any, look: Any, tmp_path: Path, size: str, theme: str) -> None:
    tab = look(size=size, theme=theme)
    found = {}
    for name, path in PAGES.items():
        tab.goto(shop.url + path)
        tab.screenshot(path=tmp_path / f"{name}-{size}-{theme}.png", full_page=True)
        found[name] = problems(tab)

    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize("size", SIZES)
def test_a_task_can_be_read_by_everybody(shop: Any, look: Any, size: str) -> None:
    tab = look(size=size)
    tab.goto(f"{shop.url}/tasks?state=dead&queue=mail")
    tab.locator("a.row-link").first.click()
    tab.wait_for_selector("ol.timeline")

    assert problems(tab) == []
    assert "is no address: it has no @" in tab.inner_text("main")
    assert "sk-1" not in tab.content()


def test_pages_are_read_without_javascript(shop: Any, look: Any) -> None:
    tab = look(size="phone", java_script_enabled=False)

    tab.goto(shop.url + "/")
    tab.get_by_role("navigation").get_by_role("link", name="Queues").click()
    tab.get_by_role("link", name="mail", exact=True).click()

    assert tab.inner_text("h1") == "mail"
